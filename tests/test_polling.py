"""
Tests for L{twisted_ib.hca.polling}, with a clock that only moves when the
policy looks or yields.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.hca.polling import PURE_LOOKS, RARE, SPIN_SECONDS, AdaptivePolling

#: What one yield takes here, seconds.
YIELD = 1e-6


class World:
    """
    Time, looks and yields.

    @ivar looks: How often somebody looked.
    @ivar yields: How often the CPU was given away.
    @ivar yieldSeconds: How long that took each time.
    """

    def __init__(self) -> None:
        """
        Nothing has happened.
        """
        self.seconds = 100.0
        self.looks = self.yields = 0
        self.yieldSeconds = YIELD
        self.polling = AdaptivePolling(self.now, self.giveWay)

    def now(self) -> float:
        """
        @return: The time.
        """
        return self.seconds

    def giveWay(self) -> None:
        """
        Somebody else runs.
        """
        self.yields += 1
        self.seconds += self.yieldSeconds

    def never(self) -> bool:
        """
        Nothing arrives.
        """
        self.looks += 1
        return False

    def afterLooks(self, count: int) -> Callable[[], bool]:
        """
        @return: What finds something when it looks for the C{count}th time.
        """
        end = self.looks + count

        def pending() -> bool:
            """
            Look.
            """
            self.looks += 1
            return self.looks >= end

        return pending

    def miss(self, count: int = 1) -> int:
        """
        Spin in vain.

        @return: how many of C{count} spins looked at all.
        """
        spins = self.polling.spins
        for _ in range(count):
            assert not self.polling.spin(self.never)
        return self.polling.spins - spins


class AdaptivePollingTests(SynchronousTestCase):
    """
    L{AdaptivePolling}.
    """

    def setUp(self) -> None:
        """
        Make one.
        """
        self.world = World()
        self.polling = self.world.polling

    def test_pureLooks(self) -> None:
        """
        First it looks sixty times without yielding and without a clock.
        """
        for n in (1, PURE_LOOKS):
            self.world.looks = 0
            self.assertTrue(self.polling.spin(self.world.afterLooks(n)))
            self.assertEqual((self.world.looks, self.world.yields), (n, 0))
        self.assertEqual(self.world.seconds, 100.0)
        self.assertEqual((self.polling.hits, self.polling.pureHits), (1.0, 1.0))
        self.assertEqual((self.polling.spins, self.polling.found), (2, 2))

    def test_average(self) -> None:
        """
        The hit rate moves by an eighth, up by pure looks too; by a half if it
        is low.
        """
        self.world.miss()
        self.assertEqual(self.polling.hits, 0.875)
        self.polling.spin(self.world.afterLooks(1))
        self.assertEqual(self.polling.hits, 0.890625)
        self.polling.spin(self.world.afterLooks(PURE_LOOKS + 1))
        self.assertEqual(self.polling.hits, 0.904296875)

    def test_yielding(self) -> None:
        """
        Then it yields before each look.
        """
        self.assertTrue(self.polling.spin(self.world.afterLooks(PURE_LOOKS + 3)))
        self.assertEqual((self.world.looks, self.world.yields), (PURE_LOOKS + 3, 3))
        self.assertEqual(self.polling.hits, 1.0)
        self.assertEqual(self.polling.found, 1)
        self.assertLess(self.polling.pureHits, 1.0)

    def test_end(self) -> None:
        """
        A spin ends after L{SPIN_SECONDS}, with at least one yield.
        """
        self.assertFalse(self.polling.spin(self.world.never))
        self.assertTrue(SPIN_SECONDS <= self.world.seconds - 100.0 <= SPIN_SECONDS + 2 * YIELD)
        self.assertLess(self.polling.hits, 1.0)
        self.assertEqual(self.polling.found, 0)
        self.world.yieldSeconds = 1.0
        self.world.yields = 0
        self.polling.spin(self.world.never)
        self.assertEqual(self.world.yields, 1)

    def test_boundedByMost(self) -> None:
        """
        Or after C{most}, if that is less; more is not more.
        """
        for most, expected in ((5e-6, 5e-6), (0.0, 0.0), (10.0, SPIN_SECONDS)):
            before = self.world.seconds
            self.polling.hits = 1.0
            self.assertFalse(self.polling.spin(self.world.never, most))
            taken = self.world.seconds - before
            self.assertTrue(expected <= taken <= expected + 2 * YIELD, (most, taken))

    def test_lateHitIsAMiss(self) -> None:
        """
        What is found when the time is over is found, but counts as a miss: the
        process that gave way did not have the CPU back in time.
        """
        self.world.yieldSeconds = 2 * SPIN_SECONDS
        late = self.world.afterLooks(PURE_LOOKS + 1)
        self.assertTrue(self.polling.spin(late))
        self.assertEqual(self.polling.hits, 0.875)
        self.assertEqual(self.polling.found, 1)
        for _ in range(20):
            self.polling.spin(self.world.afterLooks(PURE_LOOKS + 1))
        self.assertLess(self.polling.hits, 0.5)

    def test_rareWhenMissing(self) -> None:
        """
        After some misses only every 64th time is tried; the others neither look
        nor yield.
        """
        self.assertEqual(self.world.miss(RARE), self.polling.spins)
        self.assertLess(self.polling.spins, 8)
        looks, yields = self.world.looks, self.world.yields
        while (self.polling.turns + 1) % RARE:
            self.assertEqual(self.world.miss(), 0)
        self.assertEqual((self.world.looks, self.world.yields), (looks, yields))
        self.assertEqual(self.world.miss(), 1)
        self.assertEqual(self.world.miss(10 * RARE), 10)

    def test_comesBack(self) -> None:
        """
        One hit of those rare tries is enough to spin each time again.
        """
        self.world.miss(1000)
        while (self.polling.turns + 1) % RARE:
            self.world.miss()
        self.assertTrue(self.polling.spin(self.world.afterLooks(PURE_LOOKS + 1)))
        self.assertGreaterEqual(self.polling.hits, 0.5)
        spins = self.polling.spins
        for _ in range(10):
            self.assertTrue(self.polling.spin(self.world.afterLooks(2)))
        self.assertEqual(self.polling.spins, spins + 10)

    def test_pureLooksStop(self) -> None:
        """
        Where looks without yielding never hit, as on one CPU, it yields at once;
        the pure looks are tried now and then, and come back if they hit.
        """
        for _ in range(200):
            self.assertTrue(self.polling.spin(self.world.afterLooks(PURE_LOOKS + 1)))
            if self.polling.pureHits <= 0.125:
                break
        self.assertLessEqual(self.polling.pureHits, 0.125)
        self.assertGreater(self.polling.hits, 0.9)
        pure = 0
        for _ in range(64):
            self.world.looks = self.world.yields = 0
            self.assertTrue(self.polling.spin(self.world.afterLooks(20)))
            self.assertIn(self.world.yields, (0, 20))
            pure += not self.world.yields
        self.assertTrue(1 <= pure < 40, pure)
        for _ in range(400):
            self.polling.spin(self.world.afterLooks(1))
        self.world.yields = 0
        self.assertTrue(self.polling.spin(self.world.afterLooks(5)))
        self.assertEqual(self.world.yields, 0)
