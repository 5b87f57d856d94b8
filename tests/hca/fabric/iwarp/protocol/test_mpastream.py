"""
FPDUs: the stream's octets, literally, and in any split.
"""

from __future__ import annotations

import random
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.hca.fabric.iwarp.protocol.mpa import MPAErrorCode
from twisted_ib.hca.fabric.iwarp.protocol.mpastream import (
    MAX_ULPDU,
    MAX_ULPDU_MARKERS,
    FPDUReader,
    FPDUWriter,
    StreamError,
    fpduBytes,
    mulpdu,
)

#: CRC, markers.
COMBINATIONS = tuple((crc, markers) for crc in (False, True) for markers in (False, True))

#: FPDUs without markers: ULPDU, PAD, CRC. The CRC is zero where there is none.
FPDUS = """
000e c1400000000100000000 00000000 | | 00000000
000e c1400000000100000000 00000000 | | ebd34c5f
0015 414300000000000000000000000100000000 686921 | 00 | 46b1498b
0015 414300000000000000000000000100000000 686579 | 00 | 00000000
0016 414300000000000000000000000200000000 61626364 | | 5868e28b
0012 414300000000000000000000000300000000 | | 00a4cab4
0016 414411223344000000000000000400000000 61626364 | | 39629f0a
0016 414500000000000000000000000500000000 61626364 | | 2caabf62
0016 414611223344000000000000000600000000 61626364 | | 82431afd
0012 c140aabbcc0100007f0000001000 64617461 | | 46b4daf5
002e 414100000000000000010000000100000000 00010203000000000000100000000004aabbcc0100007f0000001000
   | | 13f8e43d
0012 c142000102030000000000001000 64617461 | | f6845cb6
001a 014300000000000000000000000700000000 4142434445464748 | | 36f36860
0016 414300000000000000000000000700000008 494a4b4c | | a533fbd4
001a 414800000000000000000000000800000000 0001020304050607 | | 00ec227a
0046 414a00000000000000010000000200000000 0000000000000077aabbcc0100007f0000001000
   0000000000000005 000000000000000000000000000000000000000000000000 | | 51eb7bca
001e 414b00000000000000030000000100000000 000000770000000000000029 | | 556671a6
0046 414a00000000000000010000000300000000 0000000200000078aabbcc0100007f0000001000
   0000000000000009ffffffffffffffff000000000000002effffffffffffffff | | 3521c81e
0026 414700000000000000020000000100000000 1100c0000012c140dead00010000000000000010 | | 617e160a
0016 414700000000000000020000000100000000 20020000 | | 00000000
"""


def ulpdu(length: int) -> bytes:
    """
    @return: octets of which each piece is unlike others.
    """
    return random.Random(length).randbytes(length)


def framed(writer: FPDUWriter, *pieces: Any) -> bytes:
    """
    @return: one FPDU.
    """
    out: list[Any] = []
    octets = writer.frame(out, list(pieces), sum(map(len, pieces)))
    fpdu = b"".join(out)
    assert octets == len(fpdu), (octets, len(fpdu))
    return fpdu


def found(reader: FPDUReader, chunks: Any) -> list[bytes]:
    """
    Feed octets as a socket does: what is left of an FPDU is kept.

    @return: the ULPDUs.
    """
    buffer = bytearray()
    ulpdus = []
    for chunk in chunks:
        buffer += chunk
        start = 0
        while True:
            before = bytes(buffer)
            end = reader.next(buffer, start, len(buffer))
            if not end:
                assert bytes(buffer) == before
                assert reader.needed(buffer, start, len(buffer)) > len(buffer) - start
                break
            assert reader.first >= start + 2
            ulpdus.append(bytes(buffer[reader.first : reader.last]))
            start = end
        del buffer[:start]
    assert not buffer
    return ulpdus


