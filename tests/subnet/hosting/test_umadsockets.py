"""
Tests for the sockets of ibsim's protocol.
"""

from __future__ import annotations

import array
import os
import socket
from collections import Counter
from itertools import count
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.subnet.network.test_umad import GET, NODE, PERF, Subnet, mad
from tests.support.descriptors import descriptorsBefore
from twisted_ib.hca.host import libc
from twisted_ib.subnet.hosting.umadsockets import UmadSockets
from twisted_ib.subnet.network.umad import (
    CLIENT,
    CONNECT,
    CONTROL,
    ERROR,
    GET_PORT,
    MAGIC,
    MESSAGE,
    SET_ISSM,
    TIMED_OUT,
)

_names = count()


class Client:
    """
    A client with the sockets that libumad2sim has.
    """

    def __init__(self, case: SocketsTests, identity: int) -> None:
        self.case, self.base, self.identity = case, case.name, identity
        self.number = 0
        self.control = self._socket("ctl")
        self.data = self._socket("in")
        self.control.connect(self._name("ctl"))

    def _name(self, rest: str) -> bytes:
        return f"\0{self.base}:{rest}\0".encode()

    def _socket(self, kind: str) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        sock.setblocking(False)
        sock.bind(self._name(f"{kind}{self.identity}"))
        self.case.addCleanup(sock.close)
        return sock

    def ask(self, kind: int, data: bytes = b"") -> tuple[int, bytes]:
        """
        Send a control message.

        @return: type and data of the reply.
        """
        self.control.send(CONTROL.pack(MAGIC, self.number, kind, len(data), data))
        self.case.turn()
        _, _, kind, _, data = CONTROL.unpack(self.control.recv(1000))
        return kind, data

    def connect(self, node: str = "a") -> None:
        """
        Attach to a node.
        """
        kind, data = self.ask(CONNECT, CLIENT.pack(self.identity, 0, 0, node.encode()))
        self.case.assertEqual(kind, CONNECT)
        self.number = CLIENT.unpack_from(data)[0]
        self.data.connect(self._name(f"out{self.number}"))


