"""
One wait for sockets over SDP and for descriptors of the kernel, by which L{twisted_ib.blocking.select} does
all of its calls.
"""

from __future__ import annotations

import errno
import os
import select as kernel
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from twisted_ib.blocking.descriptors import held, offloaded
from twisted_ib.blocking.descriptors import pollerOf as pollerOf
from twisted_ib.blocking.loop import theLoop as theLoop

# This module is imported late: the kernel's name may stand for another by now (L{twisted_ib.blocking.patch}).
from twisted_ib.blocking.select import _NUMBERS, _descriptor, _select, pollers
from twisted_ib.drive.process import monotonic
from twisted_ib.drive.turn import Found
from twisted_ib.drive.turn import Idle as Idle

if TYPE_CHECKING:
    from twisted_ib.blocking.connection import Connection
    from twisted_ib.blocking.listening import Listening
    from twisted_ib.blocking.select import epoll
    from twisted_ib.blocking.socket import socket

    _Lists = tuple[list[Any], ...]
    # Returns the descriptors of SDP, and the events of each; and those of the kernel.
    Wanted = Callable[[], tuple[Iterable[tuple[int, int]], Iterable[tuple[int, int]]]]

_IN, _OUT, _ERR, _HUP = kernel.POLLIN, kernel.POLLOUT, kernel.POLLERR, kernel.POLLHUP
#: With the names for normal data, all of which a stream has.
_READ: Final = _IN | kernel.POLLRDNORM
WRITE: Final = _OUT | kernel.POLLWRNORM
#: Events that nobody asks for.
_ALWAYS: Final = _ERR | _HUP | kernel.POLLNVAL
#: Waits that are over at once, of which one serves the devices too; a power of two.
SERVED_EVERY: Final = 16
#: Seconds after which such a wait serves them whatever their count: a program may sleep between its waits.
_SERVED_SECONDS: Final = 1e-3
#: Sockets over SDP that are looked at, whether they all listen.
IDLE_LISTENERS: Final = 4
#: C{select} waits for fewer seconds: nanoseconds have 64 bits.
MOST_SECONDS: Final = (1 << 63) * 1e-9
#: Flags that EPOLLEXCLUSIVE may stand with (EPOLLWAKEUP is 1 << 29), and itself.
_EXCLUSIVE: Final = kernel.EPOLLEXCLUSIVE | kernel.EPOLLET | 1 << 29 | _IN | _OUT | _ERR | _HUP
#: Beside the events of a socket that an epoll object has: it is that object that becomes readable.
_WITHIN: Final = 1 << 16


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
            return (mask & (_READ | WRITE)) | _ERR | _HUP
        # Whatever is asked for, the caller looks again: at the connection, or at the kernel's attempt.
        return _OUT
    part = None if offload is None else offload.part
    if part is None:
        # Another thread has shut the listeners down, or gone on with an attempt: the caller looks again.
        return 0 if skt._closed else _HUP
    if part.loop.forked:
        # The call that it is ready for says so.
        return (mask & (_READ | WRITE)) | _ERR
    if part.listens:
        return _READ & mask if part.accepted else 0
    found = mask & _READ
    if found and not (part.inbox.size or part.ended or part.lost):
        # As its readable() says.
        found = 0
    # The kernel is asked for what it carries already.
    if mask & WRITE and part.writable() and not (part.move is not None and part.move.sends()):
        found |= mask & WRITE
    if part.move is not None and part.move.receives():
        if not part.inbox.size:
            # The kernel has it now.
            with part.loop:
                part.move.settle()
            return _HUP
    elif part.ended:
        found |= kernel.POLLRDHUP & mask
        if part.hungUp():
            found |= _HUP
    if part.lost:
        found |= _ERR
    return found


def isKernels(descriptor: int) -> bool:
    """
    Return whether the kernel has events of a descriptor: of no socket over SDP, or of one that TCP reaches,
    too.
    """
    skt = offloaded.get(descriptor)
    part = None if skt is None or skt._sdp is None else skt._sdp.part
    return skt is None or (part is not None and part.listens and not part.alone)


def isMoving(descriptor: int) -> bool:
    """
    Return whether a connection over SDP sends by TCP already.
    """
    skt = offloaded.get(descriptor)
    part = None if skt is None or skt._sdp is None else skt._sdp.part
    return part is not None and not part.listens and part.sendsByTCP()


