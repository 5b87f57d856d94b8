"""
Memory of the process by its addresses, for programs that are written so.

These are C's functions; whoever gives them an address that is none has the consequences of C.
Source: rdma-core 65, C{pyverbs/mem_alloc.pyx}.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from twisted_ib.hca.verbs.base.errors import PyverbsRDMAError, PyverbsUserError

_libc = ctypes.CDLL(None, use_errno=True)
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]
_libc.free.restype = None
_libc.free.argtypes = [ctypes.c_void_p]
_libc.posix_memalign.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_size_t]
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
    Map memory.

    @param addr: where, if the kernel agrees; 0 for anywhere.
    @param length: octets.
    @param prot: bits of C{PROT_*_}.
    @param flags: bits of C{MAP_*_}.
    @param fd: what is mapped, if it is a file.
    @param offset: octets from the file's beginning, a multiple of a page.

    @return: its address.

    @raise MemoryError: it cannot be mapped.
    """
    address: int = _libc.mmap(addr, length, prot, flags, fd, offset)
    if address == _FAILED:
        raise MemoryError("Failed to mmap memory")
    return address


def munmap(addr: int, length: int) -> None:
    """
    Unmap memory.

    @param addr: its address, a multiple of a page.
    @param length: octets.

    @raise MemoryError: it cannot be unmapped.
    """
    if _libc.munmap(addr, length):
        raise MemoryError("Failed to munmap requested memory")


def madvise(addr: int, length: int, flags: int = _MADV_DONTNEED) -> None:
    """
    Tell the kernel what memory is wanted for.

    @param addr: its address, a multiple of a page.
    @param length: octets.
    @param flags: the advice, a C{MADV_*} of the kernel.

    @raise PyverbsRDMAError: it does not take the advice.
    """
    if _libc.madvise(addr, length, flags):
        raise PyverbsRDMAError("Failed to madvise memory", ctypes.get_errno())


def malloc(size: int) -> int:
    """
    Allocate memory.

    @param size: octets.

    @return: its address.

    @raise MemoryError: there is none.
    """
    address: int | None = _libc.malloc(size)
    if not address:
        raise MemoryError("Failed to allocate memory")
    return address


def posix_memalign(size: int, alignment: int = 8) -> int:
    """
    Allocate memory, all zeros.

    @param size: octets.
    @param alignment: a power of two, a multiple of the size of a pointer.

    @return: its address.

    @raise MemoryError: there is none.
    """
    pointer = ctypes.c_void_p()
    code = _libc.posix_memalign(ctypes.byref(pointer), alignment, size)
    if code or not pointer.value:
        raise MemoryError(f"Failed to allocate memory ({os.strerror(code)})")
    ctypes.memset(pointer.value, 0, size)
    return pointer.value


def free(ptr: int) -> None:
    """
    Give back what L{malloc} or L{posix_memalign} gave.

    @param ptr: an address.
    """
    _libc.free(ptr)


def writebe32(addr: int, val: int, offset: int = 0) -> None:
    """
    Write 32 bits, big end first.

    @param addr: an address of this process.
    @param val: what to write.
    @param offset: in units of 32 bits.
    """
    ctypes.memmove(addr + 4 * offset, struct.pack(">I", val & 0xFFFFFFFF), 4)


def writebe64(addr: int, val: int, offset: int = 0) -> None:
    """
    Write 64 bits, big end first.

    @param addr: an address of this process.
    @param val: what to write.
    @param offset: in units of 64 bits.
    """
    ctypes.memmove(addr + 8 * offset, struct.pack(">Q", val & 0xFFFFFFFFFFFFFFFF), 8)


def write(addr: int, data: bytes | str, length: int, offset: int = 0) -> None:
    """
    Write octets.

    @param addr: an address of this process.
    @param data: at least C{length} of them; text becomes UTF-8.
    @param length: octets.
    @param offset: octets from C{addr}.

    @raise PyverbsUserError: C{data} has fewer.
    """
    raw = data.encode() if isinstance(data, str) else bytes(data)
    if not 0 <= length <= len(raw):
        raise PyverbsUserError(f"There are not {length} octets to write, but {len(raw)}")
    ctypes.memmove(addr + offset, raw, length)


def read32(addr: int, offset: int = 0) -> int:
    """
    Read 32 bits as this machine has them.

    @param addr: an address of this process.
    @param offset: in units of 32 bits.

    @return: the number.
    """
    value: int = ctypes.c_uint32.from_address(addr + 4 * offset).value
    return value


def read64(addr: int, offset: int = 0) -> int:
    """
    Read 64 bits as this machine has them.

    @param addr: an address of this process.
    @param offset: in units of 64 bits.

    @return: the number.
    """
    value: int = ctypes.c_uint64.from_address(addr + 8 * offset).value
    return value


def read(addr: int, length: int, offset: int = 0) -> bytes:
    """
    Read octets.

    @param addr: an address of this process.
    @param length: octets.
    @param offset: octets from C{addr}.

    @return: the octets.
    """
    return ctypes.string_at(addr + offset, length)


def processMemory(address: int, length: int, write: bool) -> memoryview:
    """
    Memory of the process as a buffer.

    @param write: whether it must be writable.

    @raise PyverbsRDMAError: it is not mapped, or not so (EFAULT): the kernel would say the same
        when it pins the pages.
    """
    if not _mapped(address, length, write):
        raise PyverbsRDMAError(f"No memory of {length} octets at {address:#x}", errno.EFAULT)
    array = (ctypes.c_char * length).from_address(address)
    return memoryview(array).cast("B")


def _mapped(address: int, length: int, write: bool) -> bool:
    """
    @return: whether the process has these addresses; also if it cannot tell.
    """
    try:
        with open(_MAPS, "rb") as maps:
            lines = maps.readlines()
    except OSError:
        return True
    end = address + length
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
