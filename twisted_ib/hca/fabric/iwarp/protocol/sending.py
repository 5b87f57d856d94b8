"""
Records of the core as DDP segments (RFC 5040, RFC 5041).

A record of L{twisted_ib.hca.base.operation} is a message or a part of one.  Each becomes FPDUs at once, as
many as the longest ULPDU demands.  Only numbers are kept: the sequence number and offset of the Send, and
where the Write and the Read Response in progress go on.

A Send and a Read Response keep their form: however many records they have, their last segment alone is marked
as the last.  A Write has no form that its receiver sees, so each record of it is a message of its own; else a
Read Response could come between its segments, and Linux siw ends a stream where one tagged message cuts into
another (C{siw_qp_rx.c}, C{siw_get_hdr()}).
"""

from __future__ import annotations

from typing import Any, Final

from twisted_ib.errors import QueuePairError
from twisted_ib.hca.base.operation import SOLICITED
from twisted_ib.hca.connection.receives import ANY
from twisted_ib.hca.fabric.iwarp.protocol import ddp
from twisted_ib.hca.fabric.iwarp.protocol.ddp import (
    FIRST_SEQUENCE,
    LAST_BIT,
    READ_QUEUE,
    SEND_QUEUE,
    SEQUENCE_MASK,
    TAGGED,
    TERMINATE_QUEUE,
    UNTAGGED,
    Opcode,
    control,
)
from twisted_ib.hca.fabric.iwarp.protocol.mpastream import FPDUWriter
from twisted_ib.hca.fabric.iwarp.protocol.reads import Reads
from twisted_ib.hca.fabric.iwarp.protocol.terminate import TerminateMessage, Termination
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

_packTagged = TAGGED.pack
_packUntagged = UNTAGGED.pack
_UNTAGGED_BYTES: Final = UNTAGGED.size
_TAGGED_BYTES: Final = TAGGED.size

#: Control words of segments that do not end their message.
_SEND: Final = control(Opcode.SEND, False, False)
_SEND_INVALIDATE: Final = control(Opcode.SEND_INVALIDATE, False, False)
#: What SOLICITED adds to the opcode of a Send.
_SOLICITED_OPCODE: Final = Opcode.SEND_SOLICITED - Opcode.SEND
_WRITE: Final = control(Opcode.WRITE, True, False)
_READ_RESPONSE: Final = control(Opcode.READ_RESPONSE, True, False)
_SEND_ONLY_CONTROL: Final = _SEND | LAST_BIT
_READ_REQUEST_CONTROL: Final = control(Opcode.READ_REQUEST, False, True)
_TERMINATE_CONTROL: Final = control(Opcode.TERMINATE, False, True)

#: Record of a Send, and of a Read Response -> whether it begins its message, and whether it ends it.
_SENDS: Final = {
    SEND_FIRST: (True, False),
    SEND_MIDDLE: (False, False),
    SEND_LAST: (False, True),
    SEND_LAST_INVALIDATE: (False, True),
    SEND_ONLY: (True, True),
    SEND_ONLY_INVALIDATE: (True, True),
}
#: Record of a Write -> whether it says where the Write goes.
_WRITES: Final = {WRITE_FIRST: True, WRITE_MIDDLE: False, WRITE_LAST: False, WRITE_ONLY: True}
_READ_RESPONSES: Final = {
    READ_RESPONSE_FIRST: (True, False),
    READ_RESPONSE_MIDDLE: (False, False),
    READ_RESPONSE_LAST: (False, True),
    READ_RESPONSE_ONLY: (True, True),
}

#: Of a ready-to-receive message, as Linux siw sends it (C{siw_qp.c}, C{siw_qp_mpa_rts()}).
_READY_STAG: Final = 1


def cut(pieces: list[Any], length: int, most: int) -> list[list[Any]]:
    """
    Cut a list of buffers into parts, without a copy.

    @param length: octets in all of them.
    @param most: octets of each part; the last may have fewer.
    @return: at least one part.
    """
    if length <= most:
        return [pieces]
    found: list[list[Any]] = [[]]
    room = most
    for piece in pieces:
        view, at, size = memoryview(piece), 0, len(piece)
        while at < size:
            if not room:
                found.append([])
                room = most
            taken = min(room, size - at)
            found[-1].append(view[at : at + taken])
            at += taken
            room -= taken
    return found


