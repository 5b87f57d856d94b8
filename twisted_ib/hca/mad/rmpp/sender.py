"""
The sending end of one RMPP transfer (IBTA vol. 1 13.6.3; Linux C{mad_rmpp.c}).

Inputs of a transfer that is under way; when it has ended nothing happens::

    an ACK of all             it ends, SUCCESS; sends the ACK of segment 0 if a transfer is the response
    an ACK                    sends what its window has room for
    no ACK in time            sends again what is not acknowledged
    that after all retries    it ends, TOO_MANY_RETRIES; sends ABORT
    no progress for long      it ends, TIME_TOO_LONG; sends ABORT
    a STOP or an ABORT        it ends with its status
    a response                it ends, SUCCESS
    anything wrong            it ends with the fault; sends ABORT

The receiver of a response may not exist: whoever asked may have forged the address, and may forge ACKs.
Until it has proved itself one packet from there draws two at most.  It proves itself by what only those know
who get what is sent: which segment was the last.  Receivers acknowledge at the end of the window that they
have announced, and a segment that they have acknowledged at once (Linux C{mad_rmpp.c} C{continue_rmpp}): so
in each round segment 1 goes again, for its ACK, and chance decides whether the next segment goes before it.
An ACK of what was not sent ends the transfer, as any such ACK does: so one of the next segment tells more
than one of the same, and one of less than was sent tells against it, but little, as packets get lost.  With
these weights no choice of ACKs is better than another for a forger (the expectation of 2 to the power of half
their sum does not grow).
"""

from __future__ import annotations

from collections.abc import Callable

from twisted_ib import limits
from twisted_ib.hca.base.timers import timeoutSeconds
from twisted_ib.hca.mad.rmpp import segments
from twisted_ib.hca.mad.rmpp.segments import (
    BODY_AT,
    NO_RESPONSE_TIME,
    TransferStatus,
    control,
    fault,
    headerOf,
    segment,
)
from twisted_ib.hca.wire.headers import MAD_BYTES
from twisted_ib.hca.wire.mad.classes import (
    ABORT,
    ACK,
    ACTIVE,
    DATA,
    FIRST,
    LAST,
    RMPP_VERSION,
    STOP,
    RMPPHeader,
)

#: Segments that are not acknowledged, whatever the receiver's window.
RMPP_SEGMENTS_SENT = 256
#: How long a sender waits for an ACK before it repeats segments (Linux mad_rmpp.c send_next_seg: 2 s).
RMPP_ACK_SECONDS = 2.0
#: Repetitions without an ACK of anything new.
RMPP_RETRIES = 7
#: The same until the first ACK: a request with a forged source draws two packets and no more, and who has got
#: one of them, but whose ACKs get lost, repeats its ACK.
RMPP_RETRIES_UNPROVEN = 3


