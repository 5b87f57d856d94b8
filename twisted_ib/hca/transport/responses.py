"""
The peer's READs and atomics that are remembered, and their answers.
"""

from __future__ import annotations

from typing import Any

from twisted_ib.hca.transport.parameters import Packet
from twisted_ib.hca.transport.psn import packets
from twisted_ib.hca.wire.headers import ACK, AETH, PSN_MASK, RETH
from twisted_ib.hca.wire.opcodes import (
    READ_REQUEST,
    READ_RESPONSE_FIRST,
    READ_RESPONSE_LAST,
    READ_RESPONSE_MIDDLE,
    READ_RESPONSE_ONLY,
)


class RememberedRequest:
    """
    A READ or atomic of the peer that is remembered (IBTA vol. 1 9.7.5.1.5).

    @ivar start: its number.
    @ivar end: the number after its answer.
    @ivar code: its operation code.
    @ivar address: that a READ begins at.
    @ivar key: that a READ gives.
    @ivar length: bytes that a READ asks for.
    @ivar msn: how many messages were done when it was.
    @ivar isAnswered: whether all of its answer was sent at least once.
    @ivar result: the answer of an atomic, once there is one.
    @ivar answer: the latest answer to a READ, until all of it is sent.
    @ivar again: the part that was asked for again and is not begun: its first number, the
        number after it, and its header.
    """

    __slots__ = (
        "address",
        "again",
        "answer",
        "code",
        "end",
        "isAnswered",
        "key",
        "length",
        "msn",
        "result",
        "start",
    )

    def __init__(self, code: int, start: int, header: bytes, mtu: int, msn: int) -> None:
        self.code = code
        self.start = start
        self.msn = msn
        self.address = self.key = self.length = 0
        if code == READ_REQUEST:
            self.address, self.key, self.length = RETH.unpack(header)
        self.end = start + packets(self.length, mtu)
        self.isAnswered = False
        self.result: bytes | None = None
        self.answer: Response | None = None
        self.again: tuple[int, int, bytes] | None = None

    def header(self) -> bytes:
        """
        @return: the AETH of the answer: the MSN counts what is answered.
        """
        return AETH.pack(ACK << 24 | self.msn & PSN_MASK)

    def part(self, at: int, header: bytes, mtu: int) -> tuple[int, int, bytes] | None:
        """
        Look at a READ that has come again.

        @param at: its number.
        @param header: its extended header.
        @return: for L{again}; L{None} if it is another READ, or asks for more.
        """
        address, key, length = RETH.unpack(header)
        offset = (at - self.start) * mtu
        if key != self.key or address != self.address + offset & 0xFFFFFFFFFFFFFFFF:
            return None
        if offset + length > self.length:
            return None
        return at, at + packets(length, mtu), header


class Response:
    """
    An answer that the user makes: to a READ, or a part of one, or to an atomic.

    @ivar asked: what it answers.
    @ivar start: its first number.
    @ivar at: the number of what the user posts next.
    @ivar sent: the number after what was sent.
    @ivar end: the number after its last packet.
    @ivar isVoid: whether it is not sent any more: a part that was sent is missing, and has
        been asked for again.
    """

    __slots__ = ("asked", "at", "end", "isVoid", "sent", "start")

    def __init__(self, asked: RememberedRequest, start: int, end: int) -> None:
        self.asked = asked
        self.start = self.at = self.sent = start
        self.end = end
        self.isVoid = False

    def cut(self, at: int, stop: int, mtu: int, body: Any, out: list[Packet]) -> None:
        """
        Make packets of a part of the answer to a READ.

        @param at: the number of the first one.
        @param stop: the number after the last one.
        @param mtu: the path MTU in bytes.
        @param body: the bytes from there on.
        @param out: where they are appended.
        """
        start, last, append = self.start, self.end - 1, out.append
        view = body if stop - at == 1 and len(body) <= mtu else memoryview(body)
        offset = 0
        for number in range(at, stop):
            data = view[offset : offset + mtu]
            offset += mtu
            if start < number < last:
                append((READ_RESPONSE_MIDDLE, 0, number & PSN_MASK, b"", data))
                continue
            code = READ_RESPONSE_LAST
            if number == start:
                code = READ_RESPONSE_ONLY if number == last else READ_RESPONSE_FIRST
            append((code, 0, number & PSN_MASK, self.asked.header(), data))
