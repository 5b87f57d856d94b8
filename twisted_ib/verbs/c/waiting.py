"""
Waiting for events as programs do: until there is one, or not at all.

The thread sleeps in C, on the descriptors that L{nextEvent} says, and the handler is called again after that.
A signal ends the sleep as it ends C{read(2)}: with EINTR, if its handler has no SA_RESTART.
"""

from __future__ import annotations

import errno
import select
import threading
import traceback
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, Protocol, TypeVar

import attrs
from _twisted_ib_verbs import ffi, lib

from twisted_ib import limits
from twisted_ib.drive.process import monotonic
from twisted_ib.drive.sleeper import Sleep, Sleeper, awaitReady, milliseconds
from twisted_ib.hca.host.libc import isNonBlocking
from twisted_ib.verbs.c import attend
from twisted_ib.verbs.c.errors import HandleError
from twisted_ib.verbs.c.functions import AGAIN
from twisted_ib.verbs.c.handles import Entry, handles
from twisted_ib.verbs.core.asleep import OWN_SECONDS
from twisted_ib.verbs.core.attendant import LEAST_PAUSE
from twisted_ib.verbs.core.hub import hub

_Event = TypeVar("_Event")
#: One that destroys looks for acknowledgements at least so often, in seconds.
PAUSE_SECONDS = 0.016
#: Times in a row that the thread which serves peers does so before it sees whether it is to end.
_TURNS = range(64)
#: The bits of C{twisted_ib_await}'s result that say that what it watched is to stay, and that a thread polls.
_LOOKED, _POLLED = 2, 4
#: Seconds between two looks at descriptors that tell only what nobody waits for: poll(2) does so unasked, as
#: that a pipe's other end is closed.
_GLANCE = 0.05


@attrs.define
class _Destroying:
    """
    A call that waits for acknowledgements.

    @ivar destroyed: of whose events it does.
    @ivar pause: the seconds of its next sleep.
    """

    destroyed: list[Entry]
    pause: float = 0.001


class _Thread(threading.local):
    """
    The descriptors that a thread sleeps on, and its calls that destroy.

    @ivar fds: the descriptors and their events, which its C{struct twisted_ib_sleep} points to.
    @ivar sleeper: wakes it; L{None} while it does not sleep.
    @ivar calls: those that wait, by the numbers that C{twisted_ib_wait} keeps: in the sleep of one a signal's
        handler may destroy, too, and wait for that.
    @ivar ends: when those are over that wait as poll(2), by C{time.monotonic()}, likewise.
    @ivar numbers: the numbers of the calls to come.
    """

    fds: object = None
    sleeper: Sleeper | None = None

    def __init__(self) -> None:
        self.calls: dict[int, _Destroying] = {}
        self.ends: dict[int, float] = {}
        self.numbers = count(1)


_thread = _Thread()


def getUp() -> bool:
    """
    The thread sleeps no more.

    @return: whether it slept until there is an event.
    """
    sleeper, _thread.sleeper = _thread.sleeper, None
    if sleeper is None:
        return False
    hub.getUp(sleeper)
    sleeper.close()
    return True


def nextEvent(
    fd: int, take: Callable[[], _Event | None], leave: Callable[[], bool] | None = None
) -> _Event | None:
    """
    Take an event, or prepare the sleep until there is one.

    @param fd: the descriptor of the events; a program that has made it non-blocking wants EAGAIN in place of
        waiting.
    @param take: fetches an event, if there is one; called with the hub's lock held.
    @param leave: says whether a call that does not wait leaves the oldest event to the next one, as it does
        with one that it brings itself: the program polls its completions first, which have come with that,
        and before it.  Called as C{take}.
    @return: the event; L{None} if there is none yet: the handler is to return
        L{AGAIN<twisted_ib.verbs.c.functions.AGAIN>}.
    @raise HandleError: there is none, and the program does not want to wait (EAGAIN); or a signal has come
        (EINTR).
    """
    if attend.isEnding():
        # Another thread ends the process, and this one hears nothing of that.
        rest()
        return None
    sleep = lib.twisted_ib_own_sleep()
    isInterrupted = sleep.interrupted
    sleep.interrupted = sleep.count = sleep.milliseconds = 0
    # As read(2), which does not ask again either: a call that has slept waits.
    # One that is called again as an object was destroyed in this moment has not.
    isWaiting = getUp() or not isNonBlocking(fd)
    if leave is not None and not isWaiting:
        with hub:
            present = None if leave() else take()
        if present is not None:
            return present
        take = _nothing
    # Others do not take for a thread that a signal's handler may have sleep no more: they look.
    found = hub.lieDown(take, None if isWaiting and not isInterrupted else 0.0, lambda: awaitReady(fd, 0))
    if isinstance(found, Sleep):
        _thread.sleeper = found.sleeper
        _prepare(found.seconds, [fd, *found.fds])
        return None
    if found is None:
        raise HandleError("A signal has come", errno.EINTR) if isInterrupted else _noEvent()
    return found


