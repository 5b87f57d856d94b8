"""
Tests of L{twisted_ib.hca.wire.packet}, L{twisted_ib.hca.wire.opcodes},
L{twisted_ib.hca.wire.rocev2} and L{twisted_ib.hca.wire.icrc} on packets of real kernels.
"""

from __future__ import annotations

import sys
from importlib import reload
from typing import Any
from unittest import mock

import attrs
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.support import packets
from tests.support.generated import given
from tests.support.packets import fits, parseDatagram
from twisted_ib.errors import OpcodeError, WireError
from twisted_ib.hca.base import operation
from twisted_ib.hca.wire import headers, icrc, opcodes
from twisted_ib.hca.wire.extended import EXTENDED_HEADERS, ImmediateData, MemoryHeader
from twisted_ib.hca.wire.opcodes import MTU_BYTES, OPCODES, UNRELIABLE, Kind
from twisted_ib.hca.wire.packet import BaseHeader, Packet
from twisted_ib.hca.wire.rocev2 import (
    UDPDatagram,
    datagramPort,
    ethernet,
    flowLabel,
    hardwareAddress,
    ipVersion,
    sourcePort,
)

ICRC_BYTES = 4
#: By name, all packets.
ALL = {name: octets for name, octets in vars(packets).items() if isinstance(octets, bytes)}
CLIENT, SERVER = 0xFFFF0A4D0002, 0xFFFF0A4D0003


def packetOf(octets: bytes) -> Packet:
    """
    The packet in an IP packet.
    """
    body = octets[28:] if octets[0] >> 4 == 4 else octets[48:]
    return Packet.parse(body, 0, len(body))


class KernelTests(SynchronousTestCase):
    """
    Packets of Linux, parsed and packed again.
    """

    def test_rebuilt(self) -> None:
        """
        Parsed and packed, every packet is the same octets, its invariant CRC included.
        """
        self.assertEqual(len(ALL), 15)
        for name, octets in ALL.items():
            datagram = parseDatagram(octets, 0, len(octets))
            self.assertEqual(datagram.pack(), octets, name)
            packet = packetOf(octets)
            self.assertEqual(packet.pack(), datagram.body, name)
            self.assertTrue(fits(packet.row, len(packet.payload), 1024), name)

    def test_within(self) -> None:
        """
        A packet is found within a buffer, as Ethernet may have padded it.
        """
        buffer = memoryview(b"\xee" * 3 + packets.SEND + b"\xee" * 9)
        found = parseDatagram(buffer, 3, len(buffer))
        self.assertEqual(found.pack(), packets.SEND)
        self.assertEqual(bytes(found.body), packets.SEND[28:-4])

    def test_fields(self) -> None:
        """
        The numbers are where they were put.
        """
        self.assertEqual(
            packetOf(packets.WRITE_IMMEDIATE),
            Packet(
                BaseHeader(0x0B, 0x20, 0x3494F6, acknowledge=True),
                (MemoryHeader(0x7F4C9C003010, 0x176D, 16), ImmediateData(0x80000180)),
                packets.WRITE_IMMEDIATE[60:76],
            ),
        )
        self.assertEqual(packetOf(packets.READ)["length"], 64)
        self.assertEqual(packetOf(packets.ACKNOWLEDGE)["acknowledge"], headers.ACK << 24 | 1)
        self.assertEqual(packetOf(packets.FETCH_ADD)["operand"], 1)
        self.assertEqual(packetOf(packets.ATOMIC_ACKNOWLEDGE)["original"], 0xDAF89D355D012D3)
        self.assertEqual(packetOf(packets.SEND_INVALIDATE)["invalidateKey"], 0x3EF)
        datagram = packetOf(packets.DATAGRAM_IMMEDIATE)
        self.assertEqual([datagram[name] for name in ("queueKey", "source")], [0x1234567, 0x1E])
        self.assertRaises(KeyError, datagram.__getitem__, "address")

    def test_addresses(self) -> None:
        """
        Addresses, ports and what IP counts.
        """
        self.assertEqual(
            attrs.evolve(parseDatagram(packets.SEND, 0, len(packets.SEND)), body=b""),
            UDPDatagram(CLIENT, SERVER, 0xF65D, b"", identification=0x5FBC),
        )
        found = parseDatagram(packets.IPV6_SEND, 0, len(packets.IPV6_SEND))
        self.assertEqual(found.source, 0xFD77 << 112 | 2)
        self.assertEqual(ipVersion(found.source, found.destination), 6)


