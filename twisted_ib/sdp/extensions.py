"""
What a stream has that uses more of SDP than Data: zero copy, flow-control modes, urgent data.

It is made when the first of these is used, by either end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from twisted_ib import limits
from twisted_ib.errors import SDPError
from twisted_ib.interfaces import ISDPUrgentProtocol
from twisted_ib.sdp.protocol import wire
from twisted_ib.sdp.protocol.modes import changed
from twisted_ib.sdp.protocol.zerocopy import ZeroCopyMachine, extend
from twisted_ib.sdp.streamrdma import StreamRDMA
from twisted_ib.sdp.zerocopyreceive import ZeroCopyReceive
from twisted_ib.sdp.zerocopysend import ZeroCopySend

if TYPE_CHECKING:
    from twisted_ib.sdp.stream import Stream

_PRESENT = wire.Flags.OOB_PRES.value


class Extensions:
    """
    The part of a stream that not every stream has.

    @ivar stream: The stream.
    @ivar machine: Its machine.
    @ivar keyed: Its memory; L{None} until it is used.
    @ivar sourcing: What it sends.
    @ivar sinking: What it receives.
    @ivar over: Whether the application has heard, or is about to hear, of the end.
    @ivar orphans: Who waits for the end of what will not be sent.
    @ivar asked: Whether a ChRcvBuf was sent and not answered; L{None} before the first.
    """

    __slots__ = ("asked", "keyed", "machine", "orphans", "over", "stream", "zeroCopyReceive", "zeroCopySend")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.machine: ZeroCopyMachine = extend(stream.machine)
        self.keyed: StreamRDMA | None = None
        self.zeroCopySend = ZeroCopySend(self)
        self.zeroCopyReceive = ZeroCopyReceive(self)
        self.orphans: list[Deferred[None]] = []
        self.asked: bool | None = None
        self.over = False

    def openRDMA(self) -> StreamRDMA:
        """
        Its memory, made when first needed.

        @raise MemoryRegionError: The connection has ended.
        """
        keyed = self.keyed
        if keyed is None:
            keyed = self.keyed = StreamRDMA(self.stream)
        return keyed

    # -- the batch

    def tell(self) -> None:
        """
        Tell what was read and written.
        """
        if self.keyed is not None and self.keyed.completions:
            self.keyed.tell()

    # -- messages

    def take(self, buffer: Any, start: int, stop: int) -> None:
        """
        A message came that is not just Data, nor one of the end or of buffer sizes.

        @raise SDPError: It is not what the protocol allows.
        @raise SDPWireError: Likewise.
        """
        self.tell()
        if self.stream.queuePair.path is None:
            return  # Who heard of it ended the connection.
        flags = self.machine.flags
        if self.machine.control == wire.MID.MODE_CHANGE and stop - start > wire.BSDH_BYTES:
            if buffer[start + wire.BSDH_BYTES] == wire.Transition.PIPELINED_TO_COMBINED:
                self.zeroCopyReceive.checkReports(self.machine.acknowledged)
        message: Any
        places = self.machine.zero.sink.places
        first = places[0][0] if places else None
        message, result = self.machine.take(buffer, start, stop)
        payload = getattr(message, "payload", b"")
        if payload:
            used = first is not None and not (places and places[0][0] is first)
            self._payload(payload, flags, first if used else None)
        act = _ACTS.get(message.mid)
        if act is not None:
            act(self, message, result)
        if self.zeroCopyReceive.unread() and not self.stream.attached:
            self.stream.reset()  # The application has closed: as TCP answers with a reset.
        self.stream.cork()

    def _payload(self, payload: bytes, flags: int, place: Any) -> None:
        """
        Bytes of the stream, the last of which may be urgent.

        @param place: The SinkAvail that they have used up, if they did.
        """
        stream: Any = self.stream
        protocol = stream.protocol
        urgent = b""
        if flags & _PRESENT and stream.attached and ISDPUrgentProtocol.providedBy(protocol):
            payload, urgent = payload[:-1], payload[-1:]
        if payload:
            if stream.reading and stream.held is None:
                self.zeroCopyReceive.put(payload)
            else:
                stream.hold(payload)
        elif place is not None:
            self.zeroCopyReceive.withdrawn([place], True)  # Nothing came to it, but its turn is over.
        if urgent and stream.attached:
            stream._tell(lambda: protocol.urgentDataReceived(urgent))

    def _read(self, message: wire.RdmaRdCompl, offer: Any) -> None:
        oldest = self.machine.zero.source.offers[0] if offer is None else offer
        self.zeroCopySend.wasRead(oldest.user, message.length, offer is not None)

    def _sendSm(self, message: wire.SendSm, offers: Any) -> None:
        self.zeroCopySend.unoffer(offers, True)

    def _sinkAvail(self, message: wire.SinkAvail, result: Any) -> None:
        self.zeroCopySend.unoffer(result[1], False)

    def _written(self, message: wire.RdmaWrCompl, place: Any) -> None:
        self.zeroCopyReceive.filled(place, message.length)

    def _modeChange(self, message: wire.ModeChange, places: Any) -> None:
        self.zeroCopyReceive.withdrawn(places, False)

    def _sinkCancelled(self, message: wire.SinkCancelAck, places: Any) -> None:
        self.zeroCopyReceive.withdrawn(places, True)

    # -- modes

    def changeMode(self, transition: wire.Transition) -> bool:
        """
        Change the flow-control mode of the direction in which this end sends; or end the
        peer's Buffered mode.

        @return: False if it must wait: for credits, or for what is on its way.
        @raise SDPError: The mode in force has no such change.
        """
        stream = self.stream
        zero = self.machine.zero
        if transition is wire.Transition.BUFFERED_TO_COMBINED:
            changed(zero.sink.mode, transition)
        else:
            changed(zero.source.mode, transition)
            if self.zeroCopySend.takes(0):
                return False
        queuePair = stream.queuePair
        if queuePair.path is None or stream.owes is not None or not queuePair.canPost():
            return False
        message = self.machine.changeMode(transition, stream.queuePair.posted)
        if message is not None:
            stream.queuePair.postInline(message, b"", 0)
        return message is not None

    # -- sizes of buffers

    def askSize(self) -> None:
        """
        Ask the peer once to take longer messages.
        """
        if self.asked is None:
            self.asked = True
            size = limits.INLINE_MESSAGE + wire.BSDH_BYTES
            self.stream._control(wire.MID.CH_RCV_BUF, wire.ChRcvBuf.layout.pack(size))

    def sizeAnswered(self, size: int) -> None:
        """
        The peer says what it takes.  OFED's counts the payload, others all of the message: the
        less of both is safe.

        @raise SDPError: Nothing was asked.
        """
        if not self.asked:
            raise SDPError("ChRcvBufAck, but nothing was asked")
        self.asked = False
        payload = min(size - wire.BSDH_BYTES, limits.INLINE_MESSAGE)
        if payload > self.machine.maxPayload:
            self.machine.maxPayload = payload

    # -- ends

    def inUse(self) -> bool:
        """
        Whether the peer has memory of ours to read or write, or we some of its: an end now is
        one in the middle.
        """
        return self.zeroCopySend.unfinished() or self.zeroCopyReceive.unread()

    def discard(self) -> None:
        """
        Send nothing of what waits.
        """
        self.orphans += self.zeroCopySend.discard()

    def fail(self, reason: Failure) -> None:
        """
        The connection is over: tell those who wait for the end of what was not sent.
        """
        self.over = True
        self.discard()
        orphans, self.orphans = self.orphans, []
        for deferred in orphans:
            deferred.errback(reason)

    def close(self) -> None:
        """
        The queue pair is gone.
        """
        self.zeroCopyReceive.close()
        keyed, self.keyed = self.keyed, None
        if keyed is not None:
            keyed.close()


_ACTS: dict[int, Any] = {
    wire.MID.RDMA_RD_COMPL: Extensions._read,
    wire.MID.SEND_SM: Extensions._sendSm,
    wire.MID.SINK_AVAIL: Extensions._sinkAvail,
    wire.MID.RDMA_WR_COMPL: Extensions._written,
    wire.MID.MODE_CHANGE: Extensions._modeChange,
    wire.MID.SINK_CANCEL_ACK: Extensions._sinkCancelled,
}
