"""
Waiting for several rsockets: C{rpoll}, C{rselect}, and as epoll(7) C{repoll_create}, C{repoll_ctl} and
C{repoll_wait}.
"""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Iterable

from _twisted_ib_cm import ffi, lib
from attrs import define, field

from twisted_ib import limits
from twisted_ib.drive.sleeper import awaitReady
from twisted_ib.verbs.c.errors import HandleError
from twisted_ib.verbs.c.functions import AGAIN, handler
from twisted_ib.verbs.c.pointers import CData, given
from twisted_ib.verbs.c.rsocket.descriptors import descriptors
from twisted_ib.verbs.c.rsocket.stream import Phase
from twisted_ib.verbs.c.waiting import nextOf
from twisted_ib.verbs.core.hub import hub

_MILLISECONDS, _MICROSECONDS = 1000, 1_000_000
_FD_BITS = 8
#: C{MOST_POLLED} of C{vain.c}, which has a bit for each.
_FEW = 16
#: The bits of poll(2)'s events, which are signed in C.
_EVENTS = 0x7FFF
#: Linux sys/epoll.h, C{EPOLL_CTL_*}.
_ADD, _DELETE, _MODIFY = 1, 2, 3


def _events(number: int, events: int) -> int:
    one = descriptors.get(number)
    if one is None:
        return awaitReady(number, 0, events & _EVENTS)
    socket = one.socket
    socket.progress()
    found = 0
    if socket.phase is Phase.LISTENING:
        return events & select.POLLIN if socket.canAccept else 0
    if events & select.POLLIN and socket.canRead:
        found |= select.POLLIN
    if events & select.POLLOUT and socket.canWrite:
        found |= select.POLLOUT
    if events & select.POLLRDHUP and socket.isAtEnd:
        found |= select.POLLRDHUP
    if socket.phase is Phase.OVER:
        found |= select.POLLERR
    return found


def _others(asked: Iterable[tuple[int, int]]) -> dict[int, int]:
    # Those that are no rsockets.
    others: dict[int, int] = {}
    for number, events in asked:
        if number >= 0 and number not in descriptors:
            others[number] = others.get(number, 0) | events & _EVENTS
    return others


@handler
def rpoll(fds: CData, count: int, timeout: int) -> int:
    if count > limits.QUEUE_PAIRS:
        raise HandleError("There are too many descriptors")
    if count:
        given(fds)

    def ask() -> int:
        ready = 0
        for i in range(count):
            each = fds[i]
            each.revents = 0 if each.fd < 0 else _events(each.fd, each.events)
            ready += bool(each.revents)
        return ready

    others = _others((fds[i].fd, fds[i].events) for i in range(count))
    if not timeout and count <= _FEW:
        lib.twisted_ib_polls_others(sum(1 << i for i in range(count) if fds[i].fd in others))
    return nextOf(ask, others, None if timeout < 0 else timeout / _MILLISECONDS)


