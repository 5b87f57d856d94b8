"""
Work requests, and the attributes and capabilities of a queue pair.

Numbers are those of verbs (C{libibverbs/verbs.h}).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.errors import QueuePairError, ResourceLimitError
from twisted_ib.hca.queues.receives import SGE, checkPieces
from twisted_ib.layouts import FrozenRecord, Record
from twisted_ib.records import define, frozen

if TYPE_CHECKING:
    from twisted_ib.hca.memory.memory import MemoryRegion
    from twisted_ib.hca.memory.windows import MemoryWindow

_32_BITS = 1 << 32
_64_BITS = 1 << 64


class SendOpcode(IntEnum):
    """
    The operation of a send request (C{enum ibv_wr_opcode}); which of them a queue pair has is in
    C{twisted_ib.hca.services}.
    """

    RDMA_WRITE = 0
    RDMA_WRITE_WITH_IMM = 1
    SEND = 2
    SEND_WITH_IMM = 3
    RDMA_READ = 4
    ATOMIC_CMP_AND_SWP = 5
    ATOMIC_FETCH_AND_ADD = 6
    LOCAL_INV = 7
    BIND_MW = 8
    SEND_WITH_INV = 9
    TSO = 10
    FLUSH = 14
    ATOMIC_WRITE = 15


class SendFlags(IntFlag):
    """
    Options of a send request (C{enum ibv_send_flags}).
    """

    FENCE = 1
    SIGNALED = 2
    SOLICITED = 4
    INLINE = 8
    IP_CSUM = 16


@frozen(eq=False, repr=False)
class WindowBind(FrozenRecord):
    """
    The parameters of a BIND_MW: see L{Windows.bind<twisted_ib.hca.memory.windows.Windows.bind>}.

    @ivar address: of the window's first byte in the region.
    @ivar length: bytes; 0 unbinds a window of type 1.
    @ivar access: L{Access<twisted_ib.hca.memory.access.Access>} bits to grant.
    @ivar key: the new key of a window of type 2; for type 1 a reserved key
        (L{Windows.reserve<twisted_ib.hca.memory.windows.Windows.reserve>}), or L{None} for a random
        one.
    """

    window: MemoryWindow
    region: MemoryRegion | None
    address: int
    length: int
    access: int
    key: int | None = None


@frozen(eq=False, repr=False)
class Destination(FrozenRecord):
    """
    The destination of a datagram.

    @ivar handle: the address handle.
    @ivar number: the remote queue pair number.
    @ivar key: the remote Q_Key; with the high bit, the sender's own is used (IBTA vol. 1 10.2.5).
    """

    handle: Any
    number: int
    key: int


@define(eq=False, repr=False)
class SendRequest(Record):
    """
    A work request for the send queue (C{struct ibv_send_wr}).

    @ivar id: the program's wr_id.
    @ivar pieces: the payload; for a READ or an atomic, where the result goes.
    @ivar flags: L{SendFlags} bits.
    @ivar immediate: 32 bits for the peer's completion.
    @ivar remoteAddress: in the peer's memory, for WRITE, READ and atomics.
    @ivar remoteKey: the R_Key.
    @ivar compare: the 64 bits a compare-and-swap expects, or a fetch-and-add adds.
    @ivar swap: the 64 bits a compare-and-swap stores.
    @ivar invalidateKey: the key to invalidate: a local one for LOCAL_INV, the peer's for a SEND.
    @ivar bind: of a BIND_MW.
    @ivar inline: the payload itself, in place of C{pieces}.
    @ivar destination: of a datagram.
    """

    id: int
    opcode: SendOpcode
    pieces: Sequence[SGE] = ()
    flags: int = int(SendFlags.SIGNALED)
    immediate: int = 0
    remoteAddress: int = 0
    remoteKey: int = 0
    compare: int = 0
    swap: int = 0
    invalidateKey: int = 0
    bind: WindowBind | None = None
    inline: bytes | None = None
    destination: Destination | None = None

    def check(self, most: int) -> None:
        """
        Check what every operation demands; the rest is its class's.

        @param most: allowed elements of the scatter/gather list.
        @raise QueuePairError: a field does not fit.
        """
        checkPieces(self.pieces, most)
        # One test for all fields, as nearly all requests pass; negative numbers have bits up
        # there, too.
        if (self.immediate | self.remoteKey | self.invalidateKey) >> 32 or (
            self.remoteAddress | self.compare | self.swap
        ) >> 64:
            self._checkFields()
        if self.inline is not None and self.pieces:
            raise QueuePairError("a request has inline data or pieces of memory, not both")

    def _checkFields(self) -> None:
        for name, value, end in (
            ("immediate", self.immediate, _32_BITS),
            ("remote address", self.remoteAddress, _64_BITS),
            ("remote key", self.remoteKey, _32_BITS),
            ("compare", self.compare, _64_BITS),
            ("swap", self.swap, _64_BITS),
            ("key to invalidate", self.invalidateKey, _32_BITS),
        ):
            if not 0 <= value < end:
                bits = end.bit_length() - 1
                raise QueuePairError(f"{name} {value:#x} of a send request is no number of {bits} bits")


#: Bytes that an atomic operation works on (IBTA vol. 1 9.4.5).
ATOMIC_BYTES = 8


@frozen(eq=False, repr=False)
class Capabilities(FrozenRecord):
    """
    The sizes of a queue pair's work queues (C{struct ibv_qp_cap}).

    @ivar sends: outstanding send requests.
    @ivar receives: outstanding receive requests.
    @ivar pieces: elements of a send request's scatter/gather list.
    @ivar receivePieces: elements of a receive request's.
    @ivar inline: bytes of inline data.
    """

    sends: int = 128
    receives: int = 128
    pieces: int = 4
    receivePieces: int = 4
    inline: int = limits.INLINE_DATA

    def __attrs_post_init__(self) -> None:
        """
        @raise ResourceLimitError: one of them is too large.
        """
        depth, elements = limits.WORK_QUEUE_DEPTH, limits.SCATTER_GATHER_ELEMENTS
        for name, value, most in (
            ("send requests", self.sends, depth),
            ("receive requests", self.receives, depth),
            ("elements of a list", self.pieces, elements),
            ("elements of a list", self.receivePieces, elements),
            ("bytes of inline data", self.inline, limits.INLINE_DATA),
        ):
            if not 0 <= value <= most:
                raise ResourceLimitError(f"a queue pair has 0 to {most} {name}, not {value}")


@frozen(eq=False, repr=False)
class Attributes(FrozenRecord):
    """
    Attributes of a connected queue pair, as set by L{QueuePair.modify
    <twisted_ib.hca.queues.queuepair.QueuePair.modify>}; queue pairs with equal ones may share them.

    @ivar access: the peer's rights: L{Access<twisted_ib.hca.memory.access.Access>} bits.
    @ivar minRNRTimer: RNR timer code sent to a peer that found no receive (IBTA vol. 1 9.7.5.2.8).
    @ivar reads: outstanding READs and atomics of this side (max_rd_atomic).
    @ivar peerReads: outstanding READs and atomics of the peer (max_dest_rd_atomic).
    @ivar timeout: local ACK timeout code (IBTA vol. 1 9.7.6.1.3).
    @ivar retries: retry_cnt, for a peer that does not answer.
    @ivar rnrRetries: rnr_retry; 7 is infinite.
    @ivar queueKey: the Q_Key that a datagram must have.
    """

    access: int = 0
    minRNRTimer: int = 0
    reads: int = 0
    peerReads: int = 0
    timeout: int = 0
    retries: int = 0
    rnrRetries: int = 0
    queueKey: int = 0
