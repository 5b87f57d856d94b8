"""
The descriptors of sockets over SDP: what each of them carries, and how a duplicate finds it.
"""

from __future__ import annotations

import _socket
import errno
import os
import select
import socket
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from stat import S_ISSOCK
from time import CLOCK_BOOTTIME, clock_gettime_ns
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet, WeakValueDictionary

from twisted_ib import limits
from twisted_ib.drive import process as processes
from twisted_ib.drive.process import life, monotonic

if TYPE_CHECKING:
    from twisted_ib.blocking.connection import Connection
    from twisted_ib.blocking.listening import Listening
    from twisted_ib.blocking.loop import BlockingLoop
    from twisted_ib.blocking.socket import socket as BlockingSocket

    _Watch = select.epoll | select.poll

#: Where nobody listens, by family.
_NOBODY: Final[dict[int, str]] = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
#: The longest that the answer of a host to itself takes.
_TRAP_MILLISECONDS: Final = 100
# Now: the names may stand for others later (L{twisted_ib.blocking.patch}).
_poll, _epoll, _close = select.poll, select.epoll, os.close
_ERR, _HUP = select.POLLERR, select.POLLHUP
#: Seconds for which a turn looks for who has a connection, and how much more time it leaves to other threads
#: then: where these want the interpreter, the few system calls of a step may take fifty times as long.
_LOOK_SECONDS: Final = 2e-3
_LOOK_PAUSE: Final = 4


class _Parts(dict[int, "Connection | Listening"]):
    # What is over SDP; C{connected} are those of it that are no listeners.

    def __init__(self) -> None:
        super().__init__()
        # Its own: at the end of the process a finalizer may find no names of this module.
        self.connected: dict[int, None] = {}

    def __setitem__(self, inode: int, part: Connection | Listening) -> None:
        super().__setitem__(inode, part)
        if not part.listens:
            self.connected[inode] = None

    def __delitem__(self, inode: int) -> None:
        self.connected.pop(inode, None)
        super().__delitem__(inode)

    def pop(self, inode: int, default: None = None) -> Connection | Listening | None:  # type: ignore[override]
        self.connected.pop(inode, None)
        return super().pop(inode, default)


class Offloaded:
    """
    The part of a descriptor that is SDP's.

    @ivar descriptor: The descriptor; C{inode} that of the kernel's socket.
    @ivar part: The connection or the listeners, which duplicates share; L{None} after the close.
    @ivar others: Sockets of the same descriptor beside the first (C{socket(fileno=...)}), or L{None}.
    """

    __slots__ = ("__weakref__", "descriptor", "inode", "others", "part")

    #: Of all, by the inode of the kernel's socket, which duplicates share, until the last one is closed.
    parts: Final = _Parts()

    def __init__(self, descriptor: int, part: Connection | Listening) -> None:
        self.descriptor, self.inode = descriptor, 0
        # First: it is given up if the descriptor is no more.
        self.part: Connection | Listening | None = part
        self.others: WeakSet[BlockingSocket] | None = None
        self.inode = os.fstat(descriptor).st_ino

    def __del__(self) -> None:
        if (part := self.part) is None:
            return
        if part.sockets > 1:
            part.sockets -= 1
            return
        self.parts.pop(self.inode, None)
        part.loop.abandon(part.close)


#: The sockets that have a part over SDP, or attempts to have one, by descriptor.
offloaded: WeakValueDictionary[int, BlockingSocket] = WeakValueDictionary()
#: Its dict, in which many are looked up without a function of Python for each; C{known} likewise.  There may
#: still be a reference to one that the garbage collector has taken.
held: Final[dict[int, Callable[[], BlockingSocket | None]]] = vars(offloaded)["data"]
#: The descriptors that are just being given back to the kernel: pollers hear of each soon, and do not take it
#: for closed.
returning: Final[set[int]] = set()
byDescriptor: WeakValueDictionary[int, Offloaded] = WeakValueDictionary()
known: Final[dict[int, Callable[[], Offloaded | None]]] = vars(byDescriptor)["data"]
_byInode = Offloaded.parts
#: Without one of these no descriptor has bytes that are not the kernel's.
connected: Final = _byInode.connected
_detached: dict[int, Offloaded] = {}
#: Those whose connections have moved to TCP: their descriptors are of another file now.
movedSockets: WeakValueDictionary[int, BlockingSocket] = WeakValueDictionary()
#: The time of the last step of a fork of this process, one before each and one after, in nanoseconds of the
#: clock that tells when processes began: the children have the descriptors that were there before.
lastFork = clock_gettime_ns(CLOCK_BOOTTIME)


def _fork() -> None:
    global lastFork
    lastFork = max(lastFork + 1, clock_gettime_ns(CLOCK_BOOTTIME))