class LiteralTests(SynchronousTestCase):
    """
    The stream's octets.
    """

    def test_withoutMarkers(self) -> None:
        """
        FPDUs are made, and found, without and with a CRC.
        """
        rows = [row.replace(" ", "") for row in FPDUS.replace("\n  ", "").strip().split("\n")]
        self.assertEqual(len(rows), 20)
        for row in rows:
            covered, pad, crc = map(bytes.fromhex, row.split("|"))
            body = covered[2:]
            hasCRC = any(crc)
            self.assertEqual(
                framed(FPDUWriter(hasCRC, False), body[:14], memoryview(body)[14:]), covered + pad + crc
            )
            self.assertEqual(found(FPDUReader(hasCRC, False), [covered + pad + crc]), [body])

    def test_padSent(self) -> None:
        """
        PAD is sent as zero, to a multiple of four.
        """
        for crc, markers in COMBINATIONS:
            for length, pad in ((14, 0), (15, 3), (16, 2), (17, 1)):
                fpdu = framed(FPDUWriter(crc, markers), b"x" * length)
                self.assertEqual(fpdu[-4 - pad - 1 : -4], b"x" + bytes(pad))

    def test_pad(self) -> None:
        """
        PAD is not checked: Linux siw sends left-over octets in it. A CRC covers it.
        """
        fpdu = bytearray(framed(FPDUWriter(False, False), b"x" * 15))
        fpdu[17:20] = b"\1\2\3"
        self.assertEqual(found(FPDUReader(False, False), [fpdu]), [b"x" * 15])
        with self.assertRaisesRegex(StreamError, "an FPDU of 24 octets has a wrong CRC"):
            FPDUReader(True, False).next(fpdu, 0, len(fpdu))

    def test_markers(self) -> None:
        """
        A stream begins with a marker, and has one at each 512th octet.
        """
        first = bytes.fromhex("414300000000000000000000000100000000") + (bytes(range(256)) * 2)[:480]
        second = bytes.fromhex("414300000000000000000000000200000000") + bytes(600)
        writer = FPDUWriter(True, True)
        one, two = framed(writer, first), framed(writer, second)
        self.assertEqual(one, bytes.fromhex("00000000 01f2") + first + bytes.fromhex("c7a97213"))
        expected = (
            bytes.fromhex("026a")
            + second[:2]
            + bytes.fromhex("00000004")
            + second[2:510]
            + bytes.fromhex("00000204")
            + second[510:]
            + bytes.fromhex("e1154b52")
        )
        self.assertEqual(two, expected)
        self.assertEqual(found(FPDUReader(True, True), [one + two]), [first, second])

    def test_markerPlaces(self) -> None:
        """
        A marker may stand between PAD and CRC. At an FPDU's end it is the next one's.
        """
        one = framed(FPDUWriter(False, True), b"x" * 506)
        self.assertEqual(
            one, bytes.fromhex("00000000 01fa") + b"x" * 506 + bytes.fromhex("000001fc 00000000")
        )
        self.assertEqual(found(FPDUReader(False, True), [one]), [b"x" * 506])
        writer = FPDUWriter(False, True)
        one, two = framed(writer, b"x" * 502), framed(writer, b"y" * 14)
        self.assertEqual(one, bytes.fromhex("00000000 01f6") + b"x" * 502 + bytes(4))
        self.assertEqual(two, bytes.fromhex("00000000 000e") + b"y" * 14 + bytes(4))
        self.assertEqual(found(FPDUReader(False, True), [one + two]), [b"x" * 502, b"y" * 14])

    def test_markerReserved(self) -> None:
        """
        A marker's first half and FPDUPTR's last two bits are ignored.
        """
        fpdu = bytearray(framed(FPDUWriter(False, True), b"x" * 506))
        fpdu[0:4] = b"\xff\xff\0\3"
        fpdu[512:516] = b"\xff\xff\x01\xff"
        self.assertEqual(found(FPDUReader(False, True), [fpdu]), [b"x" * 506])


