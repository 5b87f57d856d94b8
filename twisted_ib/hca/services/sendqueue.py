"""
The posting side of a send queue: accepted requests, and notifications that the program asked for.

L{Requester<twisted_ib.hca.services.requester.Requester>} sends and completes the requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, MutableSequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from attrs import evolve

from twisted_ib import limits
from twisted_ib.compilation import mypyc_attr
from twisted_ib.errors import QueuePairError, ResourceLimitError, UnsupportedOperationError
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.memory.access import LOCAL_READ
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.requests import SendFlags, SendOpcode, SendRequest
from twisted_ib.hca.queues.scatter import locate, total
from twisted_ib.hca.services.operations.operation import BY_RECORD, DONE, Operation, Placed
from twisted_ib.hca.services.operations.send import Inline

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import IPath
    from twisted_ib.hca.services.work import WorkQueues

_RTS: Final = QPState.RTS
_INLINE_FLAG: Final = int(SendFlags.INLINE)
_SIGNALED: Final = int(SendFlags.SIGNALED)
#: States in which a request is flushed at once.
FLUSHING: Final = frozenset((QPState.SQE, QPState.ERR))

#: Notifications the consumer waits for: room for more requests; all posted to the medium; all
#: completed; all that were started completed (SQD).
_ROOM: Final = 1
_SENT: Final = 2
_IDLE: Final = 4
_DRAINED: Final = 8


@mypyc_attr(allow_interpreted_subclasses=True)
class SendQueue:
    """
    The requests of one send queue, in order.

    An operation starts in C{_unsent}; when its last record is in the medium, or when it cannot be sent, it
    moves to L{onTheWay}; from there it completes.

    @cvar operations: the operations of the service, by opcode; a fabric may lack some.
    @cvar transport: the bits of the service in opcodes.
    @ivar work: the work queues it belongs to; L{None} once closed.
    @ivar onTheWay: what the peer has not done yet, as far as is known.
    """

    __slots__ = ("_awaited", "_unsent", "onTheWay", "work")

    operations: ClassVar[Mapping[SendOpcode, type[Any]]] = {}
    transport: ClassVar[int] = 0

    def __init__(self, work: WorkQueues) -> None:
        self.work: WorkQueues | None = work
        # A deque of none is 760 bytes, a list 56; few take as long from the front of a list.
        kind = list if work.capabilities.sends <= limits.SHORT_SEND_QUEUE else deque
        self._unsent: MutableSequence[Operation] = kind()
        self.onTheWay: MutableSequence[Operation] = kind()
        self._awaited = 0

    def pump(self) -> None:
        """
        Send what can be sent now.
        """
        raise NotImplementedError

    def _place(self, operation: Operation, work: WorkQueues, path: IPath) -> Placed:
        # Do the oldest request, a WRITE, without a record, if that can be.
        # Of one that has begun the peer has records, and waits for the rest.
        if self.transport or operation.begun:
            return BY_RECORD
        placed = operation.place(path, work.queuePair.remote, work.pd, self.onTheWay)
        if placed is DONE:
            del self._unsent[0]
            self.onTheWay.append(operation)
        return placed

    def flush(self, first: WCStatus) -> None:
        """
        Complete everything in order with WR_FLUSH_ERR.

        @param first: the status of the oldest request instead, if it is the one that failed.
        """
        raise NotImplementedError

    # -- posting

    def enqueue(self, request: SendRequest, fits: bool = False) -> None:
        """
        Accept a request: see L{WorkQueues.postSend<twisted_ib.hca.services.work.WorkQueues.postSend>}.
        """
        work = self.work
        if work is None:
            raise QueuePairError("this send queue is closed")
        # IBTA vol. 1 10.3.1: refused before RTS; in SQE and ERR it is accepted and flushed at
        # once.
        if work.queuePair.state < _RTS:
            raise work.wrongState("send")
        if not fits or len(request.pieces) > work.capabilities.pieces:
            request.check(work.capabilities.pieces)
        if request.flags & _INLINE_FLAG and request.inline is None:
            request = self._gathered(work, request)
        operation = work.operations.get(request.opcode)
        if operation is None:
            raise self._notSupported(request.opcode)
        if operation.demands or request.inline is not None:
            operation.check(request, work.capabilities.inline)
        made = operation(request)
        # max_rd_atomic is 0: refused when posted.  In SQE and ERR it is accepted and flushed like
        # any other, as a program that posts after an error awaits the completion (IBTA vol. 1
        # 10.3.1).
        if made.asks and not work.attributes.reads and work.queuePair.state not in FLUSHING:
            raise QueuePairError(
                f"queue pair {work.queuePair.number} may not have READs or atomics on the way"
            )
        if work.signalAll:
            made.flags |= _SIGNALED
        self._append(work, made)

    def _gathered(self, work: WorkQueues, request: SendRequest) -> SendRequest:
        # IBV_SEND_INLINE: the bytes are copied now, so that the program may reuse the buffer when
        # the call returns (libibverbs/verbs.h).
        pieces = request.pieces
        length = total(pieces)
        most = work.capabilities.inline
        if length > most:
            raise QueuePairError(f"a request has at most {most} bytes inline, not {length}")
        # libibverbs ignores the lkeys of inline data; here they are checked, as an address is no
        # pointer and means nothing without its region.
        data = b"".join(locate(work.pd, pieces, 0, length, LOCAL_READ))
        return evolve(request, pieces=(), inline=data)

    def enqueueInline(
        self, payload: Any, length: int, immediate: int | None, id: int | None, solicited: bool = False
    ) -> bool:
        """
        Accept a SEND of bytes; the caller checked the state.

        @return: whether everything posted is in the medium.
        @raise ResourceLimitError: the queue is full.
        """
        work = self.work
        assert work is not None
        if immediate is not None and SendOpcode.SEND_WITH_IMM not in work.operations:
            raise self._notSupported(SendOpcode.SEND_WITH_IMM)
        # If the queue is full, _append raises; the consumer is told when it is half empty, as by canPost().
        if len(self._unsent) + len(self.onTheWay) >= work.capabilities.sends:
            self._awaited |= _ROOM
        self._append(work, Inline(payload, length, immediate, id, solicited))
        if self._unsent:
            self._awaited |= _SENT
            return False
        return True

    def checkOperation(self, opcode: SendOpcode) -> None:
        """
        @raise QueuePairError: the queue pair has no such operation.
        """
        work = self.work
        if work is not None and opcode not in work.operations:
            raise self._notSupported(opcode)

    def _notSupported(self, opcode: SendOpcode) -> QueuePairError:
        assert self.work is not None
        number, device = self.work.queuePair.number, self.work.queuePair.device
        found = None if device is None else device.traits.operations
        if found is not None and opcode not in found:
            return UnsupportedOperationError(
                f"queue pair {number} does not do {opcode!r}: the fabric of {device.name} has it not"
            )
        return QueuePairError(f"queue pair {number} does not do {opcode!r}: its service has it not")

    def _append(self, work: WorkQueues, operation: Operation) -> None:
        # A request occupies the queue until it completes, not only until it is sent:
        # libibverbs/verbs.h's max_send_wr counts outstanding requests.
        if len(self._unsent) + len(self.onTheWay) >= work.capabilities.sends:
            raise ResourceLimitError(f"the send queue of queue pair {work.queuePair.number} is full")
        self._unsent.append(operation)
        if work.queuePair.state in FLUSHING:
            self.flush(WCStatus.WR_FLUSH_ERR)
        else:
            self.pump()

    def room(self) -> int:
        """
        How many more requests it holds.
        """
        work = self.work
        assert work is not None
        return work.capabilities.sends - len(self._unsent) - len(self.onTheWay)

    def canPost(self) -> bool:
        """
        Whether the queue has room; if not, the consumer is notified when it is half empty.
        """
        work = self.work
        assert work is not None
        if len(self._unsent) + len(self.onTheWay) < work.capabilities.sends:
            return True
        self._awaited |= _ROOM
        return False

    def idle(self) -> bool:
        """
        Whether everything posted is completed; if not, the consumer is notified when it is.
        """
        if self._unsent or self.onTheWay:
            self._awaited |= _IDLE
            return False
        return True

    def refused(self) -> bool:
        """
        Whether the oldest request that is not done was refused for want of a receive, at least once.
        """
        queue = self.onTheWay or self._unsent
        return bool(queue) and queue[0].rnrRefusals > 0

    def drained(self) -> bool:
        """
        Whether everything that was started is done (SQD).
        """
        return not self.onTheWay and not (self._unsent and self._unsent[0].started)

    def awaitDrained(self) -> None:
        """
        Raise SQ_DRAINED when L{drained} becomes true.
        """
        self._awaited |= _DRAINED

    # -- notifications

    def _tell(self) -> None:
        work, unsent = self.work, self._unsent
        if work is None:
            return
        queuePair, awaited = work.queuePair, self._awaited
        count = len(unsent) + len(self.onTheWay)
        # Room is announced at half, not at one free entry: else a busy producer would be woken per
        # completion.
        true = 0 if unsent else _SENT
        if not unsent and 2 * count <= work.capabilities.sends:
            true |= _ROOM
        if not count:
            true |= _IDLE
        if awaited & _DRAINED and self.drained():
            true |= _DRAINED
        # Cleared before the calls below: the consumer may post, and so wait, again in them.
        self._awaited = awaited & ~true
        true &= awaited
        # IBTA vol. 1 11.6.3.1: the event is for SQD only; a queue pair that failed meanwhile
        # reports that instead.
        if true & _DRAINED and queuePair.state == QPState.SQD:
            queuePair.raiseEvent(EventType.SQ_DRAINED)
        if true & ~_DRAINED and queuePair.state not in FLUSHING:
            queuePair.consumer.resume()

    def _go(self) -> None:
        if self._unsent:
            self.pump()
        if self._awaited:
            self._tell()
