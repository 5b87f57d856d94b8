"""
The lock of verbs when the process ends.
"""

from __future__ import annotations

import sys
from threading import RLock


class EndingLock:
    """
    A lock in whose place it comes when the interpreter is about to end.

    Then the interpreter lets no other thread run any more, wherever it stopped.  Objects are still destroyed,
    and to close what they have takes the lock, which would wait for such a thread for ever.
    """

    def __init__(self, lock: RLock | EndingLock) -> None:
        self._lock = lock
        # A module's names are gone by then.
        self._spare = RLock()
        self._isFinalizing = sys.is_finalizing

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """
        Take it, if need be from a thread that runs no more.

        @param timeout: how long to wait, in seconds; -1 as long as it takes.
        @return: whether it was taken.
        """
        if self._isFinalizing():
            if not self._lock.acquire(blocking=False):
                self._lock = self._spare
                self._lock.acquire()
            return True
        return self._lock.acquire(blocking, timeout)

    def release(self) -> None:
        """
        Release it.
        """
        self._lock.release()
