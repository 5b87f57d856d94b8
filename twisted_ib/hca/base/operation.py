"""
The operations that cross the seam between queue pairs and a fabric.

A fabric carries I{records}: a word (operation code and destination queue pair
number) and bytes.  The codes are those of the base transport header (IBTA vol.
1, 9.2.1; L{twisted_ib.hca.wire.opcodes}) for reliable connections, so that a trace or
a packet fabric needs no second numbering; what a medium of operations needs and the
standard lacks is in codes that nobody else uses.

There are no acknowledgement records: the reader's position in the medium is
the cumulative acknowledgement, and only refusals are sent (L{ACKNOWLEDGE} with
an AETH syndrome, IBTA vol. 1, 9.7.5.2.1).

What the codes of records say of them, in the words of queue pairs.

The facts are those of L{twisted_ib.hca.wire.opcodes}.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from twisted_ib.hca.wire.headers import (
    NAK_INVALID_REQUEST,
    NAK_REMOTE_ACCESS,
    NAK_REMOTE_OPERATIONAL,
    NAK_SEQUENCE,
    QPN_MASK,
    RETH,
    RNR,
)
from twisted_ib.hca.wire.opcodes import (
    ACKNOWLEDGE,
    ATOMIC_ACKNOWLEDGE,
    COMPARE_SWAP,
    FETCH_ADD,
    OPCODES,
    READ_REQUEST,
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
    UD_SEND_ONLY,
    UD_SEND_ONLY_IMMEDIATE,
    UNRELIABLE,
    WRITE_FIRST,
    WRITE_LAST,
    WRITE_LAST_IMMEDIATE,
    WRITE_MIDDLE,
    WRITE_ONLY,
    WRITE_ONLY_IMMEDIATE,
    Kind,
    Opcode,
)

__all__ = [
    "ABSENT",
    "ABSENT_WORD",
    "ACKNOWLEDGE",
    "ANSWERS",
    "ATOMIC_ACKNOWLEDGE",
    "BAD_RESPONSE",
    "COMPARE_SWAP",
    "FETCH_ADD",
    "GSI_QPN",
    "LATER",
    "MANAGEMENT",
    "MANAGEMENT_HEADER",
    "MULTICAST_QPN",
    "NAK_INVALID_REQUEST",
    "NAK_REMOTE_ACCESS",
    "NAK_REMOTE_OPERATIONAL",
    "NAK_SEQUENCE",
    "OPERATION_MASK",
    "QPN_MASK",
    "READ_REQUEST",
    "READ_RESPONSE_FIRST",
    "READ_RESPONSE_LAST",
    "READ_RESPONSE_MIDDLE",
    "READ_RESPONSE_ONLY",
    "REFERENCE",
    "REFUSAL",
    "RESPONSES",
    "RESUME",
    "RNR",
    "RNR_EXHAUSTED",
    "SEND_FIRST",
    "SEND_LAST",
    "SEND_LAST_IMMEDIATE",
    "SEND_LAST_INVALIDATE",
    "SEND_MIDDLE",
    "SEND_ONLY",
    "SEND_ONLY_IMMEDIATE",
    "SEND_ONLY_INVALIDATE",
    "SHAPES",
    "SILENT",
    "SOLICITED",
    "UD_SEND_ONLY",
    "UD_SEND_ONLY_IMMEDIATE",
    "UNRELIABLE",
    "WRITE_FIRST",
    "WRITE_LAST",
    "WRITE_LAST_IMMEDIATE",
    "WRITE_MIDDLE",
    "WRITE_ONLY",
    "WRITE_ONLY_IMMEDIATE",
    "isDatagram",
    "word",
]

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

#: Queue pair 1, the general services interface: connection management.
GSI_QPN: Final = 1
#: What a datagram for a multicast group names (IBTA vol. 1 10.5.2); nobody has it.
MULTICAST_QPN: Final = 0xFFFFFF
MANAGEMENT: Final = UD_SEND_ONLY << 24 | GSI_QPN
#: Refusals for a queue pair number that nobody has go to queue pair 0.
ABSENT_WORD: Final = ACKNOWLEDGE << 24

# AETH syndromes, beside those of the standard
#: Reserved by the standard: no such queue pair, or it takes no requests yet.
#: In packets this is silence.
ABSENT: Final = 0x40
#: Reserved too: this request would be refused for good, but READs before it are still
#: being answered; send it again.  In packets the answers come first by themselves.
LATER: Final = 0x41
# What a packet transport finds by itself and tells its own queue pair; reserved, too.
#: The peer does not answer, and all retries are used up.
SILENT: Final = 0x42
#: It had no receive, and all retries for that are used up.
RNR_EXHAUSTED: Final = 0x43
#: It answered something else than it was asked.
BAD_RESPONSE: Final = 0x44

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


def _extra(row: Opcode) -> Struct | None:
    return row.headers[-1] if row.headers and row.headers[-1] is not RETH else None


#: Code -> (is a WRITE, begins a message, ends it, what follows the RETH).
SHAPES: dict[int, tuple[bool, bool, bool, Struct | None]] = {
    code: (row.kind is Kind.WRITE, row.begins, row.ends, _extra(row))
    for code, row in OPCODES.items()
    if code < UNRELIABLE and row.kind in (Kind.SEND, Kind.WRITE)
}
#: A READ's response -> whether it is the first record of its answer, and the last.
ANSWERS: dict[int, tuple[bool, bool]] = {
    code: (row.begins, row.ends) for code, row in OPCODES.items() if row.kind is Kind.READ_RESPONSE
}
