"""
The select module of the standard library, over sockets of SDP and descriptors of the kernel in one wait.

A descriptor is SDP's if L{twisted_ib.blocking.socket.offloaded} has a socket for it. Where there is none,
the kernel's calls are made as they are.
"""

from __future__ import annotations

import errno
import os
import select as kernel
import selectors
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from math import ceil
from operator import index
from threading import RLock
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias, cast
from weakref import ref

# A program under C{ib-run} has these from its start: nothing that devices need is imported here.
from twisted_ib.blocking.descriptors import connected, held, inodeOf, offloaded, returning
from twisted_ib.drive.process import life, monotonic

if TYPE_CHECKING:
    from twisted_ib.drive.turn import Found, Idle

    _Lists = tuple[list[Any], ...]

    from twisted_ib.blocking import waits
else:

    class _Waits:
        # In the place of the module until the first socket goes over SDP.

        def __getattr__(self, name):
            global waits
            from twisted_ib.blocking import waits

            return getattr(waits, name)

    waits = _Waits()

# Now: these names may stand for the ones below later (L{twisted_ib.blocking.patch}).
_select, _poll, _epoll = kernel.select, kernel.poll, kernel.epoll
_IN, _OUT = kernel.POLLIN, kernel.POLLOUT


class _Pollers(dict[int, "ref[epoll]"]):
    """
    Objects that poll, by their own descriptors, which other waits may have; they are told of a socket that
    the kernel carries after all.
    """

    # Not a WeakValueDictionary, most of whose methods are functions of Python.

    def giveBack(self, descriptor: int, isOther: bool) -> None:
        for reference in tuple(self.values()):
            if (poller := reference()) is not None:
                poller.giveBack(descriptor, isOther)


pollers: Final = _Pollers()
# select(2), notes: what poll(2) calls these is ready to read, to write, and exceptional there.
_READABLE: Final = kernel.POLLIN | kernel.POLLHUP | kernel.POLLERR
_WRITABLE: Final = kernel.POLLOUT | kernel.POLLERR
_NUMBERS: Final = frozenset((int,))
#: poll(2) and epoll_wait(2) wait for fewer.
_MOST_MILLISECONDS: Final = 1 << 31

# -- select


def _descriptor(each: Any) -> int:
    if isinstance(each, int):
        return each
    method = getattr(each, "fileno", None)
    if method is None:
        raise TypeError("argument must be an int, or have a fileno() method")
    descriptor: int = method()
    return descriptor


def select(
    rlist: Iterable[Any], wlist: Iterable[Any], xlist: Iterable[Any], timeout: float | None = None, /
) -> tuple[list[Any], list[Any], list[Any]]:
    """
    See C{select.select}.
    """
    if not held:
        return _select(rlist, wlist, xlist, timeout)
    lists = (list(rlist), list(wlist), list(xlist))
    if timeout is not None and not 0 <= timeout < waits.MOST_SECONDS:
        waits.refuse(timeout)
    now = monotonic()
    # See waits.wait().  Below, as _descriptor() has it, without a call each.
    deadline = None if timeout is None else now + timeout if timeout else 0.0
    waited: list[None] = []
    plain: list[_Lists] = []
    idle = waits.Idle.last
    read = lists[0] if _NUMBERS.issuperset(map(type, lists[0])) else map(_descriptor, lists[0])
    if idle is not None and not held.keys().isdisjoint(read):
        # As selectIdly() does, and the deadline is that of the devices.
        call = partial(waits.selectBeside, lists, plain, waited, idle.bell)
        if idle.wait(call, None if timeout is None else timeout * 1e3, now) is not None:
            return plain[0][0], plain[0][1], plain[0][2]
    elif not connected or len(lists[0]) + len(lists[1]) + len(lists[2]) > 1:
        if waits.idly(deadline, partial(waits.selectIdly, lists, plain, waited)) is not None:
            return plain[0][0], plain[0][1], plain[0][2]
    by: tuple[list[int], ...] = ([], [], [])
    masks: dict[int, int] = {}
    # Loops, as each list in brackets is a call.
    for those, descriptors, mask in zip(lists, by, (_IN, _OUT, kernel.POLLPRI), strict=True):
        for each in those:
            at = each if each.__class__ is int else _descriptor(each)
            if at < 0 and waited:
                # Another thread has closed it meanwhile.
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            descriptors.append(at)
            masks[at] = masks.get(at, 0) | mask
    ours, others = waits.divided(masks)
    if not ours:
        return _select(*lists, None if deadline is None else max(0.0, deadline - monotonic()))
    found, more = waits.waitFor(ours, others, deadline)
    for descriptor, events in more:
        if events & kernel.POLLNVAL:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        found[descriptor] = found.get(descriptor, 0) | events
    result: tuple[list[Any], ...] = ([], [], [])
    wants = (_READABLE, _WRITABLE, kernel.POLLPRI)
    for taken, those, descriptors, want in zip(result, lists, by, wants, strict=True):
        for each, at in zip(those, descriptors, strict=True):
            if found.get(at, 0) & want:
                taken.append(each)
    return result[0], result[1], result[2]


