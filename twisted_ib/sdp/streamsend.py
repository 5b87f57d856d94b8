"""
The sending half of a stream: bytes, control messages, credit updates and the DisConn.

L{twisted_ib.sdp.stream} has the receiving half and the end, and says when what is sent.
"""

from __future__ import annotations

from collections import deque
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from twisted_ib import limits
from twisted_ib.compilation import mypyc_attr
from twisted_ib.errors import SDPError
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.fabric.base.lastwords import NO_WORDS, UNKNOWN, UNREAD, LastWords
from twisted_ib.hca.queues.queuepair import SEND, StreamQueuePair
from twisted_ib.sdp.pendingsends import SendBuffer
from twisted_ib.sdp.protocol.machine import M32, Action, Input, Machine, State
from twisted_ib.sdp.protocol.wire import BSDH, MID
from twisted_ib.sdp.streamrdma import READ_DEPTH

if TYPE_CHECKING:
    from twisted_ib.internet.channel import DeviceChannel
    from twisted_ib.sdp.extensions import Extensions
    from twisted_ib.sdp.zerocopyreceive import FilledBuffer

#: The room below which a write takes the slow path.
GATHER_LEFT: Final = 16 * 1024
_CREDITS_LOW: Final = limits.SDP_CREDITS_LOW
_MESSAGE: Final = limits.INLINE_MESSAGE
_RTS: Final = QPState.RTS
_pack: Final = BSDH.pack
# Module globals: an enumeration member as a dictionary key costs a Python call for its hash.
#: States in which stream data may be sent.
_ESTABLISHED: Final = State.ESTABLISHED
_CLOSE_WAIT: Final = State.CLOSE_WAIT
_DATA: Final = MID.DATA.value
_DISCONN: Final = MID.DISCONN.value
_DISCONN_SENT: Final = Input.DISCONN_SENT


