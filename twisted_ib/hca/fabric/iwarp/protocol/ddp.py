"""
The headers of DDP and RDMAP (RFC 5041 section 4, RFC 5040 section 4).

A ULPDU of MPA is one DDP segment.  Its first octet is DDP's: whether the segment is tagged (it names the
memory that it goes to) or untagged (it goes to the next buffer of a queue), and whether it is the last one of
its message.  The second octet is RDMAP's: the operation.  L{twisted_ib.hca.fabric.iwarp.protocol.sending} and
L{twisted_ib.hca.fabric.iwarp.protocol.receiving} make no objects of headers: they use the layouts here.

Reserved bits are sent as zero and ignored on receipt.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, Final

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
