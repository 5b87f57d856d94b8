"""
The headers of packets and of the records that carry operations.

Big endian, as on the wire (IBTA vol. 1 9.2, 9.3); the last two are ours and travel only
between processes of one host.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

#: BTH: operation code; solicited event, migration, pad count and version; P_Key; congestion
#: bits and destination queue pair; acknowledge request and PSN.
BTH: Final = Struct(">BBHII")

#: DETH: Q_Key; reserved octet and source queue pair.
DETH: Final = Struct(">II")

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

#: AETH: syndrome and message sequence number.
AETH: Final = Struct(">I")

#: FETH: which memory to flush, and how far.
FLUSH: Final = Struct(">I")

#: Invariant CRC: the one field that is little endian.
ICRC: Final = Struct("<I")

#: Bits of queue pair numbers, and of packet and message sequence numbers.
QPN_MASK: Final = 0xFFFFFF
PSN_MASK: Final = 0xFFFFFF

# AETH syndromes (IBTA vol. 1 9.7.5.2)
#: Of an acknowledgement: without a number of credits.
ACK: Final = 0x1F
#: The low five bits are the timer code.
RNR: Final = 0x20
NAK_SEQUENCE: Final = 0x60
NAK_INVALID_REQUEST: Final = 0x61
NAK_REMOTE_ACCESS: Final = 0x62
NAK_REMOTE_OPERATIONAL: Final = 0x63

#: Where a record's payload is: number of an offered segment, bytes, offset in the segment.
REFERENCE: Final = Struct(">IIQ")

#: What an atomic operation works on, as programs have it in memory: in the host's order.
ATOMIC_VALUE: Final = Struct("=Q")