class SheetTests(SynchronousTestCase):
    """
    Worked examples.
    """

    body = Packet(BaseHeader(4, 0x11, 0xABC, solicited=True, acknowledge=True), payload=b"hello").pack()

    def test_body(self) -> None:
        """
        The BTH, and a pad of three octets.
        """
        self.assertEqual(self.body.hex(), "04b0ffff0000001180000abc68656c6c6f000000")

    def test_ipv4(self) -> None:
        """
        An IPv4 packet.
        """
        found = UDPDatagram(
            *(0xFFFFC0000201, 0xFFFFC0000202, 0xC001, self.body),
            trafficClass=2,
            identification=0x1234,
        ).pack()
        self.assertEqual(found[:20].hex(), "45020034123440004011a47fc0000201c0000202")
        self.assertEqual(found[-4:].hex(), "448d7fe2")

    def test_ipv6(self) -> None:
        """
        An IPv6 packet.
        """
        prefix = 0x20010DB8 << 96
        datagram = UDPDatagram(prefix | 1, prefix | 2, 0xC001, self.body, trafficClass=2)
        self.assertEqual(datagram.pack()[-4:].hex(), "01446258")
        # With a checksum the sum over what it covers is all ones; the ICRC is the same.
        summed = attrs.evolve(datagram, checksum=None).pack()
        self.assertEqual(summed[-4:].hex(), "01446258")
        covered = summed[8:] + bytes(3) + b"\x11" + len(summed[40:]).to_bytes(4, "big")
        words = sum(int.from_bytes(covered[n : n + 2], "big") for n in range(0, len(covered), 2))
        self.assertEqual(words % 0xFFFF, 0)
        self.assertNotEqual(summed[46:48], b"\0\0")

    def test_slower(self) -> None:
        """
        Without C{isal} the CRC is the same.
        """
        expected = icrc.icrc(packets.WRITE, 0, len(packets.WRITE) - ICRC_BYTES)
        self.addCleanup(reload, icrc)
        with mock.patch.dict(sys.modules, {"isal": None, "isal.isal_zlib": None}):
            reload(icrc)
            self.assertEqual((icrc.crc32.__module__, icrc.CRC32_LIBRARY), ("zlib", "zlib"))
            self.assertEqual(icrc.icrc(packets.WRITE, 0, len(packets.WRITE) - ICRC_BYTES), expected)

    def test_ports(self) -> None:
        """
        UDP source ports are those that Linux uses.
        """
        self.assertEqual([sourcePort(label) for label in (0x12345, 0x2F656)], [0xE341, 0xF65D])
        self.assertEqual(sourcePort(flowLabel(0x11, 0x22)), 0xC242)
        self.assertEqual([flowLabel(0x22, 0x11), flowLabel(0xFFFFFF, 0xFFFFFE)], [0x242, 0xFFF2D])
        self.assertEqual([datagramPort(1), datagramPort(22)], [55410, 0xD9CE])

    def test_ethernet(self) -> None:
        """
        Groups have addresses of their own.
        """
        own = b"\x02\0\0\0\0\1"
        self.assertEqual(hardwareAddress(0xFF02 << 112 | 0x1FF000001, own).hex(), "3333ff000001")
        self.assertEqual(hardwareAddress(0xFFFFEF810203, own).hex(), "01005e010203")
        self.assertEqual(hardwareAddress(SERVER, own), own)
        self.assertEqual(ethernet(own, b"\xff" * 6, 6).hex(), "ffffffffffff02000000000186dd")


