"""
The operations that cross the seam between queue pairs and a fabric.

A fabric carries I{records}: a word (operation code and destination queue pair
number) and bytes.  The codes are those of the base transport header (IBTA vol.
1, 9.2.1) for reliable connections, so that a trace or a packet fabric needs no
second numbering; what a medium of operations needs and the standard lacks is in
codes that nobody else uses.

There are no acknowledgement records: the reader's position in the medium is
the cumulative acknowledgement, and only refusals are sent (L{ACKNOWLEDGE} with
an AETH syndrome, IBTA vol. 1, 9.7.5.2.1).
"""

from __future__ import annotations

from struct import Struct
from typing import Final

# RC request codes
SEND_FIRST: Final = 0x00
SEND_MIDDLE: Final = 0x01
SEND_LAST: Final = 0x02
SEND_LAST_IMMEDIATE: Final = 0x03
SEND_ONLY: Final = 0x04
SEND_ONLY_IMMEDIATE: Final = 0x05
WRITE_FIRST: Final = 0x06
WRITE_MIDDLE: Final = 0x07
WRITE_LAST: Final = 0x08
WRITE_LAST_IMMEDIATE: Final = 0x09
WRITE_ONLY: Final = 0x0A
WRITE_ONLY_IMMEDIATE: Final = 0x0B
READ_REQUEST: Final = 0x0C
COMPARE_SWAP: Final = 0x13
FETCH_ADD: Final = 0x14
SEND_LAST_INVALIDATE: Final = 0x16
SEND_ONLY_INVALIDATE: Final = 0x17

# RC response codes
READ_RESPONSE_FIRST: Final = 0x0D
READ_RESPONSE_MIDDLE: Final = 0x0E
READ_RESPONSE_LAST: Final = 0x0F
READ_RESPONSE_ONLY: Final = 0x10
ACKNOWLEDGE: Final = 0x11
ATOMIC_ACKNOWLEDGE: Final = 0x12

#: The bit that unreliable services have in their codes, and reliable ones have not.
UNRELIABLE: Final = 0x20

# UD
UD_SEND_ONLY: Final = 0x64
UD_SEND_ONLY_IMMEDIATE: Final = 0x65

#: The requester starts again at the operation that was refused: the code that reliable
#: datagrams had for "Resync", reserved otherwise.
RESUME: Final = 0x15

#: A code without the two bits that are added to it here, where nobody needs the codes of
#: reliable datagrams (0x40).
OPERATION_MASK: Final = 0x3F
#: In place of its payload the record says where the peer can read it: memory that was
#: offered to it (L{twisted_ib.hca.wire.headers.REFERENCE}).
REFERENCE: Final = 0x40
#: The solicited event bit of the header.
SOLICITED: Final = 0x80

#: What answers a request: a queue pair that drops requests still takes these.
RESPONSES: Final = frozenset(
    (
        READ_RESPONSE_FIRST,
        READ_RESPONSE_MIDDLE,
        READ_RESPONSE_LAST,
        READ_RESPONSE_ONLY,
        ACKNOWLEDGE,
        ATOMIC_ACKNOWLEDGE,
        READ_RESPONSE_FIRST | REFERENCE,
        READ_RESPONSE_MIDDLE | REFERENCE,
        READ_RESPONSE_LAST | REFERENCE,
        READ_RESPONSE_ONLY | REFERENCE,
    )
)

QPN_MASK: Final = 0xFFFFFF
#: Queue pair 1, the general services interface: connection management.
GSI_QPN: Final = 1
MANAGEMENT: Final = UD_SEND_ONLY << 24 | GSI_QPN
#: Refusals for a queue pair number that nobody has go to queue pair 0.
ABSENT_WORD: Final = ACKNOWLEDGE << 24

# AETH syndromes
RNR: Final = 0x20  # the low five bits are the timer code
#: Reserved by the standard: no such queue pair, or it takes no requests yet.
#: In packets this is silence.
ABSENT: Final = 0x40
#: Reserved too: this request would be refused for good, but READs before it are still
#: being answered; send it again.  In packets the answers come first by themselves.
LATER: Final = 0x41
NAK_SEQUENCE: Final = 0x60
NAK_INVALID_REQUEST: Final = 0x61
NAK_REMOTE_ACCESS: Final = 0x62
NAK_REMOTE_OPERATIONAL: Final = 0x63

#: A refusal: syndrome, the destination number it is about, and the position in
#: the medium after the refused record.
REFUSAL: Final = Struct("<B3xIQ")

#: A management record: attribute identifier and modifier, then the body of the
#: message without the MAD header.
MANAGEMENT_HEADER: Final = Struct(">HH")


def word(opcode: int, number: int) -> int:
    """
    @param opcode: 8 bits.
    @param number: 24 bits.
    @return: The word of a record: operation and destination queue pair.
    """
    return opcode << 24 | number


def isDatagram(opcode: int) -> bool:
    """
    @param opcode: 8 bits.
    @return: Whether an unreliable operation for a queue pair that no path knows is a
        datagram.  Those of unreliable connections have their queue pair in the path's
        table; there the same codes are SEND with a L{REFERENCE}.
    """
    return opcode & ~SOLICITED in (UD_SEND_ONLY, UD_SEND_ONLY_IMMEDIATE)
