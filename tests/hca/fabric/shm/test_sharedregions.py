"""
Tests for L{twisted_ib.hca.fabric.shm.sharedregions}: what is offered over a pair's socket, also by a
hostile peer of the same user.
"""

from __future__ import annotations

import gc
import os
import select
import sys
from struct import Struct
from typing import Any
from unittest import skipIf

from tests.hca.hcas import HCATestCase, Taker, readable, settle, turn
from tests.hca.queues.keyed_pair import DeviceSide, piece
from tests.support.descriptors import descriptors, descriptorsBefore, isOpen
from twisted_ib import limits
from twisted_ib.errors import RingError
from twisted_ib.hca.base.operation import word
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.fabric.shm import sharedregions
from twisted_ib.hca.fabric.shm.doorbell import SocketDoorbell
from twisted_ib.hca.fabric.shm.ring import TAKES
from twisted_ib.hca.fabric.shm.segment import SEALS, Segment
from twisted_ib.hca.fabric.shm.shm import SharedMemoryFabric
from twisted_ib.hca.host import libc
from twisted_ib.hca.host.fdpassing import closeAll, sendWithDescriptors
from twisted_ib.hca.host.handshake import Refuse
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.hca.wire.headers import REFERENCE, RETH
from twisted_ib.hca.wire.opcodes import WRITE_ONLY

MISSING = libc.available()
MESSAGE = Struct(">B3xIQ")
OFFER, WITHDRAW, STREAM = 1, 2, 3


class KeyedTaker(Taker):
    """
    One that may refer to what is offered.
    """

    work = True


