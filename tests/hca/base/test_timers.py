"""
Tests for L{twisted_ib.hca.base.timers}.
"""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from benchmarks.counting import calls
from twisted_ib.hca.base.timers import Timers, rnrSeconds, timeoutSeconds

#: IBTA vol. 1 9.7.5.2.8: the delays of the RNR timer codes from 0, milliseconds.
RNR_MILLISECONDS = (
    *(655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28, 1.92),
    *(2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76),
    *(327.68, 491.52),
)


class CodeTests(SynchronousTestCase):
    """
    The timer codes of IBTA vol. 1.
    """

    def test_receiverNotReady(self) -> None:
        """
        Each code of an RNR NAK has the delay of the table, also as part of its syndrome.
        """
        for code, milliseconds in enumerate(RNR_MILLISECONDS):
            self.assertAlmostEqual(rnrSeconds(code) * 1000, milliseconds)
            self.assertAlmostEqual(rnrSeconds(0x20 | code) * 1000, milliseconds)

    def test_timeout(self) -> None:
        """
        A timeout is 4.096 microseconds times two to the power of its code; code 0 is none.
        """
        self.assertIsNone(timeoutSeconds(0))
        self.assertAlmostEqual(timeoutSeconds(1) or 0, 8.192e-6, 12)
        self.assertAlmostEqual(timeoutSeconds(14) or 0, 0.067108864, 12)
        self.assertAlmostEqual(timeoutSeconds(31) or 0, 8796.093022208, 9)


class TimersTests(SynchronousTestCase):
    """
    L{Timers}.
    """

    def setUp(self) -> None:
        """
        At time 100.
        """
        self.clock = Clock()
        self.clock.advance(100)
        self.timers = Timers(self.clock.seconds)
        self.seen: list[str] = []

    def start(self, seconds: float, name: str) -> None:
        """
        Start a timer that leaves its name.
        """
        self.timers.start(seconds, lambda: self.seen.append(name))

    def test_order(self) -> None:
        """
        Timers expire in the order of their times, each once, and not before.
        """
        for seconds, name in ((3, "c"), (1, "a"), (2, "b"), (7, "d")):
            self.start(seconds, name)
        self.assertEqual(self.timers.deadline(), 101)
        self.timers.tick(100.9)
        self.assertEqual(self.seen, [])
        self.timers.tick(103)
        self.assertEqual(self.seen, ["a", "b", "c"])
        self.timers.tick(103)
        self.assertEqual((self.seen, self.timers.deadline()), (["a", "b", "c"], 107))
        self.timers.tick(108)
        self.assertEqual((self.seen[3:], self.timers.deadline()), (["d"], None))

    def test_orderOfEqual(self) -> None:
        """
        Timers that are due at the same time expire in the order of their starts.
        """
        names = [str(number) for number in range(50)]
        for name in names:
            self.start(1, name)
        self.timers.tick(101)
        self.assertEqual(self.seen, names)

    def test_cancel(self) -> None:
        """
        A cancelled timer does not expire, also if another one of the same tick cancels it;
        to cancel again does nothing.
        """
        late = self.timers.start(2, lambda: self.seen.append("late"))
        self.timers.start(1, late.cancel)
        gone = self.timers.start(0, lambda: self.seen.append("gone"))
        gone.cancel()
        gone.cancel()
        self.assertEqual(self.timers.deadline(), 101)
        self.timers.tick(105)
        self.assertEqual((self.seen, self.timers.deadline()), ([], None))
        late.cancel()

    def test_exception(self) -> None:
        """
        One that raises keeps no other from expiring; the first exception comes out.
        """

        def fail(text: str) -> None:
            """
            Raise it.
            """
            raise ValueError(text)

        self.start(1, "a")
        self.timers.start(2, lambda: fail("first"))
        self.start(3, "b")
        self.timers.start(4, lambda: fail("second"))
        self.start(5, "c")
        error = self.assertRaises(ValueError, self.timers.tick, 106)
        self.assertEqual((str(error), self.seen), ("first", ["a", "b", "c"]))
        self.assertIsNone(self.timers.deadline())

    def test_startedMeanwhile(self) -> None:
        """
        A timer that is started by another waits for the next tick, even if it is due.
        """
        self.timers.start(1, lambda: self.start(0, "next"))
        self.clock.advance(5)
        self.timers.tick(105)
        self.assertEqual((self.seen, self.timers.deadline()), ([], 105))
        self.timers.tick(105)
        self.assertEqual(self.seen, ["next"])

    def test_interrupted(self) -> None:
        """
        While the heap changes no function of Python runs, amid which a signal's handler could change it, too.
        """
        alone = calls(lambda: self.timers.start(1, self.fail))["calls"]
        for seconds in (*range(20), *range(20)):
            self.timers.start(seconds, self.fail)
        self.assertEqual(calls(lambda: self.timers.start(1, self.fail))["calls"], alone)
        for _, _, timer in self.timers._heap:
            timer.cancel()
        self.assertEqual(calls(lambda: self.timers.tick(200))["calls"], 2)
        self.assertIsNone(self.timers.deadline())

    def test_bounded(self) -> None:
        """
        Cancelled timers do not pile up; running ones stay.
        """
        self.start(50, "stays")
        for _ in range(10000):
            self.timers.start(60, lambda: None).cancel()
        self.assertLess(len(self.timers._heap), 200)
        self.timers.tick(200)
        self.assertEqual(self.seen, ["stays"])

    def test_boundedAmongMany(self) -> None:
        """
        With many that run, cancelled timers are at most as many again, and looking for
        them is rare.
        """
        for _ in range(1000):
            self.start(50, "stays")
        swept = 0
        for _ in range(10000):
            before = len(self.timers._heap)
            self.timers.start(60, lambda: None).cancel()
            swept += len(self.timers._heap) < before
            self.assertLess(len(self.timers._heap), 2100)
        self.assertTrue(0 < swept < 20, swept)
        self.timers.tick(200)
        self.assertEqual(self.seen, ["stays"] * 1000)

    def test_orderAmongCancelled(self) -> None:
        """
        The others expire in order, whatever was cancelled and swept.
        """
        fired: list[int] = []
        for number in range(2000):
            seconds = (number * 7919) % 2003
            if number % 3:
                self.timers.start(seconds, lambda: None).cancel()
            else:
                self.timers.start(seconds, lambda seconds=seconds: fired.append(seconds))
        while (due := self.timers.deadline()) is not None:
            self.timers.tick(due)
        self.assertEqual(len(fired), 667)
        self.assertEqual(fired, sorted(fired))
