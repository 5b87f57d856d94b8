"""
Descriptors and timers of the host of a subnet, for a reactor or for a thread that has none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _nothing() -> None:
    pass


class Descriptor:
    """
    A descriptor for a reactor's C{addReader} and C{addWriter}: see
    L{IReadWriteDescriptor<twisted.internet.interfaces.IReadWriteDescriptor>}.
    """

    def __init__(self, fd: int, read: Callable[[], None], write: Callable[[], None] = _nothing) -> None:
        """
        @param fd: the descriptor, which stays the caller's.
        @param read: called when it is readable.
        @param write: called when it is writable.
        """
        self._fd = fd
        self.doRead = read
        self.doWrite = write

    def fileno(self) -> int:
        return self._fd

    def logPrefix(self) -> str:
        return "subnet"

    def connectionLost(self, reason: object) -> None:
        pass  # The reactor ends; the owner closes the descriptor.


def isPending(timer: Any) -> bool:
    """
    @param timer: from C{callLater}, or L{None}.
    @return: whether it is still to come.
    """
    return timer is not None and bool(timer.active())


def cancel(timer: Any) -> None:
    """
    Cancel a timer if it is pending.

    @param timer: from C{callLater}, or L{None}.
    """
    if isPending(timer):
        timer.cancel()
