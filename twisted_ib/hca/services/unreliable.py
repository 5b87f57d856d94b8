"""
Unreliable connections (UC) over a fabric of operations.

A UC is a reliable connection without responses (IBTA vol. 1 9.8.2): SEND and RDMA WRITE, with or without
immediate.  The responder drops and counts a whole message if it has no receive for it, if a key is not
valid, or if the opcodes are out of sequence; a receive that was partly filled is used for the next
message.  The requester is not notified.  A request completes when the peer has consumed it from the
medium, executed or not, since references in it must stay valid until then.  A lost peer is not reported
either: messages to it are lost.

An error on the sender's side brings the queue pair to SQE (IBTA vol. 1 10.3.1.6).

On the seam, opcodes are those of reliable connections plus L{UNRELIABLE}.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted_ib.hca.base.operation import ABSENT, OPERATION_MASK, RESUME
from twisted_ib.hca.base.states import QPType
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.services.operations.operation import Operation, Refused
from twisted_ib.hca.services.operations.rows import serviceOperations
from twisted_ib.hca.services.requester import Requester
from twisted_ib.hca.services.responder import Responder
from twisted_ib.hca.wire.opcodes import OPCODES, SERVICE_MASK, UNRELIABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twisted_ib.hca.services.operations.send import PostedSend
    from twisted_ib.hca.services.operations.write import PostedWrite
    from twisted_ib.hca.services.work import WorkQueues

#: How long, in seconds, messages of an unreliable connection wait for the path to the peer.
UNRELIABLE_WAIT_SECONDS = 5.0

#: Opcodes of UC without the bits of the service -> whether a message begins there.
_BEGINS = {
    code & ~UNRELIABLE: row.begins for code, row in OPCODES.items() if code & SERVICE_MASK == UNRELIABLE
}


class UnreliableRequester(Requester):
    """
    The send queue of an unreliable connection.
    """

    __slots__ = ("_gone",)

    # IBTA vol. 1 9.8.2: UC has no READs and no atomics, as those need a response.  SEND with
    # invalidate exists for reliable connections only.
    operations = serviceOperations(QPType.UC)
    transport = UNRELIABLE

    def __init__(self, work: WorkQueues) -> None:
        super().__init__(work)
        # Whether the peer is lost; what is sent is lost, too.
        self._gone = False

    def enqueueSends(self, sends: Sequence[PostedSend | PostedWrite]) -> None:
        super().enqueueSends(sends)
        if self._gone:
            self.pump()

    def pump(self) -> None:
        super().pump()
        while self._gone and self.work is not None and self.onTheWay:
            self._complete()
            # Completing makes way for a LOCAL_INV, which waits for everything before it.
            super().pump()

    def _publish(self, operation: Operation, work: WorkQueues) -> bool:
        if not self._gone:
            return super()._publish(operation, work)
        # Position 0 is acknowledged already, so that the request completes at once, and with
        # success: IBTA vol. 1 9.8.2 has no acknowledgement that could tell the difference.
        operation.position = 0
        self._lose(work)
        return True

    def _lose(self, work: WorkQueues) -> None:
        device = work.queuePair.device
        if device is not None:
            device.count("messages_lost")

    def _awaitPath(self, work: WorkQueues) -> None:
        # A wire would lose what is sent before the route is known.  Here it waits as long as
        # resolving the path may take; else the first messages of each connection would be lost.
        if self._timer is None:
            self._timer = work.timers.start(UNRELIABLE_WAIT_SECONDS, self._unreachable)

    def _unreachable(self) -> None:
        self._timer = None
        if self.work is not None and self.work.queuePair.path is None:
            self._gone = True
            self._go()

    def pathFound(self) -> None:
        self._gone = False
        # Positions count bytes of one path and begin anew with the next.
        self._acknowledged = 0
        super().pathFound()

    def pathLost(self) -> None:
        # Whatever is on its way completes, as it may have arrived or not.
        self._gone, self._waiting, self._isExpected = True, False, False
        for operation in self.onTheWay:
            operation.position = 0
        self.pump()
        if self._awaited:
            self._tell()

    def delivered(self, opcode: int, buffer: Any, start: int, stop: int) -> None:
        pass  # A UC requester expects no response.

    def _stop(self, work: WorkQueues, reason: Exception) -> None:
        work.queuePair.stop(reason)


class UnreliableResponder(Responder):
    """
    The receive queue of an unreliable connection.
    """

    __slots__ = ("_dropping",)

    def __init__(self, work: WorkQueues) -> None:
        super().__init__(work)
        # Whether the rest of a message is dropped: Linux rxe_resp.c calls this qp->resp.drop_msg.
        self._dropping = False

    def delivered(self, opcode: int, buffer: Any, start: int, stop: int) -> int:
        work = self.work
        assert work is not None
        if not opcode & UNRELIABLE:
            # Silence would let a reliable requester wait for ever here, where no packet is lost
            # and nothing times out: it is refused as if there were no such queue pair.
            return 0 if opcode & OPERATION_MASK == RESUME else ABSENT
        if self.isFresh and not self._establish(work):
            return 0
        code = opcode & ~UNRELIABLE
        begins = _BEGINS.get(code & OPERATION_MASK)
        # Linux rxe_resp.c check_psn() for UC: any First or Only ends the dropping and begins a new
        # message.
        if begins:
            if self._message is not None:
                # The message before it has no Last packet: it is incomplete.
                self._drop(work)
            self._dropping = False
        elif self._dropping:
            return 0
        try:
            if begins is None:
                # IBTA vol. 1 9.8.2: UC has no READs, no atomics and no SEND with invalidate.
                raise Refused(0)
            self._take(work, code, buffer, start, stop)
        except Refused as refused:
            if refused.status == WCStatus.LOC_PROT_ERR:
                # The receive's own scatter list is invalid (IBTA vol. 1 9.9.3): the program's
                # error.  To drop the message and keep the receive would have every later message
                # fail on it.
                self._fail(work, refused.status, refused.syndrome)
            else:
                self._drop(work)
                self._dropping = True
        return 0

    def severalDelivered(self, opcode: int, buffer: Any, spans: list[tuple[int, int]]) -> int:
        return 0

    def _drop(self, work: WorkQueues) -> None:
        self._rewind()
        path = work.queuePair.path
        if path is not None:
            path.fabric.count("messages_dropped")
