"""
Locks and counters in memory that processes share, which survive that their users are killed.

A lock is a robust mutex (pthread_mutexattr_setrobust(3)): the kernel gives it to the next when the process of
its owner ends, which is told so.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Callable
from multiprocessing.reduction import DupFd, register
from typing import Any, Final

from twisted_ib import limits
from twisted_ib.drive.process import monotonic, time
from twisted_ib.hca.host import libc
from twisted_ib.queues import futex

#: More than any C library's mutex has (glibc, musl: 40).
_MUTEX: Final = 64
_SHARED: Final = 1
_ROBUST: Final = 1
#: Cells of a page, in units of eight bytes.
_CELLS: Final = 64

_slow = ctypes.CDLL(None)
# Without letting go of the GIL: for calls that never wait.
_quick = ctypes.PyDLL(None)
for _each in (_slow, _quick):
    for _name in ("trylock", "unlock", "consistent"):
        getattr(_each, f"pthread_mutex_{_name}").argtypes = [ctypes.c_void_p]


def _checked(result: int, function: object, arguments: tuple[object, ...]) -> None:
    if result:
        raise OSError(result, os.strerror(result))


for _name in ("mutexattr_init", "mutexattr_setpshared", "mutexattr_setrobust", "mutex_init"):
    getattr(_slow, f"pthread_{_name}").errcheck = _checked
_slow.pthread_mutex_timedlock.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
_try = _quick.pthread_mutex_trylock
_unlock = _quick.pthread_mutex_unlock
_consistent = _quick.pthread_mutex_consistent
_timed = _slow.pthread_mutex_timedlock


class SharedPage:
    """
    A page with locks and counters, which processes inherit or are sent.

    @ivar cells: its counters.
    """

    def __init__(self, fd: int = -1) -> None:
        """
        @param fd: a page that another process has made; else a new one is.
        @raise OSError: the C library has no locks of several processes, or none that outlive their owner.
        """
        isNew = fd < 0
        if isNew:
            fd = libc.memfdCreate("twisted_ib")
            os.ftruncate(fd, mmap.PAGESIZE)
            libc.addSeals(fd, libc.F_SEAL_SHRINK | libc.F_SEAL_GROW | libc.F_SEAL_SEAL)
        self._fd = fd
        # Not closed by hand: a thread may sleep in it.  It goes with the last that uses it.
        self._map = mmap.mmap(fd, mmap.PAGESIZE)
        self.cells = memoryview(self._map)[: 8 * _CELLS].cast("Q")
        self._mutexes = futex.addressOf(self.cells, 0) + 8 * _CELLS
        if isNew:
            self._prepare()

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # At the end of the interpreter modules have nothing more.
        close(self._fd)

    def _prepare(self) -> None:
        attributes = ctypes.create_string_buffer(_MUTEX)
        _slow.pthread_mutexattr_init(attributes)
        _slow.pthread_mutexattr_setpshared(attributes, _SHARED)
        _slow.pthread_mutexattr_setrobust(attributes, _ROBUST)
        for number in range((mmap.PAGESIZE - 8 * _CELLS) // _MUTEX):
            _slow.pthread_mutex_init(ctypes.c_void_p(self.mutex(number)), attributes)
        _slow.pthread_mutexattr_destroy(attributes)

    def mutex(self, number: int) -> int:
        """
        @return: Where a mutex is.
        """
        return self._mutexes + number * _MUTEX

    def reduced(self) -> tuple[Any, ...]:
        """
        @return: The function and arguments of which C{pickle} makes this page in another process.
        """
        return _rebuilt, (DupFd(self._fd),)


def _rebuilt(fd: Any) -> SharedPage:
    return SharedPage(fd.detach())


def _reduced(page: SharedPage) -> tuple[Any, ...]:
    return page.reduced()


register(SharedPage, _reduced)


class RobustLock:
    """
    A lock as C{multiprocessing.Lock} is, but that the next gets it when its owner is killed.
    """

    __slots__ = ("_address", "_died", "_page")

    def __init__(self, page: SharedPage, number: int, died: Callable[[], object] | None = None) -> None:
        """
        @param page: where it is.
        @param number: which lock of the page.
        @param died: called with the lock held if its last owner was killed.
        """
        self._page = page
        self._address = page.mutex(number)
        self._died = died

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """
        @param timeout: in seconds; None is for ever.
        @return: Whether the lock is held now.
        """
        try:
            return self._acquire(block, timeout)
        except BaseException:
            # A signal's handler that raises may do so between the system call and its return.
            self.abandon()
            raise

    def _acquire(self, block: bool, timeout: float | None) -> bool:
        result: int = _try(self._address)
        if result == 0:
            return True
        end = None if timeout is None else monotonic() + max(0.0, timeout)
        while (result == errno.EBUSY and block) or result == errno.ETIMEDOUT:
            left = limits.QUEUE_LOOK_SECONDS
            if end is not None:
                left = min(left, end - monotonic())
                if left <= 0:
                    return False
            # Not for ever: handlers of signals run between two calls.
            until = futex.Timespec.of(time() + left)
            result = _timed(self._address, ctypes.addressof(until))
        if result == errno.EOWNERDEAD:
            _consistent(self._address)
            if self._died is not None:
                self._died()
        elif result == errno.EBUSY:
            return False
        elif result:
            raise OSError(result, os.strerror(result))
        return True

    def abandon(self) -> None:
        """
        Let go of it if this thread has it: for what a signal's handler may end anywhere.
        """
        result: int = _unlock(self._address)
        if result and result != errno.EPERM:
            raise OSError(result, os.strerror(result))

    def release(self) -> None:
        """
        Let go of it.
        """
        result: int = _unlock(self._address)
        if result:
            raise OSError(result, os.strerror(result))

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()
