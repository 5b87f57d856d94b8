"""
When to look again instead of going to sleep.

Sleeping costs a wake-up, tens of microseconds; a reply from another process comes in a few.
So before it sleeps a reactor looks again for a while, but only as long as that
pays: looking takes the CPU from whoever is to answer if both share one.

  - While looks without yielding hit often (more than one in eight) do
    L{PURE_LOOKS} of them.
  - Then look and yield in turns, for L{SPIN_SECONDS} at most; over a medium that is slower, for as
    long as an answer takes whose sender has slept.
  - A moving average of hits decides whether to look again at all; below a half only
    every L{RARE}th time.  A hit that came late counts as a miss.
  - Who yields to a busy neighbour, and not to who is to answer, has the CPU back after a whole
    time slice: such a yield takes L{CROWDED_SECONDS} and more.  If more than a quarter do, by
    a moving average, there is no yield for L{SHY_SECONDS}, then twice as long and so on;
    looks go on without.  If the two who talk share a CPU, such looks do not hit, and both
    sleep, which lets a neighbour in only when it is its turn; on different CPUs they hit.

Pure: time and yielding are handed in.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat

from twisted_ib import limits

#: How long a spin may last.
SPIN_SECONDS = limits.ANSWER_SECONDS
#: Looks without yielding.
PURE_LOOKS = 60
#: How often to try in spite of misses.
RARE = 64
_PURE_RARE = 32
#: A yield as long as this gave the CPU to a neighbour who has other things to do.
CROWDED_SECONDS = 1e-3
#: Above this share of such yields there are no more, for how long at first and at most.
CROWD = 0.25
SHY_SECONDS = 0.1
SHY_SECONDS_MOST = 1.6


class AdaptivePolling:
    """
    The memory of one reactor's spins.

    @ivar hits: The moving hit rate, 0 to 1.
    @ivar pureHits: That of the looks without yielding.
    @ivar turns: How often it was asked.
    @ivar spins: How many spins there were; C{found}: how many found something.
    @ivar yields: How often the CPU was given away.
    @ivar crowded: How often a neighbour took it for long; C{crowd}: the moving rate.
    @ivar shyUntil: When to yield again.
    """

    __slots__ = (
        "_now",
        "_shySeconds",
        "_yield",
        "crowd",
        "crowded",
        "found",
        "hits",
        "pureHits",
        "shyUntil",
        "spins",
        "turns",
        "yields",
    )

    def __init__(self, now: Callable[[], float], giveWay: Callable[[], object]) -> None:
        """
        @param now: The time, seconds.
        @param giveWay: Lets another process have the CPU.
        """
        self._now = now
        self._yield = giveWay
        self.hits = self.pureHits = 1.0
        self.turns = self.spins = self.found = self.yields = self.crowded = 0
        self.crowd = self.shyUntil = 0.0
        self._shySeconds = SHY_SECONDS

    def spin(
        self, pending: Callable[[], bool], most: float = SPIN_SECONDS, answer: float = SPIN_SECONDS
    ) -> bool:
        """
        Look until there is something to do, or it does not pay any longer.

        @param pending: Whether there is something to do.
        @param most: For how many seconds at most.
        @param answer: How many seconds an answer may well take; no longer either.
        @return: Whether there is something to do.
        """
        self.turns = turns = self.turns + 1
        hits, pureHits = self.hits, self.pureHits
        if hits < 0.5 and turns & (RARE - 1):
            return False
        self.spins += 1
        if pureHits > 0.125 or not turns & (_PURE_RARE - 1):
            for _ in repeat(None, PURE_LOOKS):
                if pending():
                    self.hits = hits + (1 - hits) * 0.125
                    self.pureHits = pureHits + (1 - pureHits) * 0.0625
                    self.found += 1
                    return True
            self.pureHits = pureHits - pureHits * 0.0625
        now = self._now
        began = now()
        end = began + (most if most < answer else answer)
        if began < self.shyUntil:
            found = pending()
            while not found and now() <= end:
                found = pending()
            after = now()
        else:
            giveWay = self._yield
            yields = 0
            while True:
                giveWay()
                yields += 1
                found = pending()
                after = now()
                if found or after > end:
                    break
                began = after
            self.yields += yields
            # Only the last yield can have taken that long.
            if after - began >= CROWDED_SECONDS:
                self._crowded(after)
            elif self.crowd:
                self.crowd *= 0.875
        hit = found and after < end
        self.hits = hits + (hit - hits) * (0.5 if hits < 0.5 else 0.125)
        self.found += found
        return found

    def _crowded(self, now: float) -> None:
        self.crowded += 1
        self.crowd += (1 - self.crowd) * 0.125
        if self.crowd > CROWD:
            self._beShy(now)

    def _beShy(self, now: float) -> None:
        """
        Do not yield for a while: longer than the last time, unless that was long ago.
        """
        seconds = self._shySeconds
        if now - self.shyUntil > seconds:
            seconds = SHY_SECONDS
        self.shyUntil = now + seconds
        self._shySeconds = min(2 * seconds, SHY_SECONDS_MOST)

    def counters(self) -> dict[str, int]:
        """
        @return: What the device shows of it; the rates in thousandths.
        """
        return {
            "polling_turns": self.turns,
            "polling_spins": self.spins,
            "polling_found": self.found,
            "polling_yields": self.yields,
            "polling_crowded": self.crowded,
            "polling_hits_permille": round(self.hits * 1000),
            "polling_pure_hits_permille": round(self.pureHits * 1000),
            "polling_crowd_permille": round(self.crowd * 1000),
        }
