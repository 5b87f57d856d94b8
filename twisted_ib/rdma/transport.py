"""
The Twisted transport for messages and RDMA: messages and requests sent, messages received, and the end.

A L{RDMATransport} has a queue pair with work queues, is its consumer, and acts as their completion queue.
Requests that find the send queue full wait here, in order.  Nothing is reported from within the core: losses
and free space are recorded and reported at the end of the batch.
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
from twisted_ib.errors import (
    HCAError,
    MemoryAccessError,
    MemoryRegionError,
    MessageTooLongError,
    PathLostError,
    QueuePairError,
    ResourceLimitError,
    WireError,
)
from twisted_ib.hca.base.traits import Completion
from twisted_ib.hca.memory.memory import LOCAL_WRITE, ProtectionDomain
from twisted_ib.hca.queues.completion import WCOpcode, WCStatus, WorkCompletion
from twisted_ib.hca.queues.requests import ATOMIC_BYTES, SGE, Capabilities, SendOpcode, SendRequest
from twisted_ib.hca.services.work import WorkQueues
from twisted_ib.interfaces import IRDMAProtocol, IRDMATransport
from twisted_ib.internet.addressing.addresses import Address, End, checkInteger, immediateData, toBytes
from twisted_ib.internet.logcontext import upcalls
from twisted_ib.internet.region import RDMARegion, RDMAWindow, Regions
from twisted_ib.internet.transport import CONNECTION_DONE, FIELDS, Transport, misused
from twisted_ib.rdma import gathering
from twisted_ib.rdma.pendingrequests import PendingRequest, content, count, integer, nothing

if TYPE_CHECKING:
    from twisted_ib.hca.connection import Rejection
    from twisted_ib.hca.connection.interfaces import IConnection
    from twisted_ib.hca.queues.queuepair import QueuePair
    from twisted_ib.internet.channel import DeviceChannel

#: Depth of the send queue; more requests wait behind it.
RDMA_SENDS = 128
#: Waiting requests that are posted in one turn, before other connections get theirs.
RDMA_SENDS_PER_FLUSH = 64

_64_BITS = 1 << 64
_PLACES = Capabilities(RDMA_SENDS, 0, 1, 0, 0)
# Receives are a count here, not buffers.  While the protocol reads there are always some; while it does not
# there are none, and the peer gets an RNR NAK and retries (IBTA vol. 1 9.7.5.2.8).
_RECEIVES = limits.RDMA_RECEIVES
_EACH, _LONGEST = limits.RDMA_GATHERED_EACH, limits.RDMA_GATHERED_MESSAGE
_BEHIND = limits.RDMA_GATHERS_BEHIND
#: Private data of the DREQ that aborts a connection.  The CM has one disconnect for what are FIN and RST in
#: TCP; a librdmacm peer sends none, and so always closes in order.
ABORTED = b"aborted"

_Waiting = tuple[SendRequest | None, Any, int, int | None, int | None, bool]


class PeerClosed(HCAError):
    """
    The peer closed the connection in order.
    """


@implementer(
    IRDMATransport,
    interfaces.IConsumer,
    interfaces.IPushProducer,
    interfaces.IReadWriteDescriptor,
)
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
    @ivar asked: Pending requests by number.
    @ivar sent: Where completions tell only that requests were sent: those not known to have arrived.
    @ivar waiting: Requests behind a full send queue: (request or L{None}, message bytes, their number,
        immediate, number in C{asked} or L{None}, whether they are several messages); L{None} if there are
        none.
    @ivar privateData: Private data of our REQ or REP; C{peerPrivateData} of the peer's.
    @ivar connection: The CM's connection.
    @ivar reading: Whether the application reads.
    @ivar attached: Whether there is an application.
    @ivar held: Messages that arrived while it did not read: (immediate or L{None}, message or bytes written);
        L{None} if there is nothing.
    @ivar heldBytes: Bytes of the messages in C{held}.
    @ivar loss: Why the connection ended, until the application is notified.
    @ivar immediate: The immediate data of the message being delivered, or L{None}.
    """

    __slots__ = (
        *FIELDS,
        "_confirming",
        "_known",
        "_numbers",
        "_regions",
        "_takesMessages",
        "asked",
        "attached",
        "channel",
        "completions",
        "connection",
        "corked",
        "gathered",
        "held",
        "heldBytes",
        "immediate",
        "loss",
        "maxMessageSize",
        "onTheWay",
        "peerPrivateData",
        "privateData",
        "protocol",
        "queuePair",
        "reading",
        "sent",
        "stuck",
        "thread",
        "waiting",
        "work",
    )

    provider = "rdma"
    bufferSize = limits.SEND_BUFFER

    #: The port or connector, with C{maxMessageSize} and C{privateData}.
    owner: Any

    def __init__(
        self,
        channel: DeviceChannel,
        local: Address | End,
        peer: Address,
    ) -> None:
        """
        Create the queue pair.

        @raise ResourceLimitError: There are too many.
        """
        device, owner = channel.device, self.owner
        self.channel = channel
        self.thread = device.thread
        self.maxMessageSize: int = owner.maxMessageSize
        self.corked = self.stuck = False
        self.asked: dict[int, PendingRequest] = {}
        self.sent: dict[int, WorkCompletion] | None = None
        self._confirming = self._numbers = 0
        self.waiting: deque[_Waiting] | None = None
        self.gathered: list[Any] | None = None
        self.onTheWay: Sequence[Any] = ()
        # A deque is 760 bytes, which a connection that only writes never needs.
        self.completions: deque[WorkCompletion] | tuple[()] = ()
        self.queuePair: QueuePair = device.createQueuePair(self)
        self.queuePair.maxMessage = self.maxMessageSize
        try:
            # That of an adapter's queue pair cannot change.
            pd = device.memory.empty if device.adapter is None else device.memory.allocateDomain()
        except HCAError:
            self.queuePair.close()
            raise
        self._regions: Regions | None = None
        queue: Any = self
        self.work = WorkQueues(self.queuePair, pd, queue, queue, device.timers, _PLACES)
        self.privateData: bytes = owner.privateData
        self.peerPrivateData = b""
        self.connection: IConnection | None = None
        self.reading, self.attached = False, True
        self.held: deque[tuple[int | None, bytes | int]] | None = None
        self.heldBytes = 0
        self.loss: Exception | None = None
        # Messages that arrive before there is a protocol are held for it: data may follow the REP at once
        # (IBTA vol. 1 12.9.8).
        self.queuePair.posted = _RECEIVES
        self._begin(local, peer)
        self.immediate: int | None = None
        self._known: interfaces.IProtocol | None = None
        self._takesMessages = False

    def checkCaller(self) -> None:
        """
        Check the calling thread.

        @raise WrongThreadError: This is not the reactor's thread.
        @raise DeviceClosedError: This is a forked child.
        """
        if get_ident() != self.thread:
            raise misused(self.channel.device)

    def forked(self) -> None:
        """
        Disable the connection in a forked child, where no thread may use it.
        """
        self.thread = 0

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
            self._checkLength(length)
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
        self._checkLength(length)
        if pieces and self.connected and not self._aborting:
            self.post(pieces[0] if len(pieces) == 1 else pieces, length)
            if self.producer is not None:
                self._pace(length)

    def _pace(self, length: int) -> None:
        # As by TCP's buffer a producer is paused by a large message; it is due for more behind the batch.
        if length > self.bufferSize:
            self.filled()
        self.cork()

    def registerProducer(self, producer: interfaces.IProducer, streaming: bool) -> None:
        """
        See L{interfaces.IConsumer}.  A pull producer is asked again when what was written has been sent.
        """
        super().registerProducer(producer, streaming)
        if self.connected:
            self.cork()

    def _checkLength(self, length: int) -> None:
        if length > self.maxMessageSize:
            raise MessageTooLongError(f"a message has at most {self.maxMessageSize} bytes, not {length}")

    # -- IRDMATransport

    def send(self, data: Any, immediate: int | None = None) -> Deferred[None]:
        """
        See L{IRDMATransport.send}.

        @param data: Bytes-like; mutable data is copied.
        """
        self.checkCaller()
        payload = toBytes(data)
        self._checkLength(len(payload))
        if immediate is not None:
            immediate = immediateData(immediate)
        return self.askSend(PendingRequest(WCOpcode.SEND), payload, immediate)

    def sendRegistered(
        self, region: RDMARegion, offset: int = 0, length: int | None = None
    ) -> Deferred[None]:
        self.checkCaller()
        pieces = self.pieces(region, offset, length)
        self._checkLength(sum([piece.length for piece in pieces]))
        return self.ask(PendingRequest(WCOpcode.SEND), opcode=SendOpcode.SEND, pieces=pieces)

    def rdmaRead(
        self,
        length: int,
        remoteAddress: int,
        remoteKey: int,
        region: RDMARegion | None = None,
        offset: int = 0,
    ) -> Deferred[Any]:
        self.checkCaller()
        length = checkInteger("length", length)
        # IBTA vol. 1 9.7.7: a message has at most 2^31 bytes.
        if not 0 <= length <= limits.MESSAGE_BYTES:
            raise ValueError(f"a READ has 0 to {limits.MESSAGE_BYTES} bytes, not {length}")
        if region is None:
            # Memory of its own for each request: the HCA may still write to it after a cancel.
            asked = PendingRequest(WCOpcode.RDMA_READ, content, bytearray(length))
            pieces = self.scratch(asked, LOCAL_WRITE)
        else:
            asked = PendingRequest(WCOpcode.RDMA_READ, count)
            pieces = self.pieces(region, offset, length)
        return self.ask(
            asked,
            opcode=SendOpcode.RDMA_READ,
            pieces=pieces,
            remoteAddress=remoteAddress,
            remoteKey=remoteKey,
        )

    def rdmaWrite(
        self,
        data: Any,
        remoteAddress: int,
        remoteKey: int,
        offset: int = 0,
        length: int | None = None,
    ) -> Deferred[None]:
        return self._rdmaWrite(data, remoteAddress, remoteKey, None, offset, length)

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
        return self._rdmaWrite(data, remoteAddress, remoteKey, number, offset, length)

    def _rdmaWrite(
        self,
        data: Any,
        remoteAddress: int,
        remoteKey: int,
        immediate: int | None,
        offset: int,
        length: int | None,
    ) -> Deferred[None]:
        self.checkCaller()
        if isinstance(data, RDMARegion):
            asked = PendingRequest(WCOpcode.RDMA_WRITE)
            pieces = self.pieces(data, offset, length)
        else:
            # octets copies mutable data: the HCA reads it after this call has returned.
            payload = toBytes(data)
            offset = checkInteger("offset", offset)
            size = len(payload) - offset if length is None else checkInteger("length", length)
            end = offset + size
            if not 0 <= offset <= end <= len(payload):
                raise MemoryAccessError(f"data of {len(payload)} bytes has no {size} bytes at {offset}")
            asked = PendingRequest(WCOpcode.RDMA_WRITE, nothing, payload[offset:end])
            pieces = self.scratch(asked)
        return self.ask(
            asked,
            opcode=SendOpcode.RDMA_WRITE if immediate is None else SendOpcode.RDMA_WRITE_WITH_IMM,
            pieces=pieces,
            immediate=immediate or 0,
            remoteAddress=remoteAddress,
            remoteKey=remoteKey,
        )

    def compareAndSwap(self, remoteAddress: int, remoteKey: int, compare: int, swap: int) -> Deferred[int]:
        opcode = SendOpcode.ATOMIC_CMP_AND_SWP
        compare, swap = checkInteger("compare", compare), checkInteger("swap", swap)
        return self._atomic(WCOpcode.COMP_SWAP, opcode, remoteAddress, remoteKey, compare, swap)

    def fetchAdd(self, remoteAddress: int, remoteKey: int, add: int) -> Deferred[int]:
        opcode = SendOpcode.ATOMIC_FETCH_AND_ADD
        # IBTA vol. 1 9.4.5: the sum is taken modulo 2^64, so a negative addend subtracts.
        addend = checkInteger("what to add", add) % _64_BITS
        return self._atomic(WCOpcode.FETCH_ADD, opcode, remoteAddress, remoteKey, addend, 0)

    def _atomic(
        self, what: WCOpcode, opcode: SendOpcode, address: int, key: int, compare: int, swap: int
    ) -> Deferred[int]:
        self.checkCaller()
        # The responder returns the original 64 bits (IBTA vol. 1 9.4.5).
        asked = PendingRequest(what, integer, bytearray(ATOMIC_BYTES))
        return self.ask(
            asked,
            opcode=opcode,
            pieces=self.scratch(asked, LOCAL_WRITE),
            remoteAddress=address,
            remoteKey=key,
            compare=compare,
            swap=swap,
        )

    def registerMemory(self, sizeOrBuffer: Any, access: int | None = None) -> RDMARegion:
        self.checkCaller()
        if self.queuePair.device is None:
            raise MemoryRegionError("the connection has ended")
        return regionsOf(self).register(sizeOrBuffer, access)

    def grant(
        self, region: RDMARegion, access: int, offset: int = 0, length: int | None = None
    ) -> RDMAWindow:
        self.checkCaller()
        pieces = self.pieces(region, offset, length)
        # IBTA vol. 1 10.6.7.2, o10-37.2.40: only a window of type 1 can be bound to no bytes, which unbinds
        # it.
        if not pieces:
            raise MemoryAccessError("a window has at least one byte")
        return regionsOf(self).open(region, checkInteger("access", access), pieces[0], self.queuePair)

    # -- for ib-ss

    def unsent(self) -> int:
        """
        Return the bytes of messages waiting for the send queue or for the medium.
        """
        waiting = sum([entry[2] for entry in self.waiting or ()])
        return super().unsent() + waiting + sum(map(len, (self.gathered or ())[1:]))

    # -- from the messages

    def usable(self) -> bool:
        """
        Return whether the application may still post requests.
        """
        return bool(self.connected) and not self._aborting and self.queuePair.path is not None

    def discarding(self) -> bool:
        """
        Return whether the application has closed and accepts no more messages.
        """
        return bool(self.disconnecting or self._aborting)

    def deliver(self, immediate: int | None, message: bytes | int) -> None:
        """
        Deliver a message, or the number of bytes written, to the protocol; an exception of its ends the
        connection.
        """
        protocol = self.protocol
        if protocol is not self._known:
            self._look(protocol)
        upcalls.current = self
        try:
            if message.__class__ is not bytes:
                if self._takesMessages:
                    protocol.remoteMemoryWritten(immediate, message)
                return
            self.immediate = immediate
            if self._takesMessages:
                protocol.messageReceived(memoryview(message))
            else:
                protocol.dataReceived(message)
        except BaseException:
            self._raised()
        finally:
            upcalls.current = None
            self.immediate = None

    def _look(self, protocol: interfaces.IProtocol) -> None:
        # A protocol can be replaced; the interface test is worth one per protocol.
        self._known, self._takesMessages = protocol, IRDMAProtocol.providedBy(protocol)

    def lost(self, reason: Exception) -> None:
        """
        End the connection.
        """
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
        self.queuePair.posted = limits.RDMA_RECEIVES if self.disconnecting else 0

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
        @param number: In C{asked}, if a Deferred waits for the completion.
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
                self._unposted(number)
                return
        self._wait((None, payload, length, immediate, number, several))

    def _wait(self, entry: _Waiting) -> None:
        if self.waiting is None:
            self.waiting = deque()
        self.waiting.append(entry)
        self.filled()

    def flush(self) -> None:
        """
        Post what waits, as far as the send queue has room.
        """
        waiting = self.waiting
        assert waiting is not None
        left = RDMA_SENDS_PER_FLUSH
        while waiting:
            if not left:
                # Other connections get a turn.
                self.cork()
                return
            if not self.work.canPost():
                return
            left -= 1
            request, payload, length, immediate, number, several = waiting.popleft()
            if number is not None and self.asked[number].deferred is None:
                # Cancelled before it was posted.
                self._forget(number)
                continue
            # post appends to C{waiting} if it is set; without it, it posts.
            self.waiting = None
            try:
                if request is not None:
                    self._postRequest(request, number)
                else:
                    self.post(payload, length, immediate, number, several)
            finally:
                self.waiting = waiting
            if self.queuePair.path is None:
                return
        self.waiting = None

    def ask(self, asked: PendingRequest, **fields: Any) -> Deferred[Any]:
        """
        Post a request.

        @param fields: Those of its L{SendRequest}.
        @return: Fires when it has completed.
        @raise QueuePairError: A field is invalid.
        """
        deferred = asked.deferred
        assert deferred is not None
        self._numbers = number = self._numbers + 1
        self.asked[number] = asked
        if not self.usable():
            self._unposted(number)
            return deferred
        try:
            for name in ("remoteAddress", "remoteKey"):
                if name in fields:
                    fields[name] = checkInteger(name, fields[name])
            request = SendRequest(number, **fields)
            # Before it waits: an invalid request fails in the caller, not in a later turn.
            request.check(1)
            self.work.requester.checkOperation(request.opcode)
        except BaseException:
            self._forget(number)
            raise
        if self.gathered is not None:
            gathering.post(self)
        if self.waiting is not None or not self.work.canPost():
            self._wait((request, None, 0, None, number, False))
        else:
            self._postRequest(request, number)
        return deferred

    def askSend(self, asked: PendingRequest, payload: bytes, immediate: int | None) -> Deferred[Any]:
        """
        Post a message.

        @return: Fires when it has completed.
        @raise QueuePairError: The fabric has no immediate data.
        """
        deferred = asked.deferred
        assert deferred is not None
        if immediate is not None and self.usable():
            self.work.requester.checkOperation(SendOpcode.SEND_WITH_IMM)
        self._numbers = number = self._numbers + 1
        self.asked[number] = asked
        if self.usable():
            self.post(payload, len(payload), immediate, number)
        else:
            self._unposted(number)
        return deferred

    def _postRequest(self, request: SendRequest, number: int | None) -> None:
        try:
            self.work.postSend(request)
        except QueuePairError as error:
            assert number is not None
            asked = self.asked[number]
            self._forget(number)
            asked.refused(error)

    def _unposted(self, number: int | None) -> None:
        if number is not None:
            asked = self.asked[number]
            self._forget(number)
            # Requests posted in the error state complete flushed (IBTA vol. 1 10.3.1.7).
            asked.failed(WCStatus.WR_FLUSH_ERR)
        self.cork()

    def _forget(self, number: int) -> None:
        scratch = self.asked.pop(number).scratch
        if scratch is not None and not self.channel.device.closed:
            self.channel.device.memory.deregister(scratch)

    def discard(self) -> None:
        """
        Drop what waits; its Deferreds fail with all others at the end.
        """
        self.waiting = self.gathered = None

    # -- completions (where the work queues complete)

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

    def tellCompletions(self) -> None:
        """
        Fire the Deferreds of completed requests, in posting order.
        """
        completions = self.completions
        isSent = self.channel.device.traits.completion is Completion.SENT
        while completions:
            completion = completions.popleft()
            number = completion.workRequestID
            asked = self.asked.get(number)
            if asked is not None:
                if isSent and self._isUnconfirmed(number, asked, completion):
                    continue
                self._forget(number)
                asked.completed(completion)
        if self.sent:
            self._confirm()

    def _isUnconfirmed(self, number: int, asked: PendingRequest, completion: WorkCompletion) -> bool:
        # A Deferred fires when the peer has what was sent (see IRDMATransport). READs are answered behind
        # what came before them (RFC 5040 section 5.5), so each tells that.
        if completion.status != WCStatus.SUCCESS:
            return False
        if asked.opcode is not WCOpcode.RDMA_READ:
            self.sent = self.sent or {}
            self.sent[number] = completion
            return True
        if number == self._confirming:
            self._confirming = 0
        self._confirmed(number)
        return False

    def _confirmed(self, number: int) -> None:
        sent = self.sent or {}
        while sent and (first := next(iter(sent))) < number:
            completion = sent.pop(first)
            asked = self.asked.get(first)
            if asked is not None:
                self._forget(first)
                asked.completed(completion)

    def _confirm(self) -> None:
        # One READ of no octets for all that were sent before it.
        work = self.work
        if self._confirming or self.queuePair.path is None or not work.canPost():
            return
        self._numbers = number = self._numbers + 1
        if not work.attributes.reads:
            # The peer serves no READs: iWARP has no other way to know.
            self._confirmed(number)
            return
        asked = self.asked[number] = PendingRequest(WCOpcode.RDMA_READ)
        # Nobody waits for it.
        asked.deferred = None
        self._confirming = number
        self._postRequest(SendRequest(number, opcode=SendOpcode.RDMA_READ), number)

    def failAll(self) -> None:
        """
        Fail all pending requests, after reporting those known to be completed.
        """
        if self.completions or self.sent:
            self.tellCompletions()
        self.waiting = None
        # An errback may post again, so the dictionary is read anew each time.
        while self.asked:
            number = next(iter(self.asked))
            asked = self.asked[number]
            self._forget(number)
            asked.failed(WCStatus.WR_FLUSH_ERR)

    # -- memory

    def scratch(self, asked: PendingRequest, access: int = 0) -> Sequence[SGE]:
        """
        Register the memory of one request.

        @return: Its scatter/gather list, empty for no bytes.
        """
        length = len(asked.buffer)
        # Zero bytes need no registration: no key is checked for them (IBTA vol. 1 9.7.4; Linux rxe_resp.c
        # check_rkey).
        if not length or self.queuePair.path is None:
            return ()
        asked.scratch = region = self.channel.device.memory.register(asked.buffer, access, domainOf(self))
        return (SGE(region.address, length, region.localKey),)

    def pieces(self, region: RDMARegion, offset: int, length: int | None) -> Sequence[SGE]:
        """
        Return the scatter/gather list of a part of a region.

        @raise MemoryAccessError: It is not of this connection, or has no such bytes.
        """
        piece = regionsOf(self).piece(region, offset, length)
        return (piece,) if piece.length else ()

    def closeQueuePair(self) -> None:
        """
        Destroy the queue pair, fail all pending requests and release memory.
        """
        queuePair = self.queuePair
        if queuePair.device is None:
            return
        # First the queue pair: while it exists the peer's requests may still touch the memory.
        queuePair.close()
        self.failAll()
        if self._regions is not None:
            self._regions.close()
        pd = self.work.pd
        if pd is not pd.memory.empty:
            pd.memory.deallocateDomain(pd)
        self.work.forget()
        self._known = None

    # -- the batch

    def resume(self) -> None:
        """
        Schedule the end of the batch after the send queue got room or became empty.
        """
        # Not from here: this is called from within the send queue.
        self.stuck = False
        self.cork()

    def endOfBatch(self) -> None:
        """
        Report what happened in the turn, and send what waits.
        """
        self.corked = False
        # Completions first: a Deferred fires before the messages that followed its completion.
        if self.completions:
            self.tellCompletions()
        if self.held is not None:
            self.read()
        if self.loss is not None:
            self._over()
        elif not self.corked and self.queuePair.path is not None:
            if self.gathered is not None:
                gathering.post(self)
            if self.waiting is not None:
                self.flush()
            if self.waiting is None and not self.stuck:
                self.drained()

    # -- receiving (consumer of the queue pair)

    def received(self, buffer: Any, start: int, stop: int) -> None:
        """
        Process a message: see L{QueuePair.delivered}.
        """
        message = buffer[start:stop]
        # The common case, without the calls of _arrived.
        if self.reading and self.held is None and not self.completions and message.__class__ is bytes:
            self.queuePair.posted = _RECEIVES
            self.deliver(None, message)
        else:
            self._arrived(None, bytes(message))

    def severalReceived(self, buffer: bytes, start: int, stop: int) -> None:
        """
        Process a SEND of several messages: see L{twisted_ib.rdma.gathering}.
        """
        try:
            # All at once: a callback may close the device, and the medium with it.
            messages = gathering.divided(buffer, start, stop)
        except WireError as error:
            self._broken(error)
            return
        protocol = self.protocol
        if protocol is not self._known:
            self._look(protocol)
        if self.reading:
            self.queuePair.posted = _RECEIVES
        takesMessages = self._takesMessages
        upcalls.current = self
        try:
            for message in messages:
                # As deliver(), without its call.
                if self.held is None and self.reading and not self.completions and self.protocol is protocol:
                    if takesMessages:
                        protocol.messageReceived(memoryview(message))
                    else:
                        protocol.dataReceived(message)
                else:
                    self._arrived(None, message)
        except BaseException:
            self._raised()
        finally:
            upcalls.current = None

    def immediateReceived(self, immediate: int | None, buffer: Any, start: int, stop: int) -> None:
        """
        Process a message with immediate data.
        """
        self._arrived(immediate, bytes(buffer[start:stop]))

    def remoteMemoryWritten(self, immediate: int, length: int) -> None:
        """
        Process an RDMA WRITE with immediate data (IBTA vol. 1 9.4.3).
        """
        self._arrived(immediate, length)

    def _arrived(self, immediate: int | None, message: bytes | int) -> None:
        # In the order in which they happened: a completion before a message is reported before it.
        if self.completions:
            self.tellCompletions()
        if self.reading and self.held is None:
            self.queuePair.posted = _RECEIVES
            self.deliver(immediate, message)
        else:
            self._hold(immediate, message)

    def _hold(self, immediate: int | None, message: bytes | int) -> None:
        # After a close nobody reads.  Receives stay posted, so that the peer's SENDs complete and it can end
        # in order.
        if not self.attached or self.discarding():
            self.queuePair.posted = _RECEIVES
            return
        if self.held is None:
            self.held = deque()
        self.held.append((immediate, message))
        if message.__class__ is bytes:
            # Held bytes of all connections have one budget: paused readers cannot exhaust memory.
            self.heldBytes += len(message)
            self.channel.device.hold(self, len(message))

    def read(self) -> None:
        """
        Deliver what was held, while the application reads.
        """
        held = self.held
        while held and self.reading:
            immediate, message = held.popleft()
            if message.__class__ is bytes:
                self.heldBytes -= len(message)
                self.channel.device.hold(self, -len(message))
            self.deliver(immediate, message)
        if not held and self.held is held:
            self.held = None
            if self.reading:
                self.queuePair.posted = _RECEIVES

    def readAgain(self) -> None:
        """
        Resume reading; held messages are delivered at the end of the batch.
        """
        self.reading = True
        if self.held is None:
            self.queuePair.posted = _RECEIVES
        if self.held is not None or self.loss is not None:
            self.cork()

    def budgetExceeded(self) -> None:
        """
        Abort: this connection holds the most when memory for held messages is exhausted.
        """
        self._broken(ResourceLimitError("too many bytes wait for a protocol that does not read"))

    def _dropHeld(self) -> None:
        self.held = None
        if self.heldBytes:
            self.channel.device.hold(self, -self.heldBytes)
            self.heldBytes = 0

    # -- the end

    def peerDisconnected(self, connection: IConnection) -> None:
        """
        Handle the peer's DREQ, or its DREP to ours.
        """
        # The answer to our own DREQ tells nothing new.
        if connection is not self.connection:
            return
        # DREQ private data has a fixed size and is padded with zeros (Linux ib_cm.h
        # IB_CM_DREQ_PRIVATE_DATA_SIZE), hence a comparison of the beginning.
        if connection.disconnectData.startswith(ABORTED):
            self._broken(PathLostError("the peer aborted the connection"), False)
        else:
            self._broken(PeerClosed("the peer closed the connection"), False)

    def rejected(self, connection: IConnection, rejection: Rejection) -> None:
        """
        Handle the peer's REJ of our REP.
        """
        self._broken(PathLostError("the peer did not want the connection after all"), False)

    def unreachable(self, connection: IConnection) -> None:
        """
        Handle a REP that was never answered.
        """
        self._broken(PathLostError("the peer did not answer"), False)

    def failed(self, reason: Exception) -> None:
        """
        Handle a queue pair in the error state: see L{QueuePair.fail}.
        """
        # No DREQ after the loss of the path that would carry it.
        self._broken(reason, not isinstance(reason, PathLostError))

    def _broken(self, reason: Exception, disconnect: bool = True) -> None:
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
        self._dropHeld()
        self.lost(loss)

    def _end(self, disconnectData: bytes = ABORTED) -> None:
        connection, self.connection = self.connection, None
        self.closeQueuePair()
        if connection is not None:
            self.channel.device.disconnect(connection, disconnectData, False)

    def reset(self) -> None:
        """
        Abort the connection; the peer sees it as lost.
        """
        self._dropHeld()
        self._end()

    def detach(self) -> None:
        """
        Close the connection in order, unless it has ended; the application's part is over.
        """
        self.attached = False
        self.reading = False
        self._dropHeld()
        # No private data: an orderly end, as rdma_disconnect in librdmacm sends it.
        self._end(b"")

    def destroy(self) -> None:
        """
        Destroy the queue pair of a failed handshake.
        """
        self.connection = None
        self._end()


def regionsOf(messages: RDMATransport) -> Regions:
    """
    Return a connection's regions, made with the first one: most have none.
    """
    regions = messages._regions
    if regions is None:
        regions = messages._regions = Regions(messages.channel.device, domainOf(messages), messages)
    return regions


def domainOf(messages: RDMATransport) -> ProtectionDomain:
    """
    Return a connection's protection domain, allocated with its first memory.

    @raise ResourceLimitError: There are too many.
    """
    work = messages.work
    if work.pd is work.pd.memory.empty:
        # One for each: an R_Key given to one peer is refused on another's queue pair (IBTA vol. 1 9.7.4).
        work.joinDomain(work.pd.memory.allocateDomain())
    return work.pd