def checkExclusive(mask: int, former: int | None = None) -> None:
    """
    Check a mask that the kernel does not see.

    @param former: The mask that it replaces, if there is one.
    @raise OSError: With EPOLLEXCLUSIVE it is invalid (epoll_ctl(2)).
    """
    isExclusive = mask & kernel.EPOLLEXCLUSIVE and (former is not None or mask & ~_EXCLUSIVE)
    if isExclusive or (former or 0) & kernel.EPOLLEXCLUSIVE:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def sentAt(descriptor: int) -> int | None:
    """
    Return what tells one attempt to send over SDP, by whatever thread, from another; L{None} where there is
    no connection.
    """
    skt = offloaded.get(descriptor)
    part = None if skt is None or skt._sdp is None else skt._sdp.part
    return None if part is None or part.listens else part.turns


def haveSent(sent: dict[int, int | None]) -> bool:
    """
    Return whether there was one since L{sentAt} has returned these.
    """
    return any(sentAt(descriptor) != before for descriptor, before in sent.items())


class Watch:
    """
    One wait for descriptors of SDP, and for some of the kernel's.
    """

    def __init__(
        self,
        wanted: Iterable[tuple[int, int]],
        others: Iterable[tuple[int, int]],
        settles: bool = True,
        around: Watch | None = None,
    ) -> None:
        """
        @param wanted: The descriptors of SDP, and of epoll objects, and their events.
        @param others: Those of the kernel.
        @param settles: Whether attempts that are over are taken over: by the thread that waits alone.
        @param around: The wait for an epoll object's descriptor, of which this one is for what that has.
        """
        self.sockets: list[tuple[int, socket, int]] = []
        #: Descriptors that the kernel is to be asked for as well, with their events.
        self.shared = list(others)
        #: Whether these have changed since.
        self.isStale = False
        #: The epoll objects that are looked through; and what the kernel is to be asked for in their place,
        #: with its events and the descriptor of the object.
        self.nested: list[epoll] = []
        self.inner: list[tuple[int, int, int]] = []
        self.around = self if around is None else around
        try:
            for descriptor, mask in wanted:
                reference = held.get(descriptor)
                skt = None if reference is None else reference()
                if skt is None:
                    self._lookThrough(descriptor, mask, settles)
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
                elif part is not None and not part.listens and mask & WRITE and part.sendsByTCP():
                    self.shared.append((descriptor, mask & WRITE))
                self.sockets.append((descriptor, skt, mask))
        except BaseException:
            self.leave()
            raise

    def _lookThrough(self, descriptor: int, mask: int, settles: bool) -> None:
        # The kernel's, and perhaps the descriptor of an epoll object, which is never writable.
        if self.around is self:
            # Others are the kernel's object's, too.
            self.shared.append((descriptor, mask))
        reference = pollers.get(descriptor)
        poller = None if reference is None or not mask & _READ else reference()
        if poller is None or not _isEpoll(descriptor):
            return
        self.around.nested.append(poller)
        inner = Watch(poller.enter(self.around), (), settles, self.around)
        self.sockets += [(descriptor, skt, asked | _WITHIN) for _, skt, asked in inner.sockets]
        self.inner += [(at, asked, descriptor) for at, asked, *_ in (*inner.shared, *inner.inner)]

    def leave(self) -> None:
        """
        The wait is over.
        """
        while self.nested:
            self.nested.pop().leave(self)

    def poller(self) -> kernel.poll:
        """
        Return the kernel's object for all that it is asked for.
        """
        masks = dict(self.shared)
        for at, asked, _ in self.inner:
            # Another thread may have closed it.
            with suppress(OSError):
                os.fstat(at)
                masks[at] = masks.get(at, 0) | asked
        return pollerOf([*masks.items()])

    def outward(self, others: Found) -> Found:
        """
        Return the kernel's events, those of what an epoll object has as that one's.
        """
        events, found = dict(others), {}
        for at, asked in self.shared:
            if has := events.get(at, 0) & (asked | _ALWAYS):
                found[at] = has
        for at, asked, descriptor in self.inner:
            if events.get(at, 0) & (asked | _ERR | _HUP):
                found[descriptor] = found.get(descriptor, 0) | _IN
        return [*found.items()]

    def ready(self) -> bool:
        """
        Return whether one of SDP is ready.
        """
        for _, skt, mask in self.sockets:
            if eventsOf(skt, mask):
                return True
        return self.isStale

    def follow(self, wanted: Wanted, isStale: Callable[[], bool]) -> bool:
        """
        C{ready}, where other threads change what is wanted: no reason to wake up, but the kernel's are.
        """
        if self.ready():
            return True
        if not isStale():
            return False
        fresh = Watch(*wanted(), False)
        self.sockets = fresh.sockets
        # What is within is looked through anew.
        self.isStale = bool(fresh.nested or self.nested) or set(fresh.shared) != set(self.shared)
        fresh.leave()
        return self.ready()

    def events(self) -> dict[int, int]:
        """
        Return those of SDP that are ready, with their events.
        """
        found = {}
        for descriptor, skt, mask in self.sockets:
            made = skt._connecting
            # Which of these is to be looked at again has no events yet.
            offload = skt._sdp
            hasPart = offload is not None and offload.part is not None
            if hasPart if made is None else made.error is not None:
                events = eventsOf(skt, mask)
                # Not if it is the kernel's since that look.
                if events and skt._sdp is offload:
                    found[descriptor] = _IN if mask & _WITHIN else events
        return found


