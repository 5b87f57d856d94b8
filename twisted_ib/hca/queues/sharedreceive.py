"""
Shared receive queues (SRQ): one pool of receives for many queue pairs.

A server with a thousand connections does not need a thousand times the receives of its busiest connection.
The program watches the pool by its limit: when fewer receives are left it gets one event, and sets the
limit anew after it has posted more (IBTA vol. 1 10.2.9).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from twisted_ib import limits
from twisted_ib.errors import QueuePairError, ResourceLimitError
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.refcount import RefCounted
from twisted_ib.hca.memory.regions import ProtectionDomain
from twisted_ib.hca.queues.requests import ReceiveRequest, checkPieces

_KIND = "shared receive queues"


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

    kind = "shared receive queue"

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

    def postPromised(self, request: ReceiveRequest, fits: bool) -> None:
        """
        Add a request for which there was room when the program was told that it is posted: beyond the depth
        if another was put back since.

        @param request: one with at most L{SharedReceiveQueue.pieces} elements.
        @param fits: as L{post} has it; always true.
        @raise QueuePairError: the queue is closed.
        """
        if self.closed:
            raise QueuePairError("the shared receive queue is closed")
        self._requests.append(request)

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
