"""
The operations that queue pairs and a fabric exchange.

A fabric carries I{records}: a word (operation code and destination queue pair number) and bytes.  The codes
are those of the base transport header (IBTA vol. 1 9.2.1; L{twisted_ib.hca.wire.opcodes}) for reliable
connections, so that traces and packet fabrics need no second numbering; what a medium of operations needs and
the standard lacks has codes that are unused here.

There are no acknowledgement records: the reader's position in the medium is the cumulative acknowledgement,
and only refusals are sent (L{ACKNOWLEDGE} with an AETH syndrome, IBTA vol. 1 9.7.5.2.1).
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from twisted_ib.hca.wire.opcodes import (
    ACKNOWLEDGE,
    OPCODES,
    UD_SEND_ONLY,
    UD_SEND_ONLY_IMMEDIATE,
    Kind,
)

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


#: The requester restarts at the operation that was refused: the code of RD's "Resync", reserved for RC (Linux
#: ib_pack.h; IBTA vol. 1 9.2.1).
RESUME: Final = 0x15

#: A code without the two bits that are added to it here.  One is that of RD (0x40), which nothing implements.
OPERATION_MASK: Final = 0x3F
#: Instead of its payload the record says where the peer can read it: in memory that was offered to the peer
#: (L{twisted_ib.hca.wire.headers.REFERENCE}).
REFERENCE: Final = 0x40
#: The solicited event bit of the header (IBTA vol. 1 9.2).
SOLICITED: Final = 0x80

#: Responses to requests: a queue pair that drops requests still accepts these.
RESPONSES: Final = frozenset(
    code | reference
    for code, row in OPCODES.items()
    if not row.isRequest
    for reference in ((0, REFERENCE) if row.kind is Kind.READ_RESPONSE else (0,))
)

#: The last octets of all that go to memory of a program, which may poll them: the aligned word at the end,
#: by the last bits of the address behind it.
TAILS: Final = (8, 1, 2, 1, 4, 1, 2, 1)

#: Queue pair 0, the subnet management interface (IBTA vol. 1 13.5.1).
SMI_QPN: Final = 0
#: Queue pair 1, the general services interface, connection management among them.
GSI_QPN: Final = 1
#: The destination of multicast datagrams (IBTA vol. 1 10.5.2); no queue pair has it.
MULTICAST_QPN: Final = 0xFFFFFF
#: Processes that share an address have a slot each: the upper bits of queue pair numbers (IBTA vol. 1 9.2),
#: communication ids (12.7.1) and transaction ids.  How many these are, and those below them in each.
SLOT_BITS: Final = 6
QPN_SHIFT: Final = 24 - SLOT_BITS
ID_SHIFT: Final = 32 - SLOT_BITS
TRANSACTION_SHIFT: Final = 64 - SLOT_BITS
MANAGEMENT: Final = UD_SEND_ONLY << 24 | GSI_QPN
#: Refusals of records for an unknown queue pair number go to queue pair 0.
ABSENT_WORD: Final = ACKNOWLEDGE << 24

#: AETH syndromes that IBTA vol. 1 9.7.5.2.1 reserves, for use between processes of one host.  This one: no
#: such queue pair, or it does not accept requests yet.  In packets this is silence.
ABSENT: Final = 0x40
#: This request would be refused for good, but READs before it are still being answered; send it again.  In
#: packets the responses come first by themselves.
LATER: Final = 0x41
#: Reported by a packet transport to its own queue pair, never sent.  The peer does not answer, and all
#: retries are used up (IBTA vol. 1 9.9.2.1.1).
SILENT: Final = 0x42
#: The peer had no receive, and all RNR retries are used up (IBTA vol. 1 9.7.5.2.8).
RNR_EXHAUSTED: Final = 0x43
#: The response does not fit the request (Linux rxe_comp.c fails the work request too).
BAD_RESPONSE: Final = 0x44

#: A refusal: syndrome, the destination number that it is about, and the position in the medium after the
#: refused record.
REFUSAL: Final[Packed[tuple[int, int, int]]] = Struct("<B3xIQ")

#: The short record of a CM message: attribute identifier and modifier, then the message without its MAD
#: header (IBTA vol. 1 13.4.3), whose class and method are constant.  MADs of other classes are whole
#: datagrams, and differ from it in length.
MANAGEMENT_HEADER: Final[Packed[tuple[int, int]]] = Struct(">HH")


def word(opcode: int, number: int) -> int:
    """
    The word of a record.

    @param opcode: 8 bits.
    @param number: the destination queue pair, 24 bits.
    """
    return opcode << 24 | number


def isDatagram(opcode: int) -> bool:
    """
    Whether an unreliable operation for a queue pair that its path does not know is a datagram.

    @param opcode: 8 bits.
    """
    # The path's table has the queue pairs of unreliable connections; there the same codes are SEND with a
    # REFERENCE.
    return opcode & ~SOLICITED in (UD_SEND_ONLY, UD_SEND_ONLY_IMMEDIATE)


#: READ response -> whether it is the first record of its answer, and the last.
ANSWERS: dict[int, tuple[bool, bool]] = {
    code: (row.begins, row.ends) for code, row in OPCODES.items() if row.kind is Kind.READ_RESPONSE
}