# What is made or seen between the two may be older than the child.
life.atFork(__name__, before=_fork, inParent=_fork)


def offload(skt: BlockingSocket, part: Connection | Listening) -> Offloaded:
    """
    Return the part of a socket, from now on found by its descriptor.
    """
    descriptor = skt.fileno()
    made = byDescriptor[descriptor] = Offloaded(descriptor, part)
    _byInode[made.inode] = part
    offloaded[descriptor] = skt
    carried: Any = part
    carried.descriptor, carried.inode, carried.forks = descriptor, made.inode, lastFork
    if not part.listens and skt.family in _NOBODY:
        carried.isTrapped = _setTrap(descriptor, skt.family)
    return made


def _setTrap(descriptor: int, family: int) -> bool:
    # The kernel's socket gets an error, that of a connect to nobody (port 0).  The first call takes it that
    # knows of no SDP, in whatever process: read(2) or write(2) fails there, and here it is seen that it did.
    blocks = os.get_blocking(descriptor)
    plain = _socket.socket(family, socket.SOCK_STREAM, 0, descriptor)
    # Not os.set_blocking(), which may stand for a program's word on the connection's own calls.
    plain.setblocking(False)
    try:
        bound = plain.getsockname()
        if plain.connect_ex((_NOBODY[family], 0)) != errno.EINPROGRESS:
            return False
        if bound[1]:
            # Linux's tcp_done() gives back a number that it chose itself; the connection has it still.
            pollerOf([(descriptor, 0)]).poll(_TRAP_MILLISECONDS)
            with suppress(OSError):
                plain.bind(bound)
        return True
    finally:
        plain.setblocking(blocks)
        plain.detach()


def pollerOf(shared: list[tuple[int, int]]) -> select.poll:
    """
    Return the kernel's object for descriptors and their events.
    """
    poller = _poll()
    for descriptor, mask in shared:
        poller.register(descriptor, mask)
    return poller


def isReset(descriptor: int) -> bool:
    """
    Return whether the close of a socket resets its connection: SO_LINGER with no time (socket(7)).
    """
    plain = _socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, descriptor)
    try:
        value = plain.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)
    finally:
        plain.detach()
    return value[:4] != bytes(4) and value[4:] == bytes(4)


def isUsed(part: Connection, watch: _Watch | None = None) -> bool:
    """
    Return whether something that knows of no SDP has read from a descriptor of a connection, or written to
    it: bytes are missing then.

    @param watch: An object that polls one of them, if there is one.
    """
    if watch is None:
        watch = part.held
    if watch is None:
        # It has none before it is accepted, and after its last one was closed.
        if part.descriptor < 0 or inodeOf(part.descriptor) != part.inode:
            return False
        watch = pollerOf([(part.descriptor, 0)])
    # A socket that waits for an answer to its SYN has not hung up.
    return part.isTrapped and any(each & _HUP and not each & _ERR for _, each in watch.poll(0))


def elsewhere(parts: Iterable[Connection]) -> dict[int, str]:
    """
    Return which of some connections other processes may use: where a descriptor of each is in /proc, by the
    inode of its socket.  Where /proc cannot be read, none is known.
    """
    found: dict[int, str] = {}
    with suppress(OSError):
        for _ in _search(parts, found):
            pass
    return found


def _search(parts: Iterable[Connection], found: dict[int, str]) -> Iterator[None]:
    # Adds to what is found.  Connections that no process can have that was forked are not looked for, nor
    # those that none had since the last fork: only a fork gives them away.  It stops after each few system
    # calls: each lets other threads have the interpreter, and together they may take long.
    others = [each for each in parts if each.inode and lastFork not in (each.forks, each.looked)]
    if not others:
        return
    wanted = {f"socket:[{each.inode}]": each.inode for each in others}
    since = min(each.forks for each in others) // processes.TICK
    kin = processes.lineage(os.readlink("/proc/self"))
    seen = set(kin)
    # One may have ended meanwhile, and left its descriptors to one that was not listed yet.
    for _ in range(limits.BLOCKING_PROCESS_LOOKS):
        forks, isQuiet = lastFork, True
        new: list[int] = []
        with os.scandir("/proc") as entries:
            for entry in entries:
                if entry.name.isdecimal() and entry.name not in seen:
                    new.append(int(entry.name))
                yield
        # The last that was forked has most of what was not looked for yet.
        for process in map(str, sorted(new, reverse=True)):
            seen.add(process)
            if processes.isRelated(process, kin, since):
                isQuiet = False
                yield from _shown(f"/proc/{process}/fd", wanted, found)
                if len(found) == len(wanted):
                    return
            yield
        if isQuiet:
            for each in others:
                if each.inode not in found:
                    each.looked = forks
            return


