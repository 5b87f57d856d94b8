"""
Extended transport headers as values (IBTA vol. 1 9.3).

Their layouts are in L{twisted_ib.hca.wire.headers}; the opcode determines which of them a packet has. Each
field is as wide as its slot in the layout, reserved bits included, so that parsing and packing preserve
every octet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from twisted_ib.hca.wire.headers import AETH, ATOMIC, ATOMIC_RESULT, DETH, FLUSH, IMMEDIATE, INVALIDATE, RETH

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


class DatagramHeader(NamedTuple):
    """
    DETH.

    @ivar queueKey: the Q_Key, 32 bits.
    @ivar source: the sender's QPN, below a reserved octet.
    """

    queueKey: int
    source: int


class MemoryHeader(NamedTuple):
    """
    RETH: the memory of a WRITE or READ.

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
    @ivar operand: the value to swap in, or to add; 64 bits.
    @ivar compare: the expected value; 64 bits.
    """

    address: int
    key: int
    operand: int
    compare: int


class AcknowledgeHeader(NamedTuple):
    """
    AETH.

    @ivar acknowledge: the syndrome (8 bits) above the MSN (24 bits).
    """

    acknowledge: int


class AtomicResult(NamedTuple):
    """
    AtomicAckETH.

    @ivar original: the value before the operation, 64 bits.
    """

    original: int


class ImmediateData(NamedTuple):
    """
    ImmDt.

    @ivar immediate: 32 bits.
    """

    immediate: int


class InvalidateHeader(NamedTuple):
    """
    IETH.

    @ivar invalidateKey: the R_Key to invalidate, 32 bits.
    """

    invalidateKey: int


class FlushHeader(NamedTuple):
    """
    FETH.

    @ivar flush: selectivity level and placement type, 2 and 4 bits, below reserved bits.
    """

    flush: int


#: Any extended header.
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

#: Layout -> header class.
EXTENDED_HEADERS: Final[dict[Packed[Any], type[ExtendedHeader]]] = {
    DETH: DatagramHeader,
    RETH: MemoryHeader,
    ATOMIC: AtomicHeader,
    AETH: AcknowledgeHeader,
    ATOMIC_RESULT: AtomicResult,
    IMMEDIATE: ImmediateData,
    INVALIDATE: InvalidateHeader,
    FLUSH: FlushHeader,
}
