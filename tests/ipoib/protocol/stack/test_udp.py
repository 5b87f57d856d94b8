"""
Tests for L{twisted_ib.ipoib.protocol.stack.udp}.
"""

from __future__ import annotations

from struct import pack_into

from twisted.trial.unittest import SynchronousTestCase

from tests.ipoib.protocol.stack import vectors
from tests.ipoib.protocol.stack.vectors import A6, B6, A, B
from twisted_ib.errors import HeaderError, LengthError
from twisted_ib.ipoib.protocol.stack.packets import IPPacket
from twisted_ib.ipoib.protocol.stack.udp import LONGEST_IPV4, LONGEST_IPV6, IPv4Flow, IPv6Flow, UDPSegment


class FlowTests(SynchronousTestCase):
    """
    Frames of one flow.
    """

    def test_ipv4(self) -> None:
        """
        A frame is a packet as Linux sends it, but for the identification, which means nothing with DF.
        """
        flow = IPv4Flow(A, 7000, B, 7001, 64)
        for payload, packet in ((b"hello", vectors.HELLO), (b"hello!", vectors.HELLO_EVEN)):
            expected = bytearray(packet)
            # RFC 1624 section 3: less of the sum is more of the checksum.
            checksum = int.from_bytes(packet[10:12], "big") + int.from_bytes(packet[4:6], "big")
            pack_into("!H", expected, 4, 0)
            pack_into("!H", expected, 10, checksum % 0xFFFF)
            self.assertEqual(flow.frame(payload), b"\x08\x00\x00\x00" + expected)

    def test_ipv6(self) -> None:
        """
        The same over IPv6, but for the flow label.
        """
        frame = IPv6Flow(A6, 7000, B6, 7001, 64).frame(b"hello")
        self.assertEqual(frame, b"\x86\xdd\x00\x00\x60\x00\x00\x00" + vectors.HELLO_IPV6[4:])

    def test_payloads(self) -> None:
        """
        A payload may be anything bytes-like.
        """
        for flow in (IPv4Flow(A, 7000, B, 7001, 64), IPv6Flow(A6, 7000, B6, 7001, 64)):
            for kind in (bytearray, memoryview):
                self.assertEqual(flow.frame(kind(b"hello")), flow.frame(b"hello"))

    def test_checksumOfZero(self) -> None:
        """
        A checksum that would be 0, which says that there is none, is 65535 (RFC 768).
        """
        for flow, at in ((IPv4Flow(A, 7000, B, 7001, 64), 30), (IPv6Flow(A6, 7000, B6, 7001, 64), 50)):
            before = flow.frame(b"\0\0")[at : at + 2]
            self.assertEqual(flow.frame(before)[at : at + 2], b"\xff\xff")

    def test_headerChecksumOfZero(self) -> None:
        """
        That of an IPv4 header is 0 then.
        """
        flow = IPv4Flow(A, 7000, B, 7001, 64)
        checksum = int.from_bytes(flow.frame(b"")[14:16], "big")
        address = (int.from_bytes(B, "big") + checksum).to_bytes(4, "big")
        frame = IPv4Flow(A, 7000, address, 7001, 64).frame(b"")
        self.assertEqual(frame[14:16], b"\0\0")
        IPPacket.parse(frame[4:])

    def test_longest(self) -> None:
        """
        The longest payloads that there can be.
        """
        for flow, longest in (
            (IPv4Flow(A, 1, B, 2, 64), LONGEST_IPV4),
            (IPv6Flow(A6, 1, B6, 2, 64), LONGEST_IPV6),
        ):
            self.assertEqual(flow.longest, longest)
            segment = UDPSegment.parse(IPPacket.parse(flow.frame(bytes(longest))[4:]))
            self.assertEqual(segment.stop - segment.start, longest)


class SegmentTests(SynchronousTestCase):
    """
    What packets hold.
    """

    def test_linux(self) -> None:
        """
        Datagrams of Linux.
        """
        for packet in (vectors.HELLO, vectors.HELLO_EVEN, vectors.HELLO_IPV6):
            segment = UDPSegment.parse(IPPacket.parse(packet))
            self.assertEqual((segment.sourcePort, segment.destinationPort), (7000, 7001))
            self.assertEqual(packet[segment.start : segment.stop].rstrip(b"!"), b"hello")

    def test_noChecksum(self) -> None:
        """
        IPv4 may do without a checksum, IPv6 may not (RFC 8200 section 8.1).
        """
        self.assertEqual(UDPSegment.parse(IPPacket.parse(vectors.STRAY)).destinationPort, 9999)
        packet = bytearray(vectors.HELLO_IPV6)
        packet[46:48] = b"\0\0"
        with self.assertRaises(HeaderError):
            UDPSegment.parse(IPPacket.parse(bytes(packet)))

    def test_anyBit(self) -> None:
        """
        No octet of the datagram can be another, but for the length, whose errors have a name of their own.
        """
        for packet, start in ((vectors.HELLO, 20), (vectors.HELLO_IPV6, 40)):
            for at in range(start, len(packet)):
                wrong = bytearray(packet)
                wrong[at] ^= 1
                with self.assertRaises((HeaderError, LengthError)):
                    UDPSegment.parse(IPPacket.parse(bytes(wrong)))

    def test_lengths(self) -> None:
        """
        A header that is cut short, and lengths that cannot be.
        """
        ip = IPPacket.parse(vectors.STRAY)
        with self.assertRaises(LengthError):
            UDPSegment.parse(IPPacket(ip.packet, 4, A, B, 17, 64, 20, 27))
        for length in (7, 14):
            packet = bytearray(vectors.STRAY)
            pack_into("!H", packet, 24, length)
            with self.assertRaises(LengthError):
                UDPSegment.parse(IPPacket.parse(bytes(packet)))

    def test_padding(self) -> None:
        """
        Octets of the packet behind the datagram are no part of it.
        """
        packet = bytearray(vectors.STRAY)
        pack_into("!H", packet, 24, 12)
        segment = UDPSegment.parse(IPPacket.parse(bytes(packet)))
        self.assertEqual(packet[segment.start : segment.stop], b"hell")
