"""
The thread that always attends: a C program that sleeps in C{read(2)} must still answer its peers.  And the
end of the process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import get_ident
from typing import Protocol, cast

from twisted_ib.drive.process import life
from twisted_ib.verbs.core.attendant import attendance
from twisted_ib.verbs.core.hub import END_SECONDS, hub


class _MPI(Protocol):
    def Is_initialized(self) -> bool: ...

    def Is_finalized(self) -> bool: ...

    def Finalize(self) -> None: ...


class _Options(Protocol):
    finalize: bool | None


class _MPI4Py(Protocol):
    # Of mpi4py, which is not installed here.
    MPI: _MPI
    rc: _Options


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
        attendance.begin()
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


def forked() -> None:
    """
    In a forked child the thread begins with its first call.
    """
    global _begun
    _begun = False


#: Keeps the program's other threads out of Python.
_cut: Callable[[], object] | None = None


def atLeave(cut: Callable[[], object]) -> None:
    """
    Have the libraries' part called when Python ends, in a program that is Python, before the devices are
    closed.
    """
    global _cut
    _cut = cut


def leave() -> None:
    """
    Python ends, in a program that is Python: no other thread comes any more.
    """
    try:
        _leaveMPI()
    finally:
        if _cut is not None:
            _cut()


def _leaveMPI() -> None:
    # mpi4py has MPI end after Python, when no verb works any more: it ends here, unless the program has told
    # mpi4py not to.
    if "mpi4py.MPI" not in sys.modules:
        return
    package = cast("_MPI4Py", sys.modules["mpi4py"])
    mpi = package.MPI
    if package.rc.finalize is not False and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.Finalize()


def isEnding() -> bool:
    """
    @return: whether another thread ends the process.
    """
    return _ending is not None and _ending != get_ident()


# It runs before the hub's own, which closes the devices.
life.atEnd(__name__, leave)
