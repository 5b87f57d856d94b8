"""
SIGHUP, which makes a running reactor read its configuration again, and where that is.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType
from typing import Any


def _hasTerminal() -> bool:
    """
    @return: whether this process has a controlling terminal, as far as the system tells.
    """
    try:
        with open("/proc/self/stat", "rb") as file:
            # After the program's name, which may hold blanks: state, ppid, pgrp, session, tty_nr.
            return file.read().rpartition(b")")[2].split()[4] != b"0"
    except (OSError, IndexError):
        return False


def startFolder() -> str | None:
    """
    @return: the folder that this process is in, if it can be known.
    """
    try:
        return os.getcwd()
    except OSError:
        return None


@contextmanager
def reloadingOnHangup(reload: Callable[[], object], reactor: Any, wanted: bool = True) -> Iterator[None]:
    """
    Read a configuration again at each SIGHUP while a reactor runs.

    Who had a handler for the signal is called too.  A program that had none still ends with its
    terminal, and only then: the signal that means a lost terminal has its usual effect.

    @param reload: reads it.
    @param reactor: the reactor, which calls that in a turn of its own.
    @param wanted: whether the reactor may have signal handlers.
    """
    number = getattr(signal, "SIGHUP", None)
    if not wanted or number is None or current_thread() is not main_thread():
        yield
        return
    previous = signal.getsignal(number)
    if previous is None:
        # Not from Python: it could neither be called nor put back.
        yield
        return
    terminal = _hasTerminal()
    active = True

    def hungUp(signum: int, frame: FrameType | None) -> None:
        if active:
            if previous is signal.SIG_DFL and terminal and not _hasTerminal():
                signal.signal(signum, signal.SIG_DFL)
                os.kill(os.getpid(), signum)
                return
            reactor.callFromThread(reload)
        if callable(previous):
            previous(signum, frame)

    signal.signal(number, hungUp)
    try:
        yield
    finally:
        active = False
        # Who took the signal since then may call us still.
        if signal.getsignal(number) is hungUp:
            signal.signal(number, previous)


__all__ = ["reloadingOnHangup", "startFolder"]
