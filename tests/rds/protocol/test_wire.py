"""
Tests of L{twisted_ib.rds.protocol.wire} and L{twisted_ib.rds.protocol.congestion} on literal bytes and on
what Linux has sent.
"""

from __future__ import annotations

from time import process_time

import attrs
from twisted.trial.unittest import SynchronousTestCase

from tests.rds.protocol.vectors import RDSHeader, captured, isIntact
from twisted_ib.rds.protocol.congestion import MAP_BYTES, CongestionMap
from twisted_ib.rds.protocol.wire import (
    HEADER,
    HEADER_BYTES,
    NO_EXTENSIONS,
    Extension,
    Flags,
    areExtensionsGood,
    checksum,
    packChecksummed,
    packExtensions,
    parseExtensions,
    pathsExtensions,
)

PROBE = bytes.fromhex(
    "0000000000000001 0000000000000000 00000000 0001 0000 00 00 00000000 0000 "
    "05000800000000000000000000000000"
)
DATA = bytes.fromhex(
    "0000000000000007 0000000000000003 00000005 0fa1 0fa2 02 00 00000000 dead "
    "00000000000000000000000000000000"
)
ACKNOWLEDGEMENT = bytes.fromhex(
    "0000000000000000 0000000000000009 00000000 0000 0000 00 10 00000000 ffe6 "
    "00000000000000000000000000000000"
)


class HeaderTests(SynchronousTestCase):
    """
    The header of 48 bytes.
    """

    def test_probe(self) -> None:
        """
        A probe, both ways.
        """
        header = RDSHeader(1, sourcePort=1, extensions=packExtensions((Extension.NPATHS, b"\0\10")))
        self.assertEqual(header.pack(), PROBE)
        self.assertEqual(RDSHeader.parse(PROBE), header)

    def test_checksummed(self) -> None:
        """
        Data and an acknowledgement with a checksum, both ways.
        """
        data = RDSHeader(7, 3, 5, 4001, 4002, Flags.ACK_REQUIRED)
        self.assertEqual(data.packChecksummed(), DATA)
        self.assertEqual(RDSHeader.parse(DATA), attrs.evolve(data, checksum=0xDEAD))
        self.assertEqual(RDSHeader.parse(DATA).packChecksummed(), DATA)
        bare = RDSHeader(0, 9, credit=16)
        self.assertEqual(bare.packChecksummed(), ACKNOWLEDGEMENT)
        self.assertEqual(packChecksummed(*bare.fields()), ACKNOWLEDGEMENT)

    def test_everyField(self) -> None:
        """
        Each field has its place.
        """
        data = bytes(range(48))
        header = RDSHeader.parse(data)
        self.assertEqual(header.sequence, 0x0001020304050607)
        self.assertEqual(header.acknowledgement, 0x08090A0B0C0D0E0F)
        self.assertEqual(header.length, 0x10111213)
        self.assertEqual((header.sourcePort, header.destinationPort), (0x1415, 0x1617))
        self.assertEqual((header.flags, header.credit), (0x18, 0x19))
        self.assertEqual(header.padding, b"\x1a\x1b\x1c\x1d")
        self.assertEqual(header.checksum, 0x1E1F)
        self.assertEqual(header.extensions, bytes(range(32, 48)))
        self.assertEqual(header.pack(), data)

    def test_checksum(self) -> None:
        """
        Any bit that is wrong is noticed, but none where there is no checksum.
        """
        self.assertEqual(checksum(DATA), 0)
        self.assertTrue(isIntact(DATA))
        self.assertTrue(isIntact(ACKNOWLEDGEMENT))
        self.assertEqual(checksum(b"x" + ACKNOWLEDGEMENT, 1), 0)
        for bit in range(HEADER_BYTES * 8):
            wrong = bytearray(DATA)
            wrong[bit >> 3] ^= 1 << (bit & 7)
            self.assertFalse(isIntact(wrong), bit)
        self.assertTrue(isIntact(PROBE))


class CapturedTests(SynchronousTestCase):
    """
    Frames that Linux 6.1 sent.
    """

    def test_same(self) -> None:
        """
        All headers parse, and come out as they were.
        """
        self.assertEqual((len(captured("tcp")), len(captured("rc"))), (21, 19))
        for message in captured("tcp") + captured("rc"):
            header = RDSHeader.parse(message.header)
            self.assertEqual(header.pack(), message.header)
            self.assertEqual(header.padding, bytes(4))
            self.assertTrue(areExtensionsGood(header.extensions))
            self.assertEqual(HEADER.unpack(message.header), header.fields())

    def test_tcp(self) -> None:
        """
        TCP has no checksums and no acknowledgements, and a header before each payload.
        """
        for message in captured("tcp"):
            header = RDSHeader.parse(message.header)
            self.assertEqual((header.checksum, header.acknowledgement), (0, 0))
            self.assertEqual(header.length, len(message.payload))

    def test_rc(self) -> None:
        """
        RC has checksums, which are what we compute, and fragments of 4096 bytes.
        """
        for message in captured("rc"):
            header = RDSHeader.parse(message.header)
            self.assertTrue(isIntact(message.header))
            self.assertEqual(header.packChecksummed(), message.header)
            self.assertLessEqual(len(message.payload), 4096)

    def test_maps(self) -> None:
        """
        Maps have one flag, no number and no port.
        """
        found = [h for m in captured("tcp") if (h := RDSHeader.parse(m.header)).flags == Flags.CONG_BITMAP]
        self.assertEqual(len(found), 7)
        for header in found:
            self.assertEqual((header.sequence, header.sourcePort, header.destinationPort), (0, 0, 0))
            self.assertEqual(header.length, MAP_BYTES)


