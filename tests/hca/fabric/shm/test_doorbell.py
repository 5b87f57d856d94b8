"""
Tests for L{twisted_ib.hca.fabric.shm.doorbell}.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Callable
from functools import partial
from unittest import skipIf

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.fabric.shm.test_ring import RingTestCase
from tests.hca.hcas import LISTENER, SDP, HCATestCase, Taker, User, readable, settle, turn, wakes
from tests.support.descriptors import descriptors, descriptorsBefore, fork, runForked
from tests.support.waiting import readUntil, waitUntil
from twisted_ib import limits
from twisted_ib.errors import DoorbellError, RingError
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.fabric.shm import hotpaths
from twisted_ib.hca.fabric.shm.doorbell import EventDoorbell, SocketDoorbell
from twisted_ib.hca.fabric.shm.ring import BULK, PAGE, RUNG, SLEEP
from twisted_ib.hca.fabric.shm.shm import SharedMemoryFabric
from twisted_ib.hca.host import libc

MISSING = libc.available()


@skipIf(bool(MISSING), f"missing: {MISSING}")
class EventDoorbellTests(SynchronousTestCase):
    """
    Event counters as doorbells.
    """

    def setUp(self) -> None:
        """
        A doorbell, its ringer's side, and an edge-triggered epoll object as
        the sleeper has.
        """
        self.before = descriptorsBefore()
        self.ours = EventDoorbell.create()
        self.theirs = EventDoorbell.attach(os.dup(self.ours.fd))
        self.poller = select.epoll()
        self.poller.register(self.ours.fd, select.EPOLLIN | select.EPOLLET)

    def tearDown(self) -> None:
        """
        Nothing is left open.
        """
        self.poller.close()
        self.ours.close()
        self.theirs.close()
        self.theirs.close()
        self.assertEqual(descriptors(), self.before)

    def test_rings(self) -> None:
        """
        Each ring is an edge, though nobody reads the counter.
        """
        self.assertEqual(self.poller.poll(0), [])
        for _ in range(3):
            self.assertTrue(self.theirs.ring())
            self.assertEqual(self.poller.poll(0), [(self.ours.fd, select.EPOLLIN)])
            self.assertEqual(self.poller.poll(0), [])

    def test_filled(self) -> None:
        """
        A counter that its owner has filled neither blocks nor raises.
        """
        os.write(self.ours.fd, (2**64 - 2).to_bytes(8, "little"))
        self.assertFalse(self.theirs.ring())

    def test_madeBlocking(self) -> None:
        """
        A counter that its owner has filled and made blocking is not written
        to, and told by name.
        """
        os.write(self.ours.fd, (2**64 - 2).to_bytes(8, "little"))
        os.set_blocking(self.ours.fd, True)
        error = self.assertRaises(RingError, self.theirs.ring)
        self.assertIn("blocking", str(error))

    def refuse(self, fd: int, reason: str) -> None:
        """
        Assert that C{fd} is refused by name and stays the caller's.
        """
        self.addCleanup(os.close, fd)
        before = descriptorsBefore()
        self.assertIn(reason, str(self.assertRaises(DoorbellError, EventDoorbell.attach, fd)))
        self.assertEqual(descriptors(), before)
        os.fstat(fd)

    def test_blocking(self) -> None:
        """
        A counter that blocks is refused.
        """
        fd = os.dup(self.ours.fd)
        os.set_blocking(fd, True)
        self.refuse(fd, "blocks")

    def test_otherThings(self) -> None:
        """
        So is what is no counter, for all that it does not block.
        """
        reader, writer = os.pipe2(os.O_NONBLOCK)
        memory = libc.memfdCreate("anon_inode:[eventfd]")
        named = os.path.join(os.path.abspath(self.mktemp()))
        os.mkdir(named)
        file = os.open(f"{named}/anon_inode:[eventfd]", os.O_RDWR | os.O_CREAT)
        timer = os.dup(self.poller.fileno())
        for fd in (reader, writer, memory, file, timer):
            os.set_blocking(fd, False)
            self.refuse(fd, "not an eventfd")

    def test_closed(self) -> None:
        """
        So is a number that is no descriptor.
        """
        fd = os.dup(self.ours.fd)
        os.close(fd)
        self.assertRaises(DoorbellError, EventDoorbell.attach, fd)


class SocketDoorbellTests(SynchronousTestCase):
    """
    Bytes on the pair's socket as doorbells.
    """

    def setUp(self) -> None:
        """
        A pair of sockets, blocking, and a doorbell at each.
        """
        if not hasattr(socket, "SOCK_SEQPACKET"):
            self.skipTest("no SEQPACKET sockets")
        self.one, self.two = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(self.one.close)
        self.addCleanup(self.two.close)
        self.ours, self.theirs = SocketDoorbell(self.one), SocketDoorbell(self.two)

    def test_rings(self) -> None:
        """
        A ring makes the socket readable until it is drained.
        """
        self.assertEqual(select.select([self.ours.fd], [], [], 0)[0], [])
        self.assertTrue(self.theirs.ring())
        self.assertEqual(select.select([self.ours.fd], [], [], 0)[0], [self.ours.fd])
        self.assertTrue(self.ours.drain())
        self.assertEqual(select.select([self.ours.fd], [], [], 0)[0], [])

    def test_filled(self) -> None:
        """
        A socket that nobody reads neither blocks nor raises; its reader takes
        a bounded number of rings at a time.
        """
        rings = 0
        while self.theirs.ring():
            rings += 1
            self.assertTrue(rings < 100000)
        self.assertTrue(rings > 64)
        self.assertTrue(self.ours.drain())
        self.assertEqual(len(select.select([self.ours.fd], [], [], 0)[0]), 1)

    def test_gone(self) -> None:
        """
        A ring at a dead peer does nothing; draining tells of its end.
        """
        self.two.close()
        self.assertFalse(self.ours.ring())
        self.assertFalse(self.ours.drain())
        self.ours.close()
        self.assertEqual(self.ours.fd, -1)
        self.one.fileno()


@skipIf(bool(MISSING), f"missing: {MISSING}")
class AlertTests(RingTestCase):
    """
    The second HCA sleeps, and the first rings before it writes a record.

    @ivar now: The time, in seconds.
    @ivar looks: How often the sleeper has looked in vain for the record that it was rung for.
    @ivar happen: Called each time.
    """

    def setUp(self) -> None:
        """
        It sleeps.
        """
        super().setUp()
        self.now, self.looks = 0.0, 0
        self.happen: Callable[[], object] = lambda: None
        self.patch(hotpaths, "perf_counter", lambda: self.now)
        self.patch(os, "sched_yield", self.yields)
        settle(self.a, self.b)
        self.sleep()
        self.rung = self.a.fabric.rung

    def yields(self) -> None:
        """
        A microsecond passes.
        """
        self.looks += 1
        self.now += 1e-6
        self.happen()

    def sleep(self) -> None:
        """
        Put the second HCA to sleep.
        """
        self.assertTrue(self.b.arm())
        self.assertFalse(readable(self.b))

    def look(self) -> bool:
        """
        The second HCA, which was rung for, looks.

        @return: Whether a path is polled.
        """
        self.assertTrue(readable(self.b))
        self.b.fabric.attend()
        return self.b.fabric.look()

    def rings(self) -> int:
        """
        @return: How often the first has rung.
        """
        return self.a.fabric.rung - self.rung

    def test_once(self) -> None:
        """
        A sleeper is rung for before the record, and not for the record again; one that is awake is not.
        """
        self.assertEqual(self.path.peerSleep[0] & 1, 1)
        self.path.alert()
        self.assertTrue(readable(self.b))
        self.one.post(b"one")
        self.a.ringBells()
        self.path.alert()
        self.assertEqual(self.rings(), 1)
        self.assertTrue(self.look())
        self.assertEqual((self.looks, self.path.peerSleep[0] & 1), (0, 0))
        self.path.alert()
        settle(self.b)
        self.assertEqual((self.rings(), self.two.records), (1, [b"one"]))

    def test_soon(self) -> None:
        """
        Who is awake before the record is there waits for it, and is not rung for again; its peer is believed
        the next time.
        """
        self.happen = lambda: self.looks == 3 and self.one.post(b"soon")
        self.other.vain = 1
        self.path.alert()
        self.assertTrue(self.look())
        self.a.ringBells()
        self.assertEqual((self.looks, self.rings(), self.other.vain), (3, 1, 0))
        self.b.progress()
        self.assertEqual(self.two.records, [b"soon"])

    def test_late(self) -> None:
        """
        A record that does not come in time is waited for in another sleep, for which it is rung again.
        """
        self.path.alert()
        self.assertTrue(self.look())
        self.assertAlmostEqual(self.now, limits.ANSWER_SECONDS, 5)
        self.assertEqual(self.b.progress(), 0)
        self.sleep()
        self.one.post(b"late")
        self.a.ringBells()
        self.assertTrue(self.look())
        settle(self.b)
        self.assertEqual((self.rings(), self.two.records), (2, [b"late"]))

    def test_raises(self) -> None:
        """
        A signal handler that raises meanwhile loses no bell.
        """

        def interrupt() -> None:
            raise KeyboardInterrupt

        self.happen = interrupt
        self.path.alert()
        self.assertRaises(KeyboardInterrupt, self.look)
        self.sleep()
        self.one.post(b"after")
        self.a.ringBells()
        self.assertTrue(self.look())
        settle(self.b)
        self.assertEqual(self.two.records, [b"after"])

    def test_inVain(self) -> None:
        """
        A peer that claims to have rung for each sleep is waited for more and more seldom.
        """
        waits = []
        for n in range(1, 1025):
            self.path._cells[RUNG] = self.other._cells[SLEEP]
            before = self.now
            self.assertTrue(self.b.fabric.look())
            self.assertEqual(self.b.progress(), 0)
            self.sleep()
            self.assertLess(self.now - before, limits.ANSWER_SECONDS + 2e-6)
            if self.now > before:
                waits.append(n)
        self.assertEqual(waits, [1 << n for n in range(11)])

    def test_together(self) -> None:
        """
        Several that ring in vain are waited for together; and none while there is something else to do.
        """
        other = self.device()
        path = self.pathTo(other, self.b)
        for wait in (True, False):
            settle(self.b, other)
            self.sleep()
            self.now = 0.0
            for each in self.path, path:
                each.alert()
            if not wait:
                self.one.post(b"something")
            self.assertTrue(self.look())
            self.assertEqual(len(self.b.fabric.hot), 2)
            self.assertAlmostEqual(self.now, limits.ANSWER_SECONDS * wait, 5)
        settle(self.b)
        self.assertEqual(self.two.records, [b"something"])

    def test_bulk(self) -> None:
        """
        Amid a batch of bulk a sleeper is rung for as soon as a window of it is there, once for a sleep; small
        records, and less bulk, wait for the end of their batch.
        """
        bulk = bytes(BULK)
        window = limits.RING_WINDOW // (BULK + PAGE)
        self.one.post(b"small")
        self.one.post(b"small")
        self.one.post(bulk[:-1])
        self.assertEqual(self.rings(), 0)
        self.a.ringBells()
        self.assertEqual(self.rings(), 1)
        settle(self.b)
        self.sleep()
        for posted in range(1, window + 4):
            self.assertTrue(self.one.post(bulk))
            self.assertEqual(self.rings(), 1 + (posted > window + 1))
        self.a.ringBells()
        self.assertEqual(self.rings(), 2)
        self.assertTrue(self.look())
        settle(self.b)
        self.assertEqual((self.two.records[3:], self.looks), ([bulk] * (window + 3), 0))
        self.sleep()
        self.one.post(bulk)
        self.one.post(bulk)
        self.assertEqual(self.rings(), 2)
        self.a.ringBells()
        self.assertEqual(self.rings(), 3)

    def test_bulkWaits(self) -> None:
        """
        A sender of bulk that sleeps until there is room is rung for amid the batch in which it is made.
        """
        bulk = bytes(limits.INLINE_MESSAGE)
        posted = 0
        while self.two.post(bulk):
            posted += 1
        self.other.wantSpace(self.two)
        self.b.ringBells()
        self.sleep()
        rings: list[int] = []
        self.one.upcall = lambda data: rings.append(self.rings())
        settle(self.a)
        self.assertEqual(len(rings), posted)
        # With so many read there is the room that it waits for, which the next one finds.
        enough = -(-self.other._target // (self.other._tail // posted))
        self.assertLess(enough, posted)
        self.assertEqual(rings.index(1), enough)
        self.assertEqual(self.rings(), 1)
        self.assertTrue(self.look())

    def test_broken(self) -> None:
        """
        A doorbell that its owner has made blocking is found broken with the record.
        """
        os.set_blocking(self.other.peerSocket.bell.fd, True)
        self.path.alert()
        self.assertEqual((self.rings(), self.path.alive), (0, True))
        self.one.post(b"x")
        self.a.ringBells()
        turn(self.a)
        self.assertEqual(len(self.one.said("failed")), 1)

    def test_gone(self) -> None:
        """
        The peer of a path that is closed, or that a forked child has, is not known to sleep.
        """

        def unknown() -> None:
            self.assertEqual(list(self.path.peerSleep), [0])

        self.assertEqual(runForked(unknown), 0)
        self.a.close()
        unknown()


@skipIf(bool(MISSING), f"missing: {MISSING}")
class StoppedTests(HCATestCase):
    """
    The process that rings is stopped before it writes the record.
    """

    fabric = SharedMemoryFabric

    def ring(self, told: int) -> None:
        """
        The other process: ring and stop, then write the record.

        @param told: A pipe that says when the peer listens, then when it sleeps.
        """
        os.read(told, 1)
        device, user = Device("test", self.clock.seconds, SharedMemoryFabric), User()
        device.connect(SDP, self.address, 7001, user)
        waitUntil(lambda: user.path, partial(turn, device))
        taker = Taker(user.path, 20, 21)
        settle(device)
        os.read(told, 1)
        taker.path.alert()
        os.kill(os.getpid(), signal.SIGSTOP)
        taker.post(b"late")
        device.ringBells()
        os.read(told, 1)

    def test_stopped(self) -> None:
        """
        The one that was rung for sleeps again, and is rung for again when the record is there.
        """
        told, tell = os.pipe()
        pid = fork(partial(self.ring, told))
        self.addCleanup(os.close, told)
        self.addCleanup(os.close, tell)
        self.addCleanup(os.waitpid, pid, 0)
        self.addCleanup(os.kill, pid, signal.SIGKILL)
        device = self.device()
        device.listen(SDP, self.address, 7001, LISTENER)
        os.write(tell, b"!")
        waitUntil(device.fabric.paths, partial(turn, device))
        taker = Taker(device.fabric.paths()[0], 21, 20)
        waitUntil(lambda: not turn(device) and device.arm())
        os.write(tell, b"!")
        found, status = readUntil(lambda: os.waitpid(pid, os.WUNTRACED | os.WNOHANG), lambda found: found[0])
        self.assertEqual((found, os.WIFSTOPPED(status)), (pid, True))
        self.assertTrue(wakes(device))
        device.fabric.attend()
        self.assertTrue(device.fabric.look())
        self.assertEqual(device.progress(), 0)
        self.assertTrue(device.arm())
        self.assertFalse(readable(device))
        os.kill(pid, signal.SIGCONT)
        self.assertTrue(wakes(device))
        turn(device)
        self.assertEqual(taker.records, [b"late"])