class Sender:
    """
    One transfer that is sent.

    @ivar status: L{TransferStatus} when it has ended, else L{None}.
    @ivar deadline: when L{expired} is to be called; L{None} when it has ended.
    @ivar acknowledged: segments that the receiver has.
    @ivar count: segments of all.
    """

    def __init__(
        self,
        head: bytes,
        data: bytes,
        now: float,
        *,
        draw: Callable[[int], int] | None = None,
        expectsResponse: bool = False,
        spent: int = 0,
    ) -> None:
        """
        @param head: all octets in front of the data, which each segment begins with.
        @param data: its data, of any length.
        @param draw: gives so many bits that nobody can guess, by which the receiver proves that it exists;
            L{None} for one that is known to.
        @param expectsResponse: whether the receiver answers with a transfer (a double-sided one).
        @param spent: packets that the request has drawn already, before the receiver has proved itself.
        """
        self._head, self._data, self._at = head, data, len(head)
        self.count = max(1, -(-len(data) // (MAD_BYTES - self._at)))
        self._window = 1
        self._timeout = RMPP_ACK_SECONDS
        isProven = draw is None
        self._left = RMPP_RETRIES if isProven else RMPP_RETRIES_UNPROVEN
        #: What is yet to prove the receiver, and packets that may be sent until then; what chance has decided
        #: in the round that the next ACK answers.
        self._doubt, self._budget = 0 if isProven else limits.RMPP_PROOF, limits.RMPP_REFLECTED - spent
        self._tossed: int | None = None
        self._draw = draw
        #: A round proves half as much again, on average; what has fewer segments is there sooner without.
        self._isLong = self.count * 3 > limits.RMPP_PROOF * 2
        self._repeatsOne = not isProven
        self._turns = expectsResponse
        self._sent = self.acknowledged = 0
        self._end = now + segments.RMPP_SECONDS
        self._idleAt = now + segments.RMPP_IDLE_SECONDS
        self.status: TransferStatus | None = None
        self.deadline: float | None = now

    def begin(self, now: float) -> list[bytes]:
        """
        @return: the first segments.
        """
        return self._more(now)

    def received(self, mad: bytes, now: float) -> list[bytes]:
        """
        An ACK, STOP or ABORT arrived.

        @return: MADs to send.
        """
        if self.status is not None:
            return []
        self._budget += limits.RMPP_REFLECTED
        header = headerOf(mad)
        wrong = fault(header)
        if header.type in (STOP, ABORT):
            # Not answered by an ABORT, even if it is wrong: two ends could do so for ever.
            self._finish(wrong or TransferStatus(header.status))
            return []
        if wrong is not None:
            return self.abort(wrong)
        return self._acknowledged(header, now) if header.type == ACK else []

    def _acknowledged(self, header: RMPPHeader, now: float) -> list[bytes]:
        number, window = header.segment, header.length
        if window < number:
            return self.abort(TransferStatus.WINDOW_TOO_SMALL)
        if number > self._sent:
            return self.abort(TransferStatus.SEGMENT_TOO_BIG)
        # An ACK that was overtaken by a later one.
        if number < self.acknowledged or window < self._window:
            return []
        if not self.acknowledged or self._doubt > 0:
            # What proves itself shows with each that it is there: C{_idleAt} ends one that goes no further.
            # Also the ACK of segment 0, by which the direction of a double-sided transfer turns.
            self._left = RMPP_RETRIES
        if header.responseTime != NO_RESPONSE_TIME:
            # IBTA vol. 1 13.6.3.1: how long the receiver may take until it acknowledges.
            self._timeout = max(self._timeout, timeoutSeconds(header.responseTime) or 0.0)
        isNew = number > self.acknowledged
        if isNew:
            self.acknowledged = number
            self._left = RMPP_RETRIES
            self._idleAt = now + segments.RMPP_IDLE_SECONDS
            self._wait(now)
        self._window = window
        if number == self.count:
            self._finish(TransferStatus.SUCCESS)
            # IBTA vol. 1 13.6.3.3: this ACK gives the response its window.
            return [control(self._head, self._at, ACK, window=1, responds=False)] if self._turns else []
        if self._doubt > 0:
            return self._proved(number, now)
        return self._more(now) if self._sent < self.count else []

    def _proved(self, number: int, now: float) -> list[bytes]:
        isSeen = number == self._sent
        if self._tossed is not None:
            self._doubt -= 1 + self._tossed if isSeen else -2
            self._tossed = None
        if not isSeen:
            # A segment is lost, or an ACK came twice, or it is a guess: the deadline asks again.
            return []
        if self._doubt <= 0:
            return self._more(now)
        # Where the window has no room nothing is left to chance.
        if self._stop() == self._sent:
            return []
        if not self._isLong or self._draw is None:
            self._sent += 1
        # What is left then is for what gets lost.
        elif self._budget > limits.RMPP_SPARED:
            self._tossed = self._draw(1)
            self._sent += self._tossed
        return self._probe(now)

    def _probe(self, now: float) -> list[bytes]:
        # The segment that is missing, and one that has arrived, for an ACK.
        missing = [self.acknowledged + 1] if self._sent > self.acknowledged else []
        numbers = [*missing, 1] if self.acknowledged else missing
        found = [self._segment(number) for number in numbers[-self._budget :] if self._budget]
        self._budget -= len(found)
        self._wait(now)
        return found

    def expired(self, now: float) -> list[bytes]:
        """
        The deadline is over.

        @return: MADs to send.
        """
        if self.deadline is None or now < self.deadline:
            return []
        isLate = now >= min(self._end, self._idleAt)
        if isLate or not self._left:
            reason = TransferStatus.TIME_TOO_LONG if isLate else TransferStatus.TOO_MANY_RETRIES
            abort = self.abort(reason)
            # A receiver that never showed itself may not exist: it gets no third packet.
            return abort if self.acknowledged and (self._budget or self._doubt <= 0) else []
        self._left -= 1
        if self._doubt > 0:
            return self._probe(now)
        # From the first that is not acknowledged, as Linux mad_rmpp.c ib_retry_rmpp: its receiver
        # acknowledges nothing while there is a gap.
        if self._repeatsOne and self._left < RMPP_RETRIES - 1 and self._sent > self.acknowledged:
            # ACKs can be forged: after the second silence one is enough to ask.
            self._wait(now)
            return [self._segment(self.acknowledged + 1)]
        self._sent = self.acknowledged
        # Also if the window has no room for any.
        self._wait(now)
        return self._more(now)

    def repeat(self, spent: int = 0) -> list[bytes]:
        """
        The request that this transfer answers came again.

        @param spent: packets that it has drawn already.
        @return: the first segment, if nothing of this is known to have arrived.
        """
        if self.status is not None:
            return []
        self._budget += limits.RMPP_REFLECTED - spent
        if self.acknowledged:
            return []
        self._budget -= 1
        return [self._segment(1)]

    def arrived(self) -> list[bytes]:
        """
        Its response has begun: all of it has arrived, whatever became of the last ACK.

        @return: nothing.
        """
        self._finish(TransferStatus.SUCCESS)
        return []

    def abort(self, status: TransferStatus) -> list[bytes]:
        """
        End it.

        @return: the ABORT.
        """
        self._finish(status)
        return [control(self._head, self._at, ABORT, status, responds=False)]

    def _finish(self, status: TransferStatus) -> None:
        self.status = status
        self.deadline = None

    def _more(self, now: float) -> list[bytes]:
        stop = self._stop()
        found = [self._segment(number) for number in range(self._sent + 1, stop + 1)]
        if found:
            self._sent = stop
            self._budget -= len(found)
            self._wait(now)
        return found

    def _stop(self) -> int:
        # The last segment that may be sent now.
        return min(self._window, self.count, self.acknowledged + RMPP_SEGMENTS_SENT)

    def _wait(self, now: float) -> None:
        self.deadline = min(now + self._timeout, self._end, self._idleAt)

    def _segment(self, number: int) -> bytes:
        size = MAD_BYTES - self._at
        start = (number - 1) * size
        data = self._data[start : start + size]
        flags, length = ACTIVE, 0
        if number == 1:
            flags |= FIRST
            length = self.count * (self._at - BODY_AT) + len(self._data)
        if number == self.count:
            flags |= LAST
            length = self._at - BODY_AT + len(data)
        header = RMPPHeader(RMPP_VERSION, DATA, NO_RESPONSE_TIME, flags, 0, number, length)
        return segment((self._head + data).ljust(MAD_BYTES, b"\0"), header)