def _isEpoll(descriptor: int) -> bool:
    # Its number may be another file's since a program has closed that alone.
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}") == "anon_inode:[eventpoll]"
    except OSError:
        return False


def wait(
    wanted: Wanted, deadline: float | None, isStale: Callable[[], bool] | None = None
) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """
    Wait until descriptors are ready.

    @param wanted: Returns the descriptors.
    @param deadline: Until when, by C{monotonic}: 0.0 not to wait, L{None} for ever.
    @param isStale: Returns whether another thread has changed what is wanted; L{None} if none can.
    @return: The events of SDP's descriptors; what the kernel's C{poll} has returned for its own.
    """
    with (loop := theLoop()):
        while True:
            watch = Watch(*wanted())
            try:
                poller = watch.poller() if watch.inner else pollerOf(watch.shared) if watch.shared else None
                ready = watch.ready if isStale is None else partial(watch.follow, wanted, isStale)
                # That gives the interpreter away: not before the sleep if other threads want it.
                looks = not loop.driven.inThreads
                inTime = ready() or (looks and poller is not None and bool(poller.poll(0)))
                if sleeps := not inTime and deadline != 0.0:
                    inTime = loop.sleep(ready, deadline, poller)
                else:
                    # Also where some are ready at once: they hide no others, nor leave peers unserved.
                    loop.poll()
                found = watch.events()
                # Each wait asks for those of the kernel once: a sleep that they have ended has done so.
                by, others = loop.reactor.kernelFound or (None, [])
                if poller is None or by is not poller or not others:
                    others = [] if poller is None or (sleeps and looks and found) else poller.poll(0)
                if watch.inner:
                    others = watch.outward(others)
                if found or others or not inTime:
                    return found, others
            finally:
                if watch.nested:
                    watch.leave()


def _waitOne(descriptor: int, mask: int, deadline: float | None) -> int | None:
    """
    Wait for one connection over SDP and nothing else, as most programs do.

    @return: Its events, 0 when the time is over; L{None} if it is for L{wait}.
    """
    reference = held.get(descriptor)
    skt = None if reference is None else reference()
    offload = None if skt is None or skt._connecting is not None else skt._sdp
    if skt is None or offload is None:
        return None
    part = offload.part
    if part is None or part.listens or (part.move is not None and part.move.sends()) or part.loop.forked:
        return None
    loop, ready = part.loop, partial(eventsOf, skt, mask)
    with loop:
        found = ready()
        if offload.part is not part:
            # It is the kernel's since that look.
            return None
        if found:
            # Most of what is ready was left by the last call: others are served now and then.  But where only
            # some of it is, as a socket can nearly always be written to, the rest may have come since.
            loop.atOnce += 1
            if (
                loop.atOnce & (SERVED_EVERY - 1)
                and not mask & ~found & (_READ | WRITE)
                and monotonic() - loop.servedAt < _SERVED_SECONDS
            ):
                return found
        inTime = found != 0
        if inTime or deadline == 0.0:
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


