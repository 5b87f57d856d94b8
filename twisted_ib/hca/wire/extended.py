"""
The extended headers of packets as values: what L{Packet<twisted_ib.hca.wire.packet.Packet>} has
behind its base transport header (IBTA vol. 1 9.3).

Their layouts are in L{twisted_ib.hca.wire.headers}, and the operation code says which of them a
packet has.  Each number is as wide as its place in the layout, bits that are reserved within it
included, so that what was read is written as it was.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from twisted_ib.hca.wire.headers import AETH, ATOMIC, ATOMIC_RESULT, DETH, FLUSH, IMMEDIATE, INVALIDATE, RETH


class DatagramHeader(NamedTuple):
    """
    DETH: from whom a datagram is.

    @ivar queueKey: the Q_Key, 32 bits.
    @ivar source: the sender's queue pair number, below a reserved octet.
    """

    queueKey: int
    source: int


class MemoryHeader(NamedTuple):
    """
    RETH: what memory a WRITE or READ is about.

    @ivar address: 64 bits.
    @ivar key: the R_Key, 32 bits.
    @ivar length: bytes of the whole message, 32 bits.
    """

    address: int
    key: int
    length: int


class AtomicHeader(NamedTuple):
    """
    AtomicETH.

    @ivar address: 64 bits.
    @ivar key: the R_Key, 32 bits.
    @ivar operand: what to put there, or to add; 64 bits.
    @ivar compare: what has to be there; 64 bits.
    """

    address: int
    key: int
    operand: int
    compare: int


class AcknowledgeHeader(NamedTuple):
    """
    AETH.

    @ivar acknowledge: the syndrome above the message sequence number, 8 and 24 bits.
    """

    acknowledge: int


class AtomicResult(NamedTuple):
    """
    AtomicAckETH.

    @ivar original: what was there before, 64 bits.
    """

    original: int


class ImmediateData(NamedTuple):
    """
    ImmDt.

    @ivar immediate: for the receiver's completion, 32 bits.
    """

    immediate: int


class InvalidateHeader(NamedTuple):
    """
    IETH.

    @ivar invalidateKey: the R_Key that ends, 32 bits.
    """

    invalidateKey: int


class FlushHeader(NamedTuple):
    """
    FETH.

    @ivar flush: how much to flush and how far, 2 and 4 bits, below reserved ones.
    """

    flush: int


#: Any of them.
ExtendedHeader = (
    DatagramHeader
    | MemoryHeader
    | AtomicHeader
    | AcknowledgeHeader
    | AtomicResult
    | ImmediateData
    | InvalidateHeader
    | FlushHeader
)

#: By layout.
EXTENDED_HEADERS: Final[dict[Struct, type[ExtendedHeader]]] = {
    DETH: DatagramHeader,
    RETH: MemoryHeader,
    ATOMIC: AtomicHeader,
    AETH: AcknowledgeHeader,
    ATOMIC_RESULT: AtomicResult,
    IMMEDIATE: ImmediateData,
    INVALIDATE: InvalidateHeader,
    FLUSH: FlushHeader,
}
