"""
Waiting for events as programs do: until there is one, or not at all.

The thread sleeps in C, on the descriptors that L{nextEvent} says, and the handler is called again after that.
A signal ends the sleep as it ends C{read(2)}: with EINTR, if its handler has no SA_RESTART.
"""

from __future__ import annotations

import errno
import select
import threading
from collections.abc import Callable
from typing import TypeVar

from _twisted_ib_verbs import ffi, lib

from twisted_ib.hca.host.libc import isNonBlocking
from twisted_ib.verbs.c import attend
from twisted_ib.verbs.c.errors import HandleError
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.core.pipes import WakeupPipe

_Event = TypeVar("_Event")
#: A thread looks again so often: at a channel, too, that was destroyed just before it fell asleep.
WAIT_SECONDS = 0.5


class _Thread(threading.local):
    """
    What a thread sleeps on.

    @ivar fds: the descriptors, which its C{struct twisted_ib_sleep} points to.
    @ivar sleeper: wakes it; L{None} while it does not sleep.
    """

    fds: object = None
    sleeper: WakeupPipe | None = None


_thread = _Thread()


def getUp() -> None:
    """
    The thread sleeps no more.
    """
    sleeper, _thread.sleeper = _thread.sleeper, None
    if sleeper is not None:
        hub.getUp(sleeper)


def nextEvent(fd: int, take: Callable[[float], _Event | None]) -> _Event | None:
    """
    Take an event, or prepare the sleep until there is one.

    @param fd: the descriptor of the events; a program that has made it non-blocking wants EAGAIN in place of
        waiting.
    @param take: called with the seconds to wait, 0.
    @return: the event; L{None} if there is none yet: the handler is to return
        L{AGAIN<twisted_ib.verbs.c.functions.AGAIN>}.
    @raise HandleError: there is none, and the program does not want to wait (EAGAIN); or a signal has come
        (EINTR).
    """
    sleep = lib.twisted_ib_own_sleep()
    isInterrupted = sleep.interrupted
    sleep.interrupted = sleep.count = sleep.milliseconds = 0
    getUp()
    while not attend.isEnding():
        if isNonBlocking(fd):
            if (event := take(0)) is None:
                raise HandleError("There is no event", errno.EAGAIN)
            return event
        # Not by a drive, after which those who sleep on the doorbells must arm them again.
        if _isReadable(fd) and (event := take(0)) is not None:
            return event
        if isInterrupted:
            raise HandleError("A signal has come", errno.EINTR)
        seconds, _thread.sleeper, fds = hub.lieDown()
        if seconds:
            _prepare(min(seconds, WAIT_SECONDS), [fd, *fds])
            return None
    # Another thread ends the process, and this one hears nothing of that.
    rest()
    return None


def rest() -> None:
    """
    Prepare a sleep that only time ends.
    """
    _prepare(WAIT_SECONDS, [])


def awaitEvent(fd: int, take: Callable[[float], _Event | None]) -> _Event:
    """
    Wait for an event in Python, within a call that has more to do: no signal ends that.

    @raise HandleError: there is none, and the program does not want to wait (EAGAIN).
    """
    isWaiting = not isNonBlocking(fd)
    while (event := take(WAIT_SECONDS if isWaiting else 0)) is None:
        if not isWaiting:
            raise HandleError("There is no event", errno.EAGAIN)
    return event


def _isReadable(fd: int) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(0))


def _prepare(seconds: float, fds: list[int]) -> None:
    sleep = lib.twisted_ib_own_sleep()
    _thread.fds = sleep.fds = ffi.new("int[]", fds)
    # Rounded up: a deadline that has not quite passed would make it spin.
    sleep.count, sleep.milliseconds = len(fds), int(seconds * 1000) + 1


__all__ = ["awaitEvent", "getUp", "nextEvent", "rest"]
