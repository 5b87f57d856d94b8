"""
Tests for L{twisted_ib.reactor.ibreactor}, with devices that do what the test
wants, and for its life with signals, threads and processes.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from math import inf
from typing import Any

from twisted.internet.epollreactor import EPollReactor
from twisted.internet.interfaces import IReactorFDSet
from twisted.internet.protocol import ProcessProtocol
from twisted.python import log
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.sdp.pair import Keeper
from tests.support.calls import requireReplaceable
from tests.support.descriptors import closeWakers
from tests.support.waiting import HANG_SECONDS
from twisted_ib.drive.sleeper import MOST_SECONDS
from twisted_ib.hca.base.polling import LESSONS, REACH_SECONDS, SPIN_SECONDS, AdaptivePolling
from twisted_ib.hca.base.timers import Timers
from twisted_ib.hca.base.traits import LOCAL
from twisted_ib.interfaces import IReactorCompletionChannels
from twisted_ib.internet.channel import DeviceChannel, channelFor
from twisted_ib.internet.logcontext import upcalls
from twisted_ib.reactor.ibreactor import IBReactor

#: How often epoll is asked under traffic: every so many turns.
EVERY = 16


class HotPath:
    """
    Where something may arrive at any time.

    @ivar found: The results of the next looks.
    """

    def __init__(self) -> None:
        self.found: list[bool] = []
        self.looks = 0

    def pending(self) -> bool:
        """
        Look.
        """
        self.looks += 1
        return self.found.pop(0) if self.found else False


class ScriptedDevice:
    """
    A device, and its fabric, that does what the test says.

    @ivar work: For each C{progress} its result, a number, or a function to call.
    @ivar endless: The result of further ones.
    @ivar armed: The result of C{arm}.
    @ivar posted: What C{sent} says.
    @ivar arrives: Whether C{look} finds something.
    @ivar log: The calls, in order.
    """

    name = "test"
    traits = LOCAL
    closed = isAsked = arrives = False
    pollingCounters: Any = None

    def __init__(self) -> None:
        """
        There is nothing to do.
        """
        self.work: list[Any] = []
        self.endless = 0
        self.armed = True
        self.log: list[str] = []
        self.hot: tuple[HotPath, ...] = ()
        self.answerSeconds = SPIN_SECONDS
        self.due: float | None = None
        self.ticks: list[float] = []
        self.pollers: list[Any] = []
        self.posted = 0
        self.fabric = self
        self.clock = time.monotonic
        self.timers = Timers(self.clock)
        self.read, self.write = os.pipe()
        os.set_blocking(self.read, False)

    def progress(self, budget: int = 64) -> int:
        """
        Do the next piece of work.
        """
        self.log.append("progress")
        work: Any = self.work.pop(0) if self.work else self.endless
        if callable(work):
            work = work()
        return work or 0

    def sent(self) -> int:
        """
        Count what may be answered.
        """
        return self.posted

    def pending(self) -> bool:
        """
        See whether a path has something.
        """
        return any(path.pending() for path in self.hot)

    def arm(self) -> bool:
        """
        Ask to be woken.
        """
        self.log.append("arm")
        return self.armed

    def look(self) -> bool:
        """
        Need not be woken.
        """
        self.log.append("look")
        return self.arrives

    def attend(self) -> None:
        """
        Take what woke the reactor.
        """
        self.log.append("attend")
        try:
            os.read(self.read, 1)
        except BlockingIOError:
            pass

    def paths(self) -> list[Any]:
        """
        It has no peers.
        """
        return []

    def wake(self) -> None:
        """
        Wake the reactor.
        """
        os.write(self.write, b"!")

    def fileno(self) -> int:
        """
        @return: what is readable then.
        """
        return self.read

    def deadline(self) -> float | None:
        """
        @return: when C{tick} is due.
        """
        return self.due

    def tick(self, now: float) -> None:
        self.due = None
        self.ticks.append(now)

    def markDirty(self, owner: Any) -> None:
        """
        Its batch ends at once.
        """
        owner.endOfBatch()

    def unsent(self) -> bool:
        """
        Nothing waits.
        """
        return False

    def registerWith(self, poller: Any) -> None:
        self.pollers.append(poller)

    def close(self) -> None:
        """
        Close the pipe.
        """
        if not self.closed:
            self.closed = True
            os.close(self.read)
            os.close(self.write)


def closeReactor(reactor: Any) -> None:
    """
    Close a reactor's own descriptors.
    """
    closeWakers(reactor)
    reactor._poller.close()


class ReactorTestCase(SynchronousTestCase):
    """
    A reactor that does not run.

    @ivar slept: The timeouts with which epoll was asked.
    """

    makeReactor: Any = IBReactor
    closeReactor: Any = staticmethod(closeReactor)

    def setUp(self) -> None:
        """
        Make one, and replace epoll.
        """
        super().setUp()
        self.reactor: Any = self.makeReactor()
        self.addCleanup(self.closeReactor, self.reactor)
        self.slept: list[float | None] = []
        # Its argument is how long epoll may sleep.
        self.reactor._wait = self.slept.append
        # However busy the machine is, no batch takes long.
        self.reactor._loop.epollAt = inf

    def add(self) -> tuple[Any, ScriptedDevice]:
        """
        @return: a channel with a user, and its device.
        """
        device: Any = ScriptedDevice()
        device.clock = self.reactor.seconds
        self.addCleanup(device.close)
        channel = DeviceChannel(self.reactor, device)
        channel.acquire(Keeper())
        device.log.clear()
        return channel, device


class TurnTests(ReactorTestCase):
    """
    C{doPoll}.
    """

    def test_withoutChannels(self) -> None:
        """
        Without channels it is epoll, with the timeout as it was given; also
        after the last channel went.
        """
        self.reactor.callLater(0.5, lambda: None)
        for timeout in (None, 0, 1.5):
            self.reactor.doPoll(timeout)
        self.assertEqual(self.slept, [None, 0, 1.5])
        channel, device = self.add()
        (user,) = channel.users
        channel.release(user)
        device.log.clear()
        self.reactor.doPoll(2.5)
        self.assertEqual((self.slept[3:], device.log), ([2.5], []))
        self.assertEqual((self.reactor.polling.turns, self.reactor._loop.turns), (0, 0))

    def test_sleeps(self) -> None:
        """
        With nothing to do the device is looked at and armed, epoll sleeps, and
        afterwards nobody need ring.
        """
        _, device = self.add()
        for timeout, slept in ((None, MOST_SECONDS), (1.5, 1.5)):
            device.log.clear()
            self.reactor.doPoll(timeout)
            self.assertEqual((self.slept.pop(), device.log), (slept, ["progress", "arm", "look"]))

    def test_notArmed(self) -> None:
        """
        If the device has work after all, epoll does not sleep; the others are
        armed all the same.
        """
        _, one = self.add()
        _, two = self.add()
        one.armed = False
        self.reactor.doPoll(None)
        self.assertEqual(self.slept, [0])
        self.assertEqual((one.log, two.log), (["progress", "arm", "look"],) * 2)

    def test_noSleepIsWanted(self) -> None:
        """
        With a timeout of 0, because something is due, there is neither a spin
        nor an arming.
        """
        _, device = self.add()
        device.hot = (HotPath(),)
        self.reactor.doPoll(0)
        self.assertEqual((self.slept, device.log, device.hot[0].looks), ([0], ["progress", "look"], 0))
        self.assertEqual(self.reactor.polling.turns, 0)

    def test_underTraffic(self) -> None:
        """
        Under traffic epoll is asked every 16th turn, without sleeping.
        """
        _, device = self.add()
        device.endless = 1
        turns = []
        for turn in range(1, 65):
            self.reactor.doPoll(None)
            if self.slept:
                turns.append(turn)
                self.assertEqual(self.slept.pop(), 0)
        self.assertEqual(turns, [16, 32, 48, 64])
        self.assertEqual(device.log.count("arm"), 0)

    def test_slowHandlers(self) -> None:
        """
        Where an application takes long for each of messages that come at once, epoll is asked after four.
        """
        _, device = self.add()
        now = 50.0

        def handle() -> int:
            """
            The message takes 11 ms.
            """
            nonlocal now
            now += 0.011
            return 1

        self.running()
        self.reactor.seconds = lambda: now
        self.reactor._loop.epollAt = now
        device.endless = handle
        for _ in range(4):
            self.reactor.doPoll(None)
        self.assertEqual(self.slept, [0] * 4)
        self.assertLess(now, 50.0 + 4 * 5 * 0.012)

    def test_underTrafficFoundBySpinning(self) -> None:
        """
        The same if each turn finds its work by spinning.
        """
        _, device = self.add()
        (path,) = device.hot = (HotPath(),)
        turns = []
        for turn in range(1, 65):
            path.found = [False, False, True]
            device.work = [0, 1]
            self.reactor.doPoll(None)
            self.assertEqual(path.found, [])
            self.assertEqual(device.work, [])
            if self.slept:
                turns.append(turn)
                self.assertEqual(self.slept.pop(), 0)
        self.assertEqual(turns, [16, 32, 48, 64])
        self.assertEqual(self.reactor.polling.found, 64)

    def running(self) -> None:
        """
        Have the reactor believe that it runs.
        """
        self.reactor._started = True
        self.addCleanup(setattr, self.reactor, "_started", False)
        self.reactor._justStopped = False

    def freeze(self) -> None:
        """
        Stop its clock.
        """
        self.reactor.seconds = lambda: 50.0

    def test_stays(self) -> None:
        """
        When a batch comes soon after another, both are served in one turn of the reactor's loop; epoll is
        asked after the 16th.
        """
        self.running()
        _, device = self.add()
        (path,) = device.hot = (HotPath(),)
        path.found = [True] * 20
        device.work = [1] * 100
        self.reactor.doPoll(None)
        self.assertEqual((self.slept, device.log), ([0], ["progress"] * EVERY + ["look"]))
        self.assertEqual(len(path.found), 20 - (EVERY - 1))

    def test_staysUntilQuiet(self) -> None:
        """
        The turn ends when nothing comes for a while, without sleep: what was due when it began is not any
        more.  The next one does not look for so long again.
        """
        self.running()
        _, device = self.add()
        (path,) = device.hot = (HotPath(),)
        path.found = [True, False, True]
        device.work = [1, 1, 1]
        self.reactor.doPoll(None)
        self.assertEqual((self.slept, device.log), ([], ["progress"] * 4))
        spins = self.reactor.polling.spins
        self.reactor.doPoll(None)
        self.assertEqual((self.slept, device.log), ([MOST_SECONDS], ["progress"] * 5 + ["arm", "look"]))
        self.assertEqual(self.reactor.polling.spins, spins)
        self.reactor.doPoll(None)
        self.assertEqual(self.reactor.polling.spins, spins + 1)

    def test_staysForWhatCameUnseen(self) -> None:
        """
        Traffic that comes although polling does not pay is served in the same turn too.
        """
        self.running()
        _, device = self.add()
        device.hot = (HotPath(),)
        self.reactor.polling.hits = 0.0
        device.work = [1, 1, 1]
        self.reactor.doPoll(None)
        self.assertEqual((self.slept, device.log), ([], ["progress"] * 4))
        self.assertEqual(device.hot[0].looks, 0)

    def test_doesNotStay(self) -> None:
        """
        A turn ends after the batch in which something became due: a timed call, an earlier one, a call
        from a thread, the end.
        """
        self.running()
        _, device = self.add()
        (path,) = device.hot = (HotPath(),)
        later: list[Any] = []

        def stop() -> None:
            """
            As C{reactor.stop} does.
            """
            self.reactor._justStopped = True

        for upcall in (
            lambda: self.reactor.callLater(0, lambda: None),
            lambda: self.reactor.callFromThread(lambda: None),
            lambda: later[0].reset(0),
            stop,
            lambda: setattr(self.reactor, "_started", False),
        ):
            later[:] = [self.reactor.callLater(3600, lambda: None)]
            self.reactor._insertNewDelayedCalls()
            path.found = [True] * 4
            looks = path.looks
            device.work = [1, lambda: bool(upcall()) or 1, 1]  # noqa: B023
            self.reactor.doPoll(3600)
            self.assertEqual((len(device.work), path.looks - looks), (1, 1))
            self.assertEqual(self.slept, [])
            self.reactor._newTimedCalls.clear()
            del self.reactor.threadCallQueue[:]
            del self.reactor._pendingTimedCalls[:]
            self.running()

    def test_staysNoLongerThanCalm(self) -> None:
        """
        Nor does the look for a next batch last longer than until a timed call is due.
        """
        requireReplaceable(AdaptivePolling, "spin")
        self.running()
        _, device = self.add()
        device.hot = (HotPath(),)
        asked: list[float] = []
        self.patch(AdaptivePolling, "spin", lambda polling, pending, most, *_: bool(asked.append(most)))
        self.freeze()
        for delay in (0.5, 1e-6):
            self.reactor.callLater(delay, lambda: None)
            self.reactor._insertNewDelayedCalls()
            device.work = [1]
            self.reactor.doPoll(delay)
            self.reactor._loop.quiet = False
            self.assertAlmostEqual(asked.pop(), delay)
            self.assertEqual(asked, [])
        for call in self.reactor.getDelayedCalls():
            call.cancel()

    def test_channelComesOrGoes(self) -> None:
        """
        The turn ends too if a device comes or goes.
        """
        self.running()
        _, device = self.add()
        (path,) = device.hot = (HotPath(),)
        path.found = [True] * 3
        device.work = [1, lambda: self.add() and 1, 1]
        self.reactor.doPoll(None)
        self.assertEqual((len(device.work), self.slept), (1, []))

    def threadWaits(self) -> None:
        """
        Have the reactor believe that it runs, and that a call in a thread waits for the interpreter.
        """
        self.running()
        self.reactor.threadpool = pool = ThreadPool(0, 1)
        self.addCleanup(setattr, self.reactor, "threadpool", None)
        working: list[None] = [None]
        self.patch(ThreadPool, "working", property(lambda pool: working))
        self.assertEqual(pool.working, [None])

    def test_threadWaits(self) -> None:
        """
        While a call in a thread waits for the interpreter, the reactor sleeps after each batch, so that
        the thread has it, unless there is more to do.
        """
        self.threadWaits()
        _, device = self.add()
        (path,) = device.hot = (HotPath(),)
        path.found = [True] * 3
        device.work = [1]
        self.reactor.doPoll(None)
        self.assertEqual((self.slept, device.log), ([MOST_SECONDS], ["progress", "arm", "look"]))
        device.armed = False
        device.work = [1]
        self.reactor.doPoll(None)
        device.armed = True
        device.work = [lambda: bool(self.reactor.callFromThread(lambda: None)) or 1]
        self.reactor.doPoll(None)
        self.assertEqual(self.slept, [MOST_SECONDS, 0, 0])
        del self.reactor.threadCallQueue[:]
        device.work = [lambda: bool(self.reactor.callLater(1.5, lambda: None)) or 1]
        self.reactor.doPoll(None)
        self.assertEqual(self.slept.pop(), 0)
        self.reactor.runUntilCurrent()
        device.work = [1]
        self.reactor.doPoll(1.5)
        timeout = self.slept.pop()
        self.assertTrue(timeout is not None and 1 < timeout <= 1.5, timeout)
        self.assertEqual(path.looks, 0)

    def test_threadWaitsNoLongerThanCaller(self) -> None:
        """
        The sleep after a batch lasts no longer than the caller of the turn says, as programs do that have a
        loop of their own.
        """
        self.threadWaits()
        _, device = self.add()
        for timeout in (0, 0.25):
            device.work = [1]
            self.reactor.doPoll(timeout)
            self.assertEqual(self.slept.pop(), timeout)
        for call in self.reactor.getDelayedCalls():
            call.cancel()

    def test_counters(self) -> None:
        """
        The device shows how the reactor polls.
        """
        _, device = self.add()
        self.assertEqual(device.pollingCounters, self.reactor.polling.counters)
        other = DeviceChannel(EPollReactor(), device)
        self.assertEqual(device.pollingCounters, other.polling.counters)
        closeReactor(other.reactor)

    def test_servedAfterSleep(self) -> None:
        """
        The traffic that woke the reactor is served in the same turn, once.
        """
        channel, device = self.add()
        device.work = [0, 1, 1]

        def look() -> bool:
            """
            There is something.
            """
            device.log.append("look")
            return True

        channel.look = look
        self.reactor.doPoll(None)
        self.assertEqual((self.slept, device.log), ([MOST_SECONDS], ["progress", "arm", "look", "progress"]))

    def test_deadlinesUnderTraffic(self) -> None:
        """
        Under traffic the device's deadline is still kept: it is looked at after 16 turns at most.
        """
        _, device = self.add()
        device.endless = 1
        device.due = device.clock()
        for _ in range(EVERY):
            self.assertEqual(device.ticks, [])
            self.reactor.doPoll(None)
        self.assertEqual(len(device.ticks), 1)
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_deadlineAfterSleep(self) -> None:
        """
        A deadline at the end of a sleep is handled then, and nothing before; there is no delayed call.
        """
        channel, device = self.add()
        now = 50.0
        self.reactor.seconds = device.clock = channel.now = lambda: now
        device.due = now + 1.5
        self.reactor.doPoll(None)
        self.assertEqual((self.slept.pop(), device.ticks), (1.5, []))
        now += 1.5
        self.assertEqual(self.reactor.getDelayedCalls(), [])
        self.reactor.doPoll(None)
        self.assertEqual((self.slept.pop(), device.ticks), (0, [51.5]))

    def test_deadlineIsNotSleptOver(self) -> None:
        """
        A deadline bounds the sleep, whatever timeout was computed.
        """
        _, device = self.add()
        for timeout in (None, 60.0):
            device.due = device.clock() + 1.5
            self.reactor.doPoll(timeout)
            slept = self.slept.pop()
            self.assertTrue(slept is not None and 1 < slept <= 1.5, slept)
        device.due = None
        self.reactor.doPoll(0.25)
        self.assertEqual(self.slept.pop(), 0.25)

    def test_timedCallOfAnUpcall(self) -> None:
        """
        A timed call that an upcall made is not slept over: the turn in which
        something was done does not sleep on the timeout of before.
        """
        _, device = self.add()

        def upcall() -> int:
            self.reactor.callLater(0.5, lambda: None)
            return 1

        (path,) = device.hot = (HotPath(),)
        for spun in (False, True):
            for turn in range(EVERY):
                device.work = [0, upcall] if spun else [upcall]
                path.found = [True] if spun else []
                self.reactor.doPoll(None)
                self.assertEqual(self.slept, [0] * (turn == EVERY - 1))
            self.slept.clear()

    def test_spinEndsForTimedCall(self) -> None:
        """
        A spin is no longer than the time to the next timed call.
        """
        requireReplaceable(AdaptivePolling, "spin")
        _, device = self.add()
        device.hot = (HotPath(),)
        asked: list[float] = []
        self.patch(
            AdaptivePolling,
            "spin",
            lambda polling, pending, most, answer, sent: asked.__iadd__([min(most, answer)]) is None,
        )
        for timeout in (None, 1e-6, 0.25):
            self.reactor.doPoll(timeout)
        self.assertEqual(asked, [SPIN_SECONDS, 1e-6, SPIN_SECONDS])
        device.answerSeconds = 2 * SPIN_SECONDS
        self.reactor.doPoll(None)
        self.assertEqual(asked.pop(), 2 * SPIN_SECONDS)

    def test_learns(self) -> None:
        """
        Sleeps that answers have ended teach it how long to poll for them; those in which nothing was sent do
        not, nor those that something else has ended.
        """
        _, device = self.add()
        (path,) = device.hot = (HotPath(),)
        now = [100.0]

        def pass_(seconds: float) -> None:
            now[0] += seconds

        def sleep(timeout: float) -> None:
            if timeout == 0:
                # After an answer that was polled for.
                return
            pass_(0.6 * REACH_SECONDS)
            device.work = [serve] * device.arrives

        def serve() -> int:
            """
            As long as the longest wait that teaches it.
            """
            pass_(REACH_SECONDS)
            return 1

        self.reactor._wait = sleep
        for posts, device.arrives, reach in ((0, True, 0), (1, False, 0), (1, True, REACH_SECONDS)):
            polling = AdaptivePolling(lambda: now[0], lambda: pass_(1e-6))
            self.reactor._loop.polling = polling
            for _ in range(LESSONS):
                self.assertEqual(polling.reach, 0)
                device.posted += posts
                device.work = [0]
                self.reactor.doPoll(None)
            self.assertEqual(polling.reach, reach)
        device.posted += 1
        path.found = [False] * 200 + [True]
        before = now[0]
        device.work = [0, 1]
        self.reactor.doPoll(None)
        self.assertEqual((path.found, polling.reached), ([], 1))
        self.assertLess(now[0] - before, 150e-6)

    def test_spinLooksAtAll(self) -> None:
        """
        With one path the spin looks at it alone, else at all devices.
        """
        requireReplaceable(AdaptivePolling, "spin")
        _, one = self.add()
        looked: list[Any] = []
        self.patch(
            AdaptivePolling,
            "spin",
            lambda polling, pending, *_: looked.__iadd__([pending]) is None,
        )
        self.reactor.doPoll(None)
        self.assertEqual(looked, [])
        one.hot = (HotPath(),)
        self.reactor.doPoll(None)
        self.assertEqual(looked.pop(), one.hot[0].pending)
        one.hot = (HotPath(), HotPath())
        self.reactor.doPoll(None)
        pending = looked.pop()
        self.assertFalse(pending())
        one.hot[1].found = [True]
        self.assertTrue(pending())
        _, two = self.add()
        one.hot = (HotPath(),)
        two.hot = (HotPath(),)
        two.hot[0].found = [False, True]
        self.reactor.doPoll(None)
        pending = looked.pop()
        self.assertEqual([pending(), pending()], [False, True])

    def test_channelGoesInItsTurn(self) -> None:
        """
        A channel may leave while it is served.
        """
        channel, device = self.add()
        (user,) = channel.users
        device.work = [lambda: channel.release(user)]
        self.reactor.doPoll(None)
        self.reactor.doPoll(7)
        self.assertEqual(self.slept[-1], 7)


class ViewTests(ReactorTestCase):
    """
    The reactor as others see it.
    """

    def test_interfaces(self) -> None:
        """
        It is what it says, and no L{EPollReactor} does more.
        """
        verifyObject(IReactorCompletionChannels, self.reactor)
        verifyObject(IReactorFDSet, self.reactor)

    def test_addAndRemove(self) -> None:
        """
        A channel's descriptor and doorbells are in the reactor's epoll object,
        the descriptor until the channel goes.
        """
        channel, device = self.add()
        self.assertEqual(device.pollers, [self.reactor._poller])
        device.wake()
        self.assertIn((device.fileno(), select.EPOLLIN), self.reactor._poller.poll(0))
        self.reactor.removeChannel(channel)
        self.assertNotIn(device.fileno(), [fd for fd, _ in self.reactor._poller.poll(0)])

    def test_getReaders(self) -> None:
        """
        C{getReaders} shows the channel's reading users, not the channel.
        """
        before = self.reactor.getReaders()
        channel, _ = self.add()
        self.assertEqual(self.reactor.getReaders(), before)
        reading, paused = Keeper(), Keeper()
        reading.reading, paused.reading = True, False  # type: ignore[attr-defined]
        channel.acquire(reading)
        channel.acquire(paused)
        self.assertEqual(self.reactor.getReaders(), [*before, reading])

    def test_removeAll(self) -> None:
        """
        C{removeAll} gives other readers and the users that read, which then do
        not; the channel stays.
        """
        channel, device = self.add()

        class Reader(Keeper):
            """
            Reads.
            """

            reading = True

            def stopReading(self) -> None:
                """
                Does not.
                """
                self.reading = False

        user = Reader()
        channel.acquire(user)
        read, write = os.pipe()
        self.addCleanup(os.close, read)
        self.addCleanup(os.close, write)

        class Descriptor:
            """
            A reader of its own.
            """

            def fileno(self) -> int:
                """
                @return: the pipe.
                """
                return read

        descriptor = Descriptor()
        self.reactor.addReader(descriptor)
        self.assertEqual(set(self.reactor.removeAll()), {descriptor, user})
        self.assertEqual((user.reading, self.reactor.removeAll()), (False, []))
        device.wake()
        self.assertIn(device.fileno(), [fd for fd, _ in self.reactor._poller.poll(0)])
        self.reactor.doPoll(None)
        self.assertIn("progress", device.log)


class RunningTests(SynchronousTestCase):
    """
    A reactor that runs.
    """

    makeReactor: Any = IBReactor
    closeReactor: Any = staticmethod(closeReactor)

    def setUp(self) -> None:
        """
        Make one that ends after a while whatever happens.
        """
        super().setUp()
        self.reactor: Any = self.makeReactor()
        self.device = ScriptedDevice()
        self.addCleanup(self.device.close)
        device: Any = self.device
        device.clock = self.reactor.seconds
        self.channel = DeviceChannel(self.reactor, device)
        self.watchdog = self.reactor.callLater(HANG_SECONDS, self.reactor.crash)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            self.addCleanup(signal.signal, number, signal.getsignal(number))
        self.addCleanup(signal.set_wakeup_fd, signal.set_wakeup_fd(-1))
        self.addCleanup(self.closeReactor, self.reactor)

    def run_(self, signals: bool = False) -> None:
        """
        Run until the end.
        """
        self.reactor.run(installSignalHandlers=signals)
        self.assertTrue(self.watchdog.active(), "no end")
        self.watchdog.cancel()

    def use(self, endless: int) -> None:
        """
        Have the channel used, with or without endless traffic.
        """
        self.channel.acquire(Keeper())
        self.device.endless = endless

    def test_threads(self) -> None:
        """
        C{callFromThread} and the thread pool are served, under traffic and
        asleep.
        """
        for endless in (1, 0):
            self.setUp()
            self.use(endless)
            done: list[str] = []

            def result(done: list[str] = done) -> None:
                """
                In the reactor's thread.
                """
                done.append(threading.current_thread().name)
                self.reactor.stop()

            def work(result: Any = result) -> None:
                """
                In another.
                """
                time.sleep(0.02)
                self.reactor.callFromThread(result)

            self.reactor.callWhenRunning(self.reactor.callInThread, work)
            self.run_()
            self.assertEqual(done, [threading.current_thread().name])

    def test_signal(self) -> None:
        """
        A signal stops it, under traffic and asleep.
        """
        for endless in (1, 0):
            self.setUp()
            self.use(endless)
            timer = threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGTERM))
            self.reactor.callWhenRunning(timer.start)
            self.run_(True)
            timer.join()

    def test_process(self) -> None:
        """
        The end of a child process is noticed under traffic.
        """
        self.use(1)
        ended: list[int] = []

        class Child(ProcessProtocol):
            """
            Waits for its end.
            """

            def processEnded(inner, reason: Failure) -> None:
                """
                Stop.
                """
                ended.append(reason.value.exitCode)  # type: ignore[union-attr]
                self.reactor.stop()

        command = [sys.executable, "-c", "raise SystemExit(7)"]
        self.reactor.callWhenRunning(self.reactor.spawnProcess, Child(), command[0], command, None)
        self.run_(True)
        self.assertEqual(ended, [7])

    def test_timedCalls(self) -> None:
        """
        Timed calls are made under traffic, and so are those that the device's
        deadline makes.
        """
        for endless in (1, 0):
            self.setUp()
            self.use(endless)
            self.device.due = self.device.clock() + 0.03

            def look(device: Any = self.device, reactor: Any = self.reactor) -> None:
                # Not at a fixed time: a busy machine may let all of it pass between two turns.
                if device.ticks:
                    reactor.stop()
                else:
                    reactor.callLater(0.01, look)

            self.reactor.callLater(0.06, look)
            self.run_()
            self.assertEqual(len(self.device.ticks), 1)

    def test_woken(self) -> None:
        """
        The device's descriptor wakes it.
        """
        self.use(0)
        self.device.work = [0, 0]
        timer = threading.Timer(0.02, self.device.wake)

        def look(attend: Any = self.device.attend) -> None:
            """
            It was.
            """
            attend()
            self.reactor.stop()

        self.patch(self.device, "attend", look)
        self.reactor.callWhenRunning(timer.start)
        self.run_()
        timer.join()

    def test_shutdown(self) -> None:
        """
        When it stops, a real device is closed and its users are notified.
        """
        keeper = Keeper()
        channel = channelFor(self.reactor, "lo0")
        channel.acquire(keeper)
        self.reactor.callLater(0, self.reactor.stop)
        self.run_()
        self.assertTrue(channel.device.closed)
        self.assertIsNotNone(keeper.lost)
        self.assertEqual(self.reactor._channels, ())

    def test_logSystem(self) -> None:
        """
        Log lines within a device's turn have the name of the user that is being called.
        """
        self.use(0)
        systems: list[str] = []

        def observe(event: Any) -> None:
            if event["message"] == ("marked",):
                systems.append(event["system"])

        def upcall() -> int:
            """
            Log while a user is called.
            """
            upcalls.current = self.channel
            try:
                log.msg("marked")
            finally:
                upcalls.current = None
            log.msg("marked")
            self.reactor.stop()
            return 1

        log.addObserver(observe)
        self.addCleanup(log.removeObserver, observe)
        self.device.work = [upcall]
        self.run_()
        self.assertEqual(systems, ["test", "-"])


class KindTests(SynchronousTestCase):
    """
    The reactor's class.
    """

    def test_isEPoll(self) -> None:
        """
        It is an L{EPollReactor} whose C{doIteration} is its own.
        """
        self.assertTrue(issubclass(IBReactor, EPollReactor))
        self.assertIs(IBReactor.doIteration, IBReactor.doPoll)


class UnloadableTests(SynchronousTestCase):
    """
    Where nothing can be imported any more, as after C{chroot}.
    """

    SCRIPT = (
        "import sys\n"
        "from twisted_ib.reactor import ibreactor\n"
        "ibreactor.install()\n"
        "from twisted.internet import reactor, tcp\n"
        "from twisted.internet.protocol import ClientFactory, Factory, Protocol\n"
        "from twisted.python import log\n"
        "log.startLogging(sys.stderr, setStdout=False)\n"
        "class Echo(Protocol):\n"
        "    def dataReceived(self, data): self.transport.write(data)\n"
        "class Ask(Protocol):\n"
        "    def connectionMade(self): self.transport.write(b'hello')\n"
        "    def dataReceived(self, data): print(data.decode()); reactor.callLater(0.2, reactor.stop)\n"
        "class Nothing:\n"
        "    def find_spec(self, name, path=None, target=None): raise ModuleNotFoundError(name)\n"
        "{load}\n"
        "sys.meta_path[:] = [Nothing()]\n"
        "port = reactor.listenTCP(0, Factory.forProtocol(Echo), interface='127.0.0.1')\n"
        "reactor.connectTCP('127.0.0.1', port.getHost().port, ClientFactory.forProtocol(Ask))\n"
        f"reactor.callLater({HANG_SECONDS / 2}, reactor.stop)\n"
        "reactor.run()\n"
    )

    def test_direct(self) -> None:
        """
        TCP is then the operating system's, whatever cannot be had; the log says so once.
        """
        listen = "reactor.switch.load('listen')"
        # The last has the device opened: there are no sockets of TCP to show by it.
        opened = "from twisted_ib.internet import channel; channel.channelFor(reactor).appear()"
        loads = (
            "",
            "reactor.switch.configuration.policy",
            listen,
            "reactor.socketReport",
            f"reactor.socketReport; {opened}",
        )
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([path for path in sys.path if path])}
        for load in loads:
            done = subprocess.run(
                [sys.executable, "-c", self.SCRIPT.format(load=load)],
                capture_output=True,
                text=True,
                timeout=HANG_SECONDS,
                env=environment,
            )
            self.assertEqual((done.stdout, done.returncode), ("hello\n", 0), done.stderr)
            self.assertNotIn("Traceback", done.stderr)
            self.assertEqual(done.stderr.count("cannot be loaded"), 1, done.stderr)


class ElsewhereTests(SynchronousTestCase):
    """
    Where there is no epoll.
    """

    def test_otherBase(self) -> None:
        """
        Without epoll the reactor stands on another base, and C{lo0} works on it.
        """
        script = (
            "import select\n"
            "del select.epoll\n"
            "from twisted_ib.reactor import ibreactor\n"
            "ibreactor.install()\n"
            "from twisted.internet import reactor\n"
            "from twisted.internet.protocol import ClientFactory, Factory, Protocol\n"
            "from twisted_ib.sdp.port import connectSDP, listenSDP\n"
            "class Echo(Protocol):\n"
            "    def dataReceived(self, data): self.transport.write(data)\n"
            "class Ask(Protocol):\n"
            "    def connectionMade(self): self.transport.write(b'hello')\n"
            "    def dataReceived(self, data): print(data.decode()); reactor.stop()\n"
            "port = listenSDP(reactor, 0, Factory.forProtocol(Echo), interface='127.0.0.1', device='lo0')\n"
            "number, ask = port.getHost().port, ClientFactory.forProtocol(Ask)\n"
            "connectSDP(reactor, '127.0.0.1', number, ask, device='lo0')\n"
            f"reactor.callLater({HANG_SECONDS / 2}, reactor.stop)\n"
            "reactor.run()\n"
            "print(ibreactor.IBReactor.__bases__[1].__name__)\n"
        )
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([path for path in sys.path if path])}
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            env=environment,
        )
        self.assertEqual((done.stdout, done.stderr), ("hello\nSelectReactor\n", ""))
