"""
Registries of C{lo0} devices that can reach each other: one for each thread, or one that is passed in.
"""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakValueDictionary


class Neighbours:
    """
    The C{lo0} devices that can reach each other.

    Not locked: if they belong to several threads, every user of any of them must hold one common lock.

    @ivar services: listening fabrics, by service id and address.
    @ivar inodes: inodes of the TCP sockets that belong to such services.
    @ivar fabrics: all fabrics, by GUID.
    @ivar groups: member GUIDs, by multicast GID.
    """

    def __init__(self) -> None:
        self.services: dict[tuple[int, str], Any] = {}
        self.inodes: dict[tuple[int, str], int] = {}
        # Weak: a device that was dropped without close() must not stay reachable.
        self.fabrics: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self.groups: dict[int, tuple[int, ...]] = {}

    def join(self, group: int, guid: int) -> None:
        """
        Make an HCA a member of a multicast group.
        """
        members = self.groups.get(group, ())
        if guid not in members:
            # A new tuple: IFabric.members promises the same object while nothing has changed, and callers
            # compare by identity.
            self.groups[group] = tuple(sorted((*members, guid)))

    def leave(self, group: int, guid: int) -> None:
        """
        End a membership; harmless if there is none.
        """
        members = tuple(member for member in self.groups.get(group, ()) if member != guid)
        if members:
            self.groups[group] = members
        else:
            self.groups.pop(group, None)

    def forget(self, fabric: Any) -> None:
        """
        Remove an HCA with its services and memberships.
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
    def __init__(self) -> None:
        self.neighbours = Neighbours()


_ofThread = _OfThread()


def ofThisThread() -> Neighbours:
    """
    @return: The registry of the calling thread.
    """
    return _ofThread.neighbours


__all__ = ["Neighbours", "ofThisThread"]
