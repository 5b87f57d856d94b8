"""
Bytes that have arrived for a socket and were not received, and the buffers of programs.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def octetsOf(buffer: ReadableBuffer, isWritten: bool = False) -> memoryview:
    """
    Return the octets of a buffer, which is refused as the standard library refuses it, before any is taken.

    @param isWritten: Whether it is written to.
    """
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise BufferError("memoryview: underlying buffer is not C-contiguous")
    if isWritten and view.readonly:
        raise TypeError(f"a buffer that can be written to is needed, not {type(buffer).__name__}")
    return view.cast("B")


class Inbox:
    """
    A stream's bytes, in the pieces in which they came.

    @ivar pieces: The pieces; whoever appends one counts its bytes.
    @ivar size: Their bytes, but those of the first piece before C{start}.
    """

    def __init__(self) -> None:
        self.pieces: deque[bytes] = deque()
        self.size = self.start = 0

    def take(self, size: int) -> bytes:
        """
        Remove and return the first bytes: all there are, and no more than C{size}.
        """
        pieces, start = self.pieces, self.start
        data = pieces[0]
        if start or len(data) > size:
            stop = start + size
            if stop < len(data):
                self.start = stop
                self.size -= size
                return data[start:stop]
            data = data[start:]
            self.start = 0
        pieces.popleft()
        if pieces and len(data) < size:
            taken, left = [data], size - len(data)
            while pieces and len(pieces[0]) <= left:
                piece = pieces.popleft()
                taken.append(piece)
                left -= len(piece)
            if pieces and left:
                # As tcp(7): all there is, and so as many octets as MSG_PEEK has shown.
                taken.append(pieces[0][:left])
                self.start = left
            data = b"".join(taken)
        self.size -= len(data)
        return data

    def giveBack(self, data: bytes) -> None:
        """
        Have bytes that were taken be the first again.
        """
        pieces, start = self.pieces, self.start
        if start:
            # Of the first piece some are still taken.
            pieces[0], self.start = data + pieces[0][start:], 0
        else:
            pieces.appendleft(data)
        self.size += len(data)

    def peek(self, size: int) -> bytes:
        """
        Return the same, and leave it.
        """
        return b"".join(self.pieces)[self.start : self.start + size]

    def clear(self) -> None:
        """
        Drop everything.
        """
        self.pieces.clear()
        self.size = self.start = 0
