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
from functools import partial
from math import ceil
from operator import index
from threading import RLock
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

# A program under C{ib-run} has these from its start: nothing that devices need is imported here.
from twisted_ib.blocking.descriptors import offloaded

if TYPE_CHECKING:
    from twisted_ib.blocking.loop import BlockingLoop
    from twisted_ib.blocking.socket import socket

    # Returns the descriptors of SDP, and the events of each; and those of the kernel.
    _Wanted = Callable[[], tuple[Iterable[tuple[int, int]], Iterable[tuple[int, int]]]]

# Now: these names may stand for the ones below later (L{twisted_ib.blocking.patch}).
_select, _poll, _epoll = kernel.select, kernel.poll, kernel.epoll
_IN, _OUT, _ERR, _HUP = kernel.POLLIN, kernel.POLLOUT, kernel.POLLERR, kernel.POLLHUP
# Its dict: a number of descriptors is looked up at once, without a function of Python for each; of what the
# garbage collector has taken there may still be a reference.
_held: dict[int, Callable[[], socket | None]] = vars(offloaded)["data"]
# select(2), notes: what poll(2) calls these is ready to read, to write, and exceptional there.
_READABLE: Final = kernel.POLLIN | kernel.POLLHUP | kernel.POLLERR
_WRITABLE: Final = kernel.POLLOUT | kernel.POLLERR
#: Waits that are over at once, of which one serves the devices too; a power of two.
_SERVED_EVERY: Final = 16
#: Seconds after which such a wait serves them whatever their count: a program may sleep between its waits.
_SERVED_SECONDS: Final = 1e-3


def _theLoop() -> BlockingLoop:
    global theLoop
    from twisted_ib.blocking import loop

    theLoop = loop.theLoop
    return theLoop()


#: From the first call on it is the loop's own.
theLoop: Callable[[], BlockingLoop] = _theLoop


def eventsOf(skt: socket, mask: int) -> int:
    """
    Return which events of poll(2) a socket over SDP has.

    @param mask: The events that are asked for.
    """
    # The slots, not the properties: it is asked some times for each wait.
    made, offload = skt._connecting, skt._sdp
    if made is not None:
        if not made.isOver:
            return 0
        if made.connection is None and made.error is not None:
            return (mask & (_IN | _OUT)) | _ERR | _HUP
        # Whatever is asked for, the caller looks again: at the connection, or at the kernel's attempt.
        return _OUT
    part = None if offload is None else offload.part
    if part is None:
        # Another thread has shut the listeners down, or gone on with an attempt: the caller looks again.
        return 0 if skt._closed else _HUP  # type: ignore[attr-defined]
    if part.loop.forked:
        # The call that it is ready for says so.
        return (mask & (_IN | _OUT)) | _ERR
    if part.listens:
        return _IN & mask if part.accepted else 0
    found = 0
    if mask & _IN and (part.inbox.size or part.ended or part.lost):
        # As its readable() says.
        found = _IN
    if mask & _OUT and part.writable():
        found |= _OUT
    if part.ended:
        found |= kernel.POLLRDHUP & mask
        if part.hungUp():
            found |= _HUP
    if part.lost:
        found |= _ERR
    return found


def _isKernels(skt: socket | None) -> bool:
    # Whether the kernel has events of a descriptor: of no socket over SDP, or of one that TCP reaches, too.
    part = None if skt is None or skt._sdp is None else skt._sdp.part
    return skt is None or (part is not None and part.listens and not part.alone)


class _Watch:
    """
    One wait for descriptors of SDP, and for some of the kernel's.
    """

    def __init__(
        self, wanted: Iterable[tuple[int, int]], others: Iterable[tuple[int, int]], settles: bool = True
    ) -> None:
        """
        @param wanted: The descriptors of SDP and their events.
        @param others: Those of the kernel.
        @param settles: Whether attempts that are over are taken over: by the thread that waits alone.
        """
        self.sockets: list[tuple[int, socket, int]] = []
        #: Descriptors that the kernel is to be asked for as well, with their events.
        self.shared = list(others)
        #: Whether these have changed since.
        self.isStale = False
        for descriptor, mask in wanted:
            reference = _held.get(descriptor)
            skt = None if reference is None else reference()
            if skt is None:
                self.shared.append((descriptor, mask))
                continue
            if settles and skt._connecting is not None and skt._connecting.isOver:
                skt.settle()
            part = None if skt._sdp is None else skt._sdp.part
            if part is None and skt._connecting is None:
                # The kernel's attempt to connect goes on.
                self.shared.append((descriptor, mask))
                continue
            if part is not None and part.listens and not part.alone:
                if not part.isServed:
                    part.serve()
                self.shared.append((descriptor, mask))
            self.sockets.append((descriptor, skt, mask))

    def ready(self) -> bool:
        for _, skt, mask in self.sockets:
            if eventsOf(skt, mask):
                return True
        return self.isStale

    def follow(self, wanted: _Wanted, isStale: Callable[[], bool]) -> bool:
        """
        C{ready}, where other threads change what is wanted: no reason to wake up, but the kernel's are.
        """
        if self.ready():
            return True
        if not isStale():
            return False
        fresh = _Watch(*wanted(), False)
        self.sockets, self.isStale = fresh.sockets, set(fresh.shared) != set(self.shared)
        return self.ready()

    def events(self) -> dict[int, int]:
        found = {}
        for descriptor, skt, mask in self.sockets:
            made = skt._connecting
            # Which of these is to be looked at again has no events yet.
            offload = skt._sdp
            hasPart = offload is not None and offload.part is not None
            if hasPart if made is None else made.error is not None:
                events = eventsOf(skt, mask)
                if events:
                    found[descriptor] = events
        return found


