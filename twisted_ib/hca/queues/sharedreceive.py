"""
Shared receive queues: one stock of receives for many queue pairs.

A server with a thousand connections needs not a thousand times the receives that one
connection may use at its busiest.  The program watches the stock by its limit: when
fewer receives than that are left it is told so, once, and sets the limit anew after it
has posted more (IBTA vol. 1 10.2.9.3).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from twisted_ib import limits
from twisted_ib.errors import QueuePairError, ResourceLimitError
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.refcount import RefCounted
from twisted_ib.hca.memory.memory import ProtectionDomain
from twisted_ib.hca.queues.requests import ReceiveRequest, checkPieces

_KIND = "shared receive queues"


class SharedReceiveQueue(RefCounted):
    """
    A bounded queue of receive requests that several queue pairs take from.

    @ivar pd: its protection domain, which holds the memory of its requests.
    @ivar depth: how many requests it holds.
    @ivar pieces: elements that a request's scatter/gather list may have.
    @ivar limit: the event comes when fewer requests than this are left; 0 is never.
    @ivar onEvent: L{None}, or what to call with C{SRQ_LIMIT_REACHED} and the queue.
    @ivar closed: whether it is gone.
    """

    __slots__ = ("_requests", "closed", "depth", "limit", "onEvent", "pd", "pieces")

    kind = "shared receive queue"

    def __init__(self, pd: ProtectionDomain, depth: int, pieces: int) -> None:
        """
        @raise ResourceLimitError: C{depth} is not between 1 and
            L{limits.SHARED_RECEIVE_DEPTH}, or C{pieces} is more than
            L{limits.SCATTER_GATHER_ELEMENTS}.
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

    def post(self, request: ReceiveRequest) -> None:
        """
        Add a receive request.

        @raise QueuePairError: the request cannot be, or the queue is closed.
        @raise ResourceLimitError: the queue is full.
        """
        if self.closed:
            raise QueuePairError("the shared receive queue is closed")
        checkPieces(request.pieces, self.pieces)
        if len(self._requests) >= self.depth:
            raise ResourceLimitError(f"the shared receive queue holds {self.depth} requests")
        self._requests.append(request)

    def take(self) -> ReceiveRequest | None:
        """
        Take the oldest request, or L{None} if there is none.
        """
        requests = self._requests
        if not requests:
            return None
        request = requests.popleft()
        if len(requests) < self.limit:
            self.limit = 0
            if self.onEvent is not None:
                self.onEvent(EventType.SRQ_LIMIT_REACHED, self)
        return request

    def putBack(self, request: ReceiveRequest) -> None:
        """
        A request was taken and not used: it is the oldest again, whether the queue was
        filled up meanwhile or not.
        """
        if not self.closed:
            self._requests.appendleft(request)

    def modify(self, limit: int | None = None, depth: int | None = None) -> None:
        """
        Set the limit, or the depth, or both.

        @param limit: see L{SharedReceiveQueue.limit}; the event comes after a request is
            taken, not at once.
        @param depth: how many requests it holds from now on.

        @raise ResourceLimitError: the depth is not possible or smaller than what waits,
            or the limit is not between 0 and the depth; nothing changes then.
        """
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
        Let it go, and forget what waits, without completions.

        @raise ResourceBusyError: queue pairs still take from it.
        """
        self.checkFree()
        if not self.closed:
            self.closed = True
            self.onEvent = None
            self._requests.clear()
            self.pd.release(_KIND)


def _checkDepth(depth: int) -> None:
    """
    @raise ResourceLimitError: no shared receive queue holds so many requests.
    """
    if not 1 <= depth <= limits.SHARED_RECEIVE_DEPTH:
        raise ResourceLimitError(
            f"a shared receive queue holds 1 to {limits.SHARED_RECEIVE_DEPTH} requests, not {depth}"
        )
