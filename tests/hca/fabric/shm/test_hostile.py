"""
Tests of L{twisted_ib.hca.fabric.shm.shm} against processes that call and lie, or call too
often.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import socket
from types import SimpleNamespace
from typing import Any

from tests.hca.hcas import LISTENER, SDP, HCATestCase, Taker, User, readable, settle
from tests.support.descriptors import descriptors, descriptorsBefore
from tests.support.waiting import HANG_SECONDS
from twisted_ib import limits
from twisted_ib.errors import HCAError, PeerRefusedError
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.fabric.shm import listeners as shmListeners
from twisted_ib.hca.fabric.shm import peersocket
from twisted_ib.hca.fabric.shm.listeners import mostPeers
from twisted_ib.hca.fabric.shm.segment import Segment
from twisted_ib.hca.fabric.shm.shm import SharedMemoryFabric
from twisted_ib.hca.host import handshake


class SpoofingTests(HCATestCase):
    """
    A caller that says another's GUID.
    """

    fabric = SharedMemoryFabric

    def test_another(self) -> None:
        """
        Connections to an HCA never go to whoever called before and said its GUID.
        """
        victim, b, liar = self.device(), self.device(), self.device()
        b.listen(SDP, "127.0.0.1", 7001, LISTENER)
        victim.listen(SDP, "127.0.0.1", 7002, LISTENER)
        liar.fabric.guid = victim.guid
        false = Taker(self.pathTo(liar, b), 20, 21)
        one = Taker(self.pathTo(b, victim, 7002), 20, 20)
        two = Taker(victim.fabric.paths()[0], 20, 20)
        one.post(b"secret")
        settle(b, victim, liar)
        self.assertEqual((two.records, false.records), ([b"secret"], []))

    def test_ourOwn(self) -> None:
        """
        Another process that says our own GUID is refused.
        """
        b, liar = self.device(), self.device()
        b.listen(SDP, "127.0.0.1", 7001, LISTENER)
        liar.fabric.guid = b.guid
        b.fabric.pid = 1
        user = User()
        liar.connect(SDP, "127.0.0.1", 7001, user)
        settle(b, liar)
        self.assertIsInstance(user.error, HCAError)
        self.assertEqual((user.path, b.fabric.paths()), (None, []))
        self.assertEqual(b.counters["handshakesRefused"], 1)


class Failing:
    """
    Something of which one method fails.
    """

    def __init__(self, real: Any, method: str, good: int, error: OSError) -> None:
        """
        @param good: How often the method works before.
        """
        self._real, self._method, self._good, self._error = real, method, good, error

    def __getattr__(self, name: str) -> Any:
        """
        The real one's, or a failure.
        """
        if name == self._method:
            self._good -= 1
            if self._good < 0:
                raise self._error
        return getattr(self._real, name)


class CallerTests(HCATestCase):
    """
    Callers that call too often.
    """

    fabric = SharedMemoryFabric

    def setUp(self) -> None:
        """
        One HCA that is called.
        """
        super().setUp()
        self.b = self.device()
        self.b.listen(SDP, "127.0.0.1", 7001, LISTENER)

    def test_closedListener(self) -> None:
        """
        The program closes the descriptor of one listening socket: the others are watched again once the pause
        that this makes is over.
        """
        poller = select.epoll()
        self.addCleanup(poller.close)
        now = 0.0
        listening = shmListeners.ListeningSockets(poller, lambda: now, lambda name: None)
        first, second = (socket.socket(socket.AF_UNIX) for _ in range(2))
        for each in (first, second):
            # A name of the kernel's choice, as unix(7) has it.
            each.bind("")
            each.listen()
            listening.add(SimpleNamespace(bind=lambda each=each: each, close=each.close))
        descriptor = first.detach()
        os.close(descriptor)
        listening.accept(descriptor, lambda *_: None)
        self.assertIsNotNone(listening.deadline)
        now = 1.0
        listening.tick(now)
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(second.getsockname())
            self.assertEqual(poller.poll(HANG_SECONDS), [(second.fileno(), select.EPOLLIN)])
        listening.close()

    def dial(self) -> socket.socket:
        """
        @return: a connection over which nothing is said.
        """
        rendezvous = self.b.fabric.rendezvous
        found: socket.socket = rendezvous.connect(rendezvous.find(self.b.guid))
        self.addCleanup(found.close)
        return found

    def call(self) -> User:
        """
        Call with an HCA more.
        """
        user, a = User(), self.device()
        a.connect(SDP, "127.0.0.1", 7001, user)
        settle(a, self.b)
        return user

    def test_silent(self) -> None:
        """
        The handshakes that one process leaves open are bounded; when they are over it
        can call again.
        """
        self.patch(shmListeners, "HANDSHAKES_PER_PROCESS", 3)
        before = descriptorsBefore()
        for _ in range(5):
            self.dial()
        self.b.fabric.attend()
        self.assertEqual(len(self.b.fabric._pairs), 3)
        self.assertEqual(self.b.counters["handshake_refused"], 2)
        error = self.call().error
        self.assertIsInstance(error, PeerRefusedError)
        self.assertIn("3 open handshakes already", str(error))
        self.clock.advance(handshake.HANDSHAKE_SECONDS)
        self.b.tick(self.clock.seconds())
        self.assertIsNotNone(self.call().path)
        self.doCleanups()
        self.assertLessEqual(descriptors(), before)

    def test_process(self) -> None:
        """
        The paths that one process dials are bounded; the HCA itself still dials.
        """
        self.patch(limits, "PEERS_PER_PROCESS", 2)
        found = [self.call().path is not None for _ in range(3)]
        self.assertEqual(found, [True, True, False])
        c = self.device()
        c.listen(SDP, "127.0.0.1", 7002, LISTENER)
        self.pathTo(self.b, c, 7002)

    def test_user(self) -> None:
        """
        A user who is not ours has a part of the paths only.
        """
        self.patch(limits, "PEERS", 2 * limits.PEERS_USER_DIVISOR)
        self.b.fabric._user = -1
        found = [self.call().path is not None for _ in range(3)]
        self.assertEqual(found, [True, True, False])

    def test_descriptors(self) -> None:
        """
        Where few descriptors are allowed there are fewer peers.
        """
        for allowed, peers in ((160, 20), (4, 1), (1 << 20, limits.PEERS), (-1, limits.PEERS)):
            self.patch(resource, "getrlimit", lambda what, allowed=allowed: (allowed, allowed))
            self.assertEqual(mostPeers(), peers)
        self.patch(resource, "getrlimit", lambda what: (8, 8))
        found = [self.call().path is not None for _ in range(2)]
        self.assertEqual(found, [True, False])

    def test_fileSize(self) -> None:
        """
        A process that may make no memory of a path's size any more says so, and its caller does not wait.
        """

        class Limited(Segment):
            """
            As setrlimit(2) makes it.
            """

            @classmethod
            def create(cls, size: int, seal: int = 0) -> Segment:
                raise OSError(errno.EFBIG, "File too large")

        self.b.fabric.segmentClass = Limited
        error = self.call().error
        self.assertIsInstance(error, PeerRefusedError)
        self.assertIn("no memory for a path: File too large (ulimit -f)", str(error))

    def exhausted(self) -> Device:
        """
        A call comes while no descriptor is free.
        """
        listeners: Any = self.b.fabric._listeners
        ((fd, (listener, rendezvous)),) = listeners._listeners.items()
        error = OSError(errno.EMFILE, "no descriptor")
        listeners._listeners[fd] = (Failing(listener, "accept", 0, error), rendezvous)
        self.dial()
        self.b.fabric.attend()
        self.assertEqual(self.b.counters["accept_failed"], 1)
        listeners._listeners[fd] = (listener, rendezvous)
        return self.b

    def test_noDescriptor(self) -> None:
        """
        While no descriptor is free, calls that wait do not keep us busy; soon they are
        taken.
        """
        b = self.exhausted()
        self.assertFalse(readable(b))
        self.assertEqual(b.deadline(), shmListeners.ACCEPT_PAUSE_SECONDS)
        b.tick(shmListeners.ACCEPT_PAUSE_SECONDS / 2)
        self.assertFalse(readable(b))
        b.tick(shmListeners.ACCEPT_PAUSE_SECONDS)
        self.assertTrue(readable(b))
        self.assertIsNotNone(self.call().path)

    def test_descriptorAgain(self) -> None:
        """
        The end of a pair frees descriptors: calls are taken at once.
        """
        path = self.call().path
        b = self.exhausted()
        self.assertFalse(readable(b))
        path.fabric.close()
        self.assertTrue(readable(b))
        b.fabric.attend()
        self.assertIsNone(b.deadline())
        self.assertTrue(readable(b))

    def test_closedWhileShut(self) -> None:
        """
        An HCA may be closed while it does not listen.
        """
        self.exhausted().close()


class DialTests(HCATestCase):
    """
    Calls of ours that fail leave no descriptor open.
    """

    fabric = SharedMemoryFabric

    def setUp(self) -> None:
        """
        Two HCAs.
        """
        super().setUp()
        self.a, self.b = self.device(), self.device()
        self.b.listen(SDP, "127.0.0.1", 7001, LISTENER)

    def fails(self) -> None:
        """
        A call fails, by name.
        """
        before = descriptorsBefore()
        self.assertRaises(HCAError, self.a.connect, SDP, "127.0.0.1", 7001, User())
        self.assertEqual(descriptors(), before)
        self.assertEqual(len(self.a.fabric._pairs), 0)

    def test_notSent(self) -> None:
        """
        The peer takes nothing.
        """
        self.patch(peersocket, "sendWithDescriptors", lambda *arguments: False)
        self.fails()

    def test_notWatched(self) -> None:
        """
        The kernel watches the socket, or the pidfd, no more.
        """
        real = self.a.fabric._pairs.poller
        for good in (0, 1):
            error = OSError(errno.ENOSPC, "no watches")
            self.a.fabric._pairs.poller = Failing(real, "register", good, error)
            self.fails()
        self.a.fabric._pairs.poller = real
        self.pathTo(self.a, self.b)

    def test_bellNotWatched(self) -> None:
        """
        The kernel refuses to watch the doorbell: waiting consumers get the error.
        """
        if not self.a.fabric.rings:
            return
        before = descriptorsBefore()
        user, spare = User(), select.epoll()
        self.a.connect(SDP, "127.0.0.1", 7001, user)
        self.a.fabric.registerWith(Failing(spare, "register", 0, OSError(errno.ENOSPC, "full")))
        settle(self.a, self.b)
        spare.close()
        self.assertIsInstance(user.error, HCAError)
        self.assertEqual((self.a.fabric.paths(), self.b.fabric.paths()), ([], []))
        self.assertEqual(descriptors(), before)
