"""
Tests for L{twisted_ib.ipoib.tun}, with a kernel that only notes the requests.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import os
import socket
from ipaddress import ip_interface
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.support.descriptors import descriptors, descriptorsBefore
from twisted_ib.errors import TunError
from twisted_ib.ipoib import tun
from twisted_ib.ipoib.tun import Tun

_open = builtins.open


class TunTestCase(SynchronousTestCase):
    """
    A node that can be opened, and ioctl() that answers.

    @ivar requests: the numbers of the requests, with their arguments.
    @ivar errors: errors by number of the request.
    """

    def setUp(self) -> None:
        """
        Put the fake in place.
        """
        self.requests: list[tuple[int, Any]] = []
        self.errors: dict[int, int] = {}
        self.patch(fcntl, "ioctl", self.ioctl)
        self.node = Path(self.mktemp())
        self.node.touch()
        self.mode = Path(self.mktemp())
        self.mode.write_text("0")
        tun.open = self.openSetting  # type: ignore[attr-defined]
        self.addCleanup(tun.__dict__.pop, "open")

    def openSetting(self, path: str, how: str) -> Any:
        """
        Open a setting of the kernel.
        """
        self.assertEqual(path, "/proc/sys/net/ipv6/conf/ib0/addr_gen_mode")
        return _open(self.mode, how)

    def ioctl(self, descriptor: int, number: int, argument: Any) -> Any:
        """
        Note a request.
        """
        self.assertTrue(os.fstat(descriptor))
        if number in self.errors:
            raise OSError(self.errors[number], os.strerror(self.errors[number]))
        self.requests.append((number, argument))
        return argument

    def opened(self) -> Tun:
        """
        @return: a TUN.
        """
        made = Tun.open("ib0", str(self.node))
        self.addCleanup(made.close)
        return made


class OpenTests(TunTestCase):
    """
    L{Tun.open}.
    """

    def test_made(self) -> None:
        """
        A TUN with a vnet header, without a link-local address of the kernel's, and descriptors to pass on.
        """
        made = self.opened()
        name = b"ib0".ljust(16, b"\0")
        self.assertEqual(self.requests, [(0x400454CA, name + b"\x01\x10" + bytes(22))])
        self.assertEqual(self.mode.read_text(), "1")
        copies = [os.dup(each) for each in made.descriptors]
        made.close()
        made.close()
        again = Tun("ib0", copies)
        self.assertEqual((again.descriptors, again.descriptor), (copies, copies[0]))
        again.close()
        for each in copies:
            self.assertRaises(OSError, os.fstat, each)

    def test_names(self) -> None:
        """
        A name that no interface can have, or that stands for others, is refused before anything is opened.
        """
        for name in ("", "all", "default", ".", "..", "ib%d", "a/b", "a b", "a:1", "0123456789abcdef"):
            error = self.assertRaises(TunError, Tun.open, name, "/none")
            self.assertIn(f"{name!r} is no name of an interface", str(error))
        for name in ("ib0", "ib0.8001", "0123456789abcde"):
            self.assertIn("/none", str(self.assertRaises(TunError, Tun.open, name, "/none")))
        self.assertEqual(self.requests, [])

    def test_noNode(self) -> None:
        """
        Without a node, or without the right to open it, or where it is no TUN, the error says so.
        """
        missing = f"{self.node}.none"
        error = self.assertRaises(TunError, Tun.open, "ib0", missing)
        self.assertIn(f"{missing} does not exist", str(error))
        self.node.chmod(0o600)
        for number, words in ((errno.EACCES, "has mode 0600"), (errno.ENODEV, "is no TUN device")):
            self.patch(tun.os, "open", _raising(number))
            error = self.assertRaises(TunError, Tun.open, "ib0", str(self.node))
            self.assertIn(f"{self.node} {words}", str(error))

    def test_refused(self) -> None:
        """
        The kernel refuses: the right, the name, what it is.
        """
        before = descriptorsBefore()
        for number, words in (
            (errno.EPERM, "CAP_NET_ADMIN"),
            (errno.EBUSY, "already"),
            (errno.EINVAL, "name"),
            (errno.ENOMEM, "memory"),
        ):
            self.errors[0x400454CA] = number
            error = self.assertRaises(TunError, Tun.open, "ib0", str(self.node))
            self.assertIn(words, str(error))
        self.assertEqual(descriptors(), before)

    def test_addressMode(self) -> None:
        """
        A kernel without IPv6 has no addr_gen_mode; one that cannot be set is an error.
        """
        tun.open = _raising(errno.ENOENT)  # type: ignore[attr-defined]
        self.opened()
        tun.open = _raising(errno.EROFS)  # type: ignore[attr-defined]
        error = self.assertRaises(TunError, Tun.open, "ib0", str(self.node))
        self.assertIn("addr_gen_mode", str(error))


class ConfigureTests(TunTestCase):
    """
    MTU, addresses, routes.
    """

    def setUp(self) -> None:
        """
        A TUN.
        """
        super().setUp()
        self.tun = self.opened()
        self.requests.clear()

    def numbers(self) -> list[int]:
        """
        @return: the requests so far.
        """
        return [number for number, _ in self.requests]

    def test_begin(self) -> None:
        """
        The MTU, up, then addresses: each IPv4 address has a label, and a mask and a broadcast address.
        """
        addresses = [ip_interface(each) for each in ("10.9.0.1/24", "10.8.0.1/31", "fe80::2/64")]
        self.tun.begin(65520, addresses)
        self.assertEqual(
            self.numbers(),
            [0x8922, 0x8913, 0x8914, 0x8916, 0x891C, 0x891A, 0x8916, 0x891C, 0x8933, 0x8916],
        )
        arguments = [argument for _, argument in self.requests]
        name, family = b"ib0".ljust(16, b"\0"), socket.AF_INET.to_bytes(2, "little")
        self.assertEqual(arguments[0], name + (65520).to_bytes(4, "little") + bytes(20))
        self.assertEqual(arguments[2], name + b"\1\0" + bytes(22))
        for argument, value in zip(arguments[3:6], ("0a090001", "ffffff00", "0a0900ff"), strict=True):
            self.assertEqual(argument, name + family + bytes(2) + bytes.fromhex(value) + bytes(16))
        self.assertEqual(arguments[6][:16], b"ib0:1".ljust(16, b"\0"))
        self.assertEqual(arguments[9], addresses[2].packed + (64).to_bytes(4, "little") + bytes(4))

    def test_noIPv6(self) -> None:
        """
        An interface with an MTU below 1280, or a kernel without IPv6, has no IPv6 addresses.
        """
        self.tun.begin(1279, [ip_interface("fe80::2/64")])
        self.assertNotIn(0x8933, self.numbers())
        older = Tun("ib0", [os.dup(each) for each in self.tun.descriptors[:2]])
        self.addCleanup(older.close)
        older.begin(1280, [ip_interface("fe80::2/64")])
        self.assertNotIn(0x8933, self.numbers())

    def test_others(self) -> None:
        """
        The loopback interface, and the route of multicast.
        """
        self.tun.bringUpLoopback()
        self.assertEqual(self.requests[-1], (0x8914, b"lo".ljust(16, b"\0") + b"\1\0" + bytes(22)))
        self.tun.routeMulticast()
        number, route = self.requests[-1]
        self.assertEqual((number, len(route)), (0x890B, 120))
        self.assertEqual((route[12:16], route[44:48]), (b"\xe0\0\0\0", b"\xf0\0\0\0"))

    def test_errors(self) -> None:
        """
        Each error says what was not set, and why.
        """
        for request, number, words in (
            (0x8922, errno.EPERM, "MTU 2044 was not set: this needs CAP_NET_ADMIN"),
            (0x8914, errno.ENODEV, "ib0 up was not set: No such device"),
            (0x8916, errno.EINVAL, "10.9.0.1/24 was not set: Invalid argument"),
        ):
            self.errors = {request: number}
            error = self.assertRaises(TunError, self.tun.begin, 2044, [ip_interface("10.9.0.1/24")])
            self.assertEqual(str(error), f"ib0: {words}")


def _raising(number: int) -> Any:
    def call(*arguments: object) -> Any:
        raise OSError(number, os.strerror(number))

    return call
