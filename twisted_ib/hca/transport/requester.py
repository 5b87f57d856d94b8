"""
The requester of a reliable connection over packets (IBTA vol. 1 9.7.3, 9.7.5, 9.9.2; Linux C{rxe_req.c},
C{rxe_comp.c}).

Records are numbered when posted and kept until acknowledged.  C{unsent} has those not, or not wholly,
sent, C{_sent} those on their way; a retransmission (go-back-N) takes all of C{_sent} back.  Everything
before the oldest unacknowledged PSN is done, READs and atomics because their responses have come.

Timers:

  - nothing is outstanding: none;
  - something is: then everything is sent again, one packet first.  After C{retries} + 1 timeouts the peer
    counts as dead.  That time starts anew when it acknowledges something, and after an RNR wait; it counts
    only while this process runs;
  - RNR, C{_isPaused}: nothing is sent and nothing else awaited.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from twisted_ib import limits
from twisted_ib.hca.base.operation import BAD_RESPONSE, RNR_EXHAUSTED, SILENT
from twisted_ib.hca.base.timers import rnrSeconds
from twisted_ib.hca.transport.parameters import (
    ACKNOWLEDGE_REQUEST,
    SOLICITED_EVENT,
    TRANSPORT_LONG_BYTES,
    ConnectionParameters,
    ConnectionUser,
    Packet,
    asking,
)
from twisted_ib.hca.transport.psn import HALF, extended
from twisted_ib.hca.transport.readrequests import RESPONSE_TO, SYNDROME_MASK, ReadRequest, awaited
from twisted_ib.hca.transport.segmentation import Record, fitting, joined
from twisted_ib.hca.transport.sendwindow import SendWindow
from twisted_ib.hca.wire.headers import (
    AETH,
    NAK_INVALID_REQUEST,
    NAK_REMOTE_OPERATIONAL,
    NAK_SEQUENCE,
    PSN_MASK,
    RNR,
)
from twisted_ib.hca.wire.opcodes import ACKNOWLEDGE, READ_REQUEST, READ_RESPONSE_MIDDLE, SEND_ONLY

#: AckReq is set at least once in so many packets (Linux rxe_req.c: 64, too).
TRANSPORT_ACKNOWLEDGE = 64

#: rnr_retry: 7 is infinite.
_FOR_EVER: Final = 7
_NAK: Final = 0x60


class Requester:
    """
    Sends requests and receives their responses.

    @ivar due: when to call L{tick}, in seconds, or L{None}.
    @ivar unsent: records that are not, or not wholly, sent.
    """

    __slots__ = (
        "_armedAt",
        "_asking",
        "_counted",
        "_end",
        "_ended",
        "_every",
        "_full",
        "_held",
        "_isPaused",
        "_longest",
        "_lostAt",
        "_lostTime",
        "_next",
        "_patience",
        "_recover",
        "_retries",
        "_rnrRetries",
        "_sent",
        "_silentAt",
        "_since",
        "_terms",
        "_timed",
        "_timedAt",
        "_top",
        "_una",
        "_user",
        "due",
        "pacing",
        "unsent",
    )

    def __init__(self, parameters: ConnectionParameters, user: ConnectionUser) -> None:
        self._terms = parameters
        self._user = user
        self._every = parameters.scaled(TRANSPORT_ACKNOWLEDGE)
        self.pacing = SendWindow(parameters.timeout, parameters.roundTrip, parameters.retries)
        self.unsent: deque[Record | ReadRequest] = deque()
        self._sent: deque[Record | ReadRequest] = deque()
        # The PSNs after what was posted and after what was ever sent; the next to send; the oldest
        # unacknowledged.
        self._end = self._top = self._next = self._una = parameters.firstPSN
        #: The PSN after the response, for each outstanding READ and atomic.
        self._asking: deque[int] = deque()
        self._held = self._longest = 0
        self._full = self._ended = self._isPaused = False
        self._retries = self._rnrRetries = 0
        self.due: float | None = None
        self._patience = parameters.silence
        self._since = self._armedAt = self._lostTime = self._timedAt = self._silentAt = 0.0
        self._timed = self._lostAt = -1
        # Losses before _recover have shrunk the window already (RFC 6582 section 3.2);
        # acknowledgements up to _counted have grown it.
        self._recover = self._counted = parameters.firstPSN

    def modify(self, parameters: ConnectionParameters) -> None:
        """
        The parameters have changed: the queue pair went to RTS, was modified while drained (SQD), or a
        round trip was measured.  The first PSN counts only if nothing was posted.
        """
        if self._end == self._terms.firstPSN:
            self._end = self._top = self._next = self._una = parameters.firstPSN
            self._recover = self._counted = parameters.firstPSN
            self.pacing = SendWindow(parameters.timeout, parameters.roundTrip, parameters.retries)
        self._terms, self._every = parameters, parameters.scaled(TRANSPORT_ACKNOWLEDGE)
        self._patience = parameters.silence
        self.pacing.limit(parameters.timeout, parameters.retries)
        self.pacing.told(parameters.roundTrip)

    # -- down

    def post(self, code: int, solicited: int, header: bytes, body: Any, position: int) -> bool:
        """
        Accept a request.

        @return: False if there is no room; the user is notified when there is.
        """
        if self._ended:
            return True
        if (
            self._held >= limits.TRANSPORT_BYTES
            or len(self.unsent) + len(self._sent) >= limits.TRANSPORT_RECORDS
        ):
            self._full = True
            return False
        record: Record | ReadRequest
        if code in RESPONSE_TO:
            record = ReadRequest(code, header + body, position, self._end, self._terms)
        else:
            record = Record(code, solicited, header, body, position, self._end, self._terms.mtu)
            self._held += record.size
        self._end = record.end
        self.unsent.append(record)
        return True

    def postNow(self, opcode: int, header: bytes, payload: Any, position: int) -> Packet | None:
        """
        Accept a small SEND that may leave at once, as nothing is before it and there is room: L{post} and
        L{outputs} together, for messages on the critical path.  L{sent} follows.

        @param opcode: of a SEND in one packet, perhaps with L{SOLICITED_EVENT}.
        @param payload: as that of L{post <twisted_ib.hca.transport.reliable.ReliableConnection.post>}.
        @return: its packet; L{None} if it has to be posted.
        """
        at = self._next
        if (
            self.unsent
            or at != self._end
            or at - self._una >= self.pacing.window
            or self._isPaused
            or self._ended
            or self._held >= limits.TRANSPORT_BYTES
            or len(self._sent) >= limits.TRANSPORT_RECORDS
        ):
            return None
        body = payload if payload.__class__ is bytes else joined(payload)
        solicited = opcode & SOLICITED_EVENT
        record = Record(SEND_ONLY, solicited, header, body, position, at, self._terms.mtu)
        if record.end != at + 1:
            return None
        self._held += record.size
        self._next = self._end = at + 1
        self._sent.append(record)
        return SEND_ONLY, solicited | ACKNOWLEDGE_REQUEST, at & PSN_MASK, record.head, record.body

    def pending(self) -> bool:
        """
        @return: whether L{outputs} has something to send.
        """
        unsent = self.unsent
        if not unsent or self._isPaused:
            return False
        if unsent[0].asks:
            return self._mayAsk(unsent[0])
        return self._next < self._limit()

    def _limit(self) -> int:
        # The PSN up to which messages may be sent.  Sender's silly window avoidance (RFC 1122 section
        # 4.2.3.4): while an acknowledgement that makes room is outstanding, less than half a window is not
        # filled, unless that sends everything; packets that leave together cost less.
        at, una, window = self._next, self._una, self.pacing.window
        if self._held > TRANSPORT_LONG_BYTES and self._terms.isLong:
            oldest = (self._sent or self.unsent)[0]
            # Added up here, where packets are long and few, and not for each message of all connections.
            left = self._terms.mostBytes - sum([each.size for each in self._sent])
            fits = fitting(oldest, self.unsent, una, at, una + window, left, self._terms.mtu)
            window = min(window, fits - una)
        limit = una + window
        if at > una and limit < self._end and limit - at < window >> 1:
            return at
        return limit

    def _mayAsk(self, question: Any) -> bool:
        # At most max_rd_atomic outstanding (IBTA vol. 1 9.4.4), whose responses fit into the window, and long
        # ones into its bytes, which only what may be more adds up; one always may.
        at, una, terms, count = self._next, self._una, self._terms, len(self._asking)
        self._longest = max(self._longest if count else 0, question.length)
        if at == una:
            return True
        stop: int = question.partEnd(at)
        if count >= (terms.reads or 1) or stop - una > self.pacing.window:
            return False
        isFew = not terms.isLong or (count + 1) * self._longest <= terms.mostBytes
        return isFew or awaited((*self._sent, question), una, stop, terms.mtu) <= terms.mostBytes

    def outputs(self, budget: int, now: float, out: list[Packet]) -> None:
        """
        Make packets of what may be sent now.

        @param budget: maximum.
        @param now: the time in seconds.
        @param out: list to append them to.
        """
        unsent = self.unsent
        before = len(out)
        budget += before
        mtu, at, every = self._terms.mtu, self._next, self._every
        ask = at + every - 1
        limit = self._limit()
        half = self.pacing.window >> 1
        while unsent and len(out) < budget and not self._isPaused:
            record = unsent[0]
            if record.__class__ is Record:
                if at >= limit or (limit < record.end <= at + half and at > self._una):
                    # Nothing fits, or only a part of what will fit wholly after an acknowledgement.
                    break
                stop = at + 1 if record.end == at + 1 else min(record.end, limit, at + budget - len(out))
                record.cut(at, stop, mtu, out, ask)
                if stop > ask:
                    ask += every
                    if every < TRANSPORT_ACKNOWLEDGE:  # Long packets, mostly without a Middle one.
                        out[-1] = asking(out[-1])
            else:
                if not self._mayAsk(record):
                    break
                stop = record.partEnd(at)  # type: ignore[union-attr]
                out.append(record.ask(at, mtu))  # type: ignore[union-attr]
                self._asking.append(stop)
            self._next = at = stop
            if at == record.end:
                unsent.popleft()
                self._sent.append(record)
        if len(out) > before:
            # AckReq on the last packet: nothing may follow for long, and without it the responder need
            # not acknowledge (IBTA vol. 1 9.7.5.1.2).
            code, flags, psn, header, body = out[-1]
            if not flags & ACKNOWLEDGE_REQUEST:
                out[-1] = code, flags | ACKNOWLEDGE_REQUEST, psn, header, body
            self.sent(now)

    def sent(self, now: float) -> None:
        """
        Run the timers of packets that have left.
        """
        end = self._next
        if end > self._top:
            if self._top == self._una:
                # Nothing was outstanding: the peer's silence is counted from now on.
                self._since = now
            self._top = end
            # One packet at a time is timed, and only on its first transmission (RFC 6298 section 3, Karn).
            if self._timed < 0:
                self._timed, self._timedAt = end - 1, now
        if self.due is None:
            self._arm(now)

    # -- up

    def isOutstanding(self, psn: int) -> bool:
        """
        @return: whether a packet that was sent with this PSN has no answer.
        """
        return self._una <= extended(psn, self._una) < self._top

    def responded(self, code: int, psn: int, buffer: Any, start: int, stop: int, now: float) -> None:
        """
        A response came.

        @param code: its opcode: of an acknowledgement, a READ response or an atomic acknowledgement.
        """
        if self._ended:
            return
        if code == READ_RESPONSE_MIDDLE and self._middle(psn, 1, stop - start, now):
            self._user.delivered(code, buffer, start, stop)
            return
        if code == ACKNOWLEDGE:
            if stop - start != AETH.size:
                self._user.count("responses_malformed")
                return
            # extended(), inlined.
            una = self._una
            number = una + ((psn - una + HALF & PSN_MASK) - HALF)
            syndrome = buffer[start]
            if una <= number < self._top and not syndrome & SYNDROME_MASK:
                if not self._done(number + 1, now):
                    self._gap(now)
            else:
                self._refused(syndrome, number, now)
        else:
            self._answer(code, extended(psn, self._una), buffer, start, stop, now)
        if self._full and self._hasRoom():
            self._full = False
            self._user.resumed()

    def _hasRoom(self) -> bool:
        return (
            self._held <= limits.TRANSPORT_BYTES // 2
            and len(self.unsent) + len(self._sent) <= limits.TRANSPORT_RECORDS // 2
        )

    def _refused(self, syndrome: int, number: int, now: float) -> None:
        # A NAK, or an acknowledgement of nothing that is outstanding.
        kind = syndrome & SYNDROME_MASK
        if number >= self._top or (number < self._una and kind == 0):
            # For a PSN that was never sent, or an old duplicate: ignored.  A forged or stale ACK
            # must not complete requests.
            if number >= self._top:
                self._user.count("responses_unexpected")
            return
        if number < self._una:
            # An old NAK: what it refused was repeated and is done.
            self._user.count("responses_stale")
        elif kind == RNR:
            self._user.count("rcvd_rnr_err")
            # An RNR NAK acknowledges what is before its PSN (IBTA vol. 1 9.7.5.2.8); if a READ
            # there is unanswered, its response was lost, and it is repeated first.
            if not self._done(number, now):
                self._gap(now)
            else:
                self._pause(syndrome, now)
        elif syndrome == NAK_SEQUENCE:
            # The NAK has the PSN that the responder expects: everything before is acknowledged
            # (IBTA vol. 1 9.7.5.2.3; Linux rxe_comp.c check_ack()).
            self._user.count("rcvd_seq_err")
            self._done(number, now)
            self._repeat(now)
        elif kind == _NAK:
            # Unknown NAK codes are operational errors, as in Linux rxe_comp.c.
            if not NAK_INVALID_REQUEST <= syndrome <= NAK_REMOTE_OPERATIONAL:
                syndrome = NAK_REMOTE_OPERATIONAL
            self._done(number, now)
            self._fail(syndrome, number)
        else:
            # Kind 010 and above 011 are reserved (IBTA vol. 1 9.7.5.2).
            self._user.count("responses_malformed")

    def _done(self, number: int, now: float) -> bool:
        # Returns False if a READ or atomic before the PSN is not answered: its response was lost.
        # An ACK alone does not complete those (Linux rxe_comp.c check_psn(), COMPST_ERROR_RETRY).
        whole, position, held = True, -1, self._held
        una = self._una
        while True:
            queue = self._sent or self.unsent
            if not queue:
                break
            record = queue[0]
            if record.asks:
                if number > record.start:
                    reached = max(una, record.start)
                    whole = number <= reached
                    number = reached
                break
            if record.end > number:
                break
            queue.popleft()
            held -= record.size
            position = record.position
        self._held = held
        if number > una:
            self._progress(number, now)
        if position >= 0:
            self._user.acknowledged(position)
        return whole

    def _progress(self, number: int, now: float) -> None:
        # The timeout starts anew with each progress (IBTA vol. 1 9.7.6.1.3), and so do the retry counts.
        self.pacing.progressed(number - self._counted, now - self._silentAt, now - self._since)
        self._una = self._counted = number
        if self._next < number:
            self._next = number
        if self._timed >= 0 and number > self._timed:
            self.pacing.measured(now - self._timedAt)
            self._timed = -1
            self.due = None
        asking = self._asking
        while asking and asking[0] <= number:
            asking.popleft()
        self._since = self._armedAt = now
        self._retries = self._rnrRetries = 0
        if self._next == number or self._isPaused:
            self.due = None
            self._isPaused = False
        if self._next != number and self.due is None:
            # If the timer runs, L{tick} finds that there is time left: cheaper than moving it with
            # each ACK.
            self._arm(now)

    def continued(self, psn: int, parts: list[Any], now: float) -> bool:
        """
        Middle packets of a READ response came, as those of messages to a responder's C{continued}.
        """
        isRight = self._middle(psn, len(parts), len(parts[0]), now)
        if isRight:
            self._user.continued(READ_RESPONSE_MIDDLE, parts, len(parts) * self._terms.mtu)
        return isRight

    def _middle(self, psn: int, count: int, length: int, now: float) -> bool:
        # Shortcut of L{_answer} for the expected Middle packets of a long READ; whether they are those.
        una = self._una
        queue = self._sent or self.unsent
        if psn != una & PSN_MASK or una + count > self._top or not queue or self._isPaused or self._ended:
            return False
        question = queue[0]
        if question.__class__ is not ReadRequest or not question.goesOn(una, count, length, self._terms.mtu):
            return False
        self._una = una = una + count
        if self._next < una:
            self._next = una
        self._since = self._armedAt = now
        self._retries = self._rnrRetries = 0
        return True

    def _answer(self, code: int, number: int, buffer: Any, start: int, stop: int, now: float) -> None:
        if not self._una <= number < self._top:
            if number >= self._top:
                self._user.count("responses_unexpected")
            return
        # A response acknowledges everything before it (Linux rxe_comp.c check_psn()).  One ahead
        # of the expected PSN shows a loss; one behind it cannot get here.
        if not self._done(number, now) or number != self._una:
            self._gap(now)
            return
        queue = self._sent or self.unsent
        question = queue[0]
        if question.__class__ is not ReadRequest or number < question.start:
            # IBTA vol. 1 11.6.2: Bad Response Error; the expected PSN with a response that does
            # not fit is no loss.
            self._fail(BAD_RESPONSE, number)
            return
        if question.code == READ_REQUEST:
            shape = question.place(code, number, buffer, start, stop, self._terms.mtu)
            if shape is None:
                self._fail(BAD_RESPONSE, number)
                return
            code, start = shape
            question.asked.discard(number)
        elif (code, stop - start) != RESPONSE_TO[question.code] or buffer[start] & SYNDROME_MASK:
            self._fail(BAD_RESPONSE, number)
            return
        else:
            start += AETH.size
        ends = number + 1 == question.end
        # Before the user is called: it may post, and the request must not look outstanding then.
        if ends:
            queue.popleft()
        self._progress(number + 1, now)
        self._user.delivered(code, buffer, start, stop)
        if ends:
            self._user.acknowledged(question.position)

    # -- retransmission

    def _goBack(self) -> None:
        sent = self._sent
        self.unsent.extendleft(reversed(sent))
        sent.clear()
        self._asking.clear()
        self._next = self._una
        self._timed = -1
        self.due = None

    def _gap(self, now: float) -> None:
        # A response was lost: something behind it came.  Repeat once; if that is lost, the timer does.
        if self._lostAt != self._una:
            self._repeat(now)

    def _repeat(self, now: float) -> None:
        # Go back to the oldest unacknowledged PSN.  It counts as a retry where no timeout limits
        # them (IBTA vol. 1 9.9.2.1.1).
        if self._ended or self._isPaused or self._una == self._top:
            return
        if self._lostAt == self._una and now - self._lostTime < self.pacing.roundTrip():
            # Retransmitted less than a round trip ago: further NAKs are about the first attempt.
            return
        parameters = self._terms
        if not parameters.retries or (parameters.timeout is None and self._retries >= parameters.retries):
            self._fail(SILENT, self._una)
            return
        self._retries += 1
        self._user.count("completer_retry_err")
        # Once per window, as in RFC 6582: all losses of one burst are one sign of congestion.
        if self._una >= self._recover:
            self.pacing.lost(self._next - self._una)
            self._recover = self._top
        self._lostAt, self._lostTime = self._una, now
        self._goBack()

    def _pause(self, syndrome: int, now: float) -> None:
        if self._ended or self._isPaused:
            return  # Another RNR NAK of the same attempt.
        # IBTA vol. 1 9.7.5.2.8: wait at least the coded time, rnr_retry times.
        limit = self._terms.rnrRetries
        if limit != _FOR_EVER and self._rnrRetries >= limit:
            self._fail(RNR_EXHAUSTED, self._una)
            return
        self._rnrRetries += 1
        self._goBack()
        self._isPaused = True
        self.due = now + rnrSeconds(syndrome)

    # -- timers

    def _arm(self, now: float) -> None:
        patience = self._patience
        # With retry_cnt 0 nothing is sent twice: only the peer's time limit remains.
        if not self._terms.retries:
            self.due = None if patience is None else self._since + patience
            return
        self._armedAt = now
        at = now + self.pacing.resendSeconds()
        if patience is not None and at > self._since + patience:
            at = self._since + patience
        self.due = at

    def tick(self, now: float, isGone: bool) -> None:
        """
        Handle the expired timer; if the peer is gone, the second without progress is the last.
        """
        if self.due is None or now < self.due:
            return
        if self._isPaused:
            # The RNR wait is not counted as silence.
            self._isPaused, self.due, self._since = False, None, now
            return
        # A suspended or stalled process must not blame its peer for the time in which it read nothing.
        self._since += now - self.due
        patience, wasSilent = self._patience, self._since < self._silentAt
        if (isGone and wasSilent) or (patience is not None and now >= self._since + patience):
            self._fail(SILENT, self._una)
            return
        if not self._terms.retries or now < self._armedAt + self.pacing.resendSeconds():
            # Something was acknowledged since the timer was set.
            self._arm(self._armedAt)
            return
        self._user.count("completer_retry_err")
        # RFC 6298 section 5.5: back off; RFC 5681 section 3.1: go on with a window of one packet.
        self.pacing.silent(self._next - self._una)
        self._silentAt = now
        self._recover = self._top
        self._goBack()

    # -- failure and close

    def _fail(self, syndrome: int, number: int) -> None:
        if self._ended:
            # A callback has closed the queue pair already.
            return
        position = 0
        for record in (*self._sent, *self.unsent):
            if record.start <= number < record.end:
                position = record.position
        # Before the user is notified: nothing behind a failed request may be sent (IBTA vol. 1 9.9.2).
        self.close()
        self._user.refused(position, syndrome)

    def close(self) -> None:
        """
        Send nothing any more.
        """
        self._ended = True
        self._sent.clear()
        self.unsent.clear()
        self._asking.clear()
        self._held = 0
        self.due = None
        self._isPaused = False
