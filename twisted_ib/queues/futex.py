"""
Sleeping in memory that processes share (futex(2)), and a lock there that outlives its owner
(pthread_mutexattr_setrobust(3)).
"""

from __future__ import annotations

import ctypes
from typing import Final

# futex(2): not FUTEX_PRIVATE_FLAG, as it is between processes.
_WAIT: Final = 0
_WAKE: Final = 1
#: syscalls(2), on x86-64; rings are on no other.
_FUTEX: Final = 202
_EVERYBODY: Final = (1 << 31) - 1


class Timespec(ctypes.Structure):
    """
    C{struct timespec}.
    """

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))

    @classmethod
    def of(cls, seconds: float) -> Timespec:
        """
        @return: So many seconds.
        """
        whole = int(seconds)
        return cls(whole, int((seconds - whole) * 1e9))


_library = ctypes.CDLL(None, use_errno=True)
_call = _library.syscall
_call.restype = ctypes.c_long
_call.argtypes = [
    *(ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32),
    *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32),
]


def addressOf(cells: memoryview, cell: int) -> int:
    """
    @param cells: memory in units of eight bytes.
    @return: Where one of them is.
    """
    place = cells[cell : cell + 1].cast("B").cast("b")
    return ctypes.addressof(ctypes.c_char.from_buffer(place))


def wait(cells: memoryview, cell: int, value: int, seconds: float) -> None:
    """
    Sleep until woken, if the cell has this value; also when a signal comes.

    @param seconds: at most.
    """
    until = Timespec.of(seconds)
    _call(_FUTEX, addressOf(cells, cell), _WAIT, value & 0xFFFFFFFF, ctypes.addressof(until), None, 0)


def wake(cells: memoryview, cell: int) -> None:
    """
    Wake those that sleep by the cell.
    """
    _call(_FUTEX, addressOf(cells, cell), _WAKE, _EVERYBODY, None, None, 0)
