"""
Paths within one thread: each end has a queue of the records that the other end published.

Positions count bytes as on rings, with the bound that rings have for bulk, so that a program meets the same
back-pressure here.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.hca.fabric.base.neighbours import PeerIdentity
from twisted_ib.hca.fabric.base.path import RecordPath

if TYPE_CHECKING:
    from twisted_ib.hca.fabric.loopback.loopback import LoopbackFabric


_ROOM = limits.RING_BULK - limits.RING_RESERVE
#: Management records may use what ordinary ones leave free, refusals all: the CM (IBTA vol. 1 chapter 12)
#: and NAKs (9.7.5.2) go on when data is stuck, else two full directions could deadlock.
_MANAGEMENT_ROOM = limits.RING_BULK - limits.REFUSAL_RESERVE
#: Waiters are resumed when at most this many bytes are unread.  Half, so that they do not wake for each
#: record.
_LOW = limits.RING_BULK // 2


class LoopbackPath(RecordPath):
    """
    One end of a path between two HCAs, or between an HCA and itself.

    @ivar other: The other end.
    @ivar closed: Whether the HCA at this end is closed.
    """

    __slots__ = ("_acknowledged", "_head", "_owedEnd", "_queue", "_room", "_tail", "closed", "other")

    other: Any

    def __init__(self, fabric: LoopbackFabric, peer: PeerIdentity) -> None:
        """
        Make one end; the fabric sets C{other} when both exist.
        """
        super().__init__(fabric, peer)
        #: Records from the other end: word, bytes, the position after the record, and how far the other end
        #: had read when it published.
        self._queue: deque[tuple[int, bytes, int, int]] = deque()
        self._tail = self._head = self._acknowledged = self._owedEnd = 0
        self._room = _ROOM
        self.closed = False

    # -- down

    def post(self, word: int, header: bytes, payload: Any, length: int) -> bool:
        other = self.other
        # 8 bytes of header, rounded up to 64, as a record takes on a ring.
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
        room, self._room = self._room, limits.RING_BULK if refusal else _MANAGEMENT_ROOM
        try:
            return self.post(word, b"", body, len(body))
        finally:
            self._room = room

    def holdBack(self, held: bool) -> None:
        self._room = -1 if held else _ROOM

    def position(self) -> int:
        return self._tail

    def _isLow(self) -> bool:
        return self._tail - self.other._head <= _LOW

    # -- up

    def progress(self, budget: int) -> int:
        if self.busy:
            return 0
        n = 0
        if self.waiting and self._isLow():
            n = self.resumeWaiting()
        self.busy = True
        try:
            n += self._drain(budget)
            # With nothing left to read no refusal can be on the way, so the other end's position
            # acknowledges everything before it.
            if not self._queue:
                self._acknowledged = self.other._head
            if self.unacknowledged:
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
            # A refusal is queued before the position that passes the refused record, so completing up to the
            # position carried by this record never completes a refused request.
            self._acknowledged = acknowledged
            entry = get(word & 0xFFFFFF)
            try:
                if entry is not None:
                    syndrome = entry.delivered(word >> 24, data, 0, len(data))
                else:
                    syndrome = self.unknown(word, data, 0, len(data))
                # The syndrome of an RNR NAK or NAK (IBTA vol. 1 9.7.5.2.1), 0 for an ACK, of which there
                # are no records.
                if syndrome and not self.refuse(word, syndrome, end):
                    self._owedEnd = end
                    return n
            except BaseException:
                # A consumer raised an exception; its record counts as consumed, or it would be delivered
                # for ever.
                self._head = end
                raise
            self._head = end
        return n

    def pending(self) -> bool:
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
        End the batch: wake the other end's fabric if it sleeps and has something to do.

        @return: Whether it was woken.
        """
        self.bell = False
        other = self.other
        return other.fabric.asleep and other.pending() and other.fabric.wakeUp()
