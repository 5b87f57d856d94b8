"""
The part of the hub that each message passes: its lock, posts, polls, and the progress of all devices.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sized
from functools import partial
from typing import Final, Protocol, TypeVar

from twisted_ib import limits
from twisted_ib.compilation import mypyc_attr
from twisted_ib.drive.process import monotonic, perf_counter, sleep
from twisted_ib.drive.sleeper import Wakes
from twisted_ib.drive.turn import Turn
from twisted_ib.drive.waiter import LockQueue, TakenLock
from twisted_ib.errors import ResourceLimitError
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.queues.completion import CompletionQueue, Mirror, WorkCompletion
from twisted_ib.verbs.core.asleep import Asleep, Sleepers
from twisted_ib.verbs.core.closes import DeferredCloses

Link = TypeVar("Link")
Bad = TypeVar("Bad")

#: Rounds of one drive, and how much each has done at first: where both ends are here, request, response and
#: completion need one each.
_ROUNDS: Final = (0,) * 4
#: Seconds between two looks at descriptors and timers, of a thread that waits and has found nothing, and
#: otherwise; a look costs system calls, and an answer that comes meanwhile waits for it.
_ATTENTION = 50e-6
_BUSY_ATTENTION = 250e-6
#: Empty drives after which a polling program yields the CPU: the peer that is to answer may need it.
PATIENCE: Final = 60
#: Polls in a row that may take completions without a drive.
_TAKEN: Final = 16
_LINKS: Final = range(limits.WORK_QUEUE_DEPTH)
giveWay: Callable[[], object] = getattr(os, "sched_yield", partial(sleep, 0))


class Watcher(Protocol):
    """
    A program that watches a descriptor, and drives when that is readable.
    """

    def wake(self) -> None:
        """
        Make it readable: somebody has to drive.
        """

    def settle(self) -> None:
        """
        Somebody has driven: it is readable only for what the program has to fetch.
        """


@mypyc_attr(allow_interpreted_subclasses=True)
class HubProgress:
    """
    The half of a L{Hub<twisted_ib.verbs.core.hub.Hub>} that makes progress; its attributes are told there.
    """

    lock: TakenLock
    lockQueue: LockQueue
    devices: dict[Device, int]
    closes: DeferredCloses
    unshown: set[Mirror]
    watchers: set[Watcher]
    driven: float
    drives: int
    _dead: deque[Callable[[], None]]
    _depth: int
    _unrung: set[Device]
    _armed: bool
    _rest: Turn
    _sleepers: Sleepers
    _leaders: dict[Wakes, Asleep[object]]
    _attended: float
    _changes: int
    _taken: int
    _empty: int

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

    def __enter__(self) -> None:
        # enter(), without a call.
        try:
            if not self.lock.acquire(False):
                self.lockQueue.acquire(self.lock)
        except BaseException:
            self.leaveTo(-1)
            raise
        self._depth += 1

    def __exit__(self, *exception: object) -> None:
        self.leaveTo(self._depth - 1)

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
        take: Callable[[Link], Link | None],
        chain: Link,
        refuse: Callable[[Bad, Link, BaseException], object],
        bad: Bad,
    ) -> None:
        """
        Post a chain of work requests, all with the lock held, so that the peer is woken once.

        @param take: posts the request of one link, and says which follows.
        @param chain: the first link.
        @param refuse: told C{bad}, the link whose request failed, and why, which it may raise with other
            words; those before it stay posted.
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
                following = take(chain)
                if not following:
                    return
                chain = following
            raise ResourceLimitError("the chain of requests is longer than any queue")
        # man ibv_post_send(3): bad_wr is the first that failed, and those before it are posted.
        except BaseException as error:
            if depth >= 0:
                refuse(bad, chain, error)
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
            # Verbs have no thread: polling is what moves data, on this device and on all others.  drive() and
            # leaveTo() by the class: see compilation.py.
            if mirror is not None:
                if mirror.shown:
                    # Completions that were taken are not there.
                    mirror.settle()
                HubProgress.drive(self, completions, count or 1, True)
                if completions:
                    self.unshown.add(mirror)
                return []
            if count == 1 and completions and self._taken < _TAKEN:
                # drive() would do no more.
                self._taken += 1
                return [completions.popleft()]
            HubProgress.drive(self, completions, count or 1, True)
            if not completions:
                return []
            if count == 1:
                return [completions.popleft()]
            return [completions.popleft() for _ in range(min(count, len(completions)))]
        finally:
            HubProgress.leaveTo(self, depth)

    # -- progress

    def drive(
        self,
        completions: Sized = (),
        count: int = 1,
        isPoll: bool = False,
        isWaiting: bool = False,
        isLed: bool = False,
    ) -> int:
        """
        Make progress on every device.  The lock is held.

        @param completions: what the caller will take: progress ends when C{count} of them are there.
        @param isPoll: whether the caller asks for these alone, and is likely to ask again at once.
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
        total = 0
        devices = tuple(self.devices)
        for n in _ROUNDS:
            for device in devices:
                if not device.closed:
                    n += device.progress()
            if not n:
                break
            total += n
            if len(completions) >= count:
                break
        self.driven = now = perf_counter()
        if now - self._attended >= (_BUSY_ATTENTION if isPoll or total else _ATTENTION) and not isLed:
            self._attended = now
            total += self._attend()
        if total:
            self._changes += total
            self._empty = 0
        else:
            self._empty += 1
            # Two processes that poll on one CPU would otherwise wait out each other's time slices.
            if self._empty > PATIENCE and not isWaiting:
                giveWay()
        return total

    def _attend(self) -> int:
        # What is left over after this wakes them again.
        for watcher in self.watchers:
            watcher.settle()
        devices = [each for each in self.devices if not each.closed]
        for each in devices:
            each.fabric.attend()
        self._rest.end(devices, monotonic, 0.0, serves=False)
        return sum([each.progress() for each in devices if not each.closed])

    def wake(self) -> None:
        """
        Tell the threads in L{wait}: something changed without L{drive}.  The lock is held.
        """
        self._changes += 1
        self._sleepers.wake()

    def _arm(self) -> float:
        self._armed = True
        return self._rest.begin([each for each in self.devices if not each.closed], monotonic)