class HostileTests(SynchronousTestCase):
    """
    Invalid packets raise L{WireError} and nothing else.
    """

    def test_damaged(self) -> None:
        """
        A packet with one octet changed is refused, but for the octets that routers change.
        """
        for name in ("SEND", "IPV6_SEND"):
            octets = ALL[name]
            changeable = {1, 8, 10, 11, 26, 27, 32} if name == "SEND" else {0, 1, 2, 3, 7, 46, 47, 52}
            for n in range(len(octets)):
                damaged = bytearray(octets)
                damaged[n] ^= 0x01
                try:
                    parseDatagram(damaged, 0, len(damaged))
                except WireError:
                    self.assertNotIn(n, changeable - {0}, name)
                else:
                    self.assertIn(n, changeable, name)

    def test_short(self) -> None:
        """
        A truncated packet is refused.
        """
        for octets in ALL.values():
            body = octets[28:] if octets[0] >> 4 == 4 else octets[48:]
            least = OPCODES[body[0]].start + ICRC_BYTES
            body = body[:1] + bytes((body[1] & 0xCF,)) + body[2:]  # no pad
            for size in range(0, len(octets), 7):
                self.assertRaises(WireError, parseDatagram, octets, 0, size)
            for size in range(least):
                self.assertRaises(WireError, Packet.parse, body, 0, size)
            Packet.parse(body, 0, least)
        self.assertRaises(WireError, Packet.parse, body, 0, len(body) + 1)
        self.assertRaises(WireError, Packet.parse, body, -1, len(body))
        self.assertRaises(WireError, parseDatagram, octets, 0, len(octets) + 1)
        self.assertRaises(WireError, icrc.icrc, b"", 0, 0)

    def test_refused(self) -> None:
        """
        Another version, an operation code without a row, IP options, fragments.
        """
        body = bytearray(packets.SEND[28:])
        body[1] |= 1
        self.assertRaises(WireError, Packet.parse, body, 0, len(body))
        for code in set(range(256)) - set(OPCODES):
            body = bytearray(packets.SEND[28:])
            body[0] = code
            self.assertRaises(WireError, Packet.parse, body, 0, len(body))
            self.assertRaises(OpcodeError, Packet(BaseHeader(code, 1, 1)).pack)
            self.assertRaises(OpcodeError, Packet.of, BaseHeader(code, 1, 1))
        for n, value in ((0, 0x46), (6, 0x60), (7, 1), (9, 6), (3, 0x20), (22, 0x13), (23, 0xB8), (25, 0x20)):
            octets = bytearray(packets.SEND)
            octets[n] = value
            self.assertRaises(WireError, parseDatagram, octets, 0, len(octets))
        # With an ICRC that is right for them.
        for n, value in ((6, 0x60), (7, 1), (25, 0x24), (25, 0x2C)):
            octets = bytearray(packets.SEND)
            octets[n] = value
            octets[-4:] = headers.ICRC.pack(icrc.icrc(octets, 0, len(octets) - 4))
            self.assertRaises(WireError, parseDatagram, octets, 0, len(octets))
        self.assertRaises(WireError, icrc.icrc, b"\x46" + packets.SEND[1:], 0, 50)

    @given(st.binary(max_size=120), st.sampled_from(sorted(ALL)), st.integers(0, 80))
    def test_anything(self, noise: bytes, name: str, at: int) -> None:
        """
        Random octets, in packets too.
        """
        octets = ALL[name]
        for data in (noise, octets[:at] + noise + octets[at + len(noise) :]):
            for parse in (Packet.parse, parseDatagram):
                try:
                    parse(data, 0, len(data))
                except WireError:
                    pass

    def test_tooLarge(self) -> None:
        """
        A field that does not fit is refused when packing.
        """
        for wrong in (
            Packet(BaseHeader(4, 1 << 24, 0)),
            Packet(BaseHeader(4, 0, 1 << 24)),
            Packet(BaseHeader(4, 0, 0, partition=1 << 16)),
            Packet(BaseHeader(4, 0, 0, reserved=1 << 13)),
            Packet(BaseHeader(4, 0, -1)),
            Packet(BaseHeader(4, 0, 0), (ImmediateData(1),)),
            Packet(BaseHeader(0x0C, 0, 0), (ImmediateData(1), ImmediateData(2))),
            Packet(BaseHeader(0x0C, 0, 0), (MemoryHeader(1, 2, 1 << 32),)),
        ):
            self.assertRaises(WireError, wrong.pack)
        for datagram in (
            UDPDatagram(CLIENT, SERVER, 1 << 16, b""),
            UDPDatagram(CLIENT, SERVER, 1, bytes(1 << 16)),
            UDPDatagram(CLIENT, SERVER, 1, b"", trafficClass=256),
            UDPDatagram(1, SERVER, 1, b"", trafficClass=256),
            UDPDatagram(1, SERVER, 1, b"", flowLabel=1 << 20),
            UDPDatagram(1, SERVER, 1, b"", hopLimit=256),
        ):
            self.assertRaises(WireError, datagram.pack)


@st.composite
def anyPacket(draw: Any) -> Packet:
    """
    A packet of any kind.
    """
    row = OPCODES[draw(st.sampled_from(sorted(OPCODES)))]
    numbers = []
    for header in row.headers:
        for letter in header.format.lstrip(">"):
            numbers.append(draw(st.integers(0, (1 << (64 if letter == "Q" else 32)) - 1)))
    bits = st.booleans()
    bth = BaseHeader(
        *(row.code, draw(st.integers(0, 0xFFFFFF)), draw(st.integers(0, 0xFFFFFF))),
        *(draw(bits), draw(bits), draw(bits), draw(bits), draw(bits)),
        *(draw(st.integers(0, 0xFFFF)), draw(st.integers(0, 0x1FFF))),
    )
    return Packet.of(bth, numbers, draw(st.binary(max_size=40)))


