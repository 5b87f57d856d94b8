"""
Adaptive polling: when to poll again instead of sleeping.

Sleeping costs a wake-up, tens of microseconds; a reply from another process takes a few.  So a reactor polls
for a while before it sleeps, but only as long as that pays: if both processes share a CPU, polling takes it
from the one that is to answer.

  - While polls without yielding succeed often (more than one in eight), do L{PURE_LOOKS} of them.  Not over a
    slower medium: there a poll is a system call, and so many take longer than an answer.
  - Then poll and yield in turns, for L{SPIN_SECONDS} at most; over a slower medium, for as long as an answer
    takes whose sender has slept.
  - A moving average of successes decides whether to poll at all; below a half only every L{RARE}th time.  A
    late success counts as a miss, unless one yield of less than L{LENT_SECONDS} made it late: then the peer
    has had this CPU, and answered.
  - A program of Python takes some hundred microseconds for an answer.  A sleep for it teaches how long, as in
    KVM for halted processors (Documentation/virt/kvm/halt-polling.rst).  An answer is what arrives after
    something was sent since the last arrival; in a stream that is only received nothing is, be it as
    regular as it will.  After L{LESSONS} in turn within L{REACH_SECONDS} the next are polled for, as long
    as L{AdaptivePolling.reach} says; the averages above are of what comes sooner.  Each time that is in vain,
    or the CPU was gone meanwhile, takes L{REST_SECONDS}, which is saved up before; once that is gone there is
    none for as long.  If nothing was found since the time before, it takes twice as long and so on, and the
    lessons begin again.
  - A yield to a busy third process, not to the one that is to answer, lasts a whole time slice:
    L{CROWDED_SECONDS} or more.  If more than a quarter of yields do, by a moving average, there are none for
    L{SHY_SECONDS}, then twice as long and so on; polling without yields continues.  If the two peers share a
    CPU such polls miss, and both sleep; on different CPUs they succeed.

Pure: time and yielding are passed in.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Final

from twisted_ib import limits

#: The longest time of polling, in seconds.
SPIN_SECONDS: Final = limits.ANSWER_SECONDS
#: The longest time of polling for an answer that was learned, in seconds: six to ten times what a wake-up
#: costs, so that on a slow processor answers of a web framework are among these.  Of a longer wait that is a
#: small part, and polling for all of it takes a CPU.
REACH_SECONDS: Final = 600e-6
#: A yield that lasted less, in seconds, was to the peer.
LENT_SECONDS: Final = 250e-6
#: Answers in turn that teach it.
LESSONS: Final = 4
#: After so many waits in turn for what is no answer only each of so many is asked; a power of two.
UNASKED: Final = 16
#: The most of a CPU, as a share, that polling for such answers in vain may take.
WASTE: Final = 1 / 32
#: The rest that each poll in vain for an answer costs, at first and at most, in seconds; and the most that is
#: saved up for it: after a long time without such a poll eight in turn may be in vain.
REST_SECONDS: Final = REACH_SECONDS + REACH_SECONDS / WASTE
REST_SECONDS_MOST: Final = 128 * REST_SECONDS
SAVED_SECONDS: Final = 8 * REST_SECONDS
#: Polls without yielding.
PURE_LOOKS: Final = 60
#: Poll every so many times in spite of misses: otherwise a change for the better would go unnoticed.
RARE: Final = 64
_PURE_RARE: Final = 32
#: A yield this long, in seconds, went to another busy process: sched_yield(2) returns after a few
#: microseconds if nobody else is runnable.
CROWDED_SECONDS: Final = 1e-3
#: Above this share of such yields there are no more, for how long at first and at most, in seconds.
CROWD: Final = 0.25
SHY_SECONDS: Final = 0.1
SHY_SECONDS_MOST: Final = 1.6


class AdaptivePolling:
    """
    The state of one reactor's polling.

    @ivar now: returns the time, in seconds.
    @ivar pureHits: the moving success rate of polls without yielding, 0 to 1.
    @ivar spins: calls that polled.
    @ivar found: those that succeeded.
    @ivar lent: those of them that were late by one short yield.
    @ivar yields: yields of the CPU.
    @ivar crowded: those that lasted long.
    @ivar crowd: their moving rate.
    @ivar shyUntil: there are no yields before this time.
    @ivar reach: for so many seconds is polled for an answer; 0 if nothing was learned.
    @ivar reached: answers that came later than polling lasts otherwise, and were found by it.
    @ivar late: whether one was found so since this was cleared, which is for the caller to do.
    @ivar rests: how often it was in vain.
    @ivar restUntil: there is none of it before this time.
    """

    def __init__(self, now: Callable[[], float], giveWay: Callable[[], object]) -> None:
        """
        @param now: returns the time, seconds.
        @param giveWay: yields the CPU.
        """
        self.now = now
        self._yield = giveWay
        #: The moving success rate of polls, 0 to 1.
        self.hits = 1.0
        self.pureHits = 1.0
        #: Calls of L{spin}.
        self.turns = 0
        self.spins = self.found = self.lent = self.yields = self.crowded = 0
        self.crowd = self.shyUntil = 0.0
        self._shySeconds = SHY_SECONDS
        self.reached = self.rests = 0
        self.reach, self.restUntil = 0.0, now()
        self.late = False
        # The results of sent() before the last wait for an answer, and before the last that was answered.
        self._asked = self._answered = 0
        # Since when a wait for an answer lasts; 0 if none does.
        self._since = 0.0
        self._lessons = self._repaid = self._unasked = 0
        self._longest = 0.0
        self._restSeconds = REST_SECONDS

    def spin(
        self,
        pending: Callable[[], bool],
        most: float = SPIN_SECONDS,
        answer: float = SPIN_SECONDS,
        sent: Callable[[], int] | None = None,
    ) -> bool:
        """
        Poll until there is something to do, or polling no longer pays.

        @param pending: returns whether there is something to do.
        @param most: poll for so many seconds at most,
        @param answer: and no longer than an answer may take, seconds, or the L{reach}.
        @param sent: returns how much was sent, which arrivals may answer; L{None}, or one that never changes,
            if there is nothing to be learned.  It is not called before polling in vain.
        @return: whether there is something to do.
        """
        self.turns = turns = self.turns + 1
        hits, now = self.hits, self.now
        # A mask, not a modulus: this line runs before each sleep.
        if hits < 0.5 and turns & (RARE - 1):
            # A stream that is only received costs no more than this.
            if sent is None or (turns & (UNASKED - 1) and self._unasked >= UNASKED):
                return False
            start = after = now()
        else:
            self.spins += 1
            pureHits = self.pureHits
            if answer <= SPIN_SECONDS and (pureHits > 0.125 or not turns & (_PURE_RARE - 1)):
                # repeat(None, n) makes no integers: this loop is a few tens of nanoseconds per poll.
                for _ in repeat(None, PURE_LOOKS):
                    if pending():
                        # Exponential moving averages, as for TCP's round trip time (RFC 6298 section 2), with
                        # weights that are powers of two.
                        self.hits = hits + (1 - hits) * 0.125
                        self.pureHits = pureHits + (1 - pureHits) * 0.0625
                        self.found += 1
                        return True
                self.pureHits = pureHits - pureHits * 0.0625
            start = began = now()
            end = start + (most if most < answer else answer)
            giveWay, yields = None if start < self.shyUntil else self._yield, 0
            while True:
                if giveWay is not None:
                    giveWay()
                    yields += 1
                found = pending()
                after = now()
                if found or after > end:
                    break
                began = after
            if yields:
                self.yields += yields
                # Only the last yield can have taken that long: an earlier one would have ended the loop.
                if after - began >= CROWDED_SECONDS:
                    self._crowded(after)
                elif self.crowd:
                    self.crowd *= 0.875
            # Below a half the weight is larger, so that the rare attempts soon lead back to polling.
            isLent = found and after >= end and yields > 0 and after - began < LENT_SECONDS
            self.lent += isLent
            self.hits = hits + ((isLent or (found and after < end)) - hits) * (0.5 if hits < 0.5 else 0.125)
            self.found += found
            if found and self.reach and answer > SPIN_SECONDS and sent is not None:
                # All messages so far have their answer: nothing is waited for until more is sent.
                self._asked = self._answered = sent()
            if found or sent is None:
                return found
        end = min(self._answerBy(sent, start, after), start + most)
        return after < end and answer < most and self._reach(pending, after, end, start + answer)

    def _answerBy(self, sent: Callable[[], int], start: float, now: float) -> float:
        """
        Ask what was sent after polling in vain.

        @param start: when the wait began.
        @return: until when an answer is to be polled for, in seconds; not after C{now} if none is expected.
        """
        if now < self.restUntil or now < self.shyUntil:
            self._since = 0.0
            return now
        before = self._asked
        self._asked = asked = sent()
        if asked == self._answered:
            self._unasked += 1
            self._since = 0.0
            return now
        self._unasked = 0
        # After a sleep that something else has ended the wait goes on.
        if asked != before or not self._since:
            self._since = start
        return self._since + self.reach

    def _reach(self, pending: Callable[[], bool], now: float, end: float, soon: float) -> bool:
        """
        Poll on for an answer, and learn from whether there is one.

        @param end: until when, in seconds.
        @param soon: until when it comes as soon as answers do without having been learned, in seconds.
        """
        giveWay, tick = self._yield, self.now
        yields, found, began = 0, False, now
        while not found and now <= end and now - began <= SPIN_SECONDS:
            began = now
            giveWay()
            yields += 1
            found = pending()
            now = tick()
        self.yields += yields
        if found:
            self._answered = self._asked
            self._since = 0.0
            if now <= soon:
                # Answers are quick again.
                self.hits += (1 - self.hits) * 0.5
            else:
                self.late = True
        took = now - began
        if took >= CROWDED_SECONDS:
            self._crowded(now)
        # As for other polls: what is found because the CPU was gone for long is not what it polled for.
        if found and took <= SPIN_SECONDS:
            self.found += 1
            self.reached += 1
            self._repaid += 1
        else:
            self._rest(now)
        return found

    def woken(self, at: float = 0.0) -> None:
        """
        Learn from a sleep that has followed L{spin} in vain, and that an arrival has ended.

        @param at: when it ended, by C{now}; 0 for just now.
        """
        since, self._since = self._since, 0.0
        self._answered = self._asked
        if not since:
            # The arrival answers nothing; a wait that a timer ends teaches nothing either way.
            self._lessons = 0
            return
        took = (at or self.now()) - since
        if took > REACH_SECONDS:
            self._lessons = 0
            return
        self._longest = max(took, self._longest) if self._lessons else took
        self._lessons += 1
        if self._lessons >= LESSONS:
            self.reach = min(2 * self._longest, REACH_SECONDS)

    def _rest(self, now: float) -> None:
        self.rests += 1
        self._since = 0.0
        if self._repaid:
            self._restSeconds = REST_SECONDS
        else:
            self.reach = 0.0
            self._lessons = 0
        self._repaid = 0
        self.restUntil = max(self.restUntil, now - SAVED_SECONDS) + self._restSeconds
        self._restSeconds = min(2 * self._restSeconds, REST_SECONDS_MOST)

    def _crowded(self, now: float) -> None:
        self.crowded += 1
        self.crowd += (1 - self.crowd) * 0.125
        if self.crowd > CROWD:
            self._beShy(now)

    def _beShy(self, now: float) -> None:
        seconds = self._shySeconds
        # Longer than the last time, unless that was long ago.
        if now - self.shyUntil > seconds:
            seconds = SHY_SECONDS
        self.shyUntil = now + seconds
        self._shySeconds = min(2 * seconds, SHY_SECONDS_MOST)

    def counters(self) -> dict[str, int]:
        """
        @return: the counters that the device shows; rates in thousandths.
        """
        return {
            "polling_turns": self.turns,
            "polling_spins": self.spins,
            "polling_found": self.found,
            "polling_yields": self.yields,
            "polling_crowded": self.crowded,
            "polling_reached": self.reached,
            "polling_rests": self.rests,
            "polling_hits_permille": round(self.hits * 1000),
            "polling_pure_hits_permille": round(self.pureHits * 1000),
            "polling_crowd_permille": round(self.crowd * 1000),
        }
