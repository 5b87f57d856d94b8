"""
A path over two rings in shared memory, one for each direction.

Each side makes one segment, which only it can write, and maps the peer's for reading.  A segment holds a
page of cells, 64 bytes apart, then the ring::

    cell   written by the segment's creator
    TAIL   how much it has published into its ring
    WAIT   while it sleeps and waits for the other side to read: up to where, else 0
    HEAD   how much it has consumed of the peer's ring
    SLEEP  counts transitions to sleep and back: odd while asleep
    RUNG   the peer's SLEEP for which it rang last: it rings once for each
    BEGUN  while it delivers: up to where
    TAKES  1: it knows what to do with a connection that is handed over
    ASKS   1: it would write to the peer's memory itself; and GRANTS, WRITES, WRITTEN:
           L{twisted_ib.hca.fabric.shm.sharedregions}
    WORDS  from here on what it leaves when it dies: L{twisted_ib.hca.fabric.base.lastwords}

Counters run freely (64 bits never wrap); ring positions are counters modulo the ring's size.  A record
starts at a multiple of 64 bytes with its length and word; one that would pass the end of the ring continues
in the slack behind it, and the next starts at the beginning.  Records of L{BULK} bytes and more end on a
page boundary, and a record's payload starts half a page into its page: source and ring then do not compete
for the same cache sets.

Bulk records cycle through the whole ring, but at most L{limits.RING_BULK} bytes of them are unread at a
time: that is the longest that a small record of another queue pair waits.  At most one window of small
records passes bulk that waits.  Small records go back to the beginning after L{limits.RING_WINDOW} bytes if
the peer is not far behind, so that a few messages touch little memory.  The last one before that has
L{TURNS} in its length; the positions up to the next beginning count as used.

Everything read from the peer's segment is read once into a local, checked, and then used.  On x86-64 stores
are seen in program order, so publishing is one store to TAIL; only the question "does the peer sleep?"
needs a full fence, which an uncontended lock is.

A sender may ring before it writes the record (C{alert}), so that a peer that sleeps wakes up meanwhile.  That
one takes RUNG, which is its SLEEP, for a word of what comes: it stays awake and looks for a while.  If it has
gone to sleep again by then, SLEEP is another, and the end of the batch rings once more.  Amid a batch of bulk
a sender rings once a window of it is there unread, and a reader for the room that a sender waits for: both
sides then copy at the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, TypeVar

from twisted_ib import limits
from twisted_ib.compilation import mypyc_attr
from twisted_ib.drive.process import Forked
from twisted_ib.errors import PathLostError, PeerEndedError, RingError
from twisted_ib.hca.base.operation import ABSENT_WORD, OPERATION_MASK, REFERENCE, REFUSAL
from twisted_ib.hca.fabric.base.lastwords import UNKNOWN, Cells, LastWords, lastWords
from twisted_ib.hca.fabric.base.path import AWAKE, RecordPath
from twisted_ib.hca.fabric.shm.doorbell import EventDoorbell, SocketDoorbell
from twisted_ib.hca.fabric.shm.hotpaths import HostPath
from twisted_ib.hca.fabric.shm.sharedregions import ASKS, GRANTS, DirectWrites, SharedRegions
from twisted_ib.hca.queues.streamqueuepair import RecordReceiver
from twisted_ib.hca.wire.headers import QPN_MASK

if TYPE_CHECKING:
    from mmap import mmap

    from twisted_ib.hca.base.interfaces.roles import BoundQueuePair, Segment, Waiter
    from twisted_ib.hca.memory.memory import MemoryRegion

_Found = TypeVar("_Found")

PAGE: Final = 4096
#: Cell numbers, in units of eight bytes.
TAIL: Final = 0
WAIT: Final = 8
HEAD: Final = 16
SLEEP: Final = 24
RUNG: Final = 32
BEGUN: Final = 40
TAKES: Final = 48
WORDS: Final = 64
#: Where a record starts in its slot: the payload of a stream, 8 bytes of ring header and 16 of BSDH (IBTA
#: vol. 1 annex A4) later, then starts half a page into the page.
LEAD: Final = 2024
#: Records from this size on end on a page boundary.
BULK: Final = 16384
#: Flag in a record's length: the next record starts at the beginning of the ring.
TURNS: Final = 1 << 31
#: Bytes behind the ring for the longest record that runs past the end.
SLACK: Final = (limits.INLINE_RECORD + LEAD + 8 + PAGE - 1) // PAGE * PAGE
#: Mask of the bits of a position that tell windows apart.
_WINDOW_BYTES: Final = limits.RING_WINDOW
_WINDOW: Final = -_WINDOW_BYTES
_BULK_ROOM: Final = limits.RING_BULK
#: Records start at multiples of this, the size of a cache line; a refusal fits into one.
_SLOT: Final = 64
_RECORD: Final = limits.INLINE_RECORD
#: Records up to this size may be delivered several at once.
_SHORT: Final = 64
#: Records that are looked through for a refusal before requests complete that the peer has taken.
_LOOKED: Final = 8
#: In the word of a record: what it is.
_OPERATION: Final = OPERATION_MASK << 24
#: Where a segment's first record is.
_FIRST: Final = PAGE + LEAD
#: On a path from an HCA to itself the accepting end numbers its offers from here on, so that a number is
#: valid at one end only.
_TWIN_OFFERS: Final = 1 << 31
#: In the word of a record that stands for the bytes that it refers to.
_REFERS: Final = REFERENCE << 24
#: A message of SDP without bytes of a stream: its header alone (IBTA vol. 1 annex A4).
_BARE: Final = 16
#: The C{peerGrants} of a path before its first WRITE, which asks for them.
_UNASKED: Final = [1]  # Compiled, a tuple would be no object that is the same each time.
#: Larger than any position.
NEVER: Final = 1 << 62

_HEADER: Final = Struct("<II")
_pack: Final = _HEADER.pack_into
_unpack: Final = _HEADER.unpack_from


def segmentSize(ring: int) -> int:
    """
    @param ring: Bytes of the ring, a power of two.
    @return: Bytes of the segment that holds it.
    """
    return PAGE + ring + SLACK


@mypyc_attr(allow_interpreted_subclasses=True)
class RingPath(HostPath):
    """
    A path to a peer's HCA through two rings.

    @ivar mine: The segment that this side writes.
    @ivar theirs: The segment that the peer writes.
    @ivar doorbell: Wakes the peer; C{ring()} never blocks.
    """

    __slots__ = (
        "_acknowledgedHead",
        "_acknowledgedTail",
        "_beyond",
        "_broken",
        "_bulkWaits",
        "_cells",
        "_direct",
        "_head",
        "_lap",
        "_low",
        "_map",
        "_mask",
        "_offers",
        "_owedEnd",
        "_passed",
        "_peerCells",
        "_peerHead",
        "_peerMap",
        "_room",
        "_rung",
        "_size",
        "_skipped",
        "_tail",
        "_target",
        "doorbell",
        "lastWords",
        "mine",
        "peerAsks",
        "peerGrants",
        "peerSleep",
        "theirs",
    )

    def __init__(self, fabric: Any, peer: Any, mine: Any, theirs: Any, doorbell: Any, ring: int) -> None:
        """
        Join two segments, both still empty.

        @param mine: The segment that this side writes.
        @param theirs: The one that it reads.
        @param ring: Bytes of each ring, a power of two.
        """
        super().__init__(fabric, peer)
        self.mine, self.theirs, self.doorbell = mine, theirs, doorbell
        self._map: mmap = mine.map
        self._cells: Cells = mine.cells
        self._peerMap: Any = theirs.map
        self._peerCells: Cells = theirs.cells
        self.peerSleep = theirs.cells[SLEEP : SLEEP + 1]
        self.peerAsks, self.peerGrants = theirs.cells[ASKS : ASKS + 1], _UNASKED
        self._size, self._mask = ring, ring - 1
        self._room = ring - limits.RING_RESERVE
        self._low = _BULK_ROOM // 2
        self._tail = self._head = self._peerHead = 0
        # Positions that held no octets, of both rings.
        self._skipped = self._passed = 0
        # Where a batch is interrupted, and how far behind that it goes on: without a thread short records may
        # be delivered several at once: all but the first ask.
        self._lap, self._beyond = (-1, ring + 1) if self.isThreadless else (ring, 0)
        self._target = NEVER
        self._bulkWaits = False
        self._broken: RingError | None = None
        self._rung = self._owedEnd = 0
        self._acknowledgedHead = self._acknowledgedTail = 0
        self._offers: SharedRegions | None = None
        self._direct: DirectWrites | None = None
        self.lastWords = LastWords(mine.cells, WORDS)
        mine.cells[TAKES] = 1

    # -- down

    def post(self, word: int, header: bytes, payload: Any, length: int) -> bool:
        k = len(header)
        total = k + length
        t = self._tail
        room = self._room
        if total < BULK:
            end = (t + total + 71) & -64
            if (end ^ t) & _WINDOW:
                # A bulk sender waits for room.  Small records may use up this window but not begin another,
                # or they would pass the bulk for ever.
                if self._bulkWaits and self.waiting and room <= self._size - limits.RING_RESERVE:
                    return False
                turns = self._turns(t, end)
                if turns or (end ^ t) > self._mask:
                    if not self._skips(t, end, room):
                        return False
                    if turns:
                        total |= TURNS
                    end = (t | self._mask) + 1
        elif self._bulkWaits and self.waiting:
            return False
        else:
            if self.bell and self.peerSleep[0] & 1 and t - self._peerCells[HEAD] >= _WINDOW_BYTES:
                # It copies what this batch has sent so far while this one is copied here.  A stream of small
                # writes has less in a batch: on one CPU a wake-up amid it is one more switch.
                self.alert()
            # 8 bytes of header, rounded up to a page: bulk that ends on a page boundary keeps every payload
            # at the same offset in its page.
            end = (t + total + 4103) & -4096
            if room > _BULK_ROOM:
                room = _BULK_ROOM
            if (end ^ t) > self._mask:
                if not self._skips(t, end, room):
                    return False
                end = (t | self._mask) + 1
        # Against the HEAD as last read: the peer's cell is a cache line in another core, loaded only when
        # the old value does not do.
        if end - self._peerHead > room and not self._hasRoom(end, room):
            return False
        target = self._map
        pos = (t & self._mask) + _FIRST
        _pack(target, pos, total, word)
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
        # The record becomes visible here.  x86-64 keeps stores in order (Intel SDM vol. 3, "Memory
        # Ordering"), so header and payload are visible before it.
        self._tail = self._cells[TAIL] = end
        if not self.bell:
            # Inlines Fabric.ringLater().  In this order: see HotPaths.ringBells().
            fabric = self.fabric
            fabric.bells.append(self)
            self.bell = True
            if fabric.owner.wanted is not None:
                fabric.owner.wanted()
        return True

    def _turns(self, tail: int, end: int) -> bool:
        # Whether the record behind a small one, which reaches the end of a window, goes back to the start.
        # Only if the peer is at most half a window behind: going back skips the rest of the ring's
        # positions, and they count as unread until the peer passes them.
        head = self._peerCells[HEAD]
        if not self._peerHead <= head <= tail:
            # _hasRoom finds the bad HEAD too, and reports it before anything unread is overwritten.
            return False
        self._peerHead = head
        return bool(end - head <= _WINDOW_BYTES // 2 and self._room >= 0)

    def _skips(self, tail: int, end: int, room: int) -> bool:
        # Count the positions from a record's end to that of the ring, if it has room with them.
        last = (tail | self._mask) + 1
        if last - self._peerHead > room and not self._hasRoom(last, room):
            return False
        self._skipped += last - end
        return True

    def octets(self) -> tuple[int, int]:
        # From the positions, with each record's rounding.
        # A peer that breaks the ring amid a turn is behind what was passed over.
        sent, received = self._tail - self._skipped, max(0, self._head - self._passed)
        direct = self._direct
        if direct is not None:
            written, came = direct.octets()
            sent, received = sent + written, received + came
        return sent, received

    def published(self) -> int:
        return (self._tail - self._skipped) // _SLOT

    def postReserved(self, word: int, body: bytes, refusal: bool) -> bool:
        room = self._room
        self._room = self._size - (0 if refusal else limits.REFUSAL_RESERVE)
        try:
            return self.post(word, b"", body, len(body))
        finally:
            self._room = room

    def holdBack(self, held: bool) -> None:
        # No record fits into less than nothing, so post() needs no test of its own.
        self._room = -1 if held else self._size - limits.RING_RESERVE

    def _hasRoom(self, end: int, room: int) -> bool:
        # Read the peer's HEAD again; if a record up to the end does not fit, set where to retry.
        head = self._peerCells[HEAD]
        tail = self._tail
        if not self._peerHead <= head <= tail:
            self.breaks(RingError(f"the peer claims to have read up to {head} of {tail}"))
            return False
        self._peerHead = head
        if end - head <= room:
            return True
        # Held back: connection management waits, and has set its own target.
        if room >= 0:
            self._target = max(end - room, tail - self._low)
            if room == _BULK_ROOM:
                self._bulkWaits = True
        return False

    def resumeWaiting(self) -> int:
        self._bulkWaits = False
        return RecordPath.resumeWaiting(self)

    def position(self) -> int:
        return self._tail

    def breaks(self, error: RingError) -> None:
        """
        The peer has broken the layout, as is found amid something else: the path ends soon.
        """
        # Kept for ring() to raise: the caller may be delivering another path's record, or be an application,
        # and must not see this peer's error.
        self._broken = error
        self.fabric.ringLater(self)

    # -- without records

    def _directWrites(self) -> DirectWrites:
        # Made late: most paths carry streams only.
        direct = self._direct
        if direct is None:
            direct = DirectWrites(self, self._cells, self._peerCells)
            self._direct = direct
        return direct

    def writeDirectly(
        self, number: int, key: int, address: int, source: Any, offset: int, length: int
    ) -> bool:
        direct = self._directWrites()
        if self.peerGrants is _UNASKED:
            direct.ask()
            self.peerGrants = self._peerCells[GRANTS : GRANTS + 1] if self._cells[ASKS] else AWAKE
            return False
        return direct.write(number, key, address, source, offset, length)

    def grantWrites(self, queuePair: BoundQueuePair, region: MemoryRegion) -> bool:
        self._directWrites().grant(queuePair.number, region)
        return True

    def revokeWrites(self, queuePair: BoundQueuePair) -> None:
        if self._direct is not None:
            self._direct.revokeAll(queuePair.number)

    # -- up

    def progress(self, budget: int) -> int:
        peer = self._peerCells
        head = self._head
        # An upcall may end up here again; records are delivered in order, so the outer call goes on with
        # them.
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
            if tail == head:
                self.consumed = False
                return n + self._acknowledge()
            if self.unacknowledged:
                self.consumed = True
                n += self._precede(head) + self._drain(head, tail, budget)
                if self.unacknowledged:
                    n += self._acknowledge()
            else:
                self.consumed = True
                n += self._drain(head, tail, budget)
        finally:
            self.busy = False
        if self.isThreadless:
            twin: RingPath | None = self.twin
            # Verbs end a round once there is a completion: the sender's, which is here, too, comes with it.
            if twin is not None and twin.unacknowledged and twin._head == self._tail and not twin.asleep:
                n += twin.progress(0)
        return n

    def _drain(self, head: int, tail: int, budget: int) -> int:
        if self.owed is not None:
            # A refusal that found no room comes first: HEAD must not pass its record before it is published.
            if not self.payOwed():
                return 0
            self._head = head = self._cells[HEAD] = self._owedEnd
            if head == tail:
                return 1
        mask = self._mask
        peer, cells, source = self._peerCells, self._cells, self._peerMap
        get, waiting = self.taker, self.waiting
        n, enough, end = 0, head + self._lap, head  # No more than the ring holds once.
        length: int
        word: int
        entry: RecordReceiver | None
        try:
            while True:
                # TAIL is the peer's to write: out of range, bytes would be read twice, or never written ones.
                if tail <= head or tail - head > self._size:
                    raise RingError(f"the peer claims to have written up to {tail}")
                cells[BEGUN] = tail
                while True:
                    pos = (head & mask) + _FIRST
                    # Read once into locals: the peer can still change the mapped bytes.
                    length, word = _unpack(source, pos)
                    if length < BULK:
                        end = (head + length + 71) & -64
                    elif length & TURNS:
                        length ^= TURNS
                        self._passed += (head | mask) + 1 - ((head + length + 71) & -64)
                        end = (head | mask) + 1
                    else:
                        end = (head + length + 4103) & -4096
                        if n and peer[SLEEP] & 1 and 0 < peer[WAIT] <= head:
                            self.alert()  # It goes on sending while this one is copied here.
                    if (end ^ head) > mask:
                        self._passed += (head | mask) + 1 - end
                        end = (head | mask) + 1
                    # Bounds every later index: pos + length stays within ring and slack.
                    if length > _RECORD or end > tail:
                        raise RingError(f"the peer wrote a record of {length} bytes")
                    pos += 8
                    # IBTA vol. 1 9.6: only from the peer of its queue pair, as are all in this path's table.
                    entry = get(word & 0xFFFFFF)
                    if entry is not None:
                        syndrome = entry.delivered(word >> 24, source, pos, pos + length)
                    else:
                        syndrome = self.unknown(word, source, pos, pos + length)
                    # Of an RNR NAK or NAK (IBTA vol. 1 9.7.5.2.1); 0 is an ACK, which has no record.
                    n += 1
                    if syndrome and not self.refuse(word, syndrome, end):
                        self._owedEnd = end
                        cells[BEGUN] = head
                        return n
                    # As an ACK (IBTA vol. 1 9.7.5), for each record so that the sender gets room early.
                    self._head = head = cells[HEAD] = end
                    if waiting and peer[HEAD] >= self._target:
                        self.resumeWaiting()
                    if head == tail:
                        break
                    if n >= budget or head > enough:
                        if n < budget and head - enough <= self._beyond:
                            n += (several := self._several(word, length, tail, budget - n))
                            enough += 0 if several else self._beyond
                            head = end = self._head
                            if head != tail and n < budget:
                                continue
                        cells[BEGUN] = head
                        return n
                # A small one alone is answered at once: more would have come with it.  A reference is bulk.
                if n == 1 and length < BULK and not word & _REFERS:
                    return n
                tail = peer[TAIL]
                if head == tail or n >= budget or head > enough:
                    return n
                n += self._precede(head) if self.unacknowledged else 0
        except BaseException:
            # A consumer raised: its record counts as consumed, or it would be delivered for ever.
            self._head = cells[HEAD] = cells[BEGUN] = end
            raise

    def _several(self, word: int, length: int, tail: int, most: int) -> int:
        # Deliver what follows of short records that are as the one before, of that length: returns how many.
        # None, and it is not tried again in this turn.  That one may have been refused: another takes these.
        entry: RecordReceiver | None = self.taker(word & QPN_MASK)
        if entry is None or length > _SHORT:
            return 0
        source, mask = self._peerMap, self._mask
        first = end = self._head
        spans: list[tuple[int, int]] = []
        while end < tail and len(spans) < most:
            pos = (end & mask) + _FIRST
            length, other = _unpack(source, pos)
            after = (end + length + 71) & -64
            # The first test is false for what is longer than the ring, too, and for one with TURNS.
            if length > _SHORT or other != word or (after ^ end) > mask or after > tail:
                break
            end = after
            pos += 8
            spans.append((pos, pos + length))
        if len(spans) < 2:
            return 0
        n = entry.severalDelivered(word >> 24, source, spans)
        if n < len(spans):
            # Where the next one begins: these lie in one piece.
            end = first + spans[n][0] - spans[0][0]
        self._head = self._cells[HEAD] = end
        return n

    def _acknowledge(self) -> int:
        n = 0
        # A refusal lies in the peer's ring before the peer's HEAD passes the refused record (IBTA vol. 1
        # 9.7.5.2 has NAK packets, which are ordered with ACKs).  So after reading HEAD, read the peer's
        # TAIL, and complete up to that HEAD only when everything before that TAIL is delivered.
        if self._head >= self._acknowledgedTail:
            waiting = self.unacknowledged
            if waiting[0][0] <= self._acknowledgedHead:
                n = self.completeTo(self._acknowledgedHead)
            head = self._peerCells[HEAD]
            tail = self._peerCells[TAIL]
            if not self._peerHead <= head <= self._tail:
                raise RingError(f"the peer claims to have read up to {head}")
            self._peerHead = head
            if self._head >= tail and waiting and waiting[0][0] <= head:
                n += self.completeTo(head)
            self._acknowledgedHead, self._acknowledgedTail = head, tail
        return n

    def _precede(self, head: int) -> int:
        # A record that the peer wrote after it had consumed a request may be the answer to it.  As an ACK
        # comes before that, the request completes first, unless a refusal may be among the records that wait.
        peer, waiting = self._peerCells, self.unacknowledged
        reached = peer[HEAD]
        if not waiting[0][0] <= reached <= self._tail:
            return 0
        source, mask, tail = self._peerMap, self._mask, peer[TAIL]
        length: int
        word: int
        for _ in range(_LOOKED):
            length, word = _unpack(source, (head & mask) + _FIRST)
            end = (head + length + 71) & -64
            if length >= BULK:
                end = (head | mask) + 1 if length & TURNS else (head + length + 4103) & -4096
            if (end ^ head) > mask:
                end = (head | mask) + 1
            if word & _OPERATION == ABSENT_WORD:
                if length != REFUSAL.size:
                    return 0
                # They come in the order of what they refuse; a READ, of position 0, completes by no HEAD.
                _, _, refused = REFUSAL.unpack_from(source, (head & mask) + _FIRST + 8)
                return self.completeTo(min(reached, refused - 1))
            if end > tail:
                return 0
            if end == tail:
                return self.completeTo(reached)
            head = end
        return 0

    def ends(self) -> tuple[memoryview, memoryview, memoryview]:
        """
        @return: Views of three cells: how much the peer has published, how much this side has consumed, and
            how much the peer has.  While the first two differ there are records; a view keeps its cell mapped
            when the path is closed.
        """
        here, there = self.mine.cells, self.theirs.cells
        return there[TAIL : TAIL + 1], here[HEAD : HEAD + 1], there[HEAD : HEAD + 1]

    # -- sleeping and waking

    def pending(self) -> bool:
        peer = self._peerCells
        if peer[TAIL] != self._head:
            # While a refusal is owed nothing can be delivered, so unread records alone are no work.
            return self.owed is None or peer[HEAD] >= self._payable()
        if self.waiting and peer[HEAD] >= self._target:
            return True
        waiting = self.unacknowledged
        return bool(waiting) and peer[HEAD] >= waiting[0][0]

    def _payable(self) -> int:
        # The HEAD that the peer must reach for the owed refusal to fit.
        return self._tail + _SLOT - self._size

    def arm(self) -> None:
        cells = self._cells
        wanted = NEVER
        if self.waiting:
            wanted = self._target
        if self.unacknowledged:
            wanted = min(wanted, self.unacknowledged[0][0])
        if self.owed is not None:
            # 0 in WAIT means that nothing is waited for.
            wanted = min(wanted, max(self._payable(), 1))
        # Before SLEEP: the peer reads WAIT only after it has seen an odd SLEEP.
        cells[WAIT] = wanted if wanted < NEVER else 0
        # The next odd number, also when a signal handler raised in between: see HotPaths._wake().
        cells[SLEEP] = (cells[SLEEP] + 1) | 1
        self.asleep = True

    def rouse(self) -> bool | None:
        peer = self._peerCells
        # The first test is that of pending(), which mostly has nothing else to look at.
        if (peer[TAIL] != self._head or self.waiting or self.unacknowledged) and self.pending():
            return True
        # RUNG equal to SLEEP: the bell for this sleep has been used up, for what comes soon or for what was
        # consumed before the sleep began.  The peer rings once for each sleep, so this one is over.
        return None if peer[RUNG] == self._cells[SLEEP] else False

    def alert(self) -> None:
        sleep = self._peerCells[SLEEP]
        if sleep & 1 and sleep != self._rung:
            # As in ring(), which finds a broken doorbell, too.
            self._cells[RUNG] = sleep
            try:
                self.doorbell.ring()
            except RingError:
                return
            self._rung = sleep
            self.fabric.rung += 1

    def wantSpace(self, waiter: Waiter) -> None:
        self.waiting[waiter] = None
        if self.asleep:
            # So that it wakes and sleeps again, with the position for this waiter in WAIT.
            self.fabric.ringLater(self)

    def wake(self) -> None:
        if self.asleep:
            cells = self._cells
            cells[SLEEP] = cells[SLEEP] + 1
            self.asleep = False

    def ring(self) -> bool:
        if self._broken is not None:
            raise self._broken
        posted = self.bell
        self.bell = False
        peer = self._peerCells
        sleep = peer[SLEEP]
        # One system call for each sleep of the peer, however many batches it sleeps through.
        if sleep & 1 and sleep != self._rung and (posted or 0 < peer[WAIT] <= self._head):
            # RUNG before the bell, which may be answered at once; _rung after it, as a signal handler may
            # raise before it.
            self._cells[RUNG] = sleep
            self.doorbell.ring()
            self._rung = sleep
            return True
        return False

    # -- the peer socket

    def _offersOf(self) -> SharedRegions | None:
        # Between users the socket is the doorbell and no memory is shared.  Made late: most paths carry
        # streams only.
        if self._offers is None and isinstance(self.doorbell, EventDoorbell) and self.peerSocket is not None:
            self._offers = SharedRegions(self, self.peerSocket.socket)
            if self.twin is not None and self.peerSocket.server:
                self._offers.next = _TWIN_OFFERS
        return self._offers

    def offer(self, segment: Segment) -> int:
        offers = self._offersOf()
        return 0 if offers is None else offers.offer(segment)

    def withdraw(self, segment: Segment) -> None:
        if self._offers is not None:
            self._offers.withdraw(segment)

    def offered(self, number: int) -> memoryview | None:
        return self._ofEither(SharedRegions.offered, number)

    def handOver(self, number: int, descriptor: int) -> bool:
        offers = self._offersOf() if self._peerCells[TAKES] == 1 else None
        return offers is not None and offers.handOver(number, descriptor)

    def handedOver(self, number: int) -> int | None:
        if self._offersOf() is None:
            return None
        found = self._ofEither(SharedRegions.handedOver, number)
        return -1 if found is None else found

    def _ofEither(self, lookUp: Callable[[SharedRegions, int], _Found | None], number: int) -> _Found | None:
        # A queue pair connected to itself sends from one end and receives at the other, so that either may
        # have got what the peer has given: see RecordPath.bind.
        offers = self._offersOf()
        found = None if offers is None else lookUp(offers, number)
        if found is None and self.twin is not None and (others := self.twin._offersOf()) is not None:
            found = lookUp(others, number)
        return found

    def peerProcess(self) -> int:
        # By SO_PEERCRED (unix(7)): of connect(2) or listen(2), which a device's own process has called; and 0
        # outside our pid namespace.  Only our own user is given an eventfd.
        return self.peer.pid if isinstance(self.doorbell, EventDoorbell) else 0

    def socketReadable(self, peerSocket: Any) -> None:
        """
        Read rings or offers of memory from the peer socket, or notice its end.

        @raise PathLostError: the peer has hung up.
        """
        offers = self._offersOf()
        if offers is not None:
            offers.readable()
        elif not SocketDoorbell(peerSocket.socket).drain():
            raise PeerEndedError("the peer closed its HCA or died")

    def lost(self, reason: PathLostError) -> None:
        if isinstance(reason, PeerEndedError):
            if self._direct is not None:
                self._direct.peerEnded()
            reason.needed = lastWords(self._peerCells, WORDS)
            unread = self._unread()
            for queuePair in self.queuePairs():
                if unread is None or queuePair.remote in unread:
                    reason.needed[queuePair.number] = UNKNOWN
        RecordPath.lost(self, reason)

    def _unread(self) -> set[int] | None:
        # The peer's queue pairs that did not get all bytes; None if it left no HEAD that could be.
        found: set[int] = set()
        head: int = self._peerCells[HEAD]
        tail = self._tail
        if not self._peerHead <= head <= tail:
            return None
        # It died while a record was delivered, as by os._exit: that counts as read.
        isRead = self._peerCells[BEGUN] > head
        while head < tail:
            length, word = _unpack(self._map, (head & self._mask) + _FIRST)
            end = (head + length + 71) & -64 if length < BULK else (head + length + 4103) & -4096
            if length & TURNS or (end ^ head) > self._mask:
                end = (head | self._mask) + 1
            if length & ~TURNS > _BARE and not isRead:
                found.add(word & QPN_MASK)
            head, isRead = end, False
        return found

    def forked(self) -> None:
        """
        In a forked child the mappings are gone (madvise(2), MADV_DONTFORK): make every use an error.
        """
        if self._direct is not None:
            self._direct.forked()
        gone: Any = Forked()
        self._map = self._cells = self._peerMap = self._peerCells = gone
        self.peerSleep = self.peerAsks = self.peerGrants = AWAKE
        self.lastWords.silence()
        # Otherwise a post that fits the last known HEAD would get as far as packing into the map.
        self._room = -1

    def close(self) -> None:
        self.alive = False
        self.lastWords.silence()
        if self._direct is not None:
            self._direct.close()
        gone: Any = None
        self._map = self._cells = self._peerMap = self._peerCells = gone
        self.peerSleep = self.peerAsks = self.peerGrants = AWAKE
        if self._offers is not None:
            self._offers.close()
        self.mine.close()
        self.theirs.close()
        self.doorbell.close()
