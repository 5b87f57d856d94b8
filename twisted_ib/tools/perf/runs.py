"""
What one connection of C{ib-perf} does while it is measured, and the times it took.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from attrs import frozen
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPushProducer
from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.tools.perf.link import Link
from twisted_ib.tools.program import ProgramError

#: Writes between two looks at the clock, and before the reactor has a turn.
_BURST = 64
_TURN = 16 * _BURST

_LONGEST = limits.PERF_SECONDS * 1_000_000_000
_DIGITS = 3


@frozen
class Span:
    """
    How long a measurement takes.

    @ivar count: the most messages of each connection.
    @ivar seconds: the most seconds; L{None} if only the number counts.
    """

    count: int = sys.maxsize
    seconds: float | None = None

    def deadline(self) -> int:
        """
        @return: when it ends if it begins now, by C{perf_counter_ns}.
        """
        return sys.maxsize if self.seconds is None else perf_counter_ns() + int(self.seconds * 1e9)


@frozen
class Latency:
    """
    How long single messages took, in nanoseconds.

    @ivar count: how many messages there were.
    @ivar minimum: the least.
    @ivar p50: half of them took no longer; C{p99} and C{p999} likewise 99 % and 99.9 %.
    @ivar maximum: the most.
    """

    count: int
    minimum: int
    p50: int
    p99: int
    p999: int
    maximum: int


class Samples:
    """
    Times of messages.

    @ivar counts: how often each time came, in nanoseconds, since the last L{fold}: a histogram
        costs a microsecond for each, and that while the other end waits.
    """

    def __init__(self) -> None:
        """
        There is none.

        @raise ProgramError: hdrhistogram is not installed.
        """
        try:
            from hdrh.histogram import HdrHistogram
        except ImportError:
            raise ProgramError(
                "the package hdrhistogram is missing: pip install 'twisted-ib[perf]' brings it"
            ) from None
        self.counts: defaultdict[int, int] = defaultdict(int)
        self._histogram = HdrHistogram(1, _LONGEST, _DIGITS)

    def fold(self, least: int = 0) -> None:
        """
        Move the times to the histogram.

        @param least: only if there are more distinct ones than this.
        """
        if len(self.counts) > least:
            for time, count in self.counts.items():
                self._histogram.record_value(min(max(time, 1), _LONGEST), count)
            self.counts.clear()

    def latency(self) -> Latency:
        """
        @return: what they are together.
        """
        self.fold()
        histogram = self._histogram
        p50, p99, p999 = (int(histogram.get_value_at_percentile(share)) for share in (50.0, 99.0, 99.9))
        least, most = int(histogram.get_min_value()), int(histogram.get_max_value())
        return Latency(int(histogram.get_total_count()), least, p50, p99, p999, most)


class Run:
    """
    One connection's part of a measurement.

    @ivar made: how many messages it has sent; at the end all have arrived, or are on their way.
    @ivar done: fires at the end with L{made}.
    """

    def __init__(self, span: Span) -> None:
        """
        @param span: how long it takes.
        """
        self._count = span.count
        self._span = span
        self._deadline = 0
        self.made = 0
        self.done: Deferred[int] = Deferred()

    def start(self) -> Deferred[int]:
        """
        Begin.

        @return: L{done}.
        """
        self._deadline = self._span.deadline()
        self._begin()
        return self.done

    def _begin(self) -> None:
        raise NotImplementedError


class PingPong(Run):
    """
    A message to an echo, back, and again.
    """

    def __init__(self, link: Link, message: bytes, span: Span, counts: defaultdict[int, int]) -> None:
        """
        @param link: the connection.
        @param message: what to send.
        @param counts: those of L{Samples}.
        """
        Run.__init__(self, span)
        self._message = message
        self._size = self._missing = len(message)
        self._counts = counts
        self._write = link.transport.write
        self._began = 0
        link.take = self._back

    def _begin(self) -> None:
        self._began = perf_counter_ns()
        self._write(self._message)

    def _back(self, data: bytes) -> None:
        """
        @param data: a part of what was sent.
        """
        self._missing -= len(data)
        if self._missing > 0:
            return
        now = perf_counter_ns()
        self._counts[now - self._began] += 1
        self.made += 1
        if self.made >= self._count or now >= self._deadline:
            self.done.callback(self.made)
            return
        self._missing = self._size
        self._began = perf_counter_ns()
        self._write(self._message)


@implementer(IPushProducer)
class Source(Run):
    """
    The same message again and again, as fast as the transport takes it.
    """

    def __init__(self, link: Link, message: bytes, span: Span) -> None:
        """
        @param link: the connection.
        @param message: what to send.
        """
        Run.__init__(self, span)
        self._transport = link.transport
        self._message = message
        self._paused = False
        self._turn: Any = None

    def _begin(self) -> None:
        self._transport.registerProducer(self, True)
        if not self._paused:
            self.resumeProducing()

    def resumeProducing(self) -> None:
        """
        Go on sending.
        """
        self._paused = False
        self._turn = None
        write, message = self._transport.write, self._message
        for _ in range(_TURN // _BURST):
            left = min(_BURST, self._count - self.made)
            self.made += left
            while left and not self._paused:
                left -= 1
                write(message)
            self.made -= left
            if self.made >= self._count or perf_counter_ns() >= self._deadline:
                self._transport.unregisterProducer()
                self._paused = True
                self.done.callback(self.made)
                return
            if self._paused:
                return
        # A medium that always has room must not keep signals and others waiting.
        self._turn = self._transport.reactor.callLater(0, self.resumeProducing)

    def pauseProducing(self) -> None:
        """
        The transport has enough.
        """
        self._paused = True
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    def stopProducing(self) -> None:
        """
        The connection is gone: there are no more turns.
        """
        self.pauseProducing()


class Requests(Run):
    """
    Requests that the peer's memory answers, some at a time.
    """

    def __init__(
        self,
        post: Callable[[], Deferred[Any]],
        depth: int,
        span: Span,
        counts: defaultdict[int, int] | None = None,
    ) -> None:
        """
        @param post: posts one.
        @param depth: how many are on the way.
        @param counts: those of L{Samples}, with one on the way; else nothing is timed.
        """
        Run.__init__(self, span)
        self._post = post
        self._depth = depth
        self._counts = counts
        self._began = 0
        self._posted = 0

    def _begin(self) -> None:
        for _ in range(min(self._depth, self._count)):
            self._next()

    def _next(self) -> None:
        self._posted += 1
        self._began = perf_counter_ns()
        self._post().addCallbacks(self._answered, self._failed)

    def _answered(self, result: object) -> None:
        """
        One is done.

        @param result: nothing, the bytes or the value.
        """
        now = perf_counter_ns()
        if self._counts is not None:
            self._counts[now - self._began] += 1
        self.made += 1
        if self._posted < self._count and now < self._deadline:
            self._next()
        elif self.made == self._posted and not self.done.called:
            self.done.callback(self.made)

    def _failed(self, reason: Any) -> None:
        """
        One failed, and with it the test.

        @param reason: why.
        """
        if not self.done.called:
            self.done.errback(reason)
