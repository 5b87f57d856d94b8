"""
Threads that wait in verbs.

Two of them lead: they sleep on the doorbells of the devices, and drive these.  So the second is there when
the first has what it waited for, or does not come back.  The others follow: each sleeps on its own bell,
until one that drives has taken for it what it waits for.  Were all of them woken for each event, each would
drive, ask and arm the doorbells again.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from twisted_ib.drive.process import monotonic
from twisted_ib.drive.sleeper import LockSleeper, Sleeper
from twisted_ib.drive.waiter import Follower, isMain

if TYPE_CHECKING:
    from twisted_ib.drive.sleeper import Wakes

_Event = TypeVar("_Event", covariant=True)

#: Threads that lead at most.
LEADERS: Final = 2
#: Seconds after which a thread that sleeps by itself looks, as a signal's handler may have left its sleep, or
#: ended it with its thread; and seconds that it may be late before others go on without it.
OWN_SECONDS: Final = 0.5
LATE_SECONDS: Final = 0.5


class Asleep(Follower, Generic[_Event]):
    """
    A thread that waits.

    @ivar take: fetches for it what it waits for, or says whether that is there, in any thread; L{None} if
        only its own thread does.
    @ivar most: the seconds of one sleep at most.
    @ivar sleeper: wakes it; L{None} before its first sleep.  That of a leader is a descriptor.
    @ivar found: what others have taken for it.
    @ivar followers: those among which it is, if it follows.
    @ivar until: when a leader looks, by C{time.monotonic()}: it has to be woken for an earlier deadline.
    @ivar gone: when others go on without it, by the same.
    """

    __slots__ = ("followers", "found", "gone", "most", "sleeper", "take", "until")

    def __init__(
        self, take: Callable[[], _Event] | None, most: float = inf, sleeper: Sleeper | None = None
    ) -> None:
        super().__init__(self._taken)
        self.take, self.most, self.sleeper = take, most, sleeper
        self.gone = self.until = inf
        self.found: _Event | None = None
        self.followers: dict[Wakes, Asleep[object]] = {}

    def _taken(self) -> object:
        # In the main thread a signal's handler may end this by an error, once it is taken: see delegate().
        if self.take is None or isMain():
            return None
        # Not a list that is empty now, and not later.
        self.found = self.take() or None
        return self.found

    def begin(self, seconds: float) -> float:
        """
        Lie down.

        @param seconds: for so long.
        @return: the seconds of the sleep.
        """
        self.done, self.found = False, None
        if self.most < inf:
            seconds = min(seconds, self.most)
            self.gone = monotonic() + seconds + LATE_SECONDS
        return seconds

    def bed(self, leads: bool) -> Sleeper:
        """
        @param leads: whether it leads.

        @return: its L{sleeper}, made now if need be.
        @raise OSError: no descriptor is free.
        """
        # One that takes for itself may sleep by itself, on descriptors.
        if leads or self.take is None:
            if self.sleeper is None or self.sleeper.fd < 0:
                self.sleeper = Sleeper()
        elif self.sleeper is None:
            self.sleeper = LockSleeper()
        return self.sleeper

    def goesOn(self) -> bool:
        """
        @return: whether it goes on with what others have taken for it, without the lock.  One with a
            descriptor does not, which it closes, and they may still write to.
        """
        return bool(self.found) and isinstance(self.sleeper, LockSleeper)

    def wake(self) -> None:
        if self.sleeper is not None:
            if self.goesOn():
                self.followers.pop(self.sleeper, None)
            self.sleeper.wake()


class Sleepers:
    """
    Those of one hub.  All is under its lock, but to ask whether there are any.

    @ivar leaders: those that drive when they are woken, by what wakes them.  There is one at least if there
        are followers.
    @ivar followers: the others, those that have waited longest first.
    """

    def __init__(self) -> None:
        self.leaders: dict[Wakes, Asleep[object]] = {}
        self.followers: dict[Wakes, Asleep[object]] = {}

    def wake(self) -> None:
        """
        Have the leaders look.
        """
        # A device may be lost without the lock.
        for each in tuple(self.leaders):
            each.wake()

    def add(self, leads: bool, one: Asleep[object], sleeper: Sleeper, until: float) -> None:
        """
        A thread lies down.

        @param leads: whether it leads, as L{mayLead} said when its C{sleeper} was made: asked once more, that
            may say otherwise.
        @param until: the deadline of the devices.
        """
        if leads:
            one.until = until
            self.leaders[sleeper] = one
            return
        if self.isEarly(until):
            self.wake()
        self.followers[sleeper] = one
        one.followers = self.followers

    def mayLead(self) -> bool:
        """
        @return: whether the next one leads.
        """
        if len(self.leaders) >= LEADERS:
            self.prune()
        return len(self.leaders) < LEADERS

    def isEarly(self, until: float) -> bool:
        """
        @return: whether a deadline is before all that the leaders know of.
        """
        return all(until < each.until for each in self.leaders.values())

    def remove(self, sleeper: Wakes | None) -> bool:
        """
        A thread has got up.

        @return: whether it led.
        """
        if sleeper is None:
            return False
        self.followers.pop(sleeper, None)
        return self.leaders.pop(sleeper, None) is not None

    def isLate(self) -> bool:
        """
        @return: whether a leader has not come back.  Without the lock.
        """
        now = monotonic()
        return any(each.gone < now for each in tuple(self.leaders.values()))

    def prune(self) -> None:
        """
        Forget leaders that do not come back.  If there is none any more, a follower leads.
        """
        now = monotonic()
        for sleeper, each in tuple(self.leaders.items()):
            if each.gone < now:
                del self.leaders[sleeper]
        while self.followers and not self.leaders:
            sleeper = next(iter(self.followers))
            one = self.followers.pop(sleeper)
            if one.gone >= now:
                # It looks at once.
                one.until = -inf
                self.leaders[sleeper] = one
                sleeper.wake()

    def delegate(self) -> bool:
        """
        Wake one of those for whom others take, unless one is up already: it takes for all of them, as the
        main thread, which calls this, does for none.

        @return: whether there is one.
        """
        takers = [each for each in self.everyone() if each.take is not None]
        if takers and not any(each.done for each in takers):
            # One that leads, if any: it would hear of what comes next, too.
            takers[-1].done = True
            takers[-1].wake()
        return bool(takers)

    def everyone(self) -> tuple[Asleep[object], ...]:
        """
        @return: all, those that follow first.
        """
        return (*self.followers.values(), *self.leaders.values())