class SocketsTests(SynchronousTestCase):
    """
    A server with real sockets, whose readers the tests call.
    """

    def setUp(self) -> None:
        """
        Bind it.
        """
        self.name = f"umadtest{os.getpid()}.{next(_names)}"
        self.readers: list[Any] = []
        self.lost: Counter[str] = Counter()
        self.subnet = Subnet()
        self.allowed = {os.geteuid()}
        self.sockets = self.bind()

    def bind(self) -> UmadSockets:
        """
        @return: a server.
        """
        sockets = UmadSockets(
            self.subnet,
            self.name,
            self.readers.append,
            self.readers.remove,
            lambda name: self.lost.update((name,)),
            lambda user: user in self.allowed,
        )
        self.addCleanup(sockets.close)
        return sockets

    def turn(self) -> None:
        """
        Let all readers of sockets read.
        """
        for reader in list(self.readers):
            if reader in self.readers:
                reader.doRead()

    def test_attached(self) -> None:
        """
        A client attaches, and has its MAD answered.
        """
        # Without a process to watch: its descriptor is not readable, and here all readers read.
        self.patch(libc, "pidfdOpen", self._refuse)
        client = Client(self, 1)
        client.connect("b")
        self.assertEqual(client.ask(GET_PORT), (GET_PORT, b"\x02\0\x04".ljust(64, b"\0")))
        client.data.send(MESSAGE.pack(9, 0, 1, 1, 0, 256, mad(PERF, GET, NODE)))
        self.turn()
        self.assertEqual(MESSAGE.unpack(client.data.recv(1000))[4], TIMED_OUT)

    def _refuse(self, pid: int) -> int:
        raise OSError("no descriptors")

    def test_killed(self) -> None:
        """
        A client whose process ends is gone, and its subnet manager with it.
        """
        reading, writing = os.pipe()
        self.addCleanup(os.close, writing)
        pids: list[int] = []

        def pidfdOpen(pid: int) -> int:
            pids.append(pid)
            return reading

        self.patch(libc, "pidfdOpen", pidfdOpen)
        client = Client(self, 1)
        client.connect()
        before = self.readers[-1]
        self.assertEqual((pids, before.fileno()), ([os.getpid()], reading))
        self.readers.remove(before)
        client.ask(SET_ISSM, b"\1\0\0\0")
        self.assertEqual(self.subnet.managers, {"a"})
        self.readers.append(before)
        before.doRead()
        self.assertEqual((self.sockets.server.clients, self.subnet.managers), ((), set()))
        self.assertEqual(len(self.readers), 1)
        self.assertRaises(OSError, os.fstat, reading)

    def attached(self, identity: int = 1, node: str = "a") -> Client:
        """
        @return: a client whose process is not watched.
        """
        self.patch(libc, "pidfdOpen", self._refuse)
        client = Client(self, identity)
        client.connect(node)
        return client

    def test_otherUser(self) -> None:
        """
        Messages of another user are dropped and counted, at either socket.
        """
        client = self.attached()
        self.allowed.clear()
        client.control.send(CONTROL.pack(MAGIC, 0, GET_PORT, 0, b""))
        client.data.send(MESSAGE.pack(9, 0, 1, 1, 0, 256, mad(PERF, GET, NODE)))
        self.turn()
        self.assertEqual(self.lost, {"umad_other_user": 2})
        self.assertRaises(BlockingIOError, client.control.recv, 1000)
        self.assertRaises(BlockingIOError, client.data.recv, 1000)

    def test_notConnected(self) -> None:
        """
        Nobody but its client can send to a client's socket.
        """
        self.attached()
        stranger = Client(self, 2)
        error = self.assertRaises(OSError, stranger.data.sendto, b"", stranger._name("out0"))
        self.assertIsInstance(error, PermissionError)

    def test_noSocket(self) -> None:
        """
        A client that names a socket which is not there is refused.
        """
        client = Client(self, 1)
        self.assertEqual(client.ask(CONNECT, CLIENT.pack(3, 0, 0, b"a"))[0], ERROR)
        self.assertEqual((self.lost, len(self.readers)), ({"umad_refused": 1}, 1))

    def test_gone(self) -> None:
        """
        A client whose socket is closed is gone when something is sent to it.
        """
        client = self.attached()
        client.data.send(MESSAGE.pack(9, 0, 1, 1, 0, 256, mad(PERF, GET, NODE)))
        client.data.close()
        self.turn()
        self.assertEqual(self.sockets.server.clients, ())
        self.assertFalse(self.sockets.send(0, b""))

    def test_slow(self) -> None:
        """
        Messages that a client does not read are dropped and counted: nothing waits for it.
        """
        client = self.attached()
        message = MESSAGE.pack(9, 0, 1, 1, 0, 256, mad(PERF, GET, NODE))
        while not self.lost:
            client.data.send(message)
            self.turn()
        self.assertEqual((self.lost, self.sockets.server.clients), ({"umad_overrun": 1}, (0,)))

    def test_longer(self) -> None:
        """
        Messages that begin like good ones, and descriptors, are dropped.
        """
        client = self.attached()
        good = MESSAGE.pack(9, 0, 1, 1, 0, 256, mad(PERF, GET, NODE))
        before = descriptorsBefore()
        descriptors = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0]))]
        client.data.sendmsg([good + b"\0"], descriptors)
        client.control.sendmsg([CONTROL.pack(MAGIC, 0, GET_PORT, 0, b"") + b"\0"], descriptors)
        self.turn()
        self.assertEqual(self.lost, {"umad_malformed": 2})
        self.assertEqual(descriptorsBefore(), before)

    def test_nameless(self) -> None:
        """
        A control message of a socket without a name is dropped.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            request = CLIENT.pack(1, 0, 0, b"a")
            sock.sendto(
                CONTROL.pack(MAGIC, 0, CONNECT, len(request), request), f"\0{self.name}:ctl\0".encode()
            )
            self.turn()
        self.assertEqual((self.lost, self.sockets.server.clients), ({"umad_malformed": 1}, ()))

    def test_closed(self) -> None:
        """
        Closing frees the names; a second server has to wait for that.
        """
        self.attached()
        self.assertRaises(OSError, self.bind)
        self.sockets.close()
        self.sockets.close()
        self.assertEqual(self.readers, [])
        self.bind()
