"""
The peer's remembered requests that a response answers, and the responses.
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
    A READ, an atomic or an ATOMIC WRITE of the peer, remembered for duplicates (IBTA vol. 1 9.7.5.1).

    @ivar start: its PSN.
    @ivar end: the PSN after its response.
    @ivar code: its opcode.
    @ivar address: of a READ, from its RETH; C{key} and C{length} likewise.
    @ivar msn: the MSN after it.
    @ivar isAnswered: whether its whole response was sent at least once.
    @ivar result: the response of one packet, once the request was executed; L{None} for a READ.
    @ivar answer: the latest response to a READ, until it is sent.
    @ivar again: the part that was requested again and is not begun: its first PSN, the PSN after it, and
        its header.
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
        # IBTA vol. 1 9.4.5: a duplicate of an atomic is answered with the stored result and never
        # executed again.
        self.result: bytes | None = None
        self.answer: Response | None = None
        self.again: tuple[int, int, bytes] | None = None

    def header(self) -> bytes:
        """
        @return: the AETH of the response; its MSN counts the request itself.
        """
        # First and Last of one response have the same MSN (Linux rxe_resp.c: a READ counts when
        # accepted, C9-148).
        return AETH.pack(ACK << 24 | self.msn & PSN_MASK)

    def part(self, at: int, header: bytes, mtu: int) -> tuple[int, int, bytes] | None:
        """
        Check a repeated READ.

        @param at: its PSN.
        @param header: its RETH.
        @return: the value for L{again}; L{None} if it is another READ, or asks for more.
        """
        address, key, length = RETH.unpack(header)
        offset = (at - self.start) * mtu
        # IBTA vol. 1 9.4.4: a retried READ is a subset of the original.  Anything else would read
        # memory by a PSN whose right was checked for other bytes; Linux rxe_resp.c
        # duplicate_request() drops it, too.
        if key != self.key or address != self.address + offset & 0xFFFFFFFFFFFFFFFF:
            return None
        if offset + length > self.length:
            return None
        return at, at + packets(length, mtu), header


class Response:
    """
    A response that the user makes: to a READ, a part of one, or another request.

    @ivar asked: the request.
    @ivar start: its first PSN.
    @ivar at: the PSN of what the user posts next.
    @ivar sent: the PSN after what was sent.
    @ivar end: the PSN after its last packet.
    @ivar isVoid: whether it is not sent any more: a part that was sent was lost, and requested again.
    """

    __slots__ = ("asked", "at", "end", "isVoid", "sent", "start")

    def __init__(self, asked: RememberedRequest, start: int, end: int) -> None:
        self.asked = asked
        self.start = self.at = self.sent = start
        self.end = end
        self.isVoid = False

    def cut(self, at: int, stop: int, mtu: int, body: Any, out: list[Packet]) -> None:
        """
        Split a part of a READ response into packets.

        @param at: the first PSN.
        @param stop: the PSN after the last one.
        @param mtu: the path MTU in bytes.
        @param body: the bytes from there on.
        @param out: list to append the packets to.
        """
        start, last = self.start, self.end - 1
        view = body if stop - at == 1 and len(body) <= mtu else memoryview(body)
        offset = 0
        for number in range(at, stop):
            data = view[offset : offset + mtu]
            offset += mtu
            # IBTA vol. 1 9.2.1: a Middle packet has no AETH.
            if start < number < last:
                out.append((READ_RESPONSE_MIDDLE, 0, number & PSN_MASK, b"", data))
                continue
            code = READ_RESPONSE_LAST
            if number == start:
                code = READ_RESPONSE_ONLY if number == last else READ_RESPONSE_FIRST
            out.append((code, 0, number & PSN_MASK, self.asked.header(), data))
