"""
Tests for L{twisted_ib.hca.host.socketpage.records}.
"""

from __future__ import annotations

import random
from zlib import crc32

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.hca.host.socketpage.records import (
    ATTEMPTS,
    CONNECTION,
    FIRST_ROW,
    LISTENER,
    NEVER,
    NOTHING,
    RECORD,
    TEXT_BYTES,
    Header,
    RowValues,
    packEnds,
    packHead,
    packHeader,
    packSum,
    packText,
    parseHeader,
    parseRows,
    parseText,
)

ROW: RowValues = (CONNECTION, 1, 2, 3, 0, 1.0, NEVER, 2.0, "127.0.0.1", 80, "fe80::1%eth0", 65535)
BODY = (
    b"\x02\x01\x00\x02\x00\x03\x00\x00\x00"
    b"\x00\x00\x00\x00\x00\x00\xf0\x3f\x00\x00\x00\x00\x00\x00\xf0\xbf\x00\x00\x00\x00\x00\x00\x00\x40"
    b"\x50\x00\xff\xff" + b"127.0.0.1".ljust(52, b"\0") + b"fe80::1%eth0".ljust(52, b"\0")
).ljust(RECORD - 4, b"\0")


def sealed(body: bytes) -> bytes:
    """
    @return: a record with a right CRC.
    """
    body = body.ljust(RECORD - 4, b"\0")
    return crc32(body).to_bytes(4, "little") + body


def packed(*rows: RowValues) -> list[bytes]:
    """
    @return: the record of each row.
    """
    bodies = [
        packHead(*row[:8]) + packEnds(port, peer, here.encode(), there.encode())
        for row in rows
        for here, port, there, peer in [row[8:]]
    ]
    return [packSum(crc32(body)) + body for body in bodies]


def never(number: int) -> bytes:
    """
    Nothing is torn.
    """
    raise AssertionError("read again")


class RecordTests(SynchronousTestCase):
    """
    Bytes that stand on a page.
    """

    def test_row(self) -> None:
        """
        A row is these bytes, and back.
        """
        self.assertEqual(packed(ROW), [sealed(BODY)])
        self.assertEqual(list(parseRows(sealed(BODY), never)), [ROW])
        listener = (LISTENER, *ROW[1:10], "", 0)
        self.assertEqual(list(parseRows(b"".join(packed(ROW, listener)), never)), [ROW, listener])

    def test_places(self) -> None:
        """
        Behind the header and 1024 texts, each of as many octets, are the rows: of other versions, too.
        """
        self.assertEqual((RECORD, FIRST_ROW), (160, 1 + 1024))

    def test_header(self) -> None:
        """
        So is a header; another version, or another file, is none.
        """
        record = sealed(b"IBSS\x01\x00\x00\x00\x07\x00\x00\x00server")
        self.assertEqual(packHeader(Header(7, "server")), record)
        self.assertEqual(parseHeader(record), Header(7, "server"))
        long = sealed(b"IBSS\x01\x00\x00\x00\xff\xff\xff\xffa" + b"b" * 127)
        self.assertEqual(packHeader(Header(-1, "a" + "b" * 200)), long)
        for other in (b"", NOTHING, record[:-1], sealed(b"IBSS\x02"), sealed(b"NONE\x01"), record + b"x"):
            self.assertIsNone(parseHeader(other))

    def test_text(self) -> None:
        """
        A text, of which the end stays or the beginning.
        """
        self.assertEqual(packText("sdp"), sealed(b"\x03\x03sdp"))
        self.assertEqual(parseText(sealed(b"\x03\x03sdp")), "sdp")
        self.assertEqual(parseText(packText("x" * 500 + ":3", end=True)), "x" * (TEXT_BYTES - 2) + ":3")
        self.assertEqual(parseText(packText("y:" + "x" * 500)), "y:" + "x" * (TEXT_BYTES - 2))
        for other in (NOTHING, sealed(BODY), b""):
            self.assertIsNone(parseText(other))

    def test_long(self) -> None:
        """
        A host that is too long is cut.
        """
        [record] = packed((*ROW[:8], "h" * 500, 80, "p" * 500, 9))
        [row] = parseRows(record, never)
        self.assertEqual((row[8], row[10]), ("h" * 52, "p" * 52))

    def test_torn(self) -> None:
        """
        A row that is read while it is written is read again, and left out if it stays so; the others, and
        empty places, are not.
        """
        [whole] = packed(ROW)
        for cut in range(1, RECORD):
            torn = whole[:cut] + NOTHING[cut:]
            asked: list[int] = []

            def readAgain(number: int, asked: list[int] = asked) -> bytes:
                """
                Whole the second time.
                """
                asked.append(number)
                return whole if len(asked) == 2 else whole[:50] + NOTHING[50:]

            if torn == whole:
                continue
            self.assertEqual(list(parseRows(NOTHING + torn + whole, readAgain)), [ROW, ROW], cut)
            self.assertEqual(asked, [1, 1])
        asked = []

        def broken(number: int) -> bytes:
            """
            It stays.
            """
            asked.append(number)
            return b"x" * RECORD

        self.assertEqual(list(parseRows(whole + b"x" * RECORD + whole, broken)), [ROW, ROW])
        self.assertEqual(len(asked), ATTEMPTS)

    def test_nonsense(self) -> None:
        """
        Whatever stands there, with a right CRC or not, parsing ends without an error.
        """
        draw = random.Random(1)
        for _ in range(300):
            data = draw.randbytes(draw.randrange(4 * RECORD))
            list(parseRows(data, lambda number: b""))
            body = draw.randbytes(RECORD - 4)
            for kind in range(5):
                record = sealed(bytes([kind]) + body[1:])
                list(parseRows(record, never))
                parseText(record)
                parseHeader(record)
