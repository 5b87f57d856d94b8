"""
Retransmission deadlines, and connections in TIMEWAIT.
"""

from __future__ import annotations

from functools import lru_cache
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from twisted_ib import limits
from twisted_ib.hca.wire.cm.messages import timeoutSeconds

#: The longest response timeout that a REQ may ask of us: a timeout code, about eight seconds.  Our REP is
#: retransmitted at this rate (IBTA vol. 1 12.7).
CM_RESPONSE_TIMEOUT_CODE = 21
#: The shortest, 0.26 s: a REQ with a forged source must not draw a burst of REPs to the victim.
CM_RESPONSE_TIMEOUT_CODE_LEAST = 16
#: Times of connections that are remembered, by their codes.
CM_TIMINGS = 1024
#: Cancelled deadlines that the heap may hold beyond as many as are valid.
CM_IDLE_DEADLINES = 64

_IDLE = CM_IDLE_DEADLINES


class Waiting(Protocol):
    """
    Something with a deadline.

    @ivar localID: its unique name.
    @ivar deadline: or L{None}.
    """

    localID: int
    deadline: float | None


Waits = TypeVar("Waits", bound=Waiting)


class Deadlines(Generic[Waits]):
    """
    The deadlines of connections that wait for an answer: a heap with lazy deletion.

    @ivar heap: empty if nothing waits, which is seen without a call.
    """

    # A cancelled entry stays in the heap until it comes up, until there are too many of them, or until
    # nothing waits: most deadlines are cancelled by an answer, and removing one from the middle costs a
    # scan. Twisted's C{twisted.internet.base.ReactorBase} treats cancelled C{DelayedCall}s the same way.
    __slots__ = ("_count", "_known", "heap")

    def __init__(self, known: dict[int, Waits]) -> None:
        """
        @param known: all that may have a deadline, by their names; it is kept up to date elsewhere.
        """
        self.heap: list[tuple[float, int]] = []
        self._known = known
        self._count = 0

    def __len__(self) -> int:
        return len(self.heap)

    def set(self, connection: Waits, deadline: float) -> None:
        """
        Set or move a deadline.
        """
        if connection.deadline is None:
            self._count += 1
        connection.deadline = deadline
        heappush(self.heap, (deadline, connection.localID))
        if len(self.heap) > 2 * self._count + _IDLE:
            self._rebuild()

    def clear(self, connection: Waits) -> None:
        """
        Cancel a deadline.
        """
        connection.deadline = None
        self._count -= 1
        if not self._count:
            self.heap.clear()
        elif len(self.heap) > 2 * self._count + _IDLE:
            self._rebuild()

    def soonest(self) -> float | None:
        """
        The next deadline, or L{None}.
        """
        heap, known = self.heap, self._known
        while heap:
            deadline, localID = heap[0]
            connection = known.get(localID)
            # As _isMeant, without its call: each deadline comes up here, and nearly all are cancelled.
            if connection is not None and connection.deadline == deadline:
                return deadline
            heappop(heap)
        return None

    def first(self) -> Waits | None:
        """
        The connection with the next deadline, or L{None}.
        """
        return None if self.soonest() is None else self._known[self.heap[0][1]]

    def takeDue(self, now: float) -> list[Waits]:
        """
        Clear and return those whose deadline has passed.
        """
        heap = self.heap
        due = []
        while heap and heap[0][0] <= now:
            entry = heappop(heap)
            if self._isMeant(entry):
                connection = self._known[entry[1]]
                connection.deadline = None
                self._count -= 1
                due.append(connection)
        if not self._count:
            self.heap.clear()
        elif len(self.heap) > 2 * self._count + _IDLE:
            self._rebuild()
        return due

    def _isMeant(self, entry: tuple[float, int]) -> bool:
        connection = self._known.get(entry[1])
        # A deadline that was moved leaves its old entry behind, with another time.
        return connection is not None and connection.deadline == entry[0]

    def _rebuild(self) -> None:
        # Only when most entries are stale, so the cost per set or clear is constant on average.
        self.heap = [entry for entry in self.heap if self._isMeant(entry)]
        heapify(self.heap)


