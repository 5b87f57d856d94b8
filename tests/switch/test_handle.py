"""
The socket-like handle of a connection over SDP.
"""

from __future__ import annotations

import errno
import socket
import sys
from types import SimpleNamespace
from typing import Any

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.switch.handle import ConnectionHandle, ListeningHandle


class FakeTransport:
    """
    The part of a transport that a handle uses.
    """

    connected = 1

    def __init__(self) -> None:
        """
        Nothing is set.
        """
        self.noDelay = self.keepAlive = False
        self.queuePair = SimpleNamespace(path=object())

    def getHost(self) -> Any:
        """
        Some address.
        """
        return IPv4Address("TCP", "127.0.0.1", 50000)

    def getPeer(self) -> Any:
        """
        Another.
        """
        return IPv4Address("TCP", "127.0.0.1", 80)

    def getTcpNoDelay(self) -> bool:
        """
        As set.
        """
        return self.noDelay

    def setTcpNoDelay(self, enabled: bool) -> None:
        """
        Set.
        """
        self.noDelay = enabled

    def getTcpKeepAlive(self) -> bool:
        """
        As set.
        """
        return self.keepAlive

    def setTcpKeepAlive(self, enabled: bool) -> None:
        """
        Set.
        """
        self.keepAlive = enabled


class HandleTests(SynchronousTestCase):
    """
    The handles of connections and ports.
    """

    def setUp(self) -> None:
        """
        Make a connection's.
        """
        self.transport = FakeTransport()
        self.handle = ConnectionHandle(self.transport)

    def assertErrno(self, number: int, call: Any, *arguments: Any) -> None:
        """
        A call must fail with an error number.
        """
        self.assertEqual(self.assertRaises(OSError, call, *arguments).errno, number)

    def test_names(self) -> None:
        """
        The addresses are as sockets write them; there is no descriptor.
        """
        self.assertEqual(self.handle.fileno(), -1)
        self.assertEqual(self.handle.getsockname(), ("127.0.0.1", 50000))
        self.assertEqual(self.handle.getpeername(), ("127.0.0.1", 80))
        kind = (self.handle.family, self.handle.type, self.handle.proto)
        self.assertEqual(kind, (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP))
        self.transport.connected = 0
        self.assertErrno(errno.ENOTCONN, self.handle.getpeername)

    def test_transportsOptions(self) -> None:
        """
        TCP_NODELAY and SO_KEEPALIVE are the transport's.
        """
        for level, option, name in (
            (socket.IPPROTO_TCP, socket.TCP_NODELAY, "noDelay"),
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, "keepAlive"),
        ):
            for value in (1, 0, b"\x01\0\0\0", b"\0\0\0\0"):
                self.handle.setsockopt(level, option, value)
                on = value in (1, b"\x01\0\0\0")
                self.assertEqual(getattr(self.transport, name), on)
                self.assertEqual(self.handle.getsockopt(level, option), int(on))

    def test_constants(self) -> None:
        """
        Options that can be read only.
        """
        for option, value in (
            (socket.SO_ERROR, 0),
            (socket.SO_TYPE, socket.SOCK_STREAM),
            (socket.SO_PROTOCOL, socket.IPPROTO_TCP),
            (socket.SO_DOMAIN, socket.AF_INET),
            (socket.SO_ACCEPTCONN, 0),
        ):
            self.assertEqual(self.handle.getsockopt(socket.SOL_SOCKET, option), value)
            self.assertErrno(errno.ENOPROTOOPT, self.handle.setsockopt, socket.SOL_SOCKET, option, 1)

    def test_remembered(self) -> None:
        """
        Options without an effect are remembered, as a number or bytes.
        """
        size = self.handle.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        assert isinstance(size, int)
        self.assertTrue(size > 0)
        self.handle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.assertEqual(self.handle.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF), 4096)
        packed = self.handle.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4)
        self.assertEqual(packed, (4096).to_bytes(4, sys.byteorder))
        self.handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"12345678")
        self.assertEqual(self.handle.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8), b"12345678")

    def test_unknown(self) -> None:
        """
        All else is no option of this protocol.
        """
        self.assertErrno(errno.ENOPROTOOPT, self.handle.getsockopt, socket.IPPROTO_TCP, socket.TCP_INFO)
        self.assertErrno(errno.ENOPROTOOPT, self.handle.setsockopt, 99, 99, 1)

    def test_bytes(self) -> None:
        """
        Bytes do not go this way.
        """
        self.assertErrno(errno.EBADF, self.handle.send, b"bytes")
        self.assertErrno(errno.EBADF, self.handle.recv, 1)

    def test_blocking(self) -> None:
        """
        It never waits.
        """
        self.handle.setblocking(False)
        self.assertEqual((self.handle.getblocking(), self.handle.gettimeout()), (False, 0.0))

    def test_listening(self) -> None:
        """
        A port's handle listens, has no peer, and can be closed.
        """
        handle = ListeningHandle(IPv6Address("TCP", "::1", 80))
        self.assertEqual(handle.getsockname(), ("::1", 80, 0, 0))
        self.assertEqual(handle.family, socket.AF_INET6)
        self.assertEqual(handle.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN), 1)
        self.assertErrno(errno.ENOTCONN, handle.getpeername)
        handle.shutdown(2)
        handle.close()
