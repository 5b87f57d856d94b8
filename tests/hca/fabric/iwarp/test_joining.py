"""
L{twisted_ib.hca.fabric.iwarp.protocol.mpastream}: segments of a Send that were received together.
"""

from __future__ import annotations

from random import Random
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.fabric.iwarp.protocol.rdmap import BASE, KEY, End
from twisted_ib.hca.base.operation import SOLICITED
from twisted_ib.hca.fabric.iwarp.protocol.mpastream import StreamError, joinSends
from twisted_ib.hca.fabric.iwarp.protocol.sending import RDMAPSender
from twisted_ib.hca.wire.headers import INVALIDATE, RETH, RNR
from twisted_ib.hca.wire.opcodes import (
    SEND_FIRST,
    SEND_LAST,
    SEND_LAST_INVALIDATE,
    SEND_ONLY,
    SEND_ONLY_INVALIDATE,
    WRITE_ONLY,
)

#: Octets of the payload of a segment.
_SEGMENT = 110
_CONTENT = Random(21).randbytes(1000)


class JoiningTests(SynchronousTestCase):
    """
    An end whose ULPDUs have 128 octets at most, and one that joins what it has received.
    """

    def setUp(self) -> None:
        self.near, self.far = End(largest=128), End(crc=False)

    def post(self, opcode: int, header: bytes = b"", payload: bytes = b"") -> None:
        """
        Post a record at the near end.
        """
        self.near.sender.post(self.near.out, opcode, header, payload, len(payload))

    def take(self, *parts: bytes) -> None:
        """
        Receive octets at the far end, in these parts.
        """
        far, buffer = self.far, bytearray()
        for part in parts:
            buffer += part
            start = 0
            while end := far.reader.next(buffer, start, len(buffer)):
                if not buffer[far.reader.first] & 0xC0:
                    end = joinSends(far.reader, buffer, end, len(buffer))
                syndrome = far.receiver.take(buffer, far.reader.first, far.reader.last)
                self.assertEqual(syndrome, 0)
                start = end
            del buffer[:start]
        self.assertEqual(bytes(buffer), b"")

    def test_whole(self) -> None:
        """
        A message of any length that was received whole is one record.
        """
        for size in (0, 1, _SEGMENT, _SEGMENT + 1, 2 * _SEGMENT, 1000):
            self.post(SEND_ONLY, b"", _CONTENT[:size])
            self.take(self.near.sent())
            self.assertEqual(self.far.records.pop(), (SEND_ONLY, _CONTENT[:size]))
        self.assertEqual(self.far.records, [])

    def test_kinds(self) -> None:
        """
        The operation of a Send, and the STag that it invalidates, are those of the joined one.
        """
        for opcode in (SEND_ONLY | SOLICITED, SEND_ONLY_INVALIDATE, SEND_ONLY_INVALIDATE | SOLICITED):
            key = INVALIDATE.pack(KEY) if opcode & ~SOLICITED == SEND_ONLY_INVALIDATE else b""
            self.post(opcode, key, _CONTENT)
            self.take(self.near.sent())
            self.assertEqual(self.far.records.pop(), (opcode, key + _CONTENT))

    def test_split(self) -> None:
        """
        At each offset a message and its neighbours may be split: the same messages arrive.
        """
        for payload in (b"before", _CONTENT[:300], b"behind"):
            self.post(SEND_ONLY, b"", payload)
        octets = self.near.sent()
        for at in range(len(octets)):
            self.far = End()
            self.take(octets[:at], octets[at:])
            sent = [message for _, _, message in self.far.messages]
            self.assertEqual(sent, [b"before", _CONTENT[:300], b"behind"], f"split at {at}")

    def test_within(self) -> None:
        """
        A Write that comes within a message is not joined, nor lost.
        """
        self.post(SEND_FIRST, b"", _CONTENT[:10])
        self.post(WRITE_ONLY, RETH.pack(BASE, KEY, 5), b"WRITE")
        self.post(SEND_LAST, b"", _CONTENT[10:20])
        self.take(self.near.sent())
        self.assertEqual(bytes(self.far.memory[:5]), b"WRITE")
        self.assertEqual([message for _, _, message in self.far.messages], [_CONTENT[:20]])

    def test_others(self) -> None:
        """
        What only looks like the rest of the message is left alone: each field of its header matters.
        """
        self.post(SEND_ONLY, b"", _CONTENT[:200])
        octets = self.near.sent()
        second = 2 + 128 + 2 + 4
        for at in range(18):
            # The reserved octets of RDMAP's control are not compared with anything but the first header's.
            damaged = bytearray(octets)
            damaged[second + at] ^= 0x11
            reader = End().reader
            end = reader.next(damaged, 0, len(damaged))
            self.assertEqual(joinSends(reader, damaged, end, len(damaged)), end, f"octet {at}")
            self.assertEqual((reader.first, reader.last), (2, 130))

    def test_short(self) -> None:
        """
        A segment that is too short, as the first or as the next, is left for the receiver to refuse.
        """
        for octets in (b"\0\4" + b"\x01\x43" + bytes(10), self._then(b"\0\x08" + bytes(30))):
            buffer = bytearray(octets)
            reader = End().reader
            end = reader.next(buffer, 0, len(buffer))
            self.assertEqual(joinSends(reader, buffer, end, len(buffer)), end)

    def _then(self, octets: bytes) -> bytes:
        self.post(SEND_FIRST, b"", _CONTENT[:10])
        return self.near.sent() + octets

    def test_incomplete(self) -> None:
        """
        Without the whole rest nothing changes.
        """
        self.post(SEND_ONLY, b"", _CONTENT[:200])
        octets = self.near.sent()
        for stop in range(136, len(octets)):
            buffer = bytearray(octets)
            reader = End().reader
            end = reader.next(buffer, 0, stop)
            self.assertEqual((joinSends(reader, buffer, end, stop), bytes(buffer)), (end, octets))

    def test_refused(self) -> None:
        """
        A joined segment that is refused may be given again.
        """
        self.post(SEND_ONLY, b"", _CONTENT)
        buffer = bytearray(self.near.sent())
        far: Any = self.far
        far.syndromes = [RNR, RNR]
        end = far.reader.next(buffer, 0, len(buffer))
        self.assertEqual(joinSends(far.reader, buffer, end, len(buffer)), len(buffer))
        taken = [far.receiver.take(buffer, far.reader.first, far.reader.last) for _ in range(3)]
        self.assertEqual((taken, far.records), ([RNR, RNR, 0], [(SEND_ONLY, _CONTENT)]))

    def test_damaged(self) -> None:
        """
        The CRC of each is checked.
        """
        near, far = End(crc=True, largest=128), End(crc=True)
        RDMAPSender.post(near.sender, near.out, SEND_ONLY, b"", _CONTENT, len(_CONTENT))
        buffer = bytearray(near.sent())
        end = far.reader.next(buffer, 0, len(buffer))
        buffer[-10] ^= 1
        with self.assertRaises(StreamError):
            joinSends(far.reader, buffer, end, len(buffer))

    def test_invalidateLast(self) -> None:
        """
        Records that begin and end a message are joined as segments are.
        """
        self.post(SEND_FIRST, INVALIDATE.pack(KEY), _CONTENT[:100])
        self.post(SEND_LAST_INVALIDATE, INVALIDATE.pack(KEY), _CONTENT[100:200])
        self.take(self.near.sent())
        self.assertEqual(len(self.far.messages), 1)
