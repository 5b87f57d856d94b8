"""
Ports and connections in place of devices among a reactor's readers.

A reactor watches one descriptor for all users of a device.  But programs ask a reactor which transports read:
a TCP transport is in C{getReaders()} while it is not paused, and C{removeAll()} returns it to be closed.  So
both methods show the users of a device instead of the device.  The C{ib} reactor has such methods; another
reactor gets those of L{Readers} while a device is in it.

Besides, whether other threads of a reactor need the CPU while it polls.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from twisted_ib.drive.process import sleep

if TYPE_CHECKING:
    from typing import ClassVar, Protocol

    from twisted.internet.base import ReactorBase
    from twisted.python.failure import Failure

    from twisted_ib.internet.channel import DeviceChannel

    class ChannelReactor(ReactorBase):
        # A reactor that polls has what IReactorCompletionChannels names.
        isDriven: ClassVar[bool]

        def addChannel(self, channel: DeviceChannel) -> None: ...

        def removeChannel(self, channel: DeviceChannel) -> None: ...

        def watchChannel(self, channel: DeviceChannel) -> None: ...

        def unwatchChannel(self, channel: DeviceChannel) -> None: ...

    class ChannelUser(Protocol):
        def connectionLost(self, reason: Failure) -> object: ...

    class ChannelAttempt(ChannelUser, Protocol):
        def failIfNotConnected(self, reason: Exception) -> object: ...

    class ClosingStream(Protocol):
        @property
        def ending(self) -> object: ...

        def reset(self) -> object: ...


_METHODS = ("getReaders", "removeAll")
#: The attribute of a reactor that holds its channels by device name.  A table here would keep the reactor
#: alive.
CHANNELS = "_hcaChannels"
#: Yields the CPU to another process (sched_yield(2)).
yieldCPU: Callable[[], object] = getattr(os, "sched_yield", partial(sleep, 0))


def channelsOf(reactor: ReactorBase) -> list[DeviceChannel]:
    """
    Return the open channels of a reactor.
    """
    return list(getattr(reactor, CHANNELS, {}).values())


def readingUsers(channels: Iterable[DeviceChannel]) -> list[Any]:
    """
    Return the ports and connections that read, of some channels.
    """
    return [user for channel in channels for user in channel.users if getattr(user, "reading", False)]


def takeUsers(channels: Iterable[DeviceChannel]) -> list[Any]:
    """
    Stop the ports and connections of some channels, and return them with the attempts to connect.
    """
    taken = []
    for channel in channels:
        for user in list(channel.users):
            if getattr(user, "reading", False):
                user.stopReading()
                taken.append(user)
        # Over TCP an attempt to connect is a writer until it ends, so removeAll() returns it whether it reads
        # or not.
        taken += channel.attempts
    return taken


def removeAllBut(
    channels: Collection[DeviceChannel], reactor: ReactorBase, removeAll: Callable[[], list[Any]]
) -> list[Any]:
    """
    Call C{removeAll} of a reactor, which leaves some channels alone: callers close what it returns, and they
    would close the devices of all users.

    @return: The objects that it has removed.
    """
    # twisted.internet.posixbase keeps the readers there that removeAll() leaves alone.  Adding a channel
    # again afterwards would fail on a reactor that is being taken apart.
    internal = getattr(reactor, "_internalReaders", None)
    if isinstance(internal, set):
        internal.update(channels)
        try:
            return removeAll()
        finally:
            internal.difference_update(channels)
    removed = [one for one in removeAll() if one not in channels]
    for channel in channels:
        reactor.addReader(channel)
    return removed


class Readers:
    """
    The replacement of two methods of a reactor.

    @ivar channels: The channels in it.
    """

    def __init__(self, reactor: ReactorBase) -> None:
        self.reactor = reactor
        self.channels: list[DeviceChannel] = []
        self._before: dict[str, Any] = {}

    def add(self, channel: DeviceChannel) -> None:
        """
        Have the reactor watch a channel; the first one replaces the methods.
        """
        reactor = self.reactor
        if not self.channels:
            # A program (a test, mostly) may have restored the methods of before.
            self._standAside()
            own = vars(reactor)
            self._before = {name: own[name] for name in _METHODS if name in own}
            self._getReaders, self._removeAll = reactor.getReaders, reactor.removeAll
            own.update((name, getattr(self, name)) for name in _METHODS)
        self.channels.append(channel)
        reactor.addReader(channel)

    def remove(self, channel: DeviceChannel) -> None:
        """
        Stop watching a channel; the last one restores the methods.
        """
        self.reactor.removeReader(channel)
        self.channels.remove(channel)
        if not self.channels:
            self._standAside()

    def _standAside(self) -> None:
        own = vars(self.reactor)
        for name in _METHODS:
            # A method that somebody else has replaced since stays: restoring below it would undo that.
            if own.get(name) == getattr(self, name):
                del own[name]
                if name in self._before:
                    own[name] = self._before[name]

    def getReaders(self) -> list[Any]:
        """
        Return the readers, and of each channel the ports and connections that read.
        """
        readers = [reader for reader in self._getReaders() if reader not in self.channels]
        return readers + readingUsers(self.channels)

    def removeAll(self) -> list[Any]:
        """
        Remove all readers and writers but the reactor's own and the channels, which leave with their users.

        @return: The removed objects, for the caller to close.
        """
        return removeAllBut(self.channels, self.reactor, self._removeAll) + takeUsers(self.channels)


def readersOf(reactor: ReactorBase) -> Readers:
    """
    Return the L{Readers} of a reactor that does not poll devices; a new one if it has none in place.
    """
    for name in _METHODS:
        found = getattr(vars(reactor).get(name), "__self__", None)
        if isinstance(found, Readers):
            return found
    return Readers(reactor)


def callSoon(reactor: ReactorBase, call: Callable[[], object]) -> bool:
    """
    Call something at the end of a reactor's turn or in the next, if that takes no system call.

    @return: Whether it will be called; if not, a descriptor must wake the reactor.
    """
    events = getattr(reactor, "_asyncioEventloop", None)
    if events is not None and not events.is_closed():
        events.call_soon(call)
    elif getattr(reactor, "threadCallQueue", None):
        # The results of threads are taken, or are about to be, and delayed calls follow.
        reactor.callLater(0, call)
    else:
        return False
    return True


def threadsNeedInterpreter(reactor: ReactorBase) -> bool:
    """
    Return whether a call in the reactor's thread pool needs the interpreter lock, which polling keeps, or has
    a result for the reactor.
    """
    pool = getattr(reactor, "threadpool", None)
    return pool is not None and bool(reactor.threadCallQueue or pool.working)


__all__ = [
    "Readers",
    "callSoon",
    "readersOf",
    "readingUsers",
    "removeAllBut",
    "takeUsers",
    "threadsNeedInterpreter",
    "yieldCPU",
]
