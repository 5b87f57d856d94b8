"""
Tests for L{twisted_ib.blocking.loop}: who drives it.
"""

from __future__ import annotations

import os
import sys
from subprocess import PIPE, Popen, run
from time import monotonic

from twisted.python import threadable

from tests.blocking.case import LOOPBACK, BlockingTestCase, exactly
from tests.support.waiting import HANG_SECONDS, waitUntil
from twisted_ib import socket
from twisted_ib.blocking import loop as module

#: A program that writes more than the medium holds, and ends; its argument is the port.
_WRITER = """
import sys
from twisted_ib import socket
skt = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
assert skt.sdp is not None
skt.setblocking(False)
skt.send(b"x" * 200000)
"""
#: A program that sends back what it gets; it prints its port.
_ECHO = """
from twisted_ib import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
connection, _ = listener.accept()
while data := connection.recv(100):
    connection.sendall(data)
connection.close()
"""
#: A program that has no reactor.
_PRIVATE = """
import sys, threading
from twisted_ib import socket
listener = socket.create_server(("127.0.0.1", 0))
assert listener.sdp is not None
assert "twisted.internet.reactor" not in sys.modules
assert threading.active_count() == 1
"""


class LoopTests(BlockingTestCase):
    """
    Leader, followers and deputy.
    """

    def test_private(self) -> None:
        """
        The reactor is not installed, has no thread, and does not make its driver Twisted's I/O thread.
        """
        before = threadable.ioThread
        one, other = self.pair()
        one.sendall(b"x")
        self.assertEqual(other.recv(1), b"x")
        self.assertEqual(threadable.ioThread, before)
        ended = run([sys.executable, "-c", _PRIVATE], timeout=HANG_SECONDS, check=False)
        self.assertEqual(ended.returncode, 0)

    def test_deadline(self) -> None:
        """
        A wait ends at its deadline, of the leader and of a follower.
        """
        one, other = self.pair()
        leader = self.inThread(one.recv, 1)
        waitUntil(lambda: self.loop.sleeping)
        other.settimeout(0.02)
        began = monotonic()
        self.assertRaises(TimeoutError, other.recv, 1)
        self.assertGreaterEqual(monotonic() - began, 0.02)
        other.sendall(b"x")
        self.assertEqual(leader.result(HANG_SECONDS), b"x")

    def test_handedOver(self) -> None:
        """
        When the leader has what it waited for, and does not come back, a follower leads.
        """
        one, other = self.pair()
        third, fourth = self.pair()
        leader = self.inThread(one.recv, 1)
        waitUntil(lambda: self.loop.sleeping)
        follower = self.inThread(third.recv, 1)
        waitUntil(lambda: self.loop._followers)
        other.sendall(b"a")
        self.assertEqual(leader.result(HANG_SECONDS), b"a")
        fourth.sendall(b"b")
        self.assertEqual(follower.result(HANG_SECONDS), b"b")

    def test_keepsLeading(self) -> None:
        """
        A thread that receives and sends in turns is woken by no other one for each message: it leads, though
        another one waited first.
        """
        one, other = self.pair()
        idle, _ = self.pair()
        first = self.inThread(idle.recv, 1)
        waitUntil(lambda: self.loop.sleeping)
        woken = []
        wake = module._Waiter.wake
        self.patch(module._Waiter, "wake", lambda waiter: (woken.append(waiter), wake(waiter)))
        began = monotonic()
        for _ in range(200):
            one.sendall(b"x")
            exactly(other, 1)
        # The deputy is asked for once in each period of grace, at most.
        self.assertLess(len(woken), 20 + (monotonic() - began) / module.GRACE_SECONDS)
        self.assertLess(len(woken), 150)
        idle.shutdown(2)
        first.result(HANG_SECONDS)

    def test_besideSleep(self) -> None:
        """
        What one thread sends while the leader sleeps is answered: the device is armed again.
        """
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        peer = Popen([sys.executable, "-c", _ECHO], env=environment, stdout=PIPE, text=True)
        self.addCleanup(peer.wait, HANG_SECONDS)
        self.addCleanup(peer.kill)
        assert peer.stdout is not None
        self.addCleanup(peer.stdout.close)
        idle, _ = self.pair()
        leader = self.inThread(idle.recv, 1)
        waitUntil(lambda: self.loop.sleeping)
        address = LOOPBACK, int(peer.stdout.readline())
        with socket.create_connection(address, HANG_SECONDS) as skt:
            self.assertIsNotNone(skt.sdp)
            for _ in range(20):
                # The thread that waits for nothing leads again.
                waitUntil(lambda: self.loop.sleeping)
                skt.sendall(b"x")
                self.assertEqual(skt.recv(1), b"x")
        idle.shutdown(2)
        leader.result(HANG_SECONDS)

    def test_end(self) -> None:
        """
        The bytes that a program has written leave when it ends.
        """
        listener = self.server()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        port = str(listener.getsockname()[1])
        ended = self.inThread(
            lambda: run(
                [sys.executable, "-c", _WRITER, port], env=environment, timeout=HANG_SECONDS, check=True
            )
        )
        connection, _ = listener.accept()
        self.assertIsNotNone(connection.sdp)
        self.assertEqual(len(exactly(connection, 200000)), 200000)
        connection.close()
        ended.result(HANG_SECONDS)
