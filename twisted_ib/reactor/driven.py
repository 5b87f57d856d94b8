"""
The reactor that threads which block drive, turn by turn.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable
from errno import ENOENT
from threading import get_ident
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeVar

from twisted.internet.error import ConnectionDone
from twisted.python import log
from twisted.python.failure import Failure

from twisted_ib.drive.followers import Followers
from twisted_ib.drive.process import monotonic, time
from twisted_ib.drive.sleeper import GONE, milliseconds
from twisted_ib.drive.turn import Idle
from twisted_ib.drive.waiter import DrivingLock, LockQueue, endWaits, handlers
from twisted_ib.hca.host.libc import Alarm
from twisted_ib.reactor.ibreactor import IBReactor
from twisted_ib.reactor.loop import EPOLL_EVERY, progress

if TYPE_CHECKING:
    from _typeshed import HasFileno

    from twisted_ib.internet.channel import DeviceChannel

#: Seconds for which delayed calls, deadlines and descriptors have no turn, if all sleeps between ended with
#: messages.  Longer than a kernel's tick (4 ms at 250 Hz): for a shorter sleep it sets the clock's interrupt.
BRIEF_SECONDS: Final = 1e-2
#: Turns after which it is looked whether connections that stand gain, and where polling mostly finds nothing,
#: so that they sleep; powers of two.
LEARN_TURNS: Final = 128
LEARN_TURNS_ASLEEP: Final = 32
_Result = TypeVar("_Result")


class Drivers(Protocol):
    """
    The threads that drive it: see L{BlockingLoop<twisted_ib.blocking.loop.BlockingLoop>}.
    """

    lock: DrivingLock
    lockQueue: LockQueue
    leader: int
    sleeping: bool
    busy: int
    owner: int
    orphans: deque[Callable[[], object]]

    def own(self) -> None:
        """
        The calling thread has the lock: the devices belong to it.
        """

    def leftIdle(self) -> None:
        """
        The calling thread has slept, and the devices were taken meanwhile.
        """

    def threadsBeside(self, now: float) -> int:
        """
        @param now: By C{monotonic}.
        @return: How many threads may need the interpreter while the leader polls.
        """


class DrivenReactor(IBReactor):
    """
    A reactor that runs turn by turn, when a thread blocks. C{startRunning} is never called: the process may
    have a reactor of its own, whose thread is Twisted's I/O thread.
    """

    isDriven: ClassVar[bool] = True
    #: Not Twisted's: a program may have had clocks stand still before that was imported.
    seconds = staticmethod(time)
    _poller: select.epoll

    def __init__(self, drivers: Drivers) -> None:
        super().__init__()
        self.drivers = drivers
        #: When all is asked for again at the latest.
        self._askAt = 0.0
        #: Until when the devices have nothing to do by themselves, as was found at a turn, and its number.
        self._idleUntil, self._idleTurns = 0.0, -1
        self._idleChannels: tuple[DeviceChannel, ...] = ()
        #: The object by which the last sleep has looked at the kernel's descriptors, and what it found.
        self.kernelFound: tuple[select.poll, list[tuple[int, int]]] | None = None
        #: The epoll object's, which is readable when a turn has something to do.
        self.descriptor = self._poller.fileno()
        #: Threads that wait while another one drives it.
        self.following = Followers(drivers, self.descriptor, Alarm)
        #: Whether nobody drives them, nor need.
        self.idling = Idle(self, (self.descriptor, select.POLLIN), drivers.leftIdle)
        # Calls of callWhenRunning() need no run() to wait for.
        self._started = True

    def turn(self, limit: float | None, kernel: select.poll | None) -> int:
        """
        Serve delayed calls and devices, or sleep until there is something to do.

        @param limit: Seconds to sleep at most; L{None} for any time.
        @param kernel: A C{select.poll} object whose descriptors end the sleep too, or L{None}.
        @return: How much the devices did.
        """
        deviceLoop, channels = self._loop, self._channels
        deviceLoop.turns = turns = deviceLoop.turns + 1
        # Between a message and its answer little is asked.
        isPolled = limit != 0 and channels and turns & (EPOLL_EVERY - 1)
        found = False
        if isPolled:
            found = not deviceLoop.quiet and deviceLoop.spin(self, channels, limit)
            deviceLoop.quiet = False
            if not found:
                # A look costs less than to arm the devices in vain.
                for channel in channels:
                    if channel.device.fabric.pending():
                        found = True
                        break
            # By the clock too: a program may do something else between its waits.
            isEarly = monotonic() < self._askAt
            if found and isEarly:
                worked = 0
                for channel in channels:
                    worked += channel.device.progress()
                return worked or 1
            # A call that was made since may be the next step of what a thread waits for.
            if not found and isEarly and not (self._newTimedCalls or self.threadCallQueue):
                return self._sleepBriefly(channels, limit, kernel)
        worked = progress(channels) or int(found)
        calm = deviceLoop.calm(self)
        if calm == 0.0:
            self.runUntilCurrent()
            # One of these calls may be what a thread waits for.
            limit = 0.0
        elif calm is not None and (limit is None or calm < limit):
            limit = calm
        now = monotonic()
        deviceLoop.inThreads = self.drivers.threadsBeside(now)
        seconds = 0.0
        if not worked and limit != 0:
            if not isPolled and deviceLoop.spin(self, channels, limit):
                worked = progress(channels) or 1
            else:
                seconds = self.rest.begin(channels, self.seconds, limit)
        self._askAt = now + (BRIEF_SECONDS if calm is None else min(calm, BRIEF_SECONDS))
        self._sleep(seconds, kernel)
        done = self.rest.end(self._channels, self.seconds, seconds)
        if done and seconds != 0:
            deviceLoop.polling.woken()
        if not turns & ((LEARN_TURNS if deviceLoop.polling.hits >= 0.5 else LEARN_TURNS_ASLEEP) - 1):
            self.switch.learn(self._channels)
        return worked + done

    def _sleepBriefly(
        self, channels: tuple[DeviceChannel, ...], limit: float | None, kernel: select.poll | None
    ) -> int:
        """
        Sleep until a message that may come soon: delayed calls and deadlines have their turn afterwards.

        @return: See L{turn}.
        """
        armed, worked, self.rest.isAsleep = True, 0, True
        for channel in channels:
            device = channel.device
            if device.traits.packets:
                # Acknowledgements of packets wait for the call that finds nothing.
                worked += device.progress()
            if not device.arm():
                armed = False
        if worked:
            return worked
        if armed:
            self._sleep(BRIEF_SECONDS if limit is None or limit > BRIEF_SECONDS else limit, kernel)
            channels = self._channels
        self.rest.isAsleep = False
        for channel in channels:
            if channel.device.fabric.look():
                worked += channel.device.progress()
        if armed and worked:
            self._loop.polling.woken()
        if not worked:
            # The next turn is one of those that ask for everything.
            self._loop.turns |= EPOLL_EVERY - 1
        return worked

    def idle(self, limit: float | None, call: Callable[[float], _Result | None]) -> _Result | None:
        """
        See L{BlockingLoop.idle<twisted_ib.blocking.loop.BlockingLoop.idle>}.
        """
        channels, rest, turns = self._channels, self.rest, self._loop.turns
        if self._newTimedCalls or self.threadCallQueue:
            return None
        now = self.seconds()
        if self._idleTurns != turns or self._idleChannels is not channels or not rest.isAsleep:
            self._idleUntil = now + rest.begin(channels, self.seconds, self._loop.calm(self))
            self._idleTurns, self._idleChannels = turns, channels
        # Else nobody has driven the devices since: they are armed, and have no other deadlines.
        result, seconds = None, self._idleUntil - now
        try:
            if seconds > 0:
                result = self._aside(call, seconds if limit is None or seconds < limit else limit)
        finally:
            if result is None:
                rest.disarm(self._channels)
        return result

    def idleUntil(self) -> float | None:
        """
        Return until when the devices have nothing to do by themselves, by C{monotonic}; L{None} if somebody
        has driven them since L{idle}.
        """
        isDriven = self._idleTurns != self._loop.turns or self._idleChannels is not self._channels
        if isDriven or not self.rest.isAsleep or self._newTimedCalls or self.threadCallQueue:
            return None
        return monotonic() + self._idleUntil - self.seconds()

    def _remove(self, xer: HasFileno, primary: set[int], *others: object) -> None:
        # As unwatch() has it: nobody is registered there.
        try:
            super()._remove(xer, primary, *others)
        except OSError as error:
            if error.errno != ENOENT and error.errno not in GONE:
                raise
            primary.discard(xer.fileno())
            primary.intersection_update(self._selectables)

    def _poll(self, channels: tuple[DeviceChannel, ...]) -> None:
        super()._poll(channels)
        # A device that has come is not armed.
        self.idling.take()

    def _sleep(self, limit: float, kernel: select.poll | None) -> None:
        most = len(self._selectables) or 1
        events: list[tuple[int, int]] | None
        # epoll's wait for less than nothing has no end.
        if limit <= 0:
            events = self._poller.poll(0, most)
        else:
            if kernel is None:
                events = self._aside(self._poller.poll, limit, most)
            else:
                found = self._aside(kernel.poll, milliseconds(limit))
                others = [each for each in found if each[0] != self.descriptor]
                self.kernelFound = kernel, others
                events = [] if len(others) == len(found) else None
            if events is None:
                events = self._poller.poll(0, most)
        for descriptor, event in events:
            selectable = self._selectables.get(descriptor)
            if selectable is not None:
                log.callWithLogger(selectable, self._doReadOrWrite, selectable, descriptor, event)

    def _aside(self, call: Callable[..., _Result], limit: float, *arguments: Any) -> _Result:
        # Sleep in a call, which takes the time first, without the lock.
        drivers = self.drivers
        drivers.sleeping, drivers.busy = True, 0
        if self.following.rings:
            self.following.setAlarm(0.0)
        if drivers.orphans:
            # Abandoned before that: there is no wake-up for it.
            limit = 0.0
        try:
            return handlers.aside(drivers, True, call, limit, *arguments)
        finally:
            drivers.sleeping = False
            if drivers.owner != get_ident():
                drivers.own()

    def leave(self) -> None:
        """
        The process is a forked child, whose epoll(7) is the parent's, too: it would take the events of that.
        """
        if not self._poller.closed:
            endWaits(self.descriptor)

    def dispose(self) -> None:
        """
        Close its descriptors: it runs no more turns.
        """
        self.waker.connectionLost(Failure(ConnectionDone()))
        self._poller.close()
        self.following.close()
