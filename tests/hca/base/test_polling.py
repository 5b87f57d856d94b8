"""
Tests for L{twisted_ib.hca.base.polling}, with a clock that only moves when the
policy looks or yields.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.hca.base.polling import (
    CROWDED_SECONDS,
    PURE_LOOKS,
    RARE,
    SHY_SECONDS,
    SHY_SECONDS_MOST,
    SPIN_SECONDS,
    AdaptivePolling,
)

#: The duration of one yield here, seconds.
YIELD = 1e-6


class World:
    """
    Time, looks and yields.

    @ivar looks: How often somebody looked.
    @ivar yields: How often the CPU was given away.
    @ivar yieldSeconds: How long that took each time.
    @ivar tickSeconds: How long it takes to see what time it is.
    """

    def __init__(self) -> None:
        """
        Nothing has happened.
        """
        self.seconds = 100.0
        self.looks = self.yields = 0
        self.yieldSeconds = YIELD
        self.tickSeconds = 0.0
        self.polling = AdaptivePolling(self.now, self.giveWay)

    def now(self) -> float:
        """
        @return: The time.
        """
        self.seconds += self.tickSeconds
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
        @return: a function that succeeds when it is called for the C{count}th time.
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

    def test_slowMedium(self) -> None:
        """
        Where answers take longer, a spin may, too.
        """
        for most, expected in ((1.0, 4 * SPIN_SECONDS), (5e-6, 5e-6)):
            before = self.world.seconds
            self.polling.hits = 1.0
            self.assertFalse(self.polling.spin(self.world.never, most, 4 * SPIN_SECONDS))
            taken = self.world.seconds - before
            self.assertTrue(expected <= taken <= expected + 2 * YIELD, (most, taken))

    def test_slowMediumYieldsFirst(self) -> None:
        """
        Over a slower medium, where a look is a system call, the CPU is given away before the first look: the
        peer may share it.
        """
        answer = 2 * SPIN_SECONDS
        self.assertTrue(self.polling.spin(self.world.afterLooks(1), answer, answer))
        self.assertEqual((self.world.yields, self.world.looks), (1, 1))

    def test_lateHitIsAMiss(self) -> None:
        """
        A success after the time is over is returned, but counts as a miss: the process that yielded did not
        have the CPU back in time.
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


class CrowdTests(SynchronousTestCase):
    """
    L{AdaptivePolling} beside a neighbour that keeps the CPU when it is given to it.
    """

    def setUp(self) -> None:
        """
        Make one that knows that looks without yielding are in vain, as on one CPU.
        """
        self.world = World()
        self.world.tickSeconds = 1e-7
        self.polling = self.world.polling
        self.polling.pureHits = 0.0

    def find(self, looks: int = 1) -> int:
        """
        Spin until something is found.

        @param looks: the look that finds it.
        @return: how often the CPU was given away.
        """
        yields = self.world.yields
        self.polling.hits = 1.0
        self.polling.turns = 1  # The next one does without looks before the first yield.
        self.assertTrue(self.polling.spin(self.world.afterLooks(looks)))
        return self.world.yields - yields

    def crowd(self) -> float:
        """
        Have a neighbour take the CPU until there are no more yields.

        @return: for how long there are none.
        """
        self.world.yieldSeconds = CROWDED_SECONDS
        for _ in range(8):
            self.find()
            if self.polling.shyUntil > self.world.seconds:
                break
        return self.polling.shyUntil - self.world.seconds

    def test_once(self) -> None:
        """
        A neighbour that comes now and then changes nothing.
        """
        for _ in range(10):
            self.world.yieldSeconds = CROWDED_SECONDS
            self.assertEqual(self.find(), 1)
            self.world.yieldSeconds = YIELD
            for _ in range(8):
                self.assertEqual(self.find(), 1)
        self.assertEqual((self.polling.crowded, self.polling.shyUntil), (10, 0.0))
        self.assertEqual(self.polling.yields, 90)

    def test_shy(self) -> None:
        """
        After three such yields there are no more for a while; looks go on without, as long as a spin
        may last.
        """
        self.assertAlmostEqual(self.crowd(), SHY_SECONDS, 4)
        self.assertEqual((self.polling.crowded, self.polling.yields), (3, 3))
        self.assertEqual(self.find(50), 0)
        before = self.world.seconds, self.world.looks
        self.assertFalse(self.polling.spin(self.world.never))
        took = self.world.seconds - before[0]
        self.assertTrue(SPIN_SECONDS <= took <= SPIN_SECONDS + 1e-6, took)
        self.assertGreater(self.world.looks - before[1], 2)
        self.assertEqual((self.world.yields, self.polling.yields), (3, 3))

    def test_shyCostsNothing(self) -> None:
        """
        If looks without yielding do not hit, there are none but rarely.
        """
        self.crowd()
        self.world.miss(20)
        self.assertLess(self.polling.hits, 0.5)
        self.assertEqual(self.world.miss(4 * RARE), 4)

    def test_shyFindsLate(self) -> None:
        """
        A success after the time is over counts as a miss there too.
        """
        self.crowd()
        self.world.tickSeconds = 2 * SPIN_SECONDS
        self.polling.hits = 1.0
        self.assertTrue(self.polling.spin(self.world.afterLooks(1)))
        self.assertEqual(self.polling.hits, 0.875)

    def test_longer(self) -> None:
        """
        While the neighbour stays, one yield each time is enough to wait twice as long, up to a bound.
        """
        waited = [self.crowd()]
        for _ in range(6):
            self.world.seconds = self.polling.shyUntil
            yields = self.polling.yields
            waited.append(self.crowd())
            self.assertEqual(self.polling.yields - yields, 1)
        self.assertEqual([round(each, 3) for each in waited], [0.1, 0.2, 0.4, 0.8, 1.6, 1.6, 1.6])
        self.assertAlmostEqual(waited[-1], SHY_SECONDS_MOST, 4)

    def test_forgets(self) -> None:
        """
        When the neighbour has gone yields come back, and a later one is met as the first was.
        """
        for _ in range(4):
            self.crowd()
            self.world.seconds = self.polling.shyUntil
        self.world.yieldSeconds = YIELD
        for _ in range(30):
            self.assertEqual(self.find(), 1)
        self.world.seconds += 2 * SHY_SECONDS_MOST
        self.assertAlmostEqual(self.crowd(), SHY_SECONDS, 4)

    def test_counters(self) -> None:
        """
        All of it can be asked for.
        """
        self.crowd()
        self.polling.spin(self.world.never)
        self.polling.hits = 0.25
        self.polling.spin(self.world.never)
        self.assertEqual(
            self.polling.counters(),
            {
                "polling_turns": 4,
                "polling_spins": 4,
                "polling_found": 3,
                "polling_yields": 3,
                "polling_crowded": 3,
                "polling_hits_permille": 250,
                "polling_pure_hits_permille": 0,
                "polling_crowd_permille": round(self.polling.crowd * 1000),
            },
        )
