"""
Tests of L{twisted_ib.hca.fabric.shm.redials}: dials that are tried again (issue 16, point 20).
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from typing import Any
from unittest import mock

from tests.hca.hcas import LISTENER, SDP, HCATestCase, User, settle
from tests.support.descriptors import descriptors, descriptorsBefore
from twisted_ib.errors import (
    BacklogFullError,
    HCAError,
    HiddenListenerError,
    NoListenerError,
    PathLostError,
    PeerRefusedError,
)
from twisted_ib.hca.fabric.shm import redials
from twisted_ib.hca.fabric.shm.shm import SharedMemoryFabric
from twisted_ib.hca.host import handshake, search


class Raising(User):
    """
    A consumer that raises whatever it is told.
    """

    def pathReady(self, path: Any) -> None:
        super().pathReady(path)
        raise ZeroDivisionError

    def connectFailed(self, error: Exception) -> None:
        super().connectFailed(error)
        raise ZeroDivisionError


class RedialTests(HCATestCase):
    """
    Two HCAs, of which one dials the other.
    """

    fabric = SharedMemoryFabric

    def setUp(self) -> None:
        super().setUp()
        self.a, self.b = self.device(), self.device()
        self.b.listen(SDP, "127.0.0.1", 7001, LISTENER)
        self.user = User()

    def call(self) -> Any:
        """
        @return: What cancels the call.
        """
        return self.a.connect(SDP, "127.0.0.1", 7001, self.user)

    def hungUp(self) -> Any:
        """
        While this lasts the other HCA accepts each call and hangs up without a word.
        """

        def hangUp(pair: socket.socket, rendezvous: Any) -> None:
            pair.close()

        return mock.patch.object(self.b.fabric, "_called", hangUp)

    def later(self, seconds: float) -> None:
        """
        Let time pass.
        """
        self.clock.advance(seconds)
        for device in (self.a, self.b):
            device.tick(self.clock.seconds())
        settle(self.a, self.b)

    def test_hungUp(self) -> None:
        """
        A peer that hangs up in the handshake is dialled again, ever more seldom, and reached when it takes
        the call.
        """
        with self.hungUp():
            self.call()
            settle(self.a, self.b)
            for _ in range(12):
                self.assertEqual((self.user.path, self.user.error), (None, None))
                self.later(redials.REDIAL_SECONDS_MOST)
        self.assertIsNotNone(self.a.fabric.deadline())
        self.later(redials.REDIAL_SECONDS_MOST)
        self.assertIsNotNone(self.user.path)
        self.assertEqual((len(self.a.fabric._redials), self.a.fabric.deadline()), (0, None))

    def test_backlog(self) -> None:
        """
        So is one whose backlog is full, by each way of dialling; a later call waits with the first.
        """
        for dial in (self.call, lambda: self.a.fabric.reach(self.b.guid, self.user)):
            full = mock.patch.object(search, "connect", side_effect=BlockingIOError(errno.EAGAIN, "full"))
            self.user, other = User(), User()
            with full:
                dial()
                self.a.connect(SDP, "127.0.0.1", 7001, other)
                self.later(redials.REDIAL_SECONDS)
                self.assertEqual((self.user.path, self.user.error), (None, None))
            self.later(1.0)
            self.assertIsNotNone(self.user.path)
            self.assertIs(other.path, self.user.path)
            self.a.fabric._lose(self.user.path.peerSocket, PathLostError("enough"))
            settle(self.a, self.b)

    def test_gone(self) -> None:
        """
        A peer that has gone meanwhile listens no more.
        """
        with self.hungUp():
            self.call()
            settle(self.a, self.b)
        self.b.close()
        self.clock.advance(1.0)
        self.a.tick(self.clock.seconds())
        self.assertIsInstance(self.user.error, NoListenerError)
        self.assertEqual(len(self.a.fabric._redials), 0)

    def test_cancelled(self) -> None:
        """
        Who cancels, while a dial goes on or between two, is not called, and nothing is left.
        """
        for settles in (False, True):
            with self.hungUp():
                call = self.call()
                if settles:
                    settle(self.a, self.b)
                call.cancel()
                self.assertEqual((len(self.a.fabric._redials), len(self.a.fabric._pairs)), (0, 0))
                self.later(1.0)
        self.assertEqual((self.user.path, self.user.error, self.a.fabric.deadline()), (None, None, None))

    def test_given(self) -> None:
        """
        There is an end to it for consumers without a timeout.
        """
        with self.hungUp():
            self.call()
            settle(self.a, self.b)
            self.later(handshake.DIAL_SECONDS)
            self.assertIsInstance(self.user.error, PathLostError)
        self.assertEqual(len(self.a.fabric._redials), 0)
        with mock.patch.object(search, "connect", side_effect=BlockingIOError(errno.EAGAIN, "full")):
            self.user = User()
            self.call()
            self.later(1.0)
            self.later(handshake.DIAL_SECONDS)
            self.assertIsInstance(self.user.error, BacklogFullError)

    def test_closed(self) -> None:
        """
        A device that closes tells those who wait.
        """
        with self.hungUp():
            self.call()
            settle(self.a, self.b)
            self.a.close()
        self.assertIsInstance(self.user.error, PathLostError)

    def test_raising(self) -> None:
        """
        A consumer that raises keeps the path, or the news that there is none, from no other.
        """
        users = Raising(), User(), User()
        with self.hungUp():
            for user in users:
                self.a.connect(SDP, "127.0.0.1", 7001, user)
            settle(self.a, self.b)
        self.assertRaises(ZeroDivisionError, self.later, 1.0)
        path = users[0].path
        self.assertIsNotNone(path)
        self.assertEqual([user.path for user in users], [path] * 3)
        self.a.fabric._lose(path.peerSocket, PathLostError("enough"))
        with self.hungUp():
            for user in users:
                self.a.connect(SDP, "127.0.0.1", 7001, user)
            settle(self.a, self.b)
        self.b.close()
        self.clock.advance(1.0)
        self.assertRaises(ZeroDivisionError, self.a.tick, self.clock.seconds())
        self.assertEqual([type(user.error) for user in users], [NoListenerError] * 3)

    def test_closedByRaising(self) -> None:
        """
        Nor does one that is told of the device's end keep anything open.
        """
        before = descriptorsBefore()
        for waits in (False, True):
            device, users = self.device(), (Raising(), User())
            device.createQueuePair(User())
            with self.hungUp():
                for user in users:
                    device.connect(SDP, "127.0.0.1", 7001, user)
                if waits:
                    settle(device, self.b)
                self.assertRaises(ZeroDivisionError, device.close)
            self.assertEqual([type(user.error) for user in users], [PathLostError] * 2)
            self.assertEqual(device.queuePairs, {})
            settle(self.b)
            self.assertEqual(descriptors(), before)

    def test_callersTime(self) -> None:
        """
        A peer that is stopped is waited for as long as the caller has patience, and answers when it goes on.
        """
        self.call()
        self.clock.advance(handshake.HANDSHAKE_SECONDS + 25.0)
        self.a.tick(self.clock.seconds())
        self.assertIsNone(self.user.error)
        settle(self.a, self.b)
        self.assertIsNotNone(self.user.path)

    def test_ownDelay(self) -> None:
        """
        A process that was late itself reads what has come before it gives a caller up.
        """
        self.call()
        self.b.fabric.attend()  # Accepted; the hello is there.
        self.clock.advance(handshake.HANDSHAKE_SECONDS + 1.0)
        self.b.tick(self.clock.seconds())
        settle(self.a, self.b)
        self.assertIsNotNone(self.user.path)

    def test_refused(self) -> None:
        """
        A refusal is told with its reason, though the peer has hung up before it read anything.
        """
        self.b.fabric._called = lambda pair, rendezvous: (  # type: ignore[method-assign]
            pair.send(handshake.Refuse(8, "no room").pack()),
            pair.close(),
        )
        self.call()
        settle(self.a, self.b)
        self.assertIsInstance(self.user.error, PeerRefusedError)
        self.assertIn("no room", str(self.user.error))

    def test_notAllowed(self) -> None:
        """
        A user whom the listener's owner does not allow is told so.
        """
        owner = os.geteuid()
        with mock.patch.object(self.b.fabric.rendezvous, "allows", lambda uid: False):
            self.call()
            settle(self.a, self.b)
        self.assertIsInstance(self.user.error, PeerRefusedError)
        self.assertIn(f"its owner, user {owner}, does not allow user {owner}", str(self.user.error))

    def test_hidden(self) -> None:
        """
        A listener of another network namespace is named as one.
        """
        self.a.fabric.rendezvous.namespace += 1
        error = self.assertRaises(HiddenListenerError, self.call)
        self.assertIn("it listens in another network namespace", str(error))

    def test_errors(self) -> None:
        """
        Whatever the system says in the handshake leaves as an error of this package, by name.
        """
        for number in (errno.ECONNRESET, errno.EPIPE, errno.EMFILE, errno.ENOMEM):
            failure: Callable[..., Any] = mock.Mock(side_effect=OSError(number, os.strerror(number)))
            for name in ("rendezvous.find", "rendezvous.connect"):
                target, _, method = name.partition(".")
                with mock.patch.object(getattr(self.a.fabric, target), method, failure):
                    self.assertRaises(HCAError, self.a.fabric.reach, self.b.guid, User())
