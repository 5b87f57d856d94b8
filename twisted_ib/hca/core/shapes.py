"""
What the codes of records say of them, in the words of queue pairs.

The facts are those of L{twisted_ib.hca.wire.opcodes}.
"""

from __future__ import annotations

from struct import Struct

from twisted_ib.hca.wire.headers import RETH
from twisted_ib.hca.wire.opcodes import OPCODES, UNRELIABLE, Kind, Opcode


def _extra(row: Opcode) -> Struct | None:
    """
    The header behind the RETH, if there is one.
    """
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