class StreamTests(SynchronousTestCase):
    """
    Both directions of a stream.
    """

    def test_lengths(self) -> None:
        """
        ULPDUs of any length pass, with each PAD, and at the bounds.
        """
        for crc, markers in COMBINATIONS:
            writer, reader = FPDUWriter(crc, markers), FPDUReader(crc, markers)
            largest = MAX_ULPDU_MARKERS if markers else MAX_ULPDU
            for length in (*range(14, 24), *range(480, 1060), largest, 0, 1, largest - 1):
                fpdu = framed(writer, ulpdu(length))
                self.assertLessEqual(len(fpdu), fpduBytes(length, markers))
                self.assertEqual(found(reader, [fpdu]), [ulpdu(length)])

    def test_splits(self) -> None:
        """
        A stream of three FPDUs gives the same ULPDUs however it is cut in two, and octet by octet.
        """
        for crc, markers in COMBINATIONS:
            writer = FPDUWriter(crc, markers)
            expected = [ulpdu(498), ulpdu(15), ulpdu(1017)]
            stream = b"".join(framed(writer, each) for each in expected)
            splits = [[stream[:each], stream[each:]] for each in range(len(stream) + 1)]
            for chunks in (*splits, [bytes([each]) for each in stream]):
                self.assertEqual(found(FPDUReader(crc, markers), chunks), expected)

    def test_seeds(self) -> None:
        """
        The same for streams, and splits into many pieces, of 400 seeds.
        """
        for seed in range(400):
            rng = random.Random(seed)
            crc, markers = COMBINATIONS[seed % 4]
            writer = FPDUWriter(crc, markers)
            expected = [rng.randbytes(rng.choice((14, 18, 46, rng.randrange(1600)))) for _ in range(6)]
            stream = b"".join(framed(writer, each) for each in expected)
            places = sorted(rng.randrange(len(stream) + 1) for _ in range(rng.randrange(12)))
            chunks = [stream[i:j] for i, j in zip([0, *places], [*places, len(stream)], strict=True)]
            self.assertEqual(found(FPDUReader(crc, markers), chunks), expected, seed)

    def test_damage(self) -> None:
        """
        A wrong CRC or marker ends the stream with MPA's code.
        """
        for crc, markers, offset, code in (
            (True, False, 7, MPAErrorCode.CRC),
            (True, True, 1, MPAErrorCode.CRC),
            (False, True, 2, MPAErrorCode.MARKER),
            (False, True, 515 - 1, MPAErrorCode.MARKER),
        ):
            fpdu = bytearray(framed(FPDUWriter(crc, markers), ulpdu(700)))
            fpdu[offset] ^= 0x80
            error = self.assertRaises(StreamError, FPDUReader(crc, markers).next, fpdu, 0, len(fpdu))
            self.assertEqual(error.code, code)

    def test_fpduBytes(self) -> None:
        """
        The octets of an FPDU; with markers, those at the worst place in the stream.
        """
        found = [fpduBytes(length) for length in (0, 14, 15, 18, 19, 65535)]
        self.assertEqual(found, [8, 20, 24, 24, 28, 65544])
        for length in (14, 498, 502, 503, 506, 1010, 1011, 1014):
            worst = 0
            for position in range(0, 512, 4):
                writer = FPDUWriter(False, True)
                writer._position = position
                worst = max(worst, len(framed(writer, bytes(length))))
            self.assertEqual(fpduBytes(length, True), worst)

    def test_mulpdu(self) -> None:
        """
        The MULPDU is that of RFC 5044, within bounds.
        """
        self.assertEqual([mulpdu(1460), mulpdu(1460, True)], [1454, 1442])
        self.assertEqual([mulpdu(8948), mulpdu(8948, True)], [8942, 8870])
        self.assertEqual([mulpdu(1461), mulpdu(1463), mulpdu(1464)], [1454, 1454, 1458])
        self.assertEqual([mulpdu(88), mulpdu(1 << 20), mulpdu(1 << 20, True)], [128, 65535, 65018])

    def test_uncopied(self) -> None:
        """
        Without CRC and markers the pieces are sent as they are.
        """
        pieces = [b"x" * 18, memoryview(bytearray(1000)), bytearray(8)]
        out: list[Any] = [b"before"]
        FPDUWriter(False, False).frame(out, pieces, 1026)
        for one, other in zip(out[2:5], pieces, strict=True):
            self.assertIs(one, other)
        self.assertEqual((out[:2], out[5:]), ([b"before", b"\x04\x02"], [bytes(4)]))

    def test_memoryview(self) -> None:
        """
        An FPDU is found in the middle of a memoryview too; its ULPDU is compacted there.
        """
        for crc, markers in COMBINATIONS:
            fpdu = framed(FPDUWriter(crc, markers), ulpdu(2000))
            buffer = memoryview(bytearray(b"before" + fpdu + b"behind"))
            reader = FPDUReader(crc, markers)
            self.assertEqual(reader.next(buffer, 6, len(buffer)), 6 + len(fpdu))
            self.assertEqual(buffer[reader.first : reader.last], ulpdu(2000))
            self.assertEqual((bytes(buffer[:6]), bytes(buffer[-6:])), (b"before", b"behind"))

    def test_needed(self) -> None:
        """
        An FPDU's octets are known with its length; before, those up to it are needed.
        """
        for _, markers in COMBINATIONS:
            writer, reader = FPDUWriter(False, markers), FPDUReader(False, markers)
            for length in (20, 484, 1500, 14, 60000):
                fpdu = bytearray(framed(writer, bytes(length)))
                begin = fpdu.index(length.to_bytes(2, "big")) + 2
                for stop in range(begin):
                    self.assertEqual(reader.needed(fpdu, 0, stop), begin)
                self.assertEqual(reader.needed(fpdu, 0, begin), len(fpdu))
                reader.next(fpdu, 0, len(fpdu))

    def test_tooLongForMarkers(self) -> None:
        """
        An FPDUPTR of more than 16 bits is possible in no marker: such an FPDU is a fault.
        """
        largest = FPDUWriter(False, True)
        largest._position = 508  # So that it has the most markers.
        framed(largest, bytes(MAX_ULPDU_MARKERS))
        buffer = bytearray(4) + b"\xff\xff" + bytes(70000)
        error = self.assertRaises(StreamError, FPDUReader(False, True).next, buffer, 0, len(buffer))
        self.assertEqual(error.code, MPAErrorCode.MARKER)

    def test_random(self) -> None:
        """
        Octets of any kind are FPDUs or a L{StreamError}, and no octet beyond them is touched.
        """
        for seed in range(400):
            rng = random.Random(seed)
            crc, markers = COMBINATIONS[seed % 4]
            stream = bytearray(framed(FPDUWriter(crc, markers), rng.randbytes(rng.randrange(700))))
            for _ in range(rng.randrange(4)):
                stream[rng.randrange(len(stream))] = rng.randrange(256)
            stop = rng.randrange(len(stream) + 1)
            buffer = stream + bytes(8)
            try:
                end = FPDUReader(crc, markers).next(buffer, 0, stop)
            except StreamError:
                continue
            self.assertLessEqual(end, stop)
            self.assertEqual(buffer[stop:], stream[stop:] + bytes(8))
