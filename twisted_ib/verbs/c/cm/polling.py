"""
Waiting for several rsockets: C{rpoll} and C{rselect}.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable

from _twisted_ib_cm import ffi

from twisted_ib import limits
from twisted_ib.verbs.c.errors import HandleError
from twisted_ib.verbs.c.functions import handler
from twisted_ib.verbs.c.pointers import CData, given
from twisted_ib.verbs.c.rsocket.descriptors import descriptors
from twisted_ib.verbs.c.rsocket.stream import Phase
from twisted_ib.verbs.core.hub import hub

_MILLISECONDS, _MICROSECONDS = 1000, 1_000_000
_FD_BITS = 8
#: Seconds between two looks at descriptors that are no rsockets: they wake nobody here.
_GLANCE = 0.05


def _events(number: int, events: int) -> int:
    one = descriptors.get(number)
    if one is None:
        poller = select.poll()
        poller.register(number, events)
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


def _waitForAny(ask: Callable[[], int], timeout: float | None) -> int:
    """
    @param ask: how many are ready.
    @param timeout: seconds; None waits for ever.
    """
    end = None if timeout is None else time.monotonic() + timeout
    found = [0]

    def ready() -> bool:
        found[0] = ask()
        return bool(found[0])

    while True:
        left = None if end is None else max(0.0, end - time.monotonic())
        hub.wait(ready, left if left is not None and left < _GLANCE else _GLANCE)
        if found[0] or (end is not None and time.monotonic() >= end):
            return found[0]


@handler
def rpoll(fds: CData, count: int, timeout: int) -> int:
    """
    Wait for one of several sockets, or other files.
    """
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

    return _waitForAny(ask, None if timeout < 0 else timeout / _MILLISECONDS)


@handler
def rselect(count: int, readable: CData, writable: CData, exceptional: CData, timeout: CData) -> int:
    """
    Wait for one of several sockets, or other files.
    """
    size = ffi.sizeof("fd_set")
    if not 0 <= count <= size * _FD_BITS:
        raise HandleError("There are too many descriptors")
    kinds = ((readable, select.POLLIN), (writable, select.POLLOUT), (exceptional, select.POLLERR))
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
    return _waitForAny(ask, seconds)
