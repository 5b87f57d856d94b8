"""
Tests of L{twisted_ib.reactor.loop} without a reactor.
"""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.support.calls import requireReplaceable
from twisted_ib.hca.base.polling import LESSONS, REACH_SECONDS, SPIN_SECONDS, AdaptivePolling
from twisted_ib.reactor.loop import EPOLL_EVERY, EPOLL_SECONDS, AsyncioDeviceLoop, DeviceLoop, progress

#: The answer of a hot path is expected within so many seconds.
ANSWER = 0.25


class Polling:
    """
    Writes down how long it may poll.
    """

    def __init__(self) -> None:
        """
        Nothing is found yet.
        """
        self.asked: list[tuple[Any, float, float, int]] = []
        self.finds = self.late = False
        self.lent = self.lends = 0

    def spin(self, pending: Any, most: float, answer: float, sent: Any) -> bool:
        """
        Find what it is told to.
        """
        self.asked.append((pending, most, answer, sent()))
        self.lent += self.lends
        return self.finds


def channel(hot: int = 0, done: tuple[int, ...] = (), pending: bool = False) -> Any:
    """
    @param hot: How many paths expect an answer.
    @param done: What the next calls of C{progress} have done; then nothing.
    @return: A channel of a device.
    """
    left = list(done)
    fabric = SimpleNamespace(
        hot=[SimpleNamespace(pending=lambda: pending) for _ in range(hot)],
        answerSeconds=ANSWER,
        pending=lambda: pending,
    )
    device = SimpleNamespace(fabric=fabric, progress=lambda: left.pop(0) if left else 0, sent=lambda: 7)
    return SimpleNamespace(device=device)


