"""
When to look again instead of going to sleep.

Sleeping costs a wake-up, tens of microseconds; a reply from another process comes in a few.
So before it sleeps a reactor looks again for a while, but only as long as that
pays: looking takes the CPU from whoever is to answer if both share one.

  - While looks without yielding hit often (more than one in eight) do
    L{PURE_LOOKS} of them.
  - Then look and yield in turns, for L{SPIN_SECONDS} at most.
  - A moving average of hits decides whether to look at all; below a half only
    every L{RARE}th time.  A hit that came late counts as a miss.

Pure: time and yielding are handed in.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat

#: How long a spin may last.
SPIN_SECONDS = 50e-6
#: Looks without yielding.
PURE_LOOKS = 60
#: How often to try in spite of misses.
RARE = 64
_PURE_RARE = 32


class AdaptivePolling:
    """
    The memory of one reactor's spins.

    @ivar hits: The moving hit rate, 0 to 1.
    @ivar pureHits: That of the looks without yielding.
    @ivar spins: How many spins there were; C{found}: how many found something.
    """

    __slots__ = ("_now", "_yield", "found", "hits", "pureHits", "spins", "turns")

    def __init__(self, now: Callable[[], float], giveWay: Callable[[], object]) -> None:
        """
        @param now: The time, seconds.
        @param giveWay: Lets another process have the CPU.
        """
        self._now = now
        self._yield = giveWay
        self.hits = self.pureHits = 1.0
        self.turns = self.spins = self.found = 0

    def spin(self, pending: Callable[[], bool], most: float = SPIN_SECONDS) -> bool:
        """
        Look until there is something to do, or it does not pay any longer.

        @param pending: Whether there is something to do.
        @param most: For how many seconds at most.
        @return: Whether there is something to do.
        """
        self.turns = turns = self.turns + 1
        if self.hits < 0.5 and turns & (RARE - 1):
            return False
        self.spins += 1
        if self.pureHits > 0.125 or not turns & (_PURE_RARE - 1):
            for _ in repeat(None, PURE_LOOKS):
                if pending():
                    self.hits += (1 - self.hits) * 0.125
                    self.pureHits += (1 - self.pureHits) * 0.0625
                    self.found += 1
                    return True
            self.pureHits -= self.pureHits * 0.0625
        now, giveWay = self._now, self._yield
        end = now() + min(most, SPIN_SECONDS)
        while True:
            giveWay()
            if pending():
                found, hit = True, now() < end
                self.found += 1
                break
            if now() > end:
                found = hit = False
                break
        self.hits += (hit - self.hits) * (0.5 if self.hits < 0.5 else 0.125)
        return found