@skipIf(bool(MISSING), f"missing: {MISSING}")
class OffersTests(HCATestCase):
    """
    Two devices with rings; C{a} offers, C{b} maps.
    """

    fabric = SharedMemoryFabric

    def setUp(self) -> None:
        """
        Join them.
        """
        super().setUp()
        self.before = 0
        self.before = self.mapped()  # Of devices that other tests have not closed.
        self.a, self.b, self.path, self.other = self.joined()

    def joined(self) -> tuple[Any, Any, Any, Any]:
        """
        Two HCAs with a keyed queue pair at each end of their path.
        """
        a, b, path, other = super().joined()
        for end in (path, other):
            KeyedTaker(end, 15, 15)
        return a, b, path, other

    def segment(self, size: int = 4096, seal: int = SEALS) -> Segment:
        """
        Memory, closed after the test.
        """
        found = Segment.create(size, seal)
        self.addCleanup(found.close)
        return found

    def say(self, data: bytes, *fds: int) -> None:
        """
        Send something on C{a}'s socket.
        """
        self.assertTrue(sendWithDescriptors(self.path.peerSocket.socket, data, fds))

    def mapped(self) -> int:
        """
        How many segments of memory this process maps, besides those at the beginning.
        """
        gc.collect()
        with open("/proc/self/maps") as maps:
            return sum("memfd:twisted_ib" in line for line in maps) - self.before

    # -- as meant

    def test_offer(self) -> None:
        """
        Offered memory can be read by its number at once, and not written; offering it again gives the
        same number.
        """
        segment = self.segment()
        segment.map[:5] = b"hello"
        before = descriptorsBefore()
        number = self.path.offer(segment)
        self.assertGreater(number, 0)
        self.assertEqual(self.path.offer(segment), number)
        view = self.other.offered(number)
        self.assertEqual(bytes(view[:5]), b"hello")
        self.assertTrue(view.readonly)
        # Before Python 3.13 a mapping keeps a descriptor of its own.
        self.assertEqual(descriptors(), before + (sys.version_info < (3, 13)))
        segment.map[:5] = b"later"
        self.assertEqual(bytes(self.other.offered(number)[:5]), b"later")
        self.assertIsNone(self.other.offered(number + 1))
        self.assertIsNone(self.path.offered(number))

    def test_bothWays(self) -> None:
        """
        Each end counts for itself.
        """
        mine, theirs = self.segment(), self.segment()
        mine.map[0:1], theirs.map[0:1] = b"m", b"t"
        one, two = self.path.offer(mine), self.other.offer(theirs)
        self.assertEqual(bytes(self.other.offered(one)[:1]), b"m")
        self.assertEqual(bytes(self.path.offered(two)[:1]), b"t")

    def test_withdraw(self) -> None:
        """
        Withdrawn memory is unmapped once everything published before is read, and no sooner; no
        descriptor is left over.
        """
        before, open_ = self.mapped(), descriptors()
        segment = Segment.create(4096)
        number = self.path.offer(segment)
        self.assertEqual(bytes(self.other.offered(number)[:1]), b"\0")
        self.path.post(word(WRITE_ONLY, 99), b"", b"x", 1)
        self.path.withdraw(segment)
        self.path.withdraw(segment)
        turn(self.a)
        self.b.fabric.attend()
        self.assertIsNotNone(self.other.offered(number))
        settle(self.a, self.b)
        self.assertIsNone(self.other.offered(number))
        segment.close()
        del segment
        self.assertEqual((self.mapped(), descriptors()), (before, open_))

    def test_withdrawInTurn(self) -> None:
        """
        Of several each is told when its own time has come.
        """
        numbers, segments = [], [self.segment() for _ in range(3)]
        for segment in segments:
            numbers.append(self.path.offer(segment))
            self.path.post(word(WRITE_ONLY, 99), b"", b"x", 1)
            self.path.withdraw(segment)
        self.b.fabric.look()
        self.b.progress(1)
        settle(self.a)
        self.b.fabric.attend()
        found = [self.other.offered(number) is not None for number in numbers]
        self.assertEqual(found, [False, True, True])

    # -- streams

    def pipe(self) -> tuple[int, int]:
        """
        A descriptor to give away, and one that sees when the last one of it is closed.
        """
        ends = os.pipe()
        for end in ends:
            self.addCleanup(closeAll, [end])
        return ends[1], ends[0]

    def test_handOver(self) -> None:
        """
        A descriptor is the peer's who asks for that number, once; it stays open here.
        """
        mine, _ = self.pipe()
        self.assertTrue(self.path.handOver(15, mine))
        self.assertEqual(self.other.handedOver(14), -1)
        theirs = self.other.handedOver(15)
        self.addCleanup(os.close, theirs)
        self.assertTrue(os.path.sameopenfile(mine, theirs))
        self.assertNotEqual(mine, theirs)
        self.assertEqual(self.other.handedOver(15), -1)
        self.assertTrue(isOpen(mine))

    def test_handOverBehindOffers(self) -> None:
        """
        It is found behind offers, too, which are left unread while nobody may refer to them.
        """
        for end in self.path, self.other:
            end.table[15].work = None
        self.path.offer(self.segment())
        settle(self.b)
        mine, _ = self.pipe()
        self.assertTrue(self.path.handOver(15, mine))
        found = self.other.handedOver(15)
        self.assertGreater(found, -1)
        os.close(found)

    def test_handOverUnknown(self) -> None:
        """
        A peer of before, which does not know of streams, is offered none.
        """
        mine, _ = self.pipe()
        self.other.mine.cells[TAKES] = 0
        before = descriptorsBefore()
        self.assertFalse(self.path.handOver(15, mine))
        self.assertEqual(self.other.handedOver(15), -1)
        self.assertEqual(descriptors(), before)

    def test_handOverBound(self) -> None:
        """
        At most so many are given at a time; those whose queue pairs are no more on the path make place.
        """
        self.patch(sharedregions, "HANDED_STREAMS", 3)
        mine, _ = self.pipe()
        takers = [KeyedTaker(self.path, number, number) for number in range(20, 24)]
        self.assertEqual([self.path.handOver(each.number, mine) for each in takers], [True] * 3 + [False])
        self.path.unbind(takers[0])
        self.assertTrue(self.path.handOver(23, mine))
        self.assertFalse(self.path.handOver(15, mine))

    def test_handedBound(self) -> None:
        """
        Of a hostile peer no more than twice as many are kept: the oldest is closed.  So is the one before, if
        the same number comes twice; and all of them with the path.
        """
        self.patch(sharedregions, "HANDED_STREAMS", 2)
        before = descriptorsBefore()
        pipes = [os.pipe() for _ in range(7)]
        for number, (read, write) in zip((1, 2, 3, 4, 5, 4, 6), pipes, strict=True):
            self.addCleanup(closeAll, [read])
            self.say(MESSAGE.pack(STREAM, number, 0), write)
            os.close(write)
        self.assertEqual(self.other.handedOver(1), -1)

        def closed() -> list[int]:
            return [n for n, (read, _) in enumerate(pipes) if select.select([read], [], [], 0)[0]]

        # The first two, and the first of number 4.
        self.assertEqual(closed(), [0, 1, 3])
        found = self.other.handedOver(4)
        os.close(found)
        self.assertEqual(closed(), [0, 1, 3, 5])
        self.b.close()
        settle(self.a)
        self.assertEqual(closed(), [*range(7)])
        self.assertLess(descriptors(), before + 7)

    def test_deregister(self) -> None:
        """
        When a region is deregistered, or its device closed, nothing of it is left, here
        or there.
        """
        before, open_ = self.mapped(), descriptors()
        target = DeviceSide(self.b, self.other)
        target.to(QPState.RTS, 17)
        for close in (False, True):
            side = DeviceSide(self.a, self.path)
            side.to(QPState.RTS, target.qp.number)
            region = side.allocate(20000)
            remote = {"remoteAddress": 0, "remoteKey": 0}
            side.send(1, SendOpcode.RDMA_WRITE, piece(region), **remote)
            settle(self.a, self.b)
            self.assertEqual(self.mapped(), before + 2)
            if not close:
                self.a.deregisterMemory(region)
                settle(self.a, self.b)
                self.assertEqual((self.mapped(), descriptors()), (before, open_))
                target = DeviceSide(self.b, self.other)
                target.to(QPState.RTS, 17)
        self.a.close()
        self.assertEqual(self.a.inUse()["mr"], 0)
        settle(self.b)
        del region, side
        self.assertEqual(self.mapped(), 0)

    def test_bound(self) -> None:
        """
        At most so many are offered at a time; withdrawn ones make place when the peer
        was told.
        """
        segments = [self.segment(8) for _ in range(sharedregions.OFFERED_SEGMENTS + 1)]
        numbers = [self.path.offer(segment) for segment in segments]
        self.assertEqual(numbers, [*range(1, sharedregions.OFFERED_SEGMENTS + 1), 0])
        settle(self.a, self.b)
        self.path.withdraw(segments[0])
        self.assertEqual(self.path.offer(segments[-1]), 0)
        settle(self.a, self.b)
        self.assertEqual(self.path.offer(segments[-1]), sharedregions.OFFERED_SEGMENTS + 1)
        settle(self.a, self.b)
        self.assertTrue(self.other.alive)

    def test_fullSocket(self) -> None:
        """
        While the socket is full nothing is offered, and withdrawals wait; neither is lost
        nor waited for.
        """
        first = self.segment()
        number = self.path.offer(first)
        with self.assertRaises(BlockingIOError):
            while True:
                self.path.peerSocket.socket.send(MESSAGE.pack(WITHDRAW, 999, 0))
        self.assertEqual(self.path.offer(self.segment()), 0)
        self.path.withdraw(first)
        turn(self.a)
        settle(self.a, self.b)
        self.assertEqual(self.path.offer(self.segment()), number + 1)
        settle(self.a, self.b)
        self.assertIsNotNone(self.other.offered(number + 1))
        self.path.withdraw(self.segment())

    def test_closed(self) -> None:
        """
        With the path everything is unmapped, at both ends; what is offered then comes to
        nothing.
        """
        segment = self.segment()
        before = self.mapped()
        for path, other in ((self.path, self.other), (self.other, self.path)):
            number = path.offer(segment)
            self.assertIsNotNone(other.offered(number))
        self.assertEqual(self.mapped(), before + 2)
        self.a.close()
        self.assertEqual(self.other.offer(self.segment()), 0)
        settle(self.b)
        self.assertEqual(self.mapped(), 2)  # The test's own.
        self.assertEqual(self.b.counters["ring_errors"], 0)

    def test_closedSegment(self) -> None:
        """
        Memory without a descriptor is not offered.
        """
        segment = self.segment()
        segment.close()
        self.assertEqual(self.path.offer(segment), 0)

    def test_otherUser(self) -> None:
        """
        Between users the socket is the doorbell: nothing is offered or taken, and memory
        that comes is closed.
        """
        for path in (self.path, self.other):
            path.doorbell = SocketDoorbell(path.peerSocket.socket)
        self.assertEqual(self.path.offer(self.segment()), 0)
        segment = self.segment()
        before = descriptorsBefore()
        self.say(MESSAGE.pack(OFFER, 1, 4096), segment.fd)
        self.assertIsNone(self.other.offered(1))
        self.b.fabric.attend()
        settle(self.a, self.b)
        self.assertEqual(descriptors(), before)
        self.assertTrue(self.other.alive)

    # -- hostile

    def refused(self, *messages: tuple[Any, ...]) -> None:
        """
        Say something hostile: the path ends with a counted error, whether it is found at
        the socket or over a record, and neither descriptor nor mapping is left.
        """
        for overRecord in (False, True):
            self.a.close()
            self.b.close()
            before = descriptorsBefore()
            self.a, self.b, self.path, self.other = self.joined()
            for message in messages:
                self.say(*message)
            if overRecord:
                self.assertRaises(RingError, self.other.offered, 77)
            else:
                settle(self.b)
                self.assertEqual(self.b.counters["ring_errors"], 1)
                self.assertFalse(self.other.alive)
            self.a.close()
            self.b.close()
            self.assertEqual(descriptors(), before)

    def test_refusal(self) -> None:
        """
        The refusal of a client that could not accept the end of the handshake is named as that.
        """
        self.say(Refuse(1, "no descriptor is free").pack())
        error = self.assertRaises(RingError, self.other.offered, 77)
        self.assertEqual(str(error), "the peer refused: no descriptor is free")

    def test_garbage(self) -> None:
        """
        Messages of other lengths and kinds.
        """
        for data in (b"x", MESSAGE.pack(OFFER, 1, 4096)[:-1], MESSAGE.pack(OFFER, 1, 4096) + b"x"):
            self.refused((data,))

    def test_kinds(self) -> None:
        """
        Unknown kinds, an offer without memory, a withdrawal with some, a stream without a connection.
        """
        fd = self.segment().fd
        for message in (
            (MESSAGE.pack(0, 1, 8),),
            (MESSAGE.pack(4, 1, 4096), fd),
            (MESSAGE.pack(OFFER, 1, 8),),
            (MESSAGE.pack(STREAM, 1, 0),),
        ):
            self.refused(message)
        self.refused((MESSAGE.pack(WITHDRAW, 1, 0), fd))

    def test_manyDescriptors(self) -> None:
        """
        More descriptors than one.
        """
        fd = self.segment().fd
        self.refused((MESSAGE.pack(OFFER, 1, 4096), fd, fd))
        self.refused((MESSAGE.pack(OFFER, 1, 4096), *[fd] * 200))

    def test_sizes(self) -> None:
        """
        Memory of another size than said, or of an impossible one.
        """
        fd = self.segment(4096).fd
        for size in (0, 7, 4095, 4097, 1 << 20, (1 << 64) - 1):
            self.refused((MESSAGE.pack(OFFER, 1, size), fd))

    def test_large(self) -> None:
        """
        Memory larger than a region may be.
        """
        self.patch(limits, "REGION_BYTES", 4095)
        self.refused((MESSAGE.pack(OFFER, 1, 4096), self.segment(4096).fd))

    def test_unsealed(self) -> None:
        """
        Memory that its owner could still truncate, which would kill its readers.
        """
        for missing in (libc.F_SEAL_SHRINK, libc.F_SEAL_GROW, libc.F_SEAL_FUTURE_WRITE, libc.F_SEAL_SEAL):
            self.refused((MESSAGE.pack(OFFER, 1, 4096), self.segment(4096, SEALS & ~missing).fd))

    def test_notMemory(self) -> None:
        """
        Other descriptors.
        """
        readEnd, writeEnd = os.pipe()
        self.addCleanup(os.close, readEnd)
        self.addCleanup(os.close, writeEnd)
        with open(self.mktemp(), "wb+") as file:
            file.truncate(4096)
            for fd in (readEnd, file.fileno()):
                self.refused((MESSAGE.pack(OFFER, 1, 4096), fd))

    def test_sameNumber(self) -> None:
        """
        A number that is taken.
        """
        fd = self.segment().fd
        self.refused((MESSAGE.pack(OFFER, 1, 4096), fd), (MESSAGE.pack(OFFER, 1, 4096), fd))

    def test_tooMany(self) -> None:
        """
        More than are allowed.
        """
        self.patch(sharedregions, "OFFERED_SEGMENTS", 3)
        fd = self.segment().fd
        self.refused(*[(MESSAGE.pack(OFFER, n, 4096), fd) for n in range(4)])

    def test_tooLarge(self) -> None:
        """
        More bytes than are allowed, at once or together; what is withdrawn makes place.
        """
        self.patch(limits, "OFFERED_BYTES", 10000)
        segments = [self.segment(4096) for _ in range(3)]
        self.assertEqual([self.path.offer(segment) for segment in segments], [1, 2, 0])
        self.path.withdraw(segments[0])
        settle(self.a, self.b)
        self.assertEqual(self.path.offer(segments[2]), 3)
        settle(self.a, self.b)
        self.assertTrue(self.other.alive)
        fd = segments[0].fd
        self.refused(*[(MESSAGE.pack(OFFER, n, 4096), fd) for n in range(3)])
        self.refused((MESSAGE.pack(OFFER, 1, 10008), self.segment(10008).fd))

    def test_notKeyed(self) -> None:
        """
        Nothing is mapped while no queue pair is there that may use it, and nobody is kept
        busy; what a record then refers to is.  The end is noticed all the same.
        """
        before = self.mapped()
        del self.other.table[15]
        segments = [self.segment() for _ in range(3)]
        one, two = self.path.offer(segments[0]), self.path.offer(segments[1])
        settle(self.a, self.b)
        self.assertEqual(self.mapped(), before + 3)
        self.assertFalse(readable(self.b))
        KeyedTaker(self.other, 15, 15)
        self.assertIsNotNone(self.other.offered(two))
        self.assertIsNotNone(self.other.offered(one))
        three = self.path.offer(segments[2])
        settle(self.a, self.b)
        self.assertEqual(self.mapped(), before + 6)
        self.assertIsNotNone(self.other.offered(three))
        del self.other.table[15]
        self.path.withdraw(segments[2])
        settle(self.a, self.b)
        self.assertEqual(self.mapped(), before + 5)
        self.path.offer(self.segment())
        settle(self.b)
        self.assertFalse(readable(self.b))
        self.a.close()
        settle(self.b)
        self.assertFalse(self.other.alive)

    def test_device(self) -> None:
        """
        All paths of a device together map a bounded number; beyond it offers wait for
        their turn.
        """
        self.patch(sharedregions, "OFFERED_SEGMENTS_PER_DEVICE", 2)
        segments = [self.segment() for _ in range(3)]
        for _ in range(3):
            self.path.offer(segments[0])
            self.path.offer(segments[1])
            settle(self.a, self.b)
            self.assertEqual(self.b.fabric.offeredSegments, 2)
            self.path.withdraw(segments[0])
            self.path.withdraw(segments[1])
            settle(self.a, self.b)
            self.assertEqual(self.b.fabric.offeredSegments, 0)
        numbers = [self.path.offer(segment) for segment in segments]
        settle(self.a, self.b)
        self.assertEqual([self.other.offered(n) is not None for n in numbers], [True, True, False])
        settle(self.b)
        self.assertFalse(readable(self.b))
        self.assertTrue(self.b.counters["offers_unread"])
        self.path.withdraw(segments[0])
        self.other._offers._unmap(numbers[0])
        self.assertIsNotNone(self.other.offered(numbers[2]))
        self.a.close()
        settle(self.b)
        self.assertEqual(self.b.fabric.offeredSegments, 0)

    def test_withdrawNothing(self) -> None:
        """
        To withdraw what was not offered does nothing.
        """
        self.say(MESSAGE.pack(WITHDRAW, 5, 0))
        settle(self.a, self.b)
        self.assertTrue(self.other.alive)

    def test_hostileOverRecord(self) -> None:
        """
        A record that refers to hostile memory ends the path, and nothing else.
        """
        c, d, path, other = self.a, self.b, self.path, self.other
        side = DeviceSide(d, other)
        side.to(QPState.RTS, 17)
        region = side.register(100)
        self.say(MESSAGE.pack(OFFER, 1, 4096), self.segment(4096, 0).fd)
        body = RETH.pack(region.address, region.remoteKey, 100) + REFERENCE.pack(1, 100, 0)
        path.post(word(WRITE_ONLY | 0x40, side.qp.number), b"", body, len(body))
        d.fabric.look()
        d.progress()
        self.assertFalse(other.alive)
        self.assertEqual(d.counters["ring_errors"], 1)
        self.assertEqual(side.qp.state, QPState.ERR)
        self.assertEqual(bytes(region.view), bytes(100))
        settle(c, d)

    def test_changingMemory(self) -> None:
        """
        Memory that its owner changes while it is copied gives what it gives: the rights
        and bounds are the target's.
        """
        one, two = DeviceSide(self.a, self.path), DeviceSide(self.b, self.other)
        one.to(QPState.RTS, two.qp.number)
        two.to(QPState.RTS, one.qp.number)
        source, target = one.allocate(b"1" * 50000), two.allocate(60000)
        one.send(
            1, SendOpcode.RDMA_WRITE, piece(source), remoteAddress=target.address, remoteKey=target.remoteKey
        )
        source.view[:] = b"2" * 50000
        settle(self.a, self.b)
        self.assertEqual(one.statuses(), [(1, WCStatus.SUCCESS)])
        self.assertEqual(bytes(target.view), b"2" * 50000 + bytes(10000))
