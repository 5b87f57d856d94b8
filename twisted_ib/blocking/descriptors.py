"""
The descriptors of sockets over SDP: what each of them carries, and how a duplicate finds it.
"""

from __future__ import annotations

import os
import socket
from stat import S_ISSOCK
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet, WeakValueDictionary

if TYPE_CHECKING:
    from twisted_ib.blocking.connection import Connection
    from twisted_ib.blocking.listening import Listening

#: Connections of descriptors that were detached and that no socket has taken; beyond it the oldest is closed.
DETACHED: Final = 1024


class Offloaded:
    """
    The part of a descriptor that is SDP's.

    @ivar descriptor: The descriptor; C{inode} that of the kernel's socket.
    @ivar part: The connection or the listeners, which duplicates share; L{None} after the close.
    @ivar others: Sockets of the same descriptor beside the first (C{socket(fileno=...)}), or L{None}.
    """

    __slots__ = ("__weakref__", "descriptor", "inode", "others", "part")

    def __init__(self, descriptor: int, part: Connection | Listening) -> None:
        self.descriptor = descriptor
        # First: it is given up if the descriptor is no more.
        self.part: Connection | Listening | None = part
        self.others: WeakSet[Any] | None = None
        self.inode = os.fstat(descriptor).st_ino

    def __del__(self) -> None:
        part = self.part
        if part is not None:
            part.loop.abandon(part)


#: The sockets that have a part over SDP, or attempts to have one, by descriptor.
offloaded: WeakValueDictionary[int, Any] = WeakValueDictionary()
#: The parts by descriptor, and by the inode of the kernel's socket, which duplicates of a descriptor share.
_byDescriptor: WeakValueDictionary[int, Offloaded] = WeakValueDictionary()
_byInode: WeakValueDictionary[int, Offloaded] = WeakValueDictionary()
_detached: dict[int, Offloaded] = {}


def offload(skt: Any, part: Connection | Listening) -> Offloaded:
    """
    Return the part of a socket, from now on found by its descriptor.
    """
    descriptor = skt.fileno()
    made = _byDescriptor[descriptor] = Offloaded(descriptor, part)
    _byInode[made.inode] = made
    offloaded[descriptor] = skt
    return made


def partOf(descriptor: Any) -> Connection | Listening | None:
    """
    Return what a descriptor, or the one that it duplicates, carries over SDP, if it does.
    """
    if not _byInode or not isinstance(descriptor, int):
        return None
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    if not S_ISSOCK(status.st_mode):
        return None
    it = _byDescriptor.get(descriptor)
    if it is None or it.inode != status.st_ino:
        # Another socket has a number that was closed behind our back.
        it = _byInode.get(status.st_ino)
    return None if it is None else it.part


def found(skt: Any, descriptor: int) -> Offloaded | None:
    """
    Return the part of a descriptor that a socket is made of: a detached one, a duplicate's (dup(2)), or that
    of another socket with the same number.
    """
    if not _byInode:
        return None
    it = _byInode.get(os.fstat(descriptor).st_ino)
    part = None if it is None else it.part
    if part is None:
        return None
    own = _byDescriptor.get(descriptor)
    if own is not None and own.part is part:
        if descriptor in offloaded:
            if own.others is None:
                own.others = WeakSet()
            own.others.add(skt)
        else:
            offloaded[descriptor] = skt
        _detached.pop(descriptor, None)
        return own
    with part.loop:
        part.sockets += 1
    made = _byDescriptor[descriptor] = Offloaded(descriptor, part)
    offloaded[descriptor] = skt
    return made


def detach(skt: Any, it: Offloaded) -> None:
    """
    A socket gives its descriptor away; another socket of it, if there is one, stands for it.
    """
    descriptor, others = it.descriptor, it.others
    if others is not None:
        others.discard(skt)
    if offloaded.get(descriptor) is not skt:
        return
    del offloaded[descriptor]
    if others:
        offloaded[descriptor] = others.pop()
        return
    if len(_detached) >= DETACHED:
        del _detached[next(iter(_detached))]
    _detached[descriptor] = it


def close(it: Offloaded) -> Connection | Listening | None:
    """
    The descriptor is closed.

    @return: Its part.
    """
    part, it.part = it.part, None
    offloaded.pop(it.descriptor, None)
    _byDescriptor.pop(it.descriptor, None)
    _detached.pop(it.descriptor, None)
    if part is not None and part.sockets > 1 and _byInode.get(it.inode) is it:
        # What is made of the duplicates' descriptors finds the part by one that is left.
        left = next((each for each in _byDescriptor.values() if each.part is part), None)
        if left is not None:
            _byInode[it.inode] = left
    return part


def isReset(skt: Any) -> bool:
    """
    Return whether the close of a socket resets its connection: SO_LINGER with no time (socket(7)).

    @param skt: The kernel's socket.
    """
    value: bytes = skt.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)
    return value[:4] != bytes(4) and value[4:] == bytes(4)


__all__ = ["Offloaded", "close", "detach", "found", "isReset", "offload", "offloaded", "partOf"]