class LoopTests(SynchronousTestCase):
    """
    L{DeviceLoop}.
    """

    def setUp(self) -> None:
        """
        A reactor with nothing to do.
        """
        requireReplaceable(AdaptivePolling, "spin")
        self.loop: Any = DeviceLoop()
        self.polling = self.loop.polling = Polling()
        self.loop.epollAt = inf
        self.reactor: Any = SimpleNamespace(
            threadCallQueue=[],
            threadpool=None,
            _newTimedCalls=[],
            _pendingTimedCalls=[],
            _justStopped=False,
            _started=True,
            _channels=(),
            seconds=lambda: 100.0,
        )

    def test_begin(self) -> None:
        """
        It begins with no traffic, no threads, and nothing polled.
        """
        loop = DeviceLoop()
        self.assertEqual((loop.turns, loop.inThreads, loop.quiet, loop.threadsWait), (0, 0, False, False))

    def test_calm(self) -> None:
        """
        It is calm until the next delayed call, and not at all with something to do at once.
        """
        reactor = self.reactor
        self.assertIsNone(self.loop.calm(reactor))
        for at, seconds in ((103.0, 3.0), (100.5, 0.5), (100.0, 0.0), (98.0, 0.0)):
            later = SimpleNamespace(time=at + 50)
            reactor._pendingTimedCalls = [SimpleNamespace(time=at), later]
            self.assertEqual(self.loop.calm(reactor), seconds)
        reactor._pendingTimedCalls = [SimpleNamespace(time=103.0)]
        for name, value in (
            ("threadCallQueue", [1]),
            ("_newTimedCalls", [1]),
            ("_justStopped", True),
            ("_started", False),
        ):
            kept = getattr(reactor, name)
            setattr(reactor, name, value)
            self.assertEqual(self.loop.calm(reactor), 0.0, name)
            setattr(reactor, name, kept)

    def test_spin(self) -> None:
        """
        It polls only where an answer is expected, until the next delayed call; for one path by asking that,
        for others by asking all devices.
        """
        self.assertFalse(self.loop.spin(self.reactor, (), None))
        self.assertFalse(self.loop.spin(self.reactor, (channel(), channel()), None))
        self.assertEqual(self.polling.asked, [])
        one = channel(hot=1)
        for self.polling.finds in (False, True):
            for timeout, most in ((None, inf), (0.125, 0.125), (3.0, 3.0)):
                self.assertIs(self.loop.spin(self.reactor, (one,), timeout), self.polling.finds)
                self.assertEqual(
                    self.polling.asked.pop(), (one.device.fabric.hot[0].pending, most, ANSWER, 7)
                )
        several = channel(hot=2, pending=True)
        self.assertTrue(self.loop.spin(self.reactor, (several,), None))
        self.assertEqual(self.polling.asked.pop(), (several.device.fabric.pending, inf, ANSWER, 7))
        for channels in (
            (channel(hot=1), channel(pending=True)),
            (channel(pending=True), channel(hot=1)),
        ):
            self.assertTrue(self.loop.spin(self.reactor, channels, None))
            pending, most, answer, sent = self.polling.asked.pop()
            self.assertNotIn(pending, [hot.pending for each in channels for hot in each.device.fabric.hot])
            self.assertEqual((pending(), most, answer, sent), (True, inf, ANSWER, 14))
        self.assertTrue(self.loop.spin(self.reactor, (channel(hot=1), channel()), None))
        self.assertFalse(self.polling.asked.pop()[0]())

    def test_spinLeavesToThreads(self) -> None:
        """
        It does not poll while a call in a thread needs the interpreter, one of the pool's or another.
        """
        hot = (channel(hot=1),)
        self.polling.finds = True
        self.reactor.threadpool = SimpleNamespace(working=[1])
        self.assertFalse(self.loop.spin(self.reactor, hot, None))
        self.reactor.threadpool = SimpleNamespace(working=[])
        self.assertTrue(self.loop.spin(self.reactor, hot, None))
        self.reactor.threadpool = None
        self.loop.inThreads = 1
        self.assertFalse(self.loop.spin(self.reactor, hot, None))
        self.loop.inThreads = 0
        self.assertTrue(self.loop.spin(self.reactor, hot, None))

    def stays(self, *channels: Any) -> bool:
        """
        @return: What C{stay} says of these channels of the reactor.
        """
        self.reactor._channels = channels
        alone = channels[0].device if len(channels) == 1 else None
        return bool(self.loop.stay(self.reactor, channels, alone))

    def test_staysUntilQuiet(self) -> None:
        """
        It serves what comes, counts its turns, and says when there was nothing.
        """
        one = channel(done=(1, 3))
        self.assertTrue(self.stays(one))
        self.assertEqual((self.loop.turns, self.loop.quiet), (3, True))
        self.assertEqual(one.device.progress(), 0)

    def test_staysForFound(self) -> None:
        """
        What polling has found is served although a look at the devices did nothing.
        """
        self.polling.finds = True
        self.assertFalse(self.stays(channel(hot=1)))
        self.assertEqual((self.loop.turns, self.loop.quiet), (EPOLL_EVERY, False))

    def test_epollAfterLateAnswer(self) -> None:
        """
        While each answer takes long, and is polled for, epoll has its turn after each: what else comes waits
        for one at most.
        """
        took = REACH_SECONDS / 2
        now, due, sent, served = 1.0, 0.0, 0, list[float]()

        def seconds() -> float:
            nonlocal now
            now += 1e-7
            return now

        def giveWay() -> None:
            nonlocal now
            now += 1e-6

        def serve() -> int:
            """
            Take an answer that is there, and ask again.
            """
            nonlocal due, sent
            if now < due:
                return 0
            served.append(now)
            due, sent = now + took, sent + 1
            return 1

        polling = self.loop.polling = AdaptivePolling(seconds, giveWay)
        one = channel(hot=1)
        one.device.fabric.answerSeconds = SPIN_SECONDS
        one.device.fabric.hot[0].pending = lambda: now >= due
        one.device.progress, one.device.sent = serve, lambda: sent
        serve()
        while polling.reach == 0:
            self.assertTrue(self.stays(one))
            now = max(now, due)
            polling.woken()
            serve()
        self.assertGreaterEqual(len(served), LESSONS)
        self.loop.quiet = False
        for _ in range(50):
            before, polled = len(served), now
            self.assertFalse(self.stays(one))
            self.assertEqual(len(served), before + 1)
            self.assertLess(now - polled, took + 2e-6)
        self.assertEqual((polling.reached, self.loop.quiet), (50, False))

    def test_lateOnce(self) -> None:
        """
        A late answer has epoll asked in the next turn, and not in those after it.
        """
        self.polling.finds = self.polling.late = True
        one = channel(hot=1)
        self.assertFalse(self.stays(one))
        self.assertEqual((self.loop.turns, len(self.polling.asked)), (EPOLL_EVERY, 1))
        self.assertFalse(self.polling.late)
        self.assertFalse(self.stays(one))
        self.assertEqual((self.loop.turns, len(self.polling.asked)), (2 * EPOLL_EVERY, EPOLL_EVERY))

    def test_epollInTurn(self) -> None:
        """
        However busy the devices are, epoll has its turn, each so many batches.
        """
        for number in (1, 2):
            busy = channel(done=(1,) * 1000)
            self.assertFalse(self.stays(busy))
            self.assertEqual(self.loop.turns, number * 16)
            self.assertFalse(self.loop.quiet)

    def test_epollByClock(self) -> None:
        """
        Or when so much time has passed, which each fourth batch looks at if others come at once.
        """
        now = 5.0
        self.reactor.seconds = lambda: now
        self.loop.epollAt = now + EPOLL_SECONDS
        served: list[int] = []
        busy = channel()
        busy.device.progress = lambda: served.append(1) is None
        for passed, batches in ((0.0, 15), (EPOLL_SECONDS, 4), (0.0, 15), (EPOLL_SECONDS, 4)):
            now += passed
            del served[:]
            self.assertFalse(self.stays(busy))
            self.assertEqual(
                (len(served), self.loop.turns % EPOLL_EVERY, self.loop.quiet), (batches, 0, False)
            )
        # A batch alone asks for no time.
        self.reactor.seconds = lambda: self.fail("it looks")
        for _ in range(EPOLL_EVERY - 2):
            self.assertTrue(self.stays(channel()))

    def test_somethingElse(self) -> None:
        """
        It does not stay where something is due, or a channel has come or gone: nothing more is served.
        """
        one = channel(done=(1,))
        self.reactor.threadCallQueue.append(1)
        self.assertTrue(self.stays(one))
        self.reactor.threadCallQueue.clear()
        self.reactor._channels = (one, channel())
        self.assertTrue(self.loop.stay(self.reactor, (one,), one.device))
        self.assertEqual((one.device.progress(), self.loop.quiet, self.loop.turns), (1, False, 2))

    def test_lent(self) -> None:
        """
        What polling has found as the peer had the CPU counts as a sleep: over TCP it would cost no more.
        """
        one = channel(hot=1)
        one.device.fabric.sleeps = 0
        polling: Any = self.loop.polling
        polling.finds = True
        for polling.lends, sleeps in (0, 0), (1, 1):
            self.assertTrue(self.loop.spin(self.reactor, (one,), None))
            self.assertEqual(one.device.fabric.sleeps, sleeps)

    def test_staysUntilCall(self) -> None:
        """
        A delayed call in a second is no reason to leave; it bounds the polling.
        """
        self.reactor._pendingTimedCalls = [SimpleNamespace(time=101.0)]
        self.assertTrue(self.stays(channel(hot=1)))
        self.assertTrue(self.loop.quiet)
        self.assertEqual(self.polling.asked[0][1], 1.0)

    def test_threadsFirst(self) -> None:
        """
        A call in a thread that needs the interpreter ends it at once; one that does not, does not.
        """
        self.reactor.threadpool = SimpleNamespace(working=[1])
        one = channel(done=(1,))
        self.assertFalse(self.stays(one))
        self.assertEqual((self.loop.threadsWait, one.device.progress()), (True, 1))
        self.reactor.threadpool = SimpleNamespace(working=[])
        self.assertTrue(self.stays(channel()))
        self.assertFalse(self.loop.threadsWait)
        self.reactor.threadpool = None
        self.loop.inThreads = 1
        self.assertFalse(self.stays(channel()))
        self.assertTrue(self.loop.threadsWait)

    def test_progress(self) -> None:
        """
        All devices are served once, and the sum is what was done.
        """
        channels = (channel(done=(2,)), channel(), channel(done=(3,)))
        self.assertEqual([progress(channels), progress(channels), progress(())], [5, 0, 0])


class AsyncioLoopTests(SynchronousTestCase):
    """
    L{AsyncioDeviceLoop}.
    """

    def test_calm(self) -> None:
        """
        It is calm until the event loop's next timer, and not at all if that has callbacks or stops.
        """
        events: Any = SimpleNamespace(_ready=[], _stopping=False, _scheduled=[], time=lambda: 100.0)
        loop = AsyncioDeviceLoop(events)
        self.assertIsNone(loop.calm(None))
        for at, seconds in ((103.0, 3.0), (100.5, 0.5), (100.0, 0.0), (98.0, 0.0)):
            events._scheduled = [SimpleNamespace(_when=at), SimpleNamespace(_when=at + 50)]
            self.assertEqual(loop.calm(None), seconds)
        events._scheduled = [SimpleNamespace(_when=103.0)]
        for name, value in (("_ready", [1]), ("_stopping", True)):
            kept = getattr(events, name)
            setattr(events, name, value)
            self.assertEqual(loop.calm(None), 0.0)
            setattr(events, name, kept)
