"""
One SDP connection without Twisted's faces: bytes out, bytes in, and the end.

What Twisted calls a transport stands on top of a L{Stream} (L{twisted_ib.sdp.transport}).

Sending: where the reactor polls, the first write of a turn leaves at once; the rest of the turn (elsewhere
all of it) is gathered and leaves at the end of the batch, or when there is much of it.

Receiving: bytes go to the application as they come, or are held while it does not read; then the receives
that carried data are not posted again, and the peer's credits run out.

Closing: C{closeWrite} queues the DisConn behind the data; C{detach} ends the
application's part, after which the stream lives on by itself, as a closed
socket does in a kernel, until the peer has answered or has waited too long.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.errors import PathLostError, ResourceLimitError, SDPError, SDPWireError
from twisted_ib.hca.queues.queuepair import QueuePair
from twisted_ib.internet.transport import Computed
from twisted_ib.sdp.extensions import Extensions
from twisted_ib.sdp.pendingsends import SendBuffer
from twisted_ib.sdp.protocol.machine import M32, PLAIN, WINDOW, Action, Input, Machine, State, unpackHeader
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
from twisted_ib.sdp.streamrdma import READ_DEPTH
from twisted_ib.sdp.zerocopyreceive import Placed

if TYPE_CHECKING:
    from twisted_ib.internet.channel import DeviceChannel

#: A turn's writes are flushed when less than this of a message is left.
GATHER_LEFT = 16 * 1024
_CREDITS_LOW = limits.SDP_CREDITS_LOW
_DISCONN, _DISCONN_SENT = MID.DISCONN.value, Input.DISCONN_SENT
_MESSAGE = limits.INLINE_MESSAGE
#: States in which stream data may be sent; an enumeration's hash costs a Python call.
_ESTABLISHED, _CLOSE_WAIT = State.ESTABLISHED, State.CLOSE_WAIT
#: Below this many they are posted again.
SDP_RECEIVES_LOW = 32
#: Receives of a connection while memory is short: data needs three credits
#: (annex A4, CA4-82), and one message without data must leave as many.
SDP_RECEIVES_LEAST = 4
#: Receives that are left for control messages when data has come.
SDP_CONTROL_RECEIVES = 2
_RECEIVES, _LOW = limits.SDP_RECEIVES, SDP_RECEIVES_LOW
_DISCONN, _ABORT_CONN, _DISCONN_CAME = MID.DISCONN.value, MID.ABORT_CONN.value, Input.DISCONN
#: The messages that may carry stream bytes, and what else they have behind the header.
_BODIES = {
    int(MID.DATA): 0,
    int(MID.SRC_AVAIL): SrcAvail.layout.size,
    int(MID.SINK_AVAIL): SinkAvail.layout.size,
}
#: Marks the end of stream among held bytes.
END = None
# Names of this module are looked up faster than those of others.
_PLAIN, _WINDOW, _M32, _unpack = PLAIN, WINDOW, M32, unpackHeader
_ABORT_CONN, _DISCONN_CAME, _DREQ = MID.ABORT_CONN.value, Input.DISCONN, Input.DREQ
_NOTHING, _END_OF_STREAM, _END_AND_DISCONNECT = (
    Action.NOTHING,
    Action.END_OF_STREAM,
    Action.END_AND_DISCONNECT,
)


class Stream:
    """
    A stream of bytes over one queue pair.

    @ivar channel: The device in its reactor.
    @ivar thread: The thread that may use it.
    @ivar connection: The CM's side of this connection.
    @ivar room: Bytes that may still be gathered in this turn; below zero every
        write takes the slow way.
    @ivar corked: Whether this turn's C{endOfBatch} is still to come.
    @ivar owes: Control messages that wait for credits: id, body and flags.
    @ivar extensions: What it has that uses more of SDP than Data, or L{None}.
    @ivar longest: Bytes of the longest message that its path carries well.
    @ivar reads: READs that the peer answers at a time, once connected.
    @ivar prompt: Whether the first write of a turn leaves at once.
    @ivar direct: Whether such a write has nothing to do with the end of its batch: nobody waits for that,
        neither a producer nor a close, and there are no C{extensions}.  Found out at the end of a batch in
        which nothing was left to do.
    @ivar batch: The batch in which something was written last.
    @ivar ending: Whether a DisConn is to be sent and is not in the medium yet.
    @ivar saidEnd: Whether it has its number: nothing may follow it.
    @ivar reading: Whether the application wants data.
    @ivar held: Bytes that came while it did not, or what came to a place of its, then
        perhaps the end of stream (L{None}) or the loss (an exception); L{None} when there is
        nothing.
    @ivar heldBytes: How many bytes those are.
    @ivar attached: Whether there is an application at all.
    @cvar messageBytes: The most that one message brings.
    """

    __slots__ = (
        "__dict__",
        "append",
        "batch",
        "buffer",
        "channel",
        "connection",
        "corked",
        "direct",
        "ending",
        "extensions",
        "held",
        "heldBytes",
        "machine",
        "owes",
        "queuePair",
        "reading",
        "room",
        "thread",
    )

    # For most connections; a transport has a dictionary for what changes.
    attached = True
    longest = messageBytes = limits.INLINE_MESSAGE
    prompt: Any = Computed(lambda stream: stream.channel.polled)
    reads = READ_DEPTH
    saidEnd = False

    def __init__(self, channel: DeviceChannel) -> None:
        """
        Make a queue pair, with all its receives posted.

        @param channel: The device in its reactor.
        @raise ResourceLimitError: there are too many queue pairs.
        """
        self.channel = channel
        self.thread = channel.device.thread
        self.connection: Any = None
        self.queuePair: QueuePair = channel.device.createQueuePair(self)
        self.queuePair.posted = limits.SDP_RECEIVES
        self.machine = Machine(limits.SDP_RECEIVES)
        self.buffer: SendBuffer | None = None
        self.append: Any = None
        self.room = self.batch = -1
        self.corked = self.direct = self.ending = self.reading = False
        self.owes: deque[tuple[int, bytes, int]] | None = None
        self.extensions: Extensions | None = None
        self.held: deque[bytes | Placed | Exception | None] | None = None
        self.heldBytes = 0

    # -- what the transport implements

    bufferSize: int

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

    def forked(self) -> None:
        """
        In a forked child: no thread may use this.
        """
        self.thread = 0

    def traffic(self) -> tuple[int, int, int, int]:
        """
        @return: For L{Traffic<twisted_ib.hca.device.counters.Traffic>}: each message is one record,
            and has its number.
        """
        machine = self.machine
        return machine.sequence, machine.received, machine.sequence, machine.received

    # -- stream data

    def send(self, data: bytes) -> None:
        """
        Queue or send C{data}, which is not empty: the slow way, for the first
        write of a turn and for large ones.
        """
        queuePair, buffer = self.queuePair, self.buffer
        n = len(data)
        if queuePair.path is None:
            # The application, not reading, has not heard of the end: it hears
            # of it at the end of the batch.
            self.cork()
            return
        state = self.machine.state
        if self.saidEnd or not (state is _ESTABLISHED or state is _CLOSE_WAIT):
            return
        if not self.corked:
            device = self.channel.device
            first, self.batch = self.batch != device.batch, device.batch
            self.corked = True
            device.markDirty(self)
            if first and buffer is None and self.prompt and queuePair.pending is None:
                extensions = self.extensions
                if n <= self.machine.maxPayload and (
                    extensions is None or not extensions.zeroCopySend.takes(n)
                ):
                    header = self.machine.header(n, queuePair.posted)
                    if header is not None:
                        queuePair.postInline(header, data, n)
                        return
        if self.extensions is not None and self.extensions.zeroCopySend.takes(n):
            self.extensions.zeroCopySend.queueBytes(data)
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
        if self.room < GATHER_LEFT:
            self.flush()
            self.channel.device.ringBells()
        if buffer.size > self.bufferSize:
            self.filled()

    def block(self) -> None:
        """
        What is written from now on waits behind more than bytes: have every write take the slow
        way, and every message that comes look whether something can go on.
        """
        self._sync()
        self.room = -1
        if self.buffer is None:
            self.buffer = SendBuffer()
            self.append = self.buffer.pieces.append

    def cork(self) -> None:
        """
        Have C{endOfBatch} called when the batch ends.
        """
        if not self.corked:
            self.corked = True
            self.channel.device.markDirty(self)

    def _sync(self) -> None:
        if self.buffer is not None and self.room >= 0:
            self.buffer.size = _MESSAGE - self.room

    def flush(self) -> None:
        """
        Send what is queued, as far as credits and the medium allow.
        """
        buffer, queuePair, machine = self.buffer, self.queuePair, self.machine
        assert buffer is not None
        self._sync()
        if self.owes is not None:
            self._payOwed()
            if self.owes is not None:
                return  # Among it may be what belongs before these bytes: RdmaWrCompl.
        most, longest = machine.maxPayload, self.longest
        left = limits.MESSAGES_PER_FLUSH
        while buffer.size:
            if not left:
                # The peer takes them as fast as they come: others have a turn.
                self.cork()
                break
            left -= 1
            if machine.limit - machine.sequence < 3:
                if most < _MESSAGE:
                    self._askSize()
                break
            if not queuePair.canPost():
                break
            payload, n = buffer.take(most if most < longest else longest)
            header = machine.header(n, queuePair.posted)
            assert header is not None
            queuePair.postInline(header, payload, n)
        if self.corked and (self.extensions is None or not self.extensions.zeroCopySend.takes(0)):
            self.room = _MESSAGE - buffer.size

    def resume(self) -> None:
        """
        There is room in the medium, or there are credits: go on.
        """
        try:
            self._proceed()
        except SDPError as error:
            self.violated(error)
            return
        if self.machine.told - self.machine.received < _CREDITS_LOW:
            self._credit()  # What found the medium full would never be told.

    def _proceed(self) -> None:
        """
        Send what is owed and queued; when all has left, say so.
        """
        if self.owes is not None:
            self._payOwed()
        if self.extensions is not None and not self._proceedExtensions(self.extensions):
            return
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

    def _proceedExtensions(self, extensions: Extensions) -> bool:
        """
        Go on with all that is not just Data, behind what is gathered.

        @return: Whether nothing of it is left.
        """
        extensions.zeroCopyReceive.proceed()
        if self.buffer is not None:
            self.flush()
            if self.buffer.size:
                return False
        if extensions.zeroCopySend.proceed():
            return self.queuePair.path is not None
        if self.queuePair.path is not None:
            self.block()
        return False

    def discard(self) -> None:
        """
        Forget what the application wrote and has not left.
        """
        self.buffer = self.append = None
        self.room = -1
        self.direct = False
        if self.extensions is not None:
            self.extensions.discard()

    # -- control messages

    def _control(self, mid: int, body: bytes = b"", flags: int = 0) -> None:
        """
        Send a control message, now or when there are credits for it.
        """
        if self.owes is None and self.queuePair.canPost():
            message = self.machine.controlMessage(mid, self.queuePair.posted, body, flags)
            if message is not None:
                self.queuePair.postInline(message, b"", 0)
                return
        if self.owes is None:
            self.owes = deque()
        self.owes.append((mid, body, flags))
        if len(self.owes) > limits.SDP_RECEIVES:
            raise SDPError("the peer asks for answers and does not take them")

    def _payOwed(self) -> None:
        owes, queuePair = self.owes, self.queuePair
        while owes and queuePair.canPost():
            mid, body, flags = owes[0]
            message = self.machine.controlMessage(mid, queuePair.posted, body, flags)
            if message is None:
                return
            owes.popleft()
            queuePair.postInline(message, b"", 0)
        if not owes:
            self.owes = None

    def _credit(self) -> None:
        """
        Tell the peer of posted receives, if no data does and it should know.
        """
        queuePair, machine = self.queuePair, self.machine
        if queuePair.pending is not None or queuePair.path is None:
            return
        if machine.owesUpdate(queuePair.posted):
            header = machine.update(queuePair.posted)
            if header is not None:
                queuePair.postInline(header, b"", 0)

    def closeWrite(self) -> None:
        """
        Send a DisConn after everything queued.
        """
        self.ending = True
        self.direct = False
        self.cork()

    def sendDisconn(self) -> None:
        """
        Everything has left: say that no more comes.  It is said when the
        message is in the medium; before that the state does not change.
        """
        if self.machine.state not in (_ESTABLISHED, _CLOSE_WAIT):
            self.ending = False
            return
        queuePair = self.queuePair
        if queuePair.pending is not None:
            return
        if not self.saidEnd:
            if self.owes is not None:
                return
            message = self.machine.controlMessage(_DISCONN, queuePair.posted)
            if message is None:
                return
            self.saidEnd = True
            queuePair.postInline(message, b"", 0)
            if queuePair.pending is not None:
                return
        self.ending = False
        self._act(self.machine.feed(_DISCONN_SENT))

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

    # -- the batch

    def endOfBatch(self) -> None:
        """
        The turn is over: everything gathered leaves.
        """
        if self.buffer is not None:
            self._sync()
            self.room = -1
        self.corked = False
        try:
            self._batchEnded()
        except SDPError as error:
            self.violated(error)

    def _batchEnded(self) -> None:
        """
        Tell what came, and go on.

        @raise SDPError: The peer asks for too much.
        """
        if self.extensions is not None:
            self.extensions.tell()
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

    # -- the end

    def peerDisconnected(self, connection: Any) -> None:
        """
        The CM says that the peer disconnected (DREQ), or confirmed ours.

        @param connection: of the communication manager.
        """
        try:
            self._act(self.machine.feed(_DREQ))
        except SDPError as error:
            self.violated(error)

    def rejected(self, connection: Any, rejection: Any) -> None:
        """
        The CM says that the peer does not want the REP.

        @param connection: of the communication manager.
        @param rejection: what the peer said.
        """
        self.peerDisconnected(connection)

    def unreachable(self, connection: Any) -> None:
        """
        The CM says that the peer does not answer the REP.

        @param connection: of the communication manager.
        """
        self.peerDisconnected(connection)

    def _act(self, action: Action) -> None:
        if action is _NOTHING:
            return
        if action is _END_OF_STREAM:
            self._ended()
        elif action is _END_AND_DISCONNECT:
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
            self._streamEnded()
        else:
            if self.held is None:
                self.held = deque()
            self.held.append(END)

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
        self.discard()
        self.owes = None
        self.ending = False
        self.queuePair.close()
        if self.extensions is not None:
            self.extensions.close()
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

        @param error: what it did.
        """
        self.channel.device.count("sdp_protocol_errors")
        self.reset()
        self._broken(error)

    def failed(self, reason: Exception) -> None:
        """
        The queue pair is in error: see L{QueuePair.fail}.

        @param reason: what happened.
        """
        writes = self.buffer is not None or self.queuePair.pending is not None or self.writing()
        if isinstance(reason, PathLostError):
            self.machine.state = State.CLOSED
            self._closeQueuePair()
        else:
            self.reset()
        if self.held and (self.reading or (END in self.held and not writes)):
            # What was published is valid, the peer's DisConn above all.
            self._loseLater(reason)
        else:
            self._broken(reason)

    def budgetExceeded(self) -> None:
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
        if self.held and any(isinstance(what, Placed) and what.count for what in self.held):
            unread = True
        if self.extensions is not None and self.extensions.inUse():
            unread = True
        self._release()
        state = self.machine.state
        if self.queuePair.path is None:
            return
        if unread:
            self.reset()
        else:
            if state is _ESTABLISHED or state is _CLOSE_WAIT:
                self.closeWrite()
            self.channel.closing(self)

    def destroy(self) -> None:
        """
        The handshake failed: destroy the queue pair.
        """
        self.queuePair.close()
