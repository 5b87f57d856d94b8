"""
Queues of what a stream has to send.

L{SendBuffer} has bytes that go as Data.  Its pieces are not joined before they are sent: a large one is sent
as slices of itself, a few small ones as a list, each copied once, into the medium.  L{PendingSend} is
registered memory, L{Urgent} an urgent byte; they wait in the same order.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from twisted.internet.defer import Deferred

from twisted_ib import limits
from twisted_ib.hca.memory.memory import MemoryRegion
from twisted_ib.internet.region import RDMARegion

#: With more pieces than this one join is cheaper than a copy of each.
_JOIN: Final = 16
#: The shortest slice worth splitting a piece for at the end of a message.
_SMALL: Final = 4096

Payload = bytes | memoryview | list[bytes | memoryview]


class SendBuffer:
    """
    A queue of bytes objects.

    @ivar pieces: The queue; append with L{append} only.
    @ivar size: Bytes queued.
    @ivar limit: C{size} and the stream's C{room} together, where that is not negative.
    """

    __slots__ = ("_offset", "limit", "pieces", "size")

    def __init__(self) -> None:
        self.pieces: deque[bytes] = deque()
        self.size = self.limit = 0
        self._offset = 0

    def append(self, data: bytes) -> None:
        """
        Queue C{data}, which must not be empty.
        """
        self.pieces.append(data)
        self.size += len(data)

    def clear(self) -> None:
        """
        Drop everything.
        """
        self.pieces.clear()
        self.size = self._offset = 0

    def takeAll(self) -> bytes:
        """
        Remove and return everything.
        """
        pieces = self.pieces
        if self._offset:
            pieces[0] = pieces[0][self._offset :]
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self.clear()
        return data

    def take(self, most: int = limits.INLINE_MESSAGE) -> tuple[Payload, int]:
        """
        Remove the next message's bytes.

        @param most: Upper bound.
        @return: The bytes (or a list of them) and their number.
        """
        pieces = self.pieces
        if self.size <= most and not self._offset:
            n = self.size
            self.size = 0
            if len(pieces) == 1:
                return pieces.popleft(), n
            payload: Payload = list(pieces) if len(pieces) <= _JOIN else b"".join(pieces)
            pieces.clear()
            return payload, n
        # One copy of all costs less than a step for each.
        if len(pieces) > _JOIN and self.size <= 2 * most:
            self.append(self.takeAll())
        first = pieces[0]
        if len(first) - self._offset >= most:
            return self._slice(first, most), most
        # Several pieces per message: one Send costs more than the copy of a small piece.
        return self._gather(most)

    def _slice(self, piece: bytes, n: int) -> bytes | memoryview:
        offset = self._offset
        end = offset + n
        self.size -= n
        if end < len(piece):
            self._offset = end
        else:
            self.pieces.popleft()
            self._offset = 0
            if not offset:
                return piece
        # A view, not a copy: the piece is immutable, and the medium copies it once.
        return memoryview(piece)[offset:end]

    def _gather(self, most: int) -> tuple[Payload, int]:
        pieces = self.pieces
        taken: list[bytes | memoryview] = []
        n = start = 0
        if self._offset:
            n = start = len(pieces[0]) - self._offset
            taken.append(self._slice(pieces[0], n))
        while pieces:
            end = n + len(pieces[0])
            if end > most:
                break
            taken.append(pieces.popleft())
            n = end
        self.size -= n - start
        # Splitting a piece adds a fragment to this message and to the next: not for a few bytes, nor where it
        # fits into the next one.
        if most - n >= _SMALL and pieces and len(pieces[0]) > most:
            taken.append(self._slice(pieces[0], most - n))
            n = most
        if len(taken) == 1:
            return taken[0], n
        if len(taken) > _JOIN:
            return b"".join(taken), n
        return taken, n


class Urgent:
    """
    An urgent byte in the queue.
    """

    __slots__ = ("byte",)

    def __init__(self, byte: bytes) -> None:
        self.byte = byte


class PendingSend:
    """
    Memory to be sent by zero copy, or being sent.

    @ivar region: The application's registered region, or L{None} for bytes that it wrote.
    @ivar memory: The memory region; it belongs to this item alone if C{region} is L{None}.
    @ivar view: The bytes to send.
    @ivar start: Their offset in C{memory}.
    @ivar at: Bytes of C{view} sent or being sent.
    @ivar moving: WRITEs in flight.
    @ivar offered: Whether a SrcAvail for it is outstanding.
    @ivar exposed: The registration that the peer may read meanwhile, or L{None}.
    @ivar plain: Whether it goes as Data after all.
    @ivar deferred: Fires when the application may use the memory again.
    """

    __slots__ = (
        "at",
        "deferred",
        "exposed",
        "memory",
        "moving",
        "offered",
        "plain",
        "region",
        "start",
        "view",
    )

    def __init__(
        self, region: RDMARegion | None, memory: MemoryRegion | None, start: int, view: memoryview
    ) -> None:
        self.region = region
        self.memory = memory
        self.start = start
        self.view = view
        self.at = self.moving = 0
        self.offered = self.plain = False
        self.exposed: MemoryRegion | None = None
        self.deferred: Deferred[None] | None = None

    @property
    def left(self) -> int:
        """
        Bytes not sent.
        """
        return len(self.view) - self.at

    def cancelled(self, deferred: Deferred[None]) -> None:
        """
        Forget a cancelled Deferred; the data is still sent.
        """
        # The bytes have their place in the stream: leaving them out would corrupt it for the peer.
        self.deferred = None
