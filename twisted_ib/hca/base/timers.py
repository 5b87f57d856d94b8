"""
How long a requester waits: the codes of IBTA vol. 1.

The timers of one device's queue pairs.

A heap: a timer runs while a refused request waits to be sent again, and while an event of
a completion queue is held back.  Whoever drives the device asks L{Timers.deadline} and calls L{Timers.tick}.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

#: By min_rnr_timer's code, in hundredths of a millisecond (9.7.5.2.8).
_RNR_TIMES = (
    *(65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192),
    *(256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152),
)
_RNR_CODE_MASK = 0x1F
#: A timeout's unit in seconds; its code is a power of two (9.9.2.4.1).
_TIMEOUT_UNIT = 4.096e-6


def rnrSeconds(code: int) -> float:
    """
    How long a requester waits after an RNR refusal with this timer code.
    """
    return _RNR_TIMES[code & _RNR_CODE_MASK] / 100000


def timeoutSeconds(code: int) -> float | None:
    """
    How long it waits for an answer; L{None}, with code 0, is for ever.
    """
    return _TIMEOUT_UNIT * 2**code if code else None


class Timer:
    """
    One running timer.

    @ivar when: when it is due.
    @ivar expired: what it calls then; L{None} once it has expired or is cancelled.
    """

    __slots__ = ("expired", "when")

    def __init__(self, when: float, expired: Callable[[], None]) -> None:
        self.when = when
        self.expired: Callable[[], None] | None = expired

    def __lt__(self, other: Timer) -> bool:
        """
        Whether it is due before another.
        """
        return self.when < other.when

    def cancel(self) -> None:
        """
        It shall not expire; harmless if it has.
        """
        self.expired = None


class Timers:
    """
    All running timers of one device.
    """

    __slots__ = ("_clock", "_heap", "_sweepAt")

    # Cancelled timers are swept when there are twice as many timers as ran after the last
    # time, but not for so few.
    _IDLE = 64

    def __init__(self, clock: Callable[[], float]) -> None:
        """
        @param clock: gives the device's time in seconds.
        """
        self._clock = clock
        self._heap: list[Timer] = []
        self._sweepAt = self._IDLE

    def start(self, seconds: float, expired: Callable[[], None]) -> Timer:
        """
        Call C{expired} in C{seconds} seconds.
        """
        heap = self._heap
        if len(heap) > self._sweepAt:
            heap[:] = [timer for timer in heap if timer.expired is not None]
            heapify(heap)
            self._sweepAt = max(self._IDLE, 2 * len(heap))
        timer = Timer(self._clock() + seconds, expired)
        heappush(heap, timer)
        return timer

    def deadline(self) -> float | None:
        """
        When L{tick} is due, or L{None}.
        """
        heap = self._heap
        while heap and heap[0].expired is None:
            heappop(heap)
        return heap[0].when if heap else None

    def tick(self, now: float) -> None:
        """
        Call what is due; a timer that is started meanwhile waits for the next tick.  One
        that raises keeps no other from its call; the first exception is raised at the end.
        """
        heap = self._heap
        due = []
        while heap and heap[0].when <= now:
            due.append(heappop(heap))
        failure: Exception | None = None
        for timer in due:
            expired, timer.expired = timer.expired, None
            if expired is not None:
                try:
                    expired()
                except Exception as error:
                    failure = failure or error
        if failure is not None:
            raise failure