def _pollerOf(shared: list[tuple[int, int]]) -> kernel.poll:
    poller = _poll()
    for descriptor, mask in shared:
        poller.register(descriptor, mask)
    return poller


def wait(
    wanted: _Wanted, seconds: float | None, isStale: Callable[[], bool] | None = None
) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """
    Wait until descriptors are ready.

    @param wanted: Returns the descriptors.
    @param seconds: How long at most; L{None} for any time.
    @param isStale: Returns whether another thread has changed what is wanted; L{None} if none can.
    @return: The events of SDP's descriptors; what the kernel's C{poll} has returned for its own.
    """
    deadline = None if seconds is None else monotonic() + seconds
    with (loop := theLoop()):
        while True:
            watch = _Watch(*wanted())
            poller = _pollerOf(watch.shared) if watch.shared else None
            ready = watch.ready if isStale is None else partial(watch.follow, wanted, isStale)
            # That gives the interpreter away: not before the sleep if other threads want it.
            looks = not loop.driven.inThreads
            inTime = ready() or (looks and poller is not None and bool(poller.poll(0)))
            if sleeps := not inTime and seconds != 0:
                inTime = loop.sleep(ready, deadline, poller)
            else:
                # Also where some are ready at once: they hide none of the others, nor leave peers unserved.
                loop.poll()
            found = watch.events()
            # Each wait asks for those of the kernel once: a sleep that they have ended has done so.
            by, others = loop.reactor.kernelFound or (None, [])
            if poller is None or by is not poller or not others:
                others = [] if poller is None or (sleeps and looks and found) else poller.poll(0)
            if found or others or not inTime:
                return found, others


def _waitOne(descriptor: int, mask: int, deadline: float | None, isNow: bool) -> int | None:
    """
    Wait for one connection over SDP and nothing else, as most programs do.

    @return: Its events, 0 when the time is over; L{None} if it is for L{wait}.
    """
    reference = _held.get(descriptor)
    skt = None if reference is None else reference()
    offload = None if skt is None or skt._connecting is not None else skt._sdp
    if skt is None or offload is None:
        return None
    part = offload.part
    if part is None or part.listens or part.loop.forked:
        return None
    loop, ready = part.loop, partial(eventsOf, skt, mask)
    with loop:
        found = ready()
        if found:
            # Most of what is ready was left by the last call: others are served now and then.  But where only
            # some of it is, as a socket can nearly always be written to, the rest may have come since.
            loop.atOnce += 1
            if (
                loop.atOnce & (_SERVED_EVERY - 1)
                and not mask & ~found & (_IN | _OUT)
                and monotonic() - loop.servedAt < _SERVED_SECONDS
            ):
                return found
        inTime = found != 0
        if inTime or isNow:
            loop.poll()
        else:
            # As sleep() does, without a call more.
            over = loop.lead(ready, deadline)
            inTime = loop.follow(ready, deadline) if over is None else over
        loop.servedAt = monotonic()
        found = ready()
        # Another thread may have closed it.
        isSame = skt._sdp is offload and offload.part is part
        return found if isSame and (found or not inTime) else None


def _waitFor(
    ours: list[tuple[int, int]], others: list[tuple[int, int]], seconds: float | None
) -> tuple[dict[int, int], list[tuple[int, int]]]:
    # Wait for what no other thread changes.
    if len(ours) == 1 and not others:
        deadline = None if seconds is None else monotonic() + seconds
        ((descriptor, mask),) = ours
        found = _waitOne(descriptor, mask, deadline, seconds == 0)
        if found is not None:
            return ({descriptor: found} if found else {}), []
        seconds = None if deadline is None else max(0.0, deadline - monotonic())
    return wait(lambda: (ours, others), seconds)


