"""
Bytes that a stream has to send, as the application handed them over.

Pieces are not joined until they leave: a large one goes out in slices of
itself, and few small ones as a list, each copied once, into the medium.

What waits to be sent beside bytes that go as Data.
"""

from __future__ import annotations

from collections import deque

from twisted.internet.defer import Deferred

from twisted_ib import limits
from twisted_ib.hca.memory.memory import MemoryRegion
from twisted_ib.internet.region import RDMARegion

#: From this many pieces on one join is cheaper than a copy of each.
_JOIN = 16
#: A slice shorter than this is not worth a message's last bytes.
_SMALL = 4096

Payload = bytes | memoryview | list[bytes | memoryview]


class SendBuffer:
    """
    A queue of bytes objects.

    @ivar pieces: What waits, in order.  Append with L{append} only.
    @ivar size: Bytes that wait.
    """

    __slots__ = ("_offset", "pieces", "size")

    def __init__(self) -> None:
        self.pieces: deque[bytes] = deque()
        self.size = 0
        self._offset = 0

    def append(self, data: bytes) -> None:
        """
        Queue C{data}, which may not be empty.
        """
        self.pieces.append(data)
        self.size += len(data)

    def clear(self) -> None:
        """
        Forget everything.
        """
        self.pieces.clear()
        self.size = self._offset = 0

    def takeAll(self) -> bytes:
        """
        Take everything.
        """
        pieces = self.pieces
        if self._offset:
            pieces[0] = pieces[0][self._offset :]
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self.clear()
        return data

    def take(self, most: int = limits.INLINE_MESSAGE) -> tuple[Payload, int]:
        """
        Take the next message's bytes.

        @param most: How many at most.
        @return: The bytes (or a list of them) and how many they are.
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
        first = pieces[0]
        if len(first) - self._offset >= most:
            return self._slice(first, most), most
        return self._gather(most)

    def _slice(self, piece: bytes, n: int) -> bytes | memoryview:
        """
        Take C{n} bytes of the first piece, which has that many.
        """
        offset = self._offset
        end = offset + n
        self.size -= n
        if end == len(piece):
            self.pieces.popleft()
            self._offset = 0
        else:
            self._offset = end
        if n == len(piece):
            return piece
        return memoryview(piece)[offset:end]

    def _gather(self, most: int) -> tuple[Payload, int]:
        pieces = self.pieces
        taken: list[bytes | memoryview] = []
        n = 0
        while pieces and n < most:
            piece = pieces[0]
            k = min(len(piece) - self._offset, most - n)
            if n and k < _SMALL and k < len(piece) - self._offset:
                break
            taken.append(self._slice(piece, k))
            n += k
        if len(taken) == 1:
            return taken[0], n
        if len(taken) > _JOIN:
            return b"".join(taken), n
        return taken, n


class Urgent:
    """
    An urgent byte that waits for its turn.

    @ivar byte: It.
    """

    __slots__ = ("byte",)

    def __init__(self, byte: bytes) -> None:
        """
        @param byte: One byte.
        """
        self.byte = byte


class PendingSend:
    """
    Memory that waits to be sent, or is being sent.

    @ivar region: What the application registered, or L{None} for bytes that it wrote.
    @ivar memory: What is registered of it: a region that belongs to this item alone if
        C{region} is L{None}.
    @ivar view: The bytes that it has.
    @ivar start: Where in C{memory} they begin.
    @ivar at: How many of them are sent, or being sent.
    @ivar moving: WRITEs that are not done.
    @ivar offered: Whether it is in an offer.
    @ivar exposed: What the peer may read meanwhile, or L{None}.
    @ivar plain: Whether it goes as Data after all.
    @ivar deferred: Fires when its memory may be used again.
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
        Bytes that are not sent.
        """
        return len(self.view) - self.at

    def cancelled(self, deferred: Deferred[None]) -> None:
        """
        Nobody waits for it any more; it goes all the same.
        """
        self.deferred = None
