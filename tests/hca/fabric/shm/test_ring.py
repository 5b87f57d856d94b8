"""
Tests for L{twisted_ib.hca.fabric.shm.ring}: what is special to rings; the rest is
in L{tests.contracts}.
"""

from __future__ import annotations

import os
import random
import select
from struct import Struct
from typing import Any
from unittest import skipIf

from tests.hca.hcas import HCATestCase, Taker, settle, turn
from twisted_ib import limits
from twisted_ib.errors import PathLostError
from twisted_ib.hca.base.operation import MANAGEMENT, REFERENCE, word
from twisted_ib.hca.fabric.shm.ring import (
    BULK,
    HEAD,
    LEAD,
    PAGE,
    RUNG,
    SLACK,
    SLEEP,
    TAIL,
    TURNS,
    WAIT,
    RingPath,
    segmentSize,
)
from twisted_ib.hca.fabric.shm.shm import SharedMemoryFabric
from twisted_ib.hca.host import libc
from twisted_ib.hca.wire.opcodes import READ_RESPONSE_ONLY, SEND_ONLY

MISSING = libc.available()
HEADER = Struct("<II")
CELLS = (TAIL, WAIT, HEAD, SLEEP, RUNG)


class RingTestCase(HCATestCase):
    """
    Two HCAs with rings between them.
    """

    fabric = SharedMemoryFabric

    def setUp(self) -> None:
        """
        Join them.
        """
        super().setUp()
        self.a, self.b, self.one, self.two = self.takers()
        self.path, self.other = self.one.path, self.two.path
        self.assertIsInstance(self.path, RingPath)

    def at(self, position: int, count: int) -> bytes:
        """
        @return: bytes of a's ring, as b sees them.
        """
        start = PAGE + LEAD + position % limits.RING
        found: bytes = self.other.theirs.map[start : start + count]
        return found

    def startAt(self, position: int) -> None:
        """
        Go on as if so many bytes had passed both ways already.
        """
        for path in (self.path, self.other):
            path._tail = path._head = path._peerHead = position
            path._cells[TAIL] = path._cells[HEAD] = position


