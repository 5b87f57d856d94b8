"""
The initiator's message that it is ready to receive, where Linux's siw may miss it.
"""

from __future__ import annotations

import select
import socket
from types import SimpleNamespace
from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.hca.base.timers import Timers
from twisted_ib.hca.fabric.iwarp.streampath import RECEIVE_BYTES, StreamPath
from twisted_ib.hca.wire.opcodes import SEND_ONLY

#: A Write of no octets.
READY = bytes.fromhex("000ec140000000010000000000000000 00000000")


class ReadyTests(SynchronousTestCase):
    """
    A connection whose startup frames were exchanged.
    """

    def setUp(self) -> None:
        self.clock = Clock()
        self.timers = Timers(self.clock.seconds)
        one, self.peer = socket.socketpair()
        for each in (one, self.peer):
            each.setblocking(False)
            self.addCleanup(each.close)
        buffer = bytearray(RECEIVE_BYTES)
        fabric = SimpleNamespace(
            timers=self.timers,
            buffer=buffer,
            view=memoryview(buffer),
            service=SimpleNamespace(ended=lambda stream, isCut: stream.mark(), closed=lambda stream: None),
            ringLater=lambda stream: None,
            later=lambda stream: None,
            watchSocket=lambda *arguments: None,
        )
        way: Any = SimpleNamespace(fabric=fabric, peer=None)
        self.stream = StreamPath(way, 5, one)

    def open(self) -> None:
        """
        The startup frames agree to no message.
        """
        no = dict.fromkeys(("crc", "markersIn", "markersOut", "holds"), False)
        self.stream.open(SimpleNamespace(**no, ird=1, ord=1, rtr=None), 1454, 0x5A)

    def after(self, seconds: float) -> bytes:
        """
        @return: what the peer has got in that time.
        """
        self.clock.advance(seconds)
        self.timers.tick(self.clock.seconds())
        self.stream.ring()
        try:
            return self.peer.recv(100)
        except BlockingIOError:
            return b""

    def test_again(self) -> None:
        """
        It is said again, ever more seldom and three times at most, until the peer says something.
        """
        self.open()
        self.assertEqual(self.after(0), READY)
        for seconds in (0.05, 0.2, 0.8):
            self.assertEqual(self.after(seconds - 0.005), b"")
            self.assertEqual(self.after(0.006), READY)
        self.assertEqual(self.after(1000), b"")

    def test_heard(self) -> None:
        """
        It is not when the peer has said something.
        """
        self.open()
        self.assertEqual(self.after(0), READY)
        self.stream.isEstablished = True
        self.assertEqual(self.after(0.05), b"")

    def test_posted(self) -> None:
        """
        It is where something else was sent, too, which may have been missed with it.
        """
        self.open()
        self.assertEqual(self.after(0), READY)
        self.stream.post(SEND_ONLY << 24 | 5, b"", b"data", 4)
        self.assertEqual(len(self.after(0)), 28)
        self.assertEqual(self.after(0.051), READY)

    def test_ended(self) -> None:
        """
        TCP's end follows at once where this side ends the connection.
        """
        self.open()
        self.assertEqual(self.after(0), READY)
        self.stream.finish()
        self.stream.ring()
        self.assertEqual(self.peer.recv(1), b"")

    def test_answered(self) -> None:
        """
        Of a peer that says so first the responder has heard it, and answers once.
        """
        self.stream.isPassive = True
        self.open()
        queuePair: Any = SimpleNamespace(number=5, state=None, device=None, work=None)
        self.stream.attach(queuePair)
        self.assertEqual(self.after(0), b"")
        for answer in (READY, b""):
            self.peer.send(READY)
            self.stream.ready(select.EPOLLIN, 64)
            self.assertEqual(self.after(0), answer)
        self.assertTrue(self.stream.isEstablished)
