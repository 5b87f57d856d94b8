"""
The congestion window and the retransmission timeout of a requester.

The window grows and shrinks as TCP's (RFC 5681, without fast recovery, as the receiver keeps nothing out
of order and everything behind a loss is sent again).  The timeout is that of RFC 6298, measured from
packets sent once; but an acknowledgement of a retransmitted packet ends the backoff, too, unless it comes
so soon that the retransmission was not needed (RFC 3522's detection without its timestamps).  InfiniBand has
neither: its links are lossless and the program sets the timeout.  Retransmissions before that timeout are not
counted as retries.
"""

from __future__ import annotations

from twisted_ib import limits

#: The initial window, in packets, until the round trip is known.
TRANSPORT_WINDOW_FIRST = 32
#: The longest retransmission timeout, in seconds; more where three round trips take longer.
TRANSPORT_RESEND_MOST = 2.0
#: The retransmission timeout before a round trip was measured (RFC 6298 section 2.1 has 1 second).
TRANSPORT_RESEND_FIRST = 0.5

#: Backed off this far, the timeout may simply be shorter than the round trip.
_OFTEN = 16


class SendWindow:
    """
    The window and the retransmission timer of one requester.

    @ivar window: packets that may be outstanding.
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
        @param timeout: the local ACK timeout in seconds, or L{None}.
        @param roundTrip: in seconds, if known.
        @param retries: C{retry_cnt}.
        """
        self.window = min(TRANSPORT_WINDOW_FIRST, limits.TRANSPORT_WINDOW)
        self._threshold = limits.TRANSPORT_WINDOW
        self._grown = 0
        self._backoff = 1
        #: A guess of the round trip in seconds, while none was measured.
        self._guess = 0.0
        #: The window and threshold before a timeout, until it is certain that it was not spurious.
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
        Set the local ACK timeout: silence that long causes a retransmission, unless a round trip takes
        longer, or may; the connection fails only after several of them.

        @param timeout: in seconds, or L{None}.
        @param retries: C{retry_cnt}.
        """
        self._timeout = timeout
        self._retries = retries

    def measured(self, seconds: float) -> None:
        """
        A packet that was sent once was acknowledged after C{seconds} (RFC 6298 section 2).
        """
        smooth = self._smooth
        if smooth is None:
            if seconds > self._resend:
                # The timeout was spurious: the round trip is longer than the initial value.
                self._undo()
            self._smooth, self._deviation = seconds, seconds / 2
        else:
            # RFC 6298 section 2.3: beta 1/4, alpha 1/8; the deviation first, as it uses the old
            # mean.
            self._deviation += (abs(smooth - seconds) - self._deviation) / 4
            self._smooth = smooth + (seconds - smooth) / 8
        self._resend = self._smooth + 4 * self._deviation
        self._backoff = 1

    def told(self, roundTrip: float | None) -> None:
        """
        Another layer has measured a round trip; it counts if none was measured here.

        @param roundTrip: in seconds, if known.
        """
        if self._smooth is None and roundTrip is not None:
            self.measured(roundTrip)

    def roundTrip(self) -> float:
        """
        @return: the smoothed round trip in seconds; 0 if not known.
        """
        return self._smooth or 0.0

    def resendSeconds(self) -> float:
        """
        @return: seconds without progress after which the oldest packet is sent again.
        """
        wanted = self._resend * self._backoff
        if wanted <= limits.TRANSPORT_RESEND_LEAST:
            return limits.TRANSPORT_RESEND_LEAST
        most, smooth, timeout = TRANSPORT_RESEND_MOST, self._smooth, self._timeout
        if smooth is not None:
            most = max(most, 3 * smooth)
        # Half of the time after which the peer counts as dead: there must be room for at least one
        # more attempt (IBTA vol. 1 9.9.2.1.1).
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

        @param seconds: time since the latest timeout.
        @param waited: time since the previous acknowledgement.
        """
        if self._smooth is not None:
            # An acknowledgement sooner than half a round trip after the retransmission cannot be
            # for it: the timeout was spurious, and _undo() restores the window as RFC 4015 does.
            if seconds > self._smooth / 2:
                self._backoff = 1
                self._before = None
            else:
                self._undo()
        elif self._backoff >= _OFTEN:
            # Each packet was sent again before its acknowledgement came: perhaps the round trip is
            # that long.  Karn's rule (RFC 6298 section 3) would never measure it.
            self._guess = 1.25 * waited
        window = self.window
        if window < limits.TRANSPORT_WINDOW:
            # RFC 5681 section 3.1: slow start below the threshold, one packet per window above.
            if window < self._threshold:
                self.window = min(window + packets, self._threshold)
            else:
                self._grown += packets
                if self._grown >= window:
                    self._grown -= window
                    self.window = window + 1

    def lost(self, onTheWay: int) -> None:
        """
        A packet was lost, and later ones arrived.

        @param onTheWay: packets that were outstanding.
        """
        self.window = self._threshold = self._half(onTheWay)
        self._grown = 0

    def _undo(self) -> None:
        if self._before is not None:
            (self.window, self._threshold), self._before = self._before, None

    def _half(self, onTheWay: int) -> int:
        # RFC 5681 section 3.1: half of what is outstanding, but at least two, as with one packet a
        # loss shows only by a timeout.
        return min(max(2, min(onTheWay, self.window) // 2), limits.TRANSPORT_WINDOW)

    def silent(self, onTheWay: int) -> None:
        """
        A timeout: nothing came for L{resendSeconds}.

        @param onTheWay: packets that were outstanding.
        """
        # At repeated timeouts the threshold stays (RFC 5681 section 3.1).
        if self.window > 1:
            if self._before is None:
                self._before = self.window, self._threshold
            self._threshold = self._half(onTheWay)
        self.window = 1
        self._grown = 0
        self._backoff = min(self._backoff * 2, 1 << 16)
        self._guess = 0.0
