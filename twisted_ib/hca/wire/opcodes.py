"""
The opcodes of the BTH, and the form of a packet of each (IBTA vol. 1 9.2.1).

One table row describes an opcode: the headers that follow the BTH, the length of the payload, and the
packet's position in its message. FLUSH and ATOMIC WRITE are of release 1.5, the congestion notification
packet of annex A17.
"""

from __future__ import annotations

from enum import Enum
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from twisted_ib.hca.wire.headers import (
    AETH,
    ATOMIC,
    ATOMIC_RESULT,
    BTH,
    DETH,
    FLUSH,
    IMMEDIATE,
    INVALIDATE,
    RETH,
)
from twisted_ib.layouts import Shown
from twisted_ib.records import frozen

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


# Requests of reliable connections; 0x15 is reserved (Linux ib_pack.h: RESYNC of reliable datagrams)
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
FLUSH_REQUEST: Final = 0x1C
ATOMIC_WRITE: Final = 0x1D

# Their responses
READ_RESPONSE_FIRST: Final = 0x0D
READ_RESPONSE_MIDDLE: Final = 0x0E
READ_RESPONSE_LAST: Final = 0x0F
READ_RESPONSE_ONLY: Final = 0x10
ACKNOWLEDGE: Final = 0x11
ATOMIC_ACKNOWLEDGE: Final = 0x12

#: Set in the opcodes of unreliable connections and datagrams.
UNRELIABLE: Final = 0x20
#: The bits of the service: 0 for RC, L{UNRELIABLE} for UC (IBTA vol. 1 9.2.1).
SERVICE_MASK: Final = 0xE0

# Unreliable datagrams
UD_SEND_ONLY: Final = 0x64
UD_SEND_ONLY_IMMEDIATE: Final = 0x65

#: Congestion notification packet (CNP): Linux rxe_opcode.c has no row for it and drops it.
CONGESTION: Final = 0x81

#: Path MTU code -> bytes of payload (IBTA vol. 1 12.7.28).
MTU_BYTES: Final = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}


class Kind(Enum):
    """
    The operation of a packet; all packets of a message are of one kind.
    """

    SEND = "SEND"
    WRITE = "WRITE"
    READ = "READ"
    READ_RESPONSE = "READ response"
    ACKNOWLEDGE = "acknowledge"
    ATOMIC = "atomic"
    ATOMIC_ACKNOWLEDGE = "atomic acknowledge"
    FLUSH = "flush"
    ATOMIC_WRITE = "atomic write"
    CONGESTION = "congestion notification"


@frozen(eq=False, repr=False)
class Opcode(Shown):
    """
    One opcode.

    @ivar code: 8 bits: transport service and operation.
    @ivar name: as packet analysers show it.
    @ivar headers: layouts of the extended headers, in order.
    @ivar layout: one layout for all of them.
    @ivar start: offset of the payload from the BTH.
    @ivar least: least payload in bytes; L{None} for the path MTU.
    @ivar most: most payload in bytes; L{None} for the path MTU.
    @ivar begins: whether it is the first packet of a message.
    @ivar ends: whether it is the last packet of a message.
    @ivar isRequest: whether it is for the responder, not the requester.
    @ivar takesReceive: whether the message consumes its receive WQE with this packet.
    @ivar response: the opcode of its response, if that is of one packet; L{None} if it is only acknowledged.
    """

    code: int
    name: str
    kind: Kind
    headers: tuple[Packed[Any], ...]
    layout: Packed[Any]
    start: int
    least: int | None
    most: int | None
    begins: bool
    ends: bool
    isRequest: bool
    takesReceive: bool
    response: int | None

    @property
    def ending(self) -> Packed[Any] | None:
        """
        The layout of the extended header that belongs to the end of its message: immediate or IETH.
        """
        # IBTA vol. 1 9.2.1: the RETH is in the first packet, these are in the last one.
        return self.headers[-1] if self.headers and self.headers[-1] in (IMMEDIATE, INVALIDATE) else None


