"""
The Twisted transport for messages and RDMA.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import get_ident
from typing import TYPE_CHECKING, Any

from twisted.internet import error, interfaces
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.errors import MemoryAccessError, MessageTooLongError
from twisted_ib.hca.memory.memory import LOCAL_WRITE
from twisted_ib.hca.queues.completion import WCOpcode
from twisted_ib.hca.queues.requests import ATOMIC_BYTES, SendOpcode
from twisted_ib.interfaces import IRDMAProtocol, IRDMATransport
from twisted_ib.internet.addresses import checkInteger, immediateData, toBytes
from twisted_ib.internet.logcontext import upcalls
from twisted_ib.internet.region import RDMARegion, RDMAWindow
from twisted_ib.internet.transport import CONNECTION_DONE, FIELDS, Transport, misused
from twisted_ib.rdma.messages import Messages, PeerClosed
from twisted_ib.rdma.pendingrequests import PendingRequest, content, count, integer, nothing

if TYPE_CHECKING:
    from twisted.internet.address import IPv4Address, IPv6Address

    from twisted_ib.internet.channel import DeviceChannel

_64_BITS = 1 << 64


@implementer(
    IRDMATransport,
    interfaces.IConsumer,
    interfaces.IPushProducer,
    interfaces.IReadWriteDescriptor,
)
class RDMATransport(Transport, Messages):
    """
    A message connection as a Twisted transport.

    All methods belong to the reactor's thread.

    @ivar immediate: The immediate data of the message being delivered, or L{None}.
    """

    __slots__ = (*FIELDS, "_known", "_takesMessages", "immediate", "protocol")

    provider = "rdma"
    bufferSize = limits.SEND_BUFFER

    #: The port or connector, with C{maxMessageSize} and C{privateData}.
    owner: Any

    def __init__(
        self,
        channel: DeviceChannel,
        local: IPv4Address | IPv6Address,
        peer: IPv4Address | IPv6Address,
    ) -> None:
        owner = self.owner
        Messages.__init__(self, channel, owner.maxMessageSize, owner.privateData)
        self._begin(local, peer)
        self.immediate: int | None = None
        self._known: Any = None
        self._takesMessages = False

    def checkCaller(self) -> None:
        """
        Check the calling thread.

        @raise WrongThreadError: This is not the reactor's thread.
        @raise DeviceClosedError: This is a forked child.
        """
        if get_ident() != self.thread:
            raise misused(self.channel.device)

    # -- ITransport

    def write(self, data: bytes, _ident: Any = get_ident) -> None:
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
        if length > self.maxMessageSize:
            raise self._tooLong(length)
        # As in twisted.internet.abstract.FileDescriptor, a write after the end is dropped without an error.
        if self.connected and not self._aborting:
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
        # A producer is paused by a large message, as by TCP's buffer, and is due for more at the end of the
        # batch.
        if length > self.bufferSize:
            self.filled()
        self.cork()

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """
        See L{interfaces.IConsumer}.  A pull producer is asked again when what was written has been sent.
        """
        super().registerProducer(producer, streaming)
        if self.connected:
            self.cork()

    def _tooLong(self, length: int) -> MessageTooLongError:
        return MessageTooLongError(f"a message has at most {self.maxMessageSize} bytes, not {length}")

    def _checkLength(self, length: int) -> None:
        if length > self.maxMessageSize:
            raise self._tooLong(length)

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
        """
        See L{IRDMATransport.sendRegistered}.
        """
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
        """
        See L{IRDMATransport.rdmaRead}.
        """
        self.checkCaller()
        length = checkInteger("length", length)
        # IBTA vol. 1 9.7.7: a message has at most 2^31 bytes.
        if not 0 <= length <= limits.MESSAGE_BYTES:
            raise ValueError(f"a READ has 0 to {limits.MESSAGE_BYTES} bytes, not {length}")
        if region is None:
            # Memory of its own for each request: it may be given up by a cancel while the HCA still writes to
            # it.
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
        """
        See L{IRDMATransport.rdmaWrite}.
        """
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
        """
        See L{IRDMATransport.rdmaWriteWithImmediate}.
        """
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
            if (offset, end) != (0, len(payload)):
                payload = payload[offset:end]
            asked = PendingRequest(WCOpcode.RDMA_WRITE, nothing, payload)
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
        """
        See L{IRDMATransport.compareAndSwap}.
        """
        opcode = SendOpcode.ATOMIC_CMP_AND_SWP
        compare, swap = checkInteger("compare", compare), checkInteger("swap", swap)
        return self._atomic(WCOpcode.COMP_SWAP, opcode, remoteAddress, remoteKey, compare, swap)

    def fetchAdd(self, remoteAddress: int, remoteKey: int, add: int) -> Deferred[int]:
        """
        See L{IRDMATransport.fetchAdd}.
        """
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
        """
        See L{IRDMATransport.registerMemory}.
        """
        self.checkCaller()
        return self.register(sizeOrBuffer, access)

    def grant(
        self, region: RDMARegion, access: int, offset: int = 0, length: int | None = None
    ) -> RDMAWindow:
        """
        See L{IRDMATransport.grant}.
        """
        self.checkCaller()
        pieces = self.pieces(region, offset, length)
        # IBTA vol. 1 10.6.7.2, o10-37.2.40: only a window of type 1 can be bound to no bytes, which unbinds
        # it.
        if not pieces:
            raise MemoryAccessError("a window has at least one byte")
        return self.open(region, checkInteger("access", access), pieces[0])

    # -- for ib-ss

    def unsent(self) -> int:
        """
        Return the bytes of messages waiting for the send queue or for the medium.
        """
        return super().unsent() + sum([entry[2] for entry in self.waiting or ()])

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
        # A protocol can be replaced; the interface test is worth one per protocol.
        if protocol is not self._known:
            self._known = protocol
            self._takesMessages = IRDMAProtocol.providedBy(protocol)
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
        """
        Pause: post no receives until C{startReading}.
        """
        self.reading = False
        # While closing, receives stay posted: the peer's pending messages would otherwise block its own
        # close.
        self.queuePair.posted = limits.RDMA_RECEIVES if self.disconnecting else 0
