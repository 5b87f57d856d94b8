"""
The headers of DDP and RDMAP (RFC 5041 section 4, RFC 5040 section 4).

A ULPDU of MPA is one DDP segment.  Its first octet is DDP's: whether the segment is tagged (it names the
memory that it goes to) or untagged (it goes to the next buffer of a queue), and whether it is the last one of
its message.  The second octet is RDMAP's: the operation.  The classes here are for tests, errors and traces;
the loops of L{twisted_ib.hca.fabric.iwarp.protocol.sending} and
L{twisted_ib.hca.fabric.iwarp.protocol.receiving} make no objects and use the layouts.

Reserved bits are sent as zero and ignored on receipt.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, Final, TypeVar

from attrs import frozen

from twisted_ib.errors import HeaderError, LengthError

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


#: Control word, STag, tagged offset.
TAGGED: Final[Packed[tuple[int, int, int]]] = Struct(">HIQ")
#: Control word, the 32 bits that belong to RDMAP (an STag to invalidate), queue number, message sequence
#: number, message offset.
UNTAGGED: Final[Packed[tuple[int, int, int, int, int]]] = Struct(">HIIII")
#: Data sink STag and tagged offset, size, data source STag and tagged offset; behind L{UNTAGGED}.
READ_REQUEST: Final[Packed[tuple[int, int, int, int, int]]] = Struct(">IQIIQ")
CONTROL: Final[Packed[tuple[int]]] = Struct(">H")

# The control word: DDP's octet above RDMAP's.
TAGGED_BIT: Final = 0x8000
LAST_BIT: Final = 0x4000
DDP_VERSION_MASK: Final = 0x0300
DDP_VERSION: Final = 0x0100
RDMAP_VERSION_MASK: Final = 0x00C0
RDMAP_VERSION: Final = 0x0040
OPCODE_MASK: Final = 0x000F
#: All but the reserved bits.
CONTROL_MASK: Final = TAGGED_BIT | LAST_BIT | DDP_VERSION_MASK | RDMAP_VERSION_MASK | OPCODE_MASK
_VERSIONS: Final = DDP_VERSION | RDMAP_VERSION

#: Queues of untagged buffers (RFC 5040 section 4.2): Sends, Read Requests, Terminates.
SEND_QUEUE: Final = 0
READ_QUEUE: Final = 1
TERMINATE_QUEUE: Final = 2

#: Message sequence numbers begin with it, in each queue and direction (RFC 5041 section 4.3).
FIRST_SEQUENCE: Final = 1
SEQUENCE_MASK: Final = 0xFFFFFFFF
#: The end of the tagged offsets of an STag: 64 bits.
OFFSET_END: Final = 1 << 64

Buffer = bytes | bytearray | memoryview
#: The fields of a header, the control word first.
F = TypeVar("F", bound=tuple[int, ...])


class Opcode(IntEnum):
    """
    The operations of RDMAP (RFC 5040 section 4.1), and those of RFC 7306, which are refused.
    """

    WRITE = 0
    READ_REQUEST = 1
    READ_RESPONSE = 2
    SEND = 3
    SEND_INVALIDATE = 4
    SEND_SOLICITED = 5
    SEND_SOLICITED_INVALIDATE = 6
    TERMINATE = 7
    IMMEDIATE = 8
    IMMEDIATE_SOLICITED = 9
    ATOMIC_REQUEST = 10
    ATOMIC_RESPONSE = 11


def control(opcode: int, isTagged: bool, isLast: bool) -> int:
    """
    The control word of a segment.

    @param opcode: an L{Opcode}.
    """
    return _VERSIONS | opcode | (TAGGED_BIT if isTagged else 0) | (LAST_BIT if isLast else 0)


def _parse(layout: Packed[F], isTagged: bool, buffer: Buffer, start: int, stop: int) -> F:
    if stop - start < layout.size:
        raise LengthError(f"a DDP header has {layout.size} octets, not {stop - start}")
    fields = layout.unpack_from(buffer, start)
    if bool(fields[0] & TAGGED_BIT) is not isTagged:
        raise HeaderError(f"a DDP segment of the other kind: {fields[0]:#06x}")
    if fields[0] & (DDP_VERSION_MASK | RDMAP_VERSION_MASK) != _VERSIONS:
        raise HeaderError(f"another version of DDP or RDMAP: {fields[0]:#06x}")
    return fields


@frozen
class TaggedHeader:
    """
    Of an RDMA Write or a Read Response.

    @ivar opcode: 4 bits, an L{Opcode}.
    @ivar isLast: whether the message ends with this segment.
    @ivar stag: the memory, 32 bits.
    @ivar offset: the tagged offset of the segment's first octet, 64 bits.
    """

    opcode: int
    isLast: bool
    stag: int
    offset: int

    def pack(self) -> bytes:
        """
        @return: 14 octets.
        """
        return TAGGED.pack(control(self.opcode, True, self.isLast), self.stag, self.offset)

    @classmethod
    def parse(cls, buffer: Buffer, start: int, stop: int) -> TaggedHeader:
        """
        Parse the header of a ULPDU.

        @raise LengthError: the ULPDU is shorter.
        @raise HeaderError: it is untagged, or of another version.
        """
        word, stag, offset = _parse(TAGGED, True, buffer, start, stop)
        return cls(word & OPCODE_MASK, bool(word & LAST_BIT), stag, offset)


@frozen
class UntaggedHeader:
    """
    Of a Send, a Read Request or a Terminate.

    @ivar opcode: 4 bits, an L{Opcode}.
    @ivar isLast: whether the message ends with this segment.
    @ivar invalidate: the STag to invalidate, or 0; 32 bits.
    @ivar queue: the queue number, 32 bits.
    @ivar sequence: the message's sequence number (MSN), 32 bits.
    @ivar offset: the offset of the segment's first octet in the message (MO), 32 bits.
    """

    opcode: int
    isLast: bool
    invalidate: int
    queue: int
    sequence: int
    offset: int

    def pack(self) -> bytes:
        """
        @return: 18 octets.
        """
        word = control(self.opcode, False, self.isLast)
        return UNTAGGED.pack(word, self.invalidate, self.queue, self.sequence, self.offset)

    @classmethod
    def parse(cls, buffer: Buffer, start: int, stop: int) -> UntaggedHeader:
        """
        Parse the header of a ULPDU.

        @raise LengthError: the ULPDU is shorter.
        @raise HeaderError: it is tagged, or of another version.
        """
        word, *fields = _parse(UNTAGGED, False, buffer, start, stop)
        return cls(word & OPCODE_MASK, bool(word & LAST_BIT), *fields)


@frozen
class ReadRequestHeader:
    """
    Of a Read Request, behind its L{UntaggedHeader} (RFC 5040 section 4.4).

    @ivar sinkSTag: of the requester's memory, which the Read Response repeats; 32 bits.
    @ivar sinkOffset: 64 bits.
    @ivar size: octets to read, 32 bits.
    @ivar sourceSTag: of the memory to read, 32 bits.
    @ivar sourceOffset: 64 bits.
    """

    sinkSTag: int
    sinkOffset: int
    size: int
    sourceSTag: int
    sourceOffset: int

    def pack(self) -> bytes:
        """
        @return: 28 octets.
        """
        return READ_REQUEST.pack(
            self.sinkSTag, self.sinkOffset, self.size, self.sourceSTag, self.sourceOffset
        )

    @classmethod
    def parse(cls, buffer: Buffer, start: int, stop: int) -> ReadRequestHeader:
        """
        Parse what follows the untagged header.

        @raise LengthError: it has not 28 octets.
        """
        if stop - start != READ_REQUEST.size:
            raise LengthError(f"a Read Request has {READ_REQUEST.size} octets, not {stop - start}")
        return cls(*READ_REQUEST.unpack_from(buffer, start))
