"""
Segmentation of records into packets (IBTA vol. 1 9.7.3: all but the last have the path MTU).

A record is a part of a message: it has the opcode of a First, Middle, Last or Only packet, that packet's
extended headers, and more bytes than fit into one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Final, final

from twisted_ib.hca.transport.parameters import ACKNOWLEDGE_REQUEST, Packet
from twisted_ib.hca.transport.readrequests import ReadRequest
from twisted_ib.hca.wire.headers import PSN_MASK, RETH
from twisted_ib.hca.wire.opcodes import OPCODES, SEVERAL, UNRELIABLE

#: Record opcode -> bytes of its extended headers; how many of them go into its first packet if it
#: needs several; whether it ends a message.
SHAPES: Final = {
    code: (
        OPCODES[code].layout.size,
        RETH.size if RETH in OPCODES[code].headers else 0,
        OPCODES[code].ends,
    )
    for code in SEVERAL
    if OPCODES[code].isRequest and not code & UNRELIABLE
}


def joined(payload: Any) -> Any:
    """
    Copy a record's payload, unless it cannot change.

    @param payload: bytes-like, or a list of bytes-like objects.
    @return: bytes, or a view of bytes.
    """
    # Kept until acknowledged, for retransmission: a buffer that the caller may change would be
    # sent with other bytes, and another ICRC, the second time.
    if payload.__class__ is bytes or (payload.__class__ is memoryview and payload.obj.__class__ is bytes):
        return payload
    return b"".join(payload) if payload.__class__ is list else bytes(payload)


@final
class Record:
    """
    A part of a message, to be sent as packets.

    @cvar asks: whether it completes only when its response has come.
    @ivar start: the PSN of its first packet.
    @ivar end: the PSN after its last one.
    @ivar position: the user's.
    @ivar size: its bytes.
    @ivar ends: whether it ends a message.
    @ivar head: of its first packet: extended headers, and the bytes of a stream's header.
    @ivar body: the rest, bytes-like.
    """

    __slots__ = (
        "_code",
        "_lead",
        "_solicited",
        "_tail",
        "body",
        "end",
        "ends",
        "head",
        "position",
        "size",
        "start",
    )

    asks: ClassVar = False

    def __init__(
        self, code: int, solicited: int, header: bytes, body: Any, position: int, start: int, mtu: int
    ) -> None:
        """
        @param code: an opcode of a SEND or a WRITE.
        @param solicited: L{SOLICITED_EVENT} for its last packet, or 0.
        @param header: the extended headers, perhaps with the first bytes of the payload.
        @param body: the rest, bytes.
        @param start: the PSN of the first packet.
        @param mtu: the path MTU in bytes.
        """
        size, first, self.ends = SHAPES[code]
        lead = len(header) - size
        if lead and (lead & 3 or lead > mtu):
            # A stream's header stays apart from its data, to save a copy, only if it keeps the pad
            # count (a multiple of 4 bytes) and fits the first packet.
            body, header, lead = header[size:] + body, header[:size], 0
        self._code = code
        self._solicited = solicited
        self._lead = lead
        self.body = body
        self.size = length = lead + len(body)
        self.position = position
        self.start = start
        if length <= mtu:
            self.end = start + 1
            self.head = header
            self._tail = b""
        else:
            self.end = start - (-length // mtu)
            self.body = memoryview(body)
            # IBTA vol. 1 9.2.1: the RETH goes into the first packet, immediate and IETH
            # into the last.
            if first == size:
                self.head = header
                self._tail = b""
            else:
                self._tail = header[first:size]
                self.head = header[:first] + header[size:]

    def cut(self, at: int, stop: int, mtu: int, out: list[Packet], acknowledge: int) -> None:
        """
        Make packets.

        @param at: the first PSN.
        @param stop: the PSN after the last one.
        @param mtu: the path MTU in bytes.
        @param out: list to append them to.
        @param acknowledge: the PSN of a packet that gets AckReq, if it is a Middle one.
        """
        start, end, body = self.start, self.end, self.body
        if end - start == 1:
            out.append((self._code, self._solicited, start & PSN_MASK, self.head, body))
            return
        first, middle, last = SEVERAL[self._code]
        if at == start:
            out.append((first, 0, at & PSN_MASK, self.head, body[: mtu - self._lead]))
            at += 1
        offset = (at - start) * mtu - self._lead
        for number in range(at, min(stop, end - 1)):
            flags = ACKNOWLEDGE_REQUEST if number == acknowledge else 0
            # SE and the pad are for the last packet only: Middle packets have the path MTU, a multiple of 4.
            out.append((middle, flags, number & PSN_MASK, b"", body[offset : offset + mtu]))
            offset += mtu
        if stop == end and at < end:
            out.append((last, self._solicited, end - 1 & PSN_MASK, self._tail, body[offset:]))


def fitting(
    oldest: Record | ReadRequest,
    unsent: Iterable[Record | ReadRequest],
    una: int,
    at: int,
    limit: int,
    left: int,
    mtu: int,
) -> int:
    """
    Find how many packets fit into a bound in bytes.

    @param oldest: the first record that is not, or not wholly, acknowledged.
    @param unsent: the records that are not, or not wholly, sent.
    @param una: the oldest unacknowledged PSN.
    @param at: the PSN of the next packet.
    @param limit: the PSN after the last one that the window permits.
    @param left: the bound less the bytes of the records that are wholly sent.
    @param mtu: the path MTU in bytes.
    @return: the PSN up to which no more bytes are on their way; below C{at} if there are more already.
    """
    # Packet by packet: a mean would also be one of packets behind these. READs have numbers, but no bytes.
    if una > oldest.start:
        left += min(oldest.size, (una - oldest.start) * mtu)
    for record in unsent:
        first, size = record.start, record.size
        if first >= limit:
            break
        if first < at:
            gone = min(size, (at - first) * mtu)
            left -= gone
            size -= gone
            first = at
        if size > left:
            return min(limit, first + left // mtu)
        left -= size
    return limit
