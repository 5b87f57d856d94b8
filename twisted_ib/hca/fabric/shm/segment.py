"""
A piece of memory that one process writes and another only reads.

A ring is such a piece, and so is a registered memory region that a peer may
pull from.  The writer makes a memory file, maps it, and then seals it: its size
is fixed for ever and nobody can map it writable again.  The reader trusts
nothing: it checks the seals and then the size before it maps.  Without that a
peer could truncate the file and kill the reader by SIGBUS.

Everything a ring publishes goes through C{segment.map[a:b] = x} or
C{segment.cells[i] = x}, so that a test can count those stores.
"""

from __future__ import annotations

import mmap
import os
import stat
import sys
import weakref
from typing import Any

from twisted_ib.errors import SegmentError
from twisted_ib.hca.host import libc

SEALS = libc.F_SEAL_SHRINK | libc.F_SEAL_GROW | libc.F_SEAL_FUTURE_WRITE | libc.F_SEAL_SEAL
"""
What is sealed: the size, every later writable mapping, and the seals.
"""


class Segment:
    """
    One mapped memory file.

    @ivar map: the bytes.
    @ivar cells: the same as aligned unsigned 8-byte integers.
    @ivar fd: the memory file, -1 when it is closed.
    @ivar size: its length in bytes.
    @ivar writable: whether it is ours to write.
    """

    __slots__ = ("__weakref__", "_inherited", "cells", "fd", "map", "size", "writable")

    mapType: type[mmap.mmap] = mmap.mmap

    def __init__(self, fd: int, size: int, writable: bool) -> None:
        """
        Map C{fd}; use L{create} or L{attach}.
        """
        if writable:
            protection = mmap.PROT_READ | mmap.PROT_WRITE
        else:
            protection = mmap.PROT_READ
        options: dict[str, Any] = {"flags": mmap.MAP_SHARED, "prot": protection}
        if sys.version_info >= (3, 13):
            options["trackfd"] = False  # else mmap keeps a duplicate descriptor
        self.map: mmap.mmap = self.mapType(fd, size, **options)
        self.map.madvise(libc.MADV_DONTFORK)
        self.cells: Any = self.makeCells()
        self.fd = fd
        self.size = size
        self.writable = writable
        self._inherited = False
        _segments.add(self)

    @classmethod
    def create(cls, size: int, seal: int = SEALS) -> Segment:
        """
        New memory of C{size} bytes, all zero, that only we can write.

        @param seal: the seals; fewer than L{SEALS} are for tests of L{attach}.
        @raise OSError: there is no memory, or no descriptor is free.
        """
        if size < 8:
            raise ValueError(f"a segment of {size} bytes has no cell")
        fd = libc.memfdCreate("twisted_ib")
        try:
            os.ftruncate(fd, size)
            segment = cls(fd, size, True)
            libc.addSeals(fd, seal)  # after mapping: it forbids writable ones
        except BaseException:
            os.close(fd)
            raise
        return segment

    @classmethod
    def attach(cls, fd: int, size: int) -> Segment:
        """
        A peer's memory, to read.

        @param fd: what the peer sent; ours to close if this raises, the
            segment's if not.
        @param size: the size it must have.
        @raise SegmentError: it is not sealed memory of this size.
        """
        check(fd, size)
        try:
            return cls(fd, size, False)
        except (OSError, ValueError) as error:
            raise SegmentError(f"a peer's memory cannot be mapped: {error}") from error

    def makeCells(self) -> Any:
        """
        The view for L{cells}; what does not fill a last cell is left out.
        """
        whole = len(self.map) & -8
        return memoryview(self.map)[:whole].cast("Q")

    def closeDescriptor(self) -> None:
        """
        Give the descriptor back; the mapping stays.
        """
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def close(self) -> None:
        """
        Unmap and close.  Views that others still hold keep the mapping until
        they are gone.  Harmless when repeated, and in a forked child.
        """
        self.closeDescriptor()
        if self._inherited:
            return
        try:
            self.cells.release()
        except BufferError:  # somebody holds a view of this view
            return
        try:
            self.map.close()
        except BufferError:  # somebody holds a view of the map
            return

    def inherited(self) -> None:
        """
        This process is a forked child: nothing is mapped here (MADV_DONTFORK),
        so never unmap, and close the child's copy of the descriptor.
        """
        self._inherited = True
        libc.immortal(self.map)
        self.closeDescriptor()


def check(fd: int, size: int) -> None:
    """
    Whether C{fd} is a memory file that can be mapped without risk.

    The seals are looked at before the size: from then on it cannot change.

    @raise SegmentError: it is not.
    """
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise SegmentError("a peer offered something that is not memory")
        seals = libc.getSeals(fd)
        if seals & SEALS != SEALS:
            raise SegmentError(f"a peer offered memory with seals {seals:#x} where {SEALS:#x} are needed")
        found = os.fstat(fd).st_size
        pageSize = os.fstatvfs(fd).f_bsize
    except OSError as error:
        raise SegmentError(f"a peer offered something that is not memory: {error}") from error
    if found != size:
        raise SegmentError(f"a peer offered {found} bytes of memory where {size} are needed")
    if pageSize != mmap.PAGESIZE:
        # Huge pages run out: a read of a missing one is a SIGBUS.
        raise SegmentError(f"a peer offered memory in pages of {pageSize} bytes")


_segments: weakref.WeakSet[Segment] = weakref.WeakSet()


def _afterForkInChild() -> None:
    """
    Tell every segment that it is in a forked child now.
    """
    for segment in list(_segments):
        segment.inherited()
    _segments.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_afterForkInChild)


__all__ = ["SEALS", "Segment", "check"]
