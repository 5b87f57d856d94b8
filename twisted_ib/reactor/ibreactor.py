"""
The C{ib} reactor: epoll, with devices polled between its turns.

Without a device it is C{EPollReactor} (the kqueue or select reactor where there is no epoll).  With one, each
turn processes what the device has received; if that is nothing, adaptive polling decides whether to poll
again (L{twisted_ib.reactor.loop}), and at last the device's event is armed and epoll sleeps.

Install it with C{twistd --reactor=ib} or L{install}.

Twisted wakes a reactor by a byte in a pipe whose other end is a reader: a write, an event, a call in a log
context and a read for each call from a thread.  An event counter that is edge-triggered in epoll needs no
reader, as paths' doorbells need none: each write is one event, and nothing is called for it.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted.python.failure import Failure

from twisted_ib.internet.logcontext import callInContext
from twisted_ib.reactor.base import IBReactorBase
from twisted_ib.reactor.loop import DeviceLoop

if TYPE_CHECKING:
    from twisted.internet._signals import _UnixWaker
    from twisted.internet.epollreactor import EPollReactor as _Base

    from twisted_ib.internet.channel import DeviceChannel
else:
    from twisted.internet.posixbase import _Waker as _UnixWaker

    try:
        from twisted.internet.epollreactor import EPollReactor as _Base
    except ImportError:
        try:
            from twisted.internet.kqreactor import KQueueReactor as _Base
        except ImportError:
            from twisted.internet.selectreactor import SelectReactor as _Base


class Waker(_UnixWaker):
    """
    Twisted's waker, with an event counter where the system has one.

    @ivar bell: The event counter's descriptor, or -1.
    @ivar hung: Whether epoll watches it, so that it is used.
    """

    def __init__(self) -> None:
        _UnixWaker.__init__(self)
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
            _UnixWaker.wakeUp(self)

    def connectionLost(self, reason: Failure) -> None:
        bell, self.bell = self.bell, -1
        if bell >= 0:
            self.registered = False
            os.close(bell)
        _UnixWaker.connectionLost(self, reason)


class IBReactor(IBReactorBase, _Base):
    """
    Twisted's reactor for this system, with devices and the offload protocol switch.
    """

    _poller: Any = None
    _wait = _Base.doIteration

    def __init__(self) -> None:
        super().__init__(DeviceLoop())

    def addChannel(self, channel: DeviceChannel) -> None:
        super().addChannel(channel)
        if self._poller is not None:
            self.waker.register(self._poller)

    def _wakerFactory(self) -> Waker:
        return Waker()

    def mainLoop(self) -> None:
        """
        Run, in a log context that names the object being called; SIGHUP reloads the rules.
        """
        with self._serving():
            callInContext(super().mainLoop)

    doIteration = IBReactorBase.doPoll

    def setTurn(self, turn: Callable[[float | None], object] | None) -> None:
        if turn is None:
            vars(self).pop("doIteration", None)
        else:
            vars(self)["doIteration"] = turn


def install() -> None:
    """
    Install an L{IBReactor} as the reactor.
    """
    from twisted.internet.main import installReactor

    installReactor(IBReactor())
