"""
Memory for frames that are read: that of frames which nobody uses any more, before new.

New memory of the kernel is filled with zeros page by page as it is first written, which takes longer than a
READ copies it.
"""

from __future__ import annotations

import mmap
from collections import deque
from contextlib import suppress
from importlib.util import find_spec
from typing import Final
from weakref import ref

from distributed.protocol.utils import host_array

# Nothing else says when memory is not used any more.
_hasArrays: Final = find_spec("numpy") is not None
if _hasArrays:
    from numpy import frombuffer

#: Frames from this length on, of which each has pages of its own.
LEAST_BYTES: Final = 1 << 20
#: Bytes of one process that are kept, in all.
KEPT_BYTES: Final = 256 << 20
#: In how many pieces at most.
KEPT_PIECES: Final = 64
#: A piece is used for frames of at least this part of its length.
_PART: Final = 0.75


class Recycled:
    """
    Memory that is used again.

    A piece is given back when the last array or view of it is dropped: in any thread, and by the garbage
    collector within any call here.  So there is no lock, and each change is one call of a C{deque}.
    """

    def __init__(self) -> None:
        self._kept: deque[mmap.mmap] = deque()
        self._used: dict[int, tuple[ref[memoryview], mmap.mmap]] = {}

    @property
    def kept(self) -> int:
        """
        How many bytes are kept that nobody uses.
        """
        return sum(map(len, list(self._kept)))

    def take(self, length: int) -> memoryview:
        """
        @return: So many bytes, whatever is in them.
        @raise MemoryError: There is no memory.
        """
        if not LEAST_BYTES <= length <= KEPT_BYTES or not _hasArrays:
            return host_array(length)
        piece = self._found(length) or self._new(length)
        # Each view and array of it has a reference to this one.
        array = frombuffer(piece, "u1", length)
        use = ref(array, self._giveBack)
        self._used[id(use)] = use, piece
        return memoryview(array)

    def _found(self, length: int) -> mmap.mmap | None:
        for piece in list(self._kept):
            if length <= len(piece) <= length / _PART:
                # Else another thread has taken it.
                with suppress(ValueError):
                    self._kept.remove(piece)
                    return piece
        return None

    @staticmethod
    def _new(length: int) -> mmap.mmap:
        try:
            piece = mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(str(error)) from error
        # As NumPy does; a kernel without such pages refuses.
        with suppress(OSError):
            piece.madvise(mmap.MADV_HUGEPAGE)
        return piece

    def _giveBack(self, use: ref[memoryview]) -> None:
        self._kept.append(self._used.pop(id(use))[1])
        with suppress(IndexError):
            while len(self._kept) > KEPT_PIECES or self.kept > KEPT_BYTES:
                self._kept.popleft()


#: That of this process.
recycled: Final = Recycled()
