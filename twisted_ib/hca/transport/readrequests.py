"""
READs and atomics on their way to the peer, and where the packets of an answer belong.
"""

from __future__ import annotations

from typing import Any, Final

from twisted_ib import limits
from twisted_ib.hca.transport.parameters import ACKNOWLEDGE_REQUEST, Packet
from twisted_ib.hca.transport.psn import packets
from twisted_ib.hca.wire.headers import AETH, PSN_MASK, RETH
from twisted_ib.hca.wire.opcodes import (
    COMPARE_SWAP,
    FETCH_ADD,
    READ_REQUEST,
    READ_RESPONSE_FIRST,
    READ_RESPONSE_LAST,
    READ_RESPONSE_MIDDLE,
    READ_RESPONSE_ONLY,
)

#: The bits of a syndrome that say which kind it is; all are 0 in an acknowledgement.
SYNDROME_MASK: Final = 0xE0
QUESTIONS: Final = frozenset((READ_REQUEST, COMPARE_SWAP, FETCH_ADD))
#: A READ's response -> whether it begins and ends an answer; bytes of its AETH.
_RESPONSES: Final = {
    READ_RESPONSE_FIRST: (True, False, AETH.size),
    READ_RESPONSE_MIDDLE: (False, False, 0),
    READ_RESPONSE_LAST: (False, True, AETH.size),
    READ_RESPONSE_ONLY: (True, True, AETH.size),
}
#: The code of a record of an answer, by whether it is the first and the last one.
_ANSWER: Final = {
    (True, False): READ_RESPONSE_FIRST,
    (False, False): READ_RESPONSE_MIDDLE,
    (False, True): READ_RESPONSE_LAST,
    (True, True): READ_RESPONSE_ONLY,
}


class ReadRequest:
    """
    A READ or an atomic: what L{Record
    <twisted_ib.hca.transport.segmentation.Record>} is to messages.

    @ivar code: its operation code.
    @ivar header: its extended header.
    @ivar length: bytes that a READ asks for.
    @ivar asked: the numbers that a READ was asked for from, of those that are not answered.
    """

    __slots__ = ("asked", "code", "end", "header", "length", "position", "start")

    asks = True
    size = 0

    def __init__(self, code: int, header: bytes, position: int, start: int, mtu: int) -> None:
        """
        Number the packets of the answer.

        @param start: the number of the request, and so of the first packet of its answer.
        """
        self.code = code
        self.header = header
        self.position = position
        self.start = start
        self.length = 0
        self.asked: set[int] = set()
        if code == READ_REQUEST:
            self.length = RETH.unpack(header)[2]
        self.end = start + packets(self.length, mtu)

    def partEnd(self, at: int) -> int:
        """
        The number after the part of the answer that a number is in.  Parts are counted from
        the beginning, so that what is asked for again is within what was asked for
        (Linux's C{rxe_resp.c}, C{duplicate_request}, wants that).
        """
        at -= self.start
        return min(self.end, self.start + at + limits.TRANSPORT_READ - at % limits.TRANSPORT_READ)

    def partBegins(self, at: int) -> bool:
        """
        Whether a part begins at a number.
        """
        return (at - self.start) % limits.TRANSPORT_READ == 0

    def ask(self, at: int, mtu: int) -> Packet:
        """
        Make the request for the answer, or for the rest of a part of it.

        @param at: the number of its first packet.
        """
        header = self.header
        if self.code == READ_REQUEST:
            offset = (at - self.start) * mtu
            stop = min(self.length, (self.partEnd(at) - self.start) * mtu)
            if offset or stop < self.length:
                address, key, _ = RETH.unpack(header)
                header = RETH.pack(address + offset & 0xFFFFFFFFFFFFFFFF, key, stop - offset)
            self.asked.add(at)
        return self.code, ACKNOWLEDGE_REQUEST, at & PSN_MASK, header, b""

    def place(
        self, code: int, number: int, buffer: Any, start: int, stop: int, mtu: int
    ) -> tuple[int, int] | None:
        """
        Look at a packet of the answer to a READ.

        @return: the code that it has counted in the whole answer, and where its payload
            begins; or L{None} if it does not belong there.
        """
        row = _RESPONSES.get(code)
        if row is None:
            return None
        begins, ends, header = row
        last = number + 1 == self.end
        length = self.length - (number - self.start) * mtu if last else mtu
        if (
            stop - start != header + length
            or (header and buffer[start] & SYNDROME_MASK)
            or (number not in self.asked if begins else self.partBegins(number))
            or ends is not (number + 1 == self.partEnd(number))
        ):
            return None
        return _ANSWER[number == self.start, last], start + header
