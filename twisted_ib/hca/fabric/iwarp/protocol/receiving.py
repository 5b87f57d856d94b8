"""
DDP segments as records of the core (RFC 5040, RFC 5041).

TCP keeps order, so everything is checked strictly as it comes: a Send has the next message sequence number
and continues at the offset that was reached, a Read Response continues the oldest READ.  A segment is
delivered where it lies in the buffer of what was received.  Record headers that the core expects before the
payload are written over the DDP header, which is always long enough.

Each segment of a Write is delivered as a message of its own, with the rights to its own octets checked; Linux
siw places Writes so, too.  Hence a Write may come between the segments of a Send.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final, Protocol

from twisted_ib import limits
from twisted_ib.hca.base.operation import SOLICITED
from twisted_ib.hca.fabric.iwarp.protocol import ddp
from twisted_ib.hca.fabric.iwarp.protocol.ddp import (
    CONTROL,
    CONTROL_MASK,
    DDP_VERSION,
    DDP_VERSION_MASK,
    FIRST_SEQUENCE,
    LAST_BIT,
    OFFSET_END,
    OPCODE_MASK,
    READ_QUEUE,
    SEND_QUEUE,
    SEQUENCE_MASK,
    TAGGED,
    TAGGED_BIT,
    TERMINATE_QUEUE,
    UNTAGGED,
    Opcode,
    control,
)
from twisted_ib.hca.fabric.iwarp.protocol.reads import Reads
from twisted_ib.hca.fabric.iwarp.protocol.terminate import (
    CATASTROPHIC_STREAM,
    DDP_CATASTROPHIC,
    INVALID_OFFSET,
    INVALID_QUEUE,
    MESSAGE_TOO_LONG,
    NO_MATCHING_RTR,
    PROTECTION_OFFSET_WRAP,
    RDMAP_VERSION,
    SEQUENCE_RANGE,
    TAGGED_OFFSET_WRAP,
    TAGGED_VERSION,
    UNEXPECTED_OPCODE,
    UNTAGGED_VERSION,
    TerminateMessage,
    TerminationError,
)
from twisted_ib.hca.wire.headers import INVALIDATE, RETH
from twisted_ib.hca.wire.opcodes import (
    READ_REQUEST,
    SEND_FIRST,
    SEND_LAST,
    SEND_LAST_INVALIDATE,
    SEND_MIDDLE,
    SEND_ONLY,
    SEND_ONLY_INVALIDATE,
    WRITE_ONLY,
)

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import Buffer
    from twisted_ib.structs import Packed


_unpackTagged = TAGGED.unpack_from
_unpackUntagged = UNTAGGED.unpack_from
_packRETH = RETH.pack_into
_TAGGED_BYTES: Final = TAGGED.size
_UNTAGGED_BYTES: Final = UNTAGGED.size
_REQUEST_BYTES: Final = UNTAGGED.size + ddp.READ_REQUEST.size
#: The two octets of MPA before the ULPDU, and the tagged header: as many as a RETH has.
_FRAMED_TAGGED: Final[Packed[tuple[int, int, int, int]]] = Struct(">HHIQ")
_LENGTH_BYTES: Final = 2
_TAGGED_OCTET: Final = TAGGED_BIT >> 8

_WRITE: Final = control(Opcode.WRITE, True, False)
_WRITE_LAST: Final = control(Opcode.WRITE, True, True)
_READ_RESPONSE: Final = control(Opcode.READ_RESPONSE, True, False)
_READ_RESPONSE_LAST: Final = control(Opcode.READ_RESPONSE, True, True)
_SEND_LAST: Final = control(Opcode.SEND, False, True)


def _sends(last: int, lastInvalidate: int, more: int) -> dict[int, int]:
    # Control word -> record.
    records = {
        Opcode.SEND: last,
        Opcode.SEND_INVALIDATE: lastInvalidate,
        Opcode.SEND_SOLICITED: last | SOLICITED,
        Opcode.SEND_SOLICITED_INVALIDATE: lastInvalidate | SOLICITED,
    }
    found = {control(code, False, True): record for code, record in records.items()}
    found.update({control(code, False, False): more for code in records})
    return found


#: A Send's control word -> the record, where the message begins and where it goes on.
_BEGINS: Final = _sends(SEND_ONLY, SEND_ONLY_INVALIDATE, SEND_FIRST)
_GOES_ON: Final = _sends(SEND_LAST, SEND_LAST_INVALIDATE, SEND_MIDDLE)
_INVALIDATES: Final = frozenset(
    record | solicited
    for record in (SEND_ONLY_INVALIDATE, SEND_LAST_INVALIDATE)
    for solicited in (0, SOLICITED)
)
_SENDS: Final = frozenset(word & OPCODE_MASK for word in _BEGINS)
_NAMES: Final = {code.value: code.name for code in Opcode}

#: No sequence number: all Sends are looked at closely.
_NO_SEQUENCE: Final = -1
#: In place of the ready-to-receive message that is awaited: the peer has terminated the stream.
_ENDED: Final = "ended"


class IReceiverUser(Protocol):
    """
    The user of a receiver, which tells it these.
    """

    def delivered(self, opcode: int, buffer: Buffer, start: int, stop: int) -> int:
        """
        Receive a record.

        @return: 0, or the syndrome of a refusal.
        """

    def readyToReceive(self) -> None:
        """
        The initiator's ready-to-receive message came: this side may send.  If it was a Read Request, it is
        to be answered first: with an empty READ Response Only.
        """

    def terminated(self, message: TerminateMessage) -> None:
        """
        The peer has terminated the stream.  It is not answered.
        """


class RDMAPReceiver:
    """
    One direction of a stream: makes records of ULPDUs.

    @ivar deliver: what records are delivered to: C{delivered} of the user, or of the queue pair itself.
    """

    __slots__ = ("_awaited", "_offset", "_opcode", "_readSequence", "_reads", "_sequence", "_user", "deliver")

    def __init__(self, user: IReceiverUser, reads: Reads, ready: str | None = None) -> None:
        """
        @param ready: the ready-to-receive message that was agreed on and must come first: "write", "read" or
            "send"; L{None} at an initiator, and if there is none.
        """
        self._user = user
        self.deliver = user.delivered
        self._reads = reads
        self._awaited = ready
        # The next Send, or the one in progress; of that, the octets that came, and its opcode.
        self._sequence = FIRST_SEQUENCE if ready is None else _NO_SEQUENCE
        self._offset = self._opcode = 0
        self._readSequence = FIRST_SEQUENCE

    def take(self, buffer: Buffer, first: int, last: int) -> int:
        """
        Take one ULPDU.

        @param buffer: a C{bytearray} or a writable C{memoryview}; two octets before the ULPDU are the
            receiver's as well.
        @param first: offset of the ULPDU, at least 2; C{last} is that of its end.
        @return: 0, or the syndrome by which its record was refused: then nothing has changed, and it may be
            given again.
        @raise TerminationError: it breaks a rule; the stream ends.
        """
        if last - first < _UNTAGGED_BYTES or buffer[first] & _TAGGED_OCTET:
            return self._takeTagged(buffer, first, last)
        word, _, queue, sequence, offset = _unpackUntagged(buffer, first)
        opcode = (_GOES_ON if self._offset else _BEGINS).get(word)
        if opcode is None or queue or sequence != self._sequence or offset != self._offset:
            return self._takeOther(buffer, first, last)
        if opcode != SEND_ONLY:
            return self._takeSend(opcode, buffer, first, last)
        syndrome = self.deliver(SEND_ONLY, buffer, first + _UNTAGGED_BYTES, last)
        if not syndrome:
            self._sequence = sequence + 1 & SEQUENCE_MASK
        return syndrome

    # -- Sends

    def _takeSend(self, opcode: int, buffer: Buffer, first: int, last: int) -> int:
        # The header is in order.
        word, key, _, sequence, offset = _unpackUntagged(buffer, first)
        code, start = word & OPCODE_MASK, first + _UNTAGGED_BYTES
        end = offset + last - start
        if offset and code != self._opcode:
            # RFC 5041 section 4.3: what RDMAP has in the header is the same in all segments of a message.
            detail = f"{_NAMES[code]} within a message of {_NAMES[self._opcode]}"
            raise TerminationError(UNEXPECTED_OPCODE, detail)
        if end > limits.MESSAGE_BYTES:
            raise TerminationError(MESSAGE_TOO_LONG, f"a Send of {end} octets or more")
        isLast = bool(word & LAST_BIT)
        if end == offset and not isLast:
            # Without octets, and with more to come: it changes nothing.
            return 0
        isInvalidating = opcode in _INVALIDATES
        if isInvalidating:
            start -= INVALIDATE.size
            INVALIDATE.pack_into(buffer, start, key)
        syndrome = self.deliver(opcode, buffer, start, last)
        if syndrome:
            if isInvalidating:
                UNTAGGED.pack_into(buffer, first, word, key, SEND_QUEUE, sequence, offset)
            return syndrome
        self._opcode = code
        self._offset = 0 if isLast else end
        if isLast:
            self._sequence = sequence + 1 & SEQUENCE_MASK
        return 0

    # -- tagged segments

    def _takeTagged(self, buffer: Buffer, first: int, last: int) -> int:
        count = last - first - _TAGGED_BYTES
        # An untagged segment comes here only if it is too short.
        if count < 0 or not buffer[first] & _TAGGED_OCTET:
            if self._awaited is _ENDED:
                return 0
            raise TerminationError(DDP_CATASTROPHIC, f"a segment of {last - first} octets")
        word, key, address = _unpackTagged(buffer, first)
        if self._awaited is not None:
            return self._takeFirstTagged(word, count)
        if word == _WRITE or word == _WRITE_LAST:
            if address + count > OFFSET_END:
                raise TerminationError(TAGGED_OFFSET_WRAP)
            start = first - _LENGTH_BYTES
            _packRETH(buffer, start, address, key, count)
            syndrome = self.deliver(WRITE_ONLY, buffer, start, last)
            if syndrome:
                _FRAMED_TAGGED.pack_into(buffer, start, last - first, word, key, address)
            return syndrome
        if word == _READ_RESPONSE or word == _READ_RESPONSE_LAST:
            opcode = self._reads.responded(key, address, count, word == _READ_RESPONSE_LAST)
            # The READ is done already, so that the next one can be posted in the call.  A requester does not
            # refuse a response.
            return 0 if opcode < 0 else self.deliver(opcode, buffer, last - count, last)
        if word & ~CONTROL_MASK:
            CONTROL.pack_into(buffer, first, word & CONTROL_MASK)
            return self._takeTagged(buffer, first, last)
        self._checkVersions(word)
        raise self._unexpected(word)

    # -- anything else

    def _takeOther(self, buffer: Buffer, first: int, last: int) -> int:
        if self._awaited is _ENDED:
            return 0
        word, _, queue, sequence, offset = _unpackUntagged(buffer, first)
        if word & ~CONTROL_MASK:
            # Reserved bits are ignored.
            CONTROL.pack_into(buffer, first, word & CONTROL_MASK)
            return self.take(buffer, first, last)
        self._checkVersions(word)
        code = word & OPCODE_MASK
        if code == Opcode.TERMINATE:
            self._check(TERMINATE_QUEUE, FIRST_SEQUENCE, 0, queue, sequence, offset)
            message = TerminateMessage.parse(buffer, first + _UNTAGGED_BYTES, last)
            self._awaited, self._sequence = _ENDED, _NO_SEQUENCE
            self._user.terminated(message)
            return 0
        if code == Opcode.READ_REQUEST:
            self._check(READ_QUEUE, self._readSequence, 0, queue, sequence, offset)
            return self._takeRead(word, buffer, first, last)
        if code not in _SENDS:
            raise self._unexpected(word)
        if self._awaited is not None:
            self._check(SEND_QUEUE, FIRST_SEQUENCE, 0, queue, sequence, offset)
            isReady = word == _SEND_LAST and last - first == _UNTAGGED_BYTES
            self._ready("send", isReady, word)
            self._sequence = FIRST_SEQUENCE + 1
            return 0
        self._check(SEND_QUEUE, self._sequence, self._offset, queue, sequence, offset)
        raise self._unexpected(word)

    def _takeRead(self, word: int, buffer: Any, first: int, last: int) -> int:
        if last - first != _REQUEST_BYTES or not word & LAST_BIT:
            raise TerminationError(CATASTROPHIC_STREAM, f"a Read Request of {last - first} octets")
        request = bytes(buffer[first:last])
        _, sink, size, key, address = ddp.READ_REQUEST.unpack_from(request, _UNTAGGED_BYTES)
        if sink + size > OFFSET_END or address + size > OFFSET_END:
            raise TerminationError(PROTECTION_OFFSET_WRAP)
        if self._awaited is not None:
            self._reads.requested(request)
            self._readSequence += 1
            self._ready("read", not size, word)
            return 0
        reads = self._reads
        reads.requested(request)
        sequence = self._readSequence
        self._readSequence = sequence + 1 & SEQUENCE_MASK
        start = last - RETH.size
        _packRETH(buffer, start, address, key, size)
        # The response may be posted in the call.
        syndrome = self.deliver(READ_REQUEST, buffer, start, last)
        if syndrome:
            buffer[first:last] = request
            self._readSequence = sequence
            if reads.inbound and reads.inbound[-1] is request:
                reads.inbound.pop()
        return syndrome

    # -- the first message

    def _takeFirstTagged(self, word: int, count: int) -> int:
        if self._awaited is _ENDED:
            return 0
        word &= CONTROL_MASK
        self._checkVersions(word)
        # RFC 6581 section 9: its STag is not checked.
        self._ready("write", word == _WRITE_LAST and not count, word)
        return 0

    def _ready(self, kind: str, isReady: bool, word: int) -> None:
        if not isReady or kind != self._awaited:
            name = _NAMES.get(word & OPCODE_MASK, "an unknown message")
            raise TerminationError(NO_MATCHING_RTR, f"{name} in place of an empty {self._awaited}")
        self._awaited = None
        if self._sequence == _NO_SEQUENCE:
            self._sequence = FIRST_SEQUENCE
        self._user.readyToReceive()

    # -- checks

    def _checkVersions(self, word: int) -> None:
        # In the order of Linux siw_qp_rx.c, siw_get_hdr().
        if word & DDP_VERSION_MASK != DDP_VERSION:
            raise TerminationError(TAGGED_VERSION if word & TAGGED_BIT else UNTAGGED_VERSION)
        if word & ddp.RDMAP_VERSION_MASK != ddp.RDMAP_VERSION:
            raise TerminationError(RDMAP_VERSION)

    def _check(
        self, queueDue: int, sequenceDue: int, offsetDue: int, queue: int, sequence: int, offset: int
    ) -> None:
        if queue != queueDue:
            raise TerminationError(INVALID_QUEUE, f"queue {queue} in place of {queueDue}")
        if sequence != sequenceDue:
            raise TerminationError(SEQUENCE_RANGE, f"message {sequence} in place of {sequenceDue}")
        if offset != offsetDue:
            raise TerminationError(INVALID_OFFSET, f"offset {offset} in place of {offsetDue}")

    def _unexpected(self, word: int) -> TerminationError:
        kind = "tagged" if word & TAGGED_BIT else "untagged"
        name = _NAMES.get(word & OPCODE_MASK, f"reserved opcode {word & OPCODE_MASK}")
        return TerminationError(UNEXPECTED_OPCODE, f"{kind} {name}")