def _shown(folder: str, wanted: dict[str, int], found: dict[int, str]) -> Iterator[None]:
    # Those of other users, and those that have ended.
    with suppress(*processes.UNSHOWN), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(*processes.UNSHOWN):
                inode = wanted.get(os.readlink(entry.path))
                if inode is not None:
                    found[inode] = entry.path
            yield


def isElsewhere(part: Connection, found: dict[int, str]) -> bool:
    """
    Return whether other processes have a descriptor of a connection.

    @param found: The answer of L{elsewhere}.
    """
    if part.inode in found:
        return True
    # Of those that were not forked by os.fork() only this is known.
    if part.kept >= 0 or not _isOpen(part):
        return False
    here: set[int] = set()
    with suppress(OSError):
        for _ in _searchHere((), here):
            pass
    return part.inode not in here


def _isOpen(part: Connection) -> bool:
    return part.held is not None and bool(part.held.poll(0))


def _searchHere(kept: Container[int], here: set[int]) -> Iterator[None]:
    # Adds the inodes of this process's sockets, but for those that only descriptors of our own have.
    with os.scandir("/proc/self/fd") as entries:
        for entry in entries:
            number = int(entry.name)
            if number not in kept:
                here.add(inodeOf(number))
            yield


def _isShown(part: Connection) -> bool:
    # Whether a descriptor is where it was found.
    with suppress(OSError):
        if part.holder and os.readlink(part.holder) == f"socket:[{part.inode}]":
            return True
    part.holder = ""
    return False


def _searchAll(unsure: Iterable[Connection], here: set[int]) -> Iterator[None]:
    # Looks for those who have what this program has closed, as _search() and _searchHere() do.
    unsure = list(unsure)
    found: dict[int, str] = {}
    parts = [*unsure, *(each for each in list(_byInode.values()) if not each.listens and not each.holder)]
    try:
        yield from _searchHere({each.kept for each in unsure}, here)
        # That takes a while: once for all.
        yield from _search(parts, found)
    except OSError:
        # There is no /proc, or no descriptor is free: from now on it is known whether anybody has one, but
        # not what the last one did with it.
        for each in unsure:
            with each.loop:
                _forget(each)
    for each in parts:
        each.holder = found.get(each.inode, each.holder)


def inodeOf(descriptor: int) -> int:
    """
    Return the inode of a descriptor's socket; 0 if it is none.
    """
    try:
        status = os.fstat(descriptor)
    except OSError:
        return 0
    return status.st_ino if S_ISSOCK(status.st_mode) else 0


def partOf(descriptor: object) -> Connection | Listening | None:
    """
    Return what a descriptor, or the one that it duplicates, carries over SDP, if it does.
    """
    if not _byInode or not isinstance(descriptor, int):
        return None
    return _byInode.get(inodeOf(descriptor))


def found(skt: BlockingSocket, descriptor: int) -> Offloaded | None:
    """
    Return the part of a descriptor that a socket is made of: that of another socket, or of one duplicated.
    """
    if (part := partOf(descriptor)) is None or part.awaitMove():
        # It may be the kernel's now.
        return None
    own = byDescriptor.get(descriptor)
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
    made = byDescriptor[descriptor] = Offloaded(descriptor, part)
    offloaded[descriptor] = skt
    if inodeOf(part.descriptor) != part.inode:
        part.descriptor = descriptor
    return made


def detach(skt: BlockingSocket, it: Offloaded) -> None:
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
    while len(_detached) >= limits.BLOCKING_DETACHED:
        del _detached[next(iter(_detached))]
    _detached[descriptor] = it


def close(it: Offloaded) -> Connection | Listening | None:
    """
    The descriptor is closed.

    @return: Its part.
    """
    part, it.part = it.part, None
    offloaded.pop(it.descriptor, None)
    byDescriptor.pop(it.descriptor, None)
    _detached.pop(it.descriptor, None)
    if part is None:
        return None
    if part.sockets == 1 and part.held is None:
        _byInode.pop(it.inode, None)
    elif not part.listens and part.descriptor == it.descriptor:
        # Another one of it tells from now on whether it blocks, and whether it is used.
        others = (number for number, each in byDescriptor.items() if each.part is part)
        part.descriptor = next(others, -1)
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
        self._watch: select.epoll | None = None
        self._isAborted = False

    def __enter__(self) -> None:
        descriptor, it = self._descriptor, self._it
        if it is None and not _byInode:
            return
        inode = inodeOf(descriptor)
        if it is None:
            own = byDescriptor.get(descriptor)
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
            if part.listens or part.sockets != 1 or it.inode != inode:
                return
        # Another thread has closed it meanwhile, or no descriptor is free.
        with suppress(OSError):
            if it is not None:
                self._watch = _epoll()
                self._watch.register(descriptor, 0)
            self._isAborted = isUsed(part, self._watch) or (it is not None and isReset(descriptor))
            if lastFork not in (part.forks, part.looked) and part.kept < 0 and not self._isAborted:
                # Its state outlives the process that uses it last.
                part.kept = os.dup(descriptor)

    def __exit__(self, *_: object) -> None:
        part, watch = self._part, self._watch
        if part is None:
            return
        if part.held is None and (self._isAborted or watch is None or not watch.poll(0)):
            part.drop(self._isAborted)
            if watch is not None:
                watch.close()
            return
        with part.loop:
            if watch is not None:
                _hold(part, watch)
            if self._isAborted:
                _release(part, True)
                return
        here: set[int] = set()
        if part.kept >= 0 and not _isShown(part):
            # Without the lock, for which others would wait.
            for _step in _searchAll([part], here):
                pass
        with part.loop:
            if part.held is not None:
                _settle(part, here)


