"""
A send queue as its program sees it: what is posted, and what the program waits for.

How the requests are done is a matter of the
L{Requester<twisted_ib.hca.services.requester.Requester>}.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from twisted_ib.errors import QueuePairError, ResourceLimitError
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.requests import SendFlags, SendOpcode, SendRequest
from twisted_ib.hca.services.sendwqe import Inline, Operation

if TYPE_CHECKING:
    from twisted_ib.hca.services.work import WorkQueues

_SIGNALED = int(SendFlags.SIGNALED)
_FLUSHING = frozenset((QPState.SQE, QPState.ERR))

#: What somebody waits for: room for more requests; that all are in the medium; that all
#: are done; that all that were started are.
_ROOM, _SENT, _IDLE, _DRAINED = 1, 2, 4, 8


class SendQueue:
    """
    The requests of one send queue, in order.

    An operation is first in C{_unsent}; when its last record is in the medium, or when it
    cannot be sent, it goes to C{_onTheWay}; from there it completes.

    @cvar operations: what it can do, by opcode.
    @ivar work: the pair of queues it belongs to; L{None} once closed.
    @ivar _awaited: what somebody waits for.
    """

    __slots__ = ("_awaited", "_onTheWay", "_unsent", "work")

    operations: Mapping[SendOpcode, Callable[[SendRequest], Operation]] = {}

    def __init__(self, work: WorkQueues) -> None:
        self.work: WorkQueues | None = work
        self._unsent: deque[Operation] = deque()
        self._onTheWay: deque[Operation] = deque()
        self._awaited = 0

    def pump(self) -> None:
        """
        Do what can be done now.
        """
        raise NotImplementedError

    def flush(self, first: WCStatus) -> None:
        """
        Complete everything, in order, with WR_FLUSH_ERR.

        @param first: the status of the first, if it is the one that failed.
        """
        raise NotImplementedError

    # -- posting

    def enqueue(self, request: SendRequest) -> None:
        """
        Take a request; the state was checked.

        @raise QueuePairError: the queue pair cannot do this.
        @raise ResourceLimitError: the queue is full.
        """
        work = self.work
        assert work is not None
        number = work.queuePair.number
        operation = self.operations.get(request.opcode)
        if operation is None:
            raise QueuePairError(f"queue pair {number} does not do {request.opcode!r}")
        made = operation(request)
        if made.asks and not work.attributes.reads and work.queuePair.state not in _FLUSHING:
            raise QueuePairError(f"queue pair {number} may not have READs or atomics on the way")
        if work.signalAll:
            made.flags |= _SIGNALED
        self._append(work, made)

    def enqueueInline(
        self, payload: Any, length: int, immediate: int | None, id: int | None, solicited: bool = False
    ) -> bool:
        """
        Take a SEND of bytes; the state was checked.

        @return: whether all that is posted is in the medium.
        @raise ResourceLimitError: the queue is full.
        """
        work = self.work
        assert work is not None
        self.canPost()  # The consumer hears of room if there is none.
        self._append(work, Inline(payload, length, immediate, id, solicited))
        if self._unsent:
            self._awaited |= _SENT
            return False
        return True

    def _append(self, work: WorkQueues, operation: Operation) -> None:
        """
        Queue an operation and do what can be done.

        @raise ResourceLimitError: the queue is full.
        """
        queuePair, unsent = work.queuePair, self._unsent
        if len(unsent) + len(self._onTheWay) >= work.capabilities.sends:
            raise ResourceLimitError(f"the send queue of queue pair {queuePair.number} is full")
        unsent.append(operation)
        if queuePair.state in _FLUSHING:
            self.flush(WCStatus.WR_FLUSH_ERR)
        else:
            self.pump()

    def room(self) -> int:
        """
        How many more requests it holds.
        """
        work = self.work
        assert work is not None
        return work.capabilities.sends - len(self._unsent) - len(self._onTheWay)

    def canPost(self) -> bool:
        """
        Whether there is a place; if not, the consumer hears when there are many.
        """
        work = self.work
        assert work is not None
        if len(self._unsent) + len(self._onTheWay) < work.capabilities.sends:
            return True
        self._awaited |= _ROOM
        return False

    def idle(self) -> bool:
        """
        Whether all that was posted is done; if not, the consumer hears when it is.
        """
        if self._unsent or self._onTheWay:
            self._awaited |= _IDLE
            return False
        return True

    def refused(self) -> bool:
        """
        Whether the oldest that is not done was refused for want of a receive, however often it
        was sent again since.
        """
        queue = self._onTheWay or self._unsent
        return bool(queue) and queue[0].rnrRefusals > 0

    def drained(self) -> bool:
        """
        Whether nothing that was started is on its way (SQD).
        """
        return not self._onTheWay and not (self._unsent and self._unsent[0].started)

    def awaitDrained(self) -> None:
        """
        Have SQ_DRAINED raised when L{drained} becomes true.
        """
        self._awaited |= _DRAINED

    # -- who waits

    def _tell(self) -> None:
        work, unsent = self.work, self._unsent
        if work is None:
            return
        queuePair, awaited = work.queuePair, self._awaited
        count = len(unsent) + len(self._onTheWay)
        true = 0 if unsent else _SENT
        if not unsent and 2 * count <= work.capabilities.sends:
            true |= _ROOM
        if not count:
            true |= _IDLE
        if awaited & _DRAINED and self.drained():
            true |= _DRAINED
        self._awaited = awaited & ~true
        true &= awaited
        if true & _DRAINED and queuePair.state == QPState.SQD:
            queuePair.raiseEvent(EventType.SQ_DRAINED)
        if true & ~_DRAINED and queuePair.state not in _FLUSHING:
            queuePair.consumer.resume()

    def _go(self) -> None:
        if self._unsent:
            self.pump()
        if self._awaited:
            self._tell()
