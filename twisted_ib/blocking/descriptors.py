"""
The descriptors of sockets over SDP: what each of them carries, and how a duplicate finds it.
"""

from __future__ import annotations

import _socket
import errno
import os
import select
import socket
from collections.abc import Iterable
from contextlib import suppress
from stat import S_ISSOCK
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet, WeakValueDictionary

if TYPE_CHECKING:
    from twisted_ib.blocking.connection import Connection
    from twisted_ib.blocking.listening import Listening

#: Connections of descriptors that were detached and that no socket has taken; beyond it the oldest is closed.
DETACHED: Final = 1024
#: Connections that only descriptors have, which no socket knows; beyond it the oldest is reset.
HELD: Final = 1024
#: Seconds after which it is seen that another process has closed a descriptor.
HELD_SECONDS: Final = 0.1
#: Where nobody listens, by family.
_NOBODY: Final[dict[int, str]] = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
#: The longest that the answer of a host to itself takes.
_TRAP_MILLISECONDS: Final = 100
# Now: the names may stand for others later (L{twisted_ib.blocking.patch}).
_poll, _epoll = select.poll, select.epoll
_ERR, _HUP = select.POLLERR, select.POLLHUP


class Offloaded:
    """
    The part of a descriptor that is SDP's.

    @ivar descriptor: The descriptor; C{inode} that of the kernel's socket.
    @ivar part: The connection or the listeners, which duplicates share; L{None} after the close.
    @ivar others: Sockets of the same descriptor beside the first (C{socket(fileno=...)}), or L{None}.
    """

    __slots__ = ("__weakref__", "descriptor", "inode", "others", "part")

    #: Those of all, by the inode of the kernel's socket, which duplicates of a descriptor share, until the
    #: last one that is known is closed.
    parts: Final[dict[int, Any]] = {}

    def __init__(self, descriptor: int, part: Connection | Listening) -> None:
        self.descriptor, self.inode = descriptor, 0
        # First: it is given up if the descriptor is no more.
        self.part: Connection | Listening | None = part
        self.others: WeakSet[Any] | None = None
        self.inode = os.fstat(descriptor).st_ino

    def __del__(self) -> None:
        part = self.part
        if part is None:
            return
        if part.sockets > 1:
            part.sockets -= 1
            return
        self.parts.pop(self.inode, None)
        part.loop.abandon(part)


#: The sockets that have a part over SDP, or attempts to have one, by descriptor.
offloaded: WeakValueDictionary[int, Any] = WeakValueDictionary()
_byDescriptor: WeakValueDictionary[int, Offloaded] = WeakValueDictionary()
_byInode = Offloaded.parts
_detached: dict[int, Offloaded] = {}
#: Connections that descriptors alone have.
_held: list[Connection] = []


def offload(skt: Any, part: Connection | Listening) -> Offloaded:
    """
    Return the part of a socket, from now on found by its descriptor.
    """
    descriptor = skt.fileno()
    made = _byDescriptor[descriptor] = Offloaded(descriptor, part)
    _byInode[made.inode] = part
    offloaded[descriptor] = skt
    carried: Any = part
    carried.descriptor, carried.inode = descriptor, made.inode
    if not part.listens and skt.family in _NOBODY:
        carried.isTrapped = _setTrap(descriptor, skt.family)
    return made


def _setTrap(descriptor: int, family: int) -> bool:
    # The kernel's socket gets an error, that of a connect to nobody (port 0).  The first call takes it that
    # knows of no SDP, in whatever process: read(2) or write(2) fails there, and here it is seen that it did.
    blocks = os.get_blocking(descriptor)
    os.set_blocking(descriptor, False)
    plain = _socket.socket(family, socket.SOCK_STREAM, 0, descriptor)
    try:
        bound = plain.getsockname()
        if plain.connect_ex((_NOBODY[family], 0)) != errno.EINPROGRESS:
            return False
        if bound[1]:
            # Linux's tcp_done() gives back a number that it chose itself; the connection has it still.
            poller = _poll()
            poller.register(descriptor, 0)
            poller.poll(_TRAP_MILLISECONDS)
            with suppress(OSError):
                plain.bind(bound)
        return True
    finally:
        plain.detach()
        os.set_blocking(descriptor, blocks)


def isReset(descriptor: int) -> bool:
    """
    Return whether the close of a socket resets its connection: SO_LINGER with no time (socket(7)).
    """
    plain = _socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, descriptor)
    value = plain.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)
    plain.detach()
    return value[:4] != bytes(4) and value[4:] == bytes(4)


def _isSprung(part: Any, events: list[tuple[int, int]]) -> bool:
    # A socket that waits for an answer to its SYN has not hung up.
    return part.isTrapped and any(each & _HUP and not each & _ERR for _, each in events)


def isUsed(part: Any) -> bool:
    """
    Return whether something that knows of no SDP has read from a descriptor of a connection, or written to
    it: bytes are missing then.
    """
    if part.held is not None:
        return _isSprung(part, part.held.poll(0))
    if not part.isTrapped or _inodeOf(part.descriptor) != part.inode:
        return False
    poller = _poll()
    poller.register(part.descriptor, 0)
    return _isSprung(part, poller.poll(0))


