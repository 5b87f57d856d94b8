"""
Tests of L{twisted_ib.ipoib.protocol.ip}.
"""

from __future__ import annotations

from ipaddress import ip_address, ip_interface

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib import limits
from twisted_ib.errors import WireError
from twisted_ib.ipoib.protocol.ip import (
    UNSPECIFIED,
    ICMPErrors,
    NeighbourMessage,
    checksum,
    destinationOf,
    fragments,
    isDiscovery,
    isMulticast,
    mayFragment,
    mayReport,
    packetLength,
    packIPv4,
    packIPv6,
    pseudoHeader,
    solicitedNode,
    tooBig,
    unreachable,
)
from twisted_ib.ipoib.protocol.routes import Routes

HARDWARE = bytes.fromhex("8000004ffe800000000000000010e000014ad211")
#: UDP without data.
IPV4 = bytes.fromhex("4500001c00000000401166bd0a0900010a090002") + bytes.fromhex("0035003500080000")
IPV6 = bytes.fromhex(
    "6000000000081140fe800000000000000000000000000001fe8000000000000000000000000000020035003500080000"
)


def packed(address: str) -> bytes:
    """
    @return: an IP address in network order.
    """
    return ip_address(address).packed


class ChecksumTests(SynchronousTestCase):
    """
    The Internet checksum.
    """

    def test_example(self) -> None:
        """
        The example of RFC 1071 section 3.
        """
        self.assertEqual(checksum(bytes.fromhex("0001f203f4f5f6f7")), 0xFFFF - 0xDDF2)

    def test_odd(self) -> None:
        """
        The last piece may have an odd length, and be of any kind.
        """
        data = bytes.fromhex("0001f203f4")
        for kind in (bytes, bytearray, memoryview):
            self.assertEqual(checksum(data[:2], kind(data[2:])), checksum(data + b"\0"))

    def test_right(self) -> None:
        """
        The sum of what has a right checksum is 0.
        """
        self.assertEqual(checksum(IPV4[:20]), 0)
        self.assertEqual(checksum(b"\0\0"), 0xFFFF)

    def test_pseudoHeader(self) -> None:
        """
        RFC 768, and RFC 8200 section 8.1.
        """
        self.assertEqual(pseudoHeader(b"\x01" * 4, b"\x02" * 4, 17, 8).hex(), "010101010202020200110008")
        self.assertEqual(
            pseudoHeader(b"\x01" * 16, b"\x02" * 16, 58, 8).hex(), "01" * 16 + "02" * 16 + "000000080000003a"
        )


class HeaderTests(SynchronousTestCase):
    """
    Lengths and destinations.
    """

    def test_lengths(self) -> None:
        """
        A packet has the length that it says, and there may be more behind it.
        """
        for packet, octets in ((IPV4, 4), (IPV6, 16)):
            data = b"12345" + packet + b"678"
            self.assertEqual(packetLength(data, 5, len(data), octets), len(packet))
            self.assertEqual(packetLength(data, 5, 5 + len(packet), octets), len(packet))
            for stop in range(5, 5 + len(packet)):
                self.assertEqual(packetLength(data, 5, stop, octets), 0)

    def test_versions(self) -> None:
        """
        Another version is refused.
        """
        self.assertEqual(packetLength(IPV4 + bytes(40), 0, 60, 16), 0)
        self.assertEqual(packetLength(IPV6, 0, len(IPV6), 4), 0)
        self.assertEqual(packetLength(b"\x55" + IPV4[1:], 0, len(IPV4), 4), 0)

    def test_headerLength(self) -> None:
        """
        A header of less than 20 octets, or longer than the packet.
        """
        for first in (0x40, 0x44, 0x48):
            self.assertEqual(packetLength(bytes([first]) + IPV4[1:], 0, len(IPV4), 4), 0)
        self.assertEqual(packetLength(b"\x47" + IPV4[1:], 0, len(IPV4), 4), 28)

    def test_made(self) -> None:
        """
        Headers have these octets.
        """
        one, other = packed("10.9.0.1"), packed("10.9.0.2")
        self.assertEqual(packIPv4(one, other, 17, 8), IPV4[:20])
        self.assertEqual(packIPv6(packed("fe80::1"), packed("fe80::2"), 17, 8), IPV6[:40])

    def test_destinations(self) -> None:
        """
        Where packets go.
        """
        self.assertEqual(destinationOf(b"1" + IPV4, 1), packed("10.9.0.2"))
        self.assertEqual(destinationOf(b"1" + IPV6, 1), packed("fe80::2"))
        for address in ("224.0.0.1", "239.255.255.255", "ff02::1"):
            self.assertTrue(isMulticast(packed(address)))
        for address in ("223.255.255.255", "240.0.0.1", "255.255.255.255", "fe80::1"):
            self.assertFalse(isMulticast(packed(address)))

    def test_solicitedNode(self) -> None:
        """
        The low 24 bits (RFC 4291 section 2.7.1).
        """
        self.assertEqual(solicitedNode(packed("4037::1:800:200e:8c6c")), packed("ff02::1:ff0e:8c6c"))