class RDMAPSender:
    """
    One direction of a stream: makes FPDUs of what a queue pair posts.

    @ivar isResponding: whether a Read Response has begun and not ended: L{post} refuses Writes.
    """

    __slots__ = (
        "_admitted",
        "_frame",
        "_isTerminated",
        "_longest",
        "_offset",
        "_readSequence",
        "_reads",
        "_responseOffset",
        "_responseSTag",
        "_sequence",
        "_stop",
        "_writeOffset",
        "_writeSTag",
        "isResponding",
    )

    def __init__(self, writer: FPDUWriter, largest: int, reads: Reads) -> None:
        """
        @param largest: the longest ULPDU, in octets; at least 128.
        """
        self._frame = writer.frame
        self._longest = largest
        self._reads = reads
        self._sequence = self._readSequence = FIRST_SEQUENCE
        # The number of the first Send that waits; none has this one.
        self._stop, self._admitted = -1, ANY
        # Octets of the Send in progress; where the Write and the Read Response in progress go on.
        self._offset = 0
        self._writeSTag = self._writeOffset = self._responseSTag = self._responseOffset = 0
        self.isResponding = self._isTerminated = False

    def post(self, out: list[Any], opcode: int, header: bytes, payload: Any, length: int) -> bool:
        """
        Append the FPDUs of one record.

        @param out: a list of buffers.
        @param opcode: of the record, perhaps with L{SOLICITED}.
        @param header: the record's headers, perhaps with the first octets of its payload.  A SEND First or
            Middle whose message will invalidate an STag has that.
        @param payload: bytes-like, or a list of bytes-like objects; they themselves are appended, or views of
            them.
        @param length: bytes in C{payload}.
        @return: False if it must wait, and nothing has changed: a READ until an earlier one has its response,
            a Write until the Read Response in progress has ended, a Send until L{admit}.
        @raise QueuePairError: iWARP has no such operation.
        """
        if opcode == SEND_ONLY:
            # Nearly all of a stream's records.
            count = len(header) + length + _UNTAGGED_BYTES
            if count <= self._longest:
                sequence = self._sequence
                if sequence == self._stop:
                    return False
                head = _packUntagged(_SEND_ONLY_CONTROL, 0, SEND_QUEUE, sequence, 0) + header
                self._sequence = sequence + 1 & SEQUENCE_MASK
                pieces = [head, *payload] if payload.__class__ is list else [head, payload]
                self._frame(out, pieces, count)
                return True
        code = opcode & ~SOLICITED
        pieces = payload if payload.__class__ is list else [payload]
        if code in _SENDS:
            if self._sequence == self._stop:
                return False
            self._send(out, opcode, header, pieces, length)
            return True
        if code in _WRITES:
            return self._write(out, code, header, pieces, length)
        if code in _READ_RESPONSES:
            self._respond(out, code, pieces, length)
            return True
        if code == READ_REQUEST:
            address, key, size = RETH.unpack_from(header or b"".join(pieces))
            return self._ask(out, key, address, size, False)
        raise QueuePairError(f"iWARP has no operation of opcode {opcode:#04x}")

    def limit(self, receives: int) -> None:
        """
        Send no more messages than that before L{admit}.
        """
        self._admitted, self._stop = receives, FIRST_SEQUENCE + receives & SEQUENCE_MASK

    def admit(self, receives: int) -> bool:
        """
        The peer has posted so many receives in all.

        @return: whether that is news.
        """
        isNews = receives > self._admitted
        if isNews:
            self.limit(receives)
        return isNews

    def _send(self, out: list[Any], opcode: int, header: bytes, pieces: list[Any], length: int) -> None:
        code = opcode & ~SOLICITED
        begins, ends = _SENDS[code]
        word, key, start = _SEND, 0, 0
        # RFC 5041 section 4.3: the operation and the STag to invalidate are the same in all segments of a
        # message, so those before the end tell them too.
        if code in (SEND_LAST_INVALIDATE, SEND_ONLY_INVALIDATE) or (header and not ends):
            (key,) = INVALIDATE.unpack_from(header)
            word, start = _SEND_INVALIDATE, INVALIDATE.size
        if opcode & SOLICITED:
            word += _SOLICITED_OPCODE
        if len(header) > start:
            pieces = [header[start:], *pieces]
            length += len(header) - start
        sequence, offset = self._sequence, 0 if begins else self._offset
        end, most = offset + length, self._longest - _UNTAGGED_BYTES
        for segment in cut(pieces, length, most):
            count = min(end - offset, most)
            flags = LAST_BIT if ends and offset + count == end else 0
            head = _packUntagged(word | flags, key, SEND_QUEUE, sequence, offset)
            self._frame(out, [head, *segment], _UNTAGGED_BYTES + count)
            offset += count
        self._offset = end
        if ends:
            self._sequence = sequence + 1 & SEQUENCE_MASK

    def _write(self, out: list[Any], code: int, header: bytes, pieces: list[Any], length: int) -> bool:
        if self.isResponding:
            return False
        if _WRITES[code]:
            self._writeOffset, self._writeSTag, _ = RETH.unpack_from(header)
        self._tagged(out, _WRITE, True, self._writeSTag, self._writeOffset, pieces, length)
        self._writeOffset += length
        return True

    def _respond(self, out: list[Any], code: int, pieces: list[Any], length: int) -> None:
        begins, ends = _READ_RESPONSES[code]
        inbound = self._reads.inbound
        if begins:
            request = inbound[0]
            self._responseSTag, self._responseOffset, *_ = ddp.READ_REQUEST.unpack_from(
                request, _UNTAGGED_BYTES
            )
        self.isResponding = not ends
        if ends:
            inbound.popleft()
        self._tagged(out, _READ_RESPONSE, ends, self._responseSTag, self._responseOffset, pieces, length)
        self._responseOffset += length

    def _tagged(
        self, out: list[Any], word: int, ends: bool, stag: int, offset: int, pieces: list[Any], length: int
    ) -> None:
        end, most = offset + length, self._longest - _TAGGED_BYTES
        for segment in cut(pieces, length, most):
            count = min(end - offset, most)
            flags = LAST_BIT if ends and offset + count == end else 0
            head = _packTagged(word | flags, stag, offset)
            self._frame(out, [head, *segment], _TAGGED_BYTES + count)
            offset += count

    def _ask(self, out: list[Any], key: int, address: int, size: int, isSilent: bool) -> bool:
        sink = self._reads.ask(size, isSilent)
        if not sink:
            return False
        sequence = self._readSequence
        head = _packUntagged(_READ_REQUEST_CONTROL, 0, READ_QUEUE, sequence, 0)
        request = ddp.READ_REQUEST.pack(sink, 0, size, key, address)
        self._readSequence = sequence + 1 & SEQUENCE_MASK
        self._frame(out, [head, request], len(head) + len(request))
        return True

    def readyToReceive(self, out: list[Any], kind: str) -> None:
        """
        Append an initiator's ready-to-receive message, its first FPDU (RFC 6581 section 9).

        @param kind: "write", "read" or "send", whichever both sides agreed on.
        @raise QueuePairError: it is a READ, and none may be outstanding.
        """
        if kind == "write":
            self._frame(out, [_packTagged(_WRITE | LAST_BIT, _READY_STAG, 0)], _TAGGED_BYTES)
        elif kind == "send":
            self.post(out, SEND_ONLY, b"", b"", 0)
        elif not self._ask(out, _READY_STAG, 0, 0, True):
            raise QueuePairError("a connection without READs cannot begin with one")

    def terminate(
        self,
        out: list[Any],
        termination: Termination,
        buffer: ddp.Buffer = b"",
        first: int = 0,
        last: int = 0,
    ) -> bool:
        """
        Append a Terminate, the last message of the stream.

        @param buffer: has the ULPDU at fault, from C{first} to C{last}; for a Read Request that is being
            answered, the oldest of L{Reads.inbound}.
        @return: False if there was one before.
        """
        if self._isTerminated:
            return False
        self._isTerminated = True
        head = _packUntagged(_TERMINATE_CONTROL, 0, TERMINATE_QUEUE, FIRST_SEQUENCE, 0)
        body = TerminateMessage.about(termination, buffer, first, last).pack()
        self._frame(out, [head, body], len(head) + len(body))
        return True
