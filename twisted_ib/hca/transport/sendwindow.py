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

#: Of those, the first ones of a connection, until it is known what the way takes.
TRANSPORT_WINDOW_FIRST = 32
TRANSPORT_RESEND_MOST = 2.0
#: The same before a round trip was measured.
TRANSPORT_RESEND_FIRST = 0.5

#: So far backed off, the time may be shorter than a round trip.
_OFTEN = 16


class SendWindow:
    """
    The window and the clock of one requester.

    @ivar window: packets that may be on the way.
    """

    __slots__ = (
        "_backoff",
        "_before",
        "_deviation",
        "_grown",
        "_guess",
        "_resend",
        "_retries",
        "_smooth",
        "_threshold",
        "_timeout",
        "window",
    )

    def __init__(self, timeout: float | None, roundTrip: float | None, retries: int = 7) -> None:
        """
        Nothing was sent.

        @param timeout: the local ACK timeout in seconds, or L{None}.
        @param roundTrip: in seconds, if it is known.
        @param retries: C{retry_cnt}.
        """
        self.window = min(TRANSPORT_WINDOW_FIRST, limits.TRANSPORT_WINDOW)
        self._threshold = limits.TRANSPORT_WINDOW
        self._grown = 0
        self._backoff = 1
        #: Seconds that a round trip may take, as long as none was measured.
        self._guess = 0.0
        #: The window and its threshold before there was silence, until it surely was one.
        self._before: tuple[int, int] | None = None
        self._smooth: float | None = None
        self._deviation = 0.0
        self._resend = TRANSPORT_RESEND_FIRST
        if timeout is not None:
            self._resend = min(self._resend, timeout)
        self.limit(timeout, retries)
        self.told(roundTrip)

    def limit(self, timeout: float | None, retries: int) -> None:
        """
        Know the local ACK timeout: what is silent for so long is sent again, unless a round
        trip takes longer, or may do so; then it is some times before all is over.

        @param timeout: in seconds, or L{None}.
        @param retries: C{retry_cnt}.
        """
        self._timeout = timeout
        self._retries = retries

    def measured(self, seconds: float) -> None:
        """
        A packet that was sent once was acknowledged (RFC 6298 section 2).

        @param seconds: after so long.
        """
        smooth = self._smooth
        if smooth is None:
            if seconds > self._resend:
                self._undo()  # What seemed to be silence was the way.
            self._smooth, self._deviation = seconds, seconds / 2
        else:
            self._deviation += (abs(smooth - seconds) - self._deviation) / 4
            self._smooth = smooth + (seconds - smooth) / 8
        self._resend = self._smooth + 4 * self._deviation
        self._backoff = 1

    def told(self, roundTrip: float | None) -> None:
        """
        Somebody else has measured a round trip, which counts if nobody here has.

        @param roundTrip: in seconds, if it is known.
        """
        if self._smooth is None and roundTrip is not None:
            self.measured(roundTrip)

    def roundTrip(self) -> float:
        """
        @return: seconds that a round trip takes; 0 if that is not known.
        """
        return self._smooth or 0.0

    def resendSeconds(self) -> float:
        """
        @return: after how many seconds without progress the oldest packet is sent again.
        """
        wanted = self._resend * self._backoff
        if wanted <= limits.TRANSPORT_RESEND_LEAST:
            return limits.TRANSPORT_RESEND_LEAST
        most, smooth, timeout = TRANSPORT_RESEND_MOST, self._smooth, self._timeout
        if smooth is not None:
            most = max(most, 3 * smooth)
        if timeout is not None:
            silence = timeout * (self._retries + 1)
            if smooth is None:
                most = min(most, max(timeout, min(self._guess, silence / 2)))
            else:
                most = min(most, max(timeout, 3 * smooth), max(timeout, silence / 2))
        return max(limits.TRANSPORT_RESEND_LEAST, min(wanted, most))

    def progressed(self, packets: int, seconds: float, waited: float = 0.0) -> None:
        """
        Packets were acknowledged.

        @param seconds: so long after the latest silence.
        @param waited: so long after others were.
        """
        if self._smooth is not None:
            if seconds > self._smooth / 2:
                self._backoff = 1
                self._before = None
            else:
                self._undo()
        elif self._backoff >= _OFTEN:
            # It was sent again each time before it was acknowledged: perhaps that is why.
            self._guess = 1.25 * waited
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

    def _undo(self) -> None:
        """
        A silence was none: nothing was lost.
        """
        if self._before is not None:
            (self.window, self._threshold), self._before = self._before, None

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
            if self._before is None:
                self._before = self.window, self._threshold
            self._threshold = self._half(onTheWay)
        self.window = 1
        self._grown = 0
        self._backoff = min(self._backoff * 2, 1 << 16)
        self._guess = 0.0
