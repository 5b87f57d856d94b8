"""
Tests for L{twisted_ib.ipoib.protocol.stack.packets}.
"""

from __future__ import annotations

from itertools import permutations

from twisted.trial.unittest import SynchronousTestCase

from tests.ipoib.protocol.stack import vectors
from tests.ipoib.protocol.stack.vectors import A6, B6, A, B
from twisted_ib import limits
from twisted_ib.ipoib.protocol.stack.packets import IPPacket, Reassembly, fragments


def pieces(segment: bytes, mtu: int = 60, identification: int = 1, isIPv6: bool = False) -> list[IPPacket]:
    """
    @return: the fragments of a packet.
    """
    source, destination = (B6, A6) if isIPv6 else (B, A)
    frames = fragments(source, destination, 17, 64, segment, mtu, identification)
    return [IPPacket.parse(frame[4:]) for frame in frames]


def piece(offset: int, data: bytes, isMore: bool = True, identification: int = 1) -> IPPacket:
    """
    @return: one fragment.
    """
    return IPPacket(data, 4, B, A, 17, 64, 0, len(data), identification, offset, isMore)


class ReassemblyTests(SynchronousTestCase):
    """
    Fragments, and packets that become whole.
    """

    def setUp(self) -> None:
        """
        Nothing has come.
        """
        self.reassembly = Reassembly()

    def test_linux(self) -> None:
        """
        The packets of Linux.
        """
        for packets, start in ((vectors.FRAGMENTS, 20), (vectors.FRAGMENTS_IPV6, 48)):
            first, last = map(IPPacket.parse, packets)
            self.assertIs(self.reassembly.add(first, 0.0), None)
            self.assertEqual(self.reassembly.add(last, 0.0), packets[0][start:] + packets[1][start:])
        self.assertEqual(len(self.reassembly), 0)

    def test_orders(self) -> None:
        """
        They may come in any order, and repeated.
        """
        segment = bytes(range(110))
        for isIPv6, mtu in ((False, 60), (True, 88)):
            parts = pieces(segment, mtu, isIPv6=isIPv6)
            self.assertEqual(len(parts), 3)
            for order in permutations(parts):
                for each in order[:2]:
                    self.assertIs(self.reassembly.add(each, 0.0), None)
                    self.assertIs(self.reassembly.add(each, 0.0), None)
                self.assertEqual(self.reassembly.add(order[2], 0.0), segment)

    def test_longest(self) -> None:
        """
        A packet has 65,535 octets at most; over IPv6 the header does not count.
        """
        for isIPv6, longest in ((False, 65515), (True, 65535)):
            segment = bytes(longest)
            *rest, last = pieces(segment, 1280, isIPv6=isIPv6)
            for each in rest:
                self.reassembly.add(each, 0.0)
            self.assertEqual(self.reassembly.add(last, 0.0), segment)
        self.reassembly.add(piece(65504, bytes(12), isMore=False), 0.0)
        self.assertEqual(len(self.reassembly), 0)

    def test_overlaps(self) -> None:
        """
        Fragments that overlap give up the packet (RFC 5722): before, behind, with other contents, behind the
        end, and with a second end.
        """
        wrong = [
            [piece(0, bytes(16)), piece(8, bytes(16))],
            [piece(8, bytes(16)), piece(0, bytes(16))],
            [piece(8, bytes(8)), piece(8, b"x" * 8)],
            [piece(8, bytes(8), isMore=False), piece(16, bytes(8))],
            [piece(16, bytes(8)), piece(8, bytes(8), isMore=False)],
            [piece(8, bytes(8), isMore=False), piece(16, bytes(8), isMore=False)],
            [piece(0, bytes(8)), piece(0, bytes(16), isMore=False)],
        ]
        for first, second in wrong:
            self.assertIs(self.reassembly.add(first, 0.0), None)
            self.assertEqual(len(self.reassembly), 1)
            self.assertIs(self.reassembly.add(second, 0.0), None)
            self.assertEqual(len(self.reassembly), 0)

    def test_ignored(self) -> None:
        """
        A fragment without anything, or one in the middle that has no multiple of 8 octets.
        """
        self.reassembly.add(piece(8, b"", isMore=False), 0.0)
        self.reassembly.add(piece(8, bytes(9)), 0.0)
        self.assertEqual(len(self.reassembly), 0)

    def test_separate(self) -> None:
        """
        Fragments of other packets are no part of one.
        """
        self.reassembly.add(piece(0, bytes(8)), 0.0)
        self.reassembly.add(piece(8, bytes(8), isMore=False, identification=2), 0.0)
        self.assertEqual(len(self.reassembly), 2)

    def test_time(self) -> None:
        """
        A packet waits for its rest for some time only.
        """
        first, last = pieces(bytes(48))
        self.reassembly.add(first, 0.0)
        self.assertIs(self.reassembly.add(last, limits.IP_REASSEMBLY_SECONDS), None)
        self.assertEqual(len(self.reassembly), 1)
        self.assertEqual(self.reassembly.add(first, limits.IP_REASSEMBLY_SECONDS + 1), bytes(48))

    def test_packets(self) -> None:
        """
        So many packets wait: the oldest is given up for another.
        """
        for identification in range(limits.IP_REASSEMBLIES + 1):
            self.reassembly.add(piece(0, bytes(8), identification=identification), 0.0)
        self.assertEqual(len(self.reassembly), limits.IP_REASSEMBLIES)
        self.assertIs(self.reassembly.add(piece(8, bytes(8), isMore=False, identification=0), 0.0), None)
        self.assertEqual(
            self.reassembly.add(piece(8, bytes(8), isMore=False, identification=2), 0.0), bytes(16)
        )

    def test_fragments(self) -> None:
        """
        A packet has so many fragments; with another it is given up.
        """
        for number in range(limits.IP_FRAGMENTS):
            self.reassembly.add(piece(number * 16, bytes(8)), 0.0)
        self.assertEqual(len(self.reassembly), 1)
        self.reassembly.add(piece(limits.IP_FRAGMENTS * 16, bytes(8)), 0.0)
        self.assertEqual(len(self.reassembly), 0)