@handler
def rselect(count: int, readable: CData, writable: CData, exceptional: CData, timeout: CData) -> int:
    size = ffi.sizeof("fd_set")
    if not 0 <= count <= size * _FD_BITS:
        raise HandleError("There are too many descriptors")
    # As select(2): an end is readable.
    kinds = (
        (readable, select.POLLIN | select.POLLHUP),
        (writable, select.POLLOUT),
        (exceptional, select.POLLERR | select.POLLPRI),
    )
    sets = [(memoryview(ffi.buffer(each, size)).cast("B"), event) for each, event in kinds if each]
    asked = [
        (target, number, event)
        for target, event in sets
        for number in range(count)
        if target[number // _FD_BITS] >> number % _FD_BITS & 1
    ]
    found: list[tuple[memoryview, int]] = []

    def ask() -> int:
        found[:] = [
            (target, number)
            for target, number, event in asked
            if _events(number, event) & (event | select.POLLERR)
        ]
        return len(found)

    seconds = None
    if timeout:
        seconds = timeout.tv_sec + timeout.tv_usec / _MICROSECONDS
    others = _others((number, event) for _, number, event in asked)
    ready = nextOf(ask, others, seconds, select.POLLERR)
    # When it is called again it asks again.
    if ready != AGAIN:
        for target, _ in sets:
            target[:] = bytes(size)
        for target, number in found:
            target[number // _FD_BITS] |= 1 << number % _FD_BITS
    return ready


# -- as epoll(7)


@define
class _Wanted:
    """
    An rsocket of a set.

    @ivar isOver: whether it was told, and is not told again (EPOLLONESHOT).
    @ivar seen: with EPOLLET, its C{edges} when it was told.
    """

    events: int
    data: int
    isOver: bool = False
    seen: int = -1


@define
class _Poll:
    """
    The rsockets of one set of C{repoll_create}, the one that was told longest ago first.  Other descriptors
    are in the kernel's set, whose descriptor is this one's.

    @ivar kernelFirst: whether the kernel's come first next time, as both take turns.
    """

    wanted: dict[int, _Wanted] = field(factory=dict)
    kernelFirst: bool = False

    def found(self, most: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        # A copy first: other threads add and remove.
        for number, one in list(self.wanted.items()):
            if one.isOver or len(found) == most:
                continue
            has = _events(number, one.events)
            if has and not (one.events & select.EPOLLET and one.seen == descriptors[number].socket.edges):
                found.append((number, has))
        return found

    def told(self, number: int) -> _Wanted:
        one = self.wanted[number] = self.wanted.pop(number)
        one.isOver = bool(one.events & select.EPOLLONESHOT)
        one.seen = descriptors[number].socket.edges
        return one


#: By their descriptors.
_polls: dict[int, _Poll] = {}


def _pollOf(number: int) -> _Poll:
    found = _polls.get(number)
    if found is None:
        raise HandleError(f"{number} is not of repoll_create", errno.EBADF)
    return found


def _kernels(result: int) -> int:
    if result < 0:
        raise HandleError("The kernel refuses", ffi.errno)
    return result


@handler
def repoll_create(flags: int) -> int:
    # As epoll_create1(2), but that rdma-core's rsocket.c looks over other flags.
    with hub:
        for number in [each for each in _polls if not _isSet(each)]:
            del _polls[number]
        if len(_polls) >= limits.RSOCKET_POLLS:
            raise HandleError("There are too many sets of rsockets", errno.EMFILE)
        number = _kernels(lib.twisted_ib_epoll_create(flags & select.EPOLL_CLOEXEC))
        _polls[number] = _Poll()
    return number


def _isSet(number: int) -> bool:
    # close(2) closes it, too, and nothing tells of that.
    try:
        return os.readlink(f"/proc/self/fd/{number}") == "anon_inode:[eventpoll]"
    except OSError:
        return False


def closeSet(number: int) -> bool:
    """
    Close a set; the caller has the hub.

    @return: whether there is one of this number.
    """
    if _polls.pop(number, None) is None:
        return False
    os.close(number)
    return True


def forget(number: int) -> None:
    """
    Take an rsocket that is being closed out of every set; the caller has the hub.
    """
    for poll in _polls.values():
        poll.wanted.pop(number, None)


@handler
def repoll_ctl(set: int, operation: int, socket: int, event: CData) -> int:
    poll = _pollOf(set)
    with hub:
        if operation != _DELETE:
            given(event)
        if socket not in descriptors:
            return _kernels(lib.twisted_ib_epoll_ctl(set, operation, socket, event))
        if operation not in (_ADD, _DELETE, _MODIFY):
            raise HandleError("There is no such operation")
        if (socket in poll.wanted) is (operation == _ADD):
            raise HandleError(f"{socket}", errno.EEXIST if operation == _ADD else errno.ENOENT)
        if operation == _DELETE:
            del poll.wanted[socket]
        else:
            poll.wanted[socket] = _Wanted(event.events, event.data.u64)
            # A thread that waits for this set looks again.
            hub.wake()
    return 0


@handler
def repoll_wait(set: int, events: CData, most: int, timeout: int) -> int:
    poll = _pollOf(set)
    if most <= 0:
        raise HandleError("There is no room for events")
    given(events)
    found: list[tuple[int, int]] = []

    def ask() -> int:
        found[:] = poll.found(most)
        return len(found) or awaitReady(set, 0)

    def tell() -> int:
        count = 0
        for isKernel in (poll.kernelFirst, not poll.kernelFirst):
            if isKernel and count < most:
                count += _kernels(lib.twisted_ib_epoll_wait(set, events + count, most - count, 0))
            elif not isKernel:
                count += _tell(poll, found, events + count, most - count)
        poll.kernelFirst = not poll.kernelFirst
        return count

    seconds = None if timeout < 0 else timeout / _MILLISECONDS
    return nextOf(ask, {set: select.POLLIN}, seconds, tell=tell)


def _tell(poll: _Poll, found: list[tuple[int, int]], events: CData, most: int) -> int:
    with hub:
        # Another thread may have removed one.
        told = [(poll.told(number), has) for number, has in found[:most] if number in poll.wanted]
    for i, (one, has) in enumerate(told):
        events[i].events, events[i].data.u64 = has, one.data
    return len(told)
