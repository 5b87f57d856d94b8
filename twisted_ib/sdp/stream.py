"""
One SDP connection below Twisted's transport API: bytes sent, bytes received, and the end.

L{twisted_ib.sdp.transport} puts a Twisted transport on top of a L{Stream}.

Sending: as over TCP nothing leaves before the application's callback returns, so that an abort in the same
callback still stops it.  Where the reactor polls, the first write of a batch is sent when C{dataReceived}
returns, or else with those of all other streams when the batch ends or the next one begins; the rest
(elsewhere all of it) is gathered and sent at the end of the batch.

Receiving: bytes are delivered as they arrive, or held while the application does not read; then the receives
that carried data are not posted again, and the peer's credits run out.

Closing: C{closeWrite} queues the DisConn behind the data.  C{detach} ends the application's part; the stream
then continues by itself, as a closed socket does in a kernel, until the peer has answered or a timeout ends
it.  Both DisConns end the connection where the medium loses no message; elsewhere DREQ and DREP follow.
"""

from __future__ import annotations

from collections import deque
from threading import get_ident
from typing import TYPE_CHECKING, Any, ClassVar, Final

from twisted_ib import limits
from twisted_ib.compilation import mypyc_attr
from twisted_ib.errors import (
    PathLostError,
    PeerEndedError,
    PeerResetError,
    ResourceLimitError,
    SDPError,
    SDPWireError,
    StreamEndedError,
    UnheardError,
)
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.fabric.base.lastwords import NO_WORDS, UNKNOWN, UNREAD, LastWords
from twisted_ib.hca.queues.streamqueuepair import SEND, StreamQueuePair
from twisted_ib.internet.logcontext import upcalls
from twisted_ib.sdp.extensions import Extensions
from twisted_ib.sdp.handlers import HANDLERS, UNEXPECTED
from twisted_ib.sdp.pendingsends import SendBuffer
from twisted_ib.sdp.protocol.machine import (
    BODIES,
    M32,
    PLAIN,
    WINDOW,
    Action,
    Input,
    Machine,
    Other,
    State,
    unpackHeader,
)
from twisted_ib.sdp.protocol.wire import BSDH, BSDH_BYTES, MID
from twisted_ib.sdp.streamrdma import READ_DEPTH
from twisted_ib.sdp.zerocopyreceive import FilledBuffer

if TYPE_CHECKING:
    from twisted_ib.hca.device.progress import DeviceProgress
    from twisted_ib.internet.channel import DeviceChannel

#: The room below which a write takes the slow path.
GATHER_LEFT: Final = 16 * 1024
_CREDITS_LOW: Final = limits.SDP_CREDITS_LOW
_MESSAGE: Final = limits.INLINE_MESSAGE
#: C{prompt} on a reactor that does not poll: answered at once, the pieces of 4 MiB take twice the time there.
_UNPOLLED_PROMPT: Final = 16 * 1024
_RTS: Final = QPState.RTS
_pack: Final = BSDH.pack
# Module globals: an enumeration member as a dictionary key costs a Python call for its hash.
#: States in which stream data may be sent.
_ESTABLISHED: Final = State.ESTABLISHED
_CLOSE_WAIT: Final = State.CLOSE_WAIT
_DATA: Final = MID.DATA.value
_DISCONN: Final = MID.DISCONN.value
_DISCONN_SENT: Final = Input.DISCONN_SENT
#: Receives are posted again below this many.
SDP_RECEIVES_LOW: Final = 32
#: Receives of a connection while memory is short: data needs three credits (annex A4 CA4-82), and one message
#: without data must leave as many.
SDP_RECEIVES_LEAST: Final = 4
#: Receives that must remain for control messages when data has arrived (CA4-82).
SDP_CONTROL_RECEIVES: Final = 2
_RECEIVES: Final = limits.SDP_RECEIVES
_LOW: Final = SDP_RECEIVES_LOW
#: Marks the end of stream in L{Stream.held}.
END: Final = None
# Globals of this module are looked up faster than attributes of others.
_PLAIN: Final = PLAIN
_WINDOW: Final = WINDOW
_M32: Final = M32
_unpack: Final = unpackHeader
_DREQ: Final = Input.DREQ
_NOTHING: Final = Action.NOTHING
_END_OF_STREAM: Final = Action.END_OF_STREAM
_END_AND_DISCONNECT: Final = Action.END_AND_DISCONNECT
_AWAIT_DREQ: Final = Action.AWAIT_DREQ


