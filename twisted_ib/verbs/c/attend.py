"""
The thread that always attends: a C program that sleeps in C{read(2)} must still answer its peers.  And the
end of the process.
"""

from __future__ import annotations

import signal
from threading import get_ident

from twisted_ib.verbs.core.attendant import attendance
from twisted_ib.verbs.core.hub import END_SECONDS, hub

_begun = False
#: The thread that ends the process.
_ending: int | None = None


def begin() -> None:
    """
    Start the thread, once a process; it ends with the process.

    @raise OSError: no descriptor is free.
    """
    global _begun
    # The thread's users are counted with this lock held: identifiers are users, too.
    with hub:
        if _begun:
            return
        # A new thread has its creator's mask.  Signals of the program are for the program's threads: one that
        # reads them by signalfd(2) would miss those that come to this thread.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            attendance.begin()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _begun = True


def end() -> None:
    """
    Send what waits, tell the peers, and close everything: the process ends without Python's own end.
    """
    global _ending
    _ending = get_ident()
    # A thread that was stopped may have the lock: a process must end.
    if hub.lock.acquire(timeout=END_SECONDS):
        hub.lock.release()
        hub.end()


def isEnding() -> bool:
    """
    @return: whether another thread ends the process.
    """
    return _ending is not None and _ending != get_ident()


__all__ = ["begin", "end", "isEnding"]
