"""
Which C{lo0} devices can meet: those of one thread, or those that are told to.
"""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakValueDictionary


class Neighbours:
    """
    The C{lo0} devices that can reach each other.

    Nothing here is locked: where they belong to several threads, whoever uses any of them
    holds one lock.

    @ivar services: who listens, by service and address.
    @ivar inodes: for those of them that have one, the TCP socket beside.
    @ivar fabrics: all of them, by GUID.
    @ivar groups: the GUIDs of the members, by multicast GID.
    """

    def __init__(self) -> None:
        self.services: dict[tuple[int, str], Any] = {}
        self.inodes: dict[tuple[int, str], int] = {}
        self.fabrics: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self.groups: dict[int, tuple[int, ...]] = {}

    def join(self, group: int, guid: int) -> None:
        """
        Make an HCA a member of a group.
        """
        members = self.groups.get(group, ())
        if guid not in members:
            self.groups[group] = tuple(sorted((*members, guid)))

    def leave(self, group: int, guid: int) -> None:
        """
        It is a member no more; harmless if it is none.
        """
        members = tuple(member for member in self.groups.get(group, ()) if member != guid)
        if members:
            self.groups[group] = members
        else:
            self.groups.pop(group, None)

    def forget(self, fabric: Any) -> None:
        """
        Nobody finds an HCA any more.
        """
        guid: int = fabric.guid
        for key in [key for key, other in self.services.items() if other is fabric]:
            del self.services[key]
            self.inodes.pop(key, None)
        for group in [group for group, members in self.groups.items() if guid in members]:
            self.leave(group, guid)
        if self.fabrics.get(guid) is fabric:
            del self.fabrics[guid]


class _OfThread(threading.local):
    """
    Those of this thread.
    """

    def __init__(self) -> None:
        self.neighbours = Neighbours()


_ofThread = _OfThread()


def ofThisThread() -> Neighbours:
    """
    @return: The C{lo0} devices of the calling thread.
    """
    return _ofThread.neighbours


__all__ = ["Neighbours", "ofThisThread"]