def _nothing() -> None:
    return None


def nextOf(
    take: Callable[[], int],
    others: Mapping[int, int],
    seconds: float | None,
    unasked: int = -1,
    tell: Callable[[], int] | None = None,
) -> int:
    """
    As poll(2): say how many are ready, or prepare the sleep until one is.

    @param take: says how many are; called with the hub's lock held, in any thread.
    @param others: descriptors that C{take} looks at, with the events of poll(2) that it waits for.
    @param seconds: from the first call on; L{None} waits for ever.
    @param unasked: events that C{take} counts of each descriptor beside those.
    @param tell: takes what is ready, without the lock, and says how many.  None, where another thread was
        quicker: the wait goes on, until the same end.  By default C{take} has taken it.
    @return: how many; 0 if the time is over; or L{AGAIN<twisted_ib.verbs.c.functions.AGAIN>}.
    @raise HandleError: a signal has come (EINTR).
    """
    if attend.isEnding():
        rest()
        return AGAIN
    sleep, ends = lib.twisted_ib_own_sleep(), _thread.ends
    isInterrupted = sleep.interrupted
    sleep.interrupted = 0
    getUp()
    now = monotonic()
    end = ends.pop(sleep.slept, now) if sleep.slept else None if seconds is None else now + seconds
    while not isinstance(found := hub.lieDown(take, 0.0 if isInterrupted else end, take), Sleep):
        if isInterrupted and not found:
            raise HandleError("A signal has come", errno.EINTR)
        if not found or tell is None or (found := tell()):
            return found or 0
    _thread.sleeper = found.sleeper
    most, asked = found.seconds, dict(others)
    for fd, has in _ready(asked):
        if not has & (asked[fd] | unasked):
            del asked[fd]
            most = min(most, _GLANCE)
    if end is not None:
        # Those whose time is over were left by siglongjmp(3).
        for number in [each for each, last in ends.items() if last < now]:
            del ends[number]
        sleep.slept = sleep.slept or next(_thread.numbers)
        ends[sleep.slept] = end
        most = min(most, end - monotonic())
    fds = [*found.fds, *asked]
    _prepare(most, fds, [*[select.POLLIN] * len(found.fds), *asked.values()])
    return AGAIN


def _ready(asked: Mapping[int, int]) -> list[tuple[int, int]]:
    if not asked:
        return []
    poller = select.poll()
    for fd, events in asked.items():
        poller.register(fd, events)
    return poller.poll(0)


def rest() -> None:
    """
    Prepare a sleep that only time ends.
    """
    _prepare(OWN_SECONDS, [])


def destroying(function: Callable[..., object]) -> Callable[..., int]:
    """
    @param function: a handler that destroys objects.
    @return: one that is done when the program has acknowledged the events that it had of them, as rdma-core's
        (man ibv_get_async_event(3), ibv_get_cq_event(3) and rdma_destroy_id(3)): UCX frees what the handler
        of an event uses.  No signal ends that wait.
    """

    def call(*arguments: object) -> int:
        sleep, calls = lib.twisted_ib_own_sleep(), _thread.calls
        if sleep.slept:
            sleep.interrupted = 0
        else:
            with handles.destroying() as destroyed:
                function(*arguments)
            if handles.isOwed(destroyed):
                sleep.slept = next(_thread.numbers)
                calls[sleep.slept] = _Destroying(destroyed)
        # Those, too, that a handler has left by siglongjmp(3): no more are kept than have events.
        for number in [each for each, one in calls.items() if not handles.isOwed(one.destroyed)]:
            del calls[number]
        own = calls.get(sleep.slept)
        if own is None:
            return 0
        # Nothing ends the sleep, for which no descriptor may be free: the next is twice as long.
        _prepare(own.pause, [])
        own.pause = min(2 * own.pause, PAUSE_SECONDS)
        return AGAIN

    return call


def awaitEvent(fd: int, take: Callable[[], _Event | None]) -> _Event:
    """
    Wait for an event in Python, within a call that has more to do: no signal ends that.

    @param take: as L{nextEvent} has it.
    @raise HandleError: there is none, and the program does not want to wait (EAGAIN).
    """
    found = hub.wait(take, 0 if isNonBlocking(fd) else None)
    if found is None:
        raise _noEvent()
    return found


