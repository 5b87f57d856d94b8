"""
Both ends of a stream of RDMAP in memory, and what they deliver.
"""

from __future__ import annotations

import random
from typing import Any

from twisted_ib.hca.base.operation import SOLICITED
from twisted_ib.hca.fabric.iwarp.protocol.mpastream import FPDUReader, FPDUWriter
from twisted_ib.hca.fabric.iwarp.protocol.reads import Reads
from twisted_ib.hca.fabric.iwarp.protocol.receiving import RDMAPReceiver
from twisted_ib.hca.fabric.iwarp.protocol.sending import RDMAPSender
from twisted_ib.hca.fabric.iwarp.protocol.terminate import TerminateMessage
from twisted_ib.hca.wire.headers import INVALIDATE, RETH
from twisted_ib.hca.wire.opcodes import (
    READ_REQUEST,
    READ_RESPONSE_FIRST,
    READ_RESPONSE_LAST,
    READ_RESPONSE_MIDDLE,
    READ_RESPONSE_ONLY,
    SEND_FIRST,
    SEND_LAST,
    SEND_LAST_INVALIDATE,
    SEND_MIDDLE,
    SEND_ONLY,
    SEND_ONLY_INVALIDATE,
    WRITE_FIRST,
    WRITE_LAST,
    WRITE_MIDDLE,
    WRITE_ONLY,
)

#: Octets that a test's memory begins at, and their number.
BASE = 0x7F0000001000
OCTETS = 1 << 16
KEY = 0xAABBCC01
#: The records of a SEND that invalidates.
INVALIDATES = (SEND_ONLY_INVALIDATE, SEND_LAST_INVALIDATE)


class End:
    """
    One end: a user of a receiver that remembers what it was told, and its sender.

    @ivar records: opcode and octets of each record.
    @ivar messages: the Sends, whole: the last record's opcode, the STag to invalidate or L{None}, octets.
    @ivar memory: what Writes go to.
    @ivar responses: the Read Responses, whole.
    @ivar reads: READs of the peer that await an answer: RETH's fields.
    @ivar syndromes: by which the next records are refused; 0 accepts one.
    """

    def __init__(
        self,
        crc: bool = False,
        markers: bool = False,
        largest: int = 1454,
        ird: int = 16,
        ord: int = 16,
        ready: str | None = None,
        key: int = 0x5A,
    ) -> None:
        self.out: list[Any] = []
        self.bookkeeping = Reads(ird, ord, key)
        self.sender = RDMAPSender(FPDUWriter(crc, markers), largest, self.bookkeeping)
        self.receiver = RDMAPReceiver(self, self.bookkeeping, ready)
        self.reader = FPDUReader(crc, markers)
        self.buffer = bytearray()
        self.records: list[tuple[int, bytes]] = []
        self.messages: list[tuple[int, int | None, bytes]] = []
        self.memory = bytearray(OCTETS)
        self.responses: list[bytes] = []
        self.reads: list[tuple[int, int, int]] = []
        self.syndromes: list[int] = []
        self.ready = 0
        self.terminations: list[TerminateMessage] = []
        self._part = b""
        self._response = b""

    # -- the receiver's user

    def delivered(self, opcode: int, buffer: Any, start: int, stop: int) -> int:
        if self.syndromes:
            syndrome = self.syndromes.pop(0)
            if syndrome:
                return syndrome
        octets = bytes(buffer[start:stop])
        self.records.append((opcode, octets))
        code = opcode & ~SOLICITED
        if code == WRITE_ONLY:
            address, key, length = RETH.unpack_from(octets)
            assert key == KEY and length == len(octets) - RETH.size, (key, length)
            at = address - BASE
            if 0 <= at <= OCTETS - length:
                self.memory[at : at + length] = octets[RETH.size :]
        elif code == READ_REQUEST:
            self.reads.append(RETH.unpack(octets))
        elif code in (READ_RESPONSE_FIRST, READ_RESPONSE_MIDDLE, READ_RESPONSE_LAST, READ_RESPONSE_ONLY):
            begins = code in (READ_RESPONSE_FIRST, READ_RESPONSE_ONLY)
            assert begins is (not self._response), code
            self._response += octets
            if code in (READ_RESPONSE_LAST, READ_RESPONSE_ONLY):
                self.responses.append(self._response)
                self._response = b""
        else:
            self._send(opcode, octets)
        return 0

    def _send(self, opcode: int, octets: bytes) -> None:
        code = opcode & ~SOLICITED
        begins = code in (SEND_FIRST, SEND_ONLY, SEND_ONLY_INVALIDATE)
        assert begins is (not self._part), code
        key = None
        if code in INVALIDATES:
            (key,) = INVALIDATE.unpack_from(octets)
            octets = octets[INVALIDATE.size :]
        self._part += octets
        if code not in (SEND_FIRST, SEND_MIDDLE):
            self.messages.append((opcode, key, self._part))
            self._part = b""

    def readyToReceive(self) -> None:
        self.ready += 1

    def terminated(self, message: TerminateMessage) -> None:
        self.terminations.append(message)

    # -- octets

    def sent(self) -> bytes:
        """
        @return: the octets posted since the last call.
        """
        stream = b"".join(self.out)
        self.out.clear()
        return stream

    def received(self, octets: bytes) -> int:
        """
        Take octets as a socket gives them.

        @return: the syndrome of a refusal, or 0.
        """
        self.buffer += octets
        start = 0
        syndrome = 0
        while not syndrome:
            end = self.reader.next(self.buffer, start, len(self.buffer))
            if not end:
                break
            syndrome = self.receiver.take(self.buffer, self.reader.first, self.reader.last)
            if not syndrome:
                start = end
        del self.buffer[:start]
        return syndrome


