"""
The extended headers that records of one-sided operations and messages carry.

Big endian, as on the wire (IBTA vol. 1 9.3); the last is ours and travels only between
processes of one host.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

#: RETH: virtual address, R_Key, DMA length.
RETH: Final = Struct(">QII")

#: ImmDt: four bytes for the peer's completion.
IMMEDIATE: Final = Struct(">I")

#: IETH: the R_Key to invalidate.
INVALIDATE: Final = Struct(">I")

#: AtomicETH: virtual address, R_Key, what to put there or to add, what to compare with.
ATOMIC: Final = Struct(">QIQQ")

#: AtomicAckETH: what was there before.
ATOMIC_RESULT: Final = Struct(">Q")

#: Where a record's payload is: number of an offered segment, bytes, offset in the segment.
REFERENCE: Final = Struct(">IIQ")

#: What an atomic operation works on, as programs have it in memory: in the host's order.
ATOMIC_VALUE: Final = Struct("=Q")
