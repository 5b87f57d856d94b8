"""
One SDP connection without Twisted's faces: bytes out, bytes in, and the end.

A L{Stream} joins a send buffer, a L{Machine} and a L{QueuePair}.  What Twisted
calls a transport stands on top of it (L{twisted_ib.sdp.transport}).

Sending: where the reactor polls, the first write of a turn leaves at once; the
rest of the turn (elsewhere all of it) is gathered and leaves at the end of the
batch, or when there is much of it.

Closing: C{closeWrite} queues the DisConn behind the data; C{detach} ends the
application's part, after which the stream lives on by itself, as a closed
socket does in a kernel, until the peer has answered or has waited too long.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.errors import PathLostError, ResourceLimitError, SDPError, SDPWireError
from twisted_ib.hca.core.queuepair import QueuePair
from twisted_ib.sdp.buffer import SendBuffer
from twisted_ib.sdp.machine import Action, Input, Machine, State
from twisted_ib.sdp.wire import MID, AbortConn, ChRcvBuf, ChRcvBufAck, DisConn, SrcAvail

if TYPE_CHECKING:
    from twisted_ib.hca.channel import DeviceChannel

#: A turn's writes are flushed when less than this of a message is left.
_GATHER_LEFT = 16 * 1024
_RECEIVES, _LOW = limits.SDP_RECEIVES, limits.SDP_RECEIVES_LOW
_CREDITS_LOW = limits.SDP_CREDITS_LOW
_MESSAGE = limits.INLINE_MESSAGE
#: States in which stream data may be sent.
_SENDING = frozenset((State.ESTABLISHED, State.CLOSE_WAIT))
#: Marks the end of stream among held bytes.
_END = None


class Stream:
    """
    A stream of bytes over one queue pair.

    @ivar channel: The device in its reactor.
    @ivar connection: The CM's side of this connection.
    @ivar room: Bytes that may still be gathered in this turn; below zero every
        write takes the slow way.
    @ivar corked: Whether this turn's L{endOfBatch} is still to come.
    @ivar reading: Whether the application wants data.
    @ivar held: Bytes that came while it did not, then perhaps the end of
        stream (L{None}) or the loss (an exception); L{None} when there is
        nothing.
    @ivar attached: Whether there is an application at all.
    @ivar ending: Whether a DisConn is to be sent and is not in the medium yet.
    @ivar saidEnd: Whether it has its number: nothing may follow it.
    """

    __slots__ = (
        "append",
        "attached",
        "buffer",
        "channel",
        "connection",
        "corked",
        "ending",
        "held",
        "heldBytes",
        "machine",
        "owes",
        "queuePair",
        "reading",
        "room",
        "saidEnd",
        "thread",
    )

    def __init__(self, channel: DeviceChannel) -> None:
        self.channel = channel
        self.thread = channel.device.thread
        self.queuePair: QueuePair = channel.device.createQueuePair(self)
        self.queuePair.postReceives(_RECEIVES)
        self.machine = Machine(_RECEIVES)
        self.connection: Any = None
        self.buffer: SendBuffer | None = None
        self.append: Any = None
        self.room = -1
        self.corked = False
        self.reading = False
        self.attached = True
        self.ending = self.saidEnd = False
        self.owes: deque[tuple[int, bytes]] | None = None
        self.held: deque[bytes | Exception | None] | None = None
        self.heldBytes = 0

    # -- what the transport implements

    bufferSize: int

    def deliver(self, data: bytes) -> None:
        """
        Hand stream bytes to the application.
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
        """
        raise NotImplementedError

    def writing(self) -> bool:
        """
        @return: Whether the application waits to write more, or to close.
        """
        raise NotImplementedError

    def drained(self) -> None:
        """
        The send buffer is empty and the medium has taken everything.
        """
        raise NotImplementedError

    def filled(self) -> None:
        """
        More than C{bufferSize} bytes wait.
        """
        raise NotImplementedError

    def forked(self) -> None:
        """
        In a forked child: no thread may use this.
        """
        self.thread = 0

    # -- sending

    def send(self, data: bytes) -> None:
        """
        Queue or send C{data}, which is not empty: the slow way, for the first
        write of a turn and for large ones.
        """
        queuePair, buffer = self.queuePair, self.buffer
        n = len(data)
        if queuePair.path is None:
            self._sendToNobody()
            return
        if self.saidEnd or self.machine.state not in _SENDING:
            return
        if not self.corked:
            self.corked = True
            self.channel.device.markDirty(self)
            if buffer is None and self.channel.polled and queuePair.pending is None:
                if n <= self.machine.maxPayload:
                    header = self.machine.header(n, queuePair.posted)
                    if header is not None:
                        queuePair.postInline(header, data, n)
                        return
        if buffer is None:
            buffer = self.buffer = SendBuffer()
            self.append = buffer.pieces.append
        else:
            self._sync()
            if buffer.size and buffer.size + n > _MESSAGE:
                self.flush()
        buffer.append(data)
        self.room = _MESSAGE - buffer.size
        if self.room < _GATHER_LEFT:
            self.flush()
            self.channel.device.ringBells()
        if buffer.size > self.bufferSize:
            self.filled()

    def _sendToNobody(self) -> None:
        """
        A write after the end of the queue pair, of which the application, not
        reading, has not heard yet: it hears of it at the end of the batch.
        """
        self.cork()

    def cork(self) -> None:
        """
        Have L{endOfBatch} called.
        """
        if not self.corked:
            self.corked = True
            self.channel.device.markDirty(self)

    def _sync(self) -> None:
        """
        Account for what was gathered by C{append} alone.
        """
        if self.buffer is not None and self.room >= 0:
            self.buffer.size = _MESSAGE - self.room

    def flush(self) -> None:
        """
        Send what is queued, as far as credits and the medium allow.
        """
        buffer, queuePair, machine = self.buffer, self.queuePair, self.machine
        assert buffer is not None
        self._sync()
        most = machine.maxPayload
        left = limits.MESSAGES_PER_FLUSH
        while buffer.size:
            if not left:
                # The peer takes them as fast as they come: others have a turn.
                self.cork()
                break
            left -= 1
            if machine.limit - machine.sequence < 3 or not queuePair.canPost():
                break
            payload, n = buffer.take(most)
            header = machine.header(n, queuePair.posted)
            assert header is not None
            queuePair.postInline(header, payload, n)
        if self.corked:
            self.room = _MESSAGE - buffer.size

    def endOfBatch(self) -> None:
        """
        The turn is over: everything gathered leaves.
        """
        if self.buffer is not None:
            self._sync()
            self.room = -1
        self.corked = False
        if self.held is not None and self.reading:
            self.read()
            if self.queuePair.path is None:
                return  # Who has written or closed meanwhile is dirty again.
        if self.corked:
            return
        if self.queuePair.path is not None:
            self._proceed()
        elif self.attached:
            self._proceedWithout()

    def _proceedWithout(self) -> None:
        """
        The queue pair has ended and the application, which does not read, has
        written or closed: that fails if the peer reset the connection, and is
        in vain if it closed.
        """
        loss = self.held[-1] if self.held else None
        if isinstance(loss, Exception):
            self._broken(loss)
        else:
            self.drained()

    def resume(self) -> None:
        """
        There is room in the medium, or there are credits: go on.
        """
        self._proceed()
        if self.machine.told - self.machine.received < _CREDITS_LOW:
            self._credit()  # What found the medium full would never be told.

    def _proceed(self) -> None:
        """
        Send what is owed and queued; when all has left, say so.
        """
        if self.owes is not None:
            self._payOwed()
        if self.buffer is not None:
            self.flush()
            if self.buffer.size or self.corked:
                return  # If corked, the end of the batch comes back here.
            self.buffer = self.append = None
        if self.corked or self.queuePair.pending is not None:
            return
        if self.ending:
            self.sendDisconn()
        self.drained()

    def discard(self) -> None:
        """
        Forget what the application wrote and has not left.
        """
        self.buffer = self.append = None
        self.room = -1

    # -- control messages

    def _control(self, mid: int, body: bytes = b"") -> None:
        """
        Send a control message, now or when there are credits for it.
        """
        if self.owes is None and self.queuePair.canPost():
            message = self.machine.controlMessage(mid, self.queuePair.posted, body)
            if message is not None:
                self.queuePair.postInline(message, b"", 0)
                return
        if self.owes is None:
            self.owes = deque()
        self.owes.append((mid, body))
        if len(self.owes) > limits.SDP_RECEIVES:
            raise SDPError("the peer asks for answers and does not take them")

    def _payOwed(self) -> None:
        """
        Send the control messages that waited for credits.
        """
        owes, queuePair = self.owes, self.queuePair
        while owes and queuePair.canPost():
            mid, body = owes[0]
            message = self.machine.controlMessage(mid, queuePair.posted, body)
            if message is None:
                return
            owes.popleft()
            queuePair.postInline(message, b"", 0)
        if not owes:
            self.owes = None

    def _credit(self) -> None:
        """
        Tell the peer of posted receives, if no data does.

        One alone is told only to a peer that can not send data for want of it:
        two ends that have few would else tell each other of the receive that
        the other's message used, for ever.
        """
        queuePair, machine = self.queuePair, self.machine
        if queuePair.pending is not None or queuePair.path is None:
            return
        left = machine.told - machine.received
        if left < 3 or queuePair.posted - left >= 2:
            header = machine.update(queuePair.posted)
            if header is not None:
                queuePair.postInline(header, b"", 0)

    # -- receiving (consumer of the queue pair)

    def received(self, buffer: Any, start: int, stop: int) -> None:
        """
        A message arrived: see L{QueuePair.delivered}.
        """
        machine = self.machine
        try:
            data = machine.receive(buffer, start, stop)
            if data is None:
                self._controlReceived(machine.control, buffer, start, stop)
                return
        except (SDPError, SDPWireError) as error:
            self.violated(error)
            return
        if self.queuePair.posted < _LOW and not self._replace(bool(data)):
            return
        if data:
            if self.reading and self.held is None:
                self.deliver(data)
            else:
                self._hold(data)
        if machine.told - machine.received < _CREDITS_LOW:
            self._credit()
        if (
            self.buffer is not None or self.ending or self.owes is not None
        ) and not self.corked:
            self.resume()

    def _replace(self, payload: bool) -> bool:
        """
        A message has used a receive.

        While the application does not read, those that carried data are not
        posted again and those that did not are, so that control messages can
        always come and data can not.

        @return: False if the message came without the credits it needs.
        """
        queuePair = self.queuePair
        if payload and queuePair.posted < limits.SDP_CONTROL_RECEIVES:
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
        if self.channel.device.heldBytes > limits.HELD_BYTES // 2:
            full = limits.SDP_RECEIVES_LEAST
        if full > queuePair.posted:
            queuePair.posted = full

    def _controlReceived(self, mid: int, buffer: Any, start: int, stop: int) -> None:
        """
        Any message but Data.
        """
        if self.queuePair.posted < _LOW and not self._replace(mid == MID.SRC_AVAIL):
            return
        if mid == MID.DISCONN:
            DisConn.parse(buffer, start, stop)
            self._act(self.machine.feed(Input.DISCONN))
        elif mid == MID.ABORT_CONN:
            AbortConn.parse(buffer, start, stop)
            self._act(self.machine.feed(Input.ABORTCONN))
        elif mid == MID.CH_RCV_BUF:
            # Refused by answering with the size in force.
            ChRcvBuf.parse(buffer, start, stop)
            size = limits.INLINE_MESSAGE
            self._control(MID.CH_RCV_BUF_ACK, size.to_bytes(4, "big"))
        elif mid == MID.CH_RCV_BUF_ACK:
            ChRcvBufAck.parse(buffer, start, stop)
            raise SDPError("ChRcvBufAck, but nothing was asked")
        elif mid == MID.SRC_AVAIL:
            self._sourceAvailable(SrcAvail.parse(buffer, start, stop))
        else:
            raise SDPError(f"message {mid:#04x} does not belong to this mode")
        if self.owes is not None or self.ending or self.buffer is not None:
            self.resume()

    def _sourceAvailable(self, message: SrcAvail) -> None:
        """
        The peer offers a buffer to read; ask for the rest of it as Data.
        """
        if not message.payload or message.length <= len(message.payload):
            raise SDPError("a SrcAvail in Combined mode carries its first bytes")
        data = bytes(message.payload)
        self._control(MID.SEND_SM)
        if self.reading and self.held is None:
            self.deliver(data)
        else:
            self._hold(data)

    def _hold(self, data: bytes) -> None:
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
            if data is _END:
                self.endOfStream()
                loss = held[0] if held else None
                if isinstance(loss, Exception) and self.held is held and self.attached:
                    self._broken(loss)
                else:
                    self._release()
                return
            if isinstance(data, Exception):
                self._broken(data)
                return
            self.heldBytes -= len(data)
            self.channel.device.hold(self, -len(data))
            self.deliver(data)
        if not held:
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
        if self.held is None:
            if self.queuePair.posted < _LOW:
                self._postReceives()
                self._credit()
        else:
            self.cork()

    def _release(self) -> None:
        """
        Forget what was held.
        """
        self.held = None
        if self.heldBytes:
            self.channel.device.hold(self, -self.heldBytes)
            self.heldBytes = 0

    # -- the end

    def closeWrite(self) -> None:
        """
        Send a DisConn after everything queued.
        """
        self.ending = True
        self.cork()

    def sendDisconn(self) -> None:
        """
        Everything has left: say that no more comes.  It is said when the
        message is in the medium; before that the state does not change.
        """
        if self.machine.state not in _SENDING:
            self.ending = False
            return
        queuePair = self.queuePair
        if queuePair.pending is not None:
            return
        if not self.saidEnd:
            if self.owes is not None:
                return
            message = self.machine.controlMessage(MID.DISCONN, queuePair.posted)
            if message is None:
                return
            self.saidEnd = True
            queuePair.postInline(message, b"", 0)
            if queuePair.pending is not None:
                return
        self.ending = False
        self._act(self.machine.feed(Input.DISCONN_SENT))

    def peerDisconnected(self, connection: Any) -> None:
        """
        The CM says that the peer disconnected (DREQ), or confirmed ours.
        """
        try:
            self._act(self.machine.feed(Input.DREQ))
        except SDPError as error:
            self.violated(error)

    def rejected(self, connection: Any, rejection: Any) -> None:
        """
        The CM says that the peer does not want the REP.
        """
        self.peerDisconnected(connection)

    def unreachable(self, connection: Any) -> None:
        """
        The CM says that the peer does not answer the REP.
        """
        self.peerDisconnected(connection)

    def _act(self, action: Action) -> None:
        """
        Do what the machine says.
        """
        if action == Action.NOTHING:
            return
        if action in (Action.END_OF_STREAM, Action.END_AND_DISCONNECT):
            if action == Action.END_AND_DISCONNECT:
                self._disconnect()
            self._ended()
        elif action == Action.RESET:
            writes = self.buffer is not None or self.queuePair.pending is not None
            writes = writes or self.writing()
            self._closeQueuePair()
            self._resetByPeer(PathLostError("the peer reset the connection"), writes)
        elif action == Action.FINISHED:
            self._closeQueuePair()
        else:
            if action == Action.ABORT_AND_DISCONNECT:
                self._abortMessage()
            self._disconnect()

    def _resetByPeer(self, reason: Exception, writes: bool) -> None:
        """
        The peer has reset the connection.  As with TCP the application hears of
        it behind what it has not read; if it does not read, when it reads again
        or writes, and at once if it is writing.
        """
        if self.attached and self._isPaused() and (self.reading or not writes):
            self._loseLater(reason)
        else:
            self._broken(reason)

    def _loseLater(self, reason: Exception) -> None:
        """
        The loss is told behind what is held.
        """
        if self.held is None:
            self.held = deque()
        self.held.append(reason)
        if self.reading:
            self.cork()

    def _ended(self) -> None:
        """
        The end of the stream came; it waits behind bytes not read yet.
        """
        if not self.attached:
            return
        if self.held is None and self.reading:
            self.endOfStream()
        else:
            if self.held is None:
                self.held = deque()
            self.held.append(_END)

    def _abortMessage(self) -> None:
        """
        AbortConn, if it can be sent at all; DREQ alone says as much.
        """
        queuePair = self.queuePair
        if queuePair.pending is None and queuePair.path is not None:
            message = self.machine.controlMessage(MID.ABORT_CONN, queuePair.posted)
            if message is not None:
                queuePair.postInline(message, b"", 0)

    def _disconnect(self) -> None:
        """
        Tell the CM to disconnect; nothing more is sent or taken.
        """
        connection = self.connection
        self._closeQueuePair()
        if connection is not None:
            self.channel.device.disconnect(connection)

    def _closeQueuePair(self) -> None:
        """
        Nothing more is sent or taken.
        """
        self.discard()
        self.owes = None
        self.ending = False
        self.queuePair.close()
        self.channel.closed(self)

    def reset(self) -> None:
        """
        End the connection so that the peer sees it as lost.
        """
        self.discard()
        self._release()
        self._act(self.machine.feed(Input.ABORT))
        self._closeQueuePair()

    def violated(self, error: Exception) -> None:
        """
        The peer broke the protocol: reset, and count it.
        """
        self.channel.device.count("sdp_protocol_errors")
        self.reset()
        self._broken(error)

    def failed(self, reason: Exception) -> None:
        """
        The queue pair is in error: see L{QueuePair.fail}.
        """
        if isinstance(reason, PathLostError):
            self.machine.state = State.CLOSED
            self._closeQueuePair()
        else:
            self.reset()
        if self.held and (self.reading or _END in self.held):
            # What was published is valid, the peer's DisConn above all.
            self._loseLater(reason)
        else:
            self._broken(reason)

    def overheld(self) -> None:
        """
        This connection holds most of what there is no more memory for.
        """
        self.reset()
        self._broken(ResourceLimitError("too many bytes wait for a paused reader"))

    def _broken(self, reason: Exception) -> None:
        """
        Tell the application, if there is one, that the connection is lost.
        """
        self._release()
        if self.attached:
            self.lost(reason)

    def detach(self) -> None:
        """
        The application's part is over: finish with the peer alone.

        What it wrote still leaves.  If it did not read all, the connection is
        reset, as TCP does it.
        """
        self.attached = False
        self.reading = False
        unread = self.heldBytes > 0
        self._release()
        state = self.machine.state
        if self.queuePair.path is None:
            return
        if unread:
            self.reset()
        else:
            if state in (State.ESTABLISHED, State.CLOSE_WAIT):
                self.closeWrite()
            self.channel.closing(self)