def cuts(octets: bytes, chance: random.Random) -> list[bytes]:
    """
    @return: the octets in random parts.
    """
    parts = []
    at = 0
    while at < len(octets):
        size = chance.choice((1, 2, 7, 100, 1460, 9000))
        parts.append(octets[at : at + size])
        at += size
    return parts


class Story:
    """
    A random sequence of records of two ends, and what each end must be told.
    """

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        crc, markers = chance.random() < 0.3, chance.random() < 0.3
        largest = chance.choice((128, 1442, 4096, 65000))
        self.ends = [End(crc, markers, largest), End(crc, markers, largest)]
        self.memories = [bytearray(OCTETS), bytearray(OCTETS)]
        self.messages: list[list[tuple[int, int | None, bytes]]] = [[], []]
        self.responses: list[list[bytes]] = [[], []]
        # What is left to post of a message that has begun, for each end; and of a Read Response.
        self.parts: list[list[tuple[int, bytes, bytes]]] = [[], []]
        self.answer: list[list[tuple[int, bytes]]] = [[], []]

    def payload(self) -> bytes:
        """
        @return: random octets, often few.
        """
        most = self.chance.choice((0, 1, 50, 1442, 3000, 20000))
        return self.chance.randbytes(self.chance.randint(0, most))

    def split(self, octets: bytes, codes: tuple[int, int, int, int]) -> list[tuple[int, bytes]]:
        """
        @return: the records of a message.
        """
        first, middle, last, only = codes
        if len(octets) < 2 or self.chance.random() < 0.6:
            return [(only, octets)]
        at = sorted(
            self.chance.sample(range(1, len(octets)), min(len(octets) - 1, self.chance.randint(1, 3)))
        )
        parts = [octets[a:b] for a, b in zip([0, *at], [*at, len(octets)], strict=True)]
        named = [first, *([middle] * (len(parts) - 2)), last]
        return list(zip(named, parts, strict=True))

    def begin(self, index: int) -> None:
        """
        Begin a message of an end.
        """
        chance, peer = self.chance, 1 - index
        octets = self.payload()
        kind = chance.randrange(4)
        parts = self.parts[index]
        if kind == 0:
            at = chance.randint(0, OCTETS - len(octets))
            self.memories[peer][at : at + len(octets)] = octets
            header = RETH.pack(BASE + at, KEY, len(octets))
            for code, part in self.split(octets, (WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, WRITE_ONLY)):
                parts.append((code, header, part))
                header = b""
        elif kind == 1:
            at = chance.randint(0, OCTETS - len(octets))
            header = RETH.pack(BASE + at, KEY, len(octets))
            parts.append((READ_REQUEST, header, b""))
        else:
            key = chance.getrandbits(32) if chance.random() < 0.3 else None
            solicited = SOLICITED if chance.random() < 0.3 else 0
            codes = (SEND_FIRST, SEND_MIDDLE, SEND_LAST, SEND_ONLY)
            header = b""
            if key is not None:
                codes = (SEND_FIRST, SEND_MIDDLE, SEND_LAST_INVALIDATE, SEND_ONLY_INVALIDATE)
                header = INVALIDATE.pack(key)
            for code, part in self.split(octets, codes):
                cut = chance.randint(0, len(part)) if code == SEND_ONLY else 0
                parts.append((code | solicited, header + part[:cut], part[cut:]))
            # A message of several segments is told as of several records: its end alone counts.
            self.messages[peer].append((solicited, key, octets))

    def post(self, index: int) -> None:
        """
        Post a record of an end: of its response, or of its own message.
        """
        end, chance = self.ends[index], self.chance
        answer, parts = self.answer[index], self.parts[index]
        if end.reads and not answer:
            _, key, length = end.reads.pop(0)
            assert key == KEY
            octets = chance.randbytes(length)
            self.responses[1 - index].append(octets)
            codes = (READ_RESPONSE_FIRST, READ_RESPONSE_MIDDLE, READ_RESPONSE_LAST, READ_RESPONSE_ONLY)
            answer += self.split(octets, codes)
        if answer and chance.random() < 0.5:
            code, octets = answer.pop(0)
            assert end.sender.post(end.out, code, b"", octets, len(octets))
            return
        if not parts:
            self.begin(index)
        code, header, octets = parts[0]
        payload: Any = octets
        if chance.random() < 0.3:
            cut = chance.randint(0, len(octets))
            payload = [octets[:cut], memoryview(octets)[cut:]]
        if end.sender.post(end.out, code, header, payload, len(octets)):
            parts.pop(0)

    def run(self, steps: int) -> None:
        """
        Post records and hand over octets, in random order and parts.
        """
        transit: list[list[bytes]] = [[], []]
        for _ in range(steps):
            index = self.chance.randrange(2)
            if self.chance.random() < 0.6:
                self.post(index)
                transit[index] += cuts(self.ends[index].sent(), self.chance)
            elif transit[index]:
                assert not self.ends[1 - index].received(transit[index].pop(0))
        while True:
            for index in (0, 1):
                while self.parts[index] or self.answer[index] or self.ends[index].reads:
                    if not self.parts[index] and not self.answer[index]:
                        self.parts[index].append((SEND_ONLY, b"", b""))
                        self.messages[1 - index].append((0, None, b""))
                    self.post(index)
                    transit[index] += cuts(self.ends[index].sent(), self.chance)
                    if self.parts[index] and self.ends[index].bookkeeping.outstanding:
                        break
            if not any(transit) and not any(self.parts) and not any(self.answer):
                if not any(end.reads for end in self.ends):
                    return
            for index in (0, 1):
                while transit[index]:
                    assert not self.ends[1 - index].received(transit[index].pop(0))
