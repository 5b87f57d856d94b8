"""
Waiting for several rsockets: C{rpoll}, C{rselect}, and as epoll(7) C{repoll_create}, C{repoll_ctl} and
C{repoll_wait}.
"""

from __future__ import annotations

import errno
import os
import select
import time
from collections.abc import Callable, Iterable, Iterator

from _twisted_ib_cm import ffi
from attrs import define, field

from twisted_ib import limits
from twisted_ib.drive.sleeper import Sleep
from twisted_ib.verbs.c.errors import HandleError
from twisted_ib.verbs.c.functions import handler
from twisted_ib.verbs.c.pointers import CData, given
from twisted_ib.verbs.c.rsocket.descriptors import descriptors
from twisted_ib.verbs.c.rsocket.stream import Phase
from twisted_ib.verbs.core.asleep import OWN_SECONDS
from twisted_ib.verbs.core.hub import hub

_MILLISECONDS, _MICROSECONDS = 1000, 1_000_000
_FD_BITS = 8
#: The octets of poll(2)'s events, which are signed in C.
_EVENTS = 0xFFFF
#: Seconds between two looks at descriptors that are no rsockets and have ended a sleep in vain: poll(2) tells
#: what nobody asked for, too, as that a pipe's other end is closed.
_GLANCE = 0.05
#: Linux sys/epoll.h, C{EPOLL_CTL_*}.
_ADD, _DELETE, _MODIFY = 1, 2, 3
_Asked = Iterable[tuple[int, int]]


def _events(number: int, events: int) -> int:
    one = descriptors.get(number)
    if one is None:
        poller = select.poll()
        poller.register(number, events & _EVENTS)
        ready = poller.poll(0)
        return ready[0][1] if ready else 0
    socket = one.socket
    socket.progress()
    found = 0
    if socket.phase is Phase.LISTENING:
        return events & select.POLLIN if socket.canAccept else 0
    if events & select.POLLIN and socket.canRead:
        found |= select.POLLIN
    if events & select.POLLOUT and socket.canWrite:
        found |= select.POLLOUT
    if socket.phase is Phase.OVER:
        found |= select.POLLERR
    return found


def _waitForAny(ask: Callable[[], int], asked: _Asked, timeout: float | None) -> int:
    """
    @param ask: how many are ready.
    @param asked: the descriptors, and the events of each.
    @param timeout: seconds; None waits for ever.
    """
    end = None if timeout is None else time.monotonic() + timeout
    inVain: set[int] = set()
    while True:
        found = hub.lieDown(ask, end, ask)
        if not isinstance(found, Sleep):
            return found or 0
        most = time.monotonic() + (_GLANCE if inVain else OWN_SECONDS)
        others: dict[int, int] = {}
        for number, events in asked:
            if number >= 0 and number not in descriptors and number not in inVain:
                others[number] = others.get(number, 0) | events & _EVENTS
        try:
            inVain |= found.sleep(most if end is None else min(most, end), others.items()) & others.keys()
        finally:
            hub.getUp(found.sleeper)
            found.sleeper.close()


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

    asked = [(fds[i].fd, fds[i].events & _EVENTS) for i in range(count)]
    return _waitForAny(ask, asked, None if timeout < 0 else timeout / _MILLISECONDS)


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
    asked = [(bytes(each), each, event) for each, event in sets]

    def ask() -> int:
        ready = 0
        for before, target, event in asked:
            found = bytearray(size)
            for number in range(count):
                at, bit = divmod(number, _FD_BITS)
                if before[at] >> bit & 1 and _events(number, event) & (event | select.POLLERR):
                    found[at] |= 1 << bit
                    ready += 1
            target[:] = found
        return ready

    seconds = None
    if timeout:
        seconds = timeout.tv_sec + timeout.tv_usec / _MICROSECONDS
    numbers = [
        (number, event)
        for before, _, event in asked
        for number in range(count)
        if before[number // _FD_BITS] >> number % _FD_BITS & 1
    ]
    return _waitForAny(ask, numbers, seconds)


# -- as epoll(7)


@define
class _Wanted:
    events: int
    data: int
    file: tuple[int, ...]
    isOver: bool = False


@define
class _Poll:
    # The descriptors of one repoll_create, the one that was told longest ago first.
    wanted: dict[int, _Wanted] = field(factory=dict)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        # A copy first: other threads add and remove.
        wanted = list(self.wanted.items())
        return iter([(number, each.events) for number, each in wanted if not each.isOver])

    def found(self, most: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for number, events in self:
            has = _events(number, events)
            if has and not self.knows(number):
                del self.wanted[number]
            elif has and len(found) < most:
                found.append((number, has))
        return found

    def knows(self, number: int) -> bool:
        # epoll(7): a file that is closed is in no set, though another may have got its number.
        one = self.wanted.get(number)
        return one is not None and one.file == _fileOf(number)

    def told(self, number: int) -> _Wanted:
        one = self.wanted[number] = self.wanted.pop(number)
        one.isOver = bool(one.events & select.EPOLLONESHOT)
        return one


#: By their descriptors.
_polls: dict[int, _Poll] = {}


def _pollOf(number: int) -> _Poll:
    found = _polls.get(number)
    if found is None:
        raise HandleError(f"{number} is not of repoll_create", errno.EBADF)
    return found


@handler
def repoll_create(flags: int) -> int:
    # As epoll_create1(2), but that rdma-core's rsocket.c looks over other flags.
    with hub:
        for number in [each for each in _polls if _fileOf(each) is None]:
            del _polls[number]
        if len(_polls) >= limits.RSOCKET_POLLS:
            raise HandleError("There are too many sets of rsockets", errno.EMFILE)
        # There is no other function that closes it but close(2).
        number = os.open(os.devnull, os.O_RDWR)
        os.set_inheritable(number, not flags & os.O_CLOEXEC)
        _polls[number] = _Poll()
    return number


def _fileOf(number: int) -> tuple[int, ...] | None:
    # Which file a descriptor is of, None if it is closed; rsockets are all alike: C{forget} takes them out.
    if number in descriptors:
        return ()
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return found.st_dev, found.st_ino


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
        file = _fileOf(socket)
        if file is None:
            raise HandleError(f"{socket} is not open", errno.EBADF)
        if operation not in (_ADD, _DELETE, _MODIFY):
            raise HandleError("There is no such operation")
        if poll.knows(socket) is (operation == _ADD):
            raise HandleError(f"{socket}", errno.EEXIST if operation == _ADD else errno.ENOENT)
        if operation == _DELETE:
            del poll.wanted[socket]
        else:
            given(event)
            poll.wanted[socket] = _Wanted(event.events, event.data.u64, file)
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
        return len(found)

    _waitForAny(ask, poll, None if timeout < 0 else timeout / _MILLISECONDS)
    with hub:
        # Another thread may have removed one.
        told = [(poll.told(number), has) for number, has in found if number in poll.wanted]
    for i, (one, has) in enumerate(told):
        events[i].events, events[i].data.u64 = has, one.data
    return len(told)
