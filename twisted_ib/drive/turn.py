"""
The turn of those who drive devices: serve them, arm them, sleep, look at them, expire what is due.

Each sleeps in its own way between L{Turn.begin} and L{Turn.end}: in its epoll object, in the selector of
asyncio, or on a bell that other threads ring.

L{Idle}: between two waits of a server whose clients all come over TCP nobody drives the devices: they stay
armed, and their deadline holds.  So the next wait is the kernel's alone, for one descriptor more.  No lock is
taken: a thread sleeps while it is C{inside}, and whoever takes the devices (L{Idle.take}) makes it the one
that drives them and sleeps, as it is otherwise.

L{Others}: whether one that polls takes the interpreter from threads that work.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import inf
from threading import get_ident, local
from time import process_time_ns, thread_time_ns
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, TypeAlias, TypeVar

from twisted_ib.drive.sleeper import MOST_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable

_Socket = TypeVar("_Socket")
_Accepted = TypeVar("_Accepted")

#: A result of the kernel's C{poll}.
Found: TypeAlias = list[tuple[int, int]]
#: Milliseconds of a second.
_MILLI: Final = 1e3
_NOBODY: Final = [0, 0]
#: Seconds between two looks at what other threads do: two intervals after which a thread of Python
#: gives up the interpreter that another waits for.
LOOK_SECONDS: Final = 1e-2
#: The others work if they have used more than one part in so many of a CPU since the look before.
WORKING_SHARE: Final = 64


class Driven(Protocol):
    """
    A device, alone or in a reactor, as its driver sees it.
    """

    def progress(self) -> int:
        """
        Send what is pending and process what has arrived.

        @return: How much was done.
        """

    def arm(self) -> bool:
        """
        Have its descriptor end the sleep.

        @return: False if it has something to do after all.
        """

    def look(self) -> bool:
        """
        Wake up: its descriptor need not end a sleep any more.

        @return: Whether it has something to do.
        """

    def deadline(self) -> float | None:
        """
        @return: The latest time of its next work, by the clock of all of them; L{None} for never.
        """

    def tick(self, now: float) -> object:
        """
        Do what is due.
        """


class Turn:
    """
    The devices as those who drive them know them while they sleep.

    @ivar until: The earliest deadline; infinity if there is none, 0 if there is no sleep.
    @ivar isAsleep: Whether the devices are armed, and nobody has looked at them since.
    """

    __slots__ = ("isAsleep", "until")

    def __init__(self) -> None:
        self.until = inf
        self.isAsleep = False

    def begin(self, devices: Iterable[Driven], now: Callable[[], float], most: float | None = None) -> float:
        """
        Arm the devices, before a sleep.

        @param now: Their clock.
        @param most: Seconds that it may last; L{None} for any time.
        @return: Seconds that it lasts, as far as is known; 0 if there is something to do.
        """
        if self.isAsleep:
            # A signal's handler has raised amid the last sleep: what has rung then rings no more.
            self.disarm(devices)
        until, isQuiet, self.isAsleep = inf, True, True
        for each in devices:
            # IBTA vol. 1 11.4.2.2: a completion before the arming raises no event.  All are armed all the
            # same.
            if not each.arm():
                isQuiet = False
            elif (due := each.deadline()) is not None and due < until:
                until = due
        self.until = until if isQuiet else 0.0
        seconds = self.until - now()
        if most is not None and most < seconds:
            seconds = most
        return MOST_SECONDS if seconds > MOST_SECONDS else max(seconds, 0.0)

    def disarm(self, devices: Iterable[Driven]) -> None:
        """
        Look at the devices, in the place of L{end}: they are served by other means.
        """
        self.isAsleep = False
        for each in devices:
            each.look()

    def end(
        self, devices: Iterable[Driven], now: Callable[[], float], slept: float | None, serves: bool = True
    ) -> int:
        """
        Look at the devices after the sleep, and do what is due.

        @param slept: Seconds that it was to last; 0 if there was none, so that each deadline is asked for.
        @param serves: Whether a device that has something to do is served.
        @return: How much was done for those.
        """
        isOver = slept == 0 or now() >= self.until
        self.isAsleep = False
        done = 0
        hot: tuple[Driven, ...] = ()
        for each in devices:
            if each.look() and serves:
                hot += (each,)
        try:
            for each in hot:
                done += each.progress()
        finally:
            # An error of one device, or of its user, keeps back no timer of another.
            if isOver:
                for each in devices:
                    due = each.deadline()
                    if due is not None and due <= (at := now()):
                        each.tick(at)
        return done

    def isLate(self, device: Driven) -> bool:
        """
        Another thread has used a device, and perhaps started a timer.

        @return: Whether the device has a deadline before all that are known of.
        """
        due = device.deadline()
        return due is not None and due < self.until


class Served(Protocol):
    """
    The reactor of the devices.
    """

    @property
    def _newTimedCalls(self) -> Collection[object]: ...


class Idle:
    """
    The devices of a process while nobody drives them.

    @ivar holds: Whether that is so: they are armed, nothing else is to be done until C{until}, by
        C{monotonic}, and all that clients come to is what the kernel has, too.
    @ivar bell: The event that C{poll} finds if the devices have something to do.
    @ivar found: The events that the last sleep has found, until one is accepted; C{thread}: whose that was,
        or 0 if another one has accepted since.
    @cvar last: The one that has begun last, unless it was taken.
    """

    last: ClassVar[Idle | None] = None

    __slots__ = ("_left", "_served", "_use", "_users", "bell", "found", "holds", "thread", "until")

    def __init__(self, served: Served, bell: tuple[int, int], left: Callable[[], object]) -> None:
        """
        @param left: Called by a thread that has slept, if the devices were taken meanwhile.
        """
        self._served, self.bell, self._left = served, bell, left
        self.holds, self.thread, self.until = False, 0, 0.0
        self.found: Collection[tuple[int, int]] = ()
        # The thread that sleeps, and the one that accepts, or 0.  There is one at a time, whose the list is.
        self._users: dict[None, list[int]] = {}
        self._use = self._users.setdefault

    @property
    def inside(self) -> int:
        """
        @return: The thread that sleeps, or 0.
        """
        return self._users.get(None, _NOBODY)[0]

    def begin(self, until: float, found: Found) -> None:
        """
        Nobody drives them from now on.

        @param found: The events that the sleep of C{thread} has found, which is over now.
        """
        self.until, self.found = until, found
        Idle.last, self.holds = self, True

    def take(self) -> int:
        """
        The devices are driven again.

        @return: The thread that sleeps, or 0.
        """
        Idle.last, self.holds, self.found = None, False, ()
        return self.inside

    def wait(self, poll: Callable[[float], Found], timeout: float | None, now: float) -> Found | None:
        """
        Sleep.

        @param poll: The kernel's, which waits for C{bell}, too.
        @param timeout: Milliseconds, as C{poll} has it.
        @return: The events; L{None} if the devices have something to do, or are driven.
        """
        mine = [get_ident(), 0]
        isOwn = False
        found: Found | None = None
        try:
            # In this order: who takes them looks at the one after the other has changed.
            if self._use(None, mine) is not mine:
                return None
            if self.holds:
                limit = (self.until - now) * _MILLI
                if timeout is not None and 0 <= timeout < limit:
                    limit, isOwn = timeout, True
                if not self._served._newTimedCalls and limit >= 0:
                    self.thread = mine[0]
                    found = poll(limit)
                    if self.bell in found:
                        found = None
                    else:
                        self.found = found
            del self._users[None]
            if not self.holds:
                self._left()
        except BaseException:
            # A handler's, between any two of these steps: that it is over nobody else says.
            self._unuse(mine)
            if not self.holds:
                self._left()
            raise
        return found if found or isOwn else None

    def accept(
        self, event: tuple[int, int], accept: Callable[[_Socket], _Accepted], skt: _Socket
    ) -> _Accepted | None:
        """
        Accept at once, if the last wait of this thread has found somebody, and no other one of the process
        has waited or accepted since, or does so now.

        @param event: That is found for the socket.
        @param accept: The kernel's.
        @return: Its result; L{None} if there may be nobody.
        """
        mine = [0, get_ident()]
        accepted: _Accepted | None = None
        try:
            # In this order, as above.
            if self._use(None, mine) is not mine:
                return None
            if self.thread == mine[1] and event in self.found and self.holds:
                self.found = ()
                accepted = accept(skt)
            del self._users[None]
        except BaseException as error:
            self._unuse(mine)
            if not isinstance(error, BlockingIOError):
                raise
        return accepted

    def _unuse(self, mine: list[int]) -> None:
        if self._users.get(None) is mine:
            del self._users[None]

    def accepts(self) -> bool:
        """
        The calling thread is about to accept under the lock: nobody else has found whom it accepts.

        @return: Whether another one accepts at once.
        """
        self.thread = 0
        return self._users.get(None, _NOBODY)[1] not in (0, get_ident())


class Others:
    """
    Whether threads beside the calling one work, of which each is to have the interpreter soon.  One that
    waits, in whatever call, uses no CPU.

    @ivar areWorking: Whether they did at the last look of any thread.
    @ivar until: When that is to be asked anew: the time of L{look}, seconds.
    """

    def __init__(self) -> None:
        self.areWorking = False
        self.until = 0.0
        self._own = local()
        # Of the last look: a thread that has not looked yet is as young as that, mostly.
        self._last = (0.0, 0)

    def look(self, now: float) -> None:
        """
        Compare what the process has used of CPUs, but for this thread, with the time since its look before.

        @param now: Seconds, of any clock that goes on while the process sleeps.
        """
        seen: dict[str, tuple[float, int, int]] = self._own.__dict__
        at, used, own = seen.get("last", (*self._last, 0))
        process, thread = process_time_ns(), thread_time_ns()
        others = (process - used) - (thread - own)
        self.areWorking = others * WORKING_SHARE > (now - at) * 1e9
        seen["last"], self._last = (now, process, thread), (now, process)
        self.until = now + LOOK_SECONDS
