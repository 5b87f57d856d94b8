"""
What a program's receives and scatter/gather lists are made of.

They are no records (L{twisted_ib.layouts.Record}), as each message that a program receives has one of both:
compiled, they are objects of C.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from twisted_ib.errors import QueuePairError

_32_BITS: Final = 1 << 32


class SGE:
    """
    An element of a scatter/gather list (C{struct ibv_sge}): a piece of registered memory.

    @ivar address: of its first byte.
    @ivar length: bytes.
    @ivar key: the local key of the memory region.
    """

    __slots__ = ("address", "key", "length")

    def __init__(self, address: int, length: int, key: int) -> None:
        self.address = address
        self.length = length
        self.key = key

    def __repr__(self) -> str:
        return f"SGE(address={self.address!r}, length={self.length!r}, key={self.key!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SGE):
            return NotImplemented
        return (self.address, self.length, self.key) == (other.address, other.length, other.key)


def checkPieces(pieces: Sequence[SGE], most: int) -> None:
    """
    Check a scatter/gather list's lengths.

    @raise QueuePairError: it has more than C{most} elements, or one whose length does not fit 32 bits.
    """
    if len(pieces) > most:
        raise QueuePairError(f"a request has at most {most} pieces of memory here, not {len(pieces)}")
    # Only widths: addresses and keys are checked when the bytes are used, as the region may be
    # gone by then.
    for piece in pieces:
        if not 0 <= piece.length < _32_BITS:
            raise QueuePairError(f"a piece of memory has not {piece.length} bytes")


class ReceiveRequest:
    """
    A work request for the receive queue (C{struct ibv_recv_wr}).

    @ivar id: the program's wr_id.
    @ivar pieces: where a message's bytes go.
    """

    __slots__ = ("id", "pieces")

    def __init__(self, id: int, pieces: Sequence[SGE] = ()) -> None:
        self.id = id
        self.pieces = pieces

    def __repr__(self) -> str:
        return f"ReceiveRequest(id={self.id!r}, pieces={self.pieces!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ReceiveRequest):
            return NotImplemented
        return self.id == other.id and self.pieces == other.pieces
