"""
Tests of L{twisted_ib.hca.wire.grh} on literal octets.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.errors import WireError
from twisted_ib.hca.wire.grh import (
    DETH_BYTES,
    GRH_BYTES,
    HEADER_BYTES,
    destination,
    ends,
    guidGID,
    isMulticast,
    length,
    packGRH,
    route,
)

OCTETS = bytes.fromhex(
    "6a512345 0040 1b 3ffe80000000000000 0123456789abcdefff12401bffff0000 00000000ffffffff"
)
MOST = (1 << 128) - 1
#: Traffic class, flow label, length, hop limit, GIDs of sender and receiver.
FIELDS = (
    *(0xA5, 0x12345, 64, 63),
    *(0xFE80000000000000_0123456789ABCDEF, 0xFF12401BFFFF0000_00000000FFFFFFFF),
)


class GRHTests(SynchronousTestCase):
    """
    The global route header.
    """

    def test_pack(self) -> None:
        """
        The fields are where IBTA vol. 1 8.3 has them.
        """
        self.assertEqual(packGRH(*FIELDS), OCTETS)
        self.assertEqual(len(OCTETS), GRH_BYTES)

    def test_route(self) -> None:
        """
        The same fields, whatever follows; of UDP's headers too.
        """
        traffic, label, _, hops, source, target = FIELDS
        for octets in (OCTETS, memoryview(OCTETS + b"more"), OCTETS[:6] + b"\x11" + OCTETS[7:]):
            self.assertEqual(route(octets), (source, target, label, traffic, hops))
        self.assertEqual(
            route(packGRH(255, 0xFFFFF, 0xFFFF, 255, MOST, MOST)), (MOST, MOST, 0xFFFFF, 255, 255)
        )

    def test_short(self) -> None:
        """
        Fewer than 40 octets are refused.
        """
        for size in range(GRH_BYTES):
            self.assertRaises(WireError, route, OCTETS[:size])

    def test_otherVersions(self) -> None:
        """
        A version other than 6 is refused.
        """
        for version in set(range(16)) - {6}:
            octets = bytes([version << 4 | OCTETS[0] & 15]) + OCTETS[1:]
            self.assertRaises(WireError, route, octets)

    def test_otherHeaders(self) -> None:
        """
        A header whose next header is neither BTH nor UDP is refused.
        """
        for following in set(range(256)) - {0x1B, 0x11}:
            octets = OCTETS[:6] + bytes([following]) + OCTETS[7:]
            self.assertRaises(WireError, route, octets)

    def test_length(self) -> None:
        """
        BTH, DETH, what is behind it padded to four, ICRC.
        """
        self.assertEqual([length(n) for n in (0, 1, 4, 5, 4096)], [24, 28, 28, 32, 4120])

    def test_headers(self) -> None:
        """
        A datagram has 48 bytes of headers, of which the DETH has 8.
        """
        self.assertEqual((HEADER_BYTES, DETH_BYTES), (48, 8))


class GIDTests(SynchronousTestCase):
    """
    Kinds of GIDs.
    """

    def test_guid(self) -> None:
        """
        The link-local prefix, then the GUID.
        """
        self.assertEqual(guidGID(0x0123456789ABCDEF), 0xFE800000000000000123456789ABCDEF)

    def test_multicast(self) -> None:
        """
        Groups begin with eight ones, or are IPv4 groups.
        """
        self.assertTrue(isMulticast(0xFF << 120))
        self.assertTrue(isMulticast(FIELDS[5]))
        self.assertFalse(isMulticast(FIELDS[4]))
        cases = (0xDFFFFFFF, False), (0xE0000000, True), (0xEFFFFFFF, True), (0xF0000000, False)
        for address, expected in cases:
            self.assertEqual(isMulticast(0xFFFF << 32 | address), expected, address)
        self.assertFalse(isMulticast(0xFFFE << 32 | 0xE0000000))


class EndsTests(SynchronousTestCase):
    """
    L{ends} and L{destination}: the header in front of a datagram that came in a packet.
    """

    #: 20 zero bytes; version 4 and 5 words, total length 20 + 8 + 12 + 8 + 4 + 4, protocol 17.
    IPV4 = bytes(20) + bytes.fromhex("45020038 00004000 4011beef c0000201 c0000202")
    #: Version 6, payload 8 + 12 + 8 + 4 + 4, next header 17.
    IPV6 = bytes.fromhex(
        "60200000 00241140 20010db8 00000000 00000000 00000001 20010db8 00000000 00000000 00000002"
    )

    def test_ipv4(self) -> None:
        """
        An IPv4 header gives addresses that are mapped.
        """
        expected = 0xFFFFC0000201, 0xFFFFC0000202
        for behind in (1, 2, 3, 4):
            self.assertEqual(ends(self.IPV4, behind), expected)
        self.assertEqual(destination(self.IPV4), expected[1])

    def test_ipv6(self) -> None:
        """
        An IPv6 header is before UDP, whose header its length counts.
        """
        expected = 0x20010DB8000000000000000000000001, 0x20010DB8000000000000000000000002
        self.assertEqual((ends(self.IPV6, 4), destination(self.IPV6)), (expected, expected[1]))

    def test_malformed(self) -> None:
        """
        Each field that is looked at, and each length that is another.
        """
        for good in (self.IPV4, self.IPV6):
            for behind in (0, 5, -8):
                self.assertRaises(WireError, ends, good, behind)
            self.assertRaises(WireError, ends, good[:-1], 4)
        for at, value in ((0, 1), (19, 1), (20, 0x46), (20, 0x65), (23, 0x39), (29, 6)):
            self.assertRaises(WireError, ends, self.IPV4[:at] + bytes([value]) + self.IPV4[at + 1 :], 4)
        for at, value in ((0, 0x50), (5, 0x25), (6, 6), (6, 0x1B)):
            self.assertRaises(WireError, ends, self.IPV6[:at] + bytes([value]) + self.IPV6[at + 1 :], 4)
