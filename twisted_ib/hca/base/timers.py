"""
Timers of queue pairs and completion queues, and the timeout codes of IBTA vol. 1.

The timers are a heap.  A timer runs while a refused request waits to be sent again, and while an event of a
completion queue is moderated.  The device's driver asks for L{Timers.deadline} and calls L{Timers.tick}.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

from twisted_ib.hca.base.attributes import ACK_DELAY_CODE

#: IBTA vol. 1 9.7.5.2.8: delays of the RNR timer codes, in hundredths of a millisecond.  Code 0 is the
#: longest.
_RNR_TIMES = (
    *(65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192),
    *(256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152),
)
_RNR_CODE_MASK = 0x1F
#: IBTA vol. 1 9.7.6.1.3: a timeout is this many seconds times two to the power of its code.
_TIMEOUT_UNIT = 4.096e-6


def rnrSeconds(code: int) -> float:
    """
    The delay after an RNR NAK with this timer code, in seconds.
    """
    # The AETH has five bits for the code (IBTA vol. 1 9.7.5.2.1); the callers may pass the whole syndrome.
    return _RNR_TIMES[code & _RNR_CODE_MASK] / 100000


def timeoutSeconds(code: int) -> float | None:
    """
    The duration of a timeout code, in seconds; L{None}, for code 0, is unlimited.
    """
    return _TIMEOUT_UNIT * (1 << code) if code else None


#: Our devices may take so long to answer, as their port attributes say.
_ACK_DELAY: Final = _TIMEOUT_UNIT * (1 << ACK_DELAY_CODE)


def ackSeconds(code: int) -> float | None:
    """
    The local ACK timeout of a queue pair, in seconds; L{None}, for code 0, is unlimited.

    One below our own ACK delay counts as that: the other end may be a process that waits for a processor.
    Others have a least one, too, as Linux's software adapter of a clock tick (rxe_qp.c, qp_timeout_jiffies).
    """
    return max(_ACK_DELAY, timeoutSeconds(code) or 0.0) if code else None


class Timer:
    """
    A running timer.
    """

    __slots__ = ("expired", "when")

    def __init__(self, when: float, expired: Callable[[], None]) -> None:
        #: Its expiry time, seconds.
        self.when = when
        #: The callback; L{None} once it was called or the timer is cancelled.
        self.expired: Callable[[], None] | None = expired

    def cancel(self) -> None:
        """
        Cancel the timer; harmless if it has expired.
        """
        self.expired = None


class Timers:
    """
    The running timers of one device.

    @ivar wanted: called when one is started that is due before all others, which nothing waits for yet; or
        L{None}.
    """

    __slots__ = ("_clock", "_heap", "_number", "_sweepAt", "wanted")

    # Cancelled timers stay in the heap, as removal from its middle is linear.  They are swept when the heap
    # has twice the size that it had after the last sweep, and more than this.
    _IDLE = 64

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # By time and, of equal ones, in order: the heap compares no timers, as amid a function of Python a
        # signal's handler may run, and use the heap.
        self._heap: list[tuple[float, int, Timer]] = []
        self._number = count().__next__
        self._sweepAt = self._IDLE
        self.wanted: Callable[[], None] | None = None

    def start(self, seconds: float, expired: Callable[[], None]) -> Timer:
        """
        Call C{expired} in C{seconds} seconds.
        """
        heap = self._heap
        if len(heap) > self._sweepAt:
            heap[:] = [each for each in heap if each[2].expired is not None]
            heapify(heap)
            self._sweepAt = max(self._IDLE, 2 * len(heap))
        timer = Timer(self._clock() + seconds, expired)
        heappush(heap, (timer.when, self._number(), timer))
        if self.wanted is not None and heap[0][2] is timer:
            self.wanted()
        return timer

    def deadline(self) -> float | None:
        """
        The time when L{tick} is due, or L{None}.
        """
        heap = self._heap
        while heap and heap[0][2].expired is None:
            heappop(heap)
        return heap[0][0] if heap else None

    def tick(self, now: float) -> None:
        """
        Call the expired timers; one that is started meanwhile waits for the next tick.  An exception from one
        keeps no other from its call; the first is raised at the end.
        """
        heap = self._heap
        # Collected first: a callback that restarts itself with no delay would otherwise loop for ever.
        due = []
        while heap and heap[0][0] <= now:
            due.append(heappop(heap))
        failure: Exception | None = None
        for _, _, timer in due:
            expired, timer.expired = timer.expired, None
            if expired is not None:
                try:
                    expired()
                except Exception as error:
                    failure = failure or error
        if failure is not None:
            raise failure
