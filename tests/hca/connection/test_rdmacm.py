"""
Tests of L{twisted_ib.hca.connection.rdmacm} on literal octets.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.errors import WireError
from twisted_ib.hca.connection.rdmacm import (
    HEADER_BYTES,
    PortSpace,
    RDMACMHeader,
    gidOf,
    packAddress,
    serviceID,
    textOf,
)

#: The first octets of a REQ's private data that tshark decodes as rping's.
IPV4 = bytes.fromhex("0040 9c40 000000000000000000000000c0000201 000000000000000000000000c0000202")
IPV6 = bytes.fromhex("0060 0102 20010db8000000000000000000000001 fe80000000000000000000000000abcd")


class HeaderTests(SynchronousTestCase):
    """
    The header of 36 octets.
    """

    def test_ipv4(self) -> None:
        """
        IPv4, both ways.
        """
        header = RDMACMHeader("192.0.2.1", 40000, "192.0.2.2")
        self.assertEqual(header.pack(), IPV4)
        self.assertEqual(RDMACMHeader.parse(IPV4), header)

    def test_ipv6(self) -> None:
        """
        IPv6, both ways.
        """
        header = RDMACMHeader("2001:db8::1", 0x0102, "fe80::abcd")
        self.assertEqual(header.pack(), IPV6)
        self.assertEqual(RDMACMHeader.parse(IPV6), header)

    def test_within(self) -> None:
        """
        Octets around the header do not matter.
        """
        data = b"12" + IPV4 + b"user data"
        self.assertEqual(RDMACMHeader.parse(data, 2), RDMACMHeader.parse(IPV4))
        self.assertEqual(RDMACMHeader.parse(memoryview(data), 2, 38), RDMACMHeader.parse(IPV4))

    def test_scope(self) -> None:
        """
        A scope is not packed.
        """
        packed = RDMACMHeader("2001:db8::1", 0x0102, "fe80::abcd%eth0").pack()
        self.assertEqual(packed, IPV6)

    def test_lengths(self) -> None:
        """
        A header that is cut off is refused, whatever its length.
        """
        for length in range(HEADER_BYTES):
            self.assertRaises(WireError, RDMACMHeader.parse, IPV4[:length])
        self.assertRaises(WireError, RDMACMHeader.parse, IPV4, 1)
        self.assertRaises(WireError, RDMACMHeader.parse, IPV4, 0, 35)
        self.assertRaises(WireError, RDMACMHeader.parse, IPV4, 0, 37)
        self.assertRaises(WireError, RDMACMHeader.parse, IPV4, -36, 0)

    def test_versions(self) -> None:
        """
        Every version but 0, and every IP version but 4 and 6, is refused.
        """
        for version in range(1, 256):
            self.assertRaises(WireError, RDMACMHeader.parse, bytes([version]) + IPV4[1:])
        for version in set(range(16)) - {4, 6}:
            octet = bytes([version << 4])
            self.assertRaises(WireError, RDMACMHeader.parse, IPV4[:1] + octet + IPV4[2:])

    def test_reserved(self) -> None:
        """
        Reserved bits, and what precedes an IPv4 address, say nothing.
        """
        for bits in range(16):
            octets = IPV4[:1] + bytes([0x40 | bits]) + IPV4[2:]
            self.assertEqual(RDMACMHeader.parse(octets), RDMACMHeader.parse(IPV4))
        octets = IPV4[:4] + b"\xff" * 12 + IPV4[16:20] + b"\xff" * 12 + IPV4[32:]
        self.assertEqual(RDMACMHeader.parse(octets), RDMACMHeader.parse(IPV4))

    def test_unfit(self) -> None:
        """
        A field that does not fit raises ValueError.
        """
        for header in (
            RDMACMHeader("192.0.2.1", 65536, "192.0.2.2"),
            RDMACMHeader("192.0.2.1", -1, "192.0.2.2"),
            RDMACMHeader("192.0.2.1", 1, "::1"),
            RDMACMHeader("localhost", 1, "::1"),
            RDMACMHeader("::1", 1, ""),
        ):
            self.assertRaises(ValueError, header.pack)


class NameTests(SynchronousTestCase):
    """
    Service ids, addresses, GIDs.
    """

    def test_serviceID(self) -> None:
        """
        rping's service id is the one that Linux sends.
        """
        self.assertEqual(serviceID(PortSpace.TCP, 7174), 0x0000000001061C06)
        self.assertEqual(serviceID(PortSpace.UDP, 7174), 0x0000000001111C06)
        self.assertEqual(serviceID(PortSpace.IPOIB, 1), 0x0000000000020001)
        self.assertEqual(serviceID(PortSpace.IB, 0x1234), 0x00000000013F1234)
        self.assertEqual(serviceID(PortSpace.SDP, 0x1234), 0x0000000000011234)

    def test_addresses(self) -> None:
        """
        An address is 16 octets, with its version.
        """
        self.assertEqual(packAddress("127.0.0.1"), (4, bytes(12) + b"\x7f\0\0\1"))
        self.assertEqual(packAddress("::1"), (6, bytes(15) + b"\1"))
        self.assertEqual(packAddress("::ffff:192.0.2.1%lo")[0], 6)
        self.assertEqual(packAddress("192.0.2.1%lo")[0], 4)
        for text in (
            "lo",
            "1.2.3.4.5",
            "1.2.3",
            "01.2.3.4",
            "1.2.3.256",
            " 1.2.3.4",
            "+1.2.3.4",
            "\u0661.2.3.4",
        ):
            self.assertRaises(ValueError, packAddress, text)

    def test_gids(self) -> None:
        """
        The GID of an IPv4 address is its mapped one.
        """
        self.assertEqual(gidOf("127.0.0.1"), bytes.fromhex("00000000000000000000ffff7f000001"))
        self.assertEqual(gidOf("fe80::1%lo"), bytes.fromhex("fe800000000000000000000000000001"))
        for text in ("127.0.0.1", "::1", "fe80::1", "::"):
            self.assertEqual(textOf(gidOf(text)), text)
