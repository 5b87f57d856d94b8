"""
Bytes that a stream has to send, as the application handed them over.

Pieces are not joined until they leave: a large one goes out in slices of
itself, and few small ones as a list, each copied once, into the medium.
"""

from __future__ import annotations

from collections import deque

from twisted_ib import limits

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
        """
        Hold nothing.
        """
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
        """
        Take several pieces, the last perhaps in part.
        """
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
