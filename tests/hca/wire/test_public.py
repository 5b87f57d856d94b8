"""
Tests of what L{twisted_ib.hca.wire} exports: packets and management datagrams of real kernels and
of any kind, there and back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from struct import unpack_from

import attrs
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.hca.wire.test_packet import ALL, CLIENT, SERVER, anyPacket
from tests.support import packets
from tests.support.generated import given
from tests.support.packets import parseDatagram
from twisted_ib.errors import HeaderError, InvariantCRCError, LengthError, OpcodeError, WireError
from twisted_ib.hca import wire
from twisted_ib.hca.connection.rdmacm import RDMACMHeader
from twisted_ib.hca.wire import BaseHeader, Mad, Packet, decodeMAD, decodePacket, encodeMAD, encodePacket
from twisted_ib.hca.wire.cm import messages as cm
from twisted_ib.hca.wire.grh import packGRH, route
from twisted_ib.hca.wire.headers import ICRC
from twisted_ib.hca.wire.icrc import icrc
from twisted_ib.hca.wire.mad import classes
from twisted_ib.hca.wire.rocev2 import UDPDatagram

VECTORS = Path(__file__).resolve().parents[2] / "vectors"
#: Seeds of mutations; more are tried by L{tests.simulation}'s command.
MUTATIONS = 4000


def headerBytes(octets: bytes) -> int:
    """
    How long the IP and UDP header of an IP packet is.
    """
    return 28 if octets[0] >> 4 == 4 else 48


def split(octets: bytes) -> tuple[bytes, bytes]:
    """
    An IP packet's IP and UDP header, and the rest.
    """
    at = headerBytes(octets)
    return octets[:at], octets[at:]


def networkOf(source: int, destination: int, length: int) -> bytes:
    """
    An IP and UDP header.

    @param length: of what UDP carries.
    """
    return split(UDPDatagram(source, destination, 0xC001, bytes(length - 4)).pack())[0]


def sealed(octets: bytes) -> bytes:
    """
    An IP packet with an invariant CRC that is right for it.
    """
    return octets[:-4] + ICRC.pack(icrc(octets, 0, len(octets) - 4))


def captured(path: Path) -> list[bytes]:
    """
    The IP packets in UDP to port 4791 of a file.
    """
    data = path.read_bytes()
    found, at = [], 24
    while at < len(data):
        size = unpack_from("<I", data, at + 8)[0]
        octets = data[at + 30 : at + 16 + size]
        at += 16 + size
        version = octets[0] >> 4
        if octets[9 if version == 4 else 6] != 17 or version not in (4, 6):
            continue
        octets = octets[
            : unpack_from(">H", octets, 2)[0] if version == 4 else 40 + unpack_from(">H", octets, 4)[0]
        ]
        if split(octets)[0][-6:-4] == b"\x12\xb7":
            found.append(octets)
    return found


class CaptureTests(SynchronousTestCase):
    """
    Packets of other implementations, parsed and packed again.
    """

    def test_all(self) -> None:
        """
        Every packet of every file, invariant CRC included, and every MAD in them.
        """
        counts: Counter[str] = Counter()
        for path in sorted(VECTORS.glob("*.pcap")):
            for octets in captured(path):
                network, datagram = split(octets)
                packet = decodePacket(network, datagram)
                self.assertEqual(encodePacket(packet, network), datagram, path.name)
                self.assertEqual(decodePacket(memoryview(network), bytearray(datagram)), packet)
                counts[packet.row.name] += 1
                if packet.row.name == "UD SEND Only" and packet.bth.destination <= 1:
                    self.assertEqual(encodeMAD(decodeMAD(packet.payload)), packet.payload, path.name)
                    counts["MAD"] += 1
        self.assertEqual(sum(counts.values()) - counts["MAD"], 1219)
        self.assertEqual((len(counts), counts["MAD"], counts["CNP"]), (31, 77, 1))

    def test_exported(self) -> None:
        """
        The names are there, and no other ones.
        """
        for name in wire.__all__:
            self.assertTrue(hasattr(wire, name), name)


class PacketTests(SynchronousTestCase):
    """
    L{decodePacket} and L{encodePacket}.
    """

    @given(anyPacket(), st.sampled_from([(CLIENT, SERVER), (1 << 127, 2)]))
    def test_roundTrip(self, packet: Packet, gids: tuple[int, int]) -> None:
        """
        Every packet, whatever its bits are.
        """
        network = networkOf(*gids, len(packet.pack()) + 4)
        datagram = encodePacket(packet, network)
        self.assertEqual(decodePacket(network, datagram), packet)
        self.assertEqual(len(datagram) % 4, 0)

    def test_bits(self) -> None:
        """
        Each bit of a BTH is kept, but for those of the version, which is 0, and of what is
        computed or says what follows.
        """
        network, datagram = split(packets.SEND)
        fixed = {*range(8), *range(10, 16)}  # operation code; pad count and version
        seen = {decodePacket(network, datagram)}
        for bit in set(range(96)) - fixed:
            octets = bytearray(packets.SEND)
            octets[28 + bit // 8] ^= 0x80 >> bit % 8
            changed = split(sealed(bytes(octets)))[1]
            packet = decodePacket(network, changed)
            self.assertEqual(encodePacket(packet, network), changed, bit)
            seen.add(packet)
        self.assertEqual(len(seen), 1 + 96 - len(fixed))

    def test_congestion(self) -> None:
        """
        A congestion notification: BECN and 16 reserved octets.
        """
        packet = Packet(BaseHeader(0x81, 0x12, 0, backward=True), payload=bytes(16))
        network = networkOf(CLIENT, SERVER, 32)
        datagram = encodePacket(packet, network)
        self.assertEqual(datagram[:12].hex(), "8100ffff4000001200000000")
        self.assertEqual(decodePacket(network, datagram), packet)
        self.assertEqual(packet.row.name, "CNP")

    def test_errors(self) -> None:
        """
        Each kind of invalid packet raises its own error.
        """
        for octets in ALL.values():
            network, datagram = split(octets)
            for size in range(len(datagram)):
                self.assertRaises(LengthError, decodePacket, network, datagram[:size])
            self.assertRaises(LengthError, decodePacket, network, datagram + bytes(4))
            self.assertRaises(WireError, decodePacket, network[:-1], datagram)
            self.assertRaises(WireError, decodePacket, network[:-1], network[-1:] + datagram)
            self.assertRaises(WireError, decodePacket, b"", octets)
            self.assertRaises(WireError, decodePacket, octets, b"")
            damaged = bytearray(datagram)
            damaged[-1] ^= 1
            self.assertRaises(InvariantCRCError, decodePacket, network, damaged)
            packet = decodePacket(network, datagram)
            longer = attrs.evolve(packet, payload=packet.payload + bytes(4))
            self.assertRaises(LengthError, encodePacket, longer, network)
            self.assertRaises(WireError, encodePacket, packet, b"")
        for at, value, error in (
            (28, 0x15, OpcodeError),
            (28, 0xFF, OpcodeError),
            (29, 0x01, HeaderError),
            (28, 0x13, LengthError),  # headers that do not fit
            (29, 0x30, LengthError),  # a pad without a payload
            (22, 0x13, HeaderError),
        ):
            octets = packets.ACKNOWLEDGE
            octets = sealed(octets[:at] + bytes((value,)) + octets[at + 1 :])
            self.assertRaises(error, decodePacket, *split(octets))
        # A pad that is not zeros, and a packet of no whole words.
        body = bytearray(Packet(BaseHeader(4, 1, 1), payload=b"hello").pack())
        network = networkOf(CLIENT, SERVER, len(body) + 4)
        body[-1] = 1
        self.assertRaises(WireError, decodePacket, *split(sealed(network + body + bytes(4))))
        network = networkOf(CLIENT, SERVER, len(body) + 3)
        self.assertRaises(LengthError, decodePacket, *split(sealed(network + body + bytes(3))))


#: Every class of management that has a name, and some that have none.
CLASSES = (
    *(0x01, 0x81, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0F, 0x10, 0x11, 0x12, 0x20, 0x21),
    *(0x30, 0x32, 0x4F, 0x50, 0xFF),
)


class MADTests(SynchronousTestCase):
    """
    L{decodeMAD} and L{encodeMAD}.
    """

    @given(st.sampled_from(CLASSES), st.binary(min_size=254, max_size=254))
    def test_roundTrip(self, managementClass: int, rest: bytes) -> None:
        """
        Every octet of every class is kept.
        """
        octets = bytes((1, managementClass)) + rest
        mad = decodeMAD(octets)
        self.assertEqual(mad.managementClass, managementClass)
        self.assertEqual(encodeMAD(mad), octets)

    @given(st.sampled_from(cm.MESSAGES), st.binary(min_size=232, max_size=232))
    def test_messages(self, kind: type[cm.AnyMessage], body: bytes) -> None:
        """
        Messages of the communication manager are themselves.
        """
        octets = b"\1\7\2\3" + bytes(12) + kind.attribute.to_bytes(2, "big") + bytes(6) + body
        mad = decodeMAD(octets)
        self.assertIs(type(mad.data), kind)
        self.assertEqual(encodeMAD(mad), octets)

    def test_places(self) -> None:
        """
        Where each class has its attribute, and what is in front of it.
        """
        octets = bytes(range(256))
        expected = {
            0x01: (64, 64),
            0x81: (64, 64),
            0x03: (56, 200),
            **dict.fromkeys((0x04, 0x05, 0x06, 0x21), (64, 192)),
            **dict.fromkeys((0x10, 0x12), (36, 220)),
            **dict.fromkeys((0x30, 0x4F), (40, 216)),
            **dict.fromkeys((0x07, 0x08, 0x09, 0x0F, 0x11, 0x20, 0x50), (24, 232)),
        }
        for managementClass, (start, size) in expected.items():
            mad = decodeMAD(b"\1" + bytes((managementClass,)) + octets[2:])
            self.assertEqual(mad.data, octets[start : start + size], hex(managementClass))
        administration = decodeMAD(b"\1\3" + octets[2:]).header
        self.assertEqual(
            administration,
            classes.AdministrationHeader(
                classes.RMPPHeader(24, 25, 26 >> 3, 26 & 7, 27, 0x1C1D1E1F, 0x20212223),
                *(0x2425262728292A2B, 0x2C2D, 0x2E2F, 0x3031323334353637),
            ),
        )
        vendor = decodeMAD(b"\1\x32" + octets[2:]).header
        assert isinstance(vendor, classes.OrganizationHeader)
        self.assertEqual((vendor.reserved, vendor.organization), (36, 0x252627))
        directed = decodeMAD(b"\1\x81" + octets[2:]).header
        assert isinstance(directed, classes.DirectedHeader)
        self.assertEqual(
            (directed.key, directed.sourceLID, directed.destinationLID),
            (0x18191A1B1C1D1E1F, 0x2021, 0x2223),
        )
        self.assertEqual((directed.initialPath, directed.returnPath), (octets[128:192], octets[192:]))

    def test_made(self) -> None:
        """
        Without a header there are zeros, and behind a short attribute too.
        """
        for managementClass in CLASSES:
            mad = Mad(managementClass, 1, 1, 5, 0x11, b"\xee")
            octets = encodeMAD(mad)
            self.assertEqual(len(octets), 256)
            found = decodeMAD(octets)
            assert isinstance(found.data, bytes)
            self.assertEqual(found.data.rstrip(b"\0"), b"\xee")
            self.assertEqual(encodeMAD(found), octets)

    def test_errors(self) -> None:
        """
        Each kind of invalid MAD, or field that does not fit, raises its own error.
        """
        octets = b"\1" + bytes(255)
        for size in range(256):
            self.assertRaises(LengthError, decodeMAD, octets[:size])
        self.assertRaises(LengthError, decodeMAD, octets + b"\0")
        for version in set(range(256)) - {1}:
            self.assertRaises(HeaderError, decodeMAD, bytes((version,)) + bytes(255))
        transfer = classes.RMPPHeader
        for wrong in (
            Mad(256, 1, 1, 1, 1),
            Mad(7, 2, 3, 1, 0x10, cm.REQ(privateData=bytes(93))),
            Mad(7, 2, 3, 1, 0x10, cm.REQ(localQPN=1 << 24)),
            Mad(4, 1, 1, 1, 1, header=classes.SubnetHeader()),
            Mad(1, 1, 1, 1, 1, header=classes.SubnetHeader(1 << 64)),
            Mad(1, 1, 1, 1, 1, header=classes.SubnetHeader(reserved=bytes(33))),
            Mad(0x81, 1, 1, 1, 1, header=classes.DirectedHeader(initialPath=bytes(65))),
            Mad(0x30, 1, 1, 1, 1, header=classes.OrganizationHeader(organization=1 << 24)),
            Mad(0x30, 1, 1, 1, 1, header=classes.OrganizationHeader(reserved=1 << 8)),
            Mad(0x30, 1, 1, 1, 1, header=classes.OrganizationHeader(transfer(flags=8))),
            Mad(0x10, 1, 1, 1, 1, header=classes.SegmentedHeader(transfer(version=256))),
            Mad(4, 1, 1, 1, 1, header=classes.KeyedHeader(reserved=bytes(33))),
        ):
            self.assertRaises(HeaderError, encodeMAD, wrong)
        for managementClass in CLASSES:
            self.assertRaises(LengthError, encodeMAD, Mad(managementClass, 1, 1, 1, 1, bytes(233)))


def _packet(octets: bytes) -> None:
    """
    Decode as a packet; what is one is the same again.
    """
    network, datagram = split(octets) if octets else (b"", b"")
    assert encodePacket(decodePacket(network, datagram), network) == datagram


def _sealedPacket(octets: bytes) -> None:
    """
    The same, when its ICRC is right.
    """
    _packet(sealed(octets))


def _parse(parse: Callable[[bytes, int, int], object]) -> Callable[[bytes], object]:
    """
    Call a parser on all of it.
    """
    return lambda octets: parse(octets, 0, len(octets))


class MutationTests(SynchronousTestCase):
    """
    Damaged packets and messages, by seeds: whatever comes, nothing but L{WireError} is raised.
    """

    def mutate(self, random: Random, octets: bytes) -> bytes:
        """
        Change some octets, or cut off or add some.
        """
        damaged = bytearray(octets)
        for _ in range(random.randrange(1, 5)):
            at = random.randrange(len(damaged) + 1)
            kind = random.randrange(5)
            if kind == 0:
                del damaged[at:]
            elif kind == 1:
                damaged[at:at] = random.randbytes(random.randrange(1, 9))
            elif kind == 2:
                damaged[at : at + 4] = random.choice((b"\0" * 4, b"\xff" * 4))
            elif at < len(damaged):
                damaged[at] ^= 1 << random.randrange(8)
        return bytes(damaged)

    def test_mutations(self) -> None:
        """
        Every parser of this package.
        """
        mad = packets.REQ[48:-4]
        messages = [kind().pack() for kind in cm.MESSAGES]
        private = RDMACMHeader.parse(mad[164:200], 0, 36).pack()
        targets: list[tuple[Callable[[bytes], object], list[bytes]]] = [
            (_packet, list(ALL.values())),
            (_sealedPacket, list(ALL.values())),
            (_parse(Packet.parse), [split(octets)[1] for octets in ALL.values()]),
            (_parse(parseDatagram), list(ALL.values())),
            (decodeMAD, [mad, *(b"\1" + bytes((each,)) + mad[2:] for each in CLASSES)]),
            (route, [packGRH(1, 2, 3, 4, 5, 6)]),
            (_parse(RDMACMHeader.parse), [private]),
            *((_parse(kind.parse), messages) for kind in cm.MESSAGES),
        ]
        accepted = 0
        for seed in range(MUTATIONS):
            random = Random(seed)
            parse, octets = targets[seed % len(targets)]
            try:
                parse(self.mutate(random, random.choice(octets)))
            except WireError:
                continue
            except Exception as error:
                raise AssertionError(f"Random({seed}): {error!r}") from error
            accepted += 1
        self.assertGreater(accepted, 100)