def idly(deadline: float | None, call: Callable[[int, float], Found | None]) -> Found | None:
    """
    Wait in one call of the kernel's where nothing stands over SDP but listeners that TCP reaches, too: until
    a client comes over SDP, what the kernel says is all there is.

    @param deadline: As of L{wait}.
    @param call: Waits for what is wanted, and for a descriptor more, so many seconds; returns what C{poll}
        would find, and L{None} if that one is ready, or nothing.
    @return: The result of the call; L{None} if L{wait} is to follow.  The next waits may be L{Idle.wait}.
    """
    if len(held) > IDLE_LISTENERS or deadline == 0.0:
        return None
    loop = None
    for part in _parts():
        if part is None or not _isPlain(part):
            return None
        loop = part.loop
    if loop is None or loop.forked:
        return None
    seconds = None if deadline is None else max(0.0, deadline - monotonic())
    return loop.idle(_isOffered, seconds, partial(call, loop.reactor.descriptor))


def _isOffered() -> bool:
    # Of any listener: another thread may have one more waited for.
    return any(not _isPlain(part) for part in _parts())


def _isPlain(part: Connection | Listening | None) -> bool:
    return part is not None and part.listens and not part.alone and part.isServed and not part.ready()


def _parts() -> Iterator[Connection | Listening | None]:
    # Those of all sockets over SDP.
    for reference in list(held.values()):
        skt = reference()
        yield None if skt is None or skt._sdp is None else skt._sdp.part


def selectBeside(
    lists: _Lists, plain: list[_Lists], waited: list[None], bell: tuple[int, int], milliseconds: float
) -> Found:
    """
    C{select}, for a descriptor of the loop's, too.

    @param plain: Gets what it returns; C{waited} gets something first.
    @return: As of poll(2): of those that are to be written to, only whether there are some.
    """
    at = bell[0]
    waited.append(None)
    try:
        found = _select([*lists[0], at], lists[1], lists[2], milliseconds * 1e-3)
    except ValueError:
        # select(2): a descriptor, perhaps that one, is FD_SETSIZE or more, which poll(2) can wait for.
        return [bell]
    # The objects themselves are returned, in their order.
    if found[0] and found[0][-1] is at:
        return [bell]
    plain.append(found)
    read = found[0] if _NUMBERS.issuperset(map(type, found[0])) else map(_descriptor, found[0])
    return [*zip(read, repeat(_IN))] or [(-1, _OUT)] * bool(found[1] or found[2])


def selectIdly(
    lists: _Lists, plain: list[_Lists], waited: list[None], at: int, seconds: float
) -> Found | None:
    """
    The same as the call of L{idly}.
    """
    found = selectBeside(lists, plain, waited, (at, _IN), seconds * 1e3)
    if found and found[0][0] != at:
        return found
    plain.clear()
    return None


def foundBeside(found: Found, at: int) -> Found | None:
    """
    Return what is ready of those of a call of L{idly}; L{None} if its descriptor is.
    """
    for descriptor, _ in found:
        if descriptor == at:
            return None
    return found or None


def waitFor(
    ours: list[tuple[int, int]],
    others: list[tuple[int, int]],
    deadline: float | None,
    call: Callable[[int, float], list[tuple[int, int]] | None] | None = None,
) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """
    L{wait} for descriptors of SDP, and of the kernel, that no other thread changes.

    @param call: As of L{idly}, for all of them.
    """
    if len(ours) == 1 and not others:
        ((descriptor, mask),) = ours
        found = _waitOne(descriptor, mask, deadline)
        if found is not None:
            return ({descriptor: found} if found else {}), []
    plain = None if call is None else idly(deadline, call)
    return wait(lambda: (ours, others), deadline) if plain is None else ({}, plain)


def socketsOf(descriptors: dict[int, int]) -> dict[int, socket]:
    """
    Return the sockets over SDP among some descriptors.
    """
    found = {}
    for descriptor in descriptors.keys() & held.keys():
        reference = held.get(descriptor)
        skt = None if reference is None else reference()
        if skt is not None:
            found[descriptor] = skt
    return found


def refuse(timeout: float) -> None:
    """
    @raise OverflowError: Nobody waits so long.
    @raise ValueError: It is no number, or less than 0.
    """
    if timeout != timeout:
        raise ValueError("Invalid value NaN (not a number)")
    if timeout < 0:
        raise ValueError("timeout must be non-negative")
    raise OverflowError("timeout is too large")


def divided(masks: dict[int, int]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """
    Return the descriptors of SDP, and of epoll objects, with their events, and the others.
    """
    parts: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
    for item in masks.items():
        parts[item[0] not in held and item[0] not in pollers].append(item)
    return parts