def isElsewhere(part: Any) -> bool:
    """
    Return whether other processes alone have the descriptors of a connection.
    """
    if part.held is None or not part.held.poll(0):
        return False
    return all(_inodeOf(int(each)) != part.inode for each in os.listdir("/proc/self/fd"))


def _inodeOf(descriptor: int) -> int:
    try:
        status = os.fstat(descriptor)
    except OSError:
        return 0
    return status.st_ino if S_ISSOCK(status.st_mode) else 0


def partOf(descriptor: Any) -> Connection | Listening | None:
    """
    Return what a descriptor, or the one that it duplicates, carries over SDP, if it does.
    """
    if not _byInode or not isinstance(descriptor, int):
        return None
    return _byInode.get(_inodeOf(descriptor))


def found(skt: Any, descriptor: int) -> Offloaded | None:
    """
    Return the part of a descriptor that a socket is made of: a detached one, a duplicate's (dup(2)), or that
    of another socket with the same number.
    """
    part = partOf(descriptor)
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
        if part.held is None:
            part.sockets += 1
        else:
            _letGo(part)
    made = _byDescriptor[descriptor] = Offloaded(descriptor, part)
    offloaded[descriptor] = skt
    part.descriptor = descriptor
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
    if part is not None and part.sockets == 1 and part.held is None:
        _byInode.pop(it.inode, None)
    return part


class leaving:
    """
    Within this context a descriptor is closed.  As over TCP a connection lives until the last one of it is,
    those of other processes included.
    """

    def __init__(self, descriptor: int, it: Offloaded | None = None) -> None:
        """
        @param it: Its part; if L{None}, it is looked for.
        """
        self._descriptor, self._it = descriptor, it
        self._part: Any = None
        self._watch: Any = None
        self._isAborted = False

    def __enter__(self) -> None:
        descriptor, it = self._descriptor, self._it
        if it is None and not _byInode:
            return
        inode = _inodeOf(descriptor)
        if it is None:
            own = _byDescriptor.get(descriptor)
            it = own if own is not None and own.inode == inode else None
        part: Any = _byInode.get(inode) if it is None else it.part
        if part is None or (it is None and (part.sockets != 1 or part.held is None)):
            # Nothing of SDP, or a duplicate of what sockets have.
            return
        if part.loop.forked:
            return
        self._part = part
        if it is not None:
            close(it)
            isLast = part.sockets == 1 and not part.listens
            if isLast and it.inode == inode:
                self._watch = _epoll()
                self._watch.register(descriptor, 0)
                self._isAborted = isReset(descriptor) or _isSprung(part, self._watch.poll(0))

    def __exit__(self, *_: object) -> None:
        part, watch = self._part, self._watch
        if part is None:
            return
        if part.held is not None:
            if not part.held.poll(0):
                _release(part)
        elif watch is not None and watch.poll(0) and not self._isAborted:
            with part.loop:
                _hold(part, watch)
        else:
            part.drop(self._isAborted)
        if watch is not None and part.held is not watch:
            watch.close()


def _hold(part: Any, watch: Any) -> None:
    if len(_held) >= HELD:
        _release(_held[0], True)
    part.held = watch
    _byInode[part.inode] = part
    loop = part.loop
    if all(each.loop is not loop for each in _held):
        loop.reactor.callLater(HELD_SECONDS, _look, loop)
        loop.disturb()
    _held.append(part)


def _letGo(part: Any) -> None:
    part.held.close()
    part.held = None
    _held.remove(part)


def letAllGo(loop: Any) -> None:
    """
    A loop has closed its connections.
    """
    for part in tuple(_held):
        if part.loop is loop:
            _letGo(part)


def _release(part: Any, isAborted: bool = False) -> None:
    _letGo(part)
    _byInode.pop(part.inode, None)
    part.drop(isAborted)


def _look(loop: Any) -> None:
    # Nothing tells when another process closes what it has.
    mine = [part for part in _held if part.loop is loop]
    for part in mine:
        if not part.held.poll(0):
            _release(part)
        elif isUsed(part):
            _release(part, True)
    if mine:
        loop.reactor.callLater(HELD_SECONDS, _look, loop)


def keep(descriptors: Iterable[Any]) -> None:
    """
    These are given to another process, which would find no bytes there.

    @raise OSError: One has a connection over SDP, which is reset.
    """
    for each in descriptors:
        part: Any = partOf(each)
        if part is not None and not part.listens:
            with part.loop:
                part.close(True)
            text = (
                "its connection is over SDP: call useTCP() before connect() or listen(), or have a rule tcp"
            )
            raise OSError(errno.EOPNOTSUPP, f"{os.strerror(errno.EOPNOTSUPP)} ({text})")


def keepRights(ancillary: Iterable[Any]) -> None:
    """
    The same of what a message of a UNIX socket is to carry (SCM_RIGHTS).
    """
    for each in ancillary:
        if tuple(each)[:2] == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            octets = bytes(each[2])
            keep(memoryview(octets[: len(octets) // 4 * 4]).cast("i"))


__all__ = [
    "Offloaded",
    "close",
    "detach",
    "found",
    "isElsewhere",
    "isUsed",
    "leaving",
    "offload",
    "offloaded",
]
__all__ += ["isReset", "keep", "keepRights", "letAllGo", "partOf"]
