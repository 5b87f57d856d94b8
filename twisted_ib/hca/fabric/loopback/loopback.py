"""
C{lo0}: the fabric within one thread.

It joins an HCA to itself and to its neighbours: the other C{lo0} devices of the same thread, unless a
registry is passed in (L{twisted_ib.hca.fabric.base.neighbours}).  Each end of a path has a queue of the
records that the other end published, each a copy.  Positions count bytes as on rings, with the bound that
rings have for bulk, so that a program meets the same back-pressure here.

Nothing is shared with other processes, and a pipe to wake a reactor is all that is asked of the kernel, so it
works wherever Python does.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any

from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.drive.process import Forked
from twisted_ib.errors import PathLostError
from twisted_ib.hca.base.interfaces import IFabric, IHostDirectory
from twisted_ib.hca.fabric.base.neighbours import Neighbours, PeerIdentity, ThreadDirectory
from twisted_ib.hca.fabric.base.path import RecordPath

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

    __slots__ = (
        "_acknowledged",
        "_head",
        "_owedEnd",
        "_queue",
        "_room",
        "_tail",
        "closed",
        "other",
    )

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
        data = b"".join((header, *payload) if payload.__class__ is list else (header, payload))
        other._queue.append((word, data, end, self._head))
        self._tail = end
        if not self.bell:
            # Inlines Fabric.ringLater().
            self.bell = True
            fabric = self.fabric
            fabric.bells.append(self)
            if fabric.owner.wanted is not None:
                fabric.owner.wanted()
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
        if n and self.isThreadless:
            twin: LoopbackPath | None = self.twin
            # Verbs end a round once there is a completion: the sender's, which is here, too, comes with it.
            if twin is not None and twin.unacknowledged and not twin._queue:
                n += twin.progress(0)
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
            # A refusal is queued before the position that passes the refused record, so completing up to the
            # position carried by this record never completes a refused request.  It may be the answer to one
            # that it acknowledges, and stays where a completion raises.
            self._acknowledged = queue[0][3]
            if self.unacknowledged:
                n += self.completeTo(self._acknowledged)
            word, data, end, _ = queue.popleft()
            n += 1
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


@implementer(IFabric, IHostDirectory)
class LoopbackFabric(ThreadDirectory):
    """
    The loopback fabric of one HCA.
    """

    name = "loopback"
    pathClass: Any = LoopbackPath

    def __init__(
        self,
        owner: Any,
        guid: int,
        clock: Callable[[], float],
        neighbours: Neighbours | None = None,
    ) -> None:
        """
        @param owner: The device, an L{IFabricOwner<twisted_ib.hca.base.interfaces.IFabricOwner>}.
        @param clock: Not used: nothing here waits for a time.
        @param neighbours: The HCAs within reach; by default those of this thread.
        """
        super().__init__(owner, guid, neighbours)
        self._woken = self._closed = False
        self._pipe = os.pipe()
        for fd in self._pipe:
            os.set_blocking(fd, False)

    def couple(self, path: LoopbackPath, other: LoopbackPath) -> None:
        path.other, other.other = other, path

    # -- progress

    def progress(self, budget: int = limits.RECORDS_PER_TURN) -> int:
        n = 0
        # A copy: an upcall may open or close paths.
        for path in tuple(self._ends):
            if path.other.closed:
                self.lose(path, PathLostError("the peer closed its HCA"))
                n += 1
                continue
            k = path.progress(budget)
            if k:
                n += k
                # Consuming frees room, which the other end may be asleep waiting for.
                if not path.bell:
                    path.bell = True
                    self.bells.append(path)
        return n

    def ringBells(self) -> None:
        bells, self.bells = self.bells, []
        for path in bells:
            if path.ring():
                self.rung += 1

    def pending(self) -> bool:
        for path in self._ends:
            if path.pending():
                return True
        return False

    # -- sleeping and waking

    def wakeUp(self) -> bool:
        """
        Make the descriptor readable if the fabric sleeps.

        @return: Whether it has become so by this call.
        """
        if not self.asleep or self._woken:
            return False
        self.signal()
        return True

    def signal(self) -> None:
        # At most one byte is in the pipe, so that writing never blocks or fails.
        if not self._woken:
            self._woken = True
            os.write(self._pipe[1], b"!")

    def attend(self) -> None:
        if self._woken and not self._closed:
            self._woken = False
            os.read(self._pipe[0], 1)

    def fileno(self) -> int:
        return self._pipe[0]

    # -- the end

    def forked(self) -> None:
        self.withdrawAll()
        for path in self._ends:
            # The other end exists in the child as well, but its consumers are the parent's.
            path.other = Forked()
        self._ends = []

    def close(self) -> None:
        if self._closed:
            return
        self._closed = self._woken = True
        self.withdrawAll()
        gone = PathLostError("the device was closed")
        for path in tuple(self._ends):
            # The peer may be within an upcall on this path, so it ends its own side in its next progress().
            path.closed = True
            path.other.fabric.wakeUp()
            self.lose(path, gone)
        for fd in self._pipe:
            os.close(fd)