def _noEvent() -> HandleError:
    return HandleError("There is no event", errno.EAGAIN)


def _prepare(seconds: float, fds: list[int], events: list[int] | None = None) -> None:
    sleep = lib.twisted_ib_own_sleep()
    sleep.fds, sleep.events = _thread.fds = (
        ffi.new("int[]", fds),
        ffi.NULL if events is None else ffi.new("short[]", events),
    )
    sleep.count, sleep.milliseconds = len(fds), milliseconds(seconds)


class _Ring(Protocol):
    # A path between processes: see RingPath.
    alive: bool
    owed: tuple[int, int, int] | None

    def ends(self) -> tuple[memoryview, memoryview, memoryview]: ...


def _canDeliver(path: _Ring) -> bool:
    # As RingPath.pending() has it: behind a refusal that finds no room unread records are no work, and a peer
    # can leave it at that for ever.
    return hasattr(path, "ends") and path.alive and not path.owed


class Arrivals:
    """
    The rings of all devices, or where there are none their descriptors, which a thread watches in C, by
    C{building/arrivals.c}: it takes Python's lock only when there is something to do.
    """

    def __init__(self) -> None:
        self._paths: list[_Ring] = []
        self._fds: list[int] = []
        self._isAll = False
        # A thread that polls may still look at these, by the identity of the tuple.
        self._looked: dict[int, object] = {}
        first = {"spin": int(limits.ANSWER_SECONDS * 1e9), "hits": 256}
        # The structure, and what its pointers do not keep.
        self._watched: tuple[Any, ...] = (ffi.new("struct twisted_ib_arrivals *", first),)

    def watch(self, seconds: float) -> int | None:
        """
        See L{Hub.watch<twisted_ib.verbs.core.hub.Hub>}.
        """
        total: int | None = None
        try:
            for _ in _TURNS:
                with hub:
                    n = 0 if total is None else hub.drive()
                    # Kept until this thread is back: its successor may follow other rings meanwhile.
                    watched = self._present()
                    # As late as can be: a program that looks at its memory answers what has just come.
                    if total is not None:
                        self._settle()
                if total is not None:
                    total += n
                    if not n or hub.isAwaited:
                        break
                    seconds = LEAST_PAUSE
                found = lib.twisted_ib_await(watched[0], int(seconds * 1e9))
                if found & _LOOKED:
                    self._looked[id(watched)] = watched
                hub.isPolled = bool(found & _POLLED)
                if not found & ~(_LOOKED | _POLLED):
                    break
                total = total or 0
        finally:
            if lib.twisted_ib_serves_no_more():
                self._settle()
        return total

    @staticmethod
    def _settle() -> None:
        if lib.twisted_ib_posting.fill and hub.settle is not None:
            try:
                hub.settle()
            except Exception:
                # Their queue pair has failed; this thread serves others.
                traceback.print_exc()

    def _present(self) -> tuple[Any, ...]:
        # What is to be watched now.  The hub's lock is held.
        every: list[_Ring] = []
        fabrics = [device.fabric for device in hub.devices if not device.closed]
        for fabric in fabrics:
            every += fabric.paths()
        paths = list(filter(_canDeliver, every))
        # A bell that was rung before says nothing of rings, and would end each pause until it is read.
        fds = [] if paths else [fabric.fileno() for fabric in fabrics]
        isAll = len(paths) == len(every)
        if paths != self._paths or fds != self._fds or isAll is not self._isAll:
            self._follow(paths, fds, isAll)
        return self._watched

    def forget(self) -> None:
        """
        Keep no ring mapped until L{watch} is called again: it may not be for long, and rings close meanwhile.
        """
        if self._paths:
            with hub:
                self._follow([], [], False)

    def _follow(self, paths: list[_Ring], fds: list[int], isAll: bool) -> None:
        # The pointers keep no memory, but these objects do, and the views keep the rings mapped.
        ends = [[ffi.from_buffer("uint64_t[]", each) for each in path.ends()] for path in paths]
        pointers = [ffi.new("uint64_t *[]", [each[cell] for each in ends]) for cell in range(3)]
        # A copy: another thread may still read the one before.
        watched = ffi.new("struct twisted_ib_arrivals *", self._watched[0][0])
        watched.published, watched.consumed, read = pointers
        watched.read, watched.count = read if isAll else ffi.NULL, len(ends)
        descriptors = ffi.new("int[]", fds)
        watched.fds, watched.watched = descriptors, len(fds)
        self._watched = watched, ends, pointers, descriptors
        self._paths, self._fds, self._isAll = paths, fds, isAll
