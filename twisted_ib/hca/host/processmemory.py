"""
The memory of other processes of this host, which this one may read and write as far as the kernel lets it
(ptrace(2)), and addresses of its own for that.

Python has none of these calls.  Importing this module is safe everywhere.
"""

from __future__ import annotations

import errno
import os
import sys
from functools import cache
from typing import TYPE_CHECKING, cast

from twisted_ib.hca.host.libc import ctypes

if TYPE_CHECKING:
    from collections.abc import Callable

    #: Of process_vm_writev(2).
    _Writer = Callable[[int, int, int, int, int, int], int]

#: Bytes of a message that L{OtherProcess} copies with the interpreter's lock held.
_SCRATCH = 64 << 10
#: Of Yama (Linux Documentation/admin-guide/LSM/Yama.rst): who may attach to whom.  There is none without it.
_PTRACE_SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
#: See capabilities(7).
_STATUS = "/proc/self/status"
_CAP_SYS_PTRACE = 19


def readProcess(pid: int, address: int, into: memoryview) -> int:
    """
    Copy from the memory of another process (process_vm_readv(2)); other threads run meanwhile.

    @param pid: one whose memory this process may read, see ptrace(2).
    @param address: where its first byte is there.
    @param into: writable; as many bytes are asked for as it has.
    @return: how many bytes were copied: fewer where the kernel copies no more in one call, or where that
        memory ends.
    @raise OSError: none can be copied, or the process may not be read, or there is no such call here.
    """
    if ctypes is None or sys.platform != "linux":
        raise OSError(38, "no way to call process_vm_readv from this Python")
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "process_vm_readv"):
        raise OSError(errno.ENOSYS, "there is no process_vm_readv here")
    # struct iovec of readv(2).
    vector = ctypes.c_void_p * 2
    here = vector(ctypes.addressof(ctypes.c_char.from_buffer(into)), into.nbytes)
    there, one = vector(address, into.nbytes), ctypes.c_ulong(1)
    call = library.process_vm_readv
    call.restype = ctypes.c_ssize_t
    copied = int(call(pid, here, one, there, one, ctypes.c_ulong(0)))
    if copied < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"process_vm_readv: {os.strerror(code)}")
    return copied


def addressOf(view: object) -> int:
    """
    @param view: a buffer, which stays where it is while somebody has a view of it.
    @return: the address of its first byte.
    @raise OSError: it cannot be asked for from here.
    """
    if ctypes is None:
        raise OSError(errno.ENOSYS, "no way to ask this Python for the address of a buffer")
    # Py_buffer, of 10 words.  ctypes' own from_buffer() takes writable memory only.
    found, simple = (ctypes.c_size_t * 12)(), 0
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), found, simple)
    ctypes.pythonapi.PyBuffer_Release(found)
    return found[0]


class OtherProcess:
    """
    The memory of another process that this one may write to (process_vm_writev(2)).

    @ivar pid: its number.
    """

    __slots__ = ("_call", "_callLong", "_from", "_here", "_scratch", "_scratchAt", "_there", "_to", "pid")

    def __init__(self, pid: int) -> None:
        """
        @raise OSError: see L{isPossible}.
        """
        self.pid = pid
        # struct iovec of readv(2): one here, two there.
        self._here, self._there = (ctypes.c_size_t * 2)(), (ctypes.c_size_t * 4)()
        self._from, self._to = ctypes.addressof(self._here), ctypes.addressof(self._there)
        writers = _writers()
        if writers is None:
            raise OSError(errno.ENOSYS, "there is no process_vm_writev here")
        self._call, self._callLong = writers
        self._scratch = bytearray()
        self._scratchAt = 0

    @staticmethod
    def isPossible() -> bool:
        """
        @return: whether there is such a call here, which Yama does not refuse whatever the process.
        """
        isThere = ctypes is not None and sys.platform == "linux" and _writers() is not None
        return isThere and mayAttach()

    def write(self, address: int, source: int, length: int, tail: int) -> int:
        """
        Copy memory of this process.

        @param address: where the first byte goes there.
        @param source: where it is here.
        @param length: bytes, at least 1.
        @param tail: how many at their end come last, as programs look for them.
        @return: how many were copied, fewer where memory ends; or -1 if none is to be copied ever, as the
            process is gone or must not be written to.
        """
        here, there = self._here, self._there
        here[0], here[1] = source, length
        if tail >= length:
            there[0], there[1], count = address, length, 1
        else:
            first = length - tail
            there[0], there[1], there[2], there[3], count = address, first, address + first, tail, 2
        # Other threads run meanwhile where that is worth their switch.
        call = self._callLong if length > _SCRATCH else self._call
        done = call(self.pid, self._from, 1, self._to, count, 0)
        if done < 0:
            return 0 if ctypes.get_errno() == errno.EFAULT else -1
        return done

    def writeBytes(self, address: int, data: bytes | bytearray, length: int, tail: int) -> int:
        """
        L{write} bytes, at most 64 KiB.
        """
        if not self._scratchAt:
            self._scratch = bytearray(_SCRATCH)
            self._scratchAt = addressOf(self._scratch)
        self._scratch[:length] = data
        return self.write(address, self._scratchAt, length, tail)


def mayAttach() -> bool:
    """
    Each try that Yama refuses is a line in the kernel's log.

    @return: whether this process may read and write the memory of others, as far as Yama says so for all of
        them: with 1 only a try tells, as the other may be a child of this process, or have let it in
        (PR_SET_PTRACER).
    """
    try:
        with open(_PTRACE_SCOPE) as file:
            scope = file.read().strip()
    except OSError:
        return True
    if scope != "2":
        return scope in ("0", "1")
    try:
        with open(_STATUS) as file:
            held = [line.split()[1] for line in file if line.startswith("CapEff:")]
    except OSError:
        return False
    return bool(held) and bool(int(held[0], 16) >> _CAP_SYS_PTRACE & 1)


@cache
def _writers() -> tuple[_Writer, _Writer] | None:
    # process_vm_writev(2) with the interpreter's lock held, and without it.
    found = []
    for library in ctypes.PyDLL(None, use_errno=True), ctypes.CDLL(None, use_errno=True):
        if not hasattr(library, "process_vm_writev"):
            return None
        call = library.process_vm_writev
        number, pointer = ctypes.c_ulong, ctypes.c_void_p
        call.argtypes = [ctypes.c_int, pointer, number, pointer, number, number]
        call.restype = ctypes.c_ssize_t
        found.append(cast("_Writer", call))
    return found[0], found[1]