# Payloads: (least, most).  A Last packet is never empty: a message of a whole number of MTUs ends in a full
# one.
_FULL = (None, None)
_SOME = (1, None)
_ANY = (0, None)
_NONE = (0, 0)
# ATOMIC WRITE carries one aligned 64-bit value.
_VALUE = (8, 8)
# IBTA vol. 1 annex A17: a CNP has 16 reserved octets in place of a payload.
_RESERVED = (16, 16)


class _Row(NamedTuple):
    # Marks: b(egins), e(nds), r(eceive WQE is consumed).
    code: int
    name: str
    kind: Kind
    headers: tuple[Packed[Any], ...]
    payload: tuple[int | None, int | None]
    marks: str
    response: int | None = None


#: Opcodes of reliable and unreliable connections.  A SEND consumes a receive WQE with its first packet, a
#: WRITE with immediate with its last: only that one has the immediate (Linux rxe_opcode.c RXE_RWR_MASK).
_CONNECTED: Final[tuple[_Row, ...]] = (
    _Row(SEND_FIRST, "SEND First", Kind.SEND, (), _FULL, "br"),
    _Row(SEND_MIDDLE, "SEND Middle", Kind.SEND, (), _FULL, ""),
    _Row(SEND_LAST, "SEND Last", Kind.SEND, (), _SOME, "e"),
    _Row(SEND_LAST_IMMEDIATE, "SEND Last Immediate", Kind.SEND, (IMMEDIATE,), _SOME, "e"),
    _Row(SEND_ONLY, "SEND Only", Kind.SEND, (), _ANY, "ber"),
    _Row(SEND_ONLY_IMMEDIATE, "SEND Only Immediate", Kind.SEND, (IMMEDIATE,), _ANY, "ber"),
    _Row(WRITE_FIRST, "WRITE First", Kind.WRITE, (RETH,), _FULL, "b"),
    _Row(WRITE_MIDDLE, "WRITE Middle", Kind.WRITE, (), _FULL, ""),
    _Row(WRITE_LAST, "WRITE Last", Kind.WRITE, (), _SOME, "e"),
    _Row(WRITE_LAST_IMMEDIATE, "WRITE Last Immediate", Kind.WRITE, (IMMEDIATE,), _SOME, "er"),
    _Row(WRITE_ONLY, "WRITE Only", Kind.WRITE, (RETH,), _ANY, "be"),
    _Row(WRITE_ONLY_IMMEDIATE, "WRITE Only Immediate", Kind.WRITE, (RETH, IMMEDIATE), _ANY, "ber"),
)
#: Opcodes of reliable connections only.  READ Response Middle has no AETH (Linux rxe_opcode.c).  FLUSH and
#: ATOMIC WRITE are answered by a READ response of no bytes (rxe_resp.c send_read_response_ack).
_RELIABLE: Final[tuple[_Row, ...]] = (
    _Row(READ_REQUEST, "READ Request", Kind.READ, (RETH,), _NONE, "be", READ_RESPONSE_ONLY),
    _Row(READ_RESPONSE_FIRST, "READ Response First", Kind.READ_RESPONSE, (AETH,), _FULL, "b"),
    _Row(READ_RESPONSE_MIDDLE, "READ Response Middle", Kind.READ_RESPONSE, (), _FULL, ""),
    _Row(READ_RESPONSE_LAST, "READ Response Last", Kind.READ_RESPONSE, (AETH,), _SOME, "e"),
    _Row(READ_RESPONSE_ONLY, "READ Response Only", Kind.READ_RESPONSE, (AETH,), _ANY, "be"),
    _Row(ACKNOWLEDGE, "Acknowledge", Kind.ACKNOWLEDGE, (AETH,), _NONE, "be"),
    _Row(
        ATOMIC_ACKNOWLEDGE,
        "Atomic Acknowledge",
        Kind.ATOMIC_ACKNOWLEDGE,
        (AETH, ATOMIC_RESULT),
        _NONE,
        "be",
    ),
    _Row(COMPARE_SWAP, "CmpSwap", Kind.ATOMIC, (ATOMIC,), _NONE, "be", ATOMIC_ACKNOWLEDGE),
    _Row(FETCH_ADD, "FetchAdd", Kind.ATOMIC, (ATOMIC,), _NONE, "be", ATOMIC_ACKNOWLEDGE),
    _Row(SEND_LAST_INVALIDATE, "SEND Last Invalidate", Kind.SEND, (INVALIDATE,), _SOME, "e"),
    _Row(SEND_ONLY_INVALIDATE, "SEND Only Invalidate", Kind.SEND, (INVALIDATE,), _ANY, "ber"),
    _Row(FLUSH_REQUEST, "FLUSH", Kind.FLUSH, (FLUSH, RETH), _NONE, "be", READ_RESPONSE_ONLY),
    _Row(ATOMIC_WRITE, "ATOMIC WRITE", Kind.ATOMIC_WRITE, (RETH,), _VALUE, "be", READ_RESPONSE_ONLY),
)
_DATAGRAMS: Final[tuple[_Row, ...]] = (
    _Row(UD_SEND_ONLY, "SEND Only", Kind.SEND, (DETH,), _ANY, "ber"),
    _Row(UD_SEND_ONLY_IMMEDIATE, "SEND Only Immediate", Kind.SEND, (DETH, IMMEDIATE), _ANY, "ber"),
)
_OTHERS: Final[tuple[_Row, ...]] = (_Row(CONGESTION, "CNP", Kind.CONGESTION, (), _RESERVED, "be"),)

