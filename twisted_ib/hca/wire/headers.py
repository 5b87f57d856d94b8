"""
Layouts of the transport headers, big endian as on the wire (IBTA vol. 1 9.2, 9.3).

The last two are the project's own and travel only between processes of one host.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


#: BTH (IBTA vol. 1 9.2): opcode; SE, MigReq, PadCnt and TVer; P_Key; FECN, BECN and DestQP; AckReq and PSN.
BTH: Final[Packed[tuple[int, int, int, int, int]]] = Struct(">BBHII")

#: DETH: Q_Key; reserved octet and source QPN.
DETH: Final[Packed[tuple[int, int]]] = Struct(">II")

#: RETH: virtual address, R_Key, DMA length.
RETH: Final[Packed[tuple[int, int, int]]] = Struct(">QII")

#: ImmDt: four bytes that are delivered in the peer's completion.
IMMEDIATE: Final[Packed[tuple[int]]] = Struct(">I")

#: IETH: the R_Key to invalidate.
INVALIDATE: Final[Packed[tuple[int]]] = Struct(">I")

#: AtomicETH: virtual address, R_Key, swap-or-add operand, compare operand. Linux ib_pack.h has the same
#: order.
ATOMIC: Final[Packed[tuple[int, int, int, int]]] = Struct(">QIQQ")

#: AtomicAckETH: the original value.
ATOMIC_RESULT: Final[Packed[tuple[int]]] = Struct(">Q")

#: AETH: syndrome and message sequence number (MSN).
AETH: Final[Packed[tuple[int]]] = Struct(">I")

#: FETH: selectivity level and placement type (Linux rxe_hdr.h struct rxe_feth).
FLUSH: Final[Packed[tuple[int]]] = Struct(">I")

#: ICRC: the one little-endian field (IBTA vol. 1 7.8.1).
ICRC: Final[Packed[tuple[int]]] = Struct("<I")

#: Octets of a management datagram (L{twisted_ib.hca.wire.mad.mad}), and the well-known Q_Key of queue pair 1
#: (Linux ib_mad.h IB_QP1_QKEY).  Here: who only passes them on does not import their classes.
MAD_BYTES: Final = 256
QUEUE_KEY: Final = 0x80010000

# Queue pair numbers, packet and message sequence numbers have 24 bits.
QPN_MASK: Final = 0xFFFFFF
PSN_MASK: Final = 0xFFFFFF

# AETH syndromes (IBTA vol. 1 9.7.5.2)
#: ACK with credit count code 31, "no credits": as Linux rxe_resp.c, which does no end-to-end flow control.
ACK: Final = 0x1F
#: RNR NAK (IBTA vol. 1 9.7.5.2.8): the low five bits are the timer code.
RNR: Final = 0x20
NAK_SEQUENCE: Final = 0x60
NAK_INVALID_REQUEST: Final = 0x61
NAK_REMOTE_ACCESS: Final = 0x62
NAK_REMOTE_OPERATIONAL: Final = 0x63

#: Reference of a record to its payload: number of a shared segment, bytes, offset in it.
REFERENCE: Final[Packed[tuple[int, int, int]]] = Struct(">IIQ")

#: An atomic operand in memory: in host order there, big endian on the wire (Linux rxe_mr.c
#: rxe_mr_do_atomic_op).
ATOMIC_VALUE: Final[Packed[tuple[int]]] = Struct("=Q")