@mypyc_attr(allow_interpreted_subclasses=True)
class Stream:
    """
    A byte stream over one queue pair.

    @ivar thread: The id of the thread that may use it; C{connection}: the CM's, or what stands for it.
    @ivar room: Bytes that may be gathered before a write takes the slow path; below zero every write does.
    @ivar written: The batch's first write while it is to be sent, else L{None}.
    @ivar corked: Whether this turn's C{endOfBatch} is still to come.
    @ivar pendingControl: Control messages waiting for credits: (id, body, flags); L{None} if there are none.
    @ivar extensions: Zero copy, modes and urgent data, or L{None} if unused.
    @ivar ahead: Bytes that a producer may write beyond C{bufferSize}, which is while it is resumed.
    @ivar longest: Payload of the longest message that the path carries well.
    @ivar maxPayload: Stream bytes that one message to the peer may carry, see L{limitPayload}.
    @ivar adverts: The peer's MaxAdverts.
    @ivar reads: READs that the peer serves at a time, once connected.
    @ivar prompt: The most bytes of a batch's first write that is sent as it is, in one message; a longer one
        may pause.
    @ivar direct: C{prompt} if at the end of a batch there was no producer, no close, no C{extensions} and
        nothing to be sent, so that such a write needs nothing there; else 0.
    @ivar batch: The batch of the last such write.
    @ivar delivering: Whether L{deliver} will send it.
    @ivar ending: Whether a DisConn is due and not in the medium yet.
    @ivar disconnSent: Whether the DisConn is numbered: nothing may follow it.
    @ivar reading: Whether the application reads.
    @ivar words: Where the rest of it is said if this process dies; C{slot}: its second cell's index there.
    @ivar bufferSize: As of L{SDPTransport<twisted_ib.sdp.transport.SDPTransport>}.
    @ivar keeps: Whether the application keeps bytes that it was given and its user has not read.
    @ivar held: Input that arrived while it did not: bytes, filled places, then perhaps the end of stream
        (L{None}) or the loss (an exception); L{None} if there is nothing.  C{heldBytes}: its bytes.
    @ivar attached: Whether there is an application.
    @cvar messageBytes: The largest payload that we receive in one message.

    See L{IConsumer<twisted_ib.hca.queues.consumers.IConsumer>} and
    L{IConnectionUser<twisted_ib.hca.connection.interfaces.IConnectionUser>}.
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
        "protocol",
        "queuePair",
        "reading",
        "room",
        "slot",
        "thread",
        "words",
        "written",
    )

    # Defaults of most connections; a transport has a dictionary for those that change.
    attached = True
    longest = _MESSAGE
    maxPayload = _MESSAGE
    adverts = limits.SDP_ADVERTS
    messageBytes: ClassVar = _MESSAGE
    reads = READ_DEPTH
    disconnSent = False
    keeps = False
    pendingControl: deque[tuple[int, bytes, int]] | None = None
    prompt = _MESSAGE
    bufferSize = limits.SEND_BUFFER
    heldBytes = 0
    ahead = 0

    def __init__(self, channel: DeviceChannel) -> None:
        self.channel = channel
        self.thread: int = channel.device.thread
        if not channel.polled:
            self.prompt = _UNPOLLED_PROMPT
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
        self.slot = self.direct = 0
        self.room = self.batch = -1
        self.corked = self.delivering = self.ending = self.reading = False
        self.extensions: Extensions | None = None
        self.held: deque[bytes | FilledBuffer | Exception | None] | None = None

    # -- implemented by the transport

    protocol: Any
    readsFirst: ClassVar = False

    # Types that mypy, whose modules mypyc orders, may need before it has read __init__.
    direct: int
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
        self.thread = 0

    def traffic(self) -> tuple[int, int, int, int]:
        """
        Return the counts for L{Traffic<twisted_ib.hca.device.counters.Traffic>}: each message is one record.
        """
        machine = self.machine
        return machine.sequence, machine.received, machine.sequence, machine.received

    # -- stream data

    # Not bytes: compiled, it would refuse what is like bytes before a subclass could take it.
    def write(self, data: Any, _ident: Any = get_ident) -> None:
        """
        Send C{data}: see C{ITransport.write} of Twisted.

        The first write of a batch is sent by L{deliver} or
        L{postWritten}, when the application's callback has returned.

        @raise TypeError: C{data} is not L{bytes}.
        @raise WrongThreadError: Called outside the reactor's thread.
        """
        if data.__class__ is bytes and data and _ident() == self.thread:
            length = len(data)
            if length <= self.direct:
                device: DeviceProgress = self.channel.device
                if self.batch != device.batch:
                    self.batch = device.batch
                    self.written = data
                    self.words.cells[self.slot] = self.machine.sequence + 1
                    if not self.delivering:
                        device.writers.append(self)
                        # As of markDirty(): a reactor that does not poll is to serve the device.
                        if device.wanted is not None:
                            device.wanted()
                    return
            room = self.room - length
            if room > GATHER_LEFT:
                self.room = room
                # Not a line of its own: that would be two bytecodes more, of 53.
                return self.append(data)
        self._writeSlowly(data)

    @staticmethod
    def postWritten(writers: list[Stream]) -> None:
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
            length = len(data)
            machine, queuePair = writer.machine, writer.queuePair
            sequence = machine.sequence + 1
            if (
                # IBTA vol. 1 annex A4 CA4-82: data needs three credits, as in Machine.header.
                machine.limit - sequence >= 2 and queuePair.pending is None and queuePair.state is _RTS
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
            if self.held and isinstance(self.held[-1], UnheardError):
                self.held[-1].unheard -= 1 if len(data) < self.bufferSize else 2
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
            self.direct = 0
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

    def limitPayload(self, count: int) -> None:
        """
        Let one message to the peer carry so many stream bytes at most.
        """
        self.maxPayload = count
        if self.prompt:
            self.prompt = count if self.channel.polled else min(count, _UNPOLLED_PROMPT)
        self.direct = min(self.direct, count)

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
        most = self.maxPayload
        longest = min(most, self.longest)
        for _ in range(limits.MESSAGES_PER_FLUSH):
            if not buffer.size:
                break
            # IBTA vol. 1 annex A4 CA4-82.  Stalled on credits with small messages, it is worth asking for
            # larger receives; OFED does so at the same moment.
            if machine.limit - machine.sequence < 3:
                if most < _MESSAGE:
                    self.openExtensions().askSize()
                break
            if queuePair.pending is not None and not queuePair.canPost():
                break
            payload, n = buffer.take(longest)
            header = machine.header(n, queuePair.posted)
            assert header is not None
            queuePair.postInline(header, payload, n)
        else:
            # The peer consumes them as fast as they are sent: other connections get a turn.
            if buffer.size:
                self.cork()
        if self.corked and (self.extensions is None or not self.extensions.zeroCopySend.takes(0)):
            self._makeRoom(buffer)

    def resume(self) -> None:
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
        self.room, self.direct = -1, 0
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
            queuePair = self.queuePair
            if queuePair.postControl(self.machine.controlMessage(mid, queuePair.posted, body, flags)):
                return
        if self.pendingControl is None:
            self.pendingControl = deque()
            self.direct = 0
        self.pendingControl.append((mid, body, flags))
        # Each receive yields one answer at most; more owed ones mean that the peer asks without granting
        # credits.
        if len(self.pendingControl) > limits.SDP_RECEIVES:
            raise SDPError("the peer asks for answers and does not take them")

    def _payOwed(self) -> None:
        pendingControl, queuePair = self.pendingControl, self.queuePair
        while pendingControl and queuePair.canPost():
            mid, body, flags = pendingControl[0]
            if not queuePair.postControl(self.machine.controlMessage(mid, queuePair.posted, body, flags)):
                return
            pendingControl.popleft()
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
                self.channel.device.updates += 1

    def closeWrite(self) -> None:
        """
        Send a DisConn after everything queued.
        """
        self.ending = True
        self.direct = 0
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

    def openExtensions(self) -> Extensions:
        """
        Return the extensions, made when first needed.
        """
        extensions = self.extensions
        if extensions is None:
            self.direct = 0
            extensions = self.extensions = Extensions(self)
            # The advertised memory, and how much of it was read, are not said there.
            self.words.cells[self.slot] = UNKNOWN
        return extensions

    # -- receiving (consumer of the queue pair)

    def received(self, buffer: Any, start: int, stop: int) -> None:
        """
        Process a message: see L{QueuePair.delivered}.

        The common case is handled here without further calls: stream bytes for an open connection without
        C{extensions}.  The checks are those of L{Machine.receive}, which handles all other messages and finds
        the error in those that fail here.

        @param buffer: The medium's own, for this call only.
        """
        machine = self.machine
        length = stop - start
        data: bytes | None
        if length > BSDH_BYTES and self.extensions is None and machine.state is _ESTABLISHED:
            kind: int
            bufs: int
            said: int
            sequence: int
            acknowledged: int
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
        if not data:
            if data is None or (self.queuePair.posted < _LOW and not self._replace(False)):
                return
        elif self.queuePair.posted < _LOW and not self._replace(True):
            return
        elif self.reading and self.held is None:
            Stream.deliver(self, data)
        else:
            self.hold(data)
        if machine.told - machine.received < _CREDITS_LOW:
            self._credit()
        # Nothing waits while the stream is direct, which is asked first as most messages find it so.
        if self.direct:
            return
        if self.corked:
            # The callback has returned, so a whole message may leave amid the batch: the peer copies it while
            # it is in the cache, and while the next one is taken here.
            if self.room >= 0 and self.buffer is not None and self.buffer.limit - self.room >= _MESSAGE:
                self.flush()
            return
        if self.buffer is not None or self.ending or self.pendingControl is not None:
            self.resume()

    def deliver(self, data: bytes) -> None:
        """
        Deliver data to the protocol; an exception of its ends the connection.
        """
        upcalls.current = self
        self.delivering = True
        try:
            self.protocol.dataReceived(data)
            # Inlines postWritten(), for the same reason.
            written = self.written
            if written is not None:
                self.written = None
                length = len(written)
                machine, queuePair = self.machine, self.queuePair
                sequence = machine.sequence + 1
                if machine.limit - sequence >= 2 and queuePair.pending is None and queuePair.state is _RTS:
                    machine.sequence = sequence
                    received, receives = machine.received, queuePair.posted
                    machine.told = received + receives
                    header = _pack(_DATA, 0, receives, length + 16, sequence & M32, received & M32)
                    if not queuePair.path.post(SEND | queuePair.remote, header, written, length):  # type: ignore[union-attr]
                        queuePair.keep(header, written, length)
                else:
                    self.send(written)
        except BaseException:
            self._raised()
        finally:
            self.delivering = False
            upcalls.current = None

    def _receive(self, buffer: Any, start: int, stop: int) -> bytes | None:
        machine = self.machine
        try:
            data = machine.receive(buffer, start, stop)
            if not isinstance(data, bytes):
                self._controlReceived(data, buffer, start, stop)
                return None
        except (SDPError, SDPWireError) as error:
            self.violated(error)
            return None
        return data

    def _replace(self, payload: bool) -> bool:
        queuePair = self.queuePair
        # IBTA vol. 1 annex A4 CA4-82: data leaves at least two credits.
        if payload and queuePair.posted < SDP_CONTROL_RECEIVES:
            self.violated(SDPError("data with fewer than three credits (CA4-82)"))
            return False
        if not self._isPaused():
            self._postReceives()
        # While the application does not read, receives that carried data are not posted again and others are,
        # so that control messages always get through and data does not.  OFED keeps two posted beyond
        # SO_RCVBUF (sdp_rx.c sdp_post_recvs_needed).
        elif not payload:
            queuePair.posted += 1
        return True

    def _isPaused(self) -> bool:
        return self.attached and (self.held is not None or not self.reading)

    def _postReceives(self) -> None:
        queuePair = self.queuePair
        if queuePair.path is None:
            return
        full = _RECEIVES
        # Every posted receive commits us to buffer a whole message.
        if self.channel.device.receiveBudget.heldBytes > limits.HELD_BYTES // 2:
            full = SDP_RECEIVES_LEAST
        if full > queuePair.posted:
            queuePair.posted = full

    def _controlReceived(self, other: Other, buffer: Any, start: int, stop: int) -> None:
        mid = other[0]
        carries = stop - start - BSDH_BYTES - BODIES.get(mid, stop) > 0
        if self.queuePair.posted < _LOW and not self._replace(carries):
            return
        isExtended, handler = HANDLERS.get(mid, UNEXPECTED)
        if isExtended:
            extensions = self.openExtensions()
            # Of the machine before, where this message is the first that needs them.
            extensions.machine.other = other
            extensions.take(handler, buffer, start, stop)
        else:
            handler(self, buffer, start, stop)
        if self.queuePair.path is None:
            return
        if self.machine.told - self.machine.received < _CREDITS_LOW:
            self._credit()
        if self.pendingControl is not None or self.ending or self.buffer is not None:
            self.resume()

    def hold(self, data: bytes | FilledBuffer) -> None:
        """
        Hold bytes that the application does not read yet.
        """
        if not self.attached:
            # Data after the application has closed is answered with a reset, as TCP does (RFC 9293 section
            # 3.6.1).
            self.reset()
            return
        self._later(data)
        self.sayUnread(True)
        if isinstance(data, bytes):
            # Held bytes of all connections have one budget: paused readers cannot exhaust memory.
            self.heldBytes += len(data)
            self.channel.device.hold(self, len(data))

    def _later(self, what: bytes | FilledBuffer | Exception | None, isFirst: bool = False) -> None:
        if self.held is None:
            self.held = deque()
        (self.held.appendleft if isFirst else self.held.append)(what)

    def holdAgain(self, data: bytes) -> None:
        """
        Hold delivered bytes that the application did not accept.
        """
        self._later(data, True)
        self.sayUnread(True)
        self.heldBytes += len(data)
        self.channel.device.hold(self, len(data))

    def read(self) -> None:
        """
        Deliver what was held, while the application reads.
        """
        held = self.held
        if held is None:
            return
        while held and self.reading and self.attached:
            data = held.popleft()
            if data is END:
                self._streamEnded()
                if not (held and self.held is held and self.attached):
                    self._release()
                    return
                if isinstance(held[0], PeerResetError):
                    continue  # As over TCP it is news for who reads on, or writes.
                data = held.popleft() or b""  # It is a loss.
            if isinstance(data, StreamEndedError):
                # It is news only for who sends.
                held.append(data)
                if data.unheard < 0 or self.writing():
                    self._proceedWithout()
                return
            if isinstance(data, Exception):
                self._broken(data)
                return
            extensions = self.extensions
            if isinstance(data, FilledBuffer):
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
            self.sayUnread(self.keeps)
        if self.reading and self.held is None and self.queuePair.posted < _LOW:
            self._postReceives()
            self._credit()

    def readAgain(self) -> None:
        """
        Resume reading; held bytes are delivered at the end of the batch.
        """
        self.reading = True
        if self.extensions is not None:
            self.cork()
        if self.held is None:
            # Even without held bytes, receives may be down to those of a paused reader.
            if self.queuePair.posted < _LOW:
                self._postReceives()
                self._credit()
        else:
            self.cork()

    def _streamEnded(self) -> None:
        if self.extensions is not None:
            self.extensions.zeroCopyReceive.returnPlaces()
            if not self.attached:
                # A callback has ended the connection.
                return
        self.endOfStream()

    def _release(self) -> None:
        self.held = None
        if self.heldBytes:
            self.sayUnread(False)
            self.channel.device.hold(self, -self.heldBytes)
            self.heldBytes = 0

    # -- the batch

    def endOfBatch(self) -> None:
        """
        Send everything gathered in the turn.
        """
        if self.buffer is not None or self.written is not None:
            self.block()
        self.corked = False
        try:
            self._batchEnded()
        except SDPError as error:
            self.violated(error)

    def _batchEnded(self) -> None:
        if self.extensions is not None:
            self.extensions.tell()
        if self.held is not None and self.reading:
            self.read()
            if self.queuePair.path is None:
                # A callback that wrote or closed has marked the stream dirty again.
                return
        if self.corked:
            return
        if self.queuePair.path is not None:
            self._proceed()
        elif self.attached:
            self._proceedWithout()

    def _proceedWithout(self) -> None:
        # The queue pair has ended, and the application, which does not read, has written or closed.  As with
        # TCP that fails after a reset, and has no effect after an orderly close.
        loss = self.held[-1] if self.held else None
        isHeard = not isinstance(loss, UnheardError) or loss.isHeard(self.writing())
        if isinstance(loss, Exception) and isHeard:
            self._broken(loss)
        else:
            # Or a close, with which the connection ends in order.
            self.drained()

    # -- the end

    def peerDisconnected(self, connection: Any) -> None:
        try:
            self.act(self.machine.feed(_DREQ))
        except SDPError as error:
            self.violated(error)

    def rejected(self, connection: Any, rejection: Any) -> None:
        self.peerDisconnected(connection)

    def unreachable(self, connection: Any) -> None:
        self.peerDisconnected(connection)

    def act(self, action: Action) -> None:
        """
        Carry out what the machine has left to do.
        """
        if action is _NOTHING:
            return
        if action is _END_OF_STREAM:
            self._ended()
        elif action is _END_AND_DISCONNECT:
            self._finish()
            self._ended()
        elif action is _AWAIT_DREQ:
            if self.channel.device.finish(self):
                self.act(self.machine.feed(_DREQ))
        elif action == Action.RESET:
            # Collected before the queue pair is closed, which drops what was to be sent.
            writes = self._unsent() or self.writing()
            # By AbortConn: the DREQ that follows finds no queue pair any more.
            self.channel.device.resume(self)
            self._closeQueuePair()
            self._resetByPeer(PeerResetError("the peer reset the connection"), writes)
        elif action == Action.FINISHED:
            self._closeQueuePair()
        else:
            if action == Action.ABORT_AND_DISCONNECT:
                self._abortMessage()
            self._disconnect()

    def _resetByPeer(self, reason: Exception, writes: bool) -> None:
        # As with TCP the application is notified behind what it has not read: when it reads again or writes,
        # and at once if it is writing.
        if self.attached and self._isPaused() and (self.reading or not writes):
            self._loseLater(reason)
        else:
            self._broken(reason)

    def _loseLater(self, reason: Exception) -> None:
        self._later(reason)
        if self.reading:
            self.cork()

    def _ended(self) -> None:
        # The end waits behind bytes that were not read.
        if not self.attached:
            return
        if self.held is None and self.reading:
            self._streamEnded()
        else:
            self._later(END)

    def _abortMessage(self) -> None:
        queuePair = self.queuePair
        # Best effort, since the DREQ alone has the same effect (IBTA vol. 1 annex A4.5.3.2).
        if queuePair.pending is None and queuePair.path is not None:
            queuePair.postControl(self.machine.controlMessage(MID.ABORT_CONN, queuePair.posted))

    def _finish(self) -> None:
        if self.channel.device.finish(self):
            self._closeQueuePair()
        else:
            self._disconnect()

    def _disconnect(self) -> None:
        connection = self.channel.device.resume(self)
        self._closeQueuePair()
        if connection is not None:
            self.channel.device.disconnect(connection)

    def _closeQueuePair(self) -> None:
        self.discard()
        if self.slot:
            # Inlines closeWords().
            self.words.free.append(self.slot)
            self.words.cells[self.slot - 1] = 0
            self.words, self.slot = NO_WORDS, 0
        if self.pendingControl is not None:
            self.pendingControl = None
        self.ending = False
        self.queuePair.close()
        if self.extensions is not None:
            self.extensions.close()
        self.channel.closed(self)

    def reset(self) -> None:
        """
        Abort the connection; the peer sees it as lost.
        """
        self.discard()
        self._release()
        self.act(self.machine.feed(Input.ABORT))
        self._closeQueuePair()

    def violated(self, error: Exception) -> None:
        """
        Abort the connection after a protocol violation by the peer, and count it.
        """
        self.channel.device.count("sdp_protocol_errors")
        self.reset()
        self._broken(error)

    def failed(self, reason: Exception) -> None:
        writes = self._unsent() or self.writing()
        # No DREQ: the path that would carry it is gone.
        if isinstance(reason, PathLostError):
            ended = isinstance(reason, PeerEndedError) and not writes and self._endedInOrder(reason)
            self.machine.state = State.CLOSED
            self._closeQueuePair()
            if ended:
                self._processEnded(str(reason))
                return
        else:
            self.reset()
        if self.held and (self.reading or (END in self.held and not writes)):
            # Messages received before the error are valid, the peer's DisConn above all.
            self._loseLater(reason)
        else:
            self._broken(reason)

    def _endedInOrder(self, reason: PeerEndedError) -> bool:
        # As the kernel has it for TCP: the end of a process that has read all is a FIN, else it is a reset.
        machine = self.machine
        # One that has said its end, has read all, and has closed its HCA, left no word where it has a place.
        unsaid = 0 if machine.state is _CLOSE_WAIT and self.slot else UNKNOWN
        needed = reason.needed.get(self.queuePair.number, unsaid)
        return self.extensions is None and needed <= machine.received and machine.state is not State.CLOSED

    def _processEnded(self, text: str) -> None:
        if self.held is None or END not in self.held:
            self._ended()
        if self.attached:
            # A write draws a reset now: as over TCP sockets hear of it at once, others as they send on.
            isSocket = getattr(self.channel.reactor, "isDriven", False)
            self._later(StreamEndedError(text, 0 if isSocket else 1))

    def budgetExceeded(self) -> None:
        """
        Abort: this connection holds the most when memory for held bytes is exhausted.
        """
        self.reset()
        self._broken(ResourceLimitError("too many bytes wait for a paused reader"))

    def _broken(self, reason: Exception) -> None:
        self._release()
        if self.attached:
            self.lost(reason)

    def detach(self) -> None:
        """
        End the application's part and finish with the peer alone.

        The bytes that were written are still sent.  With unread data the connection is reset, as TCP does it.
        """
        self.attached = False
        self.reading = False
        # IBTA vol. 1 annex A4: a close with unread data or an unread SrcAvail is abortive (OpenIB sdp_inet.c
        # sdp_inet_release), so that the peer does not take its data for read.
        unread = self.heldBytes > 0 or (self.extensions is not None and self.extensions.inUse())
        if self.held is not None:
            unread = unread or any(isinstance(what, FilledBuffer) and what.count for what in self.held)
            self._release()
        state = self.machine.state
        if self.queuePair.path is None:
            return
        if unread:
            self.reset()
        elif state is _ESTABLISHED or state is _CLOSE_WAIT:
            self.closeWrite()
        # Its DisConn may have been the last of both.
        if self.queuePair.path is not None:
            self.channel.closing(self)

    def destroy(self) -> None:
        """
        Destroy the queue pair of a failed handshake.
        """
        self.closeWords()
        self.queuePair.close()
