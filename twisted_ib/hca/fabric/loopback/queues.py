"""
A path within one thread: each end has a queue of what the other end published.

Positions count bytes as rings do, with the bounds of their bulk, so that whoever runs here
meets the same back-pressure.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from twisted_ib import limits
from twisted_ib.hca.fabric.base.path import Path, PeerIdentity

_ROOM = limits.RING_BULK - limits.RING_RESERVE
_MANAGEMENT_ROOM = limits.RING_BULK - limits.REFUSAL_RESERVE
#: Waiters go on when no more than this is on the way.
_LOW = limits.RING_BULK // 2


class LoopbackPath(Path):
    """
    One end of the way between two HCAs, or between an HCA and itself.

    @ivar other: The other end.
    @ivar closed: Whether the HCA at this end is closed.
    """

    __slots__ = ("_acknowledged", "_head", "_owedEnd", "_queue", "_room", "_tail", "closed", "other")

    other: Any

    def __init__(self, fabric: Any, peer: PeerIdentity) -> None:
        """
        Make one end; C{other} is set when both exist.

        @param fabric: what the path belongs to.
        @param peer: who is at the other end.
        """
        super().__init__(fabric, peer)
        #: What the other end published: word, bytes, the position after it, and
        #: how far the other end had read then.
        self._queue: deque[tuple[int, bytes, int, int]] = deque()
        self._tail = self._head = self._acknowledged = self._owedEnd = 0
        self._room = _ROOM
        self.closed = False

    # -- down

    def post(self, word: int, header: bytes, payload: Any, length: int) -> bool:
        """
        Publish a copy: see L{Path.post}.
        """
        other = self.other
        end = (self._tail + len(header) + length + 71) & -64
        if end - other._head > self._room:
            return False
        pieces = payload if payload.__class__ is list else (payload,)
        other._queue.append((word, b"".join((header, *pieces)), end, self._head))
        self._tail = end
        if not self.bell:
            self.bell = True
            self.fabric.ringLater(self)
        return True

    def postReserved(self, word: int, body: bytes, refusal: bool) -> bool:
        """
        Publish a small record from the reserve: see L{Path.postReserved}.
        """
        room, self._room = self._room, limits.RING_BULK if refusal else _MANAGEMENT_ROOM
        try:
            return self.post(word, b"", body, len(body))
        finally:
            self._room = room

    def holdBack(self, held: bool) -> None:
        """
        See L{Path.holdBack}.
        """
        self._room = -1 if held else _ROOM

    def position(self) -> int:
        """
        @return: See L{Path.position}.
        """
        return self._tail

    def _isLow(self) -> bool:
        return self._tail - self.other._head <= _LOW

    # -- up

    def progress(self, budget: int) -> int:
        """
        Take what has arrived, wake who waits for room, complete what the other
        end has taken.

        @param budget: How many records at most.
        @return: How many records were taken, waiters woken and requests
            completed.
        """
        if self.busy:
            return 0
        n = 0
        if self.waiting and self._isLow():
            n = self.resumeWaiting()
        self.busy = True
        try:
            n += self._drain(budget)
            if not self._queue:
                self._acknowledged = self.other._head
            n += self.completeTo(self._acknowledged)
        finally:
            self.busy = False
        return n

    def _drain(self, budget: int) -> int:
        n = 0
        if self.owed is not None:
            if not self.payOwed():
                return 0
            self._head = self._owedEnd
            n = 1
        queue, get = self._queue, self.taker
        while queue and n < budget:
            word, data, end, acknowledged = queue.popleft()
            n += 1
            # Refusals are in the queue before the end that passes them.
            self._acknowledged = acknowledged
            entry = get(word & 0xFFFFFF)
            try:
                if entry is not None:
                    syndrome = entry.delivered(word >> 24, data, 0, len(data))
                else:
                    syndrome = self.unknown(word, data, 0, len(data))
                if syndrome and not self.refuse(word, syndrome, end):
                    self._owedEnd = end
                    return n
            except BaseException:
                # A consumer failed; its record counts as taken.
                self._head = end
                raise
            self._head = end
        return n

    def pending(self) -> bool:
        """
        @return: Whether L{progress} has something to do.
        """
        if self.other.closed:
            return True
        if self.owed is not None:
            return self._tail + 64 - self.other._head <= limits.RING_BULK
        if self._queue or (self.waiting and self._isLow()):
            return True
        waiting = self.unacknowledged
        return bool(waiting) and waiting[0][0] <= self.other._head

    def ring(self) -> bool:
        """
        The batch ends: wake the other end's fabric if it sleeps and has
        something to do.

        @return: Whether it was woken.
        """
        self.bell = False
        return self.other.pending() and self.other.fabric.wakeUp()


__all__ = ["LoopbackPath"]