# -- poll


#: An object that waits for nothing more than the kernel's and the loop's own descriptor, and the call that
#: does so; C{_DRIVEN} if there is none.
_Beside: TypeAlias = "tuple[Idle, Callable[[float], Found]]"
_DRIVEN: Final = cast("_Beside", (SimpleNamespace(holds=False), None))


class Poll:
    """
    The object that L{poll} returns, as C{select.poll} does; its class makes none.
    """

    _kernel: kernel.poll
    _masks: dict[int, int]
    _beside: _Beside

    def __new__(cls) -> Poll:
        raise TypeError(f"cannot create '{cls.__module__}.{cls.__name__}' instances")

    def register(self, fd: Any, eventmask: int = kernel.POLLIN | kernel.POLLPRI | kernel.POLLOUT, /) -> None:
        """
        See C{select.poll.register}.
        """
        self._kernel.register(fd, eventmask)
        self._masks[fd if fd.__class__ is int else _descriptor(fd)] = eventmask
        self._beside = _DRIVEN

    def modify(self, fd: Any, eventmask: int, /) -> None:
        """
        See C{select.poll.modify}.
        """
        self._kernel.modify(fd, eventmask)
        self._masks[_descriptor(fd)] = eventmask
        self._beside = _DRIVEN

    def unregister(self, fd: Any, /) -> None:
        """
        See C{select.poll.unregister}.
        """
        self._kernel.unregister(fd)
        self._masks.pop(_descriptor(fd), None)
        self._beside = _DRIVEN

    def poll(self, timeout: float | None = None, /) -> list[tuple[int, int]]:
        """
        See C{select.poll.poll}.
        """
        if not held:
            return self._kernel.poll(timeout)
        now = monotonic()
        idle, both = self._beside
        if idle.holds and (plain := idle.wait(both, timeout, now)) is not None:
            return plain
        if self._masks.keys().isdisjoint(held.keys()) and self._masks.keys().isdisjoint(pollers.keys()):
            return self._kernel.poll(timeout)
        # A copy: other threads may register meanwhile.
        ours, others = waits.divided(self._masks.copy())
        deadline = None
        if timeout is not None and not 0 > timeout:
            if not timeout < _MOST_MILLISECONDS:
                waits.refuse(timeout)
            deadline = now + ceil(timeout) * 1e-3 if timeout else 0.0
        found, more = waits.waitFor(ours, others, deadline, self._pollIdly)
        for descriptor, events in more:
            found[descriptor] = found.get(descriptor, 0) | events
        return list(found.items())

    def _pollIdly(self, at: int, seconds: float) -> Found | None:
        both = _poll()
        # First: another thread may register one more meanwhile.
        self._beside = waits.theLoop().idling, both.poll
        for descriptor, mask in (*self._masks.copy().items(), (at, _IN)):
            both.register(descriptor, mask)
        return waits.foundBeside(both.poll(ceil(seconds * 1e3)), at)


def poll() -> Poll:
    """
    See C{select.poll}.
    """
    made = object.__new__(Poll)
    # It checks what is registered.
    made._kernel = _poll()
    made._masks = {}
    made._beside = _DRIVEN
    return made


# -- epoll


