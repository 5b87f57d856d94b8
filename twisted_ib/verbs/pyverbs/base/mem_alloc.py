"""
C's memory functions, for programs that work with addresses; and C{ibv_fork_init}: a process may fork while
memory is registered.  The child shares no registered memory with its parent and can use none of its objects;
it opens a device of its own.

An address that is invalid has the consequences it has in C.  Source: rdma-core 65, C{pyverbs/mem_alloc.pyx},
C{pyverbs/fork.pyx}.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Callable
from mmap import PAGESIZE
from typing import TypeAlias

from twisted_ib.verbs.pyverbs.base.errors import PyverbsRDMAError, PyverbsUserError
from twisted_ib.verbs.pyverbs.enums.device import ibv_fork_status

#: See L{presence}; and L{askBy}.
Presence: TypeAlias = Callable[[int, int, bool], bool]
Sooner: TypeAlias = Callable[[int, int, int, Presence], Presence]
# argtypes and restype on each: ctypes takes int by default and would cut addresses to 32 bits.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]
_libc.free.restype = None
_libc.free.argtypes = [ctypes.c_void_p]
_libc.posix_memalign.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_size_t]
# With Python's lock held: no other thread of Python comes between the question and the access.
_held = ctypes.PyDLL(None, use_errno=True)
_mincore = getattr(_held, "mincore", None)
_madvise = _held.madvise
#: Of madvise(2): the pages of a range are made to be there.
_POPULATE_READ, _POPULATE_WRITE = 22, 23
#: The most bytes whose pages are all asked for.
_POPULATED = 1 << 16
#: Pages of one question.
_ASKED_PAGES = 4096
_asked = ctypes.create_string_buffer(_ASKED_PAGES)
if _mincore is not None:
    _mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    _madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

# Linux' values on x86 and ARM.  The underscore at the end is pyverbs'.
PROT_NONE_ = 0
PROT_READ_ = 1
PROT_WRITE_ = 2
PROT_EXEC_ = 4
MAP_SHARED_ = 0x1
MAP_PRIVATE_ = 0x2
MAP_FIXED_ = 0x10
MAP_ANONYMOUS_ = 0x20
MAP_GROWSDOWN_ = 0x100
MAP_LOCKED_ = 0x2000
MAP_NORESERVE_ = 0x4000
MAP_POPULATE_ = 0x8000
MAP_STACK_ = 0x20000
MAP_HUGETLB_ = 0x40000

_MADV_DONTNEED = 4
_FAILED = ctypes.c_void_p(-1).value
_MAPS = "/proc/self/maps"


def mmap(
    addr: int = 0,
    length: int = 100,
    prot: int = PROT_READ_ | PROT_WRITE_,
    flags: int = MAP_PRIVATE_ | MAP_ANONYMOUS_,
    fd: int = 0,
    offset: int = 0,
) -> int:
    """
    Map memory: C{mmap(2)}.

    @param addr: the wanted address; 0 for any.
    @param prot: bits of C{PROT_*_}.
    @param flags: bits of C{MAP_*_}.
    @param fd: the file, unless the mapping is anonymous.
    @param offset: octets from the beginning of the file, a multiple of the page size.
    @return: the address.
    @raise MemoryError: it failed.
    """
    address: int = _libc.mmap(addr, length, prot, flags, fd, offset)
    # pyverbs raises MemoryError without an errno here, and so do munmap and malloc.
    if address == _FAILED:
        raise MemoryError("Failed to mmap memory")
    return address


def munmap(addr: int, length: int) -> None:
    """
    Unmap memory: C{munmap(2)}.

    @raise MemoryError: it failed.
    """
    if _libc.munmap(addr, length):
        raise MemoryError("Failed to munmap requested memory")


def madvise(addr: int, length: int, flags: int = _MADV_DONTNEED) -> None:
    """
    Advise the kernel about memory: C{madvise(2)}.

    @param flags: one C{MADV_*} of the kernel.
    @raise PyverbsRDMAError: it failed, with C's errno.
    """
    if _libc.madvise(addr, length, flags):
        raise PyverbsRDMAError("Failed to madvise memory", ctypes.get_errno())


def malloc(size: int) -> int:
    """
    @param size: octets.
    @return: the address.
    @raise MemoryError: it failed.
    """
    address: int | None = _libc.malloc(size)
    if not address:
        raise MemoryError("Failed to allocate memory")
    return address


def posix_memalign(size: int, alignment: int = 8) -> int:
    """
    Allocate memory, all zeros.

    @param alignment: a power of two, a multiple of the size of a pointer.
    @return: the address.
    @raise MemoryError: it failed.
    """
    pointer = ctypes.c_void_p()
    code = _libc.posix_memalign(ctypes.byref(pointer), alignment, size)
    if code or not pointer.value:
        raise MemoryError(f"Failed to allocate memory ({os.strerror(code)})")
    # posix_memalign(3) leaves the memory as it is; pyverbs clears it, so that no old data can be sent.
    ctypes.memset(pointer.value, 0, size)
    return pointer.value


def free(ptr: int) -> None:
    """
    Free what L{malloc} or L{posix_memalign} allocated.
    """
    _libc.free(ptr)


def writebe32(addr: int, val: int, offset: int = 0) -> None:
    """
    Write 32 bits in big-endian order.

    @param offset: in units of 32 bits.
    """
    ctypes.memmove(addr + 4 * offset, struct.pack(">I", val & 0xFFFFFFFF), 4)


def writebe64(addr: int, val: int, offset: int = 0) -> None:
    """
    Write 64 bits in big-endian order.

    @param offset: in units of 64 bits.
    """
    ctypes.memmove(addr + 8 * offset, struct.pack(">Q", val & 0xFFFFFFFFFFFFFFFF), 8)


def write(addr: int, data: bytes | str, length: int, offset: int = 0) -> None:
    """
    Write octets.

    @param data: at least C{length} octets; a string becomes UTF-8.
    @param offset: octets from C{addr}.
    @raise PyverbsUserError: C{data} has fewer.
    """
    raw = data.encode() if isinstance(data, str) else bytes(data)
    # pyverbs would copy what lies behind the buffer: the one check that costs nothing here.
    if not 0 <= length <= len(raw):
        raise PyverbsUserError(f"There are not {length} octets to write, but {len(raw)}")
    ctypes.memmove(addr + offset, raw, length)


def read32(addr: int, offset: int = 0) -> int:
    """
    @param offset: in units of 32 bits.
    @return: 32 bits in the machine's byte order.
    """
    value: int = ctypes.c_uint32.from_address(addr + 4 * offset).value
    return value


def read64(addr: int, offset: int = 0) -> int:
    """
    @param offset: in units of 64 bits.
    @return: 64 bits in the machine's byte order.
    """
    value: int = ctypes.c_uint64.from_address(addr + 8 * offset).value
    return value


def read(addr: int, length: int, offset: int = 0) -> bytes:
    """
    @param offset: octets from C{addr}.
    @return: C{length} octets.
    """
    return ctypes.string_at(addr + offset, length)


def processMemory(address: int, length: int, write: bool) -> memoryview:
    """
    @param write: whether it must be writable.
    @return: memory of the process as a buffer; it is not kept alive by that.
    @raise PyverbsRDMAError: it is not mapped, or not with these rights (EFAULT).
    """
    # Linux ib_umem_get pins the pages at registration and returns EFAULT.  Without this check the first
    # access, perhaps a peer's, would be a segmentation fault of the whole process.
    if not _mapped(address, length, write):
        raise PyverbsRDMAError(f"No memory of {length} octets at {address:#x}", errno.EFAULT)
    array = (ctypes.c_char * length).from_address(address)
    return memoryview(array).cast("B")


def presence(address: int, size: int) -> Presence | None:
    """
    @param address: of memory that the program may unmap, or take the rights to, while it is registered.
    @param size: its bytes.
    @return: tells whether so many bytes from an offset on are within, are mapped, and may be read, or written
        if that is asked; of more than L{_POPULATED} bytes the rights to the first and the last of them.
        L{None} where nobody can tell.
    """
    # Linux keeps the pages of a region.  Here an access would be a segmentation fault of the whole process.
    if _mincore is None:
        return None

    def isThere(offset: int, length: int, writes: bool) -> bool:
        if offset < 0 or length < 0 or offset + length > size:
            return False
        start = address + offset
        end, start = start + length, start & -PAGESIZE
        if end - start <= _POPULATED:
            return _isPermitted(start, end, writes)
        if not (_isPermitted(start, start + 1, writes) and _isPermitted(end - 1 & -PAGESIZE, end, writes)):
            return False
        while start < end:
            count = min(end - start, _ASKED_PAGES * PAGESIZE)
            # ENOMEM: a hole (mincore(2)).
            if _mincore(start, count, _asked) and ctypes.get_errno() == errno.ENOMEM:
                return False
            start += count
        return True

    return isThere if _sooner is None else _sooner(address, size, _POPULATED, isThere)


#: See L{askBy}.
_sooner: Sooner | None = None


def askBy(sooner: Sooner | None) -> None:
    """
    Have faster functions asked first from now on, as ctypes takes longer for such a call than the kernel.

    @param sooner: makes one of an address, its bytes, of how many it may be asked, and who is asked about
        more, or where it cannot say that they are there.  L{None} for none.
    """
    global _sooner
    _sooner = sooner


def _isPermitted(start: int, end: int, writes: bool) -> bool:
    # From the beginning of a page.
    if not _madvise(start, end - start, _POPULATE_WRITE if writes else _POPULATE_READ):
        return True
    # EINVAL: not these rights, memory of a device, or a kernel before 5.14, which does not know the advice.
    return ctypes.get_errno() == errno.EINVAL and _mapped(start, end - start, writes)


def _mapped(address: int, length: int, write: bool) -> bool:
    try:
        with open(_MAPS, "rb") as maps:
            lines = maps.readlines()
    # No /proc: then nobody can tell, and the program is believed.
    except OSError:
        return True
    end = address + length
    # The lines are sorted by address; a range may span several mappings, but no hole between them.
    for line in lines:
        bounds, rights, _ = line.split(b" ", 2)
        start, _, stop = bounds.partition(b"-")
        if int(start, 16) <= address < int(stop, 16):
            if rights[:1] != b"r" or (write and rights[1:2] != b"w"):
                return False
            address = int(stop, 16)
        if address >= end:
            return True
    return False


# man ibv_fork_init(3): on hardware, pinned pages must be kept from the child (MADV_DONTFORK), or
# copy-on-write moves the parent's pages away from the DMA address.  Here no page is pinned.
def fork_init() -> None:
    """
    Do nothing: forks need no preparation here.
    """


def is_fork_initialized() -> int:
    """
    @return: C{IBV_FORK_UNNEEDED}.
    """
    return ibv_fork_status.IBV_FORK_UNNEEDED
