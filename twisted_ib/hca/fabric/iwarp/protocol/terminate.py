"""
Terminate messages: how a stream ends with an error (RFC 5040 section 4.8).

A L{Termination} names the error by layer, type and code; the table here has those of RFC 5040, 5041, 5044
and 6581.  The message repeats the headers of the segment at fault, so that its sender can tell which of its
operations failed.
"""

from __future__ import annotations

from enum import Enum
from struct import Struct
from typing import TYPE_CHECKING, Final

from attrs import frozen

from twisted_ib.errors import WireError
from twisted_ib.hca.base.operation import RNR_EXHAUSTED
from twisted_ib.hca.fabric.iwarp.protocol.ddp import (
    OPCODE_MASK,
    READ_REQUEST,
    TAGGED,
    TAGGED_BIT,
    UNTAGGED,
    Buffer,
    Opcode,
)
from twisted_ib.hca.memory.access import ZERO_BASED
from twisted_ib.hca.wire.headers import NAK_INVALID_REQUEST, NAK_REMOTE_ACCESS, NAK_REMOTE_OPERATIONAL, RNR

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import Buffer
    from twisted_ib.hca.services.work import WorkQueues
    from twisted_ib.structs import Packed

#: Layer and type (4 bits each), code, flags; 13 reserved bits.
_CONTROL: Final[Packed[tuple[int, int, int]]] = Struct(">BBH")
_LENGTH: Final[Packed[tuple[int]]] = Struct(">H")
_LONGEST: Final = 0xFFFF
#: The flags: the segment's length is valid, its DDP header follows, its Read Request header follows.
_HAS_LENGTH: Final = 0x8000
_HAS_HEADER: Final = 0x4000
_HAS_REQUEST: Final = 0x2000
#: The same as Linux siw sends them: the bit fields of its iwarp.h begin at the low end of each octet on
#: processors of that order, the layer's and the type's too.
_LINUX_FLAGS: Final = ((0x0100, _HAS_LENGTH), (0x0200, _HAS_HEADER), (0x0400, _HAS_REQUEST))

_LAYERS = ("RDMAP", "DDP", "LLP")
_TYPES = {
    (0, 0): "local catastrophic error",
    (0, 1): "remote protection error",
    (0, 2): "remote operation error",
    (1, 0): "local catastrophic error",
    (1, 1): "tagged buffer error",
    (1, 2): "untagged buffer error",
    (2, 0): "MPA error",
}
#: The code of a type that has no better one.
_UNSPECIFIED: Final = 0xFF


@frozen
class Termination:
    """
    Why a stream is terminated.

    @ivar layer: 0 RDMAP, 1 DDP, 2 the layer below; 4 bits.
    @ivar etype: the error type in the layer, 4 bits.
    @ivar code: the error code in the type, 8 bits.
    """

    layer: int
    etype: int
    code: int

    @property
    def text(self) -> str:
        """
        The error in words, and its numbers.
        """
        layer = _LAYERS[self.layer] if self.layer < len(_LAYERS) else "unknown layer"
        kind = _TYPES.get((self.layer, self.etype), "unknown error")
        reason = TERMINATIONS.get(self, "unknown code")
        return f"{layer}: {kind}: {reason} (layer {self.layer}, type {self.etype}, code {self.code})"


#: Each error, in words.
TERMINATIONS: Final[dict[Termination, str]] = {}


def _error(layer: int, etype: int, code: int, text: str) -> Termination:
    error = Termination(layer, etype, code)
    TERMINATIONS[error] = text
    return error


