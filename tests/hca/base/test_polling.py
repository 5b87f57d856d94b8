"""
Tests for L{twisted_ib.hca.base.polling}, with a clock that only moves when the
policy looks or yields.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial
from math import inf

from twisted.trial.unittest import SynchronousTestCase

from tests.support.calls import PACKAGE, called
from twisted_ib.hca.base.polling import (
    CROWDED_SECONDS,
    LENT_SECONDS,
    LESSONS,
    PURE_LOOKS,
    RARE,
    REACH_SECONDS,
    REST_SECONDS,
    REST_SECONDS_MOST,
    SAVED_SECONDS,
    SHY_SECONDS,
    SHY_SECONDS_MOST,
    SPIN_SECONDS,
    UNASKED,
    WASTE,
    AdaptivePolling,
)

#: The duration of one yield here, seconds.
YIELD = 1e-6
#: How long it takes to wake up, seconds.
WAKE = 40e-6


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

    def test_calls(self) -> None:
        """
        A spin that finds something is one function, and so is one after which no answer is known of; to ask
        whether one is to be waited for takes one more.
        """
        asks = {"spin": 1, "_answerBy": 1}
        for pending, sent, expected in (
            (self.world.afterLooks(1), lambda: 0, {"spin": 1}),
            (self.world.afterLooks(PURE_LOOKS + 2), lambda: 0, {"spin": 1}),
            (self.world.never, None, {"spin": 1}),
            (self.world.never, lambda: 0, asks),
        ):
            self.world.looks = 0
            self.polling.hits = self.polling.pureHits = 1.0
            spin = partial(self.polling.spin, pending, SPIN_SECONDS, SPIN_SECONDS, sent)
            self.assertEqual(called(spin, PACKAGE), expected)
        # One that is not to poll asks, too, and nothing else.
        self.polling.hits = 0.0
        self.assertEqual(called(spin, PACKAGE), asks)

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
        self.world.yieldSeconds = 2 * LENT_SECONDS
        late = self.world.afterLooks(PURE_LOOKS + 1)
        self.assertTrue(self.polling.spin(late))
        self.assertEqual(self.polling.hits, 0.875)
        self.assertEqual(self.polling.found, 1)
        for _ in range(20):
            self.polling.spin(self.world.afterLooks(PURE_LOOKS + 1))
        self.assertLess(self.polling.hits, 0.5)

    def test_lateByPeer(self) -> None:
        """
        Late by one short yield it counts as a success: a peer on this CPU has answered meanwhile, in more
        time than polling lasts.  A sleep for it would cost the same time, and both wake-ups.
        """
        self.world.yieldSeconds = 2 * SPIN_SECONDS
        for _ in range(20):
            self.assertTrue(self.polling.spin(self.world.afterLooks(PURE_LOOKS + 1)))
        self.assertEqual((self.polling.hits, self.polling.spins, self.polling.lent), (1.0, 20, 20))

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
                "polling_reached": 0,
                "polling_rests": 0,
                "polling_hits_permille": 250,
                "polling_pure_hits_permille": 0,
                "polling_crowd_permille": round(self.polling.crowd * 1000),
            },
        )


class Waits(World):
    """
    Waits for arrivals of which each ends a poll or a sleep.

    @ivar sent: How much was sent; C{asked}: how often that was asked.
    @ivar answer: How long an answer takes where polling lasts as long.
    @ivar found: The waits that a poll has ended.
    @ivar polled: Seconds of polling; C{vain}: those of waits that ended in a sleep.
    """

    def __init__(self, learns: bool = True) -> None:
        """
        @param learns: Whether it is known what was sent.
        """
        super().__init__()
        self.learns, self.asked = learns, 0
        self.sent, self.found = 0, list[bool]()
        self.answer = SPIN_SECONDS
        self.polled = self.vain = 0.0

    def wait(self, seconds: float, asks: bool = True, most: float = inf, serves: float = 0.0) -> bool:
        """
        Wait for what comes after so many seconds.

        @param asks: Whether something is sent before.
        @param most: When a timer ends the wait.
        @param serves: How long what has ended a sleep is served before that is told.
        @return: Whether it was found without a sleep.
        """
        self.sent += asks
        began = self.seconds
        due = began + seconds

        def posted() -> int:
            self.asked += 1
            return self.sent

        sent = posted if self.learns else None
        found = self.polling.spin(lambda: self.seconds >= due, most, self.answer, sent)
        took = self.seconds - began
        self.polled += took
        self.found.append(found)
        if not found:
            self.vain += took
            self.seconds = max(self.seconds, min(due, began + most) + WAKE)
            if self.learns and seconds <= most:
                at = self.seconds
                self.seconds += serves
                self.polling.woken(at)
        return found

    def teach(self, seconds: float = REACH_SECONDS / 2 - WAKE) -> None:
        """
        Have answers come after so many seconds until that is known.
        """
        for _ in range(100):
            if self.polling.reach:
                return
            self.wait(seconds)
        raise AssertionError(f"{self.polling.counters()}")


def alike(waits: Iterable[tuple[float, bool]]) -> tuple[Waits, Waits]:
    """
    @param waits: Each with the seconds, and whether something is sent before.
    @return: Those who have waited so: one that could learn, and one that could not.
    """
    both = Waits(), Waits(False)
    for seconds, asks in waits:
        for each in both:
            each.wait(seconds, asks)
    return both


class ReachTests(SynchronousTestCase):
    """
    Answers that take longer than polling lasts otherwise.
    """

    def assertAlike(self, waits: Iterable[tuple[float, bool]]) -> None:
        """
        Check that in these waits there is no more polling than without any learning.
        """
        one, other = alike(waits)
        self.assertEqual((one.found, one.yields, one.seconds), (other.found, other.yields, other.seconds))
        self.assertEqual((one.polling.reach, one.polling.rests), (0.0, 0))

    def test_answers(self) -> None:
        """
        Answers are polled for after some that ended a sleep, all of them, also where they are not as regular.
        """
        choose = random.Random(1)
        for least, most in ((100e-6, 100e-6), (200e-6, 200e-6), (205e-6, 205e-6), (80e-6, 150e-6)):
            waits = Waits()
            for _ in range(100):
                waits.wait(choose.uniform(least, most))
            self.assertEqual(waits.found, [False] * LESSONS + [True] * (100 - LESSONS), most)
            self.assertEqual((waits.polling.rests, waits.polling.reached), (0, 100 - LESSONS))
            # What is found so does not count as a success of other polls.
            self.assertLess(waits.polling.hits, 0.5 if least > 2 * SPIN_SECONDS else 1)

    def test_spaced(self) -> None:
        """
        Answers are polled for where pauses are between the questions, which a timer ends.
        """
        waits = Waits()
        for number in range(2 * LESSONS):
            self.assertIs(waits.wait(REACH_SECONDS / 2), number >= LESSONS)
            waits.polling.hits = 0.0
            self.assertFalse(waits.wait(inf, False, 12 * REACH_SECONDS))

    def test_slowMedium(self) -> None:
        """
        Where polling lasts as long as an answer takes, one that was found is answered: after it nothing is
        waited for in vain.
        """
        waits = Waits()
        waits.answer = 4 * SPIN_SECONDS
        waits.polling.hits = 0.0
        waits.teach(REACH_SECONDS / 2)
        for _ in range(10):
            waits.polling.hits = 1.0
            self.assertTrue(waits.wait(2 * SPIN_SECONDS))
            waits.polling.hits = 1.0
            self.assertFalse(waits.wait(inf, False, 12 * REACH_SECONDS))
        self.assertEqual(waits.polling.rests, 0)

    def test_serving(self) -> None:
        """
        An answer has come when the sleep has ended, however long it is served then.
        """
        waits = Waits()
        for _ in range(LESSONS):
            waits.wait(REACH_SECONDS / 2, serves=REACH_SECONDS)
        self.assertTrue(waits.wait(REACH_SECONDS / 2))

    def test_share(self) -> None:
        """
        Answers whose wake-up is a small part of the wait are not polled for, however regular they are: a
        server whose client asks 1,100 times a second has its processor to itself.
        """
        waits = Waits()
        began = waits.seconds
        for _ in range(1000):
            waits.wait(1.4 * REACH_SECONDS)
        self.assertEqual((waits.polling.reach, waits.polling.reached), (0.0, 0))
        self.assertLess(waits.polled, (waits.seconds - began) / 64)

    def test_late(self) -> None:
        """
        It says of an answer that came later than others are polled for, also where the CPU was gone, and of
        no other.
        """
        waits = Waits()
        waits.teach()
        self.assertFalse(waits.polling.late)
        self.assertTrue(waits.wait(2 * SPIN_SECONDS))
        self.assertTrue(waits.polling.late)
        waits.polling.late = False
        self.assertTrue(waits.wait(SPIN_SECONDS + 2 * YIELD))
        self.assertTrue(waits.polling.late)
        waits.polling.late, waits.polling.hits = False, 1.0
        self.assertTrue(waits.wait(SPIN_SECONDS / 2))
        self.assertFalse(waits.wait(10 * REACH_SECONDS))
        self.assertFalse(waits.polling.late)
        waits.seconds = waits.polling.restUntil
        waits.teach()
        waits.polling.hits, waits.polling.turns = 0.0, 0
        self.assertTrue(waits.wait(SPIN_SECONDS / 2))
        self.assertFalse(waits.polling.late)
        waits.polling.hits, waits.polling.turns = 0.0, 0
        waits.yieldSeconds = SPIN_SECONDS + YIELD
        self.assertTrue(waits.wait(SPIN_SECONDS))
        self.assertEqual((waits.polling.late, waits.polling.rests), (True, 2))

    def test_oneWay(self) -> None:
        """
        A stream that is only received is not polled for, be it as regular as it will.
        """
        for seconds in (100e-6, 200e-6, 240e-6, 1e-3):
            self.assertAlike([(seconds, False)] * 1000)
            # One that began with a request.
            self.assertAlike([(seconds, True)] + [(seconds, False)] * 1000)

    def test_unasked(self) -> None:
        """
        While a stream is only received it is seldom asked whether something was sent; answers are found out
        all the same.
        """
        waits = Waits()
        for _ in range(64 * UNASKED):
            waits.wait(200e-6, False)
        self.assertLess(waits.asked, 64 + 2 * UNASKED)
        for _ in range(UNASKED + LESSONS):
            self.assertFalse(waits.polling.reach)
            waits.wait(150e-6)
            if waits.polling.reach:
                break
        self.assertTrue(waits.wait(150e-6))

    def test_mixture(self) -> None:
        """
        Nothing is learned where among so many arrivals one is no answer; what was learned is not used for
        those.
        """
        for count in range(1, LESSONS):
            self.assertAlike(([(200e-6, True)] * count + [(200e-6, False)]) * 100)
        waits = Waits()
        waits.teach()
        polled = waits.polled
        for number in range(100):
            self.assertIs(waits.wait(200e-6, number % 2 == 0), number % 2 == 0)
        self.assertLess(waits.polled - polled, 50 * 200e-6 + 4 * SPIN_SECONDS)

    def test_quick(self) -> None:
        """
        Quick answers are found as ever, and when slow ones become quick, they are polled for as before.
        """
        self.assertAlike([(SPIN_SECONDS / 2, True)] * 100)
        waits = Waits()
        waits.teach()
        for _ in range(2):
            self.assertTrue(waits.wait(2 * SPIN_SECONDS))
        self.assertLess(waits.polling.hits, 0.5)
        for _ in range(10):
            self.assertTrue(waits.wait(SPIN_SECONDS / 2))
        self.assertGreater(waits.polling.hits, 0.9)

    def test_slower(self) -> None:
        """
        Answers that become slower than was learned are polled for once, and learned anew after a rest; those
        that become too slow once more than that, as there was a success before.
        """
        waits = Waits()
        waits.teach(60e-6)
        reach = waits.polling.reach
        self.assertAlmostEqual(reach, 2 * (60e-6 + WAKE), 5)
        self.assertFalse(waits.wait(205e-6))
        self.assertEqual((waits.polling.reach, waits.polling.rests), (0.0, 1))
        until = waits.polling.restUntil
        self.assertTrue(0 <= until - waits.seconds <= REST_SECONDS)
        yields = waits.yields
        while waits.seconds < until:
            self.assertFalse(waits.wait(205e-6))
        self.assertLess(waits.yields - yields, 3 * SPIN_SECONDS / YIELD)
        waits.teach(205e-6)
        self.assertTrue(waits.wait(205e-6))
        self.assertFalse(waits.wait(10 * REACH_SECONDS))
        self.assertEqual(waits.polling.rests, 2)
        yields = waits.yields
        for _ in range(10 * RARE):
            self.assertFalse(waits.wait(10 * REACH_SECONDS))
        self.assertEqual(waits.polling.rests, 3)
        self.assertLess(waits.yields - yields, (11 * SPIN_SECONDS + REACH_SECONDS) / YIELD)

    def test_outliers(self) -> None:
        """
        Where a few answers are too slow, more than half of the others are polled for, within what may be
        wasted.
        """
        choose, waits = random.Random(2), Waits()
        for _ in range(20000):
            waits.wait(5e-3 if choose.random() < 0.002 else choose.uniform(100e-6, 180e-6))
        self.assertGreater(sum(waits.found), 10000)
        self.assertLess(waits.vain, WASTE * waits.seconds)

    def test_pauses(self) -> None:
        """
        Where one of ten answers is too slow, but pauses between them have saved up what that takes, most are
        polled for.
        """
        choose, waits = random.Random(3), Waits()
        began = waits.seconds
        for _ in range(800):
            waits.seconds += 8 * REACH_SECONDS
            waits.wait(2 * REACH_SECONDS if choose.random() < 0.1 else choose.uniform(100e-6, 180e-6))
        self.assertGreater(sum(waits.found), 600)
        self.assertLess(waits.polling.rests * REACH_SECONDS, WASTE * (waits.seconds - began))

    def test_saved(self) -> None:
        """
        However long nothing was in vain, only so much is saved up.
        """
        waits = Waits()
        waits.teach()
        waits.seconds += 1000.0
        for _ in range(100):
            if waits.seconds < waits.polling.restUntil:
                break
            waits.polling.hits, waits.polling.turns = 0.0, 0
            self.assertTrue(waits.wait(REACH_SECONDS / 2))
            self.assertFalse(waits.wait(2 * REACH_SECONDS))
        self.assertEqual(waits.polling.rests, 1 + round(SAVED_SECONDS / REST_SECONDS))

    def test_waste(self) -> None:
        """
        Who answers so that as much as can be is polled in vain has a bound reached, but not passed: with a
        success before each time, or none.
        """
        for successes in (1, 0):
            waits = Waits()
            began, shares = waits.seconds, list[float]()
            for _ in range(20):
                waits.seconds = max(waits.seconds, waits.polling.restUntil)
                # Those of other polls are none of it.
                waits.polling.hits = 0.0
                while not waits.polling.reach:
                    waits.wait(REACH_SECONDS / 2 - WAKE)
                for _ in range(successes):
                    self.assertTrue(waits.wait(SPIN_SECONDS + 2 * YIELD))
                waits.polling.hits, waits.polling.turns = 0.0, 0
                before = waits.vain, waits.seconds
                self.assertFalse(waits.wait(10.0))
                self.assertAlmostEqual(waits.vain - before[0], REACH_SECONDS, 5)
                waits.seconds = waits.polling.restUntil
                shares.append(waits.vain / (waits.seconds - began))
            self.assertLessEqual(max(shares), WASTE)
            self.assertGreater(shares[0], 0.75 * WASTE)
            self.assertEqual(shares[-1] > 0.75 * WASTE, successes == 1)
        self.assertLess(shares[-1], WASTE / 10)
        self.assertAlmostEqual(waits.polling._restSeconds, REST_SECONDS_MOST)

    def test_oneCPU(self) -> None:
        """
        Who is to answer has the same CPU, and so a yield lasts as long as its work: both sleep.
        """
        waits = Waits()
        for _ in range(4000):
            waits.yieldSeconds = YIELD
            waits.polling.hits = 0.0
            due = waits.seconds + 150e-6
            waits.sent += 1
            waits.yieldSeconds = 150e-6
            if not waits.polling.spin(lambda: waits.seconds >= due, inf, SPIN_SECONDS, lambda: waits.sent):  # noqa: B023
                waits.seconds = max(waits.seconds, due + WAKE)
                waits.polling.woken()
        self.assertLessEqual(waits.yields, 4000 / RARE + 8)
        self.assertLessEqual(waits.polling.rests, 7)
        self.assertEqual(waits.polling.reach, 0.0)

    def test_taken(self) -> None:
        """
        After one yield in which somebody else has had the CPU there is no other.
        """
        waits = Waits()
        waits.teach()
        waits.polling.hits, waits.polling.turns = 0.0, 0
        waits.yieldSeconds = SPIN_SECONDS + YIELD
        yields = waits.yields
        self.assertFalse(waits.wait(REACH_SECONDS / 2))
        self.assertEqual((waits.yields - yields, waits.polling.rests), (1, 1))

    def test_shy(self) -> None:
        """
        Nor is anything learned, or polled for so, while others want the CPU.
        """
        waits = Waits()
        waits.tickSeconds = 1e-7
        waits.polling.shyUntil = inf
        for _ in range(100):
            waits.wait(150e-6)
        self.assertEqual((waits.polling.reach, waits.yields), (0.0, 0))
        waits.polling.shyUntil = 0.0
        waits.teach()
        waits.polling.hits = 0.0
        waits.polling.shyUntil = inf
        self.assertFalse(waits.wait(150e-6))
        self.assertEqual(waits.polling.rests, 0)
        # As it becomes by a yield that lasts.
        waits.polling.shyUntil, waits.polling.crowd = 0.0, 1.0
        waits.yieldSeconds = CROWDED_SECONDS
        self.assertTrue(waits.wait(150e-6))
        self.assertGreater(waits.polling.shyUntil, waits.seconds)
        self.assertEqual((waits.polling.rests, waits.polling.crowded), (1, 1))

    def test_timers(self) -> None:
        """
        A sleep that something else than an arrival has ended teaches nothing, an answer takes the time of all
        sleeps before it, and what was learned is not used until a timer that is due sooner than others poll
        for.
        """
        waits = Waits()
        for _ in range(100):
            waits.wait(1.0, most=150e-6)
        self.assertEqual((waits.polling.reach, waits.polling.rests), (0.0, 0))
        for _ in range(100):
            for number in range(5):
                waits.wait(1.0, not number, most=150e-6)
            waits.wait(150e-6, False)
        self.assertEqual((waits.polling.reach, waits.polling.rests), (0.0, 0))
        waits.teach()
        yields = waits.yields
        waits.polling.hits, waits.polling.turns = 0.0, 0
        self.assertFalse(waits.wait(1.0, most=SPIN_SECONDS))
        self.assertEqual((waits.yields, waits.polling.rests), (yields, 0))
        self.assertFalse(waits.wait(1.0, most=2 * SPIN_SECONDS))
        self.assertAlmostEqual((waits.yields - yields) * YIELD, 2 * SPIN_SECONDS, 5)
        self.assertEqual(waits.polling.rests, 1)

    def test_unknown(self) -> None:
        """
        Where it is not known what was sent nothing is learned, nor from a sleep without a wait before.
        """
        waits = Waits()
        for _ in range(100):
            waits.wait(200e-6, False)
            waits.polling.woken()
        self.assertEqual((waits.polling.reach, waits.polling._lessons), (0.0, 0))
