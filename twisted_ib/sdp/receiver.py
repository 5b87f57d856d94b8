"""
The receiving half of an SDP stream: what is delivered, what is held while the application does
not read, and the receives that the peer may use.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.errors import SDPError, SDPWireError
from twisted_ib.sdp.extensions import Extensions
from twisted_ib.sdp.protocol.machine import M32, PLAIN, WINDOW, Input, State, unpackHeader
from twisted_ib.sdp.protocol.wire import (
    BSDH_BYTES,
    MID,
    ChRcvBuf,
    ChRcvBufAck,
    SinkAvail,
    SrcAvail,
    SuspComm,
    SuspCommAck,
)
from twisted_ib.sdp.sender import Sender
from twisted_ib.sdp.zerocopyreceive import Placed

if TYPE_CHECKING:
    from twisted_ib.internet.channel import DeviceChannel

#: Below this many they are posted again.
SDP_RECEIVES_LOW = 32
#: Receives of a connection while memory is short: data needs three credits
#: (annex A4, CA4-82), and one message without data must leave as many.
SDP_RECEIVES_LEAST = 4
#: Receives that are left for control messages when data has come.
SDP_CONTROL_RECEIVES = 2

_RECEIVES, _LOW = limits.SDP_RECEIVES, SDP_RECEIVES_LOW
_CREDITS_LOW = limits.SDP_CREDITS_LOW
# Names of this module are looked up faster than those of others.
_ESTABLISHED, _PLAIN, _WINDOW, _M32, _unpack = State.ESTABLISHED, PLAIN, WINDOW, M32, unpackHeader
_DISCONN, _ABORT_CONN, _DISCONN_CAME = MID.DISCONN.value, MID.ABORT_CONN.value, Input.DISCONN
#: The messages that may carry stream bytes, and what else they have behind the header.
_BODIES = {
    int(MID.DATA): 0,
    int(MID.SRC_AVAIL): SrcAvail.layout.size,
    int(MID.SINK_AVAIL): SinkAvail.layout.size,
}
#: Marks the end of stream among held bytes.
END = None


class Receiver(Sender):
    """
    What one end of a connection receives, and sends.

    @ivar reading: Whether the application wants data.
    @ivar held: Bytes that came while it did not, or what came to a place of its, then
        perhaps the end of stream (L{None}) or the loss (an exception); L{None} when there is
        nothing.
    @ivar heldBytes: How many bytes those are.
    @ivar attached: Whether there is an application at all.
    """

    __slots__ = ("held", "heldBytes", "reading")

    attached = True

    def __init__(self, channel: DeviceChannel) -> None:
        """
        Begin with nothing received.

        @param channel: The device in its reactor.
        """
        Sender.__init__(self, channel)
        self.reading = False
        self.held: deque[bytes | Placed | Exception | None] | None = None
        self.heldBytes = 0

    # -- what the stream and the transport implement

    def deliver(self, data: bytes) -> None:
        """
        Hand stream bytes to the application.

        @param data: not empty.
        """
        raise NotImplementedError

    def endOfStream(self) -> None:
        """
        Tell the application that the peer sends no more.
        """
        raise NotImplementedError

    def lost(self, reason: Exception) -> None:
        """
        Tell the application that the connection broke.

        @param reason: why; at most once.
        """
        raise NotImplementedError

    def reset(self) -> None:
        """
        End the connection so that the peer sees it as lost.
        """
        raise NotImplementedError

    def violated(self, error: Exception) -> None:
        """
        The peer broke the protocol.

        @param error: what it did.
        """
        raise NotImplementedError

    def _broken(self, reason: Exception) -> None:
        """
        Tell the application, if there is one, that the connection is lost.
        """
        raise NotImplementedError

    def leaving(self) -> bool:
        """
        @return: Whether the application has closed and reads no more.
        """
        raise NotImplementedError

    def checkCaller(self) -> None:
        """
        @raise WrongThreadError: This is not the reactor's thread.
        @raise DeviceClosedError: This is a forked child.
        """
        raise NotImplementedError

    # -- more than Data

    #: The most that one message brings.
    messageBytes = limits.INLINE_MESSAGE

    def openExtensions(self) -> Extensions:
        """
        @return: What the stream has that uses more of SDP than Data, made when first needed.
        """
        extensions = self.extensions
        if extensions is None:
            self.direct = False
            extensions = self.extensions = Extensions(self)
        return extensions

    def _askSize(self) -> None:
        self.openExtensions().askSize()

    # -- receiving (consumer of the queue pair)

    def received(self, buffer: Any, start: int, stop: int) -> None:
        """
        A message arrived: see L{QueuePair.delivered}.

        What most messages are is done here: stream bytes for a connection that is open and has no
        C{extensions}.  The checks are those of L{Machine.receive}, which has all other messages to itself,
        and finds what is wrong with one that does not pass them here.

        @param buffer: the medium's own, for this call only.
        @param start: offset of the message.
        @param stop: offset after it.
        """
        machine = self.machine
        length = stop - start
        data: bytes | None
        if length > BSDH_BYTES and self.extensions is None and machine.state is _ESTABLISHED:
            kind, bufs, said, sequence, acknowledged = _unpack(buffer, start)
            received, sent = machine.received + 1, machine.sequence
            behind = (sent - acknowledged) & _M32
            if kind == _PLAIN and said == length and sequence == received & _M32 and behind <= _WINDOW:
                machine.received = received
                limit = sent - behind + bufs
                if limit > machine.limit:
                    machine.limit = limit
                data = buffer[start + 16 : stop]
            else:
                data = self._receive(buffer, start, stop)
        else:
            data = self._receive(buffer, start, stop)
        if data is None or (self.queuePair.posted < _LOW and not self._replace(bool(data))):
            return
        if data:
            if self.reading and self.held is None:
                self.deliver(data)
            else:
                self.hold(data)
        if machine.told - machine.received < _CREDITS_LOW:
            self._credit()
        if (self.buffer is not None or self.ending or self.owes is not None) and not self.corked:
            self.resume()

    def _receive(self, buffer: Any, start: int, stop: int) -> bytes | None:
        """
        Any message.

        @return: The stream bytes that came, perhaps none; L{None} if all is done.
        """
        machine = self.machine
        try:
            data = machine.receive(buffer, start, stop)
            if data is None:
                self._controlReceived(machine.control, buffer, start, stop)
        except (SDPError, SDPWireError) as error:
            self.violated(error)
            return None
        return data

    def _replace(self, payload: bool) -> bool:
        """
        A message has used a receive.

        While the application does not read, those that carried data are not
        posted again and those that did not are, so that control messages can
        always come and data cannot.

        @return: False if the message came without the credits it needs.
        """
        queuePair = self.queuePair
        if payload and queuePair.posted < SDP_CONTROL_RECEIVES:
            self.violated(SDPError("data with fewer than three credits (CA4-82)"))
            return False
        if not self._isPaused():
            self._postReceives()
        elif not payload:
            queuePair.posted += 1
        return True

    def _isPaused(self) -> bool:
        """
        @return: Whether there is an application and it does not read.
        """
        return self.attached and (self.held is not None or not self.reading)

    def _postReceives(self) -> None:
        """
        Promise to take more messages: all, or few if memory is short.
        """
        queuePair = self.queuePair
        if queuePair.path is None:
            return
        full = _RECEIVES
        if self.channel.device.receiveBudget.heldBytes > limits.HELD_BYTES // 2:
            full = SDP_RECEIVES_LEAST
        if full > queuePair.posted:
            queuePair.posted = full

    def _controlReceived(self, mid: int, buffer: Any, start: int, stop: int) -> None:
        carries = stop - start - BSDH_BYTES - _BODIES.get(mid, stop) > 0
        if self.queuePair.posted < _LOW and not self._replace(carries):
            return
        if mid == _DISCONN or mid == _ABORT_CONN:
            if stop - start != BSDH_BYTES:
                raise SDPError(f"message {mid:#04x} has a body of {stop - start - BSDH_BYTES} bytes")
            end = _DISCONN_CAME if mid == _DISCONN else Input.ABORTCONN
            if mid == _DISCONN and self.extensions is not None:
                self.extensions.zeroCopyReceive.ended()
            self._act(self.machine.feed(end))
        elif mid == MID.CH_RCV_BUF:
            # Refused by answering with the size in force.
            ChRcvBuf.parse(buffer, start, stop)
            size = limits.INLINE_MESSAGE
            self._control(MID.CH_RCV_BUF_ACK, size.to_bytes(4, "big"))
        elif mid == MID.CH_RCV_BUF_ACK:
            answer = ChRcvBufAck.parse(buffer, start, stop)
            self.openExtensions().sizeAnswered(answer.receiveBytes)
        elif mid == MID.SUSP_COMM:
            service = SuspComm.parse(buffer, start, stop).serviceID
            raise SDPError(f"SuspComm: the peer moves to service {service:#x}, where we do not follow")
        elif mid == MID.SUSP_COMM_ACK:
            SuspCommAck.parse(buffer, start, stop)
            raise SDPError("SuspCommAck, but nothing was suspended")
        else:
            self.openExtensions().take(buffer, start, stop)
        if self.queuePair.path is None:
            return
        if self.machine.told - self.machine.received < _CREDITS_LOW:
            self._credit()
        if self.owes is not None or self.ending or self.buffer is not None:
            self.resume()

    def hold(self, data: bytes | Placed) -> None:
        """
        Keep what the application does not want to read yet.
        """
        if not self.attached:
            # The application has closed: as TCP answers with a reset.
            self.reset()
            return
        if self.held is None:
            self.held = deque()
        self.held.append(data)
        if isinstance(data, bytes):
            self.heldBytes += len(data)
            self.channel.device.hold(self, len(data))

    def holdAgain(self, data: bytes) -> None:
        """
        Keep what the application did not take of what was given to it.
        """
        if self.held is None:
            self.held = deque()
        self.held.appendleft(data)
        self.heldBytes += len(data)
        self.channel.device.hold(self, len(data))

    def read(self) -> None:
        """
        Deliver what was held, while the application wants it.
        """
        held = self.held
        if held is None:
            return
        while held and self.reading and self.attached:
            data = held.popleft()
            if data is END:
                self._streamEnded()
                loss = held[0] if held else None
                if isinstance(loss, Exception) and self.held is held and self.attached:
                    self._broken(loss)
                else:
                    self._release()
                return
            if isinstance(data, Exception):
                self._broken(data)
                return
            extensions = self.extensions
            if isinstance(data, Placed):
                assert extensions is not None
                extensions.zeroCopyReceive.finish(data)
                continue
            self.heldBytes -= len(data)
            self.channel.device.hold(self, -len(data))
            if extensions is None:
                self.deliver(data)
            else:
                extensions.zeroCopyReceive.put(data)
        if not held and self.held is held:
            self.held = None
        if self.reading and self.held is None and self.queuePair.posted < _LOW:
            self._postReceives()
            self._credit()

    def readAgain(self) -> None:
        """
        The application reads again: what was held comes at the end of the batch.
        Without any the receives may still be down to those of a paused reader.
        """
        self.reading = True
        if self.extensions is not None:
            self.cork()
        if self.held is None:
            if self.queuePair.posted < _LOW:
                self._postReceives()
                self._credit()
        else:
            self.cork()

    def _streamEnded(self) -> None:
        """
        All is read: tell of the end.
        """
        if self.extensions is not None:
            self.extensions.zeroCopyReceive.returnPlaces()
            if not self.attached:
                return  # Who heard of it ended the connection.
        self.endOfStream()

    def _release(self) -> None:
        self.held = None
        if self.heldBytes:
            self.channel.device.hold(self, -self.heldBytes)
            self.heldBytes = 0
