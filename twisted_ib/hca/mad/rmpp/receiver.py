"""
The receiving end of one RMPP transfer (IBTA vol. 1 13.6.3; Linux C{mad_rmpp.c}).

States and inputs; in all others nothing happens::

    RECEIVING  segment 1, the middle of the window, a gap that closes   sends ACK
               a segment that is here already                           sends ACK
               the last one that was missing                            COMPLETE, SUCCESS; sends ACK
               a segment beyond the window                              nothing: it will be repeated
               more than may be held                                    ENDED, RESOURCES_EXHAUSTED; sends STOP
               a segment that is wrong                                  ENDED with the fault; sends ABORT
               no progress for a while, of what was asked for           sends ACK
               no progress, or a total time too long                    ENDED, TIME_TOO_LONG; sends ABORT
               a STOP or an ABORT                                       ENDED with its status
    COMPLETE   any segment, repeated                                    sends ACK
               some time                                                nothing is left of it
"""

from __future__ import annotations

from twisted_ib.hca.mad.rmpp import segments
from twisted_ib.hca.mad.rmpp.segments import BODY_AT, SEGMENT_BYTES, TransferStatus, control, fault, headerOf
from twisted_ib.hca.wire.headers import MAD_BYTES
from twisted_ib.hca.wire.mad.classes import ABORT, ACK, DATA, FIRST, LAST, STOP, RMPPHeader

#: Segments that a sender may be ahead of the last one that arrived in order (Linux mad_rmpp.c window_size:
#: 64).
RMPP_WINDOW = 64
#: The longest data of one transfer, in bytes.
RMPP_TABLE_BYTES = 4 << 20
#: How long repeated segments of a complete transfer are acknowledged, in seconds (Linux mad_rmpp.c
#: complete_rmpp).
RMPP_COMPLETE_SECONDS = 10.0
#: After so long without progress who has asked for a transfer repeats its ACK, in seconds: its sender spends
#: on a peer that has not proved itself no more than a multiple of what comes from there, and may have spent
#: that on what got lost (as often as Linux mad_rmpp.c send_next_seg repeats a segment).
RMPP_ASK_SECONDS = 2.0