class epoll:
    """
    See L{select.epoll}; for sockets over SDP it is level-triggered but for EPOLLONESHOT and EPOLLOUT.
    """

    #: As a L{Poll}'s, of the kernel's epoll and the loop's descriptor.
    _beside: _Beside = _DRIVEN
    #: Of what all of them have registered, also with the kernel.  The loop's, which may be held when it is
    #: taken, is never taken within this one.
    _lock: ClassVar = RLock()
    #: The threads that wait for SDP; how often others have changed what they wait for.
    _waiting = _changes = 0

    def __init__(self, sizehint: int = -1, flags: int = 0, _kernel: kernel.epoll | None = None) -> None:
        self._kernel = _epoll(sizehint, flags) if _kernel is None else _kernel
        self._isForeign = _kernel is not None
        self._masks: dict[int, int] = {}
        #: Those of SDP that were taken from the kernel's object, and the inode of each.
        self._taken: dict[int, int] = {}
        #: Those of EPOLLET that were found writable: when they had last been sent to (L{waits.sentAt}).
        self._told: dict[int, int | None] = {}
        #: Waits for this object's own descriptor.
        self._around: list[waits.Watch] = []
        if (number := self._kernel.fileno()) not in pollers or not self._isForeign:
            # It is forgotten with its last reference, unless another one has its number by then.
            pollers[number] = ref(self, partial(pollers.pop, number))

    @classmethod
    def fromfd(cls, fd: int, /) -> epoll:
        return cls(_kernel=_epoll.fromfd(fd))

    @property
    def closed(self) -> bool:
        return self._kernel.closed

    def fileno(self) -> int:
        # The kernel's, which knows of no SDP: waits of this module look through it.
        return self._kernel.fileno()

    def close(self) -> None:
        if not self.closed and pollers.get(number := self.fileno(), lambda: None)() is self:
            del pollers[number]
        # Without the lock, which a thread that is not in a forked child may have had.
        self._kernel.close()
        self._masks.clear()
        # Its number may be another file's from now on.
        self._beside = _DRIVEN

    def __enter__(self) -> epoll:
        if self.closed:
            raise ValueError("I/O operation on closed epoll object")
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def register(self, fd: Any, eventmask: int = kernel.EPOLLIN | kernel.EPOLLPRI | kernel.EPOLLOUT) -> None:
        if fd.__class__ is int and not (self._masks or self._waiting or self._taken or connected):
            # The first of an object, and nothing of SDP, as of those that are made for one wait.
            self._kernel.register(fd, eventmask)
            self._masks[fd] = index(eventmask)
            return
        descriptor, eventmask = _descriptor(fd), index(eventmask) & 0xFFFFFFFF
        with self._lock:
            self._kernel.fileno()  # ValueError once it is closed.
            if self._hasTaken(descriptor):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            if self._waiting and descriptor not in self._masks and not waits.isKernels(descriptor):
                waits.checkExclusive(eventmask)
                # The kernel's would wake those that wait: see _take().
                self._taken[descriptor] = inodeOf(descriptor)
            else:
                self._kernel.register(fd, eventmask)
            self._masks[descriptor] = eventmask
            self._told.pop(descriptor, None)
            if eventmask & kernel.EPOLLONESHOT:
                self._beside = _DRIVEN
        self._changed()

    def modify(self, fd: Any, eventmask: int) -> None:
        descriptor, eventmask = _descriptor(fd), index(eventmask) & 0xFFFFFFFF
        with self._lock:
            self._kernel.fileno()
            if not self._hasTaken(descriptor):
                try:
                    self._kernel.modify(fd, eventmask)
                except FileNotFoundError:
                    if not self._isForgotten(descriptor):
                        raise
            else:
                waits.checkExclusive(eventmask, self._masks[descriptor])
            self._masks[descriptor] = eventmask
            self._told.pop(descriptor, None)
            if eventmask & kernel.EPOLLONESHOT:
                self._beside = _DRIVEN
        self._changed()

    def _changed(self) -> None:
        # epoll_wait(2): what one thread registers or modifies, another that waits already waits for.
        if self._waiting:
            with (loop := waits.theLoop()):
                self._changes += 1
                for each in self._around:
                    each.isStale = True
                loop.dispatch()

    def unregister(self, fd: Any) -> None:
        descriptor = _descriptor(fd)
        with self._lock:
            self._kernel.fileno()
            try:
                if not self._hasTaken(descriptor):
                    self._kernel.unregister(fd)
            except FileNotFoundError:
                if not self._isForgotten(descriptor):
                    raise
            finally:
                self._masks.pop(descriptor, None)
                self._told.pop(descriptor, None)
                self._taken.pop(descriptor, None)
        self._changed()

    def poll(self, timeout: float | None = None, maxevents: int = -1) -> list[tuple[int, int]]:
        masks, taken = self._masks, self._taken
        (idle, both), now = self._beside, None
        if idle.holds and not taken and maxevents:
            now = monotonic()
            call = partial(self._pollBoth, both, maxevents)
            plain = idle.wait(call, None if timeout is None else timeout * 1e3, now)
            if plain is not None:
                if not idle.holds or self._beside is _DRIVEN:
                    plain = self._ofKernel(plain)
                return plain
        if not taken and masks.keys().isdisjoint(held.keys()) and not self._hasNested():
            # Nothing of SDP: the kernel's own.
            result = self._kernel.poll(timeout, maxevents)
            if not result or held.keys().isdisjoint(dict(result)):
                return result
            # A thread that registers has the lock until both know of it.
            with self._lock:
                if masks.keys().isdisjoint(held.keys()):
                    return result
                result = [each for each in result if each[0] not in masks or waits.isKernels(each[0])]
            if result:
                return result
        deadline = None
        if timeout is not None and not 0 > timeout:
            if not timeout < _MOST_MILLISECONDS * 1e-3:
                waits.refuse(timeout)
            deadline = (now or monotonic()) + timeout if timeout else 0.0
        while True:
            with self._lock:
                ours = waits.socketsOf(self._masks)
                for descriptor in taken.keys() - ours.keys() - returning:
                    # Closed, and perhaps opened again: as the kernel forgets a closed file.
                    del taken[descriptor]
                    masks.pop(descriptor, None)
            if ours or self._hasNested():
                if maxevents < 1 and maxevents != -1:
                    raise ValueError(f"maxevents must be greater than 0, got {maxevents}")
                # Here, as it is asked for each message of a connection.
                isPlain = True
                for skt in ours.values():
                    part = None if skt._sdp is None else skt._sdp.part
                    if part is None or not part.listens:
                        isPlain = False
                plain = waits.idly(deadline, partial(self._awaitIdly, maxevents)) if isPlain else None
                isPlain = plain is not None
                result, isOver = self._wait(deadline, maxevents) if plain is None else (plain, False)
            else:
                isPlain = True
                result = self._kernel.poll(timeout, maxevents)
                isOver = not result
            if isPlain and held:
                result = self._ofKernel(result, bool(ours))
            if result or isOver:
                return result
            timeout = None if deadline is None else max(0.0, deadline - monotonic())

    def _wait(self, deadline: float | None, maxevents: int) -> tuple[Found, bool]:
        # The events of all that it has, by the wait of all calls, and whether the time is over.
        masks, told, seen = self._masks, self._told, 0
        sent: dict[int, int | None] = {}

        def wanted() -> tuple[Found, Found]:
            nonlocal seen
            seen = self._changes
            sent.clear()
            with self._lock:
                wants = self.wants(sent)
                # An object of C{fromfd} has descriptors that only the kernel knows of.
                hasOthers = self._isForeign or bool(masks.keys() - self._taken.keys())
            return wants, [(self._kernel.fileno(), _IN)] if hasOthers else []

        with self._lock:
            self._waiting += 1
        try:
            found, more = waits.wait(
                wanted, deadline, lambda: self._changes != seen or (sent != {} and waits.haveSent(sent))
            )
        finally:
            with self._lock:
                self._waiting -= 1
        mine = self._kernel.fileno()
        found |= {descriptor: events for descriptor, events in more if descriptor not in found}
        isOver, hasMore = not found, found.pop(mine, 0)
        for descriptor in found.keys() & sent.keys():
            if (skt := offloaded.get(descriptor)) is not None:
                # With another event this one is told, too.  It may need the loop's lock.
                found[descriptor] |= waits.eventsOf(skt, masks.get(descriptor, 0) & waits.WRITE) & waits.WRITE
        for descriptor in list(found):
            with self._lock:
                mask = masks.get(descriptor)
                if mask is None or (mask & kernel.EPOLLONESHOT and not mask & 0xFFFF):
                    # Another thread has unregistered it, or has its one event.
                    del found[descriptor]
                    continue
                if descriptor in sent and found[descriptor] & waits.WRITE:
                    told[descriptor] = sent[descriptor]
                if mask & kernel.EPOLLONESHOT:
                    masks[descriptor] = mask & ~0xFFFF
                    if descriptor not in self._taken:
                        self._kernel.modify(descriptor, mask & ~0xFFFF)
        result = list(found.items())
        if hasMore:
            others = self._kernel.poll(0, maxevents)
            result += [each for each in others if each[0] not in found and waits.isKernels(each[0])]
        return (result if maxevents < 0 else result[:maxevents]), isOver

    def _ofKernel(self, found: Found, hasOurs: bool = True) -> Found:
        # Another thread has registered those of SDP, of which the kernel knows nothing.
        masks = self._masks
        with self._lock:
            found = [each for each in found if each[0] not in masks or waits.isKernels(each[0])]
            for descriptor, _ in found if hasOurs else ():
                # The kernel has no more events of it; nor is it to be asked for beside SDP's.
                if (mask := masks.get(descriptor, 0)) & kernel.EPOLLONESHOT:
                    masks[descriptor] = mask & ~0xFFFF
        return found

    def _awaitIdly(self, maxevents: int, at: int, seconds: float) -> Found | None:
        idle = waits.theLoop().idling
        beside = self._beside
        if beside[0] is not idle:
            both = waits.pollerOf([(self._kernel.fileno(), _IN), idle.bell])
            beside = self._beside = idle, both.poll
            if any(each & kernel.EPOLLONESHOT for each in tuple(self._masks.values())):
                self._beside = _DRIVEN
        return waits.foundBeside(self._pollBoth(beside[1], maxevents, seconds * 1e3), at)

    def _pollBoth(self, both: Callable[[float], Found], maxevents: int, milliseconds: float) -> Found:
        # Epoll is asked once it has ended the sleep, unless the loop has something to do.
        found, bell = both(ceil(milliseconds)), waits.theLoop().idling.bell
        return found if not found or bell in found else self._kernel.poll(0, maxevents) or [bell]

    def wants(self, sent: dict[int, int | None]) -> list[tuple[int, int]]:
        """
        Return the descriptors of SDP, and of other objects, with their events, under the lock.

        @param sent: Gets when those of EPOLLET had last been sent to.
        """
        nested = self._masks.keys() & pollers.keys()
        wants = [(descriptor, self._masks[descriptor] & 0xFFFF) for descriptor in nested]
        for descriptor in waits.socketsOf(self._masks):
            if descriptor in self._taken or waits.isKernels(descriptor) or self._take(descriptor):
                if (mask := self._masks[descriptor]) & kernel.EPOLLET:
                    at = sent[descriptor] = waits.sentAt(descriptor)
                    if at is not None and self._told.get(descriptor) == at:
                        # Writable once, as epoll(7) says, until somebody has sent.
                        mask &= ~waits.WRITE
                if mask & 0xFFFF or not mask & kernel.EPOLLONESHOT:
                    wants.append((descriptor, mask & 0xFFFF))
        return wants

    def enter(self, around: waits.Watch) -> list[tuple[int, int]]:
        """
        A wait has the descriptor of this object; until L{leave} it hears of what others change.

        @return: The descriptors that are looked at in its place, with their events.
        """
        with self._lock:
            self._waiting += 1
            self._around.append(around)
            return self.wants({})

    def leave(self, around: waits.Watch) -> None:
        """
        That wait is over.
        """
        with self._lock:
            self._waiting -= 1
            self._around.remove(around)

    def _hasNested(self) -> bool:
        # Whether some that are registered are such objects themselves.
        return bool(held) and not self._masks.keys().isdisjoint(pollers.keys())

    def giveBack(self, descriptor: int, isOther: bool) -> None:
        """
        A descriptor, of what SDP has carried or was to carry, is a file of the kernel's from now on; another
        one than before, or else what was registered of an earlier file of that number is not of this.
        """
        with self._lock:
            if descriptor in self._masks and (isOther or descriptor in self._taken):
                self._taken.pop(descriptor, None)
                with suppress(OSError):
                    self._kernel.register(descriptor, self._masks[descriptor])

    def _take(self, descriptor: int) -> bool:
        # The kernel's socket of what is SDP's alone is not connected, which epoll calls EPOLLHUP.
        self._taken[descriptor] = inodeOf(descriptor)
        try:
            self._kernel.unregister(descriptor)
        except OSError:
            if not self._isForgotten(descriptor):
                self._masks.pop(descriptor, None)
                return False
        return True

    def _isForgotten(self, descriptor: int) -> bool:
        # Whether the kernel knows it no more because another file has taken its place: giveBack() is to come.
        if isSo := descriptor in self._masks and waits.isMoving(descriptor):
            self._taken[descriptor] = inodeOf(descriptor)
        return isSo

    def _hasTaken(self, descriptor: int) -> bool:
        # Not what was closed since, and perhaps opened again.
        inode = self._taken.get(descriptor)
        return inode is not None and (descriptor in returning or inode == inodeOf(descriptor))


def _forkedChild() -> None:
    # A thread that is not there may have had it.
    epoll._lock = RLock()


life.atFork(__name__, inChild=_forkedChild)


# -- selectors


class SelectSelector(selectors.SelectSelector):
    """
    See C{selectors.SelectSelector}.
    """

    _select = staticmethod(select)


class PollSelector(selectors.PollSelector):
    """
    See C{selectors.PollSelector}.
    """

    _selector_cls = staticmethod(poll)


class EpollSelector(selectors.EpollSelector):
    """
    See C{selectors.EpollSelector}.
    """

    _selector_cls = epoll


DefaultSelector = EpollSelector