class ExtensionTests(SynchronousTestCase):
    """
    Extension headers.
    """

    def test_generation(self) -> None:
        """
        The answer to a probe with a generation number.
        """
        packed = bytes.fromhex("0500080611223344 0000000000000000")
        self.assertEqual(pathsExtensions(8, 0x11223344), packed)
        self.assertEqual(parseExtensions(packed), {5: b"\0\10", 6: b"\x11\x22\x33\x44"})
        self.assertEqual(pathsExtensions(1, 0), b"\5\0\1".ljust(16, b"\0"))

    def test_all(self) -> None:
        """
        Each type that is known has its size.
        """
        for kind, size in ((1, 4), (2, 4), (3, 8), (4, 8), (5, 2), (6, 4), (8, 1)):
            value = bytes(range(1, size + 1))
            packed = packExtensions((kind, value))
            self.assertEqual(packed, (bytes([kind]) + value).ljust(16, b"\0"))
            self.assertEqual(parseExtensions(packed), {kind: value})
            for wrong in (value + b"x", value[1:]):
                self.assertRaises(ValueError, packExtensions, (kind, wrong))

    def test_end(self) -> None:
        """
        An unknown type ends them, as does one that has no room; what was before counts.
        """
        for rest in (b"\7abc", b"\x09", b"\xff\5\0\1"):
            packed = (b"\5\0\1" + rest).ljust(16, b"\1")
            self.assertEqual(parseExtensions(packed), {5: b"\0\1"})
            self.assertFalse(areExtensionsGood(packed))
        packed = b"\3abcdefgh\3abcdef"
        self.assertEqual(parseExtensions(packed), {3: b"abcdefgh"})
        self.assertFalse(areExtensionsGood(packed))
        self.assertEqual(parseExtensions(NO_EXTENSIONS), {})
        full = b"\3abcdefgh\5\0\1\1abcd"[:16]
        self.assertFalse(areExtensionsGood(full))
        self.assertTrue(areExtensionsGood(b"\3abcdefgh\1abcd\x08\x01"[:16]))

    def test_tooMany(self) -> None:
        """
        Extension headers that do not fit are refused.
        """
        two = ((3, bytes(8)), (6, bytes(4)))
        self.assertEqual(len(packExtensions(*two)), 16)
        self.assertRaises(ValueError, packExtensions, *two, (5, bytes(2)))
        self.assertRaises(ValueError, packExtensions, (7, b""))


class CongestionTests(SynchronousTestCase):
    """
    The map of 65536 ports.
    """

    def test_bit(self) -> None:
        """
        The bit of port 4001 is the second of byte 500.
        """
        ports = CongestionMap()
        self.assertEqual(ports.pack(), bytes(MAP_BYTES))
        self.assertTrue(ports.mark(4001))
        self.assertFalse(ports.mark(4001))
        self.assertEqual(ports.pack(), bytes(500) + b"\2" + bytes(MAP_BYTES - 501))
        self.assertIn(4001, ports)
        self.assertNotIn(4000, ports)
        self.assertEqual(ports.version, 1)
        self.assertTrue(ports.clear(4001))
        self.assertFalse(ports.clear(4001))
        self.assertEqual((ports.pack(), ports.version), (bytes(MAP_BYTES), 2))

    def test_ends(self) -> None:
        """
        The first and the last port have their bits.
        """
        ports = CongestionMap()
        ports.mark(0)
        ports.mark(65535)
        self.assertEqual(ports.pack(), b"\1" + bytes(MAP_BYTES - 2) + b"\x80")

    def test_replace(self) -> None:
        """
        A new map says whether something has changed, and takes no time for each port.
        """
        ports, other = CongestionMap(), CongestionMap()
        for port in (0, 7, 300, 65535):
            other.mark(port)
        self.assertTrue(ports.replace(other.pack()))
        self.assertFalse(ports.replace(other.pack()))
        other.clear(300)
        other.mark(301)
        self.assertTrue(ports.replace(memoryview(other.pack())))
        self.assertIn(301, ports)
        self.assertNotIn(300, ports)
        begin = process_time()
        for _ in range(50):
            ports.replace(b"\xff" * MAP_BYTES)
            ports.replace(bytes(MAP_BYTES))
        self.assertLess(process_time() - begin, 0.5)
