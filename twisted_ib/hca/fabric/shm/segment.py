"""
Memory that one process writes and another only reads: a ring, or a registered memory region offered to a
peer.

The writer makes a memory file, maps it and then seals it: its size is fixed for ever and nobody can map it
writable again.  The reader trusts nothing: it checks the seals, then the size, before it maps.  Otherwise a
peer could truncate the file and kill the reader by SIGBUS.

A ring publishes through C{segment.map[a:b] = x} or C{segment.cells[i] = x} only, so that a test can count
the stores.
"""

from __future__ import annotations

import mmap
import os
import stat
import sys
import weakref
from typing import Any

from twisted_ib.drive.process import Descriptor, forEach, life
from twisted_ib.errors import SegmentError
from twisted_ib.hca.host import libc

#: memfd_create(2), fcntl(2): neither the size nor the seals can change, and no later mapping is writable.
SEALS = libc.F_SEAL_SHRINK | libc.F_SEAL_GROW | libc.F_SEAL_FUTURE_WRITE | libc.F_SEAL_SEAL


class Segment(Descriptor):
    """
    One mapped memory file.

    @ivar map: the bytes.
    @ivar cells: the same as aligned unsigned 8-byte integers.
    @ivar fd: the memory file, -1 once closed.
    @ivar size: in bytes.
    @ivar writable: whether this process made it.
    """

    __slots__ = ("__weakref__", "_inherited", "cells", "map", "size", "writable")

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
            # mmap.mmap keeps a duplicate descriptor otherwise, which would count against RLIMIT_NOFILE.
            options["trackfd"] = False
        self.map: mmap.mmap = self.mapType(fd, size, **options)
        # fork(2) would share the ring with the child, whose writes the peer could not tell from ours
        # (madvise(2), MADV_DONTFORK).
        self.map.madvise(libc.MADV_DONTFORK)
        self.cells: Any = self.makeCells()
        super().__init__(fd)
        self.size = size
        self.writable = writable
        self._inherited = False
        _segments.add(self)

    @classmethod
    def create(cls, size: int, seal: int = SEALS) -> Segment:
        """
        Make zeroed memory that only this process can write.

        @param size: in bytes, at least 8.
        @param seal: fewer than L{SEALS} only to test L{attach}.
        @raise OSError: no memory or no descriptor is free.
        """
        if size < 8:
            raise ValueError(f"a segment of {size} bytes has no cell")
        fd = libc.memfdCreate("twisted_ib")
        try:
            os.ftruncate(fd, size)
            segment = cls(fd, size, True)
            # fcntl(2): F_SEAL_FUTURE_WRITE spares existing writable mappings, so the seals come after the
            # mapping.
            libc.addSeals(fd, seal)
        except BaseException:
            os.close(fd)
            raise
        return segment

    @classmethod
    def attach(cls, fd: int, size: int) -> Segment:
        """
        Map a peer's memory for reading.

        @param fd: stays the caller's to close if this raises.
        @param size: the size that it must have.
        @raise SegmentError: it is not sealed memory of this size.
        """
        check(fd, size)
        try:
            return cls(fd, size, False)
        except (OSError, ValueError) as error:
            raise SegmentError(f"a peer's memory cannot be mapped: {error}") from error

    def makeCells(self) -> Any:
        """
        @return: The view for L{cells}; a partial last cell is left out.
        """
        whole = len(self.map) & -8
        return memoryview(self.map)[:whole].cast("Q")

    #: The mapping stays.
    closeDescriptor = Descriptor.close

    def close(self) -> None:
        """
        Unmap and close.  Views held elsewhere keep the mapping until they are released.  Harmless when
        repeated, and in a forked child.
        """
        self.closeDescriptor()
        if self._inherited:
            return
        try:
            self.cells.release()
        # A consumer holds a view of this view.
        except BufferError:
            return
        try:
            self.map.close()
        # A consumer holds a view of the map.
        except BufferError:
            return

    def inherited(self) -> None:
        """
        Mark the segment as inherited by a forked child: it is not mapped here and is never unmapped.
        """
        self._inherited = True
        # MADV_DONTFORK left no mapping at this address.  Were Python to free the mmap object, munmap(2)
        # would hit whatever the kernel has mapped there since.
        libc.immortal(self.map)
        self.closeDescriptor()


def check(fd: int, size: int) -> None:
    """
    Check that C{fd} is a memory file that can be mapped without risk.

    @raise SegmentError: it is not.
    """
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise SegmentError("a peer offered something that is not memory")
        # Before the size: with F_SEAL_SHRINK and F_SEAL_GROW set it cannot change between this check and
        # mmap.
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
        # memfd_create(2), MFD_HUGETLB: the pool of huge pages may be empty, and reading a missing page is a
        # SIGBUS.
        raise SegmentError(f"a peer offered memory in pages of {pageSize} bytes")


_segments: weakref.WeakSet[Segment] = weakref.WeakSet()
life.atFork(__name__, inChild=forEach(_segments, lambda segment: segment.inherited()))
