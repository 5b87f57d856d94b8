"""
Tests for L{twisted_ib.blocking.loop}: what a turn serves, and how long it sleeps.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from functools import partial
from itertools import count
from math import inf
from threading import active_count
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

from tests.blocking.case import BlockingTestCase
from tests.support.waiting import HANG_SECONDS, waitUntil
from twisted_ib.blocking import loop as module
from twisted_ib.blocking.loop import BRIEF_SECONDS, BUSY_TURNS, YIELD_SECONDS, BlockingLoop, theLoop
from twisted_ib.drive.sleeper import MOST_SECONDS, milliseconds
from twisted_ib.drive.waiter import Waiter
from twisted_ib.hca.base.polling import LESSONS, SPIN_SECONDS, AdaptivePolling
from twisted_ib.hca.device.counters import Traffic
from twisted_ib.internet.readers import CHANNELS
from twisted_ib.reactor import driven


class User:
    """
    What uses a channel.
    """


#: The time when a loop begins, by the clock of its devices.
BEGAN = 1000.0


class Channel:
    """
    A device in a reactor: what it says, and what was asked.

    @ivar said: The calls.
    @ivar work: What each C{progress} says, in turn; then 0.
    @ivar arrives: Whether C{look} finds something, once.
    @ivar armed: What C{arm} says; C{dueIn}: the seconds until its deadline, or L{None}.
    """

    def __init__(self, **options: Any) -> None:
        self.said: list[str] = []
        self.work: list[int] = []
        self.armed, self.arrives, self.closed = True, False, False
        self.dueIn: float | None = None
        self.thread = 0
        self.users: list[Any] = []
        self.traits = SimpleNamespace(packets=False)
        self.__dict__.update(options)
        self.device, self.fabric = self, self
        self.hot: tuple[Any, ...] = ()
        # What is looked at for whether its connections gain.
        self.traffic, self.queuePairs, self.sleeps = Traffic(), dict[int, Any](), 0
        self.octets = lambda: None

    def progress(self) -> int:
        """
        Do the next work.
        """
        self.said.append("progress")
        return self.work.pop(0) if self.work else 0

    def sent(self) -> int:
        """
        Something was sent before each sleep.
        """
        return 1 + len(self.said)

    def arm(self) -> bool:
        """
        Prepare for a sleep.
        """
        self.said.append("arm")
        return self.armed

    def look(self) -> bool:
        """
        See whether something has arrived, which then is work.
        """
        arrived, self.arrives = self.arrives, False
        if arrived:
            self.work.append(1)
        return arrived

    def pending(self) -> bool:
        """
        Say whether one of its paths has something.
        """
        return any(each.pending() for each in self.hot)

    def deadline(self) -> float | None:
        """
        Say when the next timer is.
        """
        return None if self.dueIn is None else BEGAN + self.dueIn

    def tick(self, now: float) -> None:
        """
        Serve what is due.
        """
        self.said.append("tick")

    def flush(self) -> None:
        """
        Send.
        """
        self.said.append("flush")


class Poller:
    """
    An epoll object that only notes how long it would sleep.
    """

    def __init__(self, limits: list[float]) -> None:
        self.limits = limits

    def poll(self, limit: float, most: int) -> list[Any]:
        """
        Note it.
        """
        assert most > 0
        self.limits.append(limit)
        return []


class TurnCase(BlockingTestCase):
    """
    Has a loop whose devices and time are a test's.

    @ivar limits: How long turns have slept: 0 not at all, L{MOST_SECONDS} for any time.
    """

    def turning(self, *channels: Channel) -> Any:
        """
        Return a reactor with some devices, which does not sleep.
        """
        loop = BlockingLoop()
        reactor: Any = loop.reactor
        self.addCleanup(loop.close)
        self.limits: list[float] = []
        self.now = BEGAN
        self.patch(reactor, "seconds", lambda: self.now)
        self.patch(reactor, "_poller", Poller(self.limits))
        self.patch(reactor, "_channels", channels)
        loop.lock.acquire()
        self.addCleanup(loop.lock.release)
        # What is called when it is made has been called.
        reactor.turn(0.0, None)
        del self.limits[:]
        for each in channels:
            del each.said[:]
        # All is asked for in the next one.
        reactor._loop.turns = 15
        return reactor


class TurnTests(TurnCase):
    """
    Turns that ask for everything.
    """

    def test_sleeps(self) -> None:
        """
        A turn sleeps until the first of its limit, the next delayed call and the deadline of a device; not at
        all if a device has worked or has more to do.
        """
        cases: tuple[tuple[float | None, float | None, dict[str, Any], float], ...] = (
            (None, None, {}, MOST_SECONDS),
            (5.0, None, {}, 5.0),
            (0.0, None, {}, 0),
            (None, 3.0, {}, 3.0),
            (5.0, 3.0, {}, 3.0),
            (2.0, 3.0, {}, 2.0),
            (0.0, 3.0, {}, 0),
            (0.5, 0.0, {}, 0),
            (None, None, {"dueIn": 4.0}, 4.0),
            (3.0, None, {"dueIn": 4.0}, 3.0),
            (5.0, 6.0, {"dueIn": 4.0}, 4.0),
            (None, None, {"dueIn": -1.0}, 0.0),
            (None, None, {"armed": False}, 0),
            (5.0, None, {"work": [1]}, 0),
            (None, 3.0, {"work": [2]}, 0),
        )
        for limit, call, options, expected in cases:
            with self.subTest((limit, call, options)):
                channel = Channel()
                reactor = self.turning(channel)
                channel.__dict__.update(options)
                done = sum(channel.work)
                if call is not None:
                    reactor.callLater(call, lambda: None)
                    # It is known from the first turn on.
                    reactor._insertNewDelayedCalls()
                self.assertEqual(reactor.turn(limit, None), done)
                self.assertEqual(self.limits, [expected])

    def test_calls(self) -> None:
        """
        What is due has its turn, and nothing that is not.
        """
        reactor = self.turning()
        called: list[str] = []
        for seconds, name in ((0.0, "now"), (2.0, "later")):
            reactor.callLater(seconds, called.append, name)
        reactor.turn(None, None)
        self.assertEqual((called, self.limits), (["now"], [0]))
        reactor.turn(None, None)
        self.assertEqual((called, self.limits), (["now"], [0, 2.0]))
        self.now += 2.0
        reactor.turn(None, None)
        self.assertEqual((called, self.limits), (["now", "later"], [0, 2.0, 0]))

    def test_arrives(self) -> None:
        """
        What has arrived when the sleep ends is served in the same turn, and counted.
        """
        channels = Channel(), Channel()
        reactor = self.turning(*channels)
        channels[1].arrives = True
        self.assertEqual(reactor.turn(None, None), 1)
        self.assertEqual(channels[0].said, ["progress", "arm"])
        self.assertEqual(channels[1].said, ["progress", "arm", "progress"])
        reactor._loop.turns = 15
        channels[0].work, channels[1].work, channels[1].arrives = [2], [3], True
        self.assertEqual(reactor.turn(None, None), 6)

    def test_expires(self) -> None:
        """
        A device does what is due when its deadline has come, also if the turn has not slept.
        """
        for passes, limit, isExpired in (
            (0.0, None, False),
            (3.9, None, False),
            (4.0, None, True),
            (0.0, 0.0, False),
            (4.0, 0.0, True),
        ):
            channel = Channel(dueIn=4.0)
            reactor = self.turning(channel)

            def sleep(*_: Any, passes: float = passes) -> list[Any]:
                self.now += passes
                return []

            self.patch(reactor, "_poller", SimpleNamespace(poll=sleep))
            reactor.turn(limit, None)
            self.assertEqual("tick" in channel.said, isExpired, (passes, limit))
        channel = Channel()
        reactor = self.turning(channel)
        reactor.turn(None, None)
        self.assertEqual((channel.said, reactor.rest.until), (["progress", "arm"], inf))


class BriefTests(TurnCase):
    """
    Turns between those that ask for everything.
    """

    def brief(self, *channels: Channel) -> Any:
        """
        Return a reactor that has asked for all a moment ago.
        """
        reactor = self.turning(*channels)
        reactor._askAt = monotonic() + HANG_SECONDS
        reactor._loop.turns = 0
        return reactor

    def test_sleeps(self) -> None:
        """
        They sleep for a brief time, of which the next one asks for everything if nothing came.
        """
        for limit, expected in ((None, 0.01), (1.0, 0.01), (0.001, 0.001)):
            channel = Channel()
            reactor = self.brief(channel)
            reactor._loop.turns = 1
            self.assertEqual(reactor.turn(limit, None), 0)
            self.assertEqual((self.limits, channel.said), ([expected], ["arm"]))
            reactor.turn(None, None)
            self.assertEqual((self.limits[1:], channel.said), ([MOST_SECONDS], ["arm", "progress", "arm"]))

    def test_arrives(self) -> None:
        """
        What arrives is served, and the next one is as brief.
        """
        channels = Channel(), Channel()
        reactor = self.brief(*channels)
        for arriving in channels:
            arriving.arrives = True
            self.assertEqual(reactor.turn(None, None), 1)
        self.assertEqual(self.limits, [0.01, 0.01])
        for each in channels:
            each.arrives = True
        self.assertEqual(reactor.turn(None, None), 2)

    def test_unarmed(self) -> None:
        """
        One with more to do keeps all from sleeping.
        """
        channels = Channel(armed=False), Channel()
        reactor = self.brief(*channels)
        channels[0].arrives = True
        self.assertEqual(reactor.turn(None, None), 1)
        self.assertEqual(self.limits, [])
        self.assertEqual([each.said for each in channels], [["arm", "progress"], ["arm"]])

    def test_packets(self) -> None:
        """
        Where messages are packets, what waits to be sent leaves before the sleep.
        """
        channels = Channel(traits=SimpleNamespace(packets=True)), Channel()
        reactor = self.brief(*channels)
        channels[0].work = [3]
        self.assertEqual(reactor.turn(None, None), 3)
        self.assertEqual(
            (self.limits, channels[0].said, channels[1].said), ([], ["progress", "arm"], ["arm"])
        )
        self.assertEqual(reactor.turn(None, None), 0)
        self.assertEqual(self.limits, [0.01])

    def test_called(self) -> None:
        """
        A call that was made since, of this thread or another, has its turn first.
        """
        for name in ("callLater", "callFromThread"):
            reactor = self.brief(Channel())
            self.patch(reactor, "wakeUp", lambda: None)
            called: list[int] = []
            call: Any = getattr(reactor, name)
            call(*((0,) if name == "callLater" else ()), called.append, 1)
            reactor.turn(None, None)
            self.assertEqual((called, self.limits), ([1], [0]), name)

    def test_learns(self) -> None:
        """
        Sleeps that answers have ended teach it for how long to poll, the brief ones and those that ask for
        everything.
        """
        now = [100.0]
        for isBrief in (True, False):
            channel = Channel(answerSeconds=SPIN_SECONDS)
            channel.hot = (SimpleNamespace(pending=lambda: False),)
            reactor = self.brief(channel)

            def giveWay() -> None:
                now[0] += 1e-6

            polling = reactor._loop.polling = AdaptivePolling(lambda: now[0], giveWay)
            for _ in range(LESSONS):
                self.assertEqual(polling.reach, 0.0)
                if not isBrief:
                    reactor._askAt = 0.0
                reactor._loop.turns, channel.arrives = 0, True
                self.assertEqual(reactor.turn(None, None), 1)
            self.assertGreater(polling.reach, 0.0)

    def test_afterLate(self) -> None:
        """
        The turn after an answer that was polled for longer than others asks for everything, the kernel
        too; those after it poll again.
        """
        channel = self.hot()
        reactor = self.brief(channel)
        polling = reactor._loop.polling
        for late in (True, False):
            polling.late, channel.work, reactor._loop.turns = late, [1, 1, 1], 0
            self.limits.clear()
            for slept in ([], [0] * late, [0] * late):
                reactor._askAt = monotonic() + HANG_SECONDS
                self.assertEqual(reactor.turn(None, None), 1)
                self.assertEqual(self.limits, slept)
            self.assertFalse(polling.late)

    def hot(self, *work: int) -> Channel:
        """
        Return a channel whose device is polled in place of a sleep, and has something then.
        """
        channel = Channel(answerSeconds=1e-3)
        channel.hot = (SimpleNamespace(pending=lambda: True),)
        channel.work = list(work)
        return channel

    def test_polled(self) -> None:
        """
        What comes while devices are polled is served without a sleep, in all; that it came is work too.
        """
        for works, done in (((2, 3), 5), ((0, 0), 1)):
            channels = self.hot(), Channel()
            reactor = self.brief(*channels)
            for channel, work in zip(channels, works, strict=True):
                channel.work = [work]
            self.assertEqual(reactor.turn(None, None), done)
            self.assertEqual((self.limits, [each.said for each in channels]), ([], [["progress"]] * 2))
            # Of one that asks for everything the kernel is part.
            reactor._loop.turns = 15
            for channel, work in zip(channels, works, strict=True):
                channel.work = [0, work]
            self.assertEqual(reactor.turn(None, None), done)
            self.assertEqual(self.limits, [0])

    def test_polledLate(self) -> None:
        """
        After a brief time a turn that finds something by polling asks for everything as well, and does not
        sleep.
        """
        for work, done in (([2], 2), ([], 1)):
            channel = self.hot()
            reactor = self.brief(channel)
            reactor._askAt, channel.work = 0.0, work
            self.assertEqual((reactor.turn(None, None), self.limits, channel.said), (done, [0], ["progress"]))
            reactor._askAt, channel.work = monotonic() + HANG_SECONDS, [3]
            self.assertEqual((reactor.turn(None, None), self.limits), (3, [0]))

    def test_notTwice(self) -> None:
        """
        A turn whose devices were polled in vain does not poll them again before it sleeps.
        """
        channel = self.hot()
        channel.hot = (SimpleNamespace(pending=lambda: False),)
        reactor = self.brief(channel)
        polling = reactor._loop.polling
        for askAt, slept in ((0.0, MOST_SECONDS), (monotonic() + HANG_SECONDS, 0.01)):
            reactor._askAt, reactor._loop.turns = askAt, 0
            before = polling.turns
            reactor.turn(None, None)
            self.assertEqual((self.limits[-1], polling.turns), (slept, before + 1))

    def test_every(self) -> None:
        """
        Every sixteenth turn asks for everything, and each after a brief time.
        """
        channel = Channel()
        reactor = self.brief(channel)
        for turn in range(1, 33):
            channel.arrives = True
            reactor.turn(None, None)
            self.assertEqual(self.limits[-1], 0.01 if turn % 16 else MOST_SECONDS, turn)
            reactor._askAt = monotonic() + HANG_SECONDS
        reactor._askAt = 0.0
        reactor.turn(None, None)
        self.assertEqual(self.limits[-1], MOST_SECONDS)
        self.assertLessEqual(reactor._askAt, monotonic() + 0.01)
        self.assertGreater(reactor._askAt, 0.0)
        # A turn that does not wait asks for everything.
        reactor._askAt = monotonic() + HANG_SECONDS
        reactor.turn(0.0, None)
        self.assertEqual(self.limits[-1], 0)


class LoopTests(TurnCase):
    """
    Calls beside the turns.
    """

    def woken(self, loop: BlockingLoop) -> list[int]:
        """
        Return what is filled when the leader is woken.
        """
        found: list[int] = []
        self.patch(loop.reactor, "wakeUp", lambda: found.append(1))
        return found

    def test_flush(self) -> None:
        """
        A flush wakes a leader that sleeps, if the device has more to do or an earlier timer than is known.
        """
        for sleeping, armed, packets, due, isWoken in (
            (False, False, True, 0.0, False),
            (True, True, False, None, False),
            (True, False, False, None, True),
            (True, True, False, 1.0, False),
            (True, True, True, None, False),
            (True, True, True, 9.0, False),
            (True, True, True, 10.0, False),
            (True, True, True, 8.0, True),
        ):
            channel = Channel(armed=armed, traits=SimpleNamespace(packets=packets), dueIn=due)
            reactor = self.turning(channel)
            loop = reactor.drivers
            woken = self.woken(loop)
            # It knows of one in nine seconds.
            reactor.rest.until = BEGAN + 9.0
            loop.sleeping = sleeping
            loop.flush(channel)
            loop.sleeping = False
            asleep = ["flush", "arm"] if armed else ["flush", "arm", "progress", "arm"]
            self.assertEqual(channel.said, asleep if sleeping else ["flush"])
            self.assertEqual(bool(woken), isWoken, (sleeping, armed, packets, due))

    def test_flushServes(self) -> None:
        """
        What a flush finds while the leader sleeps it serves itself: the leader is woken by what it waits for,
        and by new delayed calls, and other threads by what they wait for.
        """
        for isReady, delays, isWoken in ((False, False, False), (True, False, True), (False, True, True)):
            channel = Channel(armed=False)
            reactor = self.turning(channel)
            loop, waiter = reactor.drivers, Waiter(lambda channel=channel: channel.armed, 0.0)
            woken = self.woken(loop)

            def progress(channel: Any = channel, reactor: Any = reactor, delays: bool = delays) -> int:
                channel.said.append("progress")
                channel.armed = True
                if delays:
                    reactor.callLater(0, lambda: None)
                return 1

            channel.__dict__["progress"] = progress
            loop.followers.append(waiter)
            loop.sleeping, loop._leaderReady = True, lambda isReady=isReady: isReady
            loop.flush(channel)
            loop.sleeping = False
            loop.followers.clear()
            # A leader that is woken arms it itself.
            self.assertEqual(channel.said, ["flush", "arm", "progress", "arm"][: 3 if isReady else 4])
            self.assertEqual((len(woken), waiter.done), (isWoken, True))

    def test_disturb(self) -> None:
        """
        Only a leader that sleeps is woken: by other deadlines, and by what a collected socket has left.
        """
        loop = self.turning().drivers
        woken = self.woken(loop)
        for sleeping in (False, True):
            loop.sleeping = sleeping
            loop.disturb()
            loop.abandon(woken.clear)
            self.assertEqual(len(woken), 2 if sleeping else 0)
        loop.sleeping = False
        self.assertEqual(list(loop.orphans), [woken.clear] * 2)

    def test_orphans(self) -> None:
        """
        What collected sockets have left is closed on the way in, in order, once.
        """
        loop = self.turning().drivers
        closed: list[int] = []
        for number in range(3):
            loop.abandon(partial(closed.append, number))
        for _ in range(2):
            with loop:
                self.assertEqual(closed, [0, 1, 2])

    def test_own(self) -> None:
        """
        The devices that are open belong to the thread that has the lock.
        """
        channels = {"open": Channel(), "closed": Channel(closed=True)}
        reactor = self.turning()
        setattr(reactor, CHANNELS, channels)
        loop = reactor.drivers
        before = loop.owner
        loop.lock.release()
        other = self.inThread(self.entered, loop).result(HANG_SECONDS)
        loop.lock.acquire()
        self.assertEqual((channels["open"].thread, channels["closed"].thread), (other, 0))
        self.assertNotEqual(other, before)
        with loop:
            self.assertEqual((loop.owner, channels["open"].thread), (before, before))
        setattr(reactor, CHANNELS, {})

    def entered(self, loop: BlockingLoop) -> int:
        """
        Return the owner within a loop, in the calling thread.
        """
        with loop:
            return loop.owner

    def test_threads(self) -> None:
        """
        Threads that may need the interpreter are those that do not wait for the loop, if any of them works.
        """
        loop = self.turning().drivers
        for each in (loop, self.loop):
            self.patch(each._others, "areWorking", True)
            self.patch(each._others, "until", inf)
        before = loop.threadsBeside(0.0)
        self.assertEqual(before, active_count() - 1)
        one, other = self.pair()
        self.loop.poll()
        waiting = [self.inThread(one.recv, 1)]
        waitUntil(lambda: self.loop.sleeping)
        self.assertEqual(loop.threadsBeside(0.0), before + len(self._threads._threads))  # type: ignore[union-attr]
        waiting.append(self.inThread(other.recv, 1))
        waitUntil(lambda: len(self.loop.followers) == 1)
        self.assertEqual(self.loop.threadsBeside(0.0), loop.threadsBeside(0.0) - 1)
        self.patch(loop._others, "areWorking", False)
        self.assertEqual(loop.threadsBeside(0.0), 0)
        one.shutdown(2)
        other.shutdown(2)
        for each in waiting:
            each.result(HANG_SECONDS)

    def test_yields(self) -> None:
        """
        A leader whose devices always have something to do lets other threads have the lock: one that comes,
        and one that follows until a deadline.
        """
        channel = Channel()
        loop = self.turning(channel).drivers
        self.patch(channel, "pending", lambda: True)
        self.patch(channel, "progress", lambda: 1)
        loop.reactor._poller.poll = lambda limit, most: sleep(limit) or []
        found: list[object] = []
        loop.lock.release()
        self.addCleanup(loop.lock.acquire)
        leading = self.inThread(self.led, loop, lambda: len(found) == 2)
        waitUntil(lambda: loop.leader)
        for act in (
            lambda: found.append(None),
            lambda: found.append(loop.follow(lambda: False, monotonic())),
        ):
            with loop:
                act()
        self.assertTrue(leading.result(HANG_SECONDS))
        self.assertEqual(found, [None, False])

    def test_yieldsByClock(self) -> None:
        """
        It does so after a brief time, however few turns that are.
        """
        for passes, expected in ((0.0, 0), (BRIEF_SECONDS, 7)):
            channel, now, turns = Channel(), count(0.0, passes), count(1)
            self.patch(channel, "progress", lambda: 1)
            loop = self.turning(channel).drivers
            for each in module, driven:
                self.patch(each, "monotonic", lambda now=now: next(now))
            loop.followers.append(Waiter(lambda: False, 0.0))
            self.assertTrue(loop.lead(lambda turns=turns: next(turns) == 16 * BUSY_TURNS, None))
            self.assertEqual(self.limits.count(YIELD_SECONDS), expected)
            loop.followers.clear()

    def led(self, loop: BlockingLoop, ready: Callable[[], object]) -> bool | None:
        """
        Lead, in the calling thread.
        """
        with loop:
            return loop.lead(ready, monotonic() + HANG_SECONDS / 2)

    def test_poll(self) -> None:
        """
        Beside a leader that sleeps devices are served and calls made, without a turn; within one nothing is.
        """
        channel = Channel(dueIn=0.0)
        reactor = self.turning(channel)
        loop = reactor.drivers
        called: list[int] = []

        def ready() -> bool:
            turns = reactor._loop.turns
            del channel.said[:]
            loop.poll()
            called.append(len(channel.said))
            loop.sleeping = True
            reactor.callLater(0, called.append, 9)
            loop.poll()
            loop.sleeping = False
            self.assertEqual(reactor._loop.turns, turns)
            return True

        self.assertTrue(loop.lead(ready, None))
        self.assertEqual((called, channel.said), ([0, 9], ["progress", "flush", "arm"]))
        loop.poll()
        self.assertEqual((self.limits[-1], channel.said[3:]), (0, ["progress", "tick"]))

    def test_changed(self) -> None:
        """
        A close takes two turns where no thread leads, and none within a turn.
        """
        channel = Channel()
        reactor = self.turning(channel)
        loop = reactor.drivers
        before = reactor._loop.turns
        loop.changed()
        self.assertEqual(reactor._loop.turns, before + 2)

        def ready() -> bool:
            del channel.said[:]
            loop.changed()
            return True

        loop.lead(ready, None)
        self.assertEqual(channel.said, [])

    def test_besideSleep(self) -> None:
        """
        What another thread serves or closes beside a leader that sleeps wakes it if its condition holds then.
        """
        for holds, work, isChanged, woken in (
            (True, 0, False, 0),
            (True, 1, False, 1),
            (False, 1, False, 0),
            (False, 0, True, 1),
            (True, 0, True, 2),
        ):
            channel = Channel()
            reactor = self.turning(channel)
            loop = reactor.drivers
            found = self.woken(loop)
            inner: list[bool] = []

            def ready(
                loop: Any = loop,
                channel: Channel = channel,
                inner: list[bool] = inner,
                holds: bool = holds,
                work: int = work,
                isChanged: bool = isChanged,
            ) -> bool:
                if inner:
                    return holds
                inner.append(True)
                channel.work = [work]
                loop.sleeping = True
                (loop.changed if isChanged else loop.poll)()
                loop.sleeping = False
                return True

            self.assertTrue(loop.lead(ready, None))
            self.assertEqual(len(found), woken, (holds, work, isChanged))

    def test_orphanOfTurn(self) -> None:
        """
        A turn in which a socket is collected does not sleep, and the next one closes what it has left.
        """
        channel = Channel()
        reactor = self.turning(channel)
        loop = reactor.drivers
        closed: list[int] = []

        def arm() -> bool:
            loop.abandon(lambda: closed.append(1))
            return True

        self.patch(channel, "arm", arm)
        reactor.turn(None, None)
        self.assertEqual((self.limits, closed), ([0.0], []))
        loop.lead(lambda: bool(closed), None)
        self.assertEqual(closed, [1])

    def test_wait(self) -> None:
        """
        A wait for what is there takes no turn; one whose time is over takes one, and says so.
        """
        reactor = self.turning(Channel())
        loop = reactor.drivers
        turns = reactor._loop.turns
        self.assertIs(loop.wait(lambda: 1), True)
        reader, writer = os.pipe()
        for each in (reader, writer):
            self.addCleanup(os.close, each)
        poller = select.poll()
        poller.register(writer, select.POLLOUT)
        self.assertIs(loop.wait(lambda: False, None, poller), True)
        self.assertEqual(reactor._loop.turns, turns)
        self.assertIs(loop.wait(lambda: False, monotonic() - 1), False)
        self.assertEqual((reactor._loop.turns, self.limits), (turns + 1, [0]))
        self.assertIs(loop.wait(lambda: reactor._loop.turns > turns + 1, monotonic() - 1), True)
        self.assertIs(loop.lead(lambda: True, None), True)

    def test_kernel(self) -> None:
        """
        A wait that has a descriptor of the kernel's sleeps there, in milliseconds, and ends with it.
        """
        reactor = self.turning(Channel())
        loop = reactor.drivers
        said: list[Any] = []

        class Kernel:
            """
            A C{poll} object that has something the second time.
            """

            def register(self, descriptor: int, mask: int) -> None:
                said.append(mask)

            def unregister(self, descriptor: int) -> None:
                said.append(descriptor)

            def poll(self, milliseconds: int | None) -> list[tuple[int, int]]:
                said.append(milliseconds)
                return [(reactor.descriptor, 1)] if len(said) < 3 else [(-7, 1)]

        self.patch(reactor, "_poller", SimpleNamespace(poll=lambda *_: []))
        self.assertTrue(loop.lead(lambda: False, None, Kernel()))
        self.assertEqual(said, [select.POLLIN, milliseconds(None), 10, reactor.descriptor])
        del said[:]
        reactor._loop.turns = 15
        self.assertTrue(loop.lead(lambda: False, monotonic() + 1e6, Kernel()))
        self.assertTrue(1e9 - 1e6 < said[1] <= 1e9)

    def test_forked(self) -> None:
        """
        A loop of the parent process abandons and closes nothing.
        """
        loop = BlockingLoop()
        loop.forked = True
        loop.abandon(lambda: None)
        loop.close()
        self.assertEqual((list(loop.orphans), loop.closed), ([], False))
        loop.forked = False
        loop.close()
        self.assertTrue(loop.closed)

    def test_drains(self) -> None:
        """
        The end waits for what is unsent or ends, of devices that are open, for a bounded time.
        """
        for user, closed, isAwaited in (
            ({"buffer": None}, False, False),
            ({"buffer": b"x"}, False, True),
            ({"ending": True}, False, True),
            ({"ending": False}, False, False),
            ({"buffer": b"x"}, True, False),
        ):
            reactor = self.turning()
            loop = reactor.drivers
            left = User()
            left.__dict__.update(user)
            setattr(reactor, CHANNELS, {"x": Channel(users={left: None}, closed=closed)})
            seen: list[float] = []

            def turn(limit: float, kernel: Any, left: Any = left, seen: list[float] = seen) -> int:
                seen.append(limit)
                if len(seen) > 2:
                    left.__dict__.clear()
                return 0

            self.patch(loop, "turn", turn)
            poller = SimpleNamespace(poll=lambda *_: [], close=lambda: None, unregister=lambda *_: None)
            self.patch(reactor, "_poller", poller)
            self.patch(reactor, "closePorts", lambda: None)
            self.patch(reactor, "fireSystemEvent", lambda event: None)
            loop.close()
            self.assertEqual(len(seen), 3 if isAwaited else 0, user)
            self.assertTrue(all(1.0 < each <= 2.0 for each in seen[:1]))
            setattr(reactor, CHANNELS, {})

    def test_one(self) -> None:
        """
        There is one loop for the process.
        """
        self.assertIs(theLoop(), self.loop)
        self.assertIs(theLoop(), theLoop())