#: A connection in TIMEWAIT: expiry, local communication id, peer, key of the remote end in that peer, local
#: queue pair number.
TimewaitEntry = tuple[float, int, Any, int, int]


class Timewait:
    """
    Connections in TIMEWAIT (IBTA vol. 1 12.9.7): until packets of the old connection cannot arrive any more,
    neither its ids nor its queue pair number may be reused.

    @ivar heap: next to expire first.
    @ivar ids: their local communication ids.
    """

    def __init__(self) -> None:
        self.heap: list[TimewaitEntry] = []
        self.ids: set[int] = set()

    def __len__(self) -> int:
        return len(self.heap)

    def add(self, ended: TimewaitEntry) -> None:
        """
        Reserve the ids of a connection.
        """
        heappush(self.heap, ended)
        self.ids.add(ended[1])

    def soonest(self) -> float | None:
        """
        When the next one expires, or L{None}.
        """
        return self.heap[0][0] if self.heap else None

    def pop(self) -> TimewaitEntry:
        """
        Release the next to expire.
        """
        ended = heappop(self.heap)
        self.ids.remove(ended[1])
        return ended

    def forget(self, peer: Any) -> None:
        """
        Release those of one peer, whose path is lost.
        """
        self.heap = [ended for ended in self.heap if ended[2] is not peer]
        heapify(self.heap)
        self.ids = {ended[1] for ended in self.heap}


class Ended:
    """
    Ids of connections that both ends knew: a REP or RTU for one of them was only overtaken by what ended it,
    and its sender knows of the end.  They outlast TIMEWAIT, which reserves numbers and is as short as a path.
    """

    def __init__(self) -> None:
        self._times: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._times)

    def add(self, localID: int, now: float) -> None:
        """
        Remember one, in place of those whose time is over, and of the oldest where there are too many.
        """
        times = self._times
        times.pop(localID, None)  # At the end again: they are in the order of their times.
        while times:
            oldest = next(iter(times))
            if len(times) < limits.CM_ENDED and times[oldest] + limits.CM_ENDED_SECONDS > now:
                break
            del times[oldest]
        times[localID] = now

    def isKnown(self, localID: int, now: float) -> bool:
        """
        @return: whether an id is one of them.
        """
        return now < self._times.get(localID, -inf) + limits.CM_ENDED_SECONDS


class Timing(NamedTuple):
    """
    The times of a connection; those with the same codes share one.

    @ivar period: seconds between retransmissions.
    @ivar ackSeconds: the path's ACK timeout, which MRA waits and TIMEWAIT add (Linux cm.c cm_enter_timewait).
    @ivar retries: how often a message is repeated.
    """

    period: float
    ackSeconds: float
    retries: int


@lru_cache(CM_TIMINGS)
def asking(ackTimeout: int, responseTimeout: int, retries: int) -> Timing:
    """
    @param ackTimeout: the path's code; C{responseTimeout} the peer's.
    @return: of the side that sends the REQ.
    """
    # The ACK timeout code is the packet lifetime's plus one, and there are two directions (Linux cm.c
    # ib_send_cm_req: twice the packet lifetime plus the remote CM response timeout).
    period = 2 * timeoutSeconds(max(ackTimeout - 1, 0)) + timeoutSeconds(responseTimeout)
    return Timing(period, timeoutSeconds(ackTimeout), retries)


@lru_cache(CM_TIMINGS)
def answering(ackTimeout: int, responseTimeout: int, retries: int) -> Timing:
    """
    The same of the side that receives it.
    """
    longest, shortest = CM_RESPONSE_TIMEOUT_CODE, CM_RESPONSE_TIMEOUT_CODE_LEAST
    period = timeoutSeconds(max(shortest, min(responseTimeout, longest)))
    # From the REQ, so bounded: it sets how long TIMEWAIT holds an entry here.
    return Timing(period, timeoutSeconds(min(ackTimeout, longest)), retries)
