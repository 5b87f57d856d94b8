"""
Tests of L{twisted_ib.verbs.c.sockaddr}.
"""

from __future__ import annotations

import socket
import sys

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.verbs.c.sockaddr import AF_IB, LENGTHS, SocketAddress, familyOf, pack, parse
from twisted_ib.verbs.pyverbs.cm.addrinfo import Address


def family(number: int) -> bytes:
    """
    The first two octets, in the host's order.
    """
    return number.to_bytes(2, sys.byteorder)


#: Structures, what they say, and what packs them.
CASES = (
    (
        family(socket.AF_INET) + bytes.fromhex("1d2f 7f000001") + bytes(8),
        SocketAddress(socket.AF_INET, Address("127.0.0.1", 7471)),
        {},
    ),
    (
        family(socket.AF_INET6) + bytes.fromhex("1d2f 00000000 20010db8") + bytes(11) + b"\1" + bytes(4),
        SocketAddress(socket.AF_INET6, Address("2001:db8::1", 7471)),
        {},
    ),
    (
        family(AF_IB)
        + bytes.fromhex("ffff 00000000 fe800000 00000000 00000000 00000002")
        + bytes.fromhex("00000000 013f 1d2f ffffffffffff ffff")
        + bytes(8),
        SocketAddress(AF_IB, Address("fe80::2", 7471)),
        {"isIB": True, "portSpace": 0x13F},
    ),
)


class SocketAddressTests(SynchronousTestCase):
    """
    L{parse} and L{pack}.
    """

    def test_literal(self) -> None:
        """
        Each family, both ways.
        """
        for data, found, how in CASES:
            self.assertEqual(len(data), LENGTHS[familyOf(data)])
            self.assertEqual(parse(data), found)
            self.assertEqual(parse(data + b"more"), found)
            self.assertEqual(pack(found.address, **how), data)

    def test_serviceID(self) -> None:
        """
        The mask of a service id has the port, and the port space, only where they are said.
        """
        for how, port, service, mask in (
            ({"portSpace": 0x13F}, 7471, "00000000013f1d2f", "ff" * 8),
            ({"portSpace": 0x13F}, 0, "00000000013f0000", "ff" * 6 + "0000"),
            ({}, 7471, "0000000000001d2f", "00" * 6 + "ffff"),
            ({}, 0, "00" * 8, "00" * 8),
        ):
            packed = pack(Address("fe80::2", port), isIB=True, **how)
            self.assertEqual((packed[24:32].hex(), packed[32:40].hex()), (service, mask))

    def test_scope(self) -> None:
        """
        The scope of a link-local address.
        """
        packed = pack(Address("fe80::1%7", 1))
        self.assertEqual(packed[-4:], (7).to_bytes(4, sys.byteorder))
        self.assertEqual(parse(packed).address, Address("fe80::1%7", 1))

    def test_refused(self) -> None:
        """
        One octet short, or of another family.
        """
        for data, _, _ in CASES:
            self.assertRaises(ValueError, parse, data[:-1])
        self.assertRaises(ValueError, parse, family(socket.AF_UNIX) + bytes(40))