def _hold(part: Connection, watch: select.epoll) -> None:
    loop = part.loop
    if len(loop.held) >= limits.BLOCKING_HELD:
        _release(next(iter(loop.held)), True)
    part.held = watch
    _byInode[part.inode] = part
    loop.held[part] = None
    if loop.looking is None:
        loop.looking = loop.reactor.callLater(limits.BLOCKING_HELD_SECONDS, _look, loop)
        loop.disturb()


def _settle(part: Connection, here: Container[int]) -> None:
    # Whether that is the end, in order or not, of what only descriptors have.
    if part.kept < 0:
        isHeld = _isOpen(part)
    else:
        isHeld = bool(part.holder) or part.inode in here or lastFork not in (part.forks, part.looked)
    if isHeld:
        if isUsed(part):
            _release(part, True)
        return
    # Nobody is left who could still use it.
    isAborted = isUsed(part)
    _forget(part)
    # A process whose descriptors are not shown may have it.
    if isAborted or not _isOpen(part):
        _release(part, isAborted)


def _forget(part: Connection) -> None:
    kept, part.kept = part.kept, -1
    if kept >= 0:
        # After that: a child that is forked meanwhile closes it no more, nor what has its number since.
        _close(kept)


def _letGo(part: Connection) -> None:
    watch, part.held = part.held, None
    if watch is not None:
        watch.close()
    _forget(part)
    part.loop.held.pop(part, None)


def letAllGo(loop: BlockingLoop) -> None:
    """
    A loop has closed its connections, or has none in this process.
    """
    for part in tuple(loop.held):
        _letGo(part)


def _release(part: Connection, isAborted: bool = False) -> None:
    _letGo(part)
    _byInode.pop(part.inode, None)
    part.drop(isAborted)


def _look(loop: BlockingLoop, steps: Iterator[None] | None = None) -> None:
    # Nothing tells when another process closes what it has.  Other threads wait meanwhile: it is done in
    # pieces, and they have more time between two of them.
    if steps is None:
        steps = _settleAll(tuple(loop.held))
    began = monotonic()
    rest, seconds = None, limits.BLOCKING_HELD_SECONDS
    try:
        for _ in steps:
            if (taken := monotonic() - began) >= _LOOK_SECONDS:
                rest, seconds = steps, taken * _LOOK_PAUSE
                break
    finally:
        loop.looking = loop.reactor.callLater(seconds, _look, loop, rest) if loop.held else None
        # Within the call of another thread.
        loop.disturb()


def _settleAll(parts: tuple[Connection, ...]) -> Iterator[None]:
    unsure = []
    for each in parts:
        if each.kept >= 0 and not _isShown(each):
            unsure.append(each)
        yield
    here: set[int] = set()
    if unsure:
        yield from _searchAll(unsure, here)
    # Of these alone: nobody has searched for those that are held only since then.
    for each in parts:
        if each.held is not None:
            _settle(each, here)
        yield


def keep(descriptors: Iterable[object]) -> None:
    """
    These are given to another process, which would find no bytes there.

    @raise OSError: One has a connection over SDP, which is reset.
    """
    for each in descriptors:
        part = partOf(each)
        if part is not None and part.listens:
            part.give()
        elif part is not None and not part.give():
            with part.loop:
                part.close(True)
            text = "its connection is over SDP: useTCP() before connect() or listen(), or have a rule tcp"
            raise OSError(errno.EOPNOTSUPP, f"{os.strerror(errno.EOPNOTSUPP)} ({text})")


def keepRights(ancillary: Iterable[Any]) -> None:
    """
    The same of what a message of a UNIX socket is to carry (SCM_RIGHTS).
    """
    for each in ancillary:
        if tuple(each)[:2] == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            octets = bytes(each[2])
            keep(memoryview(octets[: len(octets) // 4 * 4]).cast("i"))
