"""
Tests of L{twisted_ib.reactor.tcprows} with sockets that say what they are told to.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from typing import Any

from twisted.internet import tcp, unix
from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.hca.base.socketrows import COLUMNS, noWhy
from twisted_ib.reactor import tcprows
from twisted_ib.reactor.tcprows import hasSocket, identityOf, isTCP, tcpRows


class Socket(socket.socket):
    """
    A socket with a state of TCP's.

    @ivar info: Its C{struct tcp_info}.
    @ivar here: Its address.
    @ivar there: The peer's; L{None} if it has none yet.
    """

    info = bytes([1])
    here: Any = ("192.0.2.1", 1)
    there: Any = ("192.0.2.2", 2)

    def getsockopt(self, level: int, option: int, size: int = 0) -> Any:
        """
        Say the state, as much as is asked for.
        """
        return self.info[:size] if option == socket.TCP_INFO else super().getsockopt(level, option)

    def getsockname(self) -> Any:
        """
        Say the address.
        """
        return self.here

    def getpeername(self) -> Any:
        """
        Say the peer's.
        """
        if self.there is None:
            raise OSError("not connected")
        return self.there


class RowTests(SynchronousTestCase):
    """
    The row of one connection.
    """

    def connection(self, kind: Any = tcp.Connection, **facts: Any) -> Any:
        """
        @return: A connection of the reactor's with a socket.
        """
        made = kind.__new__(kind)
        made.socket = Socket()
        self.addCleanup(made.socket.close)
        for name, value in facts.items():
            setattr(made.socket, name, value)
        made.fileno = made.socket.fileno
        return made

    def row(self, selectable: Any) -> Any:
        """
        @return: Its row, by column.
        """
        found = next(tcpRows([selectable], noWhy, noWhy))
        return None if found is None else dict(zip(COLUMNS, found, strict=True))

    def test_states(self) -> None:
        """
        Each state of TCP's is named; a closed one, and what the kernel adds later, has no row.
        """
        for number, name in ((1, "ESTABLISHED"), (8, "CLOSE_WAIT"), (10, "LISTEN")):
            row = self.row(self.connection(info=bytes([number, 99])))
            self.assertEqual((row["state"], row["local"]), (name, "192.0.2.1:1"))
            self.assertEqual(row["remote"], None if name == "LISTEN" else "192.0.2.2:2")
            self.assertEqual(row["kind"], "listener" if name == "LISTEN" else "connection")
            self.assertEqual(row["in_flight"], None if name == "LISTEN" else 0)
        self.assertIsNone(self.row(self.connection(info=bytes([7]))))
        self.assertIsNone(self.row(self.connection(info=bytes([77]))))

    def test_retransmits(self) -> None:
        """
        Their number is tcpi_total_retrans, where the kernel's structure has it.
        """
        # include/uapi/linux/tcp.h: 8 octets, then numbers of four; the 24th of these.
        info = bytes([1, 0, 0, 0, 0, 0, 0, 0]) + struct.pack("=24I", *range(24)) + bytes(40)
        self.assertEqual(struct.unpack_from("=I", info, 100)[0], 23)
        self.assertEqual(self.row(self.connection(info=info))["retransmits"], 23)
        self.assertEqual(self.row(self.connection(info=info[:104]))["retransmits"], 23)
        # tcpi_rtt is the 16th, in microseconds; tcpi_bytes_acked and tcpi_bytes_received are at 120.
        self.assertEqual(self.row(self.connection(info=info))["round_trip"], 15e-6)
        counted = self.row(self.connection(info=info[:120] + struct.pack("=2Q", 1 << 40, 7)))
        self.assertEqual((counted["bytes_sent"], counted["bytes_received"]), (1 << 40, 7))
        self.assertIsNone(self.row(self.connection(info=info[:104]))["bytes_sent"])
        self.assertIsNone(self.row(self.connection(info=info[:103]))["retransmits"])

    def test_addresses(self) -> None:
        """
        The scope of a link-local address is part of it (RFC 4007 section 11), once.
        """
        for name, text in (
            (("fe80::1", 7, 0, 3), "[fe80::1%3]:7"),
            (("fe80::1%lo", 7, 0, 1), "[fe80::1%lo]:7"),
            (("2001:db8::1", 7, 5, 0), "[2001:db8::1]:7"),
            (("192.0.2.1", 7), "192.0.2.1:7"),
        ):
            row = self.row(self.connection(here=name, there=name))
            self.assertEqual((row["local"], row["remote"]), (text, text))

    def test_connecting(self) -> None:
        """
        The peer of one that is not connected yet is the address that it asked for, if that is one.
        """
        for asked, text in ((("192.0.2.9", 9), "192.0.2.9:9"), (None, None), ("192.0.2.9", None)):
            client = self.connection(info=bytes([2]), there=None)
            client.realAddress = asked
            self.assertEqual(self.row(client)["remote"], text)
        self.assertIsNone(self.row(self.connection(info=bytes([2]), there=None))["remote"])

    def test_unsent(self) -> None:
        """
        Without the kernel's answer nothing is said of what is in flight.
        """

        def refuse(*_: Any) -> Any:
            raise OSError("no such call")

        self.patch(fcntl, "ioctl", refuse)
        self.assertIsNone(self.row(self.connection())["in_flight"])

    def test_kinds(self) -> None:
        """
        Ports and connections with an Internet socket are TCP's; those of UNIX, those without a socket, and
        other objects are not.
        """
        for kind in (tcp.Port, tcp.Connection, tcp.Client):
            self.assertIs(isTCP(self.connection(kind)), True)
        local = self.connection(unix.Server)
        with socket.socket(socket.AF_UNIX) as plain:
            local.socket = plain
            self.assertIs(isTCP(local), False)
            self.assertIs(hasSocket(local), False)
        without = tcp.Port.__new__(tcp.Port)
        self.assertIs(isTCP(without), False)
        without.socket = object()
        self.assertIs(isTCP(without), False)
        self.assertIs(isTCP(self.connection(_Other)), False)


class _Other:
    # No object of Twisted's.
    socket: Any


class FoundTests(SynchronousTestCase):
    """
    Sockets that are found among the descriptors.
    """

    def test_identity(self) -> None:
        """
        All descriptors of a socket are one, and a closed one is none.
        """
        with socket.socket() as one, socket.socket() as other:
            copy = os.dup(one.fileno())
            self.assertEqual(identityOf(copy), identityOf(one.fileno()))
            self.assertNotEqual(identityOf(copy), identityOf(other.fileno()))
            os.close(copy)
            self.assertIsNone(identityOf(copy))

    def found(self) -> list[Any]:
        """
        @return: The addresses of listeners that no object has.
        """
        rows = [dict(zip(COLUMNS, row, strict=True)) for row in tcpRows([], noWhy, noWhy) if row]
        return [row["local"] for row in rows if row["kind"] == "listener"]

    def test_once(self) -> None:
        """
        A socket with two descriptors has one row; UDP and UNIX have none, nor has what is closed.
        """
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            server.dup(),
            socket.socket(type=socket.SOCK_DGRAM) as datagrams,
            socket.socketpair()[0],
        ):
            datagrams.bind(server.getsockname())
            name = f"127.0.0.1:{server.getsockname()[1]}"
            self.assertEqual(self.found().count(name), 1)
            self.assertEqual(len(tcpRowsOf(datagrams)), 0)
        self.assertNotIn(name, self.found())

    def test_withoutProc(self) -> None:
        """
        Without a list of descriptors there is what the reactor knows.
        """
        self.patch(tcprows, "_DESCRIPTORS", self.mktemp())
        with socket.create_server(("127.0.0.1", 0)):
            self.assertEqual(list(tcpRows([], noWhy, noWhy)), [])


def tcpRowsOf(skt: socket.socket) -> list[Any]:
    """
    @return: The rows at the address of a socket that are not listeners.
    """
    name = f"127.0.0.1:{skt.getsockname()[1]}"
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in tcpRows([], noWhy, noWhy) if row]
    return [row for row in rows if row["local"] == name and row["kind"] != "listener"]
