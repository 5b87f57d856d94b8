"""
Threads of this package's own in the program's process.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from threading import Thread


def begin(target: Callable[..., None], *arguments: object, name: str) -> Thread:
    """
    Start a daemon thread that takes no signals.  Those of the process are for the program's threads: a
    program may read them by signalfd(2) or sigwait(3), with all of its threads blocking them, and in one of
    ours that did not they would end the process.

    @raise RuntimeError: there can be no thread.
    @raise MemoryError: likewise.
    """
    thread = Thread(target=target, args=arguments, name=name, daemon=True)
    # A new thread has its creator's mask.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return thread
