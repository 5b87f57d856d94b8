"""
The progress engine of verbs: one lock, and one place where the devices are driven.

Verbs have no reactor and no thread: a device makes progress when the program calls a verb.  Both ends of a
connection may be in one process, so each poll drives all open devices.  Verbs may be called in any thread and
take L{Hub.lock}.

Contexts of one device name share an HCA, as processes share a card.  A forked child inherits no device: its
hub is empty, and the parent's objects refuse every verb.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sized
from contextlib import suppress
from functools import partial
from threading import RLock
from time import perf_counter
from typing import TypeVar

from twisted_ib import limits
from twisted_ib.drive.process import callAll, life
from twisted_ib.drive.sleeper import MOST_SECONDS, Sleep, Sleeper, Wakes
from twisted_ib.drive.turn import Turn
from twisted_ib.drive.waiter import LockQueue, isMain, tell
from twisted_ib.errors import HCAError, ResourceLimitError
from twisted_ib.hca.base.polling import AdaptivePolling
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.queues.completion import CompletionQueue, Mirror, WorkCompletion
from twisted_ib.verbs.core.asleep import LEADERS, OWN_SECONDS, Asleep, Sleepers
from twisted_ib.verbs.core.closes import DeferredCloses
from twisted_ib.verbs.core.locks import EndingLock

Event = TypeVar("Event")
Link = TypeVar("Link")
Request = TypeVar("Request")

#: Rounds of one drive: where both ends are here, request, response and completion need one each.
_ROUNDS = range(4)
#: Seconds between two looks at descriptors and timers while a program polls, in vain and otherwise; a look
#: costs system calls.
_ATTENTION, _BUSY_ATTENTION = 50e-6, 250e-6
#: Empty drives after which a polling program yields the CPU: the peer that is to answer may need it.
_PATIENCE = 60
#: Seconds that the end of a process waits for datagrams whose path is still looked for.
END_SECONDS = 1.0
#: Polls in a row that may take completions without a drive.
_TAKEN = 16
_LINKS = range(limits.WORK_QUEUE_DEPTH)
_giveWay: Callable[[], object] = getattr(os, "sched_yield", partial(time.sleep, 0))


class Hub:
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
        self.watchers: set[Wakes] = set()
        self.watch: Callable[[float], int | None] | None = None
        self.unwatch: Callable[[], object] | None = None
        self.settle: Callable[[], object] | None = None
        self.driven = self._attended = 0.0
        # Events that drives handled, and changes that were told by wake(); those of which sleepers know.
        self.drives = self._changes = self._told = 0
        # Polls since the last drive that found what they wanted.
        self._taken = self._empty = 0
        self._polling = AdaptivePolling(perf_counter, _giveWay)

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

    # -- the lock

    # post(), poll() and settle() of C programs' postings have these lines themselves, without a call.
    def enter(self, isFirst: bool = False) -> None:
        """
        Take the lock, by C{isFirst} before all who wait; L{leave} must follow.  As in a C{with} statement.
        """
        try:
            if not self.lock.acquire(False):
                self.lockQueue.acquire(self.lock, isFirst)
        except BaseException:
            self.leaveTo(-1)
            raise
        self._depth += 1

    def enterIfFree(self) -> bool:
        """
        Take the lock if no thread has it, not even this one; L{leave} releases it.

        @return: whether it was free.
        """
        try:
            if not self.lock.acquire(blocking=False):
                return False
        except BaseException:
            self.leaveTo(-1)
            raise
        # The RLock let this thread in again: it is inside a verb, interrupted by the garbage collector.
        if self._depth:
            self.lock.release()
            return False
        self._depth = 1
        return True

    def leave(self, *exception: object) -> None:
        """
        Ring the doorbells if this ends the outermost verb of the thread, and release the lock.
        """
        self.leaveTo(self._depth - 1)

    __enter__ = enter
    __exit__ = leave

    def leaveTo(self, depth: int) -> None:
        """
        L{leave}, for a caller that knows how many verbs of the thread go on; -1 if a signal's handler has
        raised while it took the lock, perhaps in vain.
        """
        if depth:
            if depth < 0:
                self.lockQueue.giveUp(self.lock)
            else:
                self._depth = depth
                self.lock.release()
            return
        try:
            # Doorbells once per verb, not once per request: a chain of posts wakes the peer a single time.
            while self._unrung:
                device = self._unrung.pop()
                if not device.closed:
                    device.fabric.ringBells()
                    if (self._leaders or self.watchers) and device.busy():
                        # The rest goes with its next batch: some thread has to drive.
                        self._sleepers.wake()
                        self._wakeWatchers()
            if self._armed and self._rest.until and (self._leaders or self.watchers):
                self._rearm()
            if self.watchers and not self._armed and not self._arm():
                self._wakeWatchers()
            while self.unshown:
                self.unshown.pop().show()
        finally:
            self._depth = 0
            self.lock.release()
            if self.lockQueue:
                self.lockQueue.wake()

    def _rearm(self) -> None:
        # Other threads sleep.  A post of this thread's may have disarmed the doorbells, or brought a timer
        # that is due before the time the sleepers wait for: either way they must look again.
        for device in self.devices:
            if not device.closed and (not device.arm() or self._rest.isLate(device)):
                self._sleepers.wake()
                self._wakeWatchers()
                return

    def _wakeWatchers(self) -> None:
        for watcher in self.watchers:
            watcher.wake()

    # -- work

    def post(
        self,
        accept: Callable[[Request, bool], object],
        read: Callable[[Link], tuple[Request, Link | None]],
        chain: Link,
        refuse: Callable[[Link, BaseException], object],
    ) -> None:
        """
        Post a chain of work requests, all with the lock held, so that the peer is woken once.

        @param accept: the work queue's: takes a request whose numbers are known to fit.
        @param read: makes the request of one link, and says which follows.
        @param chain: the first link.
        @param refuse: told the link whose request failed, and why, which it may raise with other words; those
            before it stay posted.
        @raise ResourceLimitError: the chain is longer than any queue.
        """
        depth = -1
        try:
            if not self.lock.acquire(False):
                self.lockQueue.acquire(self.lock)
            depth = self._depth
            self._depth = depth + 1
            if self._dead:
                self.closes.closePending()
            # A queue in the error state takes any number, as each is flushed at once: a chain that is a
            # circle would have no end.
            for _ in _LINKS:
                request, following = read(chain)
                accept(request, True)
                if not following:
                    return
                chain = following
            raise ResourceLimitError("the chain of requests is longer than any queue")
        # man ibv_post_send(3): bad_wr is the first that failed, and those before it are posted.
        except BaseException as error:
            if depth >= 0:
                refuse(chain, error)
            raise
        finally:
            self.leaveTo(depth)

    def poll(self, device: Device, queue: CompletionQueue, count: int) -> list[WorkCompletion]:
        """
        Drive the devices, then fetch completions.

        @param device: the queue's.
        @param count: how many at most.
        @return: the completions, the oldest first; none if the program takes them from the queue's mirror.
        """
        depth = -1
        try:
            if not self.lock.acquire(False):
                self.lockQueue.acquire(self.lock)
            depth = self._depth
            self._depth = depth + 1
            if self._dead:
                self.closes.closePending()
            if device.closed:
                device.check()
            completions = queue.completions
            mirror = queue.mirror
            if mirror is not None and mirror.shown:
                # Completions that were taken are not there.
                mirror.settle()
            # Verbs have no thread: polling is what moves data, on this device and on all others.
            self.drive(completions, count or 1)
            if not completions:
                return []
            if mirror is not None:
                self.unshown.add(mirror)
                return []
            if count == 1:
                return [completions.popleft()]
            return [completions.popleft() for _ in range(min(count, len(completions)))]
        finally:
            self.leaveTo(depth)

    # -- progress

    def drive(
        self, completions: Sized = (), count: int = 1, isWaiting: bool = False, isLed: bool = False
    ) -> int:
        """
        Make progress on every device.  The lock is held.

        @param completions: what the caller will take: progress ends when C{count} of them are there.
        @param isWaiting: whether the caller arms the devices again before it releases the lock, and tells
            the sleepers; C{isLed}: whether those look at descriptors and timers.
        @return: the number of events handled.
        """
        # Completions that are there are taken without a look at every path; but not for ever, as a program
        # may make its own, such as those of requests that are flushed, and never wait for any.
        if len(completions) >= count and self._taken < _TAKEN:
            self._taken += 1
            return 0
        self._taken = 0
        self.drives += 1
        if self._armed:
            # From here on no doorbell wakes a sleeper, but a record may have come just before.  Leaders arm
            # again; one that did so for each that begins to wait would wake that one, and so on for ever.
            self._armed = False
            self._rest.disarm([each for each in self.devices if not each.closed])
            if not isWaiting:
                self.wake()
        total, devices = 0, tuple(self.devices)
        for _ in _ROUNDS:
            n = 0
            for device in devices:
                if not device.closed:
                    n += device.progress()
            total += n
            if not n or len(completions) >= count:
                break
        self.driven = now = perf_counter()
        if now - self._attended >= (_BUSY_ATTENTION if total else _ATTENTION) and not isLed:
            self._attended = now
            total += self._attend()
        if total:
            self._changes += total
            self._empty = 0
        else:
            self._empty += 1
            # Two processes that poll on one CPU would otherwise wait out each other's time slices.
            if self._empty > _PATIENCE and not isWaiting:
                _giveWay()
        return total

    def _attend(self) -> int:
        devices = [each for each in self.devices if not each.closed]
        for each in devices:
            each.fabric.attend()
        self._rest.end(devices, time.monotonic, 0.0, serves=False)
        return sum([each.progress() for each in devices if not each.closed])

    def wake(self) -> None:
        """
        Tell the threads in L{wait}: something changed without L{drive}.  The lock is held.
        """
        self._changes += 1
        self._sleepers.wake()

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
        end = None if timeout is None else time.monotonic() + timeout
        # A completion that others take for a thread is lost if a signal's handler then ends its wait by an
        # error; that may keep it from getting up, too.
        one = Asleep(None, OWN_SECONDS) if isMain() else Asleep(take)
        try:
            while isinstance(found := self.lieDown(take, end, None, one), Sleep):
                found.sleep(end)
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
                        self.drive(isWaiting=True, isLed=isLed and (end is None or time.monotonic() < end))
                        changes = self._changes
                        event = take()
                    isOver = event or (end is not None and time.monotonic() >= end)
                    if hasLed or isOver or self._changes != self._told:
                        # The find may be another's, or make room for the event that another waits for.
                        self._tell(bool(event))
                    if isOver:
                        # A thread that sleeps gives way anyway, and without the lock.
                        if not event and self._empty > _PATIENCE and (one is None or one.sleeper is None):
                            _giveWay()
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
            tell(self._sleepers.everyone())
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

    def _pending(self) -> bool:
        for device in self.devices:
            if not device.closed and device.busy():
                return True
        return False

    def _arm(self) -> float:
        self._armed = True
        return self._rest.begin([each for each in self.devices if not each.closed], time.monotonic)

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
