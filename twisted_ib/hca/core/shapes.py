"""
The codes that messages come in: what each says of its record.
"""

from __future__ import annotations

from struct import Struct

from twisted_ib.hca.operation import (
    SEND_FIRST,
    SEND_LAST,
    SEND_LAST_IMMEDIATE,
    SEND_LAST_INVALIDATE,
    SEND_MIDDLE,
    SEND_ONLY,
    SEND_ONLY_IMMEDIATE,
    SEND_ONLY_INVALIDATE,
    WRITE_FIRST,
    WRITE_LAST,
    WRITE_LAST_IMMEDIATE,
    WRITE_MIDDLE,
    WRITE_ONLY,
    WRITE_ONLY_IMMEDIATE,
)
from twisted_ib.hca.wire.headers import IMMEDIATE, INVALIDATE

#: Code -> (is a WRITE, begins a message, ends it, what follows the RETH).
SHAPES: dict[int, tuple[bool, bool, bool, Struct | None]] = {
    SEND_FIRST: (False, True, False, None),
    SEND_MIDDLE: (False, False, False, None),
    SEND_LAST: (False, False, True, None),
    SEND_LAST_IMMEDIATE: (False, False, True, IMMEDIATE),
    SEND_LAST_INVALIDATE: (False, False, True, INVALIDATE),
    SEND_ONLY: (False, True, True, None),
    SEND_ONLY_IMMEDIATE: (False, True, True, IMMEDIATE),
    SEND_ONLY_INVALIDATE: (False, True, True, INVALIDATE),
    WRITE_FIRST: (True, True, False, None),
    WRITE_MIDDLE: (True, False, False, None),
    WRITE_LAST: (True, False, True, None),
    WRITE_LAST_IMMEDIATE: (True, False, True, IMMEDIATE),
    WRITE_ONLY: (True, True, True, None),
    WRITE_ONLY_IMMEDIATE: (True, True, True, IMMEDIATE),
}
