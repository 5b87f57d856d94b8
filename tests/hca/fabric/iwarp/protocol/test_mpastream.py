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
            expected = [ulpdu(498), ulpdu(617), ulpdu(15)]
            stream = b"".join(framed(writer, each) for each in expected)
            splits = [[stream[:each], stream[each:]] for each in range(len(stream) + 1)]
            for chunks in (*splits, [bytes([each]) for each in stream]):
                self.assertEqual(found(FPDUReader(crc, markers), chunks), expected)

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

    def test_mulpdu(self) -> None:
        """
        The MULPDU is that of RFC 5044, within bounds.
        """
        self.assertEqual([mulpdu(1460), mulpdu(1460, True)], [1454, 1442])
        self.assertEqual([mulpdu(8948), mulpdu(8948, True)], [8942, 8870])
        self.assertEqual([mulpdu(88), mulpdu(1 << 20), mulpdu(1 << 20, True)], [128, 65535, 65018])