@mypyc_attr(allow_interpreted_subclasses=True)
class StreamSender:
    """
    The state of a L{Stream<twisted_ib.sdp.stream.Stream>}, and the half of it that sends.

    @ivar thread: The id of the thread that may use it.
    @ivar connection: The CM's connection.
    @ivar room: Bytes that may be gathered before a write takes the slow path; below zero every write does.
    @ivar written: The first write of the batch, if it is still to be sent, or L{None}.
    @ivar corked: Whether this turn's C{endOfBatch} is still to come.
    @ivar pendingControl: Control messages waiting for credits: (id, body, flags); L{None} if there are none.
    @ivar extensions: Zero copy, modes and urgent data, or L{None} if unused.
    @ivar ahead: Bytes that a producer may write beyond C{bufferSize}, which is while it is resumed.
    @ivar longest: Payload of the longest message that the path carries well.
    @ivar reads: READs that the peer serves at a time, once connected.
    @ivar prompt: Whether the first write of a batch is sent without its buffer.
    @ivar direct: Whether such a write needs nothing at the end of its batch: there is no producer, no close,
        no C{extensions}, and nothing waits to be sent.  Determined at the end of a batch that left nothing to
        do.
    @ivar batch: The batch of the last such write.
    @ivar delivering: Whether L{Stream.deliver<twisted_ib.sdp.stream.Stream.deliver>} will send it.
    @ivar ending: Whether a DisConn is due and not in the medium yet.
    @ivar disconnSent: Whether the DisConn is numbered: nothing may follow it.
    @ivar reading: Whether the application reads.
    @ivar words: Where what is left of it is said if this process dies, and C{slot} the index there of the
        second cell.
    @ivar writtenLength: That of C{written}, for as long as there is one.
    @ivar bufferSize: As of L{SDPTransport<twisted_ib.sdp.transport.SDPTransport>}.
    @ivar held: Input that arrived while it did not: bytes, filled places, then perhaps the end of stream
        (L{None}) or the loss (an exception); L{None} if there is nothing.
    @ivar heldBytes: Bytes in C{held}.
    @ivar attached: Whether there is an application.
    @cvar messageBytes: The largest payload that we receive in one message.
    """

    __slots__ = (
        "__dict__",
        "append",
        "batch",
        "buffer",
        "channel",
        "connection",
        "corked",
        "delivering",
        "direct",
        "ending",
        "extensions",
        "held",
        "machine",
        "pendingControl",
        "protocol",
        "queuePair",
        "reading",
        "room",
        "slot",
        "thread",
        "words",
        "written",
        "writtenLength",
    )

    # Defaults of most connections; a transport has a dictionary for those that change.
    attached = True
    longest = _MESSAGE
    messageBytes = _MESSAGE
    reads = READ_DEPTH
    disconnSent = False
    prompt = True
    bufferSize = limits.SEND_BUFFER
    heldBytes = 0
    ahead = 0

    def __init__(self, channel: DeviceChannel) -> None:
        self.channel = channel
        self.thread: int = channel.device.thread
        if not channel.polled:
            self.prompt = False
        self.connection: Any = None
        self.queuePair: StreamQueuePair = channel.device.createStreamQueuePair(self)
        # Posted before the Hello or HelloAck that announces them: OFED treats one missing receive as fatal,
        # since it leaves rnr_retry 0 (sdp_cma.c sdp_cma_handler).
        self.queuePair.posted = limits.SDP_RECEIVES
        self.machine = Machine(limits.SDP_RECEIVES)
        self.buffer: SendBuffer | None = None
        self.append: Any = None
        self.written: bytes | None = None
        self.words: LastWords = NO_WORDS
        self.slot = self.writtenLength = 0
        self.room = self.batch = -1
        self.corked = self.delivering = self.direct = self.ending = self.reading = False
        self.pendingControl: deque[tuple[int, bytes, int]] | None = None
        self.extensions: Extensions | None = None
        self.held: deque[bytes | FilledBuffer | Exception | None] | None = None

    # -- implemented by the transport

    protocol: Any

    # Types that mypy, whose modules mypyc orders, may need before it has read __init__.
    direct: bool
    reading: bool

    def writing(self) -> bool:
        """
        Return whether the application waits to write more, or to close.
        """
        raise NotImplementedError

    def drained(self) -> None:
        """
        Handle an empty send buffer, with nothing pending in the medium.
        """
        raise NotImplementedError

    def filled(self) -> None:
        """
        Handle a send buffer of more than C{bufferSize} bytes.
        """
        raise NotImplementedError

    def _writeSlowly(self, data: Any) -> None:
        raise NotImplementedError

    def _raised(self) -> None:
        raise NotImplementedError

    def endOfStream(self) -> None:
        """
        Notify the application that the peer sends no more.
        """
        raise NotImplementedError

    def lost(self, reason: Exception) -> None:
        """
        Notify the application, at most once, that the connection broke.
        """
        raise NotImplementedError

    def leaving(self) -> bool:
        """
        Return whether the application has closed and reads no more.
        """
        raise NotImplementedError

    def checkCaller(self) -> None:
        """
        Check the calling thread.

        @raise WrongThreadError: This is not the reactor's thread.
        @raise DeviceClosedError: This is a forked child.
        """
        raise NotImplementedError

    def forked(self) -> None:
        """
        Disable the stream in a forked child, where no thread may use it.
        """
        self.thread = 0

    def traffic(self) -> tuple[int, int, int, int]:
        """
        Return the counts for L{Traffic<twisted_ib.hca.device.counters.Traffic>}: each message is one record.
        """
        machine = self.machine
        return machine.sequence, machine.received, machine.sequence, machine.received

    # -- implemented by the stream

    def openExtensions(self) -> Extensions:
        """
        Return the extensions, made when first needed.
        """
        raise NotImplementedError

    def act(self, action: Action) -> None:
        """
        Carry out what the machine has left to do.
        """
        raise NotImplementedError

    def violated(self, error: Exception) -> None:
        """
        Abort the connection after a protocol violation by the peer, and count it.
        """
        raise NotImplementedError

    # -- stream data

    # Not bytes: compiled, it would refuse what is like bytes before a subclass could take it.
    def write(self, data: Any, _ident: Any = get_ident) -> None:
        """
        Send C{data}: see C{ITransport.write} of Twisted.

        The first write of a batch is sent by L{Stream.deliver<twisted_ib.sdp.stream.Stream.deliver>} or
        L{postWritten}, when the application's callback has returned.

        @raise TypeError: C{data} is not L{bytes}.
        @raise WrongThreadError: Called outside the reactor's thread.
        """
        if data.__class__ is bytes and _ident() == self.thread:
            length = len(data)
            # A longer one is not sent as it is, and whoever is to be paused by it is told in this turn.
            if self.direct and length <= _MESSAGE and length:
                device = self.channel.device
                batch = device.batch
                if self.batch != batch:
                    self.batch = batch
                    self.written = data
                    self.writtenLength = length
                    self.words.cells[self.slot] = self.machine.sequence + 1
                    if not self.delivering:
                        device.writers.append(self)
                    return
            room = self.room - length
            if room > GATHER_LEFT and length:
                self.room = room
                self.append(data)
                return
        self._writeSlowly(data)

    @staticmethod
    def postWritten(writers: list[StreamSender]) -> None:
        """
        Send the first writes of a batch.

        This inlines L{Stream.flush}, L{Machine.header} and L{QueuePair.postInline}, whose calls would cost
        more than the work.
        """
        for writer in writers:
            data = writer.written
            # Sent by deliver(), gathered with later ones, or dropped.
            if data is None:
                continue
            writer.written = None
            length = writer.writtenLength
            machine, queuePair = writer.machine, writer.queuePair
            sequence = machine.sequence + 1
            if (
                # IBTA vol. 1 annex A4 CA4-82: data needs three credits, as in Machine.header.
                machine.limit - sequence >= 2
                and length <= machine.maxPayload
                and queuePair.pending is None
                and queuePair.state is _RTS
            ):
                machine.sequence = sequence
                received, receives = machine.received, queuePair.posted
                machine.told = received + receives
                header = _pack(_DATA, 0, receives, length + 16, sequence & M32, received & M32)
                if not queuePair.path.post(SEND | queuePair.remote, header, data, length):  # type: ignore[union-attr]
                    queuePair.keep(header, data, length)
                    writer.words.cells[writer.slot] = sequence
            else:
                writer.send(data)

    def send(self, data: bytes) -> None:
        """
        Queue C{data}, which is not empty: the slow path.
        """
        if self.queuePair.path is None:
            # The application, which does not read, was not notified of the end yet; the end of the batch does
            # it.
            self.cork()
            return
        state = self.machine.state
        if self.disconnSent or not (state is _ESTABLISHED or state is _CLOSE_WAIT):
            return
        self.cork()
        if self.extensions is not None and self.extensions.zeroCopySend.takes(len(data)):
            self.extensions.zeroCopySend.queueBytes(data)
            return
        buffer = self._gathering()
        buffer.append(data)
        if self.ahead:
            # Paused by the last write of this length that fits, a producer fills the messages in which all of
            # it is sent as soon as it returns.
            left = self.bufferSize + self.ahead - buffer.size - len(data)
            if left >= 0:
                self.room = left + GATHER_LEFT + 1
                buffer.limit = buffer.size + self.room
                return
        self._makeRoom(buffer)
        if buffer.size > self.bufferSize:
            self.filled()

    def _gathering(self) -> SendBuffer:
        buffer = self.buffer
        if buffer is None:
            buffer = self.buffer = SendBuffer()
            self.words.cells[self.slot] = UNKNOWN
            self.append = buffer.pieces.append
            self.direct = False
        elif self.room >= 0:
            # As in _sync().
            buffer.size = buffer.limit - self.room
        if self.written is not None:
            written, self.written = self.written, None
            buffer.append(written)
        return buffer

    def _makeRoom(self, buffer: SendBuffer) -> None:
        # The write that exceeds bufferSize takes the slow path, which pauses a producer, and none before it.
        left = self.bufferSize - buffer.size
        self.room = left + GATHER_LEFT + 1 if left >= 0 else _MESSAGE
        buffer.limit = buffer.size + self.room

    def block(self) -> None:
        """
        Let every write wait behind something other than bytes.
        """
        self._gathering()
        # Below zero every write takes the slow path; with a buffer, every received message calls resume.
        self.room = -1

    def cork(self) -> None:
        """
        Schedule C{endOfBatch}.
        """
        if not self.corked:
            self.corked = True
            self.channel.device.markDirty(self)

    def _sync(self) -> None:
        if self.buffer is not None and self.room >= 0:
            self.buffer.size = self.buffer.limit - self.room

    def flush(self) -> None:
        """
        Send what is queued, as far as credits and the medium allow.
        """
        buffer, queuePair, machine = self.buffer, self.queuePair, self.machine
        assert buffer is not None
        self._sync()
        if self.pendingControl is not None:
            self._payOwed()
            if self.pendingControl is not None:
                # An owed RdmaWrCompl belongs before these bytes in the stream.
                return
        most, longest = machine.maxPayload, self.longest
        left = limits.MESSAGES_PER_FLUSH
        while buffer.size:
            if not left:
                # The peer consumes them as fast as they are sent: other connections get a turn.
                self.cork()
                break
            left -= 1
            # IBTA vol. 1 annex A4 CA4-82.  Stalled on credits with small messages, it is worth asking for
            # larger receives; OFED does so at the same moment.
            if machine.limit - machine.sequence < 3:
                if most < _MESSAGE:
                    self.openExtensions().askSize()
                break
            if not queuePair.canPost():
                break
            payload, n = buffer.take(most if most < longest else longest)
            header = machine.header(n, queuePair.posted)
            assert header is not None
            queuePair.postInline(header, payload, n)
        if self.corked and (self.extensions is None or not self.extensions.zeroCopySend.takes(0)):
            self._makeRoom(buffer)

    def resume(self) -> None:
        """
        Continue after the medium got room or credits arrived.
        """
        try:
            self._proceed()
        except SDPError as error:
            self.violated(error)
            return
        if self.machine.told - self.machine.received < _CREDITS_LOW:
            # An update that found the medium full would otherwise never be sent.
            self._credit()

    def _proceed(self) -> None:
        if self.pendingControl is not None:
            self._payOwed()
        if self.extensions is not None and not self._proceedExtensions(self.extensions):
            return
        if self.buffer is not None:
            self.flush()
            if self.buffer.size or self.corked:
                # If corked, the end of the batch calls this again.
                return
            self.buffer = self.append = None
            if self.extensions is None:
                self.words.cells[self.slot] = self.machine.sequence
        if self.corked or self.queuePair.pending is not None:
            return
        # DisConn goes behind all data and all SrcAvails (OpenIB sdp_send.c sdp_send_ctrl_disconnect).
        if self.ending:
            self.sendDisconn()
        self.drained()

    def _proceedExtensions(self, extensions: Extensions) -> bool:
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

    def _unsent(self) -> bool:
        return not (self.buffer is None and self.written is None and self.queuePair.pending is None)

    def discard(self) -> None:
        """
        Drop what the application wrote and was not sent.
        """
        self.buffer = self.append = self.written = None
        self.room = -1
        self.direct = False
        if self.extensions is not None:
            self.extensions.discard()

    # -- last words

    def closeWords(self) -> None:
        """
        Say nothing more.
        """
        if self.slot:
            self.words.free.append(self.slot)
            self.words.cells[self.slot - 1] = 0
            self.words, self.slot = NO_WORDS, 0

    def sayUnread(self, isUnread: bool) -> None:
        """
        Say whether bytes have arrived that the application has not taken.
        """
        if self.words is not NO_WORDS:
            remote = self.queuePair.remote
            self.words.cells[self.slot - 1] = remote | UNREAD if isUnread else remote

    # -- control messages

    def sendControl(self, mid: int, body: bytes = b"", flags: int = 0) -> None:
        """
        Send a control message, now or when there are credits and room.

        @raise SDPError: The peer asks for answers and does not take them.
        """
        if self.pendingControl is None and self.queuePair.canPost():
            message = self.machine.controlMessage(mid, self.queuePair.posted, body, flags)
            if message is not None:
                self.queuePair.postInline(message, b"", 0)
                return
        if self.pendingControl is None:
            self.pendingControl = deque()
            self.direct = False
        self.pendingControl.append((mid, body, flags))
        # Each receive yields one answer at most; more owed ones mean that the peer asks without granting
        # credits.
        if len(self.pendingControl) > limits.SDP_RECEIVES:
            raise SDPError("the peer asks for answers and does not take them")

    def _payOwed(self) -> None:
        pendingControl, queuePair = self.pendingControl, self.queuePair
        while pendingControl and queuePair.canPost():
            mid, body, flags = pendingControl[0]
            message = self.machine.controlMessage(mid, queuePair.posted, body, flags)
            if message is None:
                return
            pendingControl.popleft()
            queuePair.postInline(message, b"", 0)
        if not pendingControl:
            self.pendingControl = None

    def _credit(self) -> None:
        queuePair, machine = self.queuePair, self.machine
        if queuePair.pending is not None or queuePair.path is None:
            return
        # IBTA vol. 1 annex A4: empty Data is the credit update; it is due only if no data carries the news.
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
        if self.corked or self._unsent() or self.extensions is not None:
            self.cork()
        else:
            # Nothing is to be sent before it, and no application can take the close back.
            self.sendDisconn()

    def sendDisconn(self) -> None:
        """
        Send the DisConn.  The state changes only when the message is in the medium.
        """
        if self.machine.state not in (_ESTABLISHED, _CLOSE_WAIT):
            self.ending = False
            return
        queuePair = self.queuePair
        if queuePair.pending is not None:
            return
        if not self.disconnSent:
            # Nothing of this direction may follow a DisConn, so what is owed goes first.
            if self.pendingControl is not None:
                return
            message = self.machine.controlMessage(_DISCONN, queuePair.posted)
            if message is None:
                return
            self.disconnSent = True
            queuePair.postInline(message, b"", 0)
            # Asked anew: for type checkers, and so when compiled, a local's attribute is as it was found.
            if self.queuePair.pending is not None:
                return
        self.ending = False
        self.act(self.machine.feed(_DISCONN_SENT))
