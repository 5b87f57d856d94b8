"""
Work requests, and what a queue pair is told about them.

Numbers are those of verbs.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, Any

import attrs

from twisted_ib import limits
from twisted_ib.errors import QueuePairError, ResourceLimitError

if TYPE_CHECKING:
    from twisted_ib.hca.memory.memory import MemoryRegion
    from twisted_ib.hca.memory.windows import MemoryWindow

_32_BITS = 1 << 32
_64_BITS = 1 << 64


class SendOpcode(IntEnum):
    """
    What a send request does, as C{enum ibv_wr_opcode}.
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


class SendFlags(IntFlag):
    """
    How a send request is done, as C{enum ibv_send_flags}.
    """

    FENCE = 1
    SIGNALED = 2
    SOLICITED = 4
    INLINE = 8
    IP_CSUM = 16


@attrs.frozen(slots=True)
class SGE:
    """
    A piece of registered memory: an element of a scatter/gather list.

    @ivar address: the name of its first byte.
    @ivar length: its size in bytes.
    @ivar key: the local key of the memory region.
    """

    address: int
    length: int
    key: int


def checkPieces(pieces: Sequence[SGE], most: int) -> None:
    """
    Look at a scatter/gather list.

    @raise QueuePairError: it has more than C{most} elements, or one that cannot be.
    """
    if len(pieces) > most:
        raise QueuePairError(f"a request has at most {most} pieces of memory here, not {len(pieces)}")
    for piece in pieces:
        if not 0 <= piece.length < _32_BITS:
            raise QueuePairError(f"a piece of memory has not {piece.length} bytes")


@attrs.frozen(slots=True)
class WindowBind:
    """
    What a BIND_MW does: see L{Memory.bind<twisted_ib.hca.memory.memory.Memory.bind>}.

    @ivar window: the memory window.
    @ivar region: the memory region that it opens a part of.
    @ivar address: the name of the part's first byte.
    @ivar length: its size in bytes; 0 unbinds a window of type 1.
    @ivar access: the L{Access<twisted_ib.hca.memory.access.Access>} bits that it grants.
    @ivar key: the new key of a window of type 2; for one of type 1 a key that was promised
        (L{Memory.promiseKey<twisted_ib.hca.memory.memory.Memory.promiseKey>}), or L{None} for
        a random one.
    """

    window: MemoryWindow
    region: MemoryRegion | None
    address: int
    length: int
    access: int
    key: int | None = None


@attrs.frozen(slots=True)
class Destination:
    """
    Where a datagram goes.

    @ivar handle: the address handle of the port.
    @ivar number: of the queue pair there.
    @ivar key: its Q_Key; with the high bit, the sender's own is meant (IBTA vol. 1 10.2.5).
    """

    handle: Any
    number: int
    key: int


@attrs.frozen(slots=True)
class SendRequest:
    """
    A work request for the send queue.

    @ivar id: the program's number for it.
    @ivar opcode: what to do.
    @ivar pieces: where the bytes are; for a READ or an atomic, where they go.
    @ivar flags: L{SendFlags} bits.
    @ivar immediate: 32 bits for the peer's completion.
    @ivar remoteAddress: of the peer's memory, for WRITE, READ and atomics.
    @ivar remoteKey: its key.
    @ivar compare: the 64 bits that a compare-and-swap expects, or what a fetch-and-add adds.
    @ivar swap: the 64 bits that a compare-and-swap puts there.
    @ivar invalidateKey: the key that ends, here for LOCAL_INV, there for a SEND.
    @ivar bind: of a BIND_MW.
    @ivar inline: the bytes themselves, in place of C{pieces}.
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

    def check(self, most: int, inline: int = 0) -> None:
        """
        Whether it can be put on the wire.

        @param most: pieces that it may have.
        @param inline: bytes that it may carry itself.
        @raise QueuePairError: a field does not fit.
        """
        checkPieces(self.pieces, most)
        # Negative numbers have bits up there too.
        if (self.immediate | self.remoteKey | self.invalidateKey) >> 32 or (
            self.remoteAddress | self.compare | self.swap
        ) >> 64:
            self._checkFields()
        self._checkKind(inline)

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

    def _checkKind(self, inline: int) -> None:
        """
        The same of what only some kinds of requests have.
        """
        opcode = self.opcode
        if self.inline is not None:
            if opcode not in _WITH_DATA:
                raise QueuePairError(f"a {opcode.name} has no inline data")
            if self.pieces:
                raise QueuePairError("a request has inline data or pieces of memory, not both")
            if len(self.inline) > inline:
                raise QueuePairError(f"a request has at most {inline} bytes inline, not {len(self.inline)}")
        if opcode in _ATOMIC and sum([piece.length for piece in self.pieces]) < ATOMIC_BYTES:
            raise QueuePairError(f"the result of an atomic operation needs {ATOMIC_BYTES} bytes")
        if opcode == SendOpcode.BIND_MW and self.bind is None:
            raise QueuePairError("a BIND_MW without what to bind")


#: What an atomic operation works on.
ATOMIC_BYTES = 8
_ATOMIC = frozenset((SendOpcode.ATOMIC_CMP_AND_SWP, SendOpcode.ATOMIC_FETCH_AND_ADD))
_WITH_DATA = frozenset(
    (
        SendOpcode.SEND,
        SendOpcode.SEND_WITH_IMM,
        SendOpcode.SEND_WITH_INV,
        SendOpcode.RDMA_WRITE,
        SendOpcode.RDMA_WRITE_WITH_IMM,
    )
)


@attrs.frozen(slots=True)
class ReceiveRequest:
    """
    A work request for the receive queue.

    @ivar id: the program's number for it.
    @ivar pieces: where the bytes of a message go.
    """

    id: int
    pieces: Sequence[SGE] = ()


@attrs.define(slots=True)
class Capabilities:
    """
    The sizes of a queue pair's work queues.

    @ivar sends: send requests at a time.
    @ivar receives: receive requests at a time.
    @ivar pieces: elements of a send request's scatter/gather list.
    @ivar receivePieces: the same of a receive request.
    @ivar inline: bytes that a send request may carry itself.
    """

    sends: int = 128
    receives: int = 128
    pieces: int = 4
    receivePieces: int = 4
    inline: int = limits.INLINE_DATA

    def check(self) -> None:
        """
        @raise ResourceLimitError: one of them is more than there can be.
        """
        for name, value, most in (
            ("send requests", self.sends, limits.WORK_QUEUE_DEPTH),
            ("receive requests", self.receives, limits.WORK_QUEUE_DEPTH),
            ("elements of a list", self.pieces, limits.SCATTER_GATHER_ELEMENTS),
            ("elements of a list", self.receivePieces, limits.SCATTER_GATHER_ELEMENTS),
            ("bytes of inline data", self.inline, limits.INLINE_DATA),
        ):
            if not 0 <= value <= most:
                raise ResourceLimitError(f"a queue pair has 0 to {most} {name}, not {value}")


@attrs.define(slots=True)
class Attributes:
    """
    What a queue pair was told about its peer and itself.

    @ivar access: what the peer may do: L{Access<twisted_ib.hca.memory.access.Access>} bits.
    @ivar minRNRTimer: the code of how long a peer waits that found no receive.
    @ivar reads: READs and atomics that this side may have on the way.
    @ivar peerReads: READs and atomics that the peer may have on the way.
    @ivar timeout: the code of how long to wait for a peer that is not there.
    @ivar retries: how often to ask such a peer again.
    @ivar rnrRetries: how often to ask a peer again that has no receive; 7 is for ever.
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
