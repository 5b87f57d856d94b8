"""
Tests for L{twisted_ib.hca.host.liveness}.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from unittest import skipUnless

from twisted.trial.unittest import SynchronousTestCase

from tests.support.descriptors import descriptors, descriptorsBefore, fork
from twisted_ib.errors import PathLostError, PeerIdentityError
from twisted_ib.hca.host import libc, liveness
from twisted_ib.hca.host.liveness import Liveness, PeerCredentials, checkPeer, peerCredentials


@skipUnless(sys.platform.startswith("linux"), "Linux only")
class LivenessTests(SynchronousTestCase):
    """
    The process at the other end of a socket.
    """

    def setUp(self) -> None:
        """
        A listening socket in a directory of our own.
        """
        self.before = descriptorsBefore()
        # sun_path is short, and trial's directories can be deep.
        home = os.open(os.path.abspath(os.curdir), os.O_RDONLY)
        self.path = f"/proc/self/fd/{home}/{os.path.basename(self.mktemp())}"
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.path)
        self.listener.listen()
        self.home = home

    def tearDown(self) -> None:
        """
        Nothing is left open.
        """
        os.unlink(self.path)
        self.listener.close()
        os.close(self.home)
        self.assertEqual(descriptors(), self.before)

    def peer(self, thenFork: bool = False) -> tuple[socket.socket, int, int]:
        """
        A process that has connected and waits to be killed.

        @param thenFork: whether it leaves the socket to a child that lives on.
        @return: the accepted socket, the process and that child's (0 if none).
        """
        reading, writing = os.pipe()

        def child() -> None:
            """
            Connect, fork if asked to, wait.
            """
            pair = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            pair.connect(self.path)
            grandchild = fork(signal.pause) if thenFork else 0
            os.write(writing, grandchild.to_bytes(4, "little"))
            signal.pause()

        pid = fork(child)
        pair, _ = self.listener.accept()
        grandchild = int.from_bytes(os.read(reading, 4), "little")
        os.close(reading)
        os.close(writing)
        return pair, pid, grandchild

    def kill(self, pid: int) -> None:
        """
        Kill a child and wait for its end.
        """
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def check(self) -> None:
        """
        A killed peer is seen to be dead, also while its own child holds the
        socket and so hides its end.
        """
        pair, pid, grandchild = self.peer(thenFork=True)
        with pair:
            self.assertEqual(peerCredentials(pair), PeerCredentials(pid, os.geteuid(), os.getegid()))
            living = Liveness.of(pair)
            self.assertFalse(living.dead())
            self.assertFalse(os.get_inheritable(living.fd))
            self.kill(pid)
            self.assertEqual(select.select([pair], [], [], 0)[0], [])  # no end of file
            self.assertTrue(living.dead())
            os.kill(grandchild, signal.SIGKILL)
            self.assertEqual(select.select([pair], [], [], 5)[0], [pair])
        living.close()
        living.close()
        self.assertFalse(living.dead())

    def test_killed(self) -> None:
        """
        By the best means of this kernel.
        """
        self.check()

    def test_killedByNumber(self) -> None:
        """
        By pidfd_open, on kernels without SO_PEERPIDFD.
        """
        self.patch(liveness, "SO_PEERPIDFD", 0x7FFF)
        self.check()

    def test_deadAlready(self) -> None:
        """
        A peer that died before we looked.
        """
        for option in (liveness.SO_PEERPIDFD, 0x7FFF):
            self.patch(liveness, "SO_PEERPIDFD", option)
            pair, pid, _ = self.peer()
            with pair:
                self.kill(pid)
                try:
                    found = Liveness.of(pair)
                except PathLostError:
                    continue
                self.assertTrue(found.dead())  # newer kernels give a pidfd of the dead
                found.close()

    def test_noPidfd(self) -> None:
        """
        Where the kernel gives no pidfd at all nothing is known, and nothing
        raises: then the end of the socket is what tells.
        """

        def deny(pid: int) -> int:
            """
            As a kernel before 5.3 does.
            """
            raise OSError(38, "Function not implemented")

        self.assertEqual(Liveness._byNumber(0).fd, -1)
        self.patch(liveness, "SO_PEERPIDFD", 0x7FFF)
        self.patch(libc, "pidfdOpen", deny)
        one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with one, two:
            found = Liveness.of(one)
            self.assertEqual((found.fd, found.dead()), (-1, False))

    def test_closed(self) -> None:
        """
        A descriptor may have any number, and is closed once.
        """
        closed: list[int] = []
        self.patch(os, "close", closed.append)
        for number in (0, 5, -1):
            found = Liveness(number)
            found.close()
            found.close()
            self.assertFalse(found.dead())
        self.assertEqual(closed, [0, 5])

    def test_ownProcess(self) -> None:
        """
        Two HCAs of one process: it lives.
        """
        one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with one, two:
            found = Liveness.of(one)
            self.assertFalse(found.dead())
            found.close()

    def test_checkPeer(self) -> None:
        """
        A user who is not let in is refused by name.
        """
        one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with one, two:
            self.assertEqual(checkPeer(one, lambda uid: uid == os.geteuid()).pid, os.getpid())
            error = self.assertRaises(PeerIdentityError, checkPeer, one, lambda uid: False)
            self.assertIn(f"user {os.geteuid()}", str(error))
            self.assertEqual(error.counter, "peersRefused")