_RESPONSES = frozenset((Kind.READ_RESPONSE, Kind.ACKNOWLEDGE, Kind.ATOMIC_ACKNOWLEDGE))


def _opcode(prefix: str, transport: int, row: _Row) -> Opcode:
    code, name, kind, headers, (least, most), marks, response = row
    layout = Struct(">" + "".join(header.format.lstrip(">") for header in headers))
    return Opcode(
        code | transport,
        prefix + name,
        kind,
        headers,
        layout,
        BTH.size + layout.size,
        least,
        most,
        "b" in marks,
        "e" in marks,
        kind not in _RESPONSES,
        "r" in marks,
        response,
    )


#: All defined opcodes.
OPCODES: Final[dict[int, Opcode]] = {
    opcode.code: opcode
    for prefix, transport, rows in (
        ("RC ", 0, _CONNECTED + _RELIABLE),
        ("UC ", UNRELIABLE, _CONNECTED),
        ("UD ", 0, _DATAGRAMS),
        ("", 0, _OTHERS),
    )
    for opcode in (_opcode(prefix, transport, row) for row in rows)
}


def _place(row: Opcode, begins: bool, ends: bool) -> tuple[object, ...]:
    return row.kind, row.code & UNRELIABLE, begins, ends, row.ending if ends else None


_PLACES: Final = {_place(row, row.begins, row.ends): row.code for row in OPCODES.values()}


def _several(row: Opcode) -> tuple[int, int, int]:
    middle = _PLACES[_place(row, False, False)]
    return (
        _PLACES[_place(row, True, False)] if row.begins else middle,
        middle,
        _PLACES[_place(row, False, True)] if row.ends else middle,
    )


#: Opcode of a SEND, a WRITE or a READ response -> the opcodes of its packets if it needs several: first,
#: middle and last.
SEVERAL: Final[dict[int, tuple[int, int, int]]] = {
    row.code: _several(row)
    for row in OPCODES.values()
    if row.kind in (Kind.SEND, Kind.WRITE, Kind.READ_RESPONSE) and DETH not in row.headers
}