class RoundTripTests(SynchronousTestCase):
    """
    A packed packet parses to the same.
    """

    @given(anyPacket())
    def test_packet(self, packet: Packet) -> None:
        """
        A packet, padded to whole words.
        """
        octets = packet.pack()
        self.assertEqual(len(octets) % 4, 0)
        self.assertEqual(Packet.parse(octets + bytes(4), 0, len(octets) + 4), packet)

    @given(
        st.sampled_from([(CLIENT, SERVER), (CLIENT, 1), (1 << 127, 2)]),
        st.integers(0, 0xFFFF),
        anyPacket(),
        st.tuples(st.integers(0, 255), st.integers(0, 255)),
        st.integers(0, 0xFFFF),
    )
    def test_datagram(
        self, gids: tuple[int, int], port: int, packet: Packet, octets: tuple[int, int], other: int
    ) -> None:
        """
        An IP packet of either version.
        """
        four = ipVersion(*gids) == 4
        label, identification = (0, other) if four else (other, 0)
        datagram = UDPDatagram(*gids, port, packet.pack(), *octets, label, identification)
        packed = datagram.pack()
        self.assertEqual(parseDatagram(packed, 0, len(packed)), datagram)


class TableTests(SynchronousTestCase):
    """
    The table of operation codes.
    """

    def test_complete(self) -> None:
        """
        There is a row for each code: those of reliable connections, half of them for unreliable
        ones, two for datagrams, and the congestion notification.
        """
        reliable = [*range(0x15), 0x16, 0x17, 0x1C, 0x1D]
        unreliable = [UNRELIABLE | code for code in range(0x0C)]
        self.assertEqual(sorted(OPCODES), [*reliable, *unreliable, 0x64, 0x65, 0x81])
        for code, row in OPCODES.items():
            self.assertEqual(row.code, code)
            fields = sum(len(EXTENDED_HEADERS[header]._fields) for header in row.headers)
            self.assertEqual(fields, len(row.layout.unpack(bytes(row.layout.size))))

    def test_shapes(self) -> None:
        """
        Some rows, as IBTA has them: bytes of headers, payload, place in the message.
        """
        mtu = MTU_BYTES[3]
        for code, start, good, misfits, place in (
            (0x00, 12, [mtu], [0, mtu - 1, mtu + 1], "br"),
            (0x02, 12, [1, mtu], [0, mtu + 1], "e"),
            (0x04, 12, [0, 1, mtu], [mtu + 1], "ber"),
            (0x09, 16, [1, mtu], [0], "er"),
            (0x0B, 32, [0, mtu], [mtu + 1], "ber"),
            (0x0C, 28, [0], [1], "be"),
            (0x0D, 16, [mtu], [1], "b"),
            (0x0E, 12, [mtu], [1], ""),
            (0x12, 24, [0], [8], "be"),
            (0x13, 40, [0], [8], "be"),
            (0x16, 16, [1, mtu], [0], "e"),
            (0x1C, 32, [0], [1], "be"),
            (0x1D, 28, [8], [0, 7, 9], "be"),
            (0x2B, 32, [0, mtu], [mtu + 1], "ber"),
            (0x65, 24, [0, mtu], [mtu + 1], "ber"),
            (0x81, 12, [16], [0, 15], "be"),
        ):
            row = OPCODES[code]
            self.assertEqual(row.start, start, row.name)
            self.assertEqual([fits(row, length, mtu) for length in good], [True] * len(good), row.name)
            self.assertEqual([fits(row, length, mtu) for length in misfits], [False] * len(misfits), row.name)
            self.assertEqual((row.begins, row.ends, row.takesReceive), tuple(m in place for m in "ber"))

    def test_responses(self) -> None:
        """
        Which opcodes are for a requester, and which a record may have.
        """
        responses = {code for code, row in OPCODES.items() if not row.isRequest}
        self.assertEqual(responses, {0x0D, 0x0E, 0x0F, 0x10, 0x11, 0x12})
        self.assertEqual({code & operation.OPERATION_MASK for code in operation.RESPONSES}, responses)
        self.assertIs(OPCODES[0x2A].kind, Kind.WRITE)

    def test_numbersOnce(self) -> None:
        """
        Records have the codes of packets.
        """
        for name in filter(str.isupper, vars(operation)):
            self.assertIs(getattr(opcodes, name, getattr(operation, name)), getattr(operation, name))
        self.assertNotIn(operation.RESUME, OPCODES)
