"""
Ports and connections among the readers of a reactor.

A reactor watches one descriptor for all that use a device.  What Twisted's users ask a reactor for,
though, is who reads: a TCP transport is among C{getReaders()} while it reads and not while it is
paused, and C{removeAll()} gives it to whoever closes everything.  So that streams over a device are
not told from TCP, both show the users of a device in place of the device.  The C{ib} reactor has
methods for it; another reactor's two methods are L{Readers}' while a device is in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_METHODS = ("getReaders", "removeAll")


def readingUsers(channels: Iterable[Any]) -> list[Any]:
    """
    @param channels: Devices in a reactor.
    @return: Their ports and connections that read.
    """
    return [user for channel in channels for user in channel.users if getattr(user, "reading", False)]


def takeUsers(channels: Iterable[Any]) -> list[Any]:
    """
    Stop what reads.

    @param channels: Devices in a reactor.
    @return: Their ports and connections that have read, and the attempts to connect, which over TCP
        are writers until they have ended.
    """
    taken = []
    for channel in channels:
        for user in list(channel.users):
            if hasattr(user, "failIfNotConnected"):
                taken.append(user)
            elif getattr(user, "reading", False):
                user.stopReading()
                taken.append(user)
    return taken


class Readers:
    """
    What stands in for two methods of a reactor.

    @ivar reactor: The reactor.
    @ivar channels: The devices in it.
    """

    def __init__(self, reactor: Any) -> None:
        """
        Stand in for nothing yet.

        @param reactor: The reactor.
        """
        self.reactor = reactor
        self.channels: list[Any] = []
        self._before: dict[str, Any] = {}

    def add(self, channel: Any) -> None:
        """
        Have the reactor watch a device.

        @param channel: The device in the reactor.
        """
        reactor = self.reactor
        if not self.channels:
            self._standAside()  # Somebody may have put back what was here before.
            own = vars(reactor)
            self._before = {name: own[name] for name in _METHODS if name in own}
            self._getReaders, self._removeAll = reactor.getReaders, reactor.removeAll
            own.update((name, getattr(self, name)) for name in _METHODS)
        self.channels.append(channel)
        reactor.addReader(channel)

    def remove(self, channel: Any) -> None:
        """
        Have it watch the device no more; with the last one its methods are its own again.

        @param channel: The device in the reactor.
        """
        self.reactor.removeReader(channel)
        self.channels.remove(channel)
        if not self.channels:
            self._standAside()

    def _standAside(self) -> None:
        """
        Let the reactor have its own methods, except where somebody else has replaced them.
        """
        own = vars(self.reactor)
        for name in _METHODS:
            if own.get(name) == getattr(self, name):
                del own[name]
                if name in self._before:
                    own[name] = self._before[name]

    def getReaders(self) -> list[Any]:
        """
        @return: The readers, and of each device the ports and connections that read.
        """
        readers = [reader for reader in self._getReaders() if reader not in self.channels]
        return readers + readingUsers(self.channels)

    def removeAll(self) -> list[Any]:
        """
        Remove everything but what is the reactor's own.  The devices stay: they go with their users.

        @return: What was removed; closing it is the caller's.
        """
        # Where Twisted keeps what C{removeAll} leaves alone: a reactor that is being taken apart cannot
        # be given a reader again.
        internal = getattr(self.reactor, "_internalReaders", None)
        if isinstance(internal, set):
            internal.update(self.channels)
            try:
                removed = self._removeAll()
            finally:
                internal.difference_update(self.channels)
        else:
            removed = [one for one in self._removeAll() if one not in self.channels]
            for channel in self.channels:
                self.reactor.addReader(channel)
        return removed + takeUsers(self.channels)


def readersOf(reactor: Any) -> Readers:
    """
    @param reactor: Any reactor but one that polls devices.
    @return: What stands in for its methods, or what will.
    """
    for name in _METHODS:
        found = getattr(vars(reactor).get(name), "__self__", None)
        if isinstance(found, Readers):
            return found
    return Readers(reactor)


__all__ = ["Readers", "readersOf", "readingUsers", "takeUsers"]
