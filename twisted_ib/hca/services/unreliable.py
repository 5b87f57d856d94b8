"""
Unreliable connections over a fabric of operations.

They are reliable connections without answers (IBTA vol. 1 9.8.2): SEND and WRITE, with an
immediate or without, and nothing that would ask the peer for something.  A message that the
peer cannot use, because it has no receive for it, because a key does not open what it names
or because its codes are out of sequence, is dropped whole and counted there; a receive that
it had begun to fill is there for the next.  The requester hears nothing.  Its request is
done when the peer has taken it out of the medium, used or not: until then what it refers to
must stay.  That a peer is gone is not heard of either: what is sent to it is lost.

What is wrong on the sender's side brings the queue pair to SQE (IBTA vol. 1 10.3.1.6).

On the seam the codes are those of reliable connections and L{UNRELIABLE}.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted_ib.hca.base.operation import (
    ABSENT,
    OPERATION_MASK,
    RESUME,
    SEND_FIRST,
    SEND_ONLY,
    SEND_ONLY_IMMEDIATE,
    UNRELIABLE,
    WRITE_FIRST,
    WRITE_ONLY,
    WRITE_ONLY_IMMEDIATE,
)
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.hca.services.local import RELIABLE
from twisted_ib.hca.services.requester import Requester
from twisted_ib.hca.services.responder import Refused, Responder
from twisted_ib.hca.services.sendwqe import Operation

if TYPE_CHECKING:
    from twisted_ib.hca.services.work import WorkQueues

#: How long messages of an unreliable connection wait until the way to the peer is found.
UNRELIABLE_WAIT_SECONDS = 5.0

_BEGINNINGS = frozenset(
    (SEND_FIRST, SEND_ONLY, SEND_ONLY_IMMEDIATE, WRITE_FIRST, WRITE_ONLY, WRITE_ONLY_IMMEDIATE)
)


class UnreliableRequester(Requester):
    """
    The send queue.

    @ivar _gone: whether the peer is: what is sent is lost.
    """

    __slots__ = ("_gone",)

    operations = {
        opcode: RELIABLE[opcode]
        for opcode in (
            SendOpcode.SEND,
            SendOpcode.SEND_WITH_IMM,
            SendOpcode.RDMA_WRITE,
            SendOpcode.RDMA_WRITE_WITH_IMM,
            SendOpcode.LOCAL_INV,
            SendOpcode.BIND_MW,
        )
    }
    transport = UNRELIABLE

    def __init__(self, work: WorkQueues) -> None:
        super().__init__(work)
        self._gone = False

    def pump(self) -> None:
        """
        See L{Requester.pump}.
        """
        super().pump()
        while self._gone and self.work is not None and self._onTheWay:
            self._complete()
            super().pump()  # LOCAL_INV waits for what is before it.

    def _publish(self, operation: Operation, work: WorkQueues) -> bool:
        if not self._gone:
            return super()._publish(operation, work)
        operation.position = 0
        self._lose(work)
        return True

    def _lose(self, work: WorkQueues) -> None:
        device = work.queuePair.device
        if device is not None:
            device.count("messages_lost")

    def _awaitPath(self, work: WorkQueues) -> None:
        """
        There is no way to the peer yet.  A wire would lose what is sent now; it waits as
        long as the way may take to be found.
        """
        if self._timer is None:
            self._timer = work.timers.start(UNRELIABLE_WAIT_SECONDS, self._unreachable)

    def _unreachable(self) -> None:
        self._timer = None
        if self.work is not None and self.work.queuePair.path is None:
            self._gone = True
            self._go()

    def pathFound(self) -> None:
        """
        See L{Requester.pathFound}.
        """
        self._gone = False
        self._acknowledged = 0  # Positions are the path's.
        super().pathFound()

    def pathLost(self) -> None:
        """
        The peer is gone, and what was on its way may have arrived or not.
        """
        self._gone, self._waiting = True, False
        for operation in self._onTheWay:
            operation.position = 0
        self.pump()
        if self._awaited:
            self._tell()

    def delivered(self, opcode: int, buffer: Any, start: int, stop: int) -> None:
        """
        Nothing is asked, so nothing that comes is an answer.
        """

    def _stop(self, work: WorkQueues, reason: Exception) -> None:
        work.queuePair.stop(reason)


class UnreliableResponder(Responder):
    """
    The receive queue.

    @ivar _dropping: whether the rest of a message is dropped.
    """

    __slots__ = ("_dropping",)

    def __init__(self, work: WorkQueues) -> None:
        super().__init__(work)
        self._dropping = False

    def delivered(self, opcode: int, buffer: Any, start: int, stop: int) -> int:
        """
        Take a record, or drop it.

        @return: 0, or the syndrome of a refusal to a sender that is not of this service.
        """
        work = self.work
        assert work is not None
        if not opcode & UNRELIABLE:
            # To a reliable requester it is as if there were no queue pair.
            return 0 if opcode & OPERATION_MASK == RESUME else ABSENT
        if self._fresh and not self._establish(work):
            return 0
        code = opcode & ~UNRELIABLE
        if code & OPERATION_MASK in _BEGINNINGS:
            if self._writing is not None:
                self._drop(work)  # Of that the end is missing.
            self._dropping = False
        elif self._dropping:
            return 0
        try:
            if code & OPERATION_MASK > WRITE_ONLY_IMMEDIATE:
                raise Refused(0)
            self._take(work, code, buffer, start, stop)
        except Refused as refused:
            if refused.status == WCStatus.LOC_PROT_ERR:
                # The receive names what it may not: the program's error, and no message
                # would get past it.
                self._fail(work, refused.status, refused.syndrome)
            else:
                self._drop(work)
                self._dropping = True
        return 0

    def _drop(self, work: WorkQueues) -> None:
        self._rewind()
        path = work.queuePair.path
        if path is not None:
            path.fabric.count("messages_dropped")