# RFC 5040 section 4.8: RDMAP.
LOCAL_CATASTROPHIC: Final = _error(0, 0, 0, "the peer's own error")
PROTECTION_INVALID_STAG: Final = _error(0, 1, 0, "invalid STag")
PROTECTION_BASE_BOUNDS: Final = _error(0, 1, 1, "outside of the memory's bounds")
PROTECTION_ACCESS_RIGHTS: Final = _error(0, 1, 2, "no access right to the memory")
PROTECTION_STAG_NOT_ASSOCIATED: Final = _error(0, 1, 3, "the STag is of another stream")
PROTECTION_OFFSET_WRAP: Final = _error(0, 1, 4, "the tagged offset wraps around")
PROTECTION_CANNOT_INVALIDATE: Final = _error(0, 1, 9, "the STag cannot be invalidated by this stream")
PROTECTION_UNSPECIFIED: Final = _error(0, 1, _UNSPECIFIED, "unspecified")
RDMAP_VERSION: Final = _error(0, 2, 5, "invalid RDMAP version")
UNEXPECTED_OPCODE: Final = _error(0, 2, 6, "unexpected opcode")
CATASTROPHIC_STREAM: Final = _error(0, 2, 7, "the stream cannot go on")
CATASTROPHIC_GLOBAL: Final = _error(0, 2, 8, "no stream can go on")
CANNOT_INVALIDATE: Final = _error(0, 2, 9, "the STag cannot be invalidated")
OPERATION_UNSPECIFIED: Final = _error(0, 2, _UNSPECIFIED, "unspecified")
# RFC 5041 section 7: DDP.
DDP_CATASTROPHIC: Final = _error(1, 0, 0, "the stream cannot go on")
TAGGED_INVALID_STAG: Final = _error(1, 1, 0, "invalid STag")
TAGGED_BASE_BOUNDS: Final = _error(1, 1, 1, "outside of the memory's bounds")
TAGGED_STAG_NOT_ASSOCIATED: Final = _error(1, 1, 2, "the STag is of another stream")
TAGGED_OFFSET_WRAP: Final = _error(1, 1, 3, "the tagged offset wraps around")
TAGGED_VERSION: Final = _error(1, 1, 4, "invalid DDP version")
INVALID_QUEUE: Final = _error(1, 2, 1, "invalid queue number")
NO_BUFFER: Final = _error(1, 2, 2, "no receive is posted for the message")
SEQUENCE_RANGE: Final = _error(1, 2, 3, "invalid message sequence number")
INVALID_OFFSET: Final = _error(1, 2, 4, "invalid message offset")
MESSAGE_TOO_LONG: Final = _error(1, 2, 5, "the message is longer than its receive")
UNTAGGED_VERSION: Final = _error(1, 2, 6, "invalid DDP version")
# RFC 5044 section 8 and RFC 6581 section 8: MPA.
TCP_LOST: Final = _error(2, 0, 1, "the TCP connection is lost")
CRC_ERROR: Final = _error(2, 0, 2, "wrong CRC")
MARKER_ERROR: Final = _error(2, 0, 3, "marker and length do not agree")
BAD_STARTUP_FRAME: Final = _error(2, 0, 4, "invalid Request or Reply frame")
MPA_CATASTROPHIC: Final = _error(2, 0, 5, "the peer's own error")
INSUFFICIENT_IRD: Final = _error(2, 0, 6, "fewer inbound READs than needed")
NO_MATCHING_RTR: Final = _error(2, 0, 7, "no matching ready-to-receive message")

#: Errors after which the layout of the segment is not known: its headers are not repeated (Linux siw_qp.c,
#: siw_send_terminate()).
_UNKNOWN_LAYOUT = frozenset((RDMAP_VERSION, UNEXPECTED_OPCODE, TAGGED_VERSION, UNTAGGED_VERSION))


class TerminationError(WireError):
    """
    The peer broke a rule of MPA, DDP or RDMAP: the stream ends with a Terminate.

    @ivar termination: the error that it names.
    """

    def __init__(self, termination: Termination, detail: str = "") -> None:
        super().__init__(f"{termination.text}: {detail}" if detail else termination.text)
        self.termination = termination