def _divided(masks: dict[int, int]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    # The descriptors of SDP, with their events, and the others.
    divided: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
    for item in masks.items():
        divided[item[0] not in _held].append(item)
    return divided


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
    if not offloaded:
        return _select(rlist, wlist, xlist, timeout)
    lists = (list(rlist), list(wlist), list(xlist))
    by: tuple[list[int], ...] = ([], [], [])
    masks: dict[int, int] = {}
    # Loops, as each list in brackets is a call.
    for those, descriptors, mask in zip(lists, by, (_IN, _OUT, kernel.POLLPRI), strict=True):
        for each in those:
            at = each if each.__class__ is int else _descriptor(each)
            descriptors.append(at)
            masks[at] = masks.get(at, 0) | mask
    ours, others = _divided(masks)
    if not ours:
        return _select(*lists, timeout)
    if timeout is not None and timeout < 0:
        raise ValueError("timeout must be non-negative")
    found, more = _waitFor(ours, others, timeout)
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


class Poll:
    """
    The object that L{poll} returns, as C{select.poll} does; its class makes none.
    """

    _kernel: kernel.poll
    _masks: dict[int, int]

    def __new__(cls) -> Poll:
        """
        @raise TypeError: Always.
        """
        raise TypeError(f"cannot create '{cls.__module__}.{cls.__name__}' instances")

    def register(self, fd: Any, eventmask: int = kernel.POLLIN | kernel.POLLPRI | kernel.POLLOUT, /) -> None:
        """
        See C{select.poll.register}.
        """
        self._kernel.register(fd, eventmask)
        self._masks[_descriptor(fd)] = eventmask

    def modify(self, fd: Any, eventmask: int, /) -> None:
        """
        See C{select.poll.modify}.
        """
        self._kernel.modify(fd, eventmask)
        self._masks[_descriptor(fd)] = eventmask

    def unregister(self, fd: Any, /) -> None:
        """
        See C{select.poll.unregister}.
        """
        self._kernel.unregister(fd)
        self._masks.pop(_descriptor(fd), None)

    def poll(self, timeout: float | None = None, /) -> list[tuple[int, int]]:
        """
        See C{select.poll.poll}.
        """
        if not _held:
            return self._kernel.poll(timeout)
        # A copy: other threads may register meanwhile.
        masks = self._masks.copy()
        if masks.keys().isdisjoint(_held.keys()):
            return self._kernel.poll(timeout)
        ours, others = _divided(masks)
        seconds = None if timeout is None or timeout < 0 else ceil(timeout) * 1e-3
        found, more = _waitFor(ours, others, seconds)
        for descriptor, events in more:
            found[descriptor] = found.get(descriptor, 0) | events
        return list(found.items())


def poll() -> Poll:
    """
    See C{select.poll}.
    """
    made = object.__new__(Poll)
    # It checks what is registered.
    made._kernel = _poll()
    made._masks = {}
    return made


# -- epoll


class epoll:
    """
    See L{select.epoll}; for sockets over SDP it is level-triggered, but for C{EPOLLONESHOT}.
    """

    def __init__(self, sizehint: int = -1, flags: int = 0, _kernel: kernel.epoll | None = None) -> None:
        self._kernel = _epoll(sizehint, flags) if _kernel is None else _kernel
        self._isForeign = _kernel is not None
        self._masks: dict[int, int] = {}
        self._moved: set[int] = set()
        #: Of both, and of what the kernel has registered.  The loop's may be held when it is taken.
        self._lock = RLock()
        #: The threads that wait for SDP; how often others have changed what they wait for.
        self._waiting = self._changes = 0

    @classmethod
    def fromfd(cls, fd: int, /) -> epoll:
        return cls(_kernel=_epoll.fromfd(fd))

    @property
    def closed(self) -> bool:
        return self._kernel.closed

    def fileno(self) -> int:
        # The kernel's, which knows of no SDP.
        return self._kernel.fileno()

    def close(self) -> None:
        with self._lock:
            self._masks.clear()
            self._kernel.close()

    def __enter__(self) -> epoll:
        if self.closed:
            raise ValueError("I/O operation on closed epoll object")
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def register(self, fd: Any, eventmask: int = kernel.EPOLLIN | kernel.EPOLLPRI | kernel.EPOLLOUT) -> None:
        descriptor, eventmask = _descriptor(fd), index(eventmask)
        with self._lock:
            self._kernel.fileno()  # ValueError once it is closed.
            if self._waiting and descriptor not in self._masks and not _isKernels(offloaded.get(descriptor)):
                # The kernel's would wake those that wait: see _move().
                self._moved.add(descriptor)
            else:
                self._kernel.register(fd, eventmask)
                self._moved.discard(descriptor)
            self._masks[descriptor] = eventmask
        self._changed()

    def modify(self, fd: Any, eventmask: int) -> None:
        descriptor = _descriptor(fd)
        with self._lock:
            if descriptor not in self._moved:
                self._kernel.modify(fd, eventmask)
            self._masks[descriptor] = eventmask
        self._changed()

    def _changed(self) -> None:
        # epoll_wait(2): what one thread registers or modifies, another that waits already waits for.
        if self._waiting:
            with (loop := theLoop()):
                self._changes += 1
                loop.dispatch()

    def unregister(self, fd: Any) -> None:
        descriptor = _descriptor(fd)
        with self._lock:
            self._masks.pop(descriptor, None)
            if descriptor in self._moved:
                self._moved.discard(descriptor)
            else:
                self._kernel.unregister(fd)
        self._changed()

    def poll(self, timeout: float | None = None, maxevents: int = -1) -> list[tuple[int, int]]:
        masks, moved = self._masks, self._moved
        deadline = None if timeout is None or timeout < 0 else monotonic() + timeout
        while True:
            # A thread that registers has the lock until both know of it.
            with self._lock:
                ours = self._offloaded()
                for descriptor in moved - ours.keys():
                    # Closed, and perhaps opened again: as the kernel forgets a closed file.
                    moved.discard(descriptor)
                    masks.pop(descriptor, None)
            if ours:
                if not maxevents:
                    raise ValueError("maxevents must be greater than 0, got 0")
                result, isOver = self._wait(deadline, maxevents)
            else:
                result = self._kernel.poll(timeout, maxevents)
                isOver = not result
                if offloaded:
                    # Another thread has registered those of SDP, of which the kernel knows nothing.
                    with self._lock:
                        result = [
                            each
                            for each in result
                            if each[0] not in masks or _isKernels(offloaded.get(each[0]))
                        ]
            if result or isOver:
                return result
            timeout = None if deadline is None else max(0.0, deadline - monotonic())

    def _wait(self, deadline: float | None, maxevents: int) -> tuple[list[tuple[int, int]], bool]:
        # Wait for SDP too; return the events, and whether the time is over.
        masks = self._masks
        seen = 0

        def wanted() -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
            nonlocal seen
            seen = self._changes
            with self._lock:
                wants = []
                for descriptor, skt in self._offloaded().items():
                    if descriptor in self._moved or _isKernels(skt) or self._move(descriptor):
                        wants.append((descriptor, masks[descriptor] & 0xFFFF))
                # An object of C{fromfd} has descriptors that only the kernel knows of.
                hasOthers = self._isForeign or bool(masks.keys() - self._moved)
            others = [(self._kernel.fileno(), kernel.POLLIN)] if hasOthers else []
            return wants, others

        seconds = None if deadline is None else max(0.0, deadline - monotonic())
        with self._lock:
            self._waiting += 1
        try:
            found, more = wait(wanted, seconds, lambda: self._changes != seen)
        finally:
            with self._lock:
                self._waiting -= 1
        mine = self._kernel.fileno()
        for descriptor, events in more:
            if descriptor != mine and descriptor not in found:
                found[descriptor] = events
        isOver = not (found or more)
        for descriptor in list(found):
            with self._lock:
                mask = masks.get(descriptor)
                if mask is None or (mask & kernel.EPOLLONESHOT and not mask & 0xFFFF):
                    # Another thread has unregistered it, or has its one event.
                    del found[descriptor]
                elif mask & kernel.EPOLLONESHOT:
                    masks[descriptor] = mask & ~0xFFFF
                    if descriptor not in self._moved:
                        self._kernel.modify(descriptor, mask & ~0xFFFF)
        result = list(found.items())
        if more and any(descriptor == mine for descriptor, _ in more):
            others = self._kernel.poll(0, maxevents)
            result += [each for each in others if each[0] not in found and _isKernels(offloaded.get(each[0]))]
        return (result if maxevents < 0 else result[:maxevents]), isOver

    def _offloaded(self) -> dict[int, socket]:
        # The sockets of those that are registered.
        found = {}
        for descriptor in self._masks.keys() & _held.keys():
            reference = _held.get(descriptor)
            skt = None if reference is None else reference()
            if skt is not None:
                found[descriptor] = skt
        return found

    def _move(self, descriptor: int) -> bool:
        # The kernel's socket of what is SDP's alone is not connected, which epoll calls EPOLLHUP.
        self._moved.add(descriptor)
        try:
            self._kernel.unregister(descriptor)
        except OSError:
            self._masks.pop(descriptor, None)
            return False
        return True


# -- selectors


class SelectSelector(selectors.SelectSelector):
    """
    See C{selectors.SelectSelector}.
    """

    def _select(self, *arguments: Any) -> Any:
        return select(*arguments)


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
