"""
Tests for L{twisted_ib.ipoib.protocol.stack.packets}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.ipoib.protocol.stack import vectors
from tests.ipoib.protocol.stack.vectors import A6, B6, LONG, A, B
from twisted_ib.errors import HeaderError, LengthError
from twisted_ib.ipoib.protocol.ip import checksum
from twisted_ib.ipoib.protocol.stack.packets import IPPacket, fragments, isGroup


def ipv6(nextHeader: int, rest: bytes) -> bytes:
    """
    @return: a packet from B to A.
    """
    return b"\x60\0\0\0" + len(rest).to_bytes(2, "big") + bytes((nextHeader, 64)) + B6 + A6 + rest


class ParseTests(SynchronousTestCase):
    """
    Headers.
    """

    def test_ipv4(self) -> None:
        """
        A packet of Linux.
        """
        ip = IPPacket.parse(vectors.HELLO)
        self.assertEqual(
            ip,
            IPPacket(vectors.HELLO, 4, A, B, 17, 64, 20, 33, identification=0xF1E1, offset=0, isMore=False),
        )
        self.assertFalse(ip.isFragment)

    def test_ipv6(self) -> None:
        """
        The same.
        """
        self.assertEqual(
            IPPacket.parse(vectors.HELLO_IPV6), IPPacket(vectors.HELLO_IPV6, 6, A6, B6, 17, 64, 40, 53)
        )

    def test_cut(self) -> None:
        """
        Each length but the whole is refused.
        """
        for packet in (vectors.HELLO, vectors.HELLO_IPV6, ipv6(0, b"\x11\0" + bytes(14))):
            for length in range(len(packet)):
                with self.assertRaises((HeaderError, LengthError)):
                    IPPacket.parse(packet[:length])

    def test_behind(self) -> None:
        """
        Octets behind the packet are no part of it.
        """
        self.assertEqual(IPPacket.parse(vectors.HELLO + b"more").stop, 33)
        self.assertEqual(IPPacket.parse(vectors.HELLO_IPV6 + b"more").stop, 53)

    def test_versions(self) -> None:
        """
        There are two.
        """
        for first in (0, 0x55, 0x75, 0xF5):
            with self.assertRaises(HeaderError):
                IPPacket.parse(bytes((first,)) + vectors.HELLO[1:])

    def test_headerLength(self) -> None:
        """
        An IPv4 header has 20 octets at least; options may follow.
        """
        with self.assertRaises(LengthError):
            IPPacket.parse(b"\x44" + vectors.HELLO[1:])
        header = bytearray(b"\x46" + vectors.HELLO[1:20] + b"\1\1\1\0")
        header[10:12] = b"\0\0"
        header[10:12] = checksum(bytes(header)).to_bytes(2, "big")
        self.assertEqual(IPPacket.parse(bytes(header) + bytes(13)).start, 24)

    def test_headerChecksum(self) -> None:
        """
        No bit of an IPv4 header can be another.
        """
        for at in range(20):
            packet = bytearray(vectors.HELLO)
            packet[at] ^= 2
            with self.assertRaises((HeaderError, LengthError)):
                IPPacket.parse(bytes(packet))

    def test_groups(self) -> None:
        """
        A group sends nothing.
        """
        (frame,) = fragments(b"\xe0\0\0\1", A, 17, 64, b"", 1280, 0)
        with self.assertRaises(HeaderError):
            IPPacket.parse(frame[4:])
        with self.assertRaises(HeaderError):
            IPPacket.parse(ipv6(17, b"").replace(B6, b"\xff" + B6[1:]))
        self.assertEqual(
            [isGroup(each) for each in (A, A6, b"\xef\0\0\1", b"\xff" * 4)], [False, False, True, True]
        )
        self.assertTrue(isGroup(b"\xff\x02" + bytes(14)))

    def test_extensions(self) -> None:
        """
        Extension headers are passed over: hop by hop, destination options, a used up routing header, and the
        Fragment header of a packet that is whole.
        """
        rest = (
            b"\x3c\1"
            + bytes(14)
            + b"\x2b\0"
            + bytes(6)
            + b"\x2c\0\4\0"
            + bytes(4)
            + b"\x11\0\0\0\0\0\0\7"
            + b"x"
        )
        ip = IPPacket.parse(ipv6(0, rest))
        self.assertEqual((ip.protocol, ip.start, ip.stop), (17, 80, 81))
        self.assertFalse(ip.isFragment)

    def test_extensionsRefused(self) -> None:
        """
        A routing header with addresses left (RFC 5095), one that is longer than the packet, and too many.
        """
        with self.assertRaises(HeaderError):
            IPPacket.parse(ipv6(43, b"\x11\0\0\1" + bytes(4)))
        with self.assertRaises(LengthError):
            IPPacket.parse(ipv6(0, b"\x11\1" + bytes(6)))
        self.assertEqual(IPPacket.parse(ipv6(0, (b"\0" + bytes(7)) * 6 + b"\x11" + bytes(7))).protocol, 17)
        with self.assertRaises(HeaderError):
            IPPacket.parse(ipv6(0, (b"\0" + bytes(7)) * 7 + b"\x11" + bytes(7)))


class FragmentsTests(SynchronousTestCase):
    """
    Packets that are longer than the path takes.
    """

    def test_linux(self) -> None:
        """
        They are what Linux makes of them: its MTU here is 1,280; over IPv4 it leaves 4 octets unused.
        """
        segment = vectors.FRAGMENTS[0][20:] + vectors.FRAGMENTS[1][20:]
        frames = list(fragments(A, B, 17, 64, segment, 1280, 0xF28C))
        self.assertEqual(frames, [b"\x08\0\0\0" + packet for packet in vectors.FRAGMENTS])

    def test_linuxIPv6(self) -> None:
        """
        The same, but for the flow label.
        """
        segment = vectors.FRAGMENTS_IPV6[0][48:] + vectors.FRAGMENTS_IPV6[1][48:]
        frames = list(fragments(A6, B6, 17, 64, segment, 1280, 0xE9C52C96))
        self.assertEqual(
            frames, [b"\x86\xdd\0\0\x60\0\0\0" + packet[4:] for packet in vectors.FRAGMENTS_IPV6]
        )

    def test_parsed(self) -> None:
        """
        Fragments say where they belong.
        """
        for packets, size in ((vectors.FRAGMENTS, 1256), (vectors.FRAGMENTS_IPV6, 1232)):
            first, last = map(IPPacket.parse, packets)
            self.assertEqual((first.offset, first.isMore, first.protocol), (0, True, 17))
            self.assertEqual((last.offset, last.isMore, last.protocol), (size, False, 17))
            self.assertEqual(first.identification, last.identification)
            self.assertTrue(first.isFragment and last.isFragment)
            self.assertTrue(last.packet[last.start :] == LONG[size - 8 :])

    def test_one(self) -> None:
        """
        A packet that fits is whole, and is not to be fragmented.
        """
        for mtu, count in ((120, 1), (119, 2)):
            self.assertEqual(len(list(fragments(A, B, 17, 64, bytes(100), mtu, 1))), count)
        (frame,) = fragments(A, B, 17, 64, bytes(100), 120, 1)
        self.assertEqual(frame[4 + 6 : 4 + 8], b"\x40\0")
        (frame,) = fragments(A6, B6, 17, 64, bytes(100), 140, 1)
        self.assertEqual(IPPacket.parse(frame[4:]).protocol, 17)
