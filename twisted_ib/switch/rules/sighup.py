"""
Reloading the configuration of a running reactor on SIGHUP.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twisted.internet.base import ReactorBase


def _hasTerminal() -> bool:
    try:
        with open("/proc/self/stat", "rb") as file:
            # proc(5): after the program's name, which may hold blanks and brackets, come state, ppid, pgrp,
            # session, tty_nr.
            return file.read().rpartition(b")")[2].split()[4] != b"0"
    except (OSError, IndexError):
        return False


def startFolder() -> str | None:
    """
    Return the current folder, or L{None} if it cannot be read (it may have been removed).
    """
    try:
        return os.getcwd()
    except OSError:
        return None


@contextmanager
def reloadingOnHangup(
    reload: Callable[[], object],
    reactor: ReactorBase,
    wanted: bool = True,
    hasFile: Callable[[], bool] = lambda: True,
) -> Iterator[None]:
    """
    Reload a configuration at each SIGHUP while a reactor runs.

    A handler that was there before is called as well.  A program without one still ends with its terminal,
    and where it has no file to read again.

    @param reload: Called by the reactor in a turn of its own.
    @param wanted: Whether the reactor may have signal handlers.
    @param hasFile: Returns whether there is something to reload.
    """
    number = getattr(signal, "SIGHUP", None)
    # Python sets signal handlers in the main thread only; other threads get a ValueError.
    if not wanted or number is None or current_thread() is not main_thread():
        yield
        return
    previous = signal.getsignal(number)
    if previous is None:
        # The handler was installed by C code: Python can neither call it nor put it back.
        yield
        return
    # signal(7): SIGHUP also means that the controlling terminal was lost, which ends a program by default.
    # The two are told apart by whether a terminal that was there is gone.
    terminal = _hasTerminal()
    active = True

    def hungUp(signum: int, frame: FrameType | None) -> None:
        if active:
            reads = hasFile()
            if previous is signal.SIG_DFL and (not reads or (terminal and not _hasTerminal())):
                signal.signal(signum, signal.SIG_DFL)
                os.kill(os.getpid(), signum)
                return
            # Not here: a signal handler runs between any two instructions of the application.
            if reads:
                reactor.callFromThread(reload)
        if callable(previous):
            previous(signum, frame)

    signal.signal(number, hungUp)
    try:
        yield
    finally:
        active = False
        # A handler that was set since then stays, and may still call hungUp(), which does nothing any more.
        if signal.getsignal(number) is hungUp:
            signal.signal(number, previous)
