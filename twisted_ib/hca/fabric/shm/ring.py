"""
A path over two rings in shared memory, one for each direction.

Each side makes one segment, which only it can write, and maps the peer's for
reading.  A segment holds a page of cells, 64 bytes apart, then the ring::

    cell   written by the segment's creator
    TAIL   how much it has published into its ring
    WAIT   while it sleeps and waits until the other side has read: how far, else 0
    HEAD   how much it has taken from the peer's ring
    SLEEP  counts goings to sleep and wakings: odd while asleep
    RUNG   the peer's SLEEP for which it rang last: it rings once for each

Counters run freely (64 bits never wrap), positions in the ring are taken modulo
its size.  A record starts at a multiple of 64 bytes with its length and word;
one that would pass the end of the ring runs on into slack behind it, and the
next starts at the beginning.  Records of L{BULK} bytes and more end on a page
boundary, and a record's payload lies half a page into its page: source and
ring then do not compete for the same cache sets.

Bulk takes the ring in its whole length, though not all of it at a time: small
records of others find room beside it, and wait for no more than
L{limits.RING_BULK} bytes.  No more than a window's bytes of them pass bulk that waits.
Small records go back to the beginning when they have
used L{limits.RING_WINDOW} bytes and the peer is not far behind: what a few
messages touch stays small.  The last one before that has L{TURNS} in its length;
the positions up to the next beginning count as used.

Everything read from the peer's segment is read once into a local, checked, and
then used.  On x86-64 stores are seen in program order, so publishing is one
store to TAIL; only the question "does the peer sleep?" needs a full fence, which
an uncontended lock is.
"""

from __future__ import annotations

import threading
from struct import Struct
from typing import Any

from twisted_ib import limits
from twisted_ib.errors import PathLostError, RingError
from twisted_ib.hca.fabric.base.path import Forked, Path
from twisted_ib.hca.fabric.shm.doorbell import EventDoorbell, SocketDoorbell
from twisted_ib.hca.fabric.shm.sharedregions import SharedRegions

PAGE = 4096
#: Cell numbers, in units of eight bytes.
TAIL, WAIT, HEAD, SLEEP, RUNG = 0, 8, 16, 24, 32
#: Where a record starts in its slot, so that stream payload (8 bytes of ring
#: header and 16 of SDP header later) starts half a page into the page.
LEAD = 2024
#: Records from this size on end on a page boundary.
BULK = 16384
#: In a record's length: the next one starts at the beginning of the ring.
TURNS = 1 << 31
#: Room behind the ring for the longest record.
SLACK = (limits.INLINE_RECORD + LEAD + 8 + PAGE - 1) // PAGE * PAGE
#: All bits of a position that tell windows apart.
_WINDOW_BYTES = limits.RING_WINDOW
_WINDOW = -_WINDOW_BYTES
_BULK_ROOM = limits.RING_BULK
#: Records start at multiples of this; a refusal takes one.
_SLOT = 64
#: Where an HCA has a path to itself, one end numbers what it offers from here on: no
#: number means something at both ends.
_TWIN_OFFERS = 1 << 31
#: No position is ever this large.
NEVER = 1 << 62

_HEADER = Struct("<II")
_pack, _unpack = _HEADER.pack_into, _HEADER.unpack_from
_fence = threading.Lock()


def segmentSize(ring: int) -> int:
    """
    @param ring: Bytes of the ring, a power of two.
    @return: Bytes of the segment that holds it.
    """
    return PAGE + ring + SLACK


