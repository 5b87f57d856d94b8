"""
When connections want to be woken, and whose ids are still reserved.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any, Generic, Protocol, TypeVar

#: Deadlines that are no longer meant, beyond as many as are.
CM_IDLE_DEADLINES = 64

_IDLE = CM_IDLE_DEADLINES


class Waiting(Protocol):
    """
    What waits for an answer.

    @ivar localID: names it.
    @ivar deadline: until when it waits, or L{None}.
    """

    localID: int
    deadline: float | None


Waits = TypeVar("Waits", bound=Waiting)


class Deadlines(Generic[Waits]):
    """
    The deadlines of connections that wait for an answer.

    A heap from which nothing is taken but its top: an entry that is no longer
    meant stays until it comes up, until there are too many of them, or until
    nobody waits.
    """

    __slots__ = ("_heap", "_waiting")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._waiting: dict[int, Waits] = {}

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, connection: Waits, deadline: float) -> None:
        """
        Set or move a deadline.
        """
        connection.deadline = deadline
        localID, heap, waiting = connection.localID, self._heap, self._waiting
        waiting[localID] = connection
        heappush(heap, (deadline, localID))
        if len(heap) > 2 * len(waiting) + _IDLE:
            self._prune()

    def clear(self, connection: Waits) -> None:
        """
        Take a deadline away.
        """
        connection.deadline = None
        waiting = self._waiting
        del waiting[connection.localID]
        if not waiting or len(self._heap) > 2 * len(waiting) + _IDLE:
            self._prune()

    def soonest(self) -> float | None:
        """
        The next deadline.
        """
        heap = self._heap
        while heap and not self._isMeant(heap[0]):
            heappop(heap)
        return heap[0][0] if heap else None

    def first(self) -> Waits | None:
        """
        Who has the next deadline.
        """
        return None if self.soonest() is None else self._waiting[self._heap[0][1]]

    def takeDue(self, now: float) -> list[Waits]:
        """
        Clear the deadlines that are over.
        """
        heap = self._heap
        due = []
        while heap and heap[0][0] <= now:
            entry = heappop(heap)
            if self._isMeant(entry):
                connection = self._waiting.pop(entry[1])
                connection.deadline = None
                due.append(connection)
        self._prune()
        return due

    def _isMeant(self, entry: tuple[float, int]) -> bool:
        connection = self._waiting.get(entry[1])
        return connection is not None and connection.deadline == entry[0]

    def _prune(self) -> None:
        """
        Keep the heap about as small as what is meant in it.
        """
        if not self._waiting:
            self._heap.clear()
        elif len(self._heap) > 2 * len(self._waiting) + _IDLE:
            self._heap = [entry for entry in self._heap if self._isMeant(entry)]
            heapify(self._heap)


#: A connection in TIMEWAIT: when it ends, the local id, the peer, the key of the other end in
#: C{peer}, the number of the local queue pair.
Ended = tuple[float, int, Any, int, int]


class Timewait:
    """
    Ended connections, the next to expire first.

    @ivar heap: them.
    @ivar ids: the local ids that are still reserved.
    """

    __slots__ = ("heap", "ids")

    def __init__(self) -> None:
        self.heap: list[Ended] = []
        self.ids: set[int] = set()

    def __len__(self) -> int:
        return len(self.heap)

    def add(self, ended: Ended) -> None:
        """
        Reserve.
        """
        heappush(self.heap, ended)
        self.ids.add(ended[1])

    def soonest(self) -> float | None:
        """
        When the next one expires.
        """
        return self.heap[0][0] if self.heap else None

    def pop(self) -> Ended:
        """
        Free the next to expire.
        """
        ended = heappop(self.heap)
        self.ids.remove(ended[1])
        return ended

    def forget(self, peer: Any) -> None:
        """
        Free those of one peer.
        """
        self.heap = [ended for ended in self.heap if ended[2] is not peer]
        heapify(self.heap)
        self.ids = {ended[1] for ended in self.heap}