class FragmentTests(SynchronousTestCase):
    """
    Fragments of IPv4 packets.
    """

    def whole(self, size: int, flags: int = 0, options: bytes = b"") -> bytes:
        """
        @return: a packet.
        """
        data = bytes(index & 0xFF for index in range(size))
        packet = bytearray(packIPv4(b"\x0a\0\0\x01", b"\x0a\0\0\x02", 17, len(options) + size, 77, flags))
        packet[0] = 0x45 + len(options) // 4
        return bytes(packet) + options + data

    def test_cut(self) -> None:
        """
        Each has the longest length that is a multiple of eight, and they make the packet.
        """
        packet = self.whole(100)
        cut = list(fragments(packet, 68))
        self.assertEqual([len(each) for each in cut], [68, 68, 24])
        self.assertEqual([each[6:8].hex() for each in cut], ["2000", "2006", "000c"])
        self.assertEqual(b"".join(each[20:] for each in cut), packet[20:])
        for each in cut:
            self.assertEqual(packetLength(each, 0, len(each), 4), len(each))
            self.assertEqual(checksum(each[:20]), 0)
            self.assertEqual(each[4:6], b"\x00\x4d")

    def test_cutAgain(self) -> None:
        """
        A fragment is cut into later ones, and More Fragments stays.
        """
        cut = list(fragments(self.whole(96, 0x2000 | 5), 68))
        self.assertEqual([each[6:8].hex() for each in cut], ["2005", "200b"])

    def test_options(self) -> None:
        """
        Options that are not copied are No Operation in later fragments, also where they are cut short.
        """
        for options, later in (
            ("0703040094040000", "0101010094040000"),
            ("0101070501020304", "0101010101010101"),
            ("9404000007ff0000", "9404000001010101"),
            ("01010107", "01010101"),
            ("00070000", "00070000"),
        ):
            first, second = fragments(self.whole(48, options=bytes.fromhex(options)), 68)
            self.assertEqual(first[20 : 20 + len(options) // 2].hex(), options)
            self.assertEqual(second[20 : 20 + len(options) // 2].hex(), later)
            for each in (first, second):
                self.assertEqual(checksum(each[: (each[0] & 0xF) * 4]), 0)

    def test_allowed(self) -> None:
        """
        IPv4 without Don't Fragment.
        """
        self.assertTrue(mayFragment(self.whole(1), 0))
        self.assertFalse(mayFragment(self.whole(1, 0x4000), 0))
        self.assertFalse(mayFragment(IPV6, 0))


class ErrorTests(SynchronousTestCase):
    """
    Errors about packets that cannot be sent.
    """

    def test_ipv4(self) -> None:
        """
        Codes and octets of RFC 792 and RFC 1191.
        """
        reporter = packed("10.9.0.2")
        for packet, words in (
            (unreachable(IPV4, reporter, isNeighbour=True), "0301"),
            (unreachable(IPV4, reporter, isNeighbour=False), "0300"),
            (tooBig(IPV4, reporter, 2044), "0304"),
        ):
            self.assertEqual(packet[:10].hex(), "45c00038000000004001")
            self.assertEqual(packet[12:20], reporter + packed("10.9.0.1"))
            self.assertEqual(packet[20:22].hex(), words)
            self.assertEqual(checksum(packet[:20]), 0)
            self.assertEqual(checksum(packet[20:]), 0)
            self.assertEqual(packet[28:], IPV4)
        self.assertEqual(packet[24:28].hex(), "000007fc")

    def test_ipv6(self) -> None:
        """
        Codes and octets of RFC 4443.
        """
        reporter = packed("fe80::2")
        for packet, words in (
            (unreachable(IPV6, reporter, isNeighbour=True), "0103"),
            (unreachable(IPV6, reporter, isNeighbour=False), "0100"),
            (tooBig(IPV6, reporter, 2044), "0200"),
        ):
            self.assertEqual(packet[:8].hex(), "6000000000383a40")
            self.assertEqual(packet[8:40], reporter + packed("fe80::1"))
            self.assertEqual(packet[40:42].hex(), words)
            body = packet[40:]
            self.assertEqual(checksum(pseudoHeader(packet[8:24], packet[24:40], 58, len(body)), body), 0)
            self.assertEqual(packet[48:], IPV6)
        self.assertEqual(packet[44:48].hex(), "000007fc")

    def test_lengths(self) -> None:
        """
        At most 576 octets, and 1280 of IPv6.
        """
        for packet, most in ((IPV4, 576), (IPV6, 1280)):
            data = packet + bytes(3000)
            reporter = destinationOf(packet, 0)
            self.assertEqual(len(tooBig(data, reporter, 2044)), most)

    def test_about(self) -> None:
        """
        None about errors, later fragments, and packets from no host or several.
        """

        def icmp(kind: int) -> bytes:
            return packIPv4(packed("10.9.0.1"), packed("10.9.0.2"), 1, 1) + bytes([kind])

        def icmpv6(kind: int) -> bytes:
            return packIPv6(packed("fe80::1"), packed("fe80::2"), 58, 1) + bytes([kind])

        def source(address: str) -> bytes:
            if ":" in address:
                return packIPv6(packed(address), packed("fe80::2"), 17, 0)
            return packIPv4(packed(address), packed("10.9.0.2"), 17, 0)

        queries = (0, 8, 9, 10, 13, 14, 15, 16, 17, 18)
        good = [IPV4, IPV6, icmpv6(128), icmpv6(255), source("10.0.0.1"), source("223.0.0.1")]
        good += [icmp(each) for each in queries]
        later = [IPV4[:6] + offset + IPV4[8:] for offset in (b"\x00\x01", b"\x01\x00", b"\x10\x00")]
        good.append(IPV4[:6] + b"\xe0\x00" + IPV4[8:])
        bad = [*later, icmp(8)[:-1], icmpv6(0), icmpv6(127), icmpv6(128)[:-1]]
        bad += [icmp(each) for each in range(256) if each not in queries]
        bad += [source(each) for each in ("0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255")]
        bad += [source("::"), source("ff02::1")]
        for each in good:
            self.assertTrue(mayReport(each), each.hex())
        for each in bad:
            self.assertFalse(mayReport(each), each.hex())

    def test_forMany(self) -> None:
        """
        There is no error about a multicast or a broadcast, but that an IPv6 packet is too big.
        """
        errors = ICMPErrors(lambda: 5.0, [].append)
        routes = Routes((ip_interface("10.9.0.1/24"), ip_interface("fe80::1/64")), ())
        for destination in ("224.0.0.251", "239.1.2.3", "255.255.255.255", "10.9.0.255"):
            packet = IPV4[:16] + packed(destination) + IPV4[20:]
            for mtu in (0, 1280):
                self.assertIsNone(errors.about(packet, routes, False, mtu), destination)
        packet = IPV6[:24] + packed("ff02::fb") + IPV6[40:]
        self.assertIsNone(errors.about(packet, routes, False, 0))
        self.assertIsNotNone(errors.about(packet, routes, False, 1280))
        self.assertIsNotNone(errors.about(IPV4, routes, False, 0))

    def test_rate(self) -> None:
        """
        There are so many at once, and more with time; the others are counted.
        """
        now, counted = [5.0], []
        errors = ICMPErrors(lambda: now[0], counted.append)
        routes = Routes((), ())
        for _ in range(limits.ICMP_ERROR_BURST):
            self.assertIsNotNone(errors.about(IPV4, routes, False, 0))
        self.assertIsNone(errors.about(IPV4, routes, False, 0))
        self.assertEqual(counted, ["icmp_suppressed"])
        now[0] += 1 / limits.IPOIB_ERRORS_PER_SECOND
        self.assertIsNotNone(errors.about(IPV4, routes, False, 0))
        self.assertIsNone(errors.about(IPV4, routes, False, 0))


class DiscoveryTests(SynchronousTestCase):
    """
    Neighbour solicitations and advertisements.
    """

    solicitation = NeighbourMessage(
        packed("fe80::1"), packed("ff02::1:ff00:2"), packed("fe80::2"), HARDWARE, True
    )
    #: The same.
    octets = bytes.fromhex(
        "6000000000303aff"
        "fe800000000000000000000000000001"
        "ff0200000000000000000001ff000002"
        "87004a4900000000"
        "fe800000000000000000000000000002"
        "01030000" + HARDWARE.hex()
    )

    def test_solicitation(self) -> None:
        """
        Hop limit 255, type 135, the sender's address as an option.
        """
        self.assertEqual(self.solicitation.pack().hex(), self.octets.hex())
        data = b"12" + self.octets
        self.assertTrue(isDiscovery(data, 2, len(data)))
        self.assertEqual(NeighbourMessage.parse(data, 2, len(data)), self.solicitation)

    def test_advertisement(self) -> None:
        """
        Type 136, its flags, the target's address as an option.
        """
        for solicited, override, flags in ((0, 0, 0), (1, 0, 0x40), (0, 1, 0x20), (1, 1, 0x60)):
            message = NeighbourMessage(
                *(packed("fe80::2"), packed("fe80::1"), packed("fe80::2"), HARDWARE, False),
                *(bool(solicited), bool(override)),
            )
            data = message.pack()
            self.assertEqual(data[40], 136)
            self.assertEqual(data[44], flags)
            self.assertEqual(data[64:66], b"\x02\x03")
            self.assertEqual(NeighbourMessage.parse(data, 0, len(data)), message)

    def test_withoutAddress(self) -> None:
        """
        The option may be missing.
        """
        message = NeighbourMessage(packed("fe80::2"), packed("fe80::1"), packed("fe80::2"), None, False)
        self.assertEqual(NeighbourMessage.parse(message.pack(), 0, 64), message)

    def test_bits(self) -> None:
        """
        No bit may change but version, traffic class and flow label.
        """
        for at in range(4, len(self.octets)):
            for bit in range(8):
                wrong = bytearray(self.octets)
                wrong[at] ^= 1 << bit
                if isDiscovery(wrong, 0, len(wrong)):
                    self.assertRaises(WireError, NeighbourMessage.parse, wrong, 0, len(wrong))

    def test_cut(self) -> None:
        """
        A message that is cut short is refused.
        """
        for length in range(41, len(self.octets)):
            self.assertRaises(WireError, NeighbourMessage.parse, self.octets, 0, length)

    def refused(self, message: NeighbourMessage) -> None:
        """
        A message with a right checksum is refused.
        """
        data = message.pack()
        self.assertRaises(WireError, NeighbourMessage.parse, data, 0, len(data))

    def test_rules(self) -> None:
        """
        RFC 4861 sections 7.1.1 and 7.1.2.
        """
        one, other, group = packed("fe80::1"), packed("fe80::2"), packed("ff02::1:ff00:2")
        self.refused(NeighbourMessage(one, group, group, HARDWARE, True))
        self.refused(NeighbourMessage(UNSPECIFIED, group, other, HARDWARE, True))
        self.refused(NeighbourMessage(UNSPECIFIED, other, other, None, True))
        self.refused(NeighbourMessage(group, other, other, HARDWARE, True))
        self.refused(NeighbourMessage(one, packed("ff02::1"), one, HARDWARE, False, True))
        probe = NeighbourMessage(UNSPECIFIED, group, other, None, True)
        self.assertEqual(NeighbourMessage.parse(probe.pack(), 0, 64), probe)

    def test_code(self) -> None:
        """
        The code is 0.
        """
        data = bytearray(self.octets)
        data[41] = 1
        data[42:44] = bytes(2)
        data[42:44] = checksum(pseudoHeader(data[8:24], data[24:40], 58, 48), data[40:]).to_bytes(2, "big")
        self.assertRaises(WireError, NeighbourMessage.parse, bytes(data), 0, len(data))
