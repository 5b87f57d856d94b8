"""
Work requests, and what a queue pair is told about them.

Numbers are those of verbs.  Not here yet, but with their numbers in place: atomics,
memory windows and invalidation, inline data, fences.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, IntFlag

import attrs

from twisted_ib import limits
from twisted_ib.errors import QueuePairError, ResourceLimitError

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

    @raise QueuePairError: it has more than C{most} elements, or one that can not be.
    """
    if len(pieces) > most:
        raise QueuePairError(f"a request has at most {most} pieces of memory here, not {len(pieces)}")
    for piece in pieces:
        if not 0 <= piece.length < _32_BITS:
            raise QueuePairError(f"a piece of memory has not {piece.length} bytes")


@attrs.frozen(slots=True)
class SendRequest:
    """
    A work request for the send queue.

    @ivar id: the program's number for it.
    @ivar opcode: what to do.
    @ivar pieces: where the bytes are; for a READ, where they go.
    @ivar flags: L{SendFlags} bits.
    @ivar immediate: 32 bits for the peer's completion.
    @ivar remoteAddress: of the peer's memory, for WRITE and READ.
    @ivar remoteKey: its key.
    """

    id: int
    opcode: SendOpcode
    pieces: Sequence[SGE] = ()
    flags: int = int(SendFlags.SIGNALED)
    immediate: int = 0
    remoteAddress: int = 0
    remoteKey: int = 0

    def check(self, most: int) -> None:
        """
        Whether it can be put on the wire.

        @param most: pieces that it may have.
        @raise QueuePairError: a field does not fit.
        """
        checkPieces(self.pieces, most)
        for name, value, end in (
            ("immediate", self.immediate, _32_BITS),
            ("remote address", self.remoteAddress, _64_BITS),
            ("remote key", self.remoteKey, _32_BITS),
        ):
            if not 0 <= value < end:
                raise QueuePairError(f"a send request has no {name} {value:#x}")


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
    """

    sends: int = 128
    receives: int = 128
    pieces: int = 4
    receivePieces: int = 4

    def check(self) -> None:
        """
        @raise ResourceLimitError: one of them is more than there can be.
        """
        for name, value, most in (
            ("send requests", self.sends, limits.WORK_QUEUE_DEPTH),
            ("receive requests", self.receives, limits.WORK_QUEUE_DEPTH),
            ("elements of a list", self.pieces, limits.SCATTER_GATHER_ELEMENTS),
            ("elements of a list", self.receivePieces, limits.SCATTER_GATHER_ELEMENTS),
        ):
            if not 0 <= value <= most:
                raise ResourceLimitError(f"a queue pair has 0 to {most} {name}, not {value}")


@attrs.define(slots=True)
class Attributes:
    """
    What a reliable connection was told about its peer and itself.

    @ivar access: what the peer may do: L{Access<twisted_ib.hca.core.memory.Access>} bits.
    @ivar minRNRTimer: the code of how long a peer waits that found no receive.
    @ivar reads: READs that this side may have on the way.
    @ivar peerReads: READs that the peer may have on the way.
    @ivar timeout: the code of how long to wait for a peer that is not there.
    @ivar retries: how often to ask such a peer again.
    @ivar rnrRetries: how often to ask a peer again that has no receive; 7 is for ever.
    """

    access: int = 0
    minRNRTimer: int = 0
    reads: int = 0
    peerReads: int = 0
    timeout: int = 0
    retries: int = 0
    rnrRetries: int = 0