class RingPath(Path):
    """
    The way to a peer's HCA through two rings.

    @ivar mine: My segment.
    @ivar theirs: The peer's.
    @ivar doorbell: Wakes the peer; C{ring()} never blocks.
    @ivar asleep: Whether my SLEEP cell is odd: the peer must ring.
    """

    __slots__ = (
        "_acknowledgedHead",
        "_acknowledgedTail",
        "_broken",
        "_bulkWaits",
        "_cells",
        "_head",
        "_lap",
        "_low",
        "_map",
        "_mask",
        "_offers",
        "_owedEnd",
        "_peerCells",
        "_peerHead",
        "_peerMap",
        "_room",
        "_rung",
        "_size",
        "_tail",
        "_target",
        "asleep",
        "doorbell",
        "mine",
        "theirs",
    )

    def __init__(self, fabric: Any, peer: Any, mine: Any, theirs: Any, doorbell: Any, ring: int) -> None:
        """
        Join two segments, which are empty.

        @param fabric: What the path belongs to.
        @param peer: Who is at the other end.
        @param mine: The segment that I write.
        @param theirs: The one that I read.
        @param doorbell: Wakes the peer.
        @param ring: Bytes of each ring, a power of two.
        """
        super().__init__(fabric, peer)
        self.mine, self.theirs, self.doorbell = mine, theirs, doorbell
        self._map, self._cells = mine.map, mine.cells
        self._peerMap, self._peerCells = theirs.map, theirs.cells
        self._size, self._mask, self._lap = ring, ring - 1, -ring
        self._room = ring - limits.RING_RESERVE
        self._low = _BULK_ROOM // 2
        self._tail = self._head = self._peerHead = 0
        self._target = NEVER
        self._bulkWaits = False
        self._broken: RingError | None = None
        self._rung = self._owedEnd = 0
        self._acknowledgedHead = self._acknowledgedTail = 0
        self._offers: SharedRegions | None = None
        self.asleep = False

    # -- down

    def post(self, word: int, header: bytes, payload: Any, length: int) -> bool:
        """
        Publish one record: see L{Path.post}.
        """
        k = len(header)
        total = k + length
        t = self._tail
        pos = t & self._mask
        mark = total
        room = self._room
        if total < BULK:
            end = (t + total + 71) & -64
            if (end ^ t) & _WINDOW:
                if self._bulkWaits and self.waiting and room <= self._size - limits.RING_RESERVE:
                    return False
                if self._turns(t, end):
                    mark = total | TURNS
                    end = (t | self._mask) + 1
                elif (end ^ t) & self._lap:
                    end = (t | self._mask) + 1
        elif self._bulkWaits and self.waiting:
            return False
        else:
            end = (t + total + 4103) & -4096
            if (end ^ t) & self._lap:
                end = (t | self._mask) + 1
            if room > _BULK_ROOM:
                room = _BULK_ROOM
        if end - self._peerHead > room and not self._hasRoom(end, room):
            return False
        target = self._map
        pos += PAGE + LEAD
        _pack(target, pos, mark, word)
        pos += 8
        if k:
            target[pos : pos + k] = header
            pos += k
        if payload.__class__ is list:
            for piece in payload:
                k = len(piece)
                target[pos : pos + k] = piece
                pos += k
        else:
            target[pos : pos + length] = payload
        self._tail = self._cells[TAIL] = end
        if not self.bell:
            self.bell = True
            self.fabric.ringLater(self)
        return True

    def _turns(self, tail: int, end: int) -> bool:
        """
        @param tail: Where a small record begins that reaches a multiple of the window.
        @param end: Where it ends.
        @return: Whether to go back to the beginning behind it: the peer has read so far that
            half a window's worth still fits in there.
        """
        head = self._peerCells[HEAD]
        if not self._peerHead <= head <= tail:
            return False  # For L{_hasRoom} to find, before anything is overwritten.
        self._peerHead = head
        return bool(end - head <= _WINDOW_BYTES // 2 and self._room >= 0)

    def postReserved(self, word: int, body: bytes, refusal: bool) -> bool:
        """
        Publish a small record from the reserve: see L{Path.postReserved}.
        """
        room = self._room
        self._room = self._size - (0 if refusal else limits.REFUSAL_RESERVE)
        try:
            return self.post(word, b"", body, len(body))
        finally:
            self._room = room

    def holdBack(self, held: bool) -> None:
        """
        See L{Path.holdBack}: no record fits into less than nothing, so L{post}
        need not ask.
        """
        self._room = -1 if held else self._size - limits.RING_RESERVE

    def _hasRoom(self, end: int, room: int) -> bool:
        """
        Read how far the peer is.  If a record up to C{end} does not fit, set
        the position at which to look again.
        """
        head = self._peerCells[HEAD]
        tail = self._tail
        if not self._peerHead <= head <= tail:
            # Not to be raised through whoever posts: they may be at work for
            # another path, or an application.
            self._broken = RingError(f"the peer claims to have read up to {head} of {tail}")
            self.fabric.ringLater(self)
            return False
        self._peerHead = head
        if end - head <= room:
            return True
        if room >= 0:  # Else held back: the target is that of who waits.
            self._target = max(end - room, tail - self._low)
            if room == _BULK_ROOM:
                self._bulkWaits = True
        return False

    def resumeWaiting(self) -> int:
        """
        See L{Path.resumeWaiting}.
        """
        self._bulkWaits = False
        return Path.resumeWaiting(self)

    def position(self) -> int:
        """
        @return: See L{Path.position}.
        """
        return self._tail

    # -- up

    def progress(self, budget: int) -> int:
        """
        Take what has arrived, wake who waits for room, complete what the peer
        has taken.

        @param budget: How many records at most.
        @return: How many records were taken, waiters woken and requests
            completed: 0 only if nobody was called.
        @raise RingError: the peer broke the layout.
        """
        peer, head = self._peerCells, self._head
        if self.busy:
            return 0
        n = 0
        if self.waiting and peer[HEAD] >= self._target:
            n = self.resumeWaiting()
        tail = peer[TAIL]
        if tail == head and not self.unacknowledged:
            return n
        self.busy = True
        try:
            if tail != head:
                n += self._drain(head, tail, budget)
            if self.unacknowledged:
                n += self._acknowledge()
        finally:
            self.busy = False
        return n

    def _drain(self, head: int, tail: int, budget: int) -> int:
        """
        Take up to C{budget} records, and no more than the ring holds once.
        """
        if self.owed is not None:
            if not self.payOwed():
                return 0
            self._head = head = self._cells[HEAD] = self._owedEnd
            if head == tail:
                return 1
        size, mask, lap = self._size, self._mask, self._lap
        peer, cells, source = self._peerCells, self._cells, self._peerMap
        get, waiting = self.taker, self.waiting
        n, enough, end = 0, head + size, head
        try:
            while True:
                if not head < tail <= head + size:
                    raise RingError(f"the peer claims to have written up to {tail}")
                pos = (head & mask) + PAGE + LEAD
                length, word = _unpack(source, pos)
                if length < BULK:
                    end = (head + length + 71) & -64
                elif length & TURNS:
                    length ^= TURNS
                    end = (head | mask) + 1
                else:
                    end = (head + length + 4103) & -4096
                if (end ^ head) & lap:
                    end = (head | mask) + 1
                if length > limits.INLINE_RECORD or end > tail:
                    raise RingError(f"the peer wrote a record of {length} bytes")
                pos += 8
                entry = get(word & 0xFFFFFF)
                if entry is not None:
                    syndrome = entry.delivered(word >> 24, source, pos, pos + length)
                else:
                    syndrome = self.unknown(word, source, pos, pos + length)
                n += 1
                if syndrome and not self.refuse(word, syndrome, end):
                    self._owedEnd = end
                    return n
                self._head = head = cells[HEAD] = end
                if waiting and peer[HEAD] >= self._target:
                    self.resumeWaiting()
                if head == tail:
                    tail = peer[TAIL]
                    if head == tail:
                        return n
                if n >= budget or head > enough:
                    return n
        except BaseException:
            # A consumer failed; its record counts as taken.
            self._head = cells[HEAD] = end
            raise

    def _acknowledge(self) -> int:
        """
        Complete what the peer has taken; how many, is returned.  A refusal of a record is in the
        peer's ring before the peer's head passes the record, so completing up
        to a head waits until I have read what was there after that head.
        """
        n = 0
        if self._head >= self._acknowledgedTail:
            n = self.completeTo(self._acknowledgedHead)
            head = self._peerCells[HEAD]
            tail = self._peerCells[TAIL]
            if not self._peerHead <= head <= self._tail:
                raise RingError(f"the peer claims to have read up to {head}")
            self._peerHead = head
            if self._head >= tail:
                n += self.completeTo(head)
            self._acknowledgedHead, self._acknowledgedTail = head, tail
        return n

    # -- sleeping and waking

    def pending(self) -> bool:
        """
        @return: Whether L{progress} has something to do.
        """
        peer = self._peerCells
        if peer[TAIL] != self._head:
            return self.owed is None or peer[HEAD] >= self._payable()
        if self.waiting and peer[HEAD] >= self._target:
            return True
        waiting = self.unacknowledged
        return bool(waiting) and peer[HEAD] >= waiting[0][0]

    def _payable(self) -> int:
        """
        @return: Up to where the peer must have read for an owed refusal to fit.
        """
        return self._tail + _SLOT - self._size

    def arm(self) -> None:
        """
        Ask for a bell: from now on the peer rings when it publishes or, if I
        wait for that, reads.  A fence and L{pending} must follow.
        """
        cells = self._cells
        wanted = NEVER
        if self.waiting:
            wanted = self._target
        if self.unacknowledged:
            wanted = min(wanted, self.unacknowledged[0][0])
        if self.owed is not None:
            wanted = min(wanted, max(self._payable(), 1))
        cells[WAIT] = wanted if wanted < NEVER else 0
        cells[SLEEP] = cells[SLEEP] + 1
        self.asleep = True

    def rouse(self) -> bool:
        """
        A bell may have rung for this path, which sleeps.

        A bell in vain (what it was for had been taken before the sleep began)
        is asked for again, for the peer rings once for each sleep.

        @return: Whether there is something to do.
        """
        if self.pending():
            return True
        if self._peerCells[RUNG] != self._cells[SLEEP]:
            return False
        self.wake()
        self.arm()
        fence()
        return self.pending()

    def wantSpace(self, waiter: Any) -> None:
        """
        See L{Path.wantSpace}.
        """
        self.waiting[waiter] = None
        if self.asleep:
            self.fabric.ringLater(self)  # To sleep again, and wait for room.

    def wake(self) -> None:
        """
        The peer need not ring any more.
        """
        if self.asleep:
            cells = self._cells
            cells[SLEEP] = cells[SLEEP] + 1
            self.asleep = False

    def ring(self) -> bool:
        """
        The batch ends: wake the peer if it sleeps and something concerns it.
        A L{fence} must come before.

        @return: Whether the doorbell was rung.
        @raise RingError: the peer broke the layout.
        """
        if self._broken is not None:
            raise self._broken
        posted, self.bell = self.bell, False
        peer = self._peerCells
        sleep = peer[SLEEP]
        if sleep & 1 and sleep != self._rung and (posted or 0 < peer[WAIT] <= self._head):
            self._cells[RUNG] = self._rung = sleep
            self.doorbell.ring()
            return True
        return False

    # -- the pair's socket

    def _offersOf(self) -> SharedRegions | None:
        """
        @return: Who offers memory on the pair's socket; L{None} between users,
            where the socket is the doorbell and no memory is shared.
        """
        if self._offers is None and isinstance(self.doorbell, EventDoorbell) and self.peerSocket is not None:
            self._offers = SharedRegions(self, self.peerSocket.socket)
            if self.twin is not None and self.peerSocket.server:
                self._offers.next = _TWIN_OFFERS
        return self._offers

    def offer(self, segment: Any) -> int:
        """
        @return: See L{Path.offer}.
        """
        offers = self._offersOf()
        return 0 if offers is None else offers.offer(segment)

    def withdraw(self, segment: Any) -> None:
        """
        See L{Path.withdraw}.
        """
        if self._offers is not None:
            self._offers.withdraw(segment)

    def offered(self, number: int) -> memoryview | None:
        """
        @return: See L{Path.offered}.
        """
        offers = self._offersOf()
        if offers is None:
            return None
        found = offers.offered(number)
        if found is None and self.twin is not None:
            # Who is connected to itself sends from one end and receives at the other.
            return self.twin._offersOf().offered(number)
        return found

    def socketReadable(self, peerSocket: Any) -> None:
        """
        Rings over the pair's socket, offers of memory, or its end.

        @raise PathLostError: the peer has hung up.
        """
        offers = self._offersOf()
        if offers is not None:
            offers.readable()
        elif not SocketDoorbell(peerSocket.socket).drain():
            raise PathLostError("the peer closed its HCA or died")

    def forked(self) -> None:
        """
        In a forked child the mappings are gone: make every use an error.
        """
        self._map = self._cells = self._peerMap = self._peerCells = Forked()
        self._room = -1  # The next post looks at a cell.

    def close(self) -> None:
        """
        Give the memory and the doorbell back.
        """
        self.alive = False
        del self._map, self._cells, self._peerMap, self._peerCells
        if self._offers is not None:
            self._offers.close()
        self.mine.close()
        self.theirs.close()
        self.doorbell.close()


def fence(_acquire: Any = _fence.acquire, _release: Any = _fence.release) -> None:
    """
    Make every store of this thread visible before its later loads.
    """
    _acquire()
    _release()
