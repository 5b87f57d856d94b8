"""
How a thread sleeps: on descriptors, until a deadline, or until another thread wakes it; and the full memory
barrier of those who tell another process that they do, L{fence}.

x86-64 may move a load before an earlier store to another address, and Python has no fence.  Taking a lock is
an atomic read-modify-write, which is a full barrier (Intel SDM vol. 3, "Memory Ordering").
"""

from __future__ import annotations

import errno
import os
import select
from contextlib import suppress
from math import ceil
from threading import Lock
from typing import TYPE_CHECKING, Final, Protocol

from twisted_ib.drive.process import monotonic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from socket import socket

#: Errors of epoll_ctl(2) where a program has closed a descriptor, or has another file of its number; one that
#: can be watched is ENOENT where it is to be watched no more.
GONE: Final = (errno.EBADF, errno.EPERM)
#: Seconds of a sleep at most: C{poll(2)} and C{epoll_wait(2)} count milliseconds in an C{int}.  Who has more
#: time sleeps again.
MOST_SECONDS: Final = float(1 << 20)

_lock: Final = Lock()
#: To write L{fence} out where each call counts.
acquire: Final[Callable[[bool], bool]] = _lock.acquire
release: Final[Callable[[], None]] = _lock.release


def fence() -> None:
    """
    Make every store of this thread visible before its later loads.
    """
    # A signal's handler may run between the two calls, or another thread: it finds the lock taken, and so
    # does everybody if that raises, or forks.  Nobody waits for it, and one that is taken is no barrier.
    if acquire(False):
        release()
    else:
        barrier()


def barrier() -> None:
    """
    Do the same by a lock that nobody else has, which takes longer.
    """
    Lock().acquire()


def bounded(seconds: float | None) -> float:
    """
    @param seconds: L{None} for any time.
    @return: as many, but none below zero, and no more than a sleep has.
    """
    return MOST_SECONDS if seconds is None or seconds > MOST_SECONDS else max(seconds, 0.0)


def milliseconds(seconds: float | None) -> int:
    """
    @return: L{bounded}, for C{poll(2)}.  Rounded up: a deadline that has not quite passed would make the
        caller spin.
    """
    return ceil(bounded(seconds) * 1000)


def awaitReady(fd: int | socket, seconds: float | None, events: int = select.POLLIN) -> int:
    """
    Wait for one descriptor.

    @param fd: it, or its socket.
    @param seconds: as L{bounded} has them; 0 only looks.
    @param events: of C{poll(2)}.
    @return: those that it has, with POLLHUP, POLLERR and POLLNVAL; 0 if the time is over.
    """
    # poll(2), not select(2): descriptors beyond FD_SETSIZE.
    poller = select.poll()
    poller.register(fd, events)
    found = poller.poll(milliseconds(seconds))
    return found[0][1] if found else 0


def watch(poller: select.epoll, fd: int, events: int) -> bool:
    """
    Have an epoll object watch a descriptor, unless a program has closed it, or has a file of that number that
    cannot be watched.

    @return: whether it does.
    @raise OSError: no memory is free for it, or it is watched already.
    """
    try:
        poller.register(fd, events)
    except OSError as error:
        if error.errno not in GONE:
            raise
        return False
    return True


def unwatch(poller: select.epoll, fd: int) -> None:
    """
    Have an epoll object watch a descriptor no more.

    Either may be closed: who closes what it has watches nothing, and a program may close descriptors that it
    knows nothing of, as a daemon does that begins.
    """
    with suppress(ValueError, OSError):
        poller.unregister(fd)


class Wakes(Protocol):
    """
    Wakes a sleeper, in whatever way.
    """

    def wake(self) -> None:
        """
        Have the sleep end, or the next one.
        """


class Sleeper:
    """
    Wakes one thread: an event counter.

    @ivar fd: readable after L{wake}.
    """

    __slots__ = ("fd",)

    def __init__(self) -> None:
        """
        @raise OSError: no descriptor is free.
        """
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def wake(self) -> None:
        """
        Wake the thread.
        """
        os.eventfd_write(self.fd, 1)

    def close(self) -> None:
        """
        Close the descriptor.
        """
        os.close(self.fd)


class LockSleeper(Sleeper):
    """
    Wakes one thread that sleeps on nothing else: by a lock, which takes no descriptor, and lets no other
    thread have the interpreter.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self.fd = -1
        self._lock = Lock()
        self._lock.acquire()

    def wake(self) -> None:
        # Woken already, it is free.
        with suppress(RuntimeError):
            self._lock.release()

    def sleep(self, seconds: float) -> None:
        """
        Sleep so long at most.
        """
        self._lock.acquire(True, seconds)

    def close(self) -> None:
        """
        Do nothing: it has no descriptor.
        """


class Sleep:
    """
    How a thread may sleep, which does so by L{sleep} or by itself.

    @ivar seconds: so long.
    @ivar sleeper: wakes it.
    @ivar fds: the descriptors that end its sleep.
    """

    __slots__ = ("fds", "seconds", "sleeper")

    def __init__(self, seconds: float, sleeper: Sleeper, fds: Iterable[int]) -> None:
        self.seconds = seconds
        self.sleeper = sleeper
        self.fds = [sleeper.fd, *fds]

    def sleep(self, end: float | None = None, others: Iterable[tuple[int, int]] = ()) -> set[int]:
        """
        Sleep.

        @param end: C{time.monotonic()} at which it ends; L{None} for never.
        @param others: more descriptors that end it, each with the events of C{poll(2)} that do.
        @return: those that did, of all.
        """
        seconds = self.seconds if end is None else min(self.seconds, end - monotonic())
        if isinstance(self.sleeper, LockSleeper):
            self.sleeper.sleep(bounded(seconds))
            return set()
        # poll(2), not select(2): descriptors beyond FD_SETSIZE.
        poller = select.poll()
        for fd, events in others:
            poller.register(fd, events)
        for fd in self.fds:
            poller.register(fd, select.POLLIN)
        found = {fd for fd, _ in poller.poll(milliseconds(seconds))}
        if self.sleeper.fd in found:
            # A child that a signal's handler has forked may have read it first.
            with suppress(BlockingIOError):
                os.eventfd_read(self.sleeper.fd)
        return found
