"""
L{twisted_ib.hca.fabric.iwarp.protocol.sending}: how records become segments.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.fabric.iwarp.protocol.examples import TaggedHeader, UntaggedHeader, ulpdu
from tests.hca.fabric.iwarp.protocol.rdmap import BASE, KEY, End
from twisted_ib.errors import QueuePairError
from twisted_ib.hca.base.operation import SOLICITED
from twisted_ib.hca.fabric.iwarp.protocol.ddp import Opcode
from twisted_ib.hca.fabric.iwarp.protocol.sending import cut
from twisted_ib.hca.fabric.iwarp.protocol.terminate import CRC_ERROR, DDP_CATASTROPHIC
from twisted_ib.hca.wire import opcodes
from twisted_ib.hca.wire.headers import INVALIDATE, RETH
from twisted_ib.hca.wire.opcodes import (
    READ_REQUEST,
    READ_RESPONSE_FIRST,
    READ_RESPONSE_LAST,
    READ_RESPONSE_ONLY,
    SEND_FIRST,
    SEND_LAST,
    SEND_LAST_INVALIDATE,
    SEND_MIDDLE,
    SEND_ONLY,
    WRITE_FIRST,
    WRITE_LAST,
    WRITE_MIDDLE,
    WRITE_ONLY,
)

RESPONSE_HEADER = (0x00010203, 0x1000)


def segments(end: End) -> list[tuple[Any, bytes]]:
    """
    @return: the header and payload of each segment sent.
    """
    octets, found = end.sent(), []
    while octets:
        length = int.from_bytes(octets[:2], "big")
        ulpdu = octets[2 : 2 + length]
        kind = TaggedHeader if ulpdu[0] & 0x80 else UntaggedHeader
        header = kind.parse(ulpdu)
        found.append((header, ulpdu[len(header.pack()) :]))
        octets = octets[length + 9 & ~3 :]
    return found


class SendingTests(SynchronousTestCase):
    """
    An end whose ULPDUs have 128 octets at most: 110 of a Send, 114 of a Write.
    """

    def setUp(self) -> None:
        self.end = End(largest=128)

    def post(self, opcode: int, header: bytes, payload: bytes) -> bool:
        """
        Post a record.
        """
        return self.end.sender.post(self.end.out, opcode, header, payload, len(payload))

    def test_send(self) -> None:
        """
        A message of several records and segments is one message: offsets go on, the last segment alone ends
        it, and all of them have its operation and key.
        """
        key = INVALIDATE.pack(7)
        data = bytes(range(250))
        for flag, code, number in (
            (0, Opcode.SEND_INVALIDATE, 1),
            (SOLICITED, Opcode.SEND_SOLICITED_INVALIDATE, 2),
        ):
            self.post(SEND_FIRST | flag, key, data[:120])
            self.post(SEND_MIDDLE | flag, key, data[120:130])
            self.post(SEND_LAST_INVALIDATE | flag, key, data[130:])
            cuts = (0, 110, 120, 130, 240, 250)
            self.assertEqual(
                segments(self.end),
                [
                    (UntaggedHeader(code, last == 250, 7, 0, number, first), data[first:last])
                    for first, last in pairwise(cuts)
                ],
            )
        self.post(SEND_FIRST | SOLICITED, b"", data)
        self.post(SEND_LAST | SOLICITED, b"", b"x")
        self.assertEqual({header.opcode for header, _ in segments(self.end)}, {Opcode.SEND_SOLICITED})

    def test_exactly(self) -> None:
        """
        As many octets as a ULPDU holds are one segment, one more are two.
        """
        for count, sizes in ((0, [0]), (110, [110]), (111, [110, 1]), (220, [110, 110])):
            self.post(SEND_ONLY, b"", bytes(count))
            self.assertEqual([len(data) for _, data in segments(self.end)], sizes)
        header = RETH.pack(BASE, KEY, 0)
        for count, sizes in ((0, [0]), (114, [114]), (115, [114, 1])):
            self.post(WRITE_ONLY, header, bytes(count))
            self.assertEqual([len(data) for _, data in segments(self.end)], sizes)

    def test_write(self) -> None:
        """
        Each record of a Write is a message of its own, as a Read Response may come between them.
        """
        data = bytes(range(200))
        self.post(WRITE_FIRST, RETH.pack(BASE, KEY, 200), data[:120])
        self.post(WRITE_MIDDLE, b"", data[120:130])
        self.post(WRITE_LAST, b"", data[130:])
        cuts = (0, 114, 120, 130, 200)
        self.assertEqual(
            segments(self.end),
            [
                (TaggedHeader(Opcode.WRITE, last != 114, KEY, BASE + first), data[first:last])
                for first, last in pairwise(cuts)
            ],
        )

    def test_responding(self) -> None:
        """
        While a Read Response is unfinished Writes must wait, and Sends go; the Write goes on where it was.
        """
        end = self.end
        end.bookkeeping.requested(ulpdu("Read Request"))
        self.assertTrue(self.post(WRITE_FIRST, RETH.pack(BASE, KEY, 2), b"a"))
        self.post(READ_RESPONSE_FIRST, b"", bytes(115))
        self.assertTrue(end.sender.isResponding)
        segments(end)
        self.assertFalse(self.post(WRITE_LAST, b"", b"b"))
        self.assertEqual(end.out, [])
        self.assertTrue(self.post(SEND_ONLY, b"", b"c"))
        self.post(READ_RESPONSE_LAST, b"", b"d")
        self.assertTrue(self.post(WRITE_LAST, b"", b"b"))
        stag, offset = RESPONSE_HEADER
        self.assertEqual(
            segments(end),
            [
                (UntaggedHeader(Opcode.SEND, True, 0, 0, 1, 0), b"c"),
                (TaggedHeader(Opcode.READ_RESPONSE, True, stag, offset + 115), b"d"),
                (TaggedHeader(Opcode.WRITE, True, KEY, BASE + 1), b"b"),
            ],
        )

    def test_answers(self) -> None:
        """
        Read Responses go to the sinks of the requests, in order; an empty one is one segment.
        """
        end, requests = self.end, []
        for sink in (1, 2):
            request = bytearray(ulpdu("Read Request"))
            request[21] = sink
            requests.append(bytes(request))
            end.bookkeeping.requested(requests[-1])
        self.post(READ_RESPONSE_ONLY, b"", b"")
        self.assertEqual(list(end.bookkeeping.inbound), requests[1:])
        self.post(READ_RESPONSE_ONLY, b"", b"d")
        offset = RESPONSE_HEADER[1]
        self.assertEqual(
            segments(end),
            [
                (TaggedHeader(Opcode.READ_RESPONSE, True, 0x00010201, offset), b""),
                (TaggedHeader(Opcode.READ_RESPONSE, True, 0x00010202, offset), b"d"),
            ],
        )

    def test_depth(self) -> None:
        """
        No more READs than agreed are outstanding: the next one must wait.
        """
        self.end = end = End(ord=2)
        reth = RETH.pack(BASE, KEY, 1)
        self.assertTrue(self.post(READ_REQUEST, reth, b""))
        # The record's header may be its payload.
        self.assertTrue(self.post(READ_REQUEST, b"", reth))
        self.assertEqual(end.bookkeeping.outstanding, 2)
        segments(end)
        self.assertFalse(self.post(READ_REQUEST, reth, b""))
        self.assertEqual(end.out, [])
        self.assertEqual(end.bookkeeping.responded(0x15A, 0, 1, True), READ_RESPONSE_ONLY)
        self.assertTrue(self.post(READ_REQUEST, reth, b""))
        [(header, _)] = segments(end)
        self.assertEqual(header.sequence, 3)

    def test_sinks(self) -> None:
        """
        Sinks' serial numbers wrap, and are never 0.
        """
        reads = End(key=0).bookkeeping
        reads._serial = (1 << 24) - 2
        self.assertEqual([reads.ask(0) for _ in range(3)], [0xFFFFFF00, 0x100, 0x200])

    def test_sequences(self) -> None:
        """
        Message sequence numbers have 32 bits (RFC 5041 section 4.3).
        """
        self.end.sender._sequence = self.end.sender._readSequence = 0xFFFFFFFF
        self.post(SEND_ONLY, b"", b"")
        self.post(SEND_ONLY, b"", bytes(111))
        self.post(READ_REQUEST, RETH.pack(BASE, KEY, 1), b"")
        self.post(READ_REQUEST, RETH.pack(BASE, KEY, 1), b"")
        numbers = [header.sequence for header, _ in segments(self.end)]
        self.assertEqual(numbers, [0xFFFFFFFF, 0, 0, 0xFFFFFFFF, 0])

    def test_noCopy(self) -> None:
        """
        Without a CRC and markers the payload's own octets go to the socket.
        """
        data = bytearray(300)
        pieces = [memoryview(data)[:100], memoryview(data)[100:]]
        for payload in (data, pieces):
            for opcode, header in ((SEND_ONLY, b""), (WRITE_ONLY, RETH.pack(BASE, KEY, 300))):
                for largest in (128, 4096):
                    self.end = End(largest=largest)
                    self.end.sender.post(self.end.out, opcode, header, payload, 300)
                    data[:] = b"\xff" * 300
                    self.assertEqual(self.end.sent().count(b"\xff"), 300)
                    data[:] = bytes(300)

    def test_cut(self) -> None:
        """
        Buffers are cut where a segment is full; each is looked at once, however many segments there are.
        """
        data = bytes(range(200))
        for sizes in ((200,), (1,) * 200, (100, 100), (0, 99, 0, 0, 101, 0), (101, 99)):
            pieces = [data[sum(sizes[:at]) :][:size] for at, size in enumerate(sizes)]
            for most in (1, 7, 100, 199, 200, 300):
                found = [b"".join(part) for part in cut(pieces, 200, most)]
                self.assertEqual(found, [data[at : at + most] for at in range(0, 200, most)])
        self.assertEqual(cut([], 0, 1), [[]])
        self.assertEqual(len(cut([b""] * 50 + [data], 200, 100)[1]), 1)

    def test_refused(self) -> None:
        """
        Operations that iWARP has not are errors that name them.
        """
        for name in (
            "COMPARE_SWAP",
            "FETCH_ADD",
            "SEND_ONLY_IMMEDIATE",
            "WRITE_LAST_IMMEDIATE",
            "ACKNOWLEDGE",
        ):
            code = getattr(opcodes, name)
            error = self.assertRaises(QueuePairError, self.post, code, b"", b"")
            self.assertEqual(str(error), f"iWARP has no operation of opcode {code:#04x}")
        self.assertEqual(self.end.out, [])

    def test_ready(self) -> None:
        """
        The three ready-to-receive messages; the one that is a READ needs one.
        """
        for kind, header in (
            ("write", TaggedHeader(Opcode.WRITE, True, 1, 0)),
            ("send", UntaggedHeader(Opcode.SEND, True, 0, 0, 1, 0)),
            ("read", UntaggedHeader(Opcode.READ_REQUEST, True, 0, 1, 1, 0)),
        ):
            end = End()
            end.sender.readyToReceive(end.out, kind)
            [(found, _)] = segments(end)
            self.assertEqual(found, header)
        end = End(ord=0)
        self.assertRaises(QueuePairError, end.sender.readyToReceive, end.out, "read")

    def test_once(self) -> None:
        """
        A stream has one Terminate.
        """
        end = self.end
        self.assertTrue(end.sender.terminate(end.out, CRC_ERROR))
        segments(end)
        self.assertFalse(end.sender.terminate(end.out, CRC_ERROR))
        self.assertEqual(end.out, [])
        # About no segment.
        end = self.end = End()
        self.assertTrue(end.sender.terminate(end.out, DDP_CATASTROPHIC))
        self.assertEqual(segments(end), [(UntaggedHeader(Opcode.TERMINATE, True, 0, 2, 1, 0), b"\x10\0\0\0")])
