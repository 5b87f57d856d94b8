"""
The rest of the SDP machine: zero copy, flow-control modes and urgent data (IBTA vol. 1 annex A4).

A L{ZeroCopyMachine} takes the place of a stream's L{Machine<twisted_ib.sdp.protocol.machine.Machine>} when
the first of these messages is received or to be sent, so that a stream of plain Data does not pay for it.
The two halves of zero copy are in L{twisted_ib.sdp.protocol.sourceadverts} and
L{twisted_ib.sdp.protocol.sinkadverts}.
"""

from __future__ import annotations

from typing import Any

from twisted_ib.errors import SDPError
from twisted_ib.sdp.protocol.machine import Action, Input, Machine, Other, State
from twisted_ib.sdp.protocol.sinkadverts import ReceivedSrcAvail, SinkAdverts
from twisted_ib.sdp.protocol.sourceadverts import SentSrcAvail, SourceAdverts
from twisted_ib.sdp.protocol.wire import (
    MID,
    Data,
    Flags,
    ModeChange,
    RdmaRdCompl,
    RdmaWrCompl,
    SDPMessage,
    SinkAvail,
    SrcAvail,
    Transition,
    byMID,
)

_M32 = 0xFFFFFFFF
_DATA = MID.DATA.value
_PEND = Flags.OOB_PEND.value
_URGENT = _PEND | Flags.OOB_PRES.value
#: States in which the peer's DisConn was received.
_ENDED = frozenset((State.CLOSE_WAIT, State.LAST_ACK))


class ZeroCopy:
    """
    Advertisements and pending notices of a L{ZeroCopyMachine}.

    @ivar source: The sending half; C{sink} is the receiving one.
    @ivar cap: The highest MSeqAck that may be sent, while a SrcAvailCancel is in progress; else L{None}.
    @ivar pend: Whether the next message has to carry OOB_PEND.
    @ivar places: Whether all Data is to L{ZeroCopyMachine.receive} as other messages, because the application
        supplies buffers for it.
    """

    __slots__ = ("cap", "pend", "places", "sink", "source")

    def __init__(self, adverts: int) -> None:
        self.source = SourceAdverts(adverts)
        self.sink = SinkAdverts(adverts)
        self.cap: int | None = None
        self.pend = self.places = False


