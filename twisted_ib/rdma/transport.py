"""
The Twisted transport for messages and RDMA: how it is written to, paced, opened and ended.

A L{RDMATransport} has a queue pair with work queues, whose consumer is its L{Inbox}, and acts as their
completion queue; L{Requests} are those that somebody waits for, and a L{Backlog} has what finds the send
queue full.  Nothing is reported from within the core: losses and free space are recorded and reported at the
end of the batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any

from twisted.internet import error, interfaces
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.errors import HCAError, MessageTooLongError, PathLostError, QueuePairError, ResourceLimitError
from twisted_ib.hca.queues.completion import WorkCompletion
from twisted_ib.hca.queues.requests import Capabilities
from twisted_ib.hca.services.work import WorkQueues
from twisted_ib.interfaces import IRDMATransport
from twisted_ib.internet.addressing.addresses import Address, End, immediateData
from twisted_ib.internet.region import RDMARegion, RDMAWindow
from twisted_ib.internet.transport import CONNECTION_DONE, FIELDS, Transport, misused
from twisted_ib.rdma import gathering
from twisted_ib.rdma.backlog import Backlog, Waiting
from twisted_ib.rdma.receiving import RECEIVES, Inbox
from twisted_ib.rdma.requests import Requests

if TYPE_CHECKING:
    from twisted_ib.hca.connection import Rejection
    from twisted_ib.hca.connection.interfaces import IConnection
    from twisted_ib.hca.queues.queuepair import QueuePair
    from twisted_ib.internet.addressing.addresses import Address
    from twisted_ib.internet.channel import DeviceChannel

#: Depth of the send queue; more requests wait behind it.
RDMA_SENDS = 128

_PLACES = Capabilities(RDMA_SENDS, 0, 1, 0, 0)
_EACH, _LONGEST = limits.RDMA_GATHERED_EACH, limits.RDMA_GATHERED_MESSAGE
_BEHIND = limits.RDMA_GATHERS_BEHIND
#: Private data of the DREQ that aborts a connection.  The CM has one disconnect for what are FIN and RST in
#: TCP; a librdmacm peer sends none, and so always closes in order.
ABORTED = b"aborted"


class PeerClosed(HCAError):
    """
    The peer closed the connection in order.
    """


@implementer(IRDMATransport, interfaces.IConsumer, interfaces.IPushProducer, interfaces.IReadWriteDescriptor)
class RDMATransport(Transport):
    """
    A message connection as a Twisted transport.

    All methods belong to the reactor's thread.

    @ivar thread: The id of the thread that may use it.
    @ivar maxMessageSize: The longest message each way, in bytes.
    @ivar work: The work queues.
    @ivar corked: Whether this turn's C{endOfBatch} is still to come.
    @ivar stuck: Whether the medium or the peer does not accept more for now.
    @ivar gathered: Messages that are to go in one SEND, behind the number of bytes that still fit; L{None} if
        there are none.
    @ivar onTheWay: SENDs that others wait for, to go together; empty if the peer takes one message in a SEND.
    @ivar waiting: Requests and messages behind a full send queue; L{None} if there are none.
    @ivar requests: Those that somebody waits for; L{None} before the first one and after the end.
    @ivar completions: Completions of those, until the end of the batch.
    @ivar inbox: The way of messages to the protocol.
    @ivar privateData: Private data of our REQ or REP; C{peerPrivateData} of the peer's.
    @ivar connection: The CM's connection.
    @ivar reading: Whether the application reads; C{attached}: whether there is one.
    @ivar held: Messages that arrived while it did not read: (immediate or L{None}, message or bytes written);
        L{None} if there is nothing.
    @ivar loss: Why the connection ended, until the application is notified.
    @ivar immediate: The immediate data of the message being delivered, or L{None}.

    See L{IConnectionUser<twisted_ib.hca.connection.interfaces.IConnectionUser>}.
    """

    __slots__ = (
        *FIELDS,
        "attached",
        "channel",
        "completions",
        "connection",
        "corked",
        "gathered",
        "held",
        "immediate",
        "inbox",
        "loss",
        "maxMessageSize",
        "onTheWay",
        "peerPrivateData",
        "privateData",
        "protocol",
        "queuePair",
        "reading",
        "requests",
        "stuck",
        "thread",
        "waiting",
        "work",
    )

    provider = "rdma"
    bufferSize = limits.SEND_BUFFER
    #: The end comes behind messages that an adapter has taken while the application did not read.
    readsFirst = True

    #: The port or connector, with C{maxMessageSize} and C{privateData}.
    owner: Any

    def __init__(self, channel: DeviceChannel, local: Address | End, peer: Address) -> None:
        """
        Create the queue pair.

        @raise ResourceLimitError: There are too many.
        """
        device, owner = channel.device, self.owner
        self.channel = channel
        self.thread = device.thread
        self.maxMessageSize: int = owner.maxMessageSize
        self.corked = self.stuck = False
        self.requests: Requests | None = None
        self.waiting: Backlog | None = None
        self.gathered: list[Any] | None = None
        self.onTheWay: Sequence[Any] = ()
        # A deque is 760 bytes, which a connection that only writes never needs.
        self.completions: deque[WorkCompletion] | tuple[()] = ()
        self.inbox = Inbox(self)
        queuePair: QueuePair = device.createQueuePair(self.inbox)
        self.queuePair: QueuePair = queuePair
        queuePair.maxMessage = self.maxMessageSize
        try:
            # That of an adapter's queue pair cannot change.
            pd = device.memory.empty if device.adapter is None else device.memory.allocateDomain()
        except HCAError:
            queuePair.close()
            raise
        queue: Any = self
        self.work = WorkQueues(queuePair, pd, queue, queue, device.timers, _PLACES)
        self.privateData: bytes = owner.privateData
        self.peerPrivateData = b""
        self.connection: IConnection | None = None
        self.reading, self.attached = False, True
        self.held: deque[tuple[int | None, bytes | int]] | None = None
        self.loss: Exception | None = None
        # Messages that arrive before there is a protocol are held for it: data may follow the REP at once
        # (IBTA vol. 1 12.9.8).
        queuePair.posted = RECEIVES
        self._begin(local, peer)
        self.immediate: int | None = None

    def cork(self) -> None:
        """
        Schedule C{endOfBatch}.
        """
        if not self.corked:
            self.corked = True
            self.channel.device.markDirty(self)

    # -- ITransport

    def write(self, data: bytes, _ident: Callable[[], int] = get_ident) -> None:
        """
        Send one message: see L{IRDMATransport}.

        @raise TypeError: C{data} is not L{bytes}.
        @raise MessageTooLongError: C{data} is too long; nothing was sent.
        @raise WrongThreadError: Called outside the reactor's thread.
        """
        if not isinstance(data, bytes):
            raise TypeError("Data must be bytes")
        if _ident() != self.thread:
            raise misused(self.channel.device)
        length = len(data)
        gathered = self.gathered
        if gathered is not None and length <= gathered[0] and length <= _LONGEST:
            gathered[0] -= length + _EACH
            gathered.append(data)
            return
        if length > self.maxMessageSize:
            self.checkLength(length)
        # As in twisted.internet.abstract.FileDescriptor, a write after the end is dropped without an error.
        if self.connected and not self._aborting:
            if len(self.onTheWay) >= _BEHIND and length <= _LONGEST:
                gathering.begin(self, data, length)
            else:
                self.post(data, length)
            if self.producer is not None:
                self._pace(length)

    def writeSequence(self, data: Iterable[bytes]) -> None:
        """
        Send one message made of pieces.

        @raise TypeError: One of them is not L{bytes}; then nothing is sent.
        @raise MessageTooLongError: They are too long together; nothing was sent.
        """
        pieces = list(data)
        for piece in pieces:
            if not isinstance(piece, bytes):
                raise TypeError("Data must be bytes")
        self.checkCaller()
        length = sum(map(len, pieces))
        self.checkLength(length)
        if pieces and self.connected and not self._aborting:
            self.post(pieces[0] if len(pieces) == 1 else pieces, length)
            if self.producer is not None:
                self._pace(length)

    def _pace(self, length: int) -> None:
        # As by TCP's buffer a producer is paused by a large message; it is due for more behind the batch.
        if length > self.bufferSize:
            self.filled()
        if self.producerPaused or not self.streamingProducer:
            self.cork()

    def registerProducer(self, producer: interfaces.IProducer, streaming: bool) -> None:
        # A pull producer is asked again when what was written has been sent.
        super().registerProducer(producer, streaming)
        if self.connected:
            self.cork()

    def checkLength(self, length: int) -> None:
        """
        Check the bytes of one message.

        @raise MessageTooLongError: They are too many.
        """
        if length > self.maxMessageSize:
            raise MessageTooLongError(f"a message has at most {self.maxMessageSize} bytes, not {length}")

    # -- IRDMATransport

    def _asking(self) -> Requests:
        """
        Return the requests, made with the first; after the end for this one alone.

        @raise WrongThreadError: Called outside the reactor's thread.
        """
        if get_ident() != self.thread:
            raise misused(self.channel.device)
        requests = self.requests
        if requests is None:
            requests = Requests(self)
            # Both refer to each other until the queue pair is closed.
            if not self.hasEnded:
                self.requests = requests
        return requests

    def send(self, data: Any, immediate: int | None = None) -> Deferred[None]:
        return self._asking().send(data, immediate)

    def sendRegistered(
        self, region: RDMARegion, offset: int = 0, length: int | None = None
    ) -> Deferred[None]:
        return self._asking().sendRegistered(region, offset, length)

    def rdmaRead(
        self,
        length: int,
        remoteAddress: int,
        remoteKey: int,
        region: RDMARegion | None = None,
        offset: int = 0,
    ) -> Deferred[Any]:
        return self._asking().read(length, remoteAddress, remoteKey, region, offset)

    def rdmaWrite(
        self, data: Any, remoteAddress: int, remoteKey: int, offset: int = 0, length: int | None = None
    ) -> Deferred[None]:
        return self._asking().write(data, remoteAddress, remoteKey, None, offset, length)

    def rdmaWriteWithImmediate(
        self,
        data: Any,
        remoteAddress: int,
        remoteKey: int,
        immediate: int,
        offset: int = 0,
        length: int | None = None,
    ) -> Deferred[None]:
        number = immediateData(immediate)
        return self._asking().write(data, remoteAddress, remoteKey, number, offset, length)

    def compareAndSwap(self, remoteAddress: int, remoteKey: int, compare: int, swap: int) -> Deferred[int]:
        return self._asking().compareAndSwap(remoteAddress, remoteKey, compare, swap)

    def fetchAdd(self, remoteAddress: int, remoteKey: int, add: int) -> Deferred[int]:
        return self._asking().fetchAdd(remoteAddress, remoteKey, add)

    def registerMemory(self, sizeOrBuffer: Any, access: int | None = None) -> RDMARegion:
        return self._asking().register(sizeOrBuffer, access)

    def grant(
        self, region: RDMARegion, access: int, offset: int = 0, length: int | None = None
    ) -> RDMAWindow:
        return self._asking().grant(region, access, offset, length)

    # -- for ib-ss

    def unsent(self) -> int:
        waiting = 0 if self.waiting is None else self.waiting.unsent()
        return super().unsent() + waiting + sum(map(len, (self.gathered or ())[1:]))

    # -- from the parts, and the application's calls

    @property
    def hasEnded(self) -> bool:
        """
        Whether the queue pair carries nothing more, as it has failed or is closed; the application may not
        have been told yet.
        """
        return self.queuePair.path is None

    def usable(self) -> bool:
        """
        Return whether the application may still post requests.
        """
        # As hasEnded, without its call for each request.
        return bool(self.connected) and not self._aborting and self.queuePair.path is not None

    def discarding(self) -> bool:
        """
        Return whether the application has closed and accepts no more messages.
        """
        return bool(self.disconnecting or self._aborting)

    def lost(self, reason: Exception) -> None:
        if self.connected and not self._aborting:
            done = isinstance(reason, PeerClosed)
            self.connectionLost(CONNECTION_DONE if done else Failure(error.ConnectionLost(str(reason))))

    def drained(self) -> None:
        """
        Resume the producer, or close: everything was sent and acknowledged.
        """
        if not self.connected or self._aborting:
            return
        producer: Any = self.producer
        if producer is not None and (not self.streamingProducer or self.producerPaused):
            if self.work.refused() and not self.work.idle():
                # It is in the medium, but the peer answers RNR: it does not read.
                return
            self.producerPaused = False
            self._tell(producer.resumeProducing)
        # A close waits for the peer's acknowledgements: a DREQ may overtake messages (Linux cm.c: it travels
        # on QP1).
        elif self.disconnecting and self.work.idle():
            self.connectionLost(CONNECTION_DONE)

    def stopReading(self) -> None:
        self.reading = False
        # While closing, receives stay posted: the peer's pending messages would otherwise block its own
        # close.
        self.queuePair.posted = RECEIVES if self.disconnecting else 0

    # -- sending

    def post(
        self,
        payload: Any,
        length: int,
        immediate: int | None = None,
        number: int | None = None,
        several: bool = False,
    ) -> None:
        """
        Post a message, or let it wait.

        @param payload: Bytes, or a list of them.
        @param length: Their number.
        @param number: That of L{Requests}, if a Deferred waits for the completion.
        @param several: Whether they are several messages, see L{twisted_ib.rdma.gathering}.
        """
        if self.gathered is not None:
            gathering.post(self)
        # Never past a waiting request: a queue pair executes requests in posting order (IBTA vol. 1 9.5).
        if self.waiting is None:
            try:
                if not self.work.postInline(payload, length, immediate, number, several):
                    self.stuck = True
                    self.filled()
                return
            # The send queue is full; the message waits.
            except ResourceLimitError:
                pass
            except QueuePairError:
                if number is None or self.requests is None:
                    self.cork()
                else:
                    self.requests.unposted(number)
                return
        self.wait(Waiting(None, payload, length, immediate, number, several))

    def wait(self, entry: Waiting) -> None:
        """
        Let a request or message wait.
        """
        if self.waiting is None:
            self.waiting = Backlog()
        self.waiting.entries.append(entry)
        self.filled()

    def discard(self) -> None:
        """
        Drop what waits; its Deferreds fail with all others at the end.
        """
        self.waiting = self.gathered = None

    # -- completions (where the work queues complete: only requests have some)

    def push(self, completion: WorkCompletion, solicited: bool = False) -> bool:
        """
        Store a completion, which is reported at the end of the batch.
        """
        # A callback may post or close, which must not happen inside the core's delivery.
        if not isinstance(self.completions, deque):
            self.completions = deque()
        self.completions.append(completion)
        self.cork()
        return True

    # -- the batch

    def endOfBatch(self) -> None:
        """
        Report what happened in the turn, and send what waits.
        """
        self.corked = False
        # Completions first: a Deferred fires before the messages that followed its completion.
        if self.completions and self.requests is not None:
            self.requests.tell()
        if self.held is not None:
            self.read()
        if self.loss is not None:
            self._over()
        elif not self.corked and not self.hasEnded:
            if self.gathered is not None:
                gathering.post(self)
            if self.waiting is not None:
                self.waiting.flush(self)
            if self.waiting is None and not self.stuck:
                self.drained()

    # -- receiving

    def read(self) -> None:
        """
        Deliver what was held, while the application reads.
        """
        self.inbox.read(self)

    def readAgain(self) -> None:
        """
        Resume reading; held messages are delivered at the end of the batch.
        """
        self.reading = True
        if self.held is None:
            self.queuePair.posted = RECEIVES
        if self.held is not None or self.loss is not None:
            self.cork()

    def budgetExceeded(self) -> None:
        """
        Abort: this connection holds the most when memory for held messages is exhausted.
        """
        self.broken(ResourceLimitError("too many bytes wait for a protocol that does not read"))

    # -- the end

    def peerDisconnected(self, connection: IConnection) -> None:
        # The answer to our own DREQ tells nothing new.
        if connection is not self.connection:
            return
        # DREQ private data has a fixed size and is padded with zeros (Linux ib_cm.h
        # IB_CM_DREQ_PRIVATE_DATA_SIZE), hence a comparison of the beginning.
        if connection.disconnectData.startswith(ABORTED):
            self.broken(PathLostError("the peer aborted the connection"), False)
        else:
            self.broken(PeerClosed("the peer closed the connection"), False)

    def rejected(self, connection: IConnection, rejection: Rejection) -> None:
        self.broken(PathLostError("the peer did not want the connection after all"), False)

    def unreachable(self, connection: IConnection) -> None:
        self.broken(PathLostError("the peer did not answer"), False)

    def broken(self, reason: Exception, disconnect: bool = True) -> None:
        """
        End the connection with this batch.

        @param disconnect: Whether the CM connection is still to be ended.
        """
        if self.loss is None:
            self.loss = reason
        # The CM connection has ended: there is nothing to disconnect.
        if not disconnect:
            self.connection = None
        self.cork()

    def _over(self) -> None:
        # As with a stream, the application is notified behind what was held: of an orderly end when it reads
        # or closes, of a loss at once.
        loss = self.loss
        assert loss is not None
        self._end()
        if not self.attached:
            return
        if self.held and self.reading:
            # The application has paused again; the rest follows when it reads.
            return
        if isinstance(loss, PeerClosed) and not self.reading and not self.discarding():
            return
        self.inbox.drop(self)
        self.lost(loss)

    def _end(self, disconnectData: bytes = ABORTED) -> None:
        connection, self.connection = self.connection, None
        queuePair = self.queuePair
        if queuePair.device is not None:
            # First the queue pair: while it exists the peer's requests may still touch the memory.
            queuePair.close()
            self.waiting = None
            if self.requests is not None:
                self.requests.close()
                self.requests = None
            pd = self.work.pd
            if pd is not pd.memory.empty:
                pd.memory.deallocateDomain(pd)
            self.work.forget()
            self.inbox.forget()
        if connection is not None:
            self.channel.device.disconnect(connection, disconnectData, False)

    def reset(self) -> None:
        """
        Abort the connection; the peer sees it as lost.
        """
        self.inbox.drop(self)
        self._end()

    def detach(self) -> None:
        """
        Close the connection in order, unless it has ended; the application's part is over.
        """
        self.attached = False
        self.reading = False
        self.inbox.drop(self)
        # No private data: an orderly end, as rdma_disconnect in librdmacm sends it.
        self._end(b"")

    def destroy(self) -> None:
        """
        Destroy the queue pair of a failed handshake.
        """
        self.connection = None
        self._end()