@skipIf(bool(MISSING), f"missing: {MISSING}")
class LayoutTests(RingTestCase):
    """
    Where records lie.
    """

    def test_record(self) -> None:
        """
        A record is its length and its word, little endian, then its bytes;
        the next starts 64 bytes further.
        """
        self.one.post(b"abc")
        self.one.post(b"", 0x0A)
        self.assertEqual(self.at(0, 11).hex(), "0300000015000004616263")
        self.assertEqual(self.at(64, 8).hex(), "000000001500000a")
        self.assertEqual(self.other.theirs.cells[TAIL], 128)

    def test_ends(self) -> None:
        """
        Two cells differ while there are records, and can still be read when the path is closed.
        """
        published, consumed, read = self.other.ends()
        self.assertEqual(published[0], consumed[0])
        self.one.post(b"abc")
        self.two.post(b"abc")
        self.assertEqual((published[0], consumed[0], read[0]), (64, 0, 0))
        settle(self.a, self.b)
        self.assertEqual((published[0], consumed[0], read[0]), (64, 64, 64))
        self.b.close()
        self.assertEqual((published[0], consumed[0]), (64, 64))

    def test_moved(self) -> None:
        """
        The doorbells of a device that goes from one reactor to another end the sleeps of that one alone.
        """
        fabric, poller = self.b.fabric, select.epoll()
        self.addCleanup(poller.close)
        for place in (poller, None, poller, None):
            fabric.registerWith(place)
            poller.poll(0)
            fabric.attend()
            self.assertTrue(self.b.arm())
            self.one.post(b"abc")
            self.a.flush()
            own = select.select([fabric.fileno()], [], [], 0)[0]
            self.assertEqual((bool(poller.poll(0)), bool(own)), (place is not None, place is None))
            self.b.look()
            settle(self.a, self.b)

    def test_movedClosed(self) -> None:
        """
        It goes there, too, if the program has closed the number of a doorbell, whose path is lost then, or of
        another descriptor.
        """
        fabric, poller = self.b.fabric, select.epoll()
        self.addCleanup(poller.close)
        (peerSocket,) = fabric._pairs
        fd = peerSocket.bell.fd
        kept = os.dup(fd)
        self.addCleanup(os.close, kept)
        # Nobody else gets the number.
        self.addCleanup(os.dup2, kept, fd)
        os.close(fd)
        for place in (poller, None):
            fabric.registerWith(place)
        # It would not wake the reactor: the path is lost, not deaf.
        self.assertFalse(self.b.arm())
        self.b.progress()
        self.assertEqual(fabric.paths(), [])
        fabric.watchOther(fd, self.fail)
        fabric.attend()
        fabric.unwatchOther(fd)
        fabric.watchOther(kept, self.fail)
        os.dup2(poller.fileno(), kept)
        fabric.unwatchOther(kept)

    def test_sizes(self) -> None:
        """
        With its header a record takes a multiple of 64 bytes; one of BULK
        bytes ends on a page boundary.
        """
        cases = ((0, 64), (56, 64), (57, 128), (120, 128), (121, 192), (BULK - 1, BULK + 64))
        for length, size in cases:
            before = self.path.position()
            self.one.post(bytes(length))
            self.assertEqual(self.path.position() - before, size)
            settle(self.a, self.b)
        for length in (BULK, BULK + 4088, BULK + 4089, limits.INLINE_MESSAGE + 16, limits.INLINE_RECORD):
            before = self.path.position()
            self.one.post(bytes(length))
            end = self.path.position()
            self.assertEqual(end % PAGE, 0)
            self.assertTrue(length + 8 <= end - before < length + 8 + 2 * PAGE)
            settle(self.a, self.b)
            self.assertEqual(len(self.two.records[-1]), length)

    def test_payload(self) -> None:
        """
        From the second on, the stream bytes of bulk records, 16 bytes behind
        the record's header, start half a page into a page.
        """
        self.one.post(bytes(BULK))
        self.assertEqual((PAGE + LEAD + self.path.position() + 8 + 16) % PAGE, PAGE // 2)

    def test_slack(self) -> None:
        """
        A record that passes the end of the ring runs on into the slack, which
        has room for the longest, and the next starts at the beginning.
        """
        self.assertEqual(segmentSize(limits.RING), len(self.path._map))
        data = random.Random(1).randbytes(limits.INLINE_RECORD)
        self.startAt(limits.RING - 64)
        self.assertTrue(self.one.post(data))
        self.assertEqual(self.path.position(), limits.RING)
        self.assertEqual(self.at(limits.RING - 64, 8), HEADER.pack(len(data), word(SEND_ONLY, 21)))
        self.assertTrue(PAGE + LEAD + limits.RING - 64 + 8 + len(data) <= PAGE + limits.RING + SLACK)
        self.one.post(b"next")
        self.assertEqual(self.at(0, 12), HEADER.pack(4, word(SEND_ONLY, 21)) + b"next")
        settle(self.a, self.b)
        self.assertTrue(self.two.records == [data, b"next"])

    def test_laps(self) -> None:
        """
        Many times around, from before to behind where 32 bits end.  Seed 4.
        """
        source = random.Random(4)
        for start in (0, (1 << 32) - 3 * limits.RING, (1 << 53) - limits.RING):
            self.startAt(start)
            sent = []
            self.two.log.clear()
            while self.path.position() < start + 8 * limits.RING:
                data = source.randbytes(source.choice((0, 56, 57, 1000, 16383, 16384, 65600)))
                while not self.one.post(data):
                    settle(self.b)
                sent.append(data)
            settle(self.a, self.b)
            self.assertTrue(self.two.records == sent)

    def test_window(self) -> None:
        """
        Small records go back to the beginning when they have used a window's bytes, and say so
        in the length of the last one before that.
        """
        window = limits.RING_WINDOW
        self.startAt(window - 64)
        self.one.post(b"last")
        self.assertEqual(self.at(window - 64, 12), HEADER.pack(TURNS | 4, word(SEND_ONLY, 21)) + b"last")
        self.assertEqual(self.path.position(), limits.RING)
        self.one.post(b"first")
        self.assertEqual(self.at(0, 13), HEADER.pack(5, word(SEND_ONLY, 21)) + b"first")
        settle(self.a, self.b)
        self.assertEqual(self.two.records, [b"last", b"first"])

    def test_windowTouched(self) -> None:
        """
        However many small records there are, a ring whose reader keeps up is touched no further.
        """
        touched = set()
        for _ in range(3 * limits.RING_WINDOW // 4096):
            touched.add(self.path.position() % limits.RING)
            self.one.post(bytes(4000))
            settle(self.a, self.b)
        self.assertEqual(len(self.two.records), 3 * limits.RING_WINDOW // 4096)
        self.assertLess(max(touched), limits.RING_WINDOW)

    def test_windowBehind(self) -> None:
        """
        A reader that is more than half a window behind has the whole ring, and the next window's
        end is as good when it has caught up.
        """
        window = limits.RING_WINDOW
        while self.path.position() < window:
            self.assertTrue(self.one.post(bytes(4000)))
        self.assertLess(self.path.position(), 2 * window)
        settle(self.a, self.b)
        while self.path.position() < 2 * window - 64:
            self.one.post(b"")
            settle(self.a, self.b)
        self.one.post(b"")
        self.assertEqual(self.path.position(), limits.RING)

    def test_windowBulk(self) -> None:
        """
        Bulk takes the whole ring.
        """
        ends = []
        while self.path.position() < limits.RING:
            self.one.post(bytes(BULK))
            settle(self.a, self.b)
            ends.append(self.path.position())
        self.assertEqual(ends, [*range(ends[0], limits.RING, ends[0]), limits.RING])

    def test_bulkRoom(self) -> None:
        """
        Bulk leaves room for small records, whose reader is not too far behind it.
        """
        n = 0
        while self.one.post(bytes(BULK)):
            n += 1
        self.assertLessEqual(self.path.position(), limits.RING_BULK)
        self.assertGreater(self.path.position(), limits.RING_BULK - 2 * BULK)
        self.assertTrue(self.one.post(b"small"))
        settle(self.a, self.b)
        self.assertEqual(len(self.two.records), n + 1)
        self.assertTrue(self.one.post(bytes(BULK)))

    def test_alone(self) -> None:
        """
        What is published while a short record is delivered that came alone has its own batch, so that an
        answer does not wait; behind one that refers to memory, which takes long, it is of the same.
        """
        for opcode, count in ((SEND_ONLY, 1), (READ_RESPONSE_ONLY | REFERENCE, 3)):
            more = [b"third", b"second"]

            def publish(data: bytes, opcode: int = opcode, more: list[bytes] = more) -> None:
                if more:
                    self.one.post(more.pop(), opcode)

            self.two.upcall = publish
            self.one.post(b"first", opcode)
            self.assertEqual(self.other.progress(limits.RECORDS_PER_TURN), count)
            settle(self.a, self.b)
        self.assertEqual(self.two.records, [b"first", b"second", b"third"] * 2)

    def test_bulkTurn(self) -> None:
        """
        Bulk that waits has its turn, though there are always more small records on the way than bulk
        may be behind.
        """
        bulk = Taker(self.path, 31, 32)
        taken = Taker(self.other, 32, 31)

        def post() -> None:
            """
            Post or wait.
            """
            if not bulk.post(bytes(limits.INLINE_RECORD)):
                self.path.wantSpace(bulk)

        self.patch(bulk, "resume", post)
        sent = waited = 0
        more = limits.RING_BULK // 15000 + 10
        for n in range(40):
            while sent - len(self.two.records) < more and self.one.post(bytes(15000)):
                sent += 1
            if n == 2:
                self.assertGreater(self.path.position() - self.path._peerHead, limits.RING_BULK)
                post()
            waited += not taken.records
            turn(self.b)
            turn(self.a)
        self.assertEqual(len(taken.records), 1)
        self.assertLess(waited, 10)
        settle(self.a, self.b)
        self.assertEqual((len(self.two.records), len(self.path.waiting)), (sent, 0))

    def test_bulkGone(self) -> None:
        """
        A waiter for bulk room that has been removed holds up no other sender.
        """
        bulk = Taker(self.path, 31, 32)
        while bulk.post(bytes(BULK)):
            pass
        self.path.wantSpace(bulk)
        while self.one.post(bytes(4000)):
            pass
        self.path.wantNoSpace(bulk)
        self.path.wantSpace(self.one)
        settle(self.a, self.b)
        self.assertEqual(self.one.said("resume"), [None])
        self.assertTrue(self.one.post(bytes(4000)))
        settle(self.a, self.b)
        self.assertTrue(bulk.post(bytes(BULK)))

    def test_bulkManagement(self) -> None:
        """
        Connection management does not wait for bulk that waits.
        """
        bulk = Taker(self.path, 31, 32)
        while bulk.post(bytes(BULK)):
            pass
        self.path.wantSpace(bulk)
        while self.one.post(bytes(4000)):
            pass
        self.assertLess(self.path.position(), limits.RING_BULK + limits.RING_WINDOW)
        for _ in range(20):
            self.assertTrue(self.path.postReserved(MANAGEMENT, bytes(240), False))

    def test_windowRoom(self) -> None:
        """
        Behind a record that goes back half a window is free at once, although the peer has not read it.
        """
        self.startAt(limits.RING_WINDOW - 64)
        self.one.post(b"last")
        n = 1
        while self.one.post(b""):
            n += 1
        self.assertGreaterEqual(n * 64, limits.RING_WINDOW // 2)
        settle(self.a, self.b)
        self.assertEqual(len(self.two.records), n)

    def test_full(self) -> None:
        """
        A full ring leaves exactly the reserve free, and the last part of that
        for refusals only.
        """
        while self.one.post(b""):
            pass
        self.assertEqual(self.path.position(), limits.RING - limits.RING_RESERVE)
        counts = []
        for refusal in (False, True):
            n = 0
            while self.path.postReserved(word(SEND_ONLY, 21), b"", refusal):
                n += 1
            counts.append(n)
        reserve = limits.RING_RESERVE - limits.REFUSAL_RESERVE
        self.assertEqual(counts, [reserve // 64, limits.REFUSAL_RESERVE // 64])
        self.assertEqual(self.path.position(), limits.RING)
        settle(self.a, self.b)
        self.assertEqual(len(self.two.records), limits.RING // 64)


@skipIf(bool(MISSING), f"missing: {MISSING}")
class HostileTests(RingTestCase):
    """
    The peer b writes what it likes into what it can write.
    """

    peers = 15

    def setUp(self) -> None:
        """
        A third HCA, whose connection to a must go on.
        """
        super().setUp()
        self.c, self.three, self.four = self.bystander(self.a)
        self.cells: Any = self.other.mine.cells
        self.map: Any = self.other.mine.map

    def survived(self, errors: int = 1) -> None:
        """
        Only the path to b broke, by name and counted once.
        """
        for _ in range(3):
            turn(self.a)
        (reason,) = self.one.said("failed")
        self.assertIsInstance(reason, PathLostError)
        self.assertEqual(self.a.counters["ring_errors"], errors)
        self.assertEqual(self.one.records, [])
        self.three.post(b"still here")
        settle(self.a, self.c)
        self.assertEqual(self.four.records, [b"still here"])
        self.assertEqual(len(self.a.fabric.paths()), 1)

    def test_tails(self) -> None:
        """
        A tail that cannot be.
        """
        for n, tail in enumerate((limits.RING + 64, 1 << 63, (1 << 64) - 64, 1, 63)):
            if n:
                self.setUp()
            self.cells[TAIL] = tail
            self.survived()

    def test_tailGoesBack(self) -> None:
        """
        A tail before what was taken already.
        """
        self.two.post(b"x")
        settle(self.a, self.b)
        self.one.log.clear()
        self.cells[TAIL] = 0
        self.survived()

    def test_heads(self) -> None:
        """
        A head beyond what was published; seen by who looks for room or waits
        for an acknowledgement.
        """
        for n, head in enumerate((1 << 63, (1 << 64) - 1)):
            if n:
                self.setUp()
            self.cells[HEAD] = head
            self.one.postKept(b"kept")
            self.survived()
            self.assertEqual(self.one.said("acknowledged"), [])

    def test_headGoesBack(self) -> None:
        """
        A head before an earlier one.
        """
        for n in range(3):
            self.one.postKept(b"%d" % n)
        settle(self.a, self.b)
        self.cells[HEAD] = 64
        self.one.postKept(b"kept")
        self.survived()
        self.assertEqual(len(self.one.said("acknowledged")), 3)

    def test_headSeenByAPost(self) -> None:
        """
        A post that finds an impossible head is told that there is no room; the path breaks at the end of
        the batch, and only that path, even if the post answered another path's record.
        """
        while self.one.post(bytes(8000)):
            pass
        self.cells[HEAD] = 1 << 63
        self.three.upcall = lambda data: self.assertFalse(self.one.post(bytes(8000)))
        self.four.post(b"answer me")
        self.c.progress()
        turn(self.a)
        self.assertEqual(self.three.records, [b"answer me"])
        self.three.upcall = None
        self.survived()

    def test_lengths(self) -> None:
        """
        A record that is too long, or longer than what was published.
        """
        cases = (0xFFFFFFFF, limits.INLINE_RECORD + 1, 57, BULK, TURNS | limits.INLINE_RECORD + 1, TURNS | 4)
        for n, length in enumerate(cases):
            if n:
                self.setUp()
            HEADER.pack_into(self.map, PAGE + LEAD, length, word(SEND_ONLY, 20))
            short = length < limits.INLINE_RECORD or length == TURNS | 4
            self.cells[TAIL] = 64 if short else limits.RING
            self.survived()

    def test_rubbish(self) -> None:
        """
        Random cells and records: no exception leaves the device.  Seed 5.
        """
        source = random.Random(5)
        for n in range(self.peers):
            if n:
                self.setUp()
            self.one.answers.extend(source.choice((0, 0, 0x20, 0x61)) for _ in range(100))
            self.map[PAGE + LEAD : PAGE + LEAD + 20000] = source.randbytes(20000)
            for _ in range(4):
                small = source.randrange(0, limits.RING, 64)
                self.cells[source.choice(CELLS)] = source.choice((small, small, source.getrandbits(64)))
                if self.path.alive:
                    self.one.post(b"x")
                    self.path.wantSpace(self.one)
                turn(self.a)
            self.b.fabric.hot = ()  # It does not look at what it wrote.
            self.three.post(b"still here")
            settle(self.a, self.c)
            self.assertEqual(self.four.records, [b"still here"])
            self.a.close()

    def test_doorbellFull(self) -> None:
        """
        A doorbell that its owner has filled neither blocks nor fails.
        """
        bell = self.other.peerSocket.bell
        os.write(bell.fd, ((1 << 64) - 2).to_bytes(8, "little"))
        settle(self.a, self.b)
        self.assertTrue(self.b.arm())
        self.one.post(b"rung")
        self.a.progress()
        self.assertEqual(self.a.counters["ring_errors"], 0)
        settle(self.b)
        self.assertEqual(self.two.records, [b"rung"])

    def test_brokenInMidWrite(self) -> None:
        """
        Ringing in the middle of a batch, as a write does, reports no error of a peer that is found
        broken then: its path is ended in the next turn, before the device sleeps.
        """
        bell = self.other.peerSocket.bell
        os.set_blocking(bell.fd, True)
        settle(self.a)
        self.assertTrue(self.b.arm())
        for _ in range(2):
            self.one.post(b"x")
            self.a.ringBells()
        self.assertEqual((self.one.said("failed"), self.path.alive), ([], True))
        self.assertTrue(self.a.busy())
        self.assertFalse(self.a.arm())
        self.survived()
        self.assertFalse(self.a.busy())

    def test_doorbellBlocks(self) -> None:
        """
        A doorbell that its owner has made blocking is not touched.
        """
        bell = self.other.peerSocket.bell
        os.write(bell.fd, ((1 << 64) - 2).to_bytes(8, "little"))
        os.set_blocking(bell.fd, True)
        settle(self.a)
        self.assertTrue(self.b.arm())
        self.one.post(b"rung")
        self.a.progress()
        self.survived()
