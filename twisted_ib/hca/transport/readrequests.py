"""
Outstanding requests that a response answers, and where the packets of one belong.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Final, final

from twisted_ib import limits
from twisted_ib.hca.transport.parameters import ACKNOWLEDGE_REQUEST, ConnectionParameters, Packet
from twisted_ib.hca.transport.psn import packets
from twisted_ib.hca.wire.headers import PSN_MASK, RETH
from twisted_ib.hca.wire.opcodes import (
    OPCODES,
    READ_REQUEST,
    READ_RESPONSE_FIRST,
    READ_RESPONSE_LAST,
    READ_RESPONSE_MIDDLE,
    READ_RESPONSE_ONLY,
    Kind,
)

if TYPE_CHECKING:
    from twisted_ib.hca.transport.segmentation import Record

#: The bits of an AETH syndrome that have its kind; 0 in an ACK (IBTA vol. 1 9.7.5.2).
SYNDROME_MASK: Final = 0xE0
#: Request opcode -> the opcode and bytes of its response if that is one packet; a READ's may be several.
RESPONSE_TO: Final = {
    code: (row.response, OPCODES[row.response].layout.size)
    for code, row in OPCODES.items()
    if row.response is not None
}
#: READ response opcode -> whether it begins and ends a response; bytes of its AETH.
_RESPONSES: Final = {
    code: (row.begins, row.ends, row.layout.size)
    for code, row in OPCODES.items()
    if row.kind is Kind.READ_RESPONSE
}
#: The opcode of a response record, by whether it is the first and the last one.
_ANSWER: Final = {
    (True, False): READ_RESPONSE_FIRST,
    (False, False): READ_RESPONSE_MIDDLE,
    (False, True): READ_RESPONSE_LAST,
    (True, True): READ_RESPONSE_ONLY,
}


def awaited(records: Iterable[Record | ReadRequest], una: int, stop: int, mtu: int) -> int:
    """
    Add up the bytes of responses that are to come.

    @param records: what was sent and is not wholly acknowledged, messages too.
    @param una: the oldest unacknowledged PSN.
    @param stop: the PSN after the last one that was, or is to be, asked for.
    @param mtu: the path MTU in bytes.
    """
    found = 0
    for each in records:
        if isinstance(each, ReadRequest):
            ends, come = min(stop, each.end) - each.start, max(0, una - each.start)
            found += max(0, min(each.length, ends * mtu) - come * mtu)
    return found


@final
class ReadRequest:
    """
    A READ, an atomic or an ATOMIC WRITE; the counterpart of
    L{Record <twisted_ib.hca.transport.segmentation.Record>} for messages.

    @ivar code: its opcode.
    @ivar header: its extended header, with the payload if it has one.
    @ivar length: bytes that a READ asks for.
    @ivar asked: PSNs at which a request for a part was sent, as far as not answered.
    @ivar part: response packets that one request asks for.
    """

    __slots__ = ("asked", "code", "end", "header", "length", "part", "position", "start")

    asks: ClassVar = True
    size: ClassVar = 0

    def __init__(
        self, code: int, header: bytes, position: int, start: int, terms: ConnectionParameters
    ) -> None:
        """
        @param start: the PSN of the request, and of the first packet of the response.
        """
        self.code = code
        self.header = header
        self.position = position
        self.start = start
        self.length = 0
        self.asked: set[int] = set()
        if code == READ_REQUEST:
            self.length = RETH.unpack(header)[2]
        # A READ takes as many PSNs as its response has packets (IBTA vol. 1 9.7.3; Linux
        # rxe_req.c update_wqe_psn()).
        self.end = start + packets(self.length, terms.mtu)
        self.part = terms.scaled(limits.TRANSPORT_READ)

    def partEnd(self, at: int) -> int:
        """
        The PSN after the part of the response that a PSN is in.
        """
        # Parts are counted from the beginning: a retried READ must be a subset of one that was
        # sent (IBTA vol. 1 9.4.4; Linux rxe_resp.c duplicate_request() drops any other).
        at -= self.start
        return min(self.end, self.start + at + self.part - at % self.part)

    def ask(self, at: int, mtu: int) -> Packet:
        """
        Make the request packet for a part, or for the rest of one.

        @param at: the PSN of its first response packet.
        """
        header = self.header
        if self.code == READ_REQUEST:
            offset = (at - self.start) * mtu
            stop = min(self.length, (self.partEnd(at) - self.start) * mtu)
            # IBTA vol. 1 9.4.4: a retried READ need only ask for what is missing, by its own PSN
            # and address.
            if offset or stop < self.length:
                address, key, _ = RETH.unpack(header)
                header = RETH.pack(address + offset & 0xFFFFFFFFFFFFFFFF, key, stop - offset)
            self.asked.add(at)
        return self.code, ACKNOWLEDGE_REQUEST, at & PSN_MASK, header, b""

    def goesOn(self, at: int, count: int, length: int, mtu: int) -> bool:
        """
        Check Middle packets of a READ response, without L{place}.

        @param at: the PSN of the first.
        @param length: bytes of each.
        @return: whether they belong there, amid a part; then they are no longer awaited.
        """
        offset, part = at - self.start, self.part
        if self.code != READ_REQUEST or length != mtu or at + count >= self.end:
            return False
        if offset <= 0 or not 0 < offset % part < part - count:
            return False
        if self.asked:
            self.asked.difference_update(range(at, at + count))
        return True

    def place(
        self, code: int, number: int, buffer: Any, start: int, stop: int, mtu: int
    ) -> tuple[int, int] | None:
        """
        Check a packet of a READ response.

        @return: its opcode within the whole response, and where its payload begins; L{None} if it does not
            belong there.
        """
        row = _RESPONSES.get(code)
        if row is None:
            return None
        begins, ends, header = row
        last = number + 1 == self.end
        length = self.length - (number - self.start) * mtu if last else mtu
        # First and Only are valid only where a request was sent: after a retry a response may
        # begin anew amidst a part, as Linux rxe_comp.c check_ack() knows, but nowhere else.
        if (
            stop - start != header + length
            or (header and buffer[start] & SYNDROME_MASK)
            or (number not in self.asked if begins else not (number - self.start) % self.part)
            or ends is not (number + 1 == self.partEnd(number))
        ):
            return None
        return _ANSWER[number == self.start, last], start + header
