"""
Operations as packets: what a fabric of records would have sent if it carried packets.

A L{Flow} is one direction of a connection: the requests of one side and their responses. Records have no
sequence numbers, acknowledgements or path MTU; these are made here by the rules of IBTA vol. 1 9.7, so that
an analyser which checks them finds no fault. A record may be longer than a packet, or be the part of a
message that ends within one, so bytes are carried over from record to record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from attrs import define, field

from twisted_ib.hca.base.operation import ABSENT, LATER
from twisted_ib.hca.wire.headers import ACK, AETH, PSN_MASK
from twisted_ib.hca.wire.opcodes import ACKNOWLEDGE, OPCODES, SEVERAL, UNRELIABLE, Kind, Opcode
from twisted_ib.hca.wire.packet import BaseHeader, Packet

#: Opcode of a Last packet -> of an Only packet with the same header at its end.
_ONLY: Final = {
    last: code for code, (_, _, last) in SEVERAL.items() if OPCODES[code].begins & OPCODES[code].ends
}
#: Syndromes of the fabric of records that are no packet on a wire.
_SILENT: Final = frozenset((ABSENT, LATER))


class _Message:
    """
    A message that is segmented into packets: a SEND, a WRITE or the response to a READ.

    @ivar begun: whether its first packet was emitted.
    @ivar carried: bytes that wait for the next record, less than a packet.
    @ivar opening: the extended header fields of its first packet.
    @ivar parts: opcodes of its First and Middle packets.
    """

    __slots__ = ("begun", "carried", "kind", "opening", "parts")

    def __init__(self, row: Opcode, opening: tuple[int, ...] = ()) -> None:
        self.kind = row.kind
        self.parts = SEVERAL[row.code][:2]
        self.opening = opening
        self.begun = False
        self.carried = b""

    def cut(self, data: Any, mtu: int, code: int, ends: bool) -> list[tuple[int, Any]]:
        """
        Segment the bytes of the next record.

        @param code: the opcode of the record.
        @param ends: whether this record is the last.
        @return: pairs of opcode and payload.
        """
        if self.carried:
            data = self.carried + bytes(data)
        view, at, found = memoryview(data), 0, []
        # IBTA vol. 1 9.7.3: all packets but the last have the path MTU, and a Last packet is never empty,
        # so one byte stays back for it.
        left = len(view) - 1 if ends else len(view)
        while left - at >= mtu:
            found.append((self.parts[self.begun], view[at : at + mtu]))
            self.begun = True
            at += mtu
        self.carried = b""
        if ends:
            last = SEVERAL[code][2]
            found.append((last if self.begun else _ONLY[last], view[at:]))
        else:
            self.carried = bytes(view[at:])
        return found


class _Request:
    """
    One request of a flow.

    @ivar row: of its opcode.
    @ivar first: its first PSN.
    @ivar last: its last PSN; of the response if there is one.
    @ivar end: position of the medium after it, L{None} while it is incomplete.
    @ivar next: PSN of the next response packet.
    @ivar marks: pairs of the position after a record, and the PSN that a NAK of it would have.
    @ivar taken: whether the responder has executed it.
    @ivar answer: the READ response, once it has begun.
    @ivar refusal: syndrome and PSN of a NAK to emit; or L{None}.
    """

    __slots__ = ("answer", "end", "first", "last", "marks", "next", "refusal", "row", "taken")

    def __init__(self, first: int, row: Opcode) -> None:
        self.row = row
        self.first = self.last = self.next = first
        self.end: int | None = None
        self.marks: list[tuple[int, int]] = []
        self.taken = False
        self.answer: _Message | None = None
        self.refusal: tuple[int, int] | None = None

    @property
    def asks(self) -> bool:
        # Whether it is answered by a response and not an ACK.
        return self.row.response is not None


@define(eq=False, repr=False, weakref_slot=False)
class Flow:
    """
    The requests of one queue pair to another, and their responses.

    @ivar emit: called with whether a packet is a response, and the packet; it sets the destination.
    @ivar psn: PSN of the next request.
    @ivar mtu: path MTU in bytes.
    @ivar reliable: whether there are responses.
    @ivar records: count of request records shown.
    """

    _emit: Callable[[bool, Packet], None]
    psn: int
    _mtu: int
    _reliable: bool = True
    records: int = 0
    _msn: int = 0
    _requests: deque[_Request] = field(factory=deque)
    _message: _Message | None = None
    _request: _Request | None = None
    _refused: _Request | None = None

    # -- requests

    def request(
        self, row: Opcode, extended: tuple[int, ...], data: Any, solicited: bool, position: int
    ) -> None:
        """
        Show a record of a request.

        @param row: of its opcode.
        @param extended: its extended header fields.
        @param data: its payload.
        @param position: position of the medium after it.
        """
        self.records += 1
        if row.kind in (Kind.SEND, Kind.WRITE):
            self._showMessage(row, extended, data, solicited, position)
        elif row.response is not None:
            request = self._begin(row)
            count = 1
            if row.kind is Kind.READ:
                # IBTA vol. 1 9.7.3: a READ consumes the PSNs of its response packets, at least one.
                count = max(1, -(-extended[2] // self._mtu))
            request.last = self.psn + count - 1 & PSN_MASK
            bth = BaseHeader(row.code, 0, self.psn, acknowledge=True)
            self._emit(False, Packet.of(bth, extended, data if row.most else b""))
            self.psn = self.psn + count & PSN_MASK
            request.marks.append((position, request.first))
            request.end = position

    def _showMessage(
        self, row: Opcode, extended: tuple[int, ...], data: Any, solicited: bool, position: int
    ) -> None:
        service = row.code & UNRELIABLE
        extra = row.ending
        heads = len(extended) - (extra is not None)
        if row.begins:
            self._message = _Message(row, extended[:heads])
            self._request = self._begin(row)
        message, request = self._message, self._request
        if message is None or request is None or message.kind is not row.kind:
            return  # Invalid opcode sequence (IBTA vol. 1 9.7.4): the responder will NAK it.
        before = self.psn
        for code, piece in message.cut(data, self._mtu, row.code, row.ends):
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
        # The PSN of an RNR NAK: a SEND consumes its receive WQE with the first packet, a WRITE with
        # immediate with its last one.
        isLate = row.kind is Kind.WRITE and extra is not None
        request.marks.append((position, request.last if isLate else before))
        if row.ends:
            request.end = position
            self._message = self._request = None

    def _begin(self, row: Opcode) -> _Request:
        request = _Request(self.psn, row)
        # IBTA vol. 1 9.7.5.2.8: the responder drops requests behind a NAK until the requester resumes; they
        # get no ACK.
        if self._reliable and self._refused is None:
            self._requests.append(request)
        return request

    # -- answers

    def taken(self, position: int) -> None:
        """
        The responder has executed all records before a position.
        """
        for request in self._requests:
            if request.end is None or request.end > position:
                break
            request.taken = True
        self._acknowledge()

    def _acknowledge(self) -> None:
        # IBTA vol. 1 9.7.5: responses keep the order of requests, so an ACK or NAK waits behind a READ
        # or atomic that is not answered. The response acknowledges all before it.
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
        Show a record of the response to the oldest request that awaits one.

        @param row: of its opcode.
        @param data: the bytes, or the original value of an atomic.
        """
        requests = self._requests
        asked = next((request for request in requests if request.asks), None)
        if asked is None:
            return
        isRead = asked.row.kind is Kind.READ
        # All others are answered by one packet, of a fixed size.
        if row.kind is not Kind.READ_RESPONSE if isRead else row.code != asked.row.response:
            return
        if not isRead and len(data) != row.layout.size - AETH.size:
            return
        while not requests[0].asks:
            self._settle()  # A response acknowledges what precedes its request.
        request = requests[0]
        if not isRead:
            self._msn = self._msn + 1 & PSN_MASK
            result = (int.from_bytes(data, "big"),) if data else ()
            self._answer(row.code, request.first, (self._word(ACK), *result))
            requests.popleft()
            self._acknowledge()
            return
        if request.answer is None:
            # The MSN counts a READ when it is executed, before its first response (IBTA vol. 1 C9-148; Linux
            # rxe_resp.c execute), so First and Last carry the same MSN.
            request.answer = _Message(row)
            self._msn = self._msn + 1 & PSN_MASK
        for code, piece in request.answer.cut(data, self._mtu, row.code, row.ends):
            if (request.last - request.next & PSN_MASK) > PSN_MASK >> 1:
                return  # Longer than requested: the requester treats it as an error.
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

        @param syndrome: AETH syndrome.
        @param position: position of the medium after the record; 0 for the oldest READ or atomic, L{None}
            for the latest record.
        """
        found = self._find(position)
        if found is None or self._refused is not None:
            return
        request, psn = found
        # IBTA vol. 1 9.7.5.2: a NAK acknowledges all earlier requests.
        for before in self._requests:
            if before is request:
                break
            before.taken = True
        self._refused = request
        if syndrome not in _SILENT:
            request.refusal = syndrome, psn
        self._acknowledge()

    def _find(self, position: int | None) -> tuple[_Request, int] | None:
        requests = self._requests
        # Returns the request and the PSN of the refused record.
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
        The requester resumes with the refused request.
        """
        refused, self._refused = self._refused, None
        self._message = self._request = None
        requests = self._requests
        if refused in requests:
            while requests.pop() is not refused:
                pass
            # A retry reuses the PSNs of the refused request (IBTA vol. 1 9.7.1).
            self.psn = refused.first