@frozen
class TerminateMessage:
    """
    The message behind the untagged header of a Terminate.

    @ivar length: octets of the ULPDU at fault, or L{None}; for information only, as Linux siw sends its
        payload's octets instead.
    @ivar header: its DDP header, or nothing.
    @ivar request: its Read Request header, or nothing.
    """

    termination: Termination
    length: int | None = None
    header: bytes = b""
    request: bytes = b""

    @property
    def isOfRead(self) -> bool:
        """
        Whether a Read Request of its receiver is at fault.
        """
        # Linux siw sets the flag of the Read Request header for Sends too, without the header.
        return bool(self.request) and self.header[1] & OPCODE_MASK == Opcode.READ_REQUEST

    @classmethod
    def about(cls, termination: Termination, buffer: Buffer, first: int, last: int) -> TerminateMessage:
        """
        The message for a ULPDU at fault.

        @param first: where the ULPDU begins in C{buffer}, and C{last} where it ends; both 0 if there is
            none.
        """
        count = last - first
        # RFC 5040 section 4.8: the layers above MPA repeat headers, unless the error is the sender's own.
        isLocal = (termination.layer, termination.etype) == (0, 0)
        if termination.layer > 1 or isLocal or termination in _UNKNOWN_LAYOUT or not count:
            return cls(termination)
        word = buffer[first] << 8
        size = TAGGED.size if word & TAGGED_BIT else UNTAGGED.size
        if count < size:
            return cls(termination)
        header, request = bytes(buffer[first : first + size]), b""
        isRead = header[1] & OPCODE_MASK == Opcode.READ_REQUEST
        if termination.layer == 0 and isRead and count >= size + READ_REQUEST.size:
            request = bytes(buffer[first + size : first + size + READ_REQUEST.size])
        # Segments that were joined may be longer than any ULPDU.
        return cls(termination, count if count <= _LONGEST else None, header, request)

    def pack(self) -> bytes:
        """
        @return: 4 to 52 octets.
        """
        error, flags, rest = self.termination, 0, b""
        if self.header:
            flags |= _HAS_HEADER
            rest = _LENGTH.pack(self.length or 0) + self.header
            if self.length is not None:
                flags |= _HAS_LENGTH
        if self.request:
            flags |= _HAS_REQUEST
        return _CONTROL.pack(error.layer << 4 | error.etype, error.code, flags) + rest + self.request

    @classmethod
    def parse(cls, buffer: Buffer, start: int, stop: int) -> TerminateMessage:
        """
        Parse what follows the untagged header.  Headers that are cut short are left out.

        @raise TerminationError: there are fewer than 4 octets.
        """
        if stop - start < _CONTROL.size:
            raise TerminationError(CATASTROPHIC_STREAM, f"a Terminate of {stop - start} octets")
        first, code, flags = _CONTROL.unpack_from(buffer, start)
        error = Termination(first >> 4, first & 0xF, code)
        # RFC 5040 section 4.8: reserved bits are zeros.  Without flags only the table tells Linux's order.
        turned = Termination(first & 0xF, first >> 4, code)
        if flags & 0x1FFF or (not flags and error not in TERMINATIONS and turned in TERMINATIONS):
            error = turned
            flags = sum(flag for bit, flag in _LINUX_FLAGS if flags & bit)
        start += _CONTROL.size
        if not flags & _HAS_HEADER or stop - start < _LENGTH.size + TAGGED.size:
            return cls(error)
        length = _LENGTH.unpack_from(buffer, start)[0] if flags & _HAS_LENGTH else None
        start += _LENGTH.size
        size = TAGGED.size if buffer[start] << 8 & TAGGED_BIT else UNTAGGED.size
        if stop - start < size:
            return cls(error)
        header = bytes(buffer[start : start + size])
        start += size
        request = b""
        if flags & _HAS_REQUEST and stop - start >= READ_REQUEST.size:
            request = bytes(buffer[start : start + READ_REQUEST.size])
        return cls(error, length, header, request)


class Protection(Enum):
    """
    Why the memory that a peer named was refused to it.
    """

    KEY = "no such key"
    BOUNDS = "outside of the memory's bounds"
    RIGHTS = "no access right"
    ASSOCIATION = "another protection domain or queue pair"


