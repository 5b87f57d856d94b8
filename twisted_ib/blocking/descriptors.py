"""
The descriptors of sockets over SDP: what each of them carries, and how a duplicate finds it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from twisted_ib.blocking.connection import Connection
    from twisted_ib.blocking.listening import Listening

#: Connections of descriptors that were detached and that no socket has taken; beyond it the oldest is closed.
DETACHED: Final = 1024


class Offloaded:
    """
    The part of a socket that is SDP's.

    @ivar part: The connection or the listeners, which duplicates share; L{None} after the close.
    """

    __slots__ = ("__weakref__", "part")

    def __init__(self, part: Connection | Listening) -> None:
        self.part: Connection | Listening | None = part

    def __del__(self) -> None:
        # Garbage may be collected within the reactor: the next turn closes it.
        part = self.part
        if part is not None and not part.loop.forked:
            part.loop.orphans.append(part)


#: The sockets that have a part over SDP, or attempts to have one, by descriptor.
offloaded: WeakValueDictionary[int, Any] = WeakValueDictionary()
#: The same parts by the inode of the kernel's socket, which duplicates of a descriptor share.
_byInode: WeakValueDictionary[int, Offloaded] = WeakValueDictionary()
_detached: dict[int, Offloaded] = {}


def offload(descriptor: int, part: Connection | Listening) -> Offloaded:
    """
    Return the part of a socket, from now on found by its descriptor.
    """
    made = _byInode[os.fstat(descriptor).st_ino] = Offloaded(part)
    return made


def detached(descriptor: int, what: Offloaded) -> None:
    """
    Keep the part of a descriptor that has no socket for a while.
    """
    if len(_detached) >= DETACHED:
        del _detached[next(iter(_detached))]
    _detached[descriptor] = what


def found(descriptor: int) -> Offloaded | None:
    """
    Return the part of a descriptor that a socket is made of, if it was detached, or is a duplicate (dup(2)).
    """
    if not _byInode:
        return None
    it = _byInode.get(os.fstat(descriptor).st_ino)
    part = None if it is None else it.part
    if it is None or part is None:
        return None
    if _detached.get(descriptor) is it:
        return _detached.pop(descriptor)
    with part.loop:
        part.sockets += 1
    return Offloaded(part)


__all__ = ["Offloaded", "detached", "found", "offload", "offloaded"]
