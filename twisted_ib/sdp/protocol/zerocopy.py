"""
The rest of SDP's protocol: zero copy, flow-control modes, urgent data (IBTA vol. 1, annex A4).

A L{Machine<twisted_ib.sdp.protocol.machine.Machine>} becomes a L{ZeroCopyMachine} when the first message
of these comes or is to be sent (L{extend}), so that a stream of plain Data does not pay for it.
Pure, as the machine; the two halves of zero copy are in L{twisted_ib.sdp.protocol.sourceadverts} and
L{twisted_ib.sdp.protocol.sinkadverts}.
"""

from __future__ import annotations

from typing import Any

from twisted_ib.errors import SDPError
from twisted_ib.sdp.protocol.machine import Action, Input, Machine, State
from twisted_ib.sdp.protocol.sinkadverts import SinkAdverts
from twisted_ib.sdp.protocol.sourceadverts import SourceAdverts
from twisted_ib.sdp.protocol.wire import (
    MID,
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
#: What only belongs to the direction in which the peer sends.
_OF_SOURCE = frozenset((MID.RDMA_WR_COMPL, MID.SRC_AVAIL_CANCEL, MID.SRC_AVAIL))
#: States in which the peer has said that it sends no more.
_ENDED = frozenset((State.CLOSE_WAIT, State.LAST_ACK))


class ZeroCopy:
    """
    What a L{ZeroCopyMachine} has beside the numbers.

    @ivar source: The half that sends.
    @ivar sink: The half that receives.
    @ivar cap: The highest MSeqAck that may be told, while a SrcAvailCancel is not done; else
        L{None}.
    @ivar pend: Whether the next message says that urgent data is coming.
    @ivar places: Whether L{Machine.receive<twisted_ib.sdp.protocol.machine.Machine.receive>} returns
        L{None} for all Data, since it has a place to go to.
    """

    __slots__ = ("cap", "pend", "places", "sink", "source")

    def __init__(self, adverts: int) -> None:
        """
        @param adverts: The peer's MaxAdverts.
        """
        self.source = SourceAdverts(adverts)
        self.sink = SinkAdverts(adverts)
        self.cap: int | None = None
        self.pend = self.places = False


class ZeroCopyMachine(Machine):
    """
    One connection's protocol state, all of it.
    """

    __slots__ = ()

    zero: ZeroCopy

    # -- sending

    def header(self, length: int, receives: int, flags: int = 0) -> bytes | None:
        """
        See L{Machine.header<twisted_ib.sdp.protocol.machine.Machine.header>}.

        @param flags: L{Flags}.
        @raise SDPError: Data may not be sent now.
        """
        if self.limit - self.sequence < 3:
            return None
        if length:
            self.zero.source.dataSent()
        return self._marked(self._capped(Machine.header, length, receives), flags)

    def update(self, receives: int) -> bytes | None:
        """
        See L{Machine.update<twisted_ib.sdp.protocol.machine.Machine.update>}.
        """
        return self._marked(self._capped(Machine.update, receives))

    def controlMessage(self, mid: int, receives: int, body: bytes = b"", flags: int = 0) -> bytes | None:
        """
        See L{Machine.controlMessage<twisted_ib.sdp.protocol.machine.Machine.controlMessage>}.
        """
        return self._marked(self._capped(Machine.controlMessage, mid, receives, body, flags))

    def notice(self, receives: int) -> bytes | None:
        """
        An empty Data message that says that urgent data is coming.
        """
        self.zero.pend = True
        if self.limit - self.sequence < 3:
            return None  # The next message says it.
        message = self._marked(self._capped(Machine.header, 0, receives))
        self.bareSent += 1
        return message

    def urgentHeader(self, receives: int) -> bytes | None:
        """
        The header of a message of one byte, which is urgent.  It says so both ways, as OFED's
        does.

        @raise SDPError: Data may not be sent now.
        """
        header = self.header(1, receives, _URGENT)
        if header is not None:
            self.zero.pend = False
        return header

    def sourceAvailable(
        self, user: Any, length: int, key: int, address: int, carried: bytes, receives: int
    ) -> bytes | None:
        """
        A SrcAvail, whole.

        @param user: Whose buffer it is.
        @param carried: Its first bytes, in Combined mode.
        @return: L{None} without three credits.
        """
        message = self._advert(MID.SRC_AVAIL, SrcAvail.layout.pack(length, key, address), carried, receives)
        if message is not None:
            self.zero.source.offered(user, length - len(carried), self.sequence)
        return message

    def sinkAvailable(self, user: Any, length: int, key: int, address: int, receives: int) -> bytes | None:
        """
        A SinkAvail, whole.

        @param user: Whose buffer it is.
        @return: L{None} without three credits.
        """
        sink = self.zero.sink
        nonDiscards = self.received - self.bareReceived - sink.discarded & _M32
        body = SinkAvail.layout.pack(length, key, address, nonDiscards)
        message = self._advert(MID.SINK_AVAIL, body, b"", receives)
        if message is not None:
            sink.asked(user, length)
        return message

    def changeMode(self, transition: Transition, receives: int) -> bytes | None:
        """
        A ModeChange, whole.

        @return: L{None} without two credits.
        @raise SDPError: The mode cannot change so.
        """
        if self.limit - self.sequence < 2:
            return None
        if transition is Transition.BUFFERED_TO_COMBINED:
            self.zero.sink.changeMode(transition)
        else:
            payloads = self.sequence - self.bareSent
            self.zero.source.changedMode(transition, self.sequence + 1, payloads)
        return self.controlMessage(MID.MODE_CHANGE, receives, ModeChange.layout.pack(transition))

    def cancelOffers(self, receives: int) -> bytes | None:
        """
        A SrcAvailCancel, whole.

        @return: L{None} without two credits.
        """
        message = self.controlMessage(MID.SRC_AVAIL_CANCEL, receives)
        if message is not None:
            self.zero.source.cancelled(self.sequence)
        return message

    def cancelPlaces(self, receives: int) -> bytes | None:
        """
        A SinkAvailCancel, whole.

        @return: L{None} without two credits.
        """
        message = self.controlMessage(MID.SINK_AVAIL_CANCEL, receives)
        if message is not None:
            self.zero.sink.retract()
        return message

    def _advert(self, mid: int, body: bytes, carried: bytes, receives: int) -> bytes | None:
        """
        An advertisement, which may not take the last two credits.
        """
        if self.limit - self.sequence < 3:
            return None
        message = self.controlMessage(mid, receives, body + carried)
        if carried:
            self.bareSent -= 1
        return message

    def _capped(self, make: Any, *arguments: Any) -> bytes | None:
        """
        Make a message that acknowledges no more than it may.
        """
        cap = self.zero.cap
        message: bytes | None
        if cap is None:
            message = make(self, *arguments)
        else:
            received, self.received = self.received, cap
            try:
                message = make(self, *arguments)
            finally:
                self.received = received
        return message

    def _marked(self, message: bytes | None, flags: int = 0) -> bytes | None:
        """
        Say in a message that urgent data is coming, if that is to be said.
        """
        zero = self.zero
        if message is not None and (zero.pend or flags):
            if zero.pend:
                flags |= _PEND
                zero.pend = False
            message = message[:1] + bytes((message[1] | flags,)) + message[2:]
        return message

    # -- receiving

    def receive(self, buffer: Any, start: int, stop: int) -> bytes | None:
        """
        See L{Machine.receive<twisted_ib.sdp.protocol.machine.Machine.receive>}.
        """
        data = Machine.receive(self, buffer, start, stop)
        if data:
            zero = self.zero
            zero.sink.checkData()
            if zero.places:
                self.control, self.flags = _DATA, 0
                return None
            zero.sink.payloadCame()
        return data

    def take(self, buffer: Any, start: int, stop: int) -> tuple[SDPMessage, Any]:
        """
        Do what the protocol wants with a message that L{receive} returned L{None} for, other
        than those of the end and of buffer sizes.

        @return: The message; and what it means to the half that it is about, see there.
        @raise SDPError: It is not what the protocol allows.
        @raise SDPWireError: Likewise.
        """
        mid = self.control
        kind = byMID.get(mid)
        take = _TAKE.get(mid)
        if kind is None or take is None:
            name = f"message {mid:#04x}" if kind is None else kind.__name__
            raise SDPError(f"{name} does not belong here")
        message: Any = kind.parse(buffer, start, stop)
        if self.state in _ENDED and (mid in _OF_SOURCE or bool(getattr(message, "payload", None))):
            raise SDPError(f"{kind.__name__} after the peer's DisConn")
        return message, take(self, message)

    def _data(self, message: Any) -> None:
        """
        Data, with flags or with a place to go to.
        """
        sink = self.zero.sink
        if message.payload:
            sink.checkData()
            sink.payloadCame()

    def _sendSm(self, message: Any) -> Any:
        return self.zero.source.sendSm(self.acknowledged)

    def _read(self, message: RdmaRdCompl) -> Any:
        source = self.zero.source
        if message.flags & Flags.REQ_PIPE:
            source.pipelining = True
        return source.read(message.length, self.acknowledged)

    def _written(self, message: RdmaWrCompl) -> Any:
        return self.zero.sink.written(message.length)

    def _modeChange(self, message: ModeChange) -> Any:
        transition = message.transition
        if transition is Transition.BUFFERED_TO_COMBINED:
            self.zero.source.changeMode(transition)
            return []
        if self.state in _ENDED:
            raise SDPError("ModeChange after the peer's DisConn")
        if transition is Transition.PIPELINED_TO_COMBINED:
            self.zero.cap = None
        return self.zero.sink.changeMode(transition)

    def _sourceCancel(self, message: Any) -> None:
        """
        Nothing of what was offered is read any more, but what is being read; until that is
        done the message is not acknowledged.
        """
        sink = self.zero.sink
        sink.cancel()
        if sink.cancelling:
            self.zero.cap = self.received - 1

    def sourceCancelDone(self) -> bool | None:
        """
        See L{SinkAdverts.cancelDone}.  What is due acknowledges the cancel.
        """
        done = self.zero.sink.cancelDone()
        if done is not None:
            self.zero.cap = None
        return done

    def _sinkCancel(self, message: Any) -> None:
        """
        Nothing more is written to where the peer wanted it.
        """
        self.zero.source.cancelTargets()

    def _sinkCancelled(self, message: Any) -> Any:
        return self.zero.sink.retracted()

    def _sinkAvail(self, message: SinkAvail) -> Any:
        """
        Whether it can be written to, and the offers that are void.
        """
        if message.payload:
            self.zero.sink.checkData()
            self.zero.sink.payloadCame()
        return self.zero.source.available(
            message.length,
            message.rkey,
            message.address,
            message.nonDiscards,
            self.acknowledged,
            self.sequence - self.bareSent,
        )

    def _srcAvail(self, message: SrcAvail) -> Any:
        return self.zero.sink.offered(message.length, message.rkey, message.address, len(message.payload))

    # -- closing

    def feed(self, event: Input) -> Action:
        """
        See L{Machine.feed<twisted_ib.sdp.protocol.machine.Machine.feed>}.
        """
        if event is Input.DISCONN and self.zero.sink.adverts:
            raise SDPError("DisConn while a SrcAvail is outstanding")
        return Machine.feed(self, event)


_TAKE: dict[int, Any] = {
    MID.SEND_SM: ZeroCopyMachine._sendSm,
    MID.RDMA_WR_COMPL: ZeroCopyMachine._written,
    MID.RDMA_RD_COMPL: ZeroCopyMachine._read,
    MID.MODE_CHANGE: ZeroCopyMachine._modeChange,
    MID.SRC_AVAIL_CANCEL: ZeroCopyMachine._sourceCancel,
    MID.SINK_AVAIL_CANCEL: ZeroCopyMachine._sinkCancel,
    MID.SINK_CANCEL_ACK: ZeroCopyMachine._sinkCancelled,
    MID.SINK_AVAIL: ZeroCopyMachine._sinkAvail,
    MID.SRC_AVAIL: ZeroCopyMachine._srcAvail,
    MID.DATA: ZeroCopyMachine._data,
}


def extend(machine: Machine) -> ZeroCopyMachine:
    """
    Make a machine one that knows all of the protocol.

    @return: The same object.
    """
    if machine.zero is None:
        machine.zero = ZeroCopy(machine.adverts)
        machine.__class__ = ZeroCopyMachine
    assert isinstance(machine, ZeroCopyMachine)
    return machine
