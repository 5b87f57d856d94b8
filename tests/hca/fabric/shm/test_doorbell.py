"""
Tests for L{twisted_ib.hca.fabric.shm.doorbell}.
"""

from __future__ import annotations

import os
import select
import socket
from unittest import skipIf

from twisted.trial.unittest import SynchronousTestCase

from tests.support.descriptors import descriptors, descriptorsBefore
from twisted_ib.errors import DoorbellError, RingError
from twisted_ib.hca.fabric.shm.doorbell import EventDoorbell, SocketDoorbell
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
