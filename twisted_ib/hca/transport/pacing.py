"""
How much a requester has on the way, and how soon it sends again.

The window grows and shrinks as TCP's does (RFC 5681 without its fast recovery: the receiver
keeps nothing that is out of order, so that all behind a loss is sent again); the time is that
of RFC 6298, from acknowledgements of packets that were sent once; but what is acknowledged after
it was sent again ends the backing off, too, unless that comes so soon that it was not needed
(RFC 4015, without its timestamps).  InfiniBand itself has
neither: its fabrics lose nothing and its timeout is said by the program.  What is sent here
before that timeout is over is not one of its retries.
"""

from __future__ import annotations

from twisted_ib import limits


class Pacing:
    """
    The window and the clock of one requester.

    @ivar window: packets that may be on the way.
    """

    __slots__ = (
        "_backoff",
        "_deviation",
        "_grown",
        "_most",
        "_resend",
        "_smooth",
        "_threshold",
        "window",
    )

    def __init__(self, timeout: float | None, roundTrip: float | None) -> None:
        """
        Nothing was sent.

        @param timeout: the local ACK timeout in seconds, or L{None}.
        @param roundTrip: in seconds, if it is known.
        """
        self.window = min(limits.TRANSPORT_WINDOW_FIRST, limits.TRANSPORT_WINDOW)
        self._threshold = limits.TRANSPORT_WINDOW
        self._grown = 0
        self._backoff = 1
        self._smooth: float | None = None
        self._deviation = 0.0
        self._resend = limits.TRANSPORT_RESEND_FIRST
        self.limit(timeout)
        if roundTrip is not None:
            self.measured(roundTrip)

    def limit(self, timeout: float | None) -> None:
        """
        Know the local ACK timeout: what is silent for so long is sent again.

        @param timeout: in seconds, or L{None}.
        """
        self._most = timeout

    def measured(self, seconds: float) -> None:
        """
        A packet that was sent once was acknowledged (RFC 6298 section 2).

        @param seconds: after so long.
        """
        smooth = self._smooth
        if smooth is None:
            self._smooth, self._deviation = seconds, seconds / 2
        else:
            self._deviation += (abs(smooth - seconds) - self._deviation) / 4
            self._smooth = smooth + (seconds - smooth) / 8
        self._resend = self._smooth + 4 * self._deviation
        self._backoff = 1

    def roundTrip(self) -> float:
        """
        @return: seconds that a round trip takes; 0 if that is not known.
        """
        return self._smooth or 0.0

    def resendSeconds(self) -> float:
        """
        @return: after how many seconds without progress the oldest packet is sent again.
        """
        most = max(limits.TRANSPORT_RESEND_MOST, 3 * self.roundTrip())
        if self._most is not None:
            most = min(most, self._most)
        return max(limits.TRANSPORT_RESEND_LEAST, min(self._resend * self._backoff, most))

    def progressed(self, packets: int, seconds: float) -> None:
        """
        Packets were acknowledged.

        @param seconds: so long after the latest silence.
        """
        if self._smooth is not None and seconds > self._smooth / 2:
            self._backoff = 1
        window = self.window
        if window < limits.TRANSPORT_WINDOW:
            if window < self._threshold:
                self.window = min(window + packets, self._threshold)
            else:
                self._grown += packets
                if self._grown >= window:
                    self._grown -= window
                    self.window = window + 1

    def lost(self, onTheWay: int) -> None:
        """
        A packet was lost, and others came after it.

        @param onTheWay: packets that were on the way.
        """
        self.window = self._threshold = self._half(onTheWay)
        self._grown = 0

    def _half(self, onTheWay: int) -> int:
        """
        Half of what was on the way; but two, or it would take a time of silence to notice that
        the next one is lost (RFC 5681 section 3.1).
        """
        return min(max(2, min(onTheWay, self.window) // 2), limits.TRANSPORT_WINDOW)

    def silent(self, onTheWay: int) -> None:
        """
        Nothing came for L{resendSeconds}.

        @param onTheWay: packets that were on the way.
        """
        if self.window > 1:
            self._threshold = self._half(onTheWay)
        self.window = 1
        self._grown = 0
        self._backoff = min(self._backoff * 2, 1 << 16)
