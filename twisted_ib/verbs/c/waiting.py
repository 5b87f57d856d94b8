"""
Waiting for events as programs do: until there is one, or not at all.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TypeVar

from twisted_ib.hca.host.libc import isNonBlocking
from twisted_ib.verbs.c.errors import HandleError

_Event = TypeVar("_Event")
#: A thread that waits for an event can be cancelled so often.
WAIT_SECONDS = 0.1


def nextEvent(fd: int, take: Callable[[float], _Event | None]) -> _Event | None:
    """
    Wait for an event, for a moment only, so that the thread can be cancelled.

    @param fd: the descriptor of the events; a program that has made it non-blocking wants EAGAIN in place of
        waiting.
    @param take: called with the seconds to wait.
    @return: the event; L{None} if there is none yet.
    @raise HandleError: there is none, and the program does not want to wait (EAGAIN).
    """
    isWaiting = not isNonBlocking(fd)
    event = take(WAIT_SECONDS if isWaiting else 0)
    if event is None and not isWaiting:
        raise HandleError("There is no event", errno.EAGAIN)
    return event


__all__ = ["WAIT_SECONDS", "nextEvent"]
