"""
Operations as packets: what a medium of operations would have sent, were it one of packets.

A L{Flow} is one direction of a connection: the requests of one side and the answers to them.
The medium has no sequence numbers, acknowledgements or path MTU; they are made here, as
IBTA vol. 1 9.7 says and a requester would check them.  A record may be longer than a packet, or
be a part of a message that ends within one, so bytes are carried from record to record.

Acknowledgements keep the order of requests: one that is taken behind a READ is acknowledged
behind the READ's responses, which acknowledge what is before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from twisted_ib.hca.base.operation import (
    ABSENT,
    ACKNOWLEDGE,
    LATER,
    READ_RESPONSE_FIRST,
    READ_RESPONSE_LAST,
    READ_RESPONSE_MIDDLE,
    READ_RESPONSE_ONLY,
    SEND_FIRST,
    SEND_LAST,
    SEND_LAST_IMMEDIATE,
    SEND_LAST_INVALIDATE,
    SEND_MIDDLE,
    SEND_ONLY,
    SEND_ONLY_IMMEDIATE,
    SEND_ONLY_INVALIDATE,
    UNRELIABLE,
    WRITE_FIRST,
    WRITE_LAST,
    WRITE_LAST_IMMEDIATE,
    WRITE_MIDDLE,
    WRITE_ONLY,
    WRITE_ONLY_IMMEDIATE,
)
from twisted_ib.hca.wire.headers import ACK, IMMEDIATE, INVALIDATE, PSN_MASK
from twisted_ib.hca.wire.opcodes import OPCODES, Kind, Opcode
from twisted_ib.hca.wire.packet import BaseHeader, Packet

#: By kind: first and middle packet.
_PARTS: Final = {
    Kind.SEND: (SEND_FIRST, SEND_MIDDLE),
    Kind.WRITE: (WRITE_FIRST, WRITE_MIDDLE),
    Kind.READ_RESPONSE: (READ_RESPONSE_FIRST, READ_RESPONSE_MIDDLE),
}
#: By kind and what comes at a message's end: only and last packet.
_ENDS: Final[dict[tuple[Kind, object], tuple[int, int]]] = {
    (Kind.SEND, None): (SEND_ONLY, SEND_LAST),
    (Kind.SEND, IMMEDIATE): (SEND_ONLY_IMMEDIATE, SEND_LAST_IMMEDIATE),
    (Kind.SEND, INVALIDATE): (SEND_ONLY_INVALIDATE, SEND_LAST_INVALIDATE),
    (Kind.WRITE, None): (WRITE_ONLY, WRITE_LAST),
    (Kind.WRITE, IMMEDIATE): (WRITE_ONLY_IMMEDIATE, WRITE_LAST_IMMEDIATE),
    (Kind.READ_RESPONSE, None): (READ_RESPONSE_ONLY, READ_RESPONSE_LAST),
}
#: What says nothing on a wire.
_SILENT: Final = frozenset((ABSENT, LATER))


class _Message:
    """
    A message that is cut into packets: a SEND, a WRITE or the response to a READ.

    @ivar kind: which.
    @ivar begun: whether its first packet is out.
    @ivar carried: bytes that wait for more, fewer than a packet takes.
    @ivar opening: the numbers in the headers of its first packet.
    """

    __slots__ = ("begun", "carried", "kind", "opening")

    def __init__(self, kind: Kind, opening: tuple[int, ...] = ()) -> None:
        self.kind = kind
        self.opening = opening
        self.begun = False
        self.carried = b""

    def cut(self, data: Any, mtu: int, extra: object, ends: bool) -> list[tuple[int, Any]]:
        """
        Cut off what is ready.

        @param data: the bytes of the next record.
        @param mtu: bytes of a packet.
        @param extra: the layout of what the last packet has, or L{None}.
        @param ends: whether this record is the last.
        @return: pairs of code and payload.
        """
        if self.carried:
            data = self.carried + bytes(data)
        view, at, found = memoryview(data), 0, []
        # What ends a message is never empty, unless it is all of it.
        left = len(view) - 1 if ends else len(view)
        while left - at >= mtu:
            found.append((_PARTS[self.kind][self.begun], view[at : at + mtu]))
            self.begun = True
            at += mtu
        self.carried = b""
        if ends:
            found.append((_ENDS[self.kind, extra][self.begun], view[at:]))
        else:
            self.carried = bytes(view[at:])
        return found


class _Request:
    """
    One request of a flow.

    @ivar kind: what it is.
    @ivar first: its first sequence number.
    @ivar last: the last one, of its answer if it asks.
    @ivar end: the position of the medium after it, L{None} before it is whole.
    @ivar next: the sequence number of the next packet of its answer.
    @ivar marks: pairs of the position after a record, and the sequence number that its
        refusal would have.
    @ivar taken: whether the responder has it, or has answered it.
    @ivar answer: the response to a READ, once it has begun.
    @ivar refusal: the syndrome that refused it, and the sequence number; or L{None}.
    """

    __slots__ = ("answer", "end", "first", "kind", "last", "marks", "next", "refusal", "taken")

    def __init__(self, first: int, kind: Kind) -> None:
        self.kind = kind
        self.first = self.last = self.next = first
        self.end: int | None = None
        self.marks: list[tuple[int, int]] = []
        self.taken = False
        self.answer: _Message | None = None
        self.refusal: tuple[int, int] | None = None

    @property
    def asks(self) -> bool:
        """
        Whether something else than an acknowledgement answers it.
        """
        return self.kind in (Kind.READ, Kind.ATOMIC)


class Flow:
    """
    The requests of one queue pair to another, and the answers.

    @ivar psn: the sequence number of the next request.
    @ivar records: how many records of requests were shown.
    """

    __slots__ = (
        "_emit",
        "_message",
        "_msn",
        "_mtu",
        "_refused",
        "_reliable",
        "_request",
        "_requests",
        "psn",
        "records",
    )

    def __init__(
        self, emit: Callable[[bool, Packet], None], psn: int, mtu: int, reliable: bool = True
    ) -> None:
        """
        Nothing was sent.

        @param emit: shows a packet: whether it is an answer, and it; its destination is set
            there.
        @param psn: the first sequence number.
        @param mtu: bytes of payload of a packet.
        @param reliable: whether there are answers.
        """
        self._emit = emit
        self._reliable = reliable
        self._mtu = mtu
        self.psn = psn
        self.records = self._msn = 0
        self._requests: deque[_Request] = deque()
        self._message: _Message | None = None
        self._request: _Request | None = None
        self._refused: _Request | None = None

    # -- requests

    def request(
        self, row: Opcode, extended: tuple[int, ...], data: Any, solicited: bool, position: int
    ) -> None:
        """
        Show a record of a request.

        @param row: of its code.
        @param extended: the numbers of its headers.
        @param data: its payload.
        @param position: of the medium, after it.
        """
        self.records += 1
        if row.kind in (Kind.SEND, Kind.WRITE):
            self._showMessage(row, extended, data, solicited, position)
        elif row.kind in (Kind.READ, Kind.ATOMIC):
            request = self._begin(row.kind)
            count = 1
            if row.kind is Kind.READ:
                count = max(1, -(-extended[2] // self._mtu))
            request.last = self.psn + count - 1 & PSN_MASK
            self._emit(False, Packet.of(BaseHeader(row.code, 0, self.psn, acknowledge=True), extended))
            self.psn = self.psn + count & PSN_MASK
            request.marks.append((position, request.first))
            request.end = position

    def _showMessage(
        self, row: Opcode, extended: tuple[int, ...], data: Any, solicited: bool, position: int
    ) -> None:
        service = row.code & UNRELIABLE
        extra = next((header for header in row.headers if header in (IMMEDIATE, INVALIDATE)), None)
        heads = len(extended) - (extra is not None)
        if row.begins:
            self._message = _Message(row.kind, extended[:heads])
            self._request = self._begin(row.kind)
        message, request = self._message, self._request
        if message is None or request is None or message.kind is not row.kind:
            return  # The peer does not keep to the order; it will be refused.
        before = self.psn
        for code, piece in message.cut(data, self._mtu, extra, row.ends):
            shown = OPCODES[code]
            numbers = (message.opening if shown.begins else ()) + (extended[heads:] if shown.ends else ())
            bth = BaseHeader(
                *(code | service, 0, self.psn),
                solicited=solicited and shown.ends,
                acknowledge=shown.ends and not service,
            )
            self._emit(False, Packet.of(bth, numbers, piece))
            request.last = self.psn
            self.psn = self.psn + 1 & PSN_MASK
        # A receive is taken by a SEND's first packet, and by a WRITE's last one.
        isLate = row.kind is Kind.WRITE and extra is not None
        request.marks.append((position, request.last if isLate else before))
        if row.ends:
            request.end = position
            self._message = self._request = None

    def _begin(self, kind: Kind) -> _Request:
        """
        A request begins.  What comes behind a refused one is dropped there.
        """
        request = _Request(self.psn, kind)
        if self._reliable and self._refused is None:
            self._requests.append(request)
        return request

    # -- answers

    def taken(self, position: int) -> None:
        """
        The responder has all records before a position.
        """
        for request in self._requests:
            if request.end is None or request.end > position:
                break
            request.taken = True
        self._acknowledge()

    def _acknowledge(self) -> None:
        """
        Acknowledge what is taken, in order, and show the refusal that comes then.
        """
        requests = self._requests
        while requests:
            request = requests[0]
            if request.refusal is not None:
                (syndrome, psn), request.refusal = request.refusal, None
                self._answer(ACKNOWLEDGE, psn, (self._word(syndrome),))
                return
            if request is self._refused or not request.taken or request.asks:
                return
            self._settle()

    def _settle(self) -> None:
        request = self._requests.popleft()
        self._msn = self._msn + 1 & PSN_MASK
        self._answer(ACKNOWLEDGE, request.last, (self._word(ACK),))

    def _word(self, syndrome: int) -> int:
        return syndrome << 24 | self._msn

    def _answer(self, code: int, psn: int, extended: tuple[int, ...], data: Any = b"") -> None:
        self._emit(True, Packet.of(BaseHeader(code, 0, psn), extended, data))

    def respond(self, row: Opcode, data: Any) -> None:
        """
        Show a record of the answer to the first READ or atomic that waits for one.

        @param row: of its code.
        @param data: the bytes, or what was there before.
        """
        requests = self._requests
        asked = next((request for request in requests if request.asks), None)
        if asked is None or (asked.kind is Kind.ATOMIC) is not (row.kind is Kind.ATOMIC_ACKNOWLEDGE):
            return
        while not requests[0].asks:
            self._settle()  # Who answers has taken what is before.
        request = requests[0]
        if request.kind is Kind.ATOMIC:
            self._msn = self._msn + 1 & PSN_MASK
            self._answer(row.code, request.first, (self._word(ACK), int.from_bytes(data, "big")))
            requests.popleft()
            self._acknowledge()
            return
        if request.answer is None:
            request.answer = _Message(Kind.READ_RESPONSE)
            self._msn = self._msn + 1 & PSN_MASK
        for code, piece in request.answer.cut(data, self._mtu, None, row.ends):
            if (request.last - request.next & PSN_MASK) > PSN_MASK >> 1:
                return  # More than was asked for; the requester will not have it.
            shown = OPCODES[code]
            self._answer(code, request.next, (self._word(ACK),) if shown.headers else (), piece)
            request.next = request.next + 1 & PSN_MASK
        if row.ends:
            requests.popleft()
            self._acknowledge()

    # -- refusals

    def refused(self, syndrome: int, position: int | None) -> None:
        """
        The responder refused a record.

        @param syndrome: why.
        @param position: of the medium after the record; 0 for the first READ or atomic that
            waits for its answer, L{None} for the latest record.
        """
        found = self._find(position)
        if found is None or self._refused is not None:
            return
        request, psn = found
        for before in self._requests:
            if before is request:
                break
            before.taken = True
        self._refused = request
        if syndrome not in _SILENT:
            request.refusal = syndrome, psn
        self._acknowledge()

    def _find(self, position: int | None) -> tuple[_Request, int] | None:
        """
        The request that a refusal is about, and the sequence number of the record.
        """
        requests = self._requests
        if position is None:
            return (requests[-1], requests[-1].marks[-1][1]) if requests and requests[-1].marks else None
        for request in requests:
            if not position:
                if request.asks:
                    return request, request.next
                continue
            for after, psn in request.marks:
                if after >= position:
                    return request, psn
        return None

    def resume(self) -> None:
        """
        The requester starts again with what was refused.
        """
        refused, self._refused = self._refused, None
        self._message = self._request = None
        requests = self._requests
        if refused in requests:
            while requests.pop() is not refused:
                pass
            self.psn = refused.first
