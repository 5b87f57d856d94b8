"""
The progress engine of verbs: one lock, and one place where the devices are driven.

Verbs have no reactor and no thread: a device makes progress when the program calls a verb.  Both ends of a
connection may be in one process, so each poll drives all open devices.  Verbs may be called in any thread and
take L{Hub.lock}.

Contexts of one device name share an HCA, as processes share a card.  A forked child inherits no device: its
hub is empty, and the parent's objects refuse every verb.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from threading import RLock
from typing import Any, TypeVar, cast

from twisted_ib.drive.process import callAll, life, monotonic, perf_counter
from twisted_ib.drive.sleeper import MOST_SECONDS, Sleep, Sleeper
from twisted_ib.drive.turn import Turn
from twisted_ib.drive.waiter import LockQueue, isMain, tell
from twisted_ib.errors import HCAError
from twisted_ib.hca.base.polling import AdaptivePolling
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.queues.completion import Mirror
from twisted_ib.verbs.core.asleep import LEADERS, OWN_SECONDS, Asleep, Sleepers
from twisted_ib.verbs.core.closes import DeferredCloses
from twisted_ib.verbs.core.progress import PATIENCE, HubProgress, Watcher, giveWay

Event = TypeVar("Event")
Function = TypeVar("Function", bound=Callable[..., Any])

#: Seconds that the end of a process waits for datagrams whose path is still looked for.
END_SECONDS = 1.0


class EndingLock:
    """
    A lock in whose place it comes when the interpreter is about to end.

    Then the interpreter lets no other thread run any more, wherever it stopped.  Objects are still destroyed,
    and to close what they have takes the lock, which would wait for such a thread for ever.
    """

    def __init__(self, lock: RLock | EndingLock) -> None:
        self._lock = lock
        # A module's names are gone by then.
        self._spare = RLock()
        self._isFinalizing = sys.is_finalizing

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """
        Take it, if need be from a thread that runs no more.

        @param timeout: how long to wait, in seconds; -1 as long as it takes.
        @return: whether it was taken.
        """
        if self._isFinalizing():
            if not self._lock.acquire(blocking=False):
                self._lock = self._spare
                self._lock.acquire()
            return True
        return self._lock.acquire(blocking, timeout)

    def release(self) -> None:
        """
        Release it.
        """
        self._lock.release()


class Hub(HubProgress):
    """
    The open devices of this process's verbs.

    @ivar lock: protects the devices and all their objects; C{lockQueue}: threads that wait for it.
    @ivar devices: the number of contexts of each; C{closes}: objects that were dropped without being closed.
    @ivar drives: how often L{drive} ran; C{driven}: when it ran last, by C{time.perf_counter}.
    @ivar watchers: programs that watch a descriptor in place of L{wait}; C{wake()} has one of them drive.
    @ivar watch: waits for so many seconds, or until something has come that no thread takes; drives then, and
        says how much that was, or L{None}; without the lock.  L{None} where nothing does.  Only the thread
        that serves peers calls it, and for a moment perhaps its successor too.
    @ivar isPolled: whether a thread has polled meanwhile, perhaps without L{drive}.
    @ivar unwatch: has C{watch} keep no memory until it is called again; L{None} where nothing does.
    @ivar settle: posts what a program has left to another thread; L{None} where none does.
    @ivar unshown: mirrors that lack completions: they get them before the lock is released.
    """

    def __init__(self) -> None:
        self.unshown: set[Mirror] = set()
        self._reset()

    def _reset(self) -> None:
        # A new one: in a forked child, a thread that does not exist there may hold the old one.
        self.lock: RLock | EndingLock = RLock()
        self.lockQueue = LockQueue()
        self.devices: dict[Device, int] = {}
        # Of a parent none, as its devices.
        self.closes = DeferredCloses(self)
        self._dead = self.closes.dead
        self.unshown.clear()
        self._depth = 0
        # Devices that have published records and not yet rung the peers' doorbells.
        self._unrung: set[Device] = set()
        self._armed = self.isPolled = False
        self._rest = Turn()
        self._sleepers = Sleepers()
        self._leaders = self._sleepers.leaders
        self.watchers: set[Watcher] = set()
        self.watch: Callable[[float], int | None] | None = None
        self.unwatch: Callable[[], object] | None = None
        self.settle: Callable[[], object] | None = None
        self.driven = self._attended = 0.0
        # Events that drives handled, and changes that were told by wake(); those of which sleepers know.
        self.drives = self._changes = self._told = 0
        # Polls since the last drive that found what they wanted.
        self._taken = self._empty = 0
        self._polling = AdaptivePolling(perf_counter, self._giveWay)

    # -- devices

    def open(self, name: str, address: str | None = None) -> Device:
        """
        Open a device for one more context.

        @param address: its address, if it has one of its own.
        @raise UnknownDeviceError: no device has this name.
        @raise RunDirectoryError: the run directory, where processes find each other, is unusable.
        @raise DeviceError: another process has the address.
        """
        with self:
            # As on hardware, where each ibv_open_device of a card reaches the same GIDs and queue pairs.
            for device in self.devices:
                if device.name == name and not (device.closed or device.isGone) and device.isAt(address):
                    self.devices[device] += 1
                    return device
            # Verbs come from any thread; the lock takes the place of the device's check for its one thread.
            device = Device(name, anyThread=True, address=address)
            device.wanted = partial(self._unrung.add, device)
            self.devices[device] = 1
            # A thread that waits for an event already, as rping's does before an identifier is bound, sleeps
            # on the other devices only; and while it sleeps no other thread serves this one.
            self.wake()
            return device

    def close(self, device: Device) -> None:
        """
        Release a device for one context.  The last one closes it and all its objects.
        """
        with self:
            left = self.devices.get(device, 1) - 1
            if left:
                self.devices[device] = left
            else:
                self.devices.pop(device, None)
                self._unrung.discard(device)
                device.close()
            self.wake()

    # -- sleeping

    def wait(self, take: Callable[[], Event], timeout: float | None = None) -> Event | None:
        """
        Drive the devices until a condition holds, or an event is there, sleeping in between.  The lock must
        not be held: other threads take it meanwhile.

        @param take: fetches it, or says whether it holds; called with the lock held, perhaps in another
            thread that waits.  It may call verbs.  An error it raises again when it is called again.
        @param timeout: seconds; L{None} waits for ever.
        @return: that, which is true; else nothing that is.
        @raise OSError: no descriptor is free to sleep on.
        """
        end = None if timeout is None else monotonic() + timeout
        # A completion that others take for a thread is lost if a signal's handler then ends its wait by an
        # error; that may keep it from getting up, too.
        one = Asleep(None, OWN_SECONDS) if isMain() else Asleep(take)
        try:
            while isinstance(found := self.lieDown(take, end, None, one), Sleep):
                found.sleep(end)
                if one.goesOn():
                    # Others hear of it from whoever took it: many that get up at once wait for no lock.
                    return one.found
            return found
        finally:
            if one.sleeper is not None:
                # One that is closed is not to be woken: not after a second signal, either.
                if one.sleeper in self._leaders or one.sleeper in self._sleepers.followers:
                    self.getUp(one.sleeper)
                one.sleeper.close()

    def lieDown(
        self,
        take: Callable[[], Event],
        end: float | None,
        ready: Callable[[], object] | None = None,
        one: Asleep[Event] | None = None,
    ) -> Event | Sleep | None:
        """
        As L{wait}, up to the sleep: the thread sleeps by itself.  The lock must not be held.

        @param take: as L{wait} has it, but called in this thread only.
        @param end: C{time.monotonic()} at which there is no sleep any more; L{None} for never.
        @param ready: whether C{take} may have something: called with the lock held, in any thread; by default
            that is so after each event.
        @param one: the thread, if it has slept already, or if others take for it what it waits for.
        @return: as L{wait}; or the sleep, after which L{getUp} must follow.  Its sleeper is the caller's to
            close.  Others go on without a thread that does not come back in time.
        @raise OSError: no descriptor is free to sleep on.
        """
        sleepers, isDue = self._sleepers, False
        while True:
            self.enter(one is not None and one.sleeper in self._leaders)
            try:
                isLeaving = True
                try:
                    hasLed, changes = False, 0
                    event: Event | None = None
                    if one is not None:
                        hasLed, event = sleepers.remove(one.sleeper), one.found
                    if not event:
                        # Those who lead hear of descriptors and timers, while they sleep or when they do.
                        isLed = len(self._leaders) >= LEADERS and not isDue
                        self.drive(isWaiting=True, isLed=isLed and (end is None or monotonic() < end))
                        changes = self._changes
                        event = take()
                    isOver = event or (end is not None and monotonic() >= end)
                    if hasLed or isOver or self._changes != self._told:
                        # The find may be another's, or make room for the event that another waits for.
                        self._tell(bool(event))
                    if isOver:
                        # A thread that sleeps gives way anyway, and without the lock.
                        if not event and self._empty > PATIENCE and (one is None or one.sleeper is None):
                            giveWay()
                        return event
                    # A condition may drive, as one that polls a completion queue does: nothing wakes this
                    # thread for an event that came so.  And a reply from another process takes microseconds,
                    # waking up tens of them: who leads polls for a while first.
                    if self._changes == changes and not (
                        len(self._leaders) < LEADERS and self._polling.spin(self._pending)
                    ):
                        sleep = self._sleepOn(ready, Asleep(None, OWN_SECONDS) if one is None else one)
                        if sleep is not None:
                            isLeaving = False
                            return sleep
                        isDue = True
                    isLeaving = False
                finally:
                    if isLeaving and (self._leaders or sleepers.followers):
                        self._handOver()
            finally:
                self.leaveTo(self._depth - 1)

    def _tell(self, isChange: bool) -> None:
        self._changes += isChange
        changes = self._changes
        if self._leaders or self._sleepers.followers:
            while tell(self._sleepers.everyone()):
                # To take something for one may make room for the event that another waits for.
                self._changes += 1
                changes = self._changes
            if isMain() and self._sleepers.delegate():
                # Whoever is the next to look tells them.
                changes = -1
        # After that: a signal's handler may end it, and then who follows has not heard.
        self._told = changes

    def _handOver(self) -> None:
        # The doorbells that the leaders sleep on may be disarmed, and this thread drives no more.
        sleepers = self._sleepers
        if sleepers.followers:
            sleepers.prune()
        if self._leaders:
            if not self._armed:
                self._arm()
            if self._changes != self._told or sleepers.isEarly(self._rest.until):
                sleepers.wake()

    def getUp(self, sleeper: Sleeper | None) -> None:
        """
        End the sleep of a thread, which perhaps drives no more.

        @param sleeper: the thread's, if it has slept.
        """
        self.enter(sleeper in self._leaders)
        try:
            self._sleepers.remove(sleeper)
            self._handOver()
        finally:
            self.leaveTo(self._depth - 1)

    def _sleepOn(self, ready: Callable[[], object] | None, one: Asleep[Event]) -> Sleep | None:
        # Under the lock: what another thread does from now on rings the bell.
        due = self._arm()
        if due <= 0:
            return None
        leads = self._sleepers.mayLead()
        sleeper = one.bed(leads)
        if one.take is None:
            seen = self._changes
            one.ready = ready or (lambda: self._changes != seen)
        self._sleepers.add(leads, one, sleeper, self._rest.until)
        fds = [each.fabric.fileno() for each in self.devices if leads and not each.closed]
        if not leads:
            due = MOST_SECONDS
        return Sleep(one.begin(due), sleeper, fds)

    def _giveWay(self) -> None:
        # The lock is held, and on a busy machine a yield takes many milliseconds: not while others want it,
        # or soon do.
        if not (self.lockQueue or self._sleepers.followers):
            giveWay()

    def _pending(self) -> bool:
        for device in self.devices:
            if not device.closed and device.busy():
                return True
        return False

    def attend(self, sleeper: Sleeper) -> bool:
        """
        Drive the devices once; if there was nothing to do, sleep until there is, or until another thread
        drives.  For threads that only serve peers.  The lock must not be held.

        @param sleeper: the calling thread's.
        @return: whether no other thread has driven since.
        """
        try:
            with self:
                n = self.drive()
                before = self.drives
                # A thread in wait() already drives: a second sleeper would wake for the same doorbells.
                sleep = None if n or self._leaders else self._sleepOn(bool, Asleep(None, sleeper=sleeper))
                if sleep is not None and self.unwatch is not None:
                    self.unwatch()
            if sleep is not None:
                sleep.sleep()
            elif n and self.watch is not None:
                # The answer comes soon, and finds this thread awake.
                self.watch(0.0)
        finally:
            # After a failure too: one whose bell is closed would fail every verb that wakes the sleepers.
            with self:
                self._sleepers.remove(sleeper)
                self._handOver()
        with self:
            return self.drives == before and not self._leaders

    @property
    def isAwaited(self) -> bool:
        """
        Whether a thread sleeps in L{wait}, and so will drive when it is woken.
        """
        if self._sleepers.isLate():
            with self:
                self._sleepers.prune()
        return bool(self._leaders)

    def forked(self) -> None:
        """
        Forget all devices, in a forked child: they are the parent's.
        """
        self._reset()

    def end(self) -> None:
        """
        Close what the program has left open, at interpreter exit, as a kernel would at process exit.
        """
        callAll([self.settle])
        # Threads that lead do not drive any more once the process ends.
        with self:
            self._leaders.clear()
        # To the program a datagram is sent once its request is complete, also if its path is still looked
        # for: a card would have sent it before the process ends.
        with suppress(HCAError, OSError):
            self.wait(self._hasSent, END_SECONDS)
        with self:
            # The kernel does so when a process's uverbs descriptor is closed; peers see a disconnect, not
            # silence.
            devices, self.devices = self.devices, {}
            for device in devices:
                with suppress(HCAError, OSError):
                    device.close()
            self.wake()
        self.lock = EndingLock(self.lock)

    def _hasSent(self) -> bool:
        return not any(device.addressPaths.waiting for device in self.devices if not device.closed)


#: The hub of this process.
hub = Hub()
life.atFork(__name__, inChild=hub.forked)
life.atEnd(__name__, hub.end)


def locked(function: Function) -> Function:
    """
    Decorate a verb: it runs with the hub's lock held.
    """

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        with hub:
            return function(*arguments, **keywords)

    return cast(Function, call)
