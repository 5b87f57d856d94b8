"""
The receives of one queue pair: its own, or those of a shared receive queue.

A receive that was taken must be completed or put back.

Shared receive queues (SRQ): one pool of receives for many queue pairs.

A server with a thousand connections does not need a thousand times the receives of its busiest connection.
The program watches the pool by its limit: when fewer receives are left it gets one event, and sets the
limit anew after it has posted more (IBTA vol. 1 10.2.9).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from twisted_ib import limits
from twisted_ib.errors import QueuePairError, ResourceLimitError
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.refcount import RefCounted
from twisted_ib.hca.memory.domains import ProtectionDomain
from twisted_ib.hca.queues.completion import Completions, Mirror, WCOpcode, WCStatus, WorkCompletion

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces.roles import WorkedQueuePair
    from twisted_ib.hca.queues.requests import Capabilities

_KIND: Final = "shared receive queues"
_32_BITS: Final = 1 << 32


# The next two classes are no records, as each message that a program receives has one of both: compiled, they
# are objects of C.
class SGE:
    """
    An element of a scatter/gather list (C{struct ibv_sge}): a piece of registered memory.

    @ivar address: of its first byte.
    @ivar length: bytes.
    @ivar key: the local key of the memory region.
    """

    __slots__ = ("address", "key", "length")

    def __init__(self, address: int, length: int, key: int) -> None:
        self.address = address
        self.length = length
        self.key = key

    def __repr__(self) -> str:
        return f"SGE(address={self.address!r}, length={self.length!r}, key={self.key!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SGE):
            return NotImplemented
        return (self.address, self.length, self.key) == (other.address, other.length, other.key)


def checkPieces(pieces: Sequence[SGE], most: int) -> None:
    """
    Check a scatter/gather list's lengths.

    @raise QueuePairError: it has more than C{most} elements, or one whose length does not fit 32 bits.
    """
    if len(pieces) > most:
        raise QueuePairError(f"a request has at most {most} pieces of memory here, not {len(pieces)}")
    # Only widths: addresses and keys are checked when the bytes are used, as the region may be
    # gone by then.
    for piece in pieces:
        if not 0 <= piece.length < _32_BITS:
            raise QueuePairError(f"a piece of memory has not {piece.length} bytes")


class ReceiveRequest:
    """
    A work request for the receive queue (C{struct ibv_recv_wr}).

    @ivar id: the program's wr_id.
    @ivar pieces: where a message's bytes go.
    """

    __slots__ = ("id", "pieces")

    def __init__(self, id: int, pieces: Sequence[SGE] = ()) -> None:
        self.id = id
        self.pieces = pieces

    def __repr__(self) -> str:
        return f"ReceiveRequest(id={self.id!r}, pieces={self.pieces!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ReceiveRequest):
            return NotImplemented
        return self.id == other.id and self.pieces == other.pieces


class ReceiveContext(Protocol):
    """
    The work queues that own receives, as the receives need them.

    @ivar capabilities: the sizes of the queues.
    @ivar shared: the shared receive queue, or L{None}.
    @ivar receiveCompletions: the CQ where receive requests complete.
    """

    capabilities: Capabilities
    shared: SharedReceiveQueue | None
    receiveCompletions: Completions

    @property
    def queuePair(self) -> WorkedQueuePair:
        """
        Their queue pair.
        """


class Receives:
    """
    The source of a responder's receives.
    """

    __slots__ = ("_flushed", "_own", "_shared", "_work")
    __deletable__ = ("_work",)

    def __init__(self, work: ReceiveContext) -> None:
        self._work = work
        self._shared = work.shared
        self._flushed = False
        # A deque from the first one on: consumers that take messages themselves have none.
        self._own: deque[ReceiveRequest] | tuple[()] = ()

    def __len__(self) -> int:
        return len(self._own if self._shared is None else self._shared)

    def __bool__(self) -> bool:
        return len(self) > 0 or (self._more() and len(self) > 0)

    def _more(self) -> bool:
        # A program of verbs may have posted some while other threads make progress.  Users that hear of
        # completions otherwise have no queue.
        mirror: Mirror | None = getattr(self._work.receiveCompletions, "mirror", None)
        return mirror is not None and mirror.more()

    def add(self, *requests: ReceiveRequest) -> None:
        """
        Accept receives from the program.

        @raise ResourceLimitError: the queue has not room for all.
        """
        if len(self._own) + len(requests) > self._work.capabilities.receives:
            raise ResourceLimitError(f"the receive queue of queue pair {self._work.queuePair.number} is full")
        if not isinstance(self._own, deque):
            self._own = deque()
        self._own.extend(requests)

    def room(self) -> int:
        """
        How many more of its own it holds.
        """
        return self._work.capabilities.receives - len(self._own)

    def take(self) -> ReceiveRequest | None:
        """
        Remove the oldest, or return L{None} if there is none.
        """
        if self._shared is not None:
            found = self._shared.take()
            return self._shared.take() if found is None and self._more() else found
        if self._own or self._more():
            return self._own.popleft() if self._own else None
        return None

    def oldest(self, count: int) -> list[ReceiveRequest]:
        """
        @return: the oldest of the queue pair's own, at most so many; they stay until L{drop}.
        """
        if self._shared is not None:
            return []
        if len(self._own) < count:
            self._more()
        return list(islice(self._own, count))

    def drop(self, count: int) -> None:
        """
        Remove as many of L{oldest} as were used.
        """
        own = self._own
        if isinstance(own, deque):
            for _ in range(count):
                own.popleft()

    def putBack(self, request: ReceiveRequest) -> None:
        """
        Return one that was taken and not used: it is the oldest again.
        """
        if self._shared is not None:
            self._shared.putBack(request)
            return
        if not isinstance(self._own, deque):
            # Forgotten since.
            self._own = deque()
        self._own.appendleft(request)

    def end(self, request: ReceiveRequest, status: WCStatus) -> None:
        """
        Complete one that was taken, with an error.
        """
        work = self._work
        completion = WorkCompletion(request.id, status, WCOpcode.RECV, work.queuePair.number)
        # Marked solicited: an error always counts as that (IBTA vol. 1 11.4.2.2).
        work.receiveCompletions.push(completion, True)

    def flush(self) -> None:
        """
        Complete all of the queue pair's own in order with WR_FLUSH_ERR; shared ones stay, and
        QP_LAST_WQE_REACHED is raised once.
        """
        own = self._own
        while own:
            self.end(own.popleft(), WCStatus.WR_FLUSH_ERR)
        if self._shared is not None and not self._flushed:
            # IBTA vol. 1 11.6.3.1: after this event the queue pair uses no more of the SRQ's
            # receives, and the program may destroy the queue pair without losing one.
            self._flushed = True
            self._work.queuePair.raiseEvent(EventType.QP_LAST_WQE_REACHED)

    def clear(self) -> None:
        """
        Forget the queue pair's own, and the work queues: nothing is taken any more.
        """
        self._own = ()
        # They refer to each other; without the cycle both are freed at once.
        del self._work


class SharedReceiveQueue(RefCounted):
    """
    A bounded queue of receive requests that several queue pairs take from.

    @ivar pd: its protection domain, which holds the memory of its requests.
    @ivar depth: how many requests it holds.
    @ivar pieces: elements that a request's scatter/gather list may have.
    @ivar limit: an event is raised when fewer requests are left; 0 is never.
    @ivar onEvent: L{None}, or the function to call with C{SRQ_LIMIT_REACHED} and the queue.
    """

    __slots__ = ("_requests", "closed", "depth", "limit", "onEvent", "pd", "pieces")

    kind: ClassVar[str] = "shared receive queue"

    def __init__(self, pd: ProtectionDomain, depth: int, pieces: int) -> None:
        """
        @raise ResourceLimitError: C{depth} is not between 1 and L{limits.SHARED_RECEIVE_DEPTH}, or
            C{pieces} is more than L{limits.SCATTER_GATHER_ELEMENTS}.
        """
        super().__init__()
        _checkDepth(depth)
        if not 0 <= pieces <= limits.SCATTER_GATHER_ELEMENTS:
            raise ResourceLimitError(
                f"a shared receive queue has 0 to {limits.SCATTER_GATHER_ELEMENTS} "
                f"elements of a list, not {pieces}"
            )
        self.pd = pd
        self.depth = depth
        self.pieces = pieces
        self.limit = 0
        self.onEvent: Callable[[EventType, object], None] | None = None
        self.closed = False
        self._requests: deque[ReceiveRequest] = deque()
        pd.hold(_KIND)

    def __len__(self) -> int:
        return len(self._requests)

    def post(self, request: ReceiveRequest, fits: bool = False) -> None:
        """
        Add a receive request.

        @param fits: whether its numbers are known to fit their fields.
        @raise QueuePairError: the request is not valid, or the queue is closed.
        @raise ResourceLimitError: the queue is full.
        """
        if self.closed:
            raise QueuePairError("the shared receive queue is closed")
        if not fits or len(request.pieces) > self.pieces:
            checkPieces(request.pieces, self.pieces)
        if len(self._requests) >= self.depth:
            raise ResourceLimitError(f"the shared receive queue holds {self.depth} requests")
        self._requests.append(request)

    def postPromised(self, requests: Sequence[ReceiveRequest]) -> None:
        """
        Add requests for which there was room when the program was told that they are posted: beyond the depth
        if others were put back since.

        @param requests: each with at most L{SharedReceiveQueue.pieces} elements, whose numbers fit.
        @raise QueuePairError: the queue is closed.
        """
        if self.closed:
            raise QueuePairError("the shared receive queue is closed")
        self._requests.extend(requests)

    def take(self) -> ReceiveRequest | None:
        """
        Remove the oldest request, or return L{None} if there is none.
        """
        requests = self._requests
        if not requests:
            return None
        request = requests.popleft()
        if len(requests) < self.limit:
            # IBTA vol. 1 10.2.9: the event disarms the limit; Linux rxe_resp.c get_srq_wqe()
            # does the same.  Before the call, as its handler sets the next limit.
            self.limit = 0
            if self.onEvent is not None:
                self.onEvent(EventType.SRQ_LIMIT_REACHED, self)
        return request

    def putBack(self, request: ReceiveRequest) -> None:
        """
        Return a request that was taken and not used: it is the oldest again, even if the queue was filled
        up meanwhile.
        """
        # Beyond the depth, if need be: to lose a request that the program posted would be worse.
        if not self.closed:
            self._requests.appendleft(request)

    def modify(self, limit: int | None = None, depth: int | None = None) -> None:
        """
        Set the limit, or the depth, or both.

        @param limit: see L{SharedReceiveQueue.limit}; the event comes after the next take at the earliest.
        @param depth: how many requests it holds from now on.

        @raise ResourceLimitError: the depth is not possible or smaller than the number of requests, or the
            limit is not between 0 and the depth; nothing changes then.
        """
        # Both are checked before either is set (Linux rxe_srq.c rxe_srq_chk_attr()).
        newDepth = self.depth if depth is None else depth
        newLimit = self.limit if limit is None else limit
        _checkDepth(newDepth)
        if depth is not None and depth < len(self._requests):
            raise ResourceLimitError(
                f"{len(self._requests)} receive requests wait, which {depth} places do not hold"
            )
        if not 0 <= newLimit <= newDepth:
            raise ResourceLimitError(f"the limit is 0 to {newDepth} requests, not {newLimit}")
        self.depth = newDepth
        self.limit = newLimit

    def close(self) -> None:
        """
        Destroy it; its requests are dropped without completions.

        @raise ResourceBusyError: queue pairs still use it.
        """
        self.checkFree()
        if not self.closed:
            self.closed = True
            self.onEvent = None
            self._requests.clear()
            self.pd.release(_KIND)


def _checkDepth(depth: int) -> None:
    if not 1 <= depth <= limits.SHARED_RECEIVE_DEPTH:
        raise ResourceLimitError(
            f"a shared receive queue holds 1 to {limits.SHARED_RECEIVE_DEPTH} requests, not {depth}"
        )
