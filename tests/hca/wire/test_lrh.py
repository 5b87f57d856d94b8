"""
Tests of packets with a local route header: L{twisted_ib.hca.wire.lrh}.
"""

from __future__ import annotations

from attrs import evolve
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.support.generated import given
from twisted_ib.errors import HeaderError, InvariantCRCError, LengthError, WireError
from twisted_ib.hca.wire.lrh import LinkPacket, variantCRC
from twisted_ib.hca.wire.packet import Packet

#: The sample of IBTA vol. 1 7.8.3, without the CRCs: a WRITE on virtual lane 7.
SAMPLE = (
    "7012375c 000e17d2 0a202487 0087b1b3 000dec2a 01710a1c 015d4002 38f27a05 0000000e bb884d85 fd5cfba4"
    "728bc069 0ed40000"
)
#: Packets of real ports, from the capture of an InfiniBand link among Wireshark's samples: an ACK, and an ARP
#: request of IPoIB with a GRH.
ACK = "0002000400070001 1140ffff0087040800d40a55 1f000001 a8035550 3081"
ARP = (
    "0003c00000210004 6000000000541b00fe800000000000000002c9020024f636ff12401bffff000000000000ffffffff"
    "6440ffff00ffffff000020af 00000b1b00000405 080600000020080014040001"
    "80000405fe800000000000000002c9020024f6360a000122 00000000000000000000000000000000000000000a00003a"
    "bd6bd6a8 8883"
)
LIDS = st.integers(0, 0xFFFF)
NIBBLES = st.tuples(st.integers(0, 15), st.integers(0, 15))


class LinkPacketTests(SynchronousTestCase):
    """
    L{LinkPacket}.
    """

    def test_sample(self) -> None:
        """
        The ICRC is that of the specification's sample, whatever the virtual lane; the VCRC has that too.
        """
        head = bytes.fromhex(SAMPLE)
        packet = LinkPacket(0x17D2, 0x375C, head[8:], b"", 1, 7)
        self.assertEqual(packet.pack().hex(), head.hex() + "9625b75a" + "45fa")
        self.assertEqual(evolve(packet, virtualLane=0).pack()[-6:].hex(), "9625b75a" + "aa6a")

    def test_real(self) -> None:
        """
        Packets of real ports are read and made again; with a GRH the LRH does not count for the ICRC.
        """
        for text, source, target in ((ACK, 1, 4), (ARP, 4, 0xC000)):
            octets = bytes.fromhex(text)
            packet = LinkPacket.parse(octets)
            self.assertEqual((packet.source, packet.destination), (source, target))
            self.assertEqual((packet.serviceLevel, packet.virtualLane), (0, 0))
            self.assertEqual(packet.pack(), octets)
            found = Packet.parse(packet.body + bytes(4), 0, len(packet.body) + 4)
            self.assertEqual(found.pack(), packet.body)
            moved = evolve(packet, destination=5).pack()
            self.assertEqual(moved[-6:-2] == octets[-6:-2], bool(packet.grh))

    def test_bad(self) -> None:
        """
        Other packets are refused by name.
        """
        ack = bytes.fromhex(ACK)
        # In order: too short, another length, a raw packet, another version; then damage.
        for octets in (ack[:-4], ack + bytes(4), b""):
            self.assertRaises(LengthError, LinkPacket.parse, octets)
        for octets in (ack[:1] + b"\x01" + ack[2:], b"\x01" + ack[1:]):
            self.assertRaises(HeaderError, LinkPacket.parse, octets)
        self.assertRaises(LengthError, LinkPacket.parse, ack[:1] + b"\x03" + ack[2:])
        self.assertRaises(WireError, LinkPacket.parse, ack[:-1] + b"\0")
        damaged = ack[:20] + b"\0" + ack[21:-2]
        error = self.assertRaises(
            InvariantCRCError, LinkPacket.parse, damaged + variantCRC(damaged).to_bytes(2, "little")
        )
        self.assertIn("invariant", str(error))

    def test_misfits(self) -> None:
        """
        What no header can say is not packed.
        """
        body = bytes(12)
        for packet in (
            LinkPacket(1 << 16, 1, body),
            LinkPacket(1, -1, body),
            LinkPacket(1, 2, body, b"", 16),
            LinkPacket(1, 2, body, b"", 0, 16),
            LinkPacket(1, 2, body, bytes(8)),
        ):
            self.assertRaises(HeaderError, packet.pack)
        for body in (bytes(8), bytes(13), bytes(8192)):
            self.assertRaises(LengthError, LinkPacket(1, 2, body).pack)

    @given(LIDS, LIDS, st.binary(max_size=64), st.sampled_from((b"", bytes(range(40)))), NIBBLES)
    def test_thereAndBack(
        self, source: int, target: int, data: bytes, grh: bytes, nibbles: tuple[int, int]
    ) -> None:
        """
        A packet that was packed is read as it was.
        """
        packet = LinkPacket(source, target, bytes(12) + data[: len(data) & ~3], grh, *nibbles)
        self.assertEqual(LinkPacket.parse(packet.pack()), packet)
