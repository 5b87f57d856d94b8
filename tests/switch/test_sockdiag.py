"""
The listening TCP sockets, and the one that TCP would reach.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.support.waiting import readUntil
from twisted_ib.switch import sockdiag
from twisted_ib.switch.sockdiag import TCPListener, Unreadable, listeners, reached

#: Two answers of Linux 6.18: 127.0.0.1:80 of user 1000, and [::]:80 for IPv6 alone.
IPV4 = bytes.fromhex(
    "020a0000005000007f000001" + "00" * 12 + "00" * 16 + "000000000102030405060708"
) + struct.pack("=5I", 0, 0, 5, 1000, 4711)
IPV6 = (
    bytes.fromhex("0a0a000000500000" + "00" * 32 + "000000000102030405060708")
    + struct.pack("=5I", 0, 0, 5, 0, 4712)
    + struct.pack("=HHB3x", 5, 8, 0)
    + struct.pack("=HHB3x", 5, 11, 1)
)

V4_EXACT = TCPListener("127.0.0.1", False, 1, 0)
V4_OTHER = TCPListener("127.0.0.2", False, 2, 0)
V4_ALL = TCPListener("0.0.0.0", False, 3, 0)
V6_ALL = TCPListener("::", True, 4, 0)
V6_ONLY = TCPListener("::", True, 5, 0, 0, True)
V6_EXACT = TCPListener("::1", True, 6, 0)
MAPPED = TCPListener("127.0.0.1", True, 7, 0)


class ReachedTests(SynchronousTestCase):
    """
    L{reached}.
    """

    def check(self, found: list[TCPListener], address: str, *expected: TCPListener) -> None:
        """
        Of C{found} TCP would reach C{expected}.
        """
        self.assertEqual(reached(found, address), list(expected))
        self.assertEqual(reached(found[::-1], address), list(expected)[::-1])

    def test_order(self) -> None:
        """
        The exact address, then all of IPv4, then all of IPv6 with IPv4.
        """
        everybody = [V4_EXACT, V4_OTHER, V4_ALL, V6_ALL, V6_ONLY, V6_EXACT]
        self.check(everybody, "127.0.0.1", V4_EXACT)
        self.check(everybody, "127.0.0.3", V4_ALL)
        self.check([V4_OTHER, V6_ALL, V6_ONLY], "127.0.0.1", V6_ALL)
        self.check([V4_OTHER, V6_ONLY, V6_EXACT], "127.0.0.1")
        self.check(everybody, "::1", V6_EXACT)
        self.check([V4_ALL, V6_ALL], "::1", V6_ALL)
        self.check([V4_ALL], "::1")
        self.check([], "127.0.0.1")

    def test_mapped(self) -> None:
        """
        An IPv4 address on a socket of IPv6 is as exact, but comes after one of IPv4.
        """
        self.check([MAPPED, V4_ALL], "127.0.0.1", MAPPED)
        self.check([MAPPED, V4_EXACT], "127.0.0.1", V4_EXACT)

    def test_shared(self) -> None:
        """
        Of those that share a number any may be reached.
        """
        other = TCPListener("127.0.0.1", False, 9, 0)
        self.check([V4_EXACT, other, V4_ALL], "127.0.0.1", V4_EXACT, other)

    def test_interface(self) -> None:
        """
        One that is bound to an interface makes it unknown, unless the address has that scope.
        """
        bound = TCPListener("127.0.0.1", False, 9, 0, 3)
        self.assertEqual(reached([bound], "127.0.0.1"), [])
        self.assertEqual(reached([bound, V4_EXACT], "127.0.0.1"), [])
        self.assertEqual(reached([V4_EXACT, TCPListener("0.0.0.0", False, 9, 0, 3)], "127.0.0.1"), [V4_EXACT])
        link = TCPListener("fe80::1", True, 9, 0, 3)
        self.assertEqual(reached([link], "fe80::1", 3), [link])
        self.assertEqual(reached([link], "fe80::1", 4), [])

    def test_unknownInterface(self) -> None:
        """
        Where interfaces do not show only one that is alone is known to be reached.
        """
        one = TCPListener("127.0.0.1", False, 8, 0, None)
        self.assertEqual(reached([one], "127.0.0.1"), [one])
        self.assertEqual(reached([one, TCPListener("127.0.0.1", False, 9, 0, None)], "127.0.0.1"), [])


class ParseTests(SynchronousTestCase):
    """
    The kernel's messages.
    """

    def test_literal(self) -> None:
        """
        Both families' messages.
        """
        expected = TCPListener("127.0.0.1", False, 4711, 1000)
        self.assertEqual(sockdiag._parse(IPV4, 80), expected)
        self.assertEqual(sockdiag._parse(IPV6, 80), TCPListener("::", True, 4712, 0, 0, True))
        self.assertEqual(sockdiag._parse(IPV6[:80], 80), TCPListener("::", True, 4712, 0, 0, None))

    def test_others(self) -> None:
        """
        Another port or state is not meant: old kernels give everything.
        """
        self.assertEqual(sockdiag._parse(IPV4, 81), None)
        self.assertEqual(sockdiag._parse(b"\x02\x01" + IPV4[2:], 80), None)

    def test_short(self) -> None:
        """
        A message that is cut off anywhere raises what is caught, or shows nothing wrong.
        """
        for length in range(72):
            try:
                found = sockdiag._parse(IPV4[:length], 80)
            except (struct.error, IndexError, OSError, ValueError):
                continue
            self.assertEqual(found, None)


class HostTests(SynchronousTestCase):
    """
    Real sockets.
    """

    def listen(self, address: str, port: int = 0, **options: int) -> tuple[int, int]:
        """
        @return: The port and the inode of a new socket that listens.
        """
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        found = socket.socket(family)
        self.addCleanup(found.close)
        for level, names in ((socket.SOL_SOCKET, ("SO_REUSEPORT",)), (41, ("IPV6_V6ONLY",))):
            for name in names:
                if name in options:
                    found.setsockopt(level, getattr(socket, name), options[name])
        found.bind((address, port))
        found.listen(1)
        return found.getsockname()[1], os.fstat(found.fileno()).st_ino

    def found(self, port: int) -> dict[int, tuple[str, bool, int]]:
        """
        @return: The result of L{listeners}, by inode.
        """
        return {each.inode: (each.address, each.isV6, each.uid) for each in listeners(port)}

    def untilFound(self, port: int, *inodes: int) -> dict[int, tuple[str, bool, int]]:
        """
        @return: the same, of a reading of the kernel's tables that has these: one may leave out a socket
            while others come and go.
        """
        return readUntil(lambda: self.found(port), lambda found: found.keys() >= set(inodes))

    def test_both(self) -> None:
        """
        Netlink and the kernel's tables show the same.
        """
        port, one = self.listen("127.0.0.1", SO_REUSEPORT=1)
        _, two = self.listen("127.0.0.2", port, SO_REUSEPORT=1)
        _, three = self.listen("::", port, SO_REUSEPORT=1, IPV6_V6ONLY=1)
        _, four = self.listen("::ffff:127.0.0.3", port, SO_REUSEPORT=1)
        uid = os.geteuid()
        expected = {
            one: ("127.0.0.1", False, uid),
            two: ("127.0.0.2", False, uid),
            three: ("::", True, uid),
            four: ("127.0.0.3", True, uid),
        }
        self.assertEqual(self.found(port), expected)
        self.assertEqual([each.v6only for each in listeners(port) if each.inode == three], [True])
        self.refuse()
        self.assertEqual(self.untilFound(port, *expected), expected)
        whole = readUntil(lambda: listeners(port), lambda found: len(found) >= len(expected))
        self.assertEqual([each.v6only for each in whole if each.inode == three], [None])
        self.assertEqual({each.interface for each in whole}, {None})

    def refuse(self) -> None:
        """
        Have netlink refused, as in a sandbox.
        """

        def refused(family: int, port: int) -> list[TCPListener]:
            raise PermissionError("no netlink here")

        self.patch(sockdiag, "_ask", refused)

    def test_refusedByKernel(self) -> None:
        """
        A kernel that does not know the question answers with an error, and so the table is read.
        """
        port, inode = self.listen("127.0.0.1")
        self.patch(sockdiag, "_BY_FAMILY", 99)
        self.assertEqual(list(self.untilFound(port, inode)), [inode])

    def test_nobody(self) -> None:
        """
        On a port without a listener none is found, though there is a connection.
        """
        server = socket.create_server(("127.0.0.1", 0))
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        self.addCleanup(client.close)
        server.close()
        self.assertEqual(listeners(port), [])
        self.refuse()
        self.assertEqual(listeners(port), [])

    def test_bounds(self) -> None:
        """
        Too many listeners, or too many lines, are not looked at.
        """
        port, _ = self.listen("127.0.0.1", SO_REUSEPORT=1)
        self.listen("127.0.0.1", port, SO_REUSEPORT=1)
        self.patch(sockdiag, "TCP_LISTENERS", 1)
        self.assertIn("more than 1", str(self.assertRaises(Unreadable, listeners, port)))
        self.refuse()
        self.patch(sockdiag, "TCP_TABLE_LINES", 1)
        self.assertIn("more than 1", str(self.assertRaises(Unreadable, listeners, port)))

    def test_noTables(self) -> None:
        """
        Without IPv6 there is no listener of it; without either source nothing is known.
        """
        port, inode = self.listen("127.0.0.1")
        self.refuse()
        tables: Any = dict(sockdiag._TABLES)
        tables[socket.AF_INET6] = "/proc/none"
        self.patch(sockdiag, "_TABLES", tables)
        self.assertEqual(list(self.untilFound(port, inode)), [inode])
        tables[socket.AF_INET] = "/proc/none"
        self.assertRaises(Unreadable, listeners, port)

    def test_wrongTable(self) -> None:
        """
        A table that does not look like one says nothing.
        """
        self.refuse()
        path = self.mktemp()
        for line in ("x y", " 0: zz:zz 0:0 0A x x x 0 0 1", " 0: 0100007F:0050 0:0 0A"):
            Path(path).write_text(f"head\n{line}\n")
            self.patch(sockdiag, "_TABLES", {socket.AF_INET: path, socket.AF_INET6: path})
            self.assertRaises(Unreadable, listeners, 80)


if sys.platform != "linux":
    HostTests.skip = "needs Linux"  # type: ignore[attr-defined]