#: For an RDMA Write.  RFC 5041 has no code for missing rights; Linux siw says "invalid STag"
#: (siw_tagged_error()).
_OF_WRITES = {
    Protection.KEY: TAGGED_INVALID_STAG,
    Protection.BOUNDS: TAGGED_BASE_BOUNDS,
    Protection.RIGHTS: TAGGED_INVALID_STAG,
    Protection.ASSOCIATION: TAGGED_STAG_NOT_ASSOCIATED,
}
#: For a Read Request, whose memory is looked at above DDP.
_OF_READS = {
    Protection.KEY: PROTECTION_INVALID_STAG,
    Protection.BOUNDS: PROTECTION_BASE_BOUNDS,
    Protection.RIGHTS: PROTECTION_ACCESS_RIGHTS,
    Protection.ASSOCIATION: PROTECTION_STAG_NOT_ASSOCIATED,
}
_OF_SENDS = {NAK_INVALID_REQUEST: MESSAGE_TOO_LONG, NAK_REMOTE_OPERATIONAL: DDP_CATASTROPHIC}
_SYNDROME_MASK: Final = 0xE0


def terminationOf(opcode: int, syndrome: int, protection: Protection | None = None) -> Termination:
    """
    The error for a segment that a responder refused.

    @param opcode: the segment's L{Opcode}.
    @param syndrome: of the responder's NAK, or 0 if only an STag could not be invalidated.
    @param protection: what was wrong with the memory that the peer named, if that was looked up.
    """
    if opcode == Opcode.WRITE:
        return CATASTROPHIC_STREAM if protection is None else _OF_WRITES[protection]
    if opcode == Opcode.READ_REQUEST:
        return CATASTROPHIC_STREAM if protection is None else _OF_READS[protection]
    if not syndrome:
        # Linux siw_qp_rx.c, siw_rdmap_complete(): a key that exists, and is not the peer's, is a
        # protection error.
        return CANNOT_INVALIDATE if protection is Protection.KEY else PROTECTION_CANNOT_INVALIDATE
    if syndrome & _SYNDROME_MASK == RNR:
        return NO_BUFFER
    return _OF_SENDS.get(syndrome, CATASTROPHIC_STREAM)


def syndromeOf(termination: Termination) -> int:
    """
    The NAK syndrome by which the operation at fault fails, if a peer's Terminate names it.
    """
    if termination in (NO_BUFFER, MESSAGE_TOO_LONG):
        return RNR_EXHAUSTED if termination == NO_BUFFER else NAK_INVALID_REQUEST
    if (termination.layer, termination.etype) in ((0, 1), (1, 1)) and termination != TAGGED_VERSION:
        return NAK_REMOTE_ACCESS
    return NAK_REMOTE_OPERATIONAL


def protectionOf(work: WorkQueues, opcode: int, buffer: Buffer, first: int, last: int) -> Protection | None:
    """
    Find out why a Write or a Read Request was refused, after that.

    @param work: the work queues of its queue pair, or L{None}.
    @param opcode: the RDMAP opcode.
    @param first: where the ULPDU begins in C{buffer}, and C{last} where it ends.
    @return: L{None} if the memory is not the reason.
    """
    if work is None:
        return None
    if opcode == Opcode.WRITE:
        _, key, address = TAGGED.unpack_from(buffer, first)
        length = last - first - TAGGED.size
    else:
        _, _, length, key, address = READ_REQUEST.unpack_from(buffer, first + UNTAGGED.size)
    if not length:
        return None
    memory = work.pd.memory
    # A region, or a window, which has the same names for what is asked here.
    found = memory.regions.get(key) or memory.windows.byKey.get(key)
    if found is None or not found.length:
        return Protection.KEY
    owner = getattr(found, "queuePair", None)
    if found.pd is not work.pd or (owner is not None and owner is not work.queuePair):
        return Protection.ASSOCIATION
    offset = address if found.access & ZERO_BASED else address - found.address
    if offset < 0 or offset + length > found.length:
        return Protection.BOUNDS
    return Protection.RIGHTS
