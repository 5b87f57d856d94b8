"""
The hub of verbs: devices are driven and waited for without a reactor, from any thread.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from threading import Lock, get_ident
from typing import Any, cast
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.hcas import LISTENER, SDP, Taker, User
from tests.support.calls import requireReplaceable
from tests.support.descriptors import descriptors, descriptorsBefore
from tests.support.rundirectory import ownRunDirectory
from tests.support.waiting import HANG_SECONDS, waitUntil
from twisted_ib.drive.sleeper import LockSleeper, Sleep, Sleeper, awaitReady
from twisted_ib.errors import UnknownDeviceError, WrongThreadError
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.queues.completion import CompletionQueue
from twisted_ib.verbs.core import asleep, progress
from twisted_ib.verbs.core import hub as hubModule
from twisted_ib.verbs.core.asleep import LATE_SECONDS, LEADERS, OWN_SECONDS, Asleep
from twisted_ib.verbs.core.hub import Hub, hub, locked
from twisted_ib.verbs.core.progress import _TAKEN

#: Threads that wait at once.
MANY = 24


class HubTests(SynchronousTestCase):
    """
    Two hubs, as if they were those of two processes, with a device each.
    """

    def setUp(self) -> None:
        """
        A run directory of this test's own.
        """
        ownRunDirectory(self)
        self.near, self.far = Hub(), Hub()

    def open(self, which: Hub) -> Device:
        """
        @return: a device of a hub, closed after the test.
        """
        device = which.open("shm0")
        self.addCleanup(which.close, device)
        return device

    def joined(self, a: Hub, b: Hub) -> tuple[Taker, Taker]:
        """
        @return: what takes records at a device of each hub, joined by a path.
        """
        first = self.open(a)
        if a is b:
            # A second HCA, which no verb opens.
            second = Device("shm0", anyThread=True)
            b.devices[second] = 1
            self.addCleanup(b.close, second)
        else:
            second = self.open(b)
        second.listen(SDP, "127.0.0.1", 7001, LISTENER)
        user = User()
        first.connect(SDP, "127.0.0.1", 7001, user)
        for _ in range(100):
            with a, b:
                a.drive()
                b.drive()
        (other,) = second.fabric.paths()
        return Taker(user.path, 20, 21), Taker(other, 21, 20)

    def inThread(self, call: Any, *arguments: Any) -> threading.Thread:
        """
        Run something in another thread, joined after the test.
        """
        thread = threading.Thread(target=call, args=arguments)
        thread.start()
        self.addCleanup(thread.join)
        return thread

    def waiting(self, which: Hub, ready: Any, results: list[bool]) -> threading.Thread:
        """
        A thread that waits in a hub and adds what came of it; it is asleep.
        """
        thread = self.inThread(lambda: results.append(which.wait(ready, HANG_SECONDS)))
        waitUntil(lambda: which.isAwaited or not thread.is_alive())
        time.sleep(0.02)
        return thread

    def test_oneDriveServesBothEnds(self) -> None:
        """
        A message posted by one device has reached the other after one drive, and its
        acknowledgement the first.
        """
        a, b = self.joined(self.near, self.near)
        with self.near:
            position = a.postKept(b"hello")
            self.near.drive()
        self.assertEqual(b.records, [b"hello"])
        self.assertEqual(a.said("acknowledged"), [position])

    def test_driveEnds(self) -> None:
        """
        A drive ends when the completions that it is for are there.
        """
        found: list[int] = []

        class Busy:
            """
            A device with a completion for each turn.
            """

            closed = False

            def progress(self) -> int:
                found.append(1)
                return 1

        self.near.devices = {Busy(): 1}  # type: ignore[dict-item]
        # No look at descriptors and timers is due.
        self.near._attended = float("inf")
        self.near.drive(found, 2)
        self.assertEqual(len(found), 2)
        self.near.devices = {}

    def test_takenWithoutDriving(self) -> None:
        """
        Polls take completions that are there without a drive, but only some in a row.
        """
        for _ in range(2):
            drives = self.near.drives
            for _ in range(_TAKEN):
                self.assertEqual(self.near.drive([None]), 0)
            self.assertEqual(self.near.drives, drives)
            self.near.drive([None])
            self.assertEqual(self.near.drives, drives + 1)

    def test_watches(self) -> None:
        """
        A thread that serves peers does not sleep after it had something to do: it watches for more, without
        the lock.
        """
        a, _ = self.joined(self.near, self.far)
        found: list[tuple[float, bool]] = []

        def watch(seconds: float) -> bool:
            found.append((seconds, self.far.enterIfFree()))
            self.far.leave()
            return False

        self.far.watch = watch
        with self.near:
            a.post(b"hello")
        sleeper = Sleeper()
        self.addCleanup(sleeper.close)
        self.assertTrue(self.far.attend(sleeper))
        self.assertEqual(found, [(0.0, True)])

    def test_leavingTellsThePeer(self) -> None:
        """
        A thread that sleeps at the other end is woken by a post, though the poster never drives
        again.
        """
        a, b = self.joined(self.near, self.far)
        results: list[bool] = []
        thread = self.waiting(self.far, lambda: bool(b.records), results)
        with self.near:
            a.post(b"hello")
        thread.join(HANG_SECONDS)
        self.assertEqual(results, [True])
        self.assertEqual(b.records, [b"hello"])

    def test_sleeperHearsOfWhatAnotherThreadTook(self) -> None:
        """
        A thread that polls takes what arrives; a thread that sleeps on the same hub wakes.
        """
        a, b = self.joined(self.near, self.near)
        results: list[bool] = []
        thread = self.waiting(self.near, lambda: bool(b.records), results)
        with self.near:
            a.post(b"hello")
            self.near.drive()
        thread.join(HANG_SECONDS)
        self.assertEqual(results, [True])

    def test_twoSleepers(self) -> None:
        """
        Two threads sleep; each wakes for what it waits for.
        """
        a, b = self.joined(self.near, self.far)
        first: list[bool] = []
        second: list[bool] = []
        one = self.waiting(self.far, lambda: len(b.records) >= 1, first)
        two = self.inThread(lambda: second.append(self.far.wait(lambda: len(b.records) >= 2, HANG_SECONDS)))
        with self.near:
            a.post(b"one")
        one.join(HANG_SECONDS)
        self.assertEqual(first, [True])
        with self.near:
            a.post(b"two")
        two.join(HANG_SECONDS)
        self.assertEqual(second, [True])

    def test_idleSleepers(self) -> None:
        """
        Threads that wait while nothing happens do not wake each other; one that goes wakes the others, which
        serve the peers from then on.
        """
        a, b = self.joined(self.near, self.far)
        results: list[bool] = []
        thread = self.waiting(self.far, lambda: bool(b.records), results)
        before = self.far.drives
        # The other sleeps before and behind this one.
        self.assertFalse(self.far.wait(lambda: False, 0.2))
        self.assertLess(self.far.drives - before, 20)
        with self.near:
            a.post(b"hello")
        thread.join(HANG_SECONDS / 2)  # At HANG_SECONDS it would look by itself.
        self.assertEqual(results, [True])

    def asleep(self, which: Hub, until: float = math.inf) -> mock.Mock:
        """
        @param until: when the thread looks by itself.
        @return: what wakes a thread that leads, and has been woken for nothing.
        """
        sleeper = mock.Mock()
        one: Asleep[object] = Asleep(None, sleeper=sleeper)
        one.ready = sleeper.ready
        sleeper.ready.return_value = False
        which._sleepers.add(True, one, sleeper, until)
        self.addCleanup(which._sleepers.remove, sleeper)
        return sleeper

    def test_leaver(self) -> None:
        """
        A thread that waits leaves doorbells that are armed for the others when it goes, whatever ends its
        wait, and wakes them only for a deadline of which they do not know.
        """
        device = self.open(self.near)
        other = self.asleep(self.near)

        def raises() -> bool:
            raise ValueError("the condition")

        for ready, timeout in ((lambda: True, None), (lambda: False, 0.01)):
            self.near.wait(ready, timeout)
            self.assertTrue(self.near._armed)
            other.ready.assert_called_once_with()
            other.ready.reset_mock()
        self.assertRaises(ValueError, self.near.wait, raises)
        self.assertTrue(self.near._armed)
        other.wake.assert_not_called()

        def starts() -> bool:
            device.timers.start(HANG_SECONDS, lambda: None)
            return True

        self.near.wait(starts)
        other.wake.assert_called()

    def test_tellsOfEvents(self) -> None:
        """
        What a waiting thread finds may be another's: those are asked, also if its condition has found it, and
        woken if it is.
        """
        a, b = self.joined(self.near, self.near)
        other = self.asleep(self.near)
        posts = [a.post, lambda octets: (a.post(octets), self.near.drive())]

        def ready() -> bool:
            if posts:
                posts.pop(0)(b"hello")
            return len(b.records) == 2 and other.ready.call_count > 1

        self.assertTrue(self.near.wait(ready, HANG_SECONDS))
        other.wake.assert_not_called()
        other.ready.return_value = True
        with self.near:
            a.post(b"hello")
        self.assertTrue(self.near.wait(lambda: len(b.records) == 3, HANG_SECONDS))
        other.wake.assert_called_once_with()

    def test_leadsOnce(self) -> None:
        """
        The time of a leader that does not come back is over while the next thread lies down: that one hears
        the doorbells if it leads.
        """
        device = self.open(self.near)
        with self.near:
            for _ in range(LEADERS):
                one: Asleep[object] = Asleep(None, OWN_SECONDS)
                sleeper = one.bed(True)
                self.addCleanup(sleeper.close)
                self.near._sleepers.add(True, one, sleeper, math.inf)
                self.addCleanup(self.near._sleepers.remove, sleeper)
                one.begin(OWN_SECONDS)
        over = max(each.gone for each in self.near._leaders.values())
        # Before that at the first look, and after it at any other.
        times = iter([over - OWN_SECONDS])
        self.patch(asleep, "monotonic", lambda: next(times, over + OWN_SECONDS))
        one = Asleep(lambda: None)
        with self.near:
            sleep = self.near._sleepOn(None, one)
        assert sleep is not None
        self.addCleanup(sleep.sleeper.close)
        self.addCleanup(self.near.getUp, sleep.sleeper)
        leads = sleep.sleeper in self.near._leaders
        self.assertEqual(leads, sleep.sleeper.fd >= 0)
        self.assertEqual(leads, device.fabric.fileno() in sleep.fds)

    def test_secondSignal(self) -> None:
        """
        A signal's handler ends the sleep of a thread, and that of another signal raises while it gets up:
        what wakes the thread is not closed while others wake it.
        """
        self.open(self.near)
        lock: Any = self.near.lock
        heard: list[int] = []

        def handler(*_: object) -> None:
            if not heard and not lock._is_owned():
                heard.append(1)
                # The next that takes the lock is the thread that gets up.
                self.near.lock = mock.Mock(acquire=mock.Mock(side_effect=again))
                raise ZeroDivisionError

        def again(*_: object) -> None:
            self.near.lock = lock
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGUSR1, handler)
        self.addCleanup(signal.signal, signal.SIGUSR1, before)

        def beside() -> None:
            waitUntil(lambda: self.near._leaders)
            # A signal between the interpreter's last look for one and poll(2) does not end that.
            waitUntil(lambda: heard or os.kill(os.getpid(), signal.SIGUSR1))

        thread = self.inThread(beside)
        with self.assertRaises(KeyboardInterrupt):
            self.near.wait(lambda: None, HANG_SECONDS)
        thread.join()
        (sleeper,) = self.near._leaders
        assert isinstance(sleeper, Sleeper)
        os.fstat(sleeper.fd)
        self.addCleanup(sleeper.close)
        self.addCleanup(self.near._sleepers.remove, sleeper)
        with self.near:
            self.near.wake()

    def test_interruptedEntry(self) -> None:
        """
        A signal's handler that raises while a verb takes the lock, or when it has just taken it, leaves it as
        it was, free or not.
        """
        near, lock = self.near, cast(Any, self.near.lock)
        queue = CompletionQueue(1)

        def taken(blocking: bool) -> None:
            self.assertTrue(lock.acquire(blocking))
            raise ZeroDivisionError

        device, nothing = self.open(near), mock.Mock()
        calls = (
            near.enter,
            near.enterIfFree,
            partial(near.post, nothing, nothing, nothing, nothing),
            partial(near.poll, device, queue, 1),
        )
        for call in calls:
            for acquire in (taken, mock.Mock(side_effect=ZeroDivisionError)):
                near.lock = mock.Mock(acquire=acquire, release=lock.release)
                self.assertRaises(ZeroDivisionError, call)
                near.lock = lock
                self.assertEqual((lock._is_owned(), near._depth), (False, 0))
            with near:
                near.lock = mock.Mock(acquire=taken, release=lock.release)
                self.assertRaises(ZeroDivisionError, call)
                near.lock = lock
                self.assertEqual((lock._is_owned(), near._depth), (True, 1))
            self.assertFalse(lock._is_owned())
        nothing.assert_not_called()

    def test_interruptedLeave(self) -> None:
        """
        A signal's handler that raises while a verb rings the doorbells leaves no lock taken, and one that
        waits for it is woken.
        """
        near, waiting = self.near, threading.Lock()
        device = self.open(near)
        self.patch(device.fabric, "ringBells", mock.Mock(side_effect=ZeroDivisionError))
        for depth in 1, 2:
            waiting.acquire()
            near.lockQueue.append(waiting)
            for _ in range(depth):
                near.enter()
            near._unrung.add(device)
            for _ in range(depth - 1):
                near.leave()
                self.assertTrue(waiting.locked())
            self.assertRaises(ZeroDivisionError, near.leave)
            self.assertEqual((cast(Any, near.lock)._is_owned(), near._depth), (False, 0))
            self.assertFalse(waiting.locked())

    def test_leadersFirst(self) -> None:
        """
        A thread that leads has the lock before others that wait for it, which wait for what it does.
        """
        near = self.near
        asked: list[bool] = []
        leader, other = mock.Mock(), mock.Mock()
        queue = mock.Mock(acquire=lambda lock, isFirst=False: asked.append(isFirst))
        self.patch(near, "lockQueue", queue)
        self.patch(near, "lock", mock.Mock(acquire=mock.Mock(return_value=False)))
        near._leaders[leader] = mock.Mock(until=0.0)
        for sleeper in other, leader, leader:
            near.getUp(sleeper)
        self.assertEqual(asked, [False, True, False])

    def test_disarms(self) -> None:
        """
        Devices that a drive has disarmed are looked at once, and not again when they are armed.
        """
        device = self.open(self.near)
        # No look at descriptors and timers is due, which looks at each device, too.
        self.near._attended = float("inf")
        with self.near:
            self.near._arm()
            looks = self.patch(device, "look", mock.Mock())
            self.near.drive()
            self.near._arm()
            self.assertEqual(cast(Any, device.look).call_count, 1)
            looks.restore()

    def test_follows(self) -> None:
        """
        Two threads sleep on the doorbells, others only until they are told: they are, with what was taken for
        them; and one that goes has another one lead.
        """
        device = self.open(self.near)
        leaders = [self.near.lieDown(lambda: None, None) for _ in range(LEADERS)]
        for each in leaders:
            assert isinstance(each, Sleep)
            self.addCleanup(each.sleeper.close)
            self.assertIn(device.fabric.fileno(), each.fds)
        events: list[str] = []
        found: list[str] = []
        thread = self.inThread(
            lambda: found.append(self.near.wait(lambda: events and events.pop(), HANG_SECONDS))
        )
        waitUntil(lambda: self.near._sleepers.followers or not thread.is_alive())
        left: list[int] = []

        def tell() -> None:
            with self.near:
                events.append("an event")
                self.near._tell(True)
                left.append(len(events))

        self.inThread(tell).join(HANG_SECONDS / 2)
        thread.join(HANG_SECONDS / 2)
        self.assertEqual((found, left), (["an event"], [0]))
        follower = self.near.lieDown(lambda: None, None)
        assert isinstance(follower, Sleep)
        self.addCleanup(follower.sleeper.close)
        self.assertEqual(follower.fds, [follower.sleeper.fd])
        for each in leaders:
            self.assertEqual(list(self.near._sleepers.followers), [follower.sleeper])
            self.near.getUp(each.sleeper)
        self.assertEqual(list(self.near._leaders), [follower.sleeper])
        self.assertTrue(awaitReady(follower.sleeper.fd, 0))
        self.near.getUp(follower.sleeper)

    def test_goesOnWithoutTheLock(self) -> None:
        """
        A thread that follows goes on with what was taken for it while another one has the lock; and so does
        one that waits for the room which that has made.
        """
        self.open(self.near)
        events: list[str] = []
        room: list[str] = []
        found: list[Any] = []

        def take() -> str | None:
            room.extend(events)
            return events.pop() if events else None

        leaders = [self.near.lieDown(lambda: None, None) for _ in range(LEADERS)]
        for each in leaders:
            assert isinstance(each, Sleep)
            self.addCleanup(each.sleeper.close)
            self.addCleanup(self.near.getUp, each.sleeper)
        threads = []
        for number, condition in enumerate((lambda: room, take)):
            call = partial(self.near.wait, condition, HANG_SECONDS)
            threads.append(self.inThread(lambda call=call: found.append(call())))
            waitUntil(lambda number=number: len(self.near._sleepers.followers) > number)
        ended: list[bool] = []

        def tell() -> None:
            with self.near:
                events.append("an event")
                self.near._tell(True)
                for thread in threads:
                    thread.join(HANG_SECONDS / 2)
                ended.extend(not thread.is_alive() for thread in threads)

        self.inThread(tell).join(HANG_SECONDS)
        self.assertEqual((ended, found.count(room)), ([True, True], 1))
        self.assertEqual(list(self.near._sleepers.followers), [])

    def test_nothingYet(self) -> None:
        """
        A condition that is a list has nothing while that is empty, and what is added later is not what others
        have taken.
        """
        later: list[str] = []
        one = Asleep(lambda: later, sleeper=LockSleeper())
        self.inThread(one.ready).join(HANG_SECONDS)
        later.append("an event")
        self.assertFalse(one.goesOn())
        self.inThread(one.ready).join(HANG_SECONDS)
        self.assertTrue(one.goesOn())
        leader = Asleep(lambda: later, sleeper=Sleeper())
        assert leader.sleeper is not None
        self.addCleanup(leader.sleeper.close)
        self.inThread(leader.ready).join(HANG_SECONDS)
        self.assertFalse(leader.goesOn())

    def test_takesInItsThread(self) -> None:
        """
        In the main thread, where a signal's handler may raise, nothing is taken for others.
        """
        self.open(self.near)
        events: list[str] = []
        taken = Asleep(lambda: events.pop())
        events.append("an event")
        self.assertFalse(taken.ready())
        self.assertEqual(events, ["an event"])

    def test_delegates(self) -> None:
        """
        It wakes one of them, however many there are, which takes for all; and of those that follow too if
        that one has an error of its own.
        """
        self.open(self.near)
        events: list[int] = []
        errors: list[int] = []
        ended: list[str] = []

        def take() -> int:
            if errors:
                raise ValueError(errors.pop())
            return events.pop() if events else 0

        def wait() -> None:
            try:
                ended.append(str(self.near.wait(take, HANG_SECONDS)))
            except ValueError as error:
                ended.append(str(error))

        threads = [self.inThread(wait) for _ in range(MANY)]
        waitUntil(lambda: self.restingIn(self.near) == MANY)
        drives = self.near.drives
        for _ in range(MANY):
            self.near.wait(lambda: False, 0)
            waitUntil(lambda: self.restingIn(self.near) == MANY)
        self.assertLess((self.near.drives - drives) / MANY, 7)
        errors.append(1)
        events.extend(range(2, MANY + 1))
        self.near.wait(lambda: False, 0)
        for thread in threads:
            thread.join(HANG_SECONDS / 2)
        self.assertEqual(sorted(map(int, ended)), [*range(1, MANY + 1)])

    def restingIn(self, which: Hub) -> int:
        """
        @return: how many threads sleep, and are not about to get up.
        """
        return sum(not each.done for each in which._sleepers.everyone())

    def test_interruptedTelling(self) -> None:
        """
        Where a signal's handler ends the telling, those that were not asked are told by the next.
        """

        def interrupt() -> None:
            raise KeyboardInterrupt

        near, one = self.near, Asleep[None](None, sleeper=Sleeper())
        assert one.sleeper is not None
        self.addCleanup(one.sleeper.close)
        one.ready = interrupt
        with near:
            near._leaders[one.sleeper] = one
            self.addCleanup(near._leaders.clear)
            self.assertRaises(KeyboardInterrupt, near._tell, True)
            self.assertNotEqual(near._told, near._changes)

    def test_mayNotComeBack(self) -> None:
        """
        A signal's handler may keep the main thread from getting up: others go on without it.
        """
        self.open(self.near)
        requireReplaceable(Sleep, "sleep")
        gone: list[float] = []

        def sleep(sleep: Sleep, end: float | None) -> None:
            gone.extend(each.gone for each in self.near._leaders.values())
            raise ZeroDivisionError

        self.patch(Sleep, "sleep", sleep)
        self.assertRaises(ZeroDivisionError, self.near.wait, lambda: None)
        self.assertLess(gone[0], time.monotonic() + HANG_SECONDS)

    def test_endsWithoutLeaders(self) -> None:
        """
        At the end of the process threads that led drive no more: the one that ends it does.
        """
        near, seen = self.near, []
        self.open(near)
        for _ in range(LEADERS):
            sleep = near.lieDown(lambda: None, None)
            assert isinstance(sleep, Sleep)
            self.addCleanup(sleep.sleeper.close)
        self.patch(near, "_hasSent", lambda: seen.append(len(near._leaders)) or True)
        near.end()
        self.assertEqual(seen, [0])

    def test_gone(self) -> None:
        """
        Leaders that do not come back, as the handler of a signal has left their sleep, are not counted on
        for long: another thread leads then, and without one nobody is awaited.
        """
        self.open(self.near)
        for _ in range(LEADERS):
            sleep = self.near.lieDown(lambda: None, None)
            assert isinstance(sleep, Sleep)
            self.assertLessEqual(sleep.seconds, OWN_SECONDS)
            self.addCleanup(sleep.sleeper.close)
        gone = dict(self.near._leaders)
        done: list[int] = []
        results: list[bool] = []
        thread = self.inThread(lambda: results.append(self.near.wait(lambda: done, HANG_SECONDS)))
        waitUntil(lambda: self.near._sleepers.followers or not thread.is_alive())
        for each in gone.values():
            self.assertLess(each.gone - time.monotonic(), OWN_SECONDS + LATE_SECONDS)
            each.gone = 0.0
        self.assertTrue(self.near.isAwaited)
        self.assertFalse(gone.keys() & self.near._leaders.keys())
        with self.near:
            done.append(1)
            self.near.wake()
        thread.join(HANG_SECONDS / 2)
        self.assertEqual(results, [[1]])
        self.assertFalse(self.near.isAwaited)

    def test_costOfWaits(self) -> None:
        """
        Each wait takes a few drives and wakes a few threads, however many others wait.
        """
        device = self.open(self.near)
        write, writes = os.write, [0]

        def counted(fd: int, octets: bytes) -> int:
            writes[0] += 1
            return write(fd, octets)

        for count in 4, 48:
            done: set[int] = set()
            threads = [
                self.inThread(self.near.wait, partial(done.__contains__, number), HANG_SECONDS)
                for number in range(count)
            ]
            waitUntil(lambda count=count: self.asleepIn(self.near) == count)
            writes[0], drives = 0, self.near.drives
            patch = self.patch(os, "write", counted)
            for number, thread in enumerate(threads):
                with self.near:
                    device.timers.start(0, partial(done.add, number))
                thread.join(HANG_SECONDS / 2)
                self.assertFalse(thread.is_alive())
            patch.restore()
            self.assertLess((self.near.drives - drives) / count, 7)
            self.assertLess(writes[0] / count, 7)

    def asleepIn(self, which: Hub) -> int:
        """
        @return: how many threads sleep.
        """
        return len(which._sleepers.everyone())

    def test_givesWay(self) -> None:
        """
        A thread that polls in vain for long gives way to others, also one that waits without a timeout; one
        that is to sleep does not, which would keep the lock meanwhile.
        """
        self.open(self.near)
        given: list[int] = []
        for module in (hubModule, progress):
            self.patch(module, "giveWay", lambda: given.append(1))
        self.patch(self.near, "_polling", mock.Mock(spin=lambda pending: False))
        for act, expected in (
            (lambda: self.near.wait(lambda: False, 0), 1),
            (lambda: self.near.wait(lambda: False, 0.01), 0),
            (lambda: self.near.lieDown(lambda: None, 0), 1),
            (lambda: self.near.lieDown(lambda: 1, None), 0),
        ):
            del given[:]
            self.near._empty = 1000
            act()
            self.assertEqual(len(given), expected)

    def test_keepsTheProcessor(self) -> None:
        """
        A thread that polls with the lock held does not give way while others wait for the lock, or follow:
        they would wait until it has the processor again.
        """
        self.open(self.near)
        given: list[int] = []
        self.patch(hubModule, "giveWay", lambda: given.append(1))
        giveWay = self.near._polling._yield
        other: Asleep[object] = Asleep(None, sleeper=LockSleeper())
        assert other.sleeper is not None
        own = Lock()
        for come, go in (
            (partial(self.near.lockQueue.append, own), self.near.lockQueue.clear),
            (
                partial(self.near._sleepers.followers.__setitem__, other.sleeper, other),
                self.near._sleepers.followers.clear,
            ),
        ):
            del given[:]
            come()
            giveWay()
            self.assertEqual(given, [])
            go()
            giveWay()
            self.assertEqual(given, [1])

    def test_errorOfFollower(self) -> None:
        """
        An error of a condition is its own thread's, whoever has asked.
        """
        self.open(self.near)
        failing: list[int] = []
        errors: list[str] = []

        def ready() -> bool:
            if failing:
                raise ValueError("the condition")
            return False

        def wait() -> None:
            try:
                self.near.wait(ready, HANG_SECONDS)
            except ValueError as error:
                errors.append(str(error))

        thread = self.inThread(wait)
        waitUntil(lambda: self.near.isAwaited or not thread.is_alive())
        failing.append(1)
        self.assertFalse(self.near.wait(lambda: False, 0))
        thread.join(HANG_SECONDS / 2)
        self.assertEqual(errors, ["the condition"])

    def test_mainThread(self) -> None:
        """
        Nobody takes anything for the main thread: the handler of a signal may end its wait by an error.
        """
        self.open(self.near)
        events = ["an event"]
        asked: list[int] = []

        def take() -> str | None:
            # The first time there is none yet.
            asked.append(get_ident())
            return events.pop() if len(asked) > 1 and events else None

        self.inThread(self.near.wait, lambda: len(asked) > 1, HANG_SECONDS)
        waitUntil(lambda: self.near.isAwaited)
        beside = self.inThread(self.wakeOnce, self.near, asked)
        self.assertEqual(self.near.wait(take, HANG_SECONDS), "an event")
        beside.join()
        self.assertEqual(set(asked), {get_ident()})

    def wakeOnce(self, which: Hub, asked: list[int]) -> None:
        """
        Tell of a change when a thread has been asked, and sleeps.
        """
        waitUntil(lambda: asked and self.asleepIn(which) == 2)
        with which:
            which.wake()

    def test_answerToAnotherThread(self) -> None:
        """
        A thread sleeps, another posts and does not drive: the answer wakes the first.
        """
        a, b = self.joined(self.near, self.far)
        results: list[bool] = []
        thread = self.waiting(self.near, lambda: bool(a.records), results)
        with self.near:
            a.post(b"question")
        with self.far:
            self.far.drive()
            b.post(b"answer")
        thread.join(HANG_SECONDS / 2)  # At HANG_SECONDS it would look by itself.
        self.assertEqual((results, a.records), ([True], [b"answer"]))

    def test_conditionThatDrives(self) -> None:
        """
        The condition itself drives, or makes an event: it is asked again before the thread sleeps.
        """
        a, b = self.joined(self.near, self.near)

        def drive() -> None:
            a.post(b"hello")
            self.near.drive()

        changes = [drive, self.near.wake]

        def ready() -> bool:
            if not changes:
                return True
            changes.pop()()
            return False

        self.patch(self.near, "_polling", mock.Mock(spin=lambda pending: False))
        self.patch(self.near, "_sleepOn", lambda *arguments: self.fail("it sleeps"))
        self.assertTrue(self.near.wait(ready, HANG_SECONDS))
        self.assertEqual(b.records, [b"hello"])

    def test_timerOfAnotherThread(self) -> None:
        """
        A thread sleeps, another starts a timer and does not drive: it runs.
        """
        device = self.open(self.near)
        called: list[bool] = []
        results: list[bool] = []
        thread = self.waiting(self.near, lambda: bool(called), results)
        with self.near:
            device.timers.start(0.02, lambda: called.append(True))
        thread.join(HANG_SECONDS / 2)  # At HANG_SECONDS it would look by itself.
        self.assertEqual(results, [True])

    def test_lyingDown(self) -> None:
        """
        A thread that sleeps by itself takes what is there after one drive, and asks for the others then; else
        it sleeps on the doorbells until it gets up, if it may.
        """
        device = self.open(self.near)
        other = self.asleep(self.near)
        for event in ("an event", None):
            before = self.near.drives
            self.assertEqual(self.near.lieDown(lambda event=event: event, end=0.0), event)  # type: ignore[misc]
            self.assertEqual(self.near.drives - before, 1)
            other.ready.assert_called_once_with()
            other.ready.reset_mock()
        sleep = self.near.lieDown(lambda: None, end=None)
        assert isinstance(sleep, Sleep)
        self.assertGreater(sleep.seconds, 0)
        self.assertEqual(sleep.fds, [sleep.sleeper.fd, device.fabric.fileno()])
        self.assertEqual(list(self.near._leaders), [other, sleep.sleeper])
        self.addCleanup(sleep.sleeper.close)
        self.near.getUp(sleep.sleeper)
        self.assertEqual(list(self.near._leaders), [other])
        other.wake.assert_not_called()

    def test_event(self) -> None:
        """
        A wait returns what it is for, which it takes once; in vain nothing that is true.
        """
        device = self.open(self.near)
        events: list[str] = []
        with self.near:
            device.timers.start(0, lambda: events.append("an event"))
        self.assertEqual(self.near.wait(lambda: events and events.pop(), HANG_SECONDS), "an event")
        self.assertFalse(self.near.wait(lambda: events and events.pop(), 0))

    def test_timeout(self) -> None:
        """
        A wait in vain ends when the time is over, and the lock is free.
        """
        self.open(self.near)
        self.assertFalse(self.near.wait(lambda: False, 0.01))
        self.assertFalse(self.near.wait(lambda: False, 0))
        self.assertEqual(self.near._depth, 0)
        self.assertFalse(self.near.isAwaited)

    def test_timers(self) -> None:
        """
        A timer of a device runs while a thread sleeps.
        """
        device = self.open(self.near)
        called: list[bool] = []
        device.timers.start(0.02, lambda: called.append(True))
        self.assertTrue(self.near.wait(lambda: bool(called), HANG_SECONDS))

    def test_timersWhilePolling(self) -> None:
        """
        And while a program does nothing but poll.
        """
        device = self.open(self.near)
        called: list[bool] = []
        device.timers.start(0, lambda: called.append(True))
        with self.near:
            self.near.drive()
            self.near.drive()
        self.assertEqual(called, [True])

    def test_pollsLookSeldom(self) -> None:
        """
        A poll in vain does not look at them as soon as a thread that waits.
        """
        device = self.open(self.near)
        called: list[bool] = []
        for name, seconds in ("_ATTENTION", 0.0), ("_BUSY_ATTENTION", math.inf):
            self.patch(progress, name, seconds)
        device.timers.start(0, lambda: called.append(True))
        self.near.poll(device, CompletionQueue(1), 1)
        self.assertEqual(called, [])
        with self.near:
            self.near.drive(isWaiting=True)
        self.assertEqual(called, [True])

    def test_closingWakesSleepers(self) -> None:
        """
        A thread that waits for an event of a device is woken when the device is closed.
        """
        device = self.open(self.near)
        results: list[bool] = []
        thread = self.waiting(self.near, lambda: device.closed, results)
        self.near.close(device)
        thread.join(HANG_SECONDS)
        self.assertEqual(results, [True])

    def test_closedBesideSleeper(self) -> None:
        """
        A thread that serves peers sleeps on although a device was closed under it.
        """
        self.open(self.near).close()
        sleeper = Sleeper()
        self.addCleanup(sleeper.close)
        sleeper.wake()
        self.assertTrue(self.near.attend(sleeper))

    def test_failedSleep(self) -> None:
        """
        A sleep that fails leaves nobody behind whom later verbs would wake in vain.
        """
        sleeper = Sleeper()
        sleeper.close()
        self.assertRaises(OSError, self.near.attend, sleeper)
        self.near.close(self.near.open("shm0"))

    def test_openingWakesSleepers(self) -> None:
        """
        A thread that waits before a device is open serves it: a peer reaches it, though nobody else drives.
        """
        results: list[bool] = []
        user = User()
        thread = self.waiting(self.near, lambda: user.path is not None, results)
        near, far = self.open(self.near), self.open(self.far)
        with self.near:
            near.listen(SDP, "127.0.0.1", 7001, LISTENER)
        with self.far:
            far.connect(SDP, "127.0.0.1", 7001, user)
        self.assertTrue(self.far.wait(lambda: user.path is not None or user.error is not None, HANG_SECONDS))
        self.assertIsNone(user.error)
        self.near.close(near)
        thread.join(HANG_SECONDS)
        self.assertEqual(results, [True])

    def test_anyThread(self) -> None:
        """
        A device of verbs may be used from each thread; others not.
        """
        device = self.open(self.near)
        other = Device("lo0")
        self.addCleanup(other.close)
        errors: list[BaseException] = []

        def use() -> None:
            """
            Touch both.
            """
            try:
                with self.near:
                    device.checkThread()
                other.checkThread()
            except WrongThreadError as error:
                errors.append(error)

        self.inThread(use).join(HANG_SECONDS)
        self.assertEqual(len(errors), 1)

    def test_unknownDevice(self) -> None:
        """
        A device that there is not leaves nothing behind.
        """
        self.assertRaises(UnknownDeviceError, self.near.open, "mlx5_0")
        self.assertEqual(self.near.devices, {})

    def test_contextsShareADevice(self) -> None:
        """
        A device that is opened again is the same HCA, which is closed with its last context.
        """
        device = self.near.open("shm0")
        self.assertIs(self.near.open("shm0"), device)
        self.assertIsNot(self.open(self.far), device)
        self.near.close(device)
        self.assertFalse(device.closed)
        self.near.close(device)
        self.assertTrue(device.closed)
        self.assertIsNot(self.open(self.near), device)

    def test_interpreterEnds(self) -> None:
        """
        A program that ends while a thread of it still waits leaves nothing in the run directory.
        """
        program = (
            "import threading\n"
            "from twisted_ib.verbs.pyverbs import Context\n"
            "context = Context(name='shm0')\n"
            "threading.Thread(target=context.get_async_event, daemon=True).start()\n"
            "raise SystemExit(7)\n"
        )
        root = Path(__file__).resolve().parents[3]
        ended = subprocess.run(
            [sys.executable, "-c", program], cwd=root, capture_output=True, timeout=HANG_SECONDS
        )
        self.assertEqual((ended.returncode, ended.stdout, ended.stderr), (7, b"", b""))
        self.assertEqual(os.listdir(os.environ["TWISTED_IB_RUN_DIR"]), ["lock"])

    def test_endSends(self) -> None:
        """
        The end waits for datagrams whose path is looked for, but not for ever.
        """
        device = self.open(self.near)
        paths = device.addressPaths
        paths.waiting = 1
        device.timers.start(0.01, lambda: setattr(paths, "waiting", 0))
        self.near.end()
        self.assertEqual((paths.waiting, device.closed), (0, True))
        device = self.open(self.far)
        device.addressPaths.waiting = 1
        with mock.patch.object(hubModule, "END_SECONDS", 0.01):
            self.far.end()
        self.assertTrue(device.closed)

    def test_fork(self) -> None:
        """
        A forked child has an empty hub, even if another thread held the lock.
        """
        entered, leave = threading.Event(), threading.Event()

        def hold() -> None:
            """
            Keep the lock while the child is made.
            """
            with hub:
                entered.set()
                leave.wait(HANG_SECONDS)

        self.inThread(hold)
        self.addCleanup(leave.set)
        entered.wait(HANG_SECONDS)
        pid = os.fork()
        if not pid:
            with hub:
                os._exit(len(hub.devices))
        self.assertEqual(os.waitpid(pid, 0)[1], 0)

    def test_lockedKeepsTheName(self) -> None:
        """
        A verb that is locked is still itself, and runs with the lock held.
        """

        @locked
        def verb(value: int) -> tuple[int, int]:
            """
            A verb.
            """
            return value, hub._depth

        self.assertEqual(verb.__name__, "verb")
        self.assertEqual(verb(3), (3, 1))
        self.assertEqual(hub._depth, 0)

    def test_noDescriptorsLeft(self) -> None:
        """
        Waiting, and a device that came and went, leave no descriptor open.
        """
        before = descriptorsBefore()
        device = self.near.open("shm0")
        self.near.wait(lambda: False, 0.01)
        self.near.close(device)
        self.near.close(device)
        self.assertEqual(descriptors(), before)
