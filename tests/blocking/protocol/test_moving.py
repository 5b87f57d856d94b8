"""
Tests of connections of blocking sockets that go on over TCP: see L{twisted_ib.blocking.connecting}.
"""

from __future__ import annotations

import os
import socket as kernel
from typing import Any

from tests.blocking.case import BlockingTestCase, exactly
from twisted_ib.blocking import descriptors
from twisted_ib.blocking.socket import MovedSocket

DATA = b"0123456789"


def moves(skt: Any) -> None:
    """
    Have the end of a connection that has connected go on over TCP.
    """
    connection = skt.sdp
    with connection.loop:
        connection.stream.sleeps()


class MovingTests(BlockingTestCase):
    """
    One connection, whose ends are in this process.
    """

    def moved(self) -> tuple[Any, Any]:
        """
        Return two sockets, who connected and who accepted, whose connection has moved.
        """
        one, other = self.pair()
        names = [(each.getsockname(), each.getpeername()) for each in (one, other)]
        moves(one)
        one.sendall(DATA)
        self.assertEqual(exactly(other, len(DATA)), DATA)
        other.sendall(DATA)
        self.assertEqual(exactly(one, len(DATA)), DATA)
        one.sendall(DATA)
        self.assertEqual(exactly(other, len(DATA)), DATA)
        self.assertEqual([type(each) for each in (one, other)], [MovedSocket, MovedSocket])
        self.assertEqual([(each.getsockname(), each.getpeername()) for each in (one, other)], names)
        return one, other

    def test_moved(self) -> None:
        """
        Both ends keep their addresses, and the kernel carries them: the descriptors are those of TCP, and
        nothing of SDP is left.
        """
        one, other = self.moved()
        for each in (one, other):
            plain = kernel.socket(fileno=os.dup(each.fileno()))
            with plain:
                self.assertEqual(plain.getpeername()[0], "127.0.0.1")
            self.assertIsNone(each.sdp)
            self.assertNotIn(each.fileno(), descriptors.offloaded)
        os.write(one.fileno(), DATA)
        self.assertEqual(os.read(other.fileno(), 100), DATA)
        one.shutdown(kernel.SHUT_WR)
        self.assertEqual(other.recv(10), b"")
        other.sendall(DATA)
        self.assertEqual(one.recv(100), DATA)
        other.close()
        self.assertEqual(one.recv(100), b"")
