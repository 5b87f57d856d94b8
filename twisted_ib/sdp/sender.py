"""
The sending half of an SDP stream: gathered writes, credits, control messages.

Where the reactor polls, the first write of a turn leaves at once; the rest of
the turn (elsewhere all of it) is gathered and leaves at the end of the batch, or
when there is much of it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.errors import SDPError
from twisted_ib.hca.queues.queuepair import QueuePair
from twisted_ib.internet.transport import Computed
from twisted_ib.sdp.pendingsends import SendBuffer
from twisted_ib.sdp.protocol.machine import Action, Input, Machine, State
from twisted_ib.sdp.protocol.wire import MID

if TYPE_CHECKING:
    from twisted_ib.internet.channel import DeviceChannel
    from twisted_ib.sdp.extensions import Extensions

#: A turn's writes are flushed when less than this of a message is left.
GATHER_LEFT = 16 * 1024
#: READs that a REQ and a REP say to answer and to ask for at a time; OFED says 4, and gets them.
READ_DEPTH = 16
_CREDITS_LOW = limits.SDP_CREDITS_LOW
_DISCONN, _DISCONN_SENT = MID.DISCONN.value, Input.DISCONN_SENT
_MESSAGE = limits.INLINE_MESSAGE
#: States in which stream data may be sent; an enumeration's hash costs a Python call.
_ESTABLISHED, _CLOSE_WAIT = State.ESTABLISHED, State.CLOSE_WAIT


class Sender:
    """
    What one end of a connection sends.

    @ivar channel: The device in its reactor.
    @ivar thread: The thread that may use it.
    @ivar room: Bytes that may still be gathered in this turn; below zero every
        write takes the slow way.
    @ivar corked: Whether this turn's C{endOfBatch} is still to come.
    @ivar owes: Control messages that wait for credits: id, body and flags.
    @ivar exchange: What it has that uses more of SDP than Data, or L{None}.
    @ivar longest: Bytes of the longest message that its path carries well.
    @ivar reads: READs that the peer answers at a time, once connected.
    @ivar prompt: Whether the first write of a turn leaves at once.
    @ivar direct: Whether such a write has nothing to do with the end of its batch: nobody waits for that,
        neither a producer nor a close, and there is no C{extensions}.  Found out at the end of a batch in
        which nothing was left to do.
    @ivar batch: The batch in which something was written last.
    @ivar ending: Whether a DisConn is to be sent and is not in the medium yet.
    @ivar saidEnd: Whether it has its number: nothing may follow it.
    """

    __slots__ = (
        "__dict__",
        "append",
        "batch",
        "buffer",
        "channel",
        "corked",
        "direct",
        "ending",
        "extensions",
        "machine",
        "owes",
        "queuePair",
        "room",
        "thread",
    )

    # For most connections; a transport has a dictionary for what changes.
    longest = limits.INLINE_MESSAGE
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
        self.queuePair: QueuePair = channel.device.createQueuePair(self)
        self.queuePair.posted = limits.SDP_RECEIVES
        self.machine = Machine(limits.SDP_RECEIVES)
        self.buffer: SendBuffer | None = None
        self.append: Any = None
        self.room = self.batch = -1
        self.corked = self.direct = False
        self.ending = False
        self.owes: deque[tuple[int, bytes, int]] | None = None
        self.extensions: Extensions | None = None

    # -- what the stream and the transport implement

    bufferSize: int

    def _act(self, action: Action) -> None:
        raise NotImplementedError

    def violated(self, error: Exception) -> None:
        """
        The peer broke the protocol.
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

    def _askSize(self) -> None:
        """
        Bytes wait for credits, of which longer messages would need fewer.
        """
        raise NotImplementedError

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
