"""
The reactor of an event loop of asyncio: it serves devices and makes streams, and never runs itself.

L{twisted_ib.aio.loop} has one as soon as it connects or listens with devices; L{reactorOf} gives one to any
other event loop of asyncio for selectors.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from threading import get_ident
from weakref import WeakSet

from twisted_ib.drive.process import life, members
from twisted_ib.internet.readers import channelsOf
from twisted_ib.reactor.asyncioreactor import IBAsyncioReactor

#: Those with devices to close.
_open: WeakSet[LoopReactor] = WeakSet()


class LoopReactor(IBAsyncioReactor):
    """
    The C{ib-asyncio} reactor for what the event loop needs of it.

    @ivar events: The event loop.
    """

    _installSignalHandlers = True

    def __init__(self, events: asyncio.AbstractEventLoop) -> None:
        """
        @param events: The event loop.
        @raise TypeError: It is not asyncio's for selectors.
        """
        super().__init__(events)
        self.events = events
        # As after startRunning(), which would tell Twisted that all I/O is this thread's; there may be an
        # event loop in each.
        self.running = self._started = True
        self._life = ExitStack()
        self._life.enter_context(self._serving())
        _open.add(self)

    def installWaker(self) -> None:
        """
        Do nothing: threads wake the event loop.
        """

    def inOtherThread(self) -> bool:
        thread = self._asyncioEventloop._thread_id  # type: ignore[attr-defined]
        return thread not in (None, get_ident())

    def close(self) -> None:
        """
        End all connections and close the devices: the event loop closes.
        """
        _open.discard(self)
        self._life.close()
        self.setTurn(None)
        self.fireSystemEvent("shutdown")
        self.closePorts()


def reactorOf(events: asyncio.AbstractEventLoop) -> LoopReactor:
    """
    Return the reactor of an event loop, whoever made that; it closes with the event loop.

    @raise TypeError: It is not asyncio's for selectors.
    """
    found = getattr(events, "reactor", None)
    if isinstance(found, LoopReactor):
        return found
    made, close = LoopReactor(events), events.close

    def closeBoth() -> None:
        # Of one that runs asyncio's own call raises.
        if not events.is_running():
            made.close()
            vars(events).update(close=close, reactor=None)
        close()

    vars(events).update(close=closeBoth, reactor=made)
    return made


def sendWritten() -> None:
    """
    The process is about to end at once, or to become another program: send what transports of this thread
    were given.  asyncio's own have sent it in the call.
    """
    for each in members(_open):
        if not each.inOtherThread():
            for channel in channelsOf(each):
                # In a process that was forked they are.
                if not channel.device.closed:
                    channel.device.flush()


def _closeDropped() -> None:
    # Of event loops that nobody has closed.  Later the collector may close the sockets of a device before it.
    for each in members(_open):
        if not each.events.is_running():
            each.close()


life.atEnd(__name__, _closeDropped)
