"""
Wake-ups of the C{ib} reactor by threads and signals.

Twisted writes a byte into a pipe whose other end is a reader: a write, an event, a call in a log context and
a read for each call from a thread.  An event counter that is edge-triggered in epoll needs no reader, as
paths' doorbells need none: each write is one event, and nothing is called for it.
"""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

from twisted.python.failure import Failure

if TYPE_CHECKING:
    from twisted.internet._signals import _UnixWaker as _Base
else:
    from twisted.internet.posixbase import _Waker as _Base


class Waker(_Base):
    """
    Twisted's waker, with an event counter where the system has one.

    @ivar bell: The event counter's descriptor, or -1.
    @ivar hung: Whether epoll watches it, so that it is used.
    """

    def __init__(self) -> None:
        _Base.__init__(self)
        self.bell = -1
        self.registered = False
        if hasattr(os, "eventfd"):
            self.bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def register(self, poller: select.epoll) -> None:
        """
        Use the event counter from now on.

        @param poller: The reactor's epoll object.
        """
        if self.bell >= 0 and not self.registered:
            # epoll(7): edge-triggered, a write is an event although earlier ones were not read.  Nobody reads
            # the counter, which is full after 2^64 - 2 writes.
            poller.register(self.bell, select.EPOLLIN | select.EPOLLET)
            self.registered = True

    def wakeUp(self) -> None:
        if self.registered:
            # Not os.write(), whose name may stand for that of blocking sockets.
            os.eventfd_write(self.bell, 1)
        else:
            _Base.wakeUp(self)

    def connectionLost(self, reason: Failure) -> None:
        bell, self.bell = self.bell, -1
        if bell >= 0:
            self.registered = False
            os.close(bell)
        _Base.connectionLost(self, reason)