class Receiver:
    """
    One transfer that is received.

    @ivar status: L{TransferStatus} when it is complete or has ended, else L{None}.
    @ivar deadline: when L{expired} is to be called; L{None} when nothing is left to do.
    @ivar count: segments that arrived in order.
    @ivar held: bytes that wait.
    """

    def __init__(
        self, at: int, now: float, idle: float = segments.RMPP_IDLE_SECONDS, *, isAnswer: bool = False
    ) -> None:
        """
        @param at: the offset of the data in MADs of this class.
        @param idle: how long it goes on without progress, seconds, at most L{segments.RMPP_IDLE_SECONDS}.
        @param isAnswer: whether we have asked for it; what nobody asked for may have a forged source, which
            gets no more ACKs than segments came.
        """
        self._at = at
        #: The data of the segments in order, and of those behind a gap by their numbers.
        self._pieces: list[bytes] = []
        self._early: dict[int, bytes] = {}
        self._window = 1
        #: Number of the last segment, 0 as long as it is unknown.
        self._expected = 0
        self._latest = b""
        self._idle = min(idle, segments.RMPP_IDLE_SECONDS)
        self._end = now + segments.RMPP_SECONDS
        self.status: TransferStatus | None = None
        self._asking = RMPP_ASK_SECONDS if isAnswer else self._idle
        self._idleAt = now + self._idle
        self.deadline: float | None = None
        self._wait(now)
        self.count = 0
        self.held = 0

    def take(self) -> bytes:
        """
        @return: the data of a complete transfer, once.
        """
        table = b"".join(self._pieces)
        self._pieces.clear()
        self.held = 0
        return table

    def received(self, mad: bytes, now: float) -> list[bytes]:
        """
        A segment, STOP or ABORT arrived.

        @return: MADs to send.
        """
        header = headerOf(mad)
        if self.status is not None:
            isRepeated = header.type == DATA and fault(header) is None
            return self._acknowledge(mad) if isRepeated and self.status is TransferStatus.SUCCESS else []
        self._latest = mad
        wrong = fault(header) or self._inconsistency(header)
        if wrong is not None:
            return self.abort(wrong)
        if header.type in (STOP, ABORT):
            self._finish(TransferStatus(header.status))
        return self._data(mad, header, now) if header.type == DATA else []

    def _inconsistency(self, header: RMPPHeader) -> TransferStatus | None:
        if header.type != DATA:
            return None
        number, isFirst, isLast = header.segment, header.flags & FIRST, header.flags & LAST
        if not number or bool(isFirst) != (number == 1):
            return TransferStatus.INCONSISTENT_FIRST
        if isLast and not self._at - BODY_AT <= header.length <= SEGMENT_BYTES:
            return TransferStatus.INCONSISTENT_LAST
        if isLast and number < max(self._early, default=0):
            return TransferStatus.INCONSISTENT_LAST
        expected = self._expected
        if isFirst and header.length:
            expected = -(-header.length // SEGMENT_BYTES)
        # Without a total length in the first segment the last one says where it ends.
        if expected and (number > expected or bool(isLast) != (number == expected)):
            return TransferStatus.INCONSISTENT_LAST
        return None

    def _data(self, mad: bytes, header: RMPPHeader, now: float) -> list[bytes]:
        number = header.segment
        if number <= self.count:
            return self._acknowledge(mad)
        if number > self._window or number in self._early:
            return []
        size = MAD_BYTES - self._at
        if header.flags & LAST:
            self._expected = number
            piece = mad[self._at : BODY_AT + header.length]
        else:
            if header.flags & FIRST and header.length:
                self._expected = -(-header.length // SEGMENT_BYTES)
            piece = mad[self._at :]
        if max(number, self._expected) * size > RMPP_TABLE_BYTES:
            return self.stop()
        self.held += len(piece)
        self._early[number] = piece
        if number != self.count + 1:
            return []
        closes = len(self._early) > 1
        while (found := self._early.pop(self.count + 1, None)) is not None:
            self._pieces.append(found)
            self.count += 1
        self._idleAt = min(now + self._idle, self._end)
        self._wait(now)
        if self.count == self._expected:
            self._finish(TransferStatus.SUCCESS)
            self.deadline = now + RMPP_COMPLETE_SECONDS
            return self._acknowledge(mad)
        if number > 1 and not closes and self.count < self._window - RMPP_WINDOW // 2:
            return []
        self._window = self.count + RMPP_WINDOW
        return self._acknowledge(mad)

    def _acknowledge(self, mad: bytes) -> list[bytes]:
        return [control(mad, self._at, ACK, number=self.count, window=self._window)]

    def expired(self, now: float) -> list[bytes]:
        """
        The deadline is over.

        @return: MADs to send.
        """
        if self.deadline is None or now < self.deadline:
            return []
        if self.status is not None:
            self.deadline = None
            return []
        if now < self._idleAt:
            self._wait(now)
            return self._acknowledge(self._latest)
        return self.abort(TransferStatus.TIME_TOO_LONG)

    def stop(self) -> list[bytes]:
        """
        End it, as there is no memory for it.

        @return: the STOP.
        """
        self._finish(TransferStatus.RESOURCES_EXHAUSTED)
        return [control(self._latest, self._at, STOP, TransferStatus.RESOURCES_EXHAUSTED)]

    def abort(self, status: TransferStatus) -> list[bytes]:
        """
        End it.

        @return: the ABORT.
        """
        # A STOP or an ABORT is not answered by another: two ends could do so for ever.
        isAnswer = headerOf(self._latest).type in (STOP, ABORT)
        self._finish(status)
        return [] if isAnswer else [control(self._latest, self._at, ABORT, status)]

    def forget(self) -> list[bytes]:
        """
        End it without a word.

        @return: nothing.
        """
        self._finish(TransferStatus.RESOURCES_EXHAUSTED)
        return []

    def _wait(self, now: float) -> None:
        self.deadline = min(now + self._asking, self._idleAt)

    def _finish(self, status: TransferStatus) -> None:
        self.status = status
        self._early.clear()
        if status is not TransferStatus.SUCCESS:
            self._pieces.clear()
            self.held = 0
            self.deadline = None