class ZeroCopyMachine(Machine):
    """
    Protocol state of one connection that uses more than Data.

    @ivar zero: Advertisements and pending notices.
    @ivar other: The last message that is no plain Data.
    """

    __slots__ = ("other", "zero")

    def __init__(self, plain: Machine, adverts: int) -> None:
        """
        @param plain: The connection's machine so far, which must not be used any more.
        @param adverts: The peer's MaxAdverts.
        """
        # An object of its own, rather than another class for the old one: compiled callers keep the methods
        # of the class that an object was made of.
        super().__init__(0)
        self.sequence, self.received = plain.sequence, plain.received
        self.limit, self.told = plain.limit, plain.told
        self.state, self._updates = plain.state, plain._updates
        self.bareSent, self.bareReceived = plain.bareSent, plain.bareReceived
        self.other: Other = (0, 0, 0)
        self.zero = ZeroCopy(adverts)

    # -- sending

    def header(self, length: int, receives: int, flags: int = 0) -> bytes | None:
        """
        See L{Machine.header<twisted_ib.sdp.protocol.machine.Machine.header>}.

        @raise SDPError: Data may not be sent now.
        """
        # Checked before dataSent, which consumes a SinkAvail: nothing may be consumed for a message that is
        # not sent.
        if self.limit - self.sequence < 3:
            return None
        if length:
            self.zero.source.dataSent()
        return self._marked(self._capped(Machine.header, length, receives), flags)

    def update(self, receives: int) -> bytes | None:
        return self._marked(self._capped(Machine.update, receives))

    def controlMessage(self, mid: int, receives: int, body: bytes = b"", flags: int = 0) -> bytes | None:
        return self._marked(self._capped(Machine.controlMessage, mid, receives, body, flags))

    def notice(self, receives: int) -> bytes | None:
        """
        Return an empty Data message with OOB_PEND, or L{None} with fewer than three credits.
        """
        self.zero.pend = True
        if self.limit - self.sequence < 3:
            # The next message carries OOB_PEND instead; CA4-7 allows that flag in any message (IBTA vol. 1
            # annex A4).
            return None
        message = self._marked(self._capped(Machine.header, 0, receives))
        self.bareSent += 1
        return message

    def urgentHeader(self, receives: int) -> bytes | None:
        """
        Return the header of a message with one urgent byte.

        @raise SDPError: Data may not be sent now.
        """
        # OOB_PRES and OOB_PEND together, as OFED sends them (sdp_bcopy.c sdp_post_send).
        header = self.header(1, receives, _URGENT)
        if header is not None:
            self.zero.pend = False
        return header

    def sourceAvailable(
        self, user: Any, length: int, key: int, address: int, carried: bytes, receives: int
    ) -> bytes | None:
        """
        Return a SrcAvail, whole.

        @param user: Identifies the buffer to the caller later.
        @param carried: The first bytes of the buffer, in Combined mode.
        @return: L{None} with fewer than three credits.
        """
        body = SrcAvail.layout.struct.pack(length, key, address)
        message = self._advert(MID.SRC_AVAIL, body, carried, receives)
        if message is not None:
            self.zero.source.offered(user, length - len(carried), self.sequence)
        return message

    def sinkAvailable(self, user: Any, length: int, key: int, address: int, receives: int) -> bytes | None:
        """
        Return a SinkAvail, whole.

        @param user: Identifies the buffer to the caller later.
        @return: L{None} with fewer than three credits.
        """
        sink = self.zero.sink
        # NonDiscards lets the source find a SinkAvail that crossed data: its own count of payload messages
        # differs then (OpenIB sdp_rcvd.c sdp_rcvd_snk_avail).
        nonDiscards = self.received - self.bareReceived - sink.discarded & _M32
        body = SinkAvail.layout.struct.pack(length, key, address, nonDiscards)
        message = self._advert(MID.SINK_AVAIL, body, b"", receives)
        if message is not None:
            sink.asked(user, length)
        return message

    def changeMode(self, transition: Transition, receives: int) -> bytes | None:
        """
        Return a ModeChange, whole.

        @return: L{None} with fewer than two credits.
        @raise SDPError: The mode in force does not allow the transition.
        """
        # The own half changes when the message is numbered, so the credits must be certain before.
        if self.limit - self.sequence < 2:
            return None
        if transition is Transition.BUFFERED_TO_COMBINED:
            self.zero.sink.changeMode(transition)
        else:
            payloads = self.sequence - self.bareSent
            self.zero.source.changedMode(transition, self.sequence + 1, payloads)
        return self.controlMessage(MID.MODE_CHANGE, receives, ModeChange.layout.struct.pack(transition))

    def cancelOffers(self, receives: int) -> bytes | None:
        """
        Return a SrcAvailCancel, whole; L{None} with fewer than two credits.
        """
        message = self.controlMessage(MID.SRC_AVAIL_CANCEL, receives)
        if message is not None:
            self.zero.source.cancelled(self.sequence)
        return message

    def cancelPlaces(self, receives: int) -> bytes | None:
        """
        Return a SinkAvailCancel, whole; L{None} with fewer than two credits.
        """
        message = self.controlMessage(MID.SINK_AVAIL_CANCEL, receives)
        if message is not None:
            self.zero.sink.retract()
        return message

    def _advert(self, mid: int, body: bytes, carried: bytes, receives: int) -> bytes | None:
        # An advertisement counts as data for credits (OpenIB sdp_send.c sdp_send_data_buff_post).
        if self.limit - self.sequence < 3:
            return None
        message = self.controlMessage(mid, receives, body + carried)
        if carried:
            self.bareSent -= 1
        return message

    def _capped(self, make: Any, *arguments: Any) -> bytes | None:
        cap = self.zero.cap
        message: bytes | None
        if cap is None:
            message = make(self, *arguments)
        else:
            # IBTA vol. 1 annex A4: until a SrcAvailCancel is done, MSeqAck must not reach it (OpenIB
            # sdp_rcvd.c sdp_rcvd_src_cancel keeps advt_seq back).
            received, self.received = self.received, cap
            try:
                message = make(self, *arguments)
            finally:
                self.received = received
        return message

    def _marked(self, message: bytes | None, flags: int = 0) -> bytes | None:
        zero = self.zero
        if message is not None and (zero.pend or flags):
            if zero.pend:
                flags |= _PEND
                zero.pend = False
            message = message[:1] + bytes((message[1] | flags,)) + message[2:]
        return message

    # -- receiving

    def receive(self, buffer: Any, start: int, stop: int) -> bytes | Other:
        data = Machine.receive(self, buffer, start, stop)
        if not isinstance(data, bytes):
            self.other = data
        elif data:
            zero = self.zero
            zero.sink.checkData()
            if zero.places:
                self.other = _DATA, 0, self.other[2]
                return self.other
            zero.sink.payloadCame()
        return data

    def parse(self, buffer: Any, start: int, stop: int) -> SDPMessage:
        """
        Parse C{other}, unless it is DisConn, AbortConn or about the size of buffers.  The method of its name
        must be called with it.

        @raise SDPError: The protocol forbids the message.
        @raise SDPWireError: The message is malformed.
        """
        kind = byMID.get(self.other[0])
        if kind is None:
            raise self.unexpected()
        message = kind.parse(buffer, start, stop)
        # After its DisConn the peer may still read, complete and cancel as the sink of the other direction.
        if self.state in _ENDED and (kind.ofSource or bool(getattr(message, "payload", None))):
            raise SDPError(f"{kind.__name__} after the peer's DisConn")
        return message

    def unexpected(self) -> SDPError:
        """
        Return the error of a message that has no handler.
        """
        kind = byMID.get(self.other[0])
        name = f"message {self.other[0]:#04x}" if kind is None else kind.__name__
        return SDPError(f"{name} does not belong here")

    def data(self, message: Data) -> None:
        """
        Process Data that L{receive} has not.

        @raise SDPError: The mode permits none.
        """
        sink = self.zero.sink
        if message.payload:
            sink.checkData()
            sink.payloadCame()

    def sendSm(self) -> list[SentSrcAvail]:
        """
        Process a SendSm.

        @return: The SrcAvails that the sink will not read.
        @raise SDPError: There is none.
        """
        return self.zero.source.sendSm(self.other[2])

    def rdmaRdCompl(self, message: RdmaRdCompl) -> SentSrcAvail | None:
        """
        Process an RdmaRdCompl.

        @return: The SrcAvail that was read to its end, if it was.
        @raise SDPError: More was read than was offered.
        """
        source = self.zero.source
        # IBTA vol. 1 annex A4 CA4-8, CA4-9: a request by the sink, which the source may ignore.
        if message.flags & Flags.REQ_PIPE:
            source.pipelining = True
        return source.read(message.length, self.other[2])

    def rdmaWrCompl(self, message: RdmaWrCompl) -> Any:
        """
        Process an RdmaWrCompl.

        @return: The buffer of the SinkAvail that was written to.
        @raise SDPError: There is none, or it is shorter.
        """
        return self.zero.sink.written(message.length)

    def modeChange(self, message: ModeChange) -> list[Any]:
        """
        Process a ModeChange.

        @return: The buffers of the SinkAvails that it voids.
        @raise SDPError: The mode in force has no such transition.
        """
        transition = message.transition
        if transition is Transition.BUFFERED_TO_COMBINED:
            self.zero.source.changeMode(transition)
            return []
        if self.state in _ENDED:
            raise SDPError("ModeChange after the peer's DisConn")
        # The change voids all SrcAvails, so a cancel in progress is over too.
        if transition is Transition.PIPELINED_TO_COMBINED:
            self.zero.cap = None
        return self.zero.sink.changeMode(transition)

    def srcAvailCancel(self) -> None:
        """
        Process a SrcAvailCancel.

        @raise SDPError: Another is in progress.
        """
        sink = self.zero.sink
        sink.cancel()
        # READs in flight must complete first.  There is no cancel acknowledgement: the source takes MSeqAck
        # for one (OpenIB sdp_rcvd.c sdp_rcvd_src_cancel).
        if sink.cancelling:
            self.zero.cap = self.received - 1

    def sourceCancelDone(self) -> bool | None:
        """
        See L{SinkAdverts.cancelDone}; the next message then acknowledges the cancel.
        """
        done = self.zero.sink.cancelDone()
        if done is not None:
            self.zero.cap = None
        return done

    def sinkAvailCancel(self) -> None:
        """
        Process a SinkAvailCancel.
        """
        self.zero.source.cancelTargets()

    def sinkCancelAck(self) -> list[Any]:
        """
        Process a SinkCancelAck.

        @return: The buffers that the peer will not write to.
        @raise SDPError: Nothing was cancelled.
        """
        return self.zero.sink.retracted()

    def sinkAvail(self, message: SinkAvail) -> tuple[bool, list[SentSrcAvail]]:
        """
        Process a SinkAvail.

        @return: Whether it can be written to; and the SrcAvails that it voids.
        @raise SDPError: The mode has no SinkAvail, or there are too many.
        """
        if message.payload:
            self.zero.sink.checkData()
            self.zero.sink.payloadCame()
        return self.zero.source.available(
            message.length,
            message.rkey,
            message.address,
            message.nonDiscards,
            self.other[2],
            self.sequence - self.bareSent,
        )

    def srcAvail(self, message: SrcAvail) -> ReceivedSrcAvail | None:
        """
        Process a SrcAvail.

        @return: The advertisement; L{None} if it crossed a SinkAvail, which voids it.
        @raise SDPError: The mode has no such SrcAvail, or there are too many.
        """
        return self.zero.sink.offered(message.length, message.rkey, message.address, len(message.payload))

    # -- closing

    def feed(self, event: Input) -> Action:
        # DisConn goes behind all own SrcAvails (OpenIB sdp_send.c sdp_send_ctrl_disconnect).
        if event is Input.DISCONN and self.zero.sink.adverts:
            raise SDPError("DisConn while a SrcAvail is outstanding")
        return Machine.feed(self, event)
