"""
The work of one C{ib-perf} connection during a measurement, and the latencies.
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

#: Writes between two readings of the clock, and before the reactor gets a turn.
_BURST = 64
_TURN = 16 * _BURST

_LONGEST = limits.PERF_SECONDS * 1_000_000_000
_DIGITS = 3


@frozen
class Span:
    """
    The length of a measurement.

    @ivar count: Upper bound of messages per connection.
    @ivar seconds: Upper bound of seconds; L{None} if only the number counts.
    """

    count: int = sys.maxsize
    seconds: float | None = None

    def deadline(self) -> int:
        """
        Return the end, in C{perf_counter_ns}, of a measurement that begins now.
        """
        return sys.maxsize if self.seconds is None else perf_counter_ns() + int(self.seconds * 1e9)


@frozen
class Latency:
    """
    Latencies, in nanoseconds.

    @ivar count: Number of messages.
    @ivar p50: The median; C{p99} and C{p999} are percentiles 99 and 99.9.
    """

    count: int
    minimum: int
    p50: int
    p99: int
    p999: int
    maximum: int


class Samples:
    """
    Latencies of messages.

    @ivar counts: Messages per latency, in nanoseconds, since the last L{fold}.
    """

    def __init__(self) -> None:
        """
        @raise ProgramError: The package hdrhistogram is not installed.
        """
        try:
            from hdrh.histogram import HdrHistogram
        except ImportError:
            raise ProgramError(
                "the package hdrhistogram is missing: pip install 'twisted-ib[perf]' brings it"
            ) from None
        # A dictionary first: recording into the histogram costs a microsecond per message, while the peer
        # waits.
        self.counts: defaultdict[int, int] = defaultdict(int)
        self._histogram = HdrHistogram(1, _LONGEST, _DIGITS)

    def fold(self, least: int = 0) -> None:
        """
        Move the latencies into the histogram.

        @param least: Only if there are more distinct ones than this.
        """
        if len(self.counts) > least:
            for time, count in self.counts.items():
                self._histogram.record_value(min(max(time, 1), _LONGEST), count)
            self.counts.clear()

    def latency(self) -> Latency:
        """
        Return the summary.
        """
        self.fold()
        histogram = self._histogram
        p50, p99, p999 = (int(histogram.get_value_at_percentile(share)) for share in (50.0, 99.0, 99.9))
        least, most = int(histogram.get_min_value()), int(histogram.get_max_value())
        return Latency(int(histogram.get_total_count()), least, p50, p99, p999, most)


class Run:
    """
    One connection's part of a measurement.

    @ivar made: Messages sent; at the end all have arrived or are in flight.
    @ivar done: Fires at the end with C{made}.
    """

    def __init__(self, span: Span) -> None:
        self._count = span.count
        self._span = span
        self._deadline = 0
        self.made = 0
        self.done: Deferred[int] = Deferred()

    def start(self) -> Deferred[int]:
        """
        Begin, and return C{done}.
        """
        # Here, not when it was made: connections are prepared one after the other.
        self._deadline = self._span.deadline()
        self._begin()
        return self.done

    def _begin(self) -> None:
        raise NotImplementedError


class PingPong(Run):
    """
    Sends a message to an echo, waits for it, and repeats.
    """

    def __init__(self, link: Link, message: bytes, span: Span, counts: defaultdict[int, int]) -> None:
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
        # A stream may deliver one message in several pieces.
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
        # Read again: the bookkeeping above is no part of a round trip.
        self._began = perf_counter_ns()
        self._write(self._message)


@implementer(IPushProducer)
class Source(Run):
    """
    Sends the same message repeatedly, as fast as the transport accepts it (a push producer).
    """

    def __init__(self, link: Link, message: bytes, span: Span) -> None:
        Run.__init__(self, span)
        self._transport = link.transport
        self._message = message
        self._paused = False
        self._turn: Any = None

    def _begin(self) -> None:
        # Backpressure as of any Twisted program: writes into an unbounded buffer would measure memory, not
        # the transport.
        self._transport.registerProducer(self, True)
        if not self._paused:
            self.resumeProducing()

    def resumeProducing(self) -> None:
        self._paused = False
        self._turn = None
        write, message = self._transport.write, self._message
        for _ in range(_TURN // _BURST):
            # The clock is read once per burst, or reading it would be part of each message's cost.
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
        # A medium that always has room must not starve signals and other connections.
        self._turn = self._transport.reactor.callLater(0, self.resumeProducing)

    def pauseProducing(self) -> None:
        self._paused = True
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    def stopProducing(self) -> None:
        self.pauseProducing()


class Requests(Run):
    """
    Posts requests for the peer's memory, up to a number at a time.
    """

    def __init__(
        self,
        post: Callable[[], Deferred[Any]],
        depth: int,
        span: Span,
        counts: defaultdict[int, int] | None = None,
    ) -> None:
        """
        @param post: Posts one request.
        @param depth: Requests in flight.
        @param counts: Those of L{Samples}, for a depth of 1; L{None} for no timing.
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
        now = perf_counter_ns()
        # With one request in flight, _began is that of the one completed.
        if self._counts is not None:
            self._counts[now - self._began] += 1
        self.made += 1
        if self._posted < self._count and now < self._deadline:
            self._next()
        elif self.made == self._posted and not self.done.called:
            self.done.callback(self.made)

    def _failed(self, reason: Any) -> None:
        if not self.done.called:
            self.done.errback(reason)
