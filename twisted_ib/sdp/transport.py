"""
The Twisted transport over SDP, with the behaviour of L{twisted.internet.tcp.Connection}.

L{SDPTransport} adds Twisted's interfaces to a L{Stream}: ITransport, ITCPTransport, ITLSTransport, IConsumer,
IPushProducer, half-close.  C{startTLS} changes the object's class to
L{SecureMixin<twisted_ib.sdp.secure.SecureMixin>}, so that plain connections do not pay for the test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import get_ident
from typing import TYPE_CHECKING, Any, ClassVar, Final

from twisted.internet import interfaces
from twisted.internet._newtls import startTLS
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.python.failure import Failure
from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.hca.base.interfaces import ISharedMemoryPath
from twisted_ib.hca.base.socketrows import CONNECTING
from twisted_ib.interfaces import ISDPBufferedProtocol, ISDPTransport
from twisted_ib.internet.addressing.addresses import Address, End, checkInteger
from twisted_ib.internet.region import RDMARegion
from twisted_ib.internet.transport import CONNECTION_DONE, FIELDS, Transport, misused
from twisted_ib.sdp.protocol.wire import MID, SuspComm
from twisted_ib.sdp.secure import SecureMixin, innermostTLS, secured, wrapsTLS
from twisted_ib.sdp.stream import Stream

if TYPE_CHECKING:
    from twisted.internet.base import ReactorBase

    from twisted_ib.internet.channel import DeviceChannel

#: Seconds after which it is looked again whether all that was written is in the medium.
_QUIET_SECONDS: Final = 1e-3
_QUIET_SECONDS_MOST: Final = 0.1


class KeepAlive:
    """
    Probes an idle connection with an RDMA WRITE of zero bytes, as OFED does.

    @ivar seconds: The idle time before a probe.
    """

    __slots__ = ("_call", "_reactor", "_seen", "_stream", "seconds")

    def __init__(self, stream: Stream, reactor: ReactorBase) -> None:
        self._stream = stream
        self._reactor = reactor
        # OFED sdp.h: SDP_KEEPALIVE_TIME is two hours too.
        self.seconds = limits.SDP_KEEP_ALIVE_SECONDS
        self._wait()

    def _traffic(self) -> tuple[int, int]:
        machine = self._stream.machine
        return machine.sequence, machine.received

    def _wait(self) -> None:
        self._seen = self._traffic()
        self._call = self._reactor.callLater(self.seconds, self._look)

    def _look(self) -> None:
        # OFED sdp_bcopy.c sdp_post_keepalive: no SDP message exists for it; the queue pair's retries find a
        # dead peer.
        if self._traffic() == self._seen:
            self._stream.queuePair.postNothing()
            # The peer may sleep; the end of the batch wakes it.
            self._stream.cork()
        self._wait()

    def stop(self) -> None:
        """
        Stop probing; harmless when repeated.
        """
        if self._call.active():
            self._call.cancel()


@implementer(
    ISDPTransport,
    interfaces.ITCPTransport,
    interfaces.ITLSTransport,
    interfaces.IConsumer,
    interfaces.IPushProducer,
    interfaces.IHalfCloseableDescriptor,
    interfaces.IReadWriteDescriptor,
)
class SDPTransport(Transport, Stream):
    """
    One SDP connection as a Twisted transport.

    All methods belong to the reactor's thread.

    @ivar connected: 1 from the first to the last call to the protocol.
    @ivar logstr: The log prefix, as TCP's.
    @ivar bufferSize: A streaming producer is paused when more bytes than this wait, or are written at once.
    """

    __slots__ = FIELDS

    provider = "sdp"

    _tlsClientDefault = False
    # Defaults of most connections; see L{Transport}.
    _writeDisconnecting = _writeDisconnected = _readDisconnected = _noDelay = False
    #: Whether a close with unread bytes has no end of stream, as of close(2): Twisted's shuts down before.
    resetsUnread: ClassVar[bool] = False
    _closedIn = -1
    _keepAlive: KeepAlive | None = None

    def __init__(
        self,
        channel: DeviceChannel,
        local: Address | End,
        peer: Address,
    ) -> None:
        Stream.__init__(self, channel)
        self._begin(local, peer)

    # -- ITransport

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        self.direct = 0
        if self.buffer is not None:
            # The next write finds out whether it is to be paused.
            self.block()
        Transport.registerProducer(self, producer, streaming)

    @property
    def _tempDataBuffer(self) -> list[bytes]:
        # Programs look for unsent bytes under this name, which C{twisted.internet.abstract.FileDescriptor}
        # uses.
        if self.buffer is not None:
            return list(self.buffer.pieces)
        return [] if self.written is None else [self.written]

    def _writeSlowly(self, data: Any) -> None:
        if not isinstance(data, bytes):
            raise TypeError("Data must be bytes")
        if get_ident() != self.thread:
            raise misused(self.channel.device)
        # Twisted drops a write after the end without an error
        # (twisted.internet.abstract.FileDescriptor.write).
        if not self.connected or self._writeDisconnected or self._aborting:
            return
        if data:
            self.send(bytes(data))
            # Behind the end of the peer's process nothing waits that a producer would be resumed for.
            if len(data) > self.bufferSize and self.queuePair.path is not None:
                self.filled()

    def writeSequence(self, data: Iterable[bytes]) -> None:
        """
        Send pieces of L{bytes}: see L{interfaces.ITransport.writeSequence}.

        @raise TypeError: One of them is not L{bytes}; then none is sent.
        """
        pieces = list(data)
        for piece in pieces:
            if not isinstance(piece, bytes):
                raise TypeError("Data must be bytes")
        SDPTransport.write(self, b"".join(pieces))

    def loseConnection(self, _connDone: object = None) -> None:
        # After a half-close nothing is left to wait for.
        self.direct = 0
        if not self.disconnecting:
            self._closedIn = self.channel.device.turns
        closed = self._writeDisconnected and not self.disconnecting
        if closed and self.connected and get_ident() == self.thread:
            self.stopReading()
            self.connectionLost(CONNECTION_DONE)
        else:
            Transport.loseConnection(self)

    # -- a connection that moves to TCP

    def isQuiet(self) -> bool:
        """
        Return whether all that was written is in the medium, and all that has arrived was delivered, and a
        message more can be sent.
        """
        if self.buffer is not None or self.written is not None or self.pendingControl is not None:
            return False
        extensions = self.extensions
        idle = not self.held and not self.ending and (extensions is None or extensions.isQuiet())
        return idle and self.queuePair.pending is None and self.machine.credits() > 1

    def whenQuiet(
        self,
        mayMove: Callable[[], bool],
        decided: Callable[[bool], object],
        seconds: float = _QUIET_SECONDS,
    ) -> None:
        """
        Call C{decided} with True as soon as this is quiet, or with False once it may not move.

        @param seconds: After so many it is looked again.
        """
        isAllowed = mayMove()
        if isAllowed and not self.isQuiet():
            longer = min(2 * seconds, _QUIET_SECONDS_MOST)
            self.reactor.callLater(seconds, self.whenQuiet, mayMove, decided, longer)
        else:
            decided(isAllowed)

    def suspend(self, descriptor: int) -> bool:
        """
        Ask the peer to move to a connection of TCP (SuspComm).  If it does, nothing more arrives here, and
        C{suspended(-1)} is called.

        @param descriptor: The peer's end of TCP; it stays open here.
        @return: Whether it was asked.
        """
        path, number = self.queuePair.path, self.queuePair.number
        asked = ISharedMemoryPath.providedBy(path) and path.handOver(number, descriptor)
        if asked:
            self.sendControl(MID.SUSP_COMM, SuspComm.layout.struct.pack(number))
        return bool(asked)

    def answerSuspend(self) -> None:
        """
        Nothing more is sent here, as the peer has asked (SuspCommAck).
        """
        self.sendControl(MID.SUSP_COMM_ACK)

    def suspended(self, descriptor: int) -> bool:
        """
        The peer asks to move to a connection of TCP, or answers that it does.

        @param descriptor: This end of TCP; -1 for the answer.
        @return: False if this end does not move, or has not asked.
        """
        return False

    def endNow(self) -> None:
        """
        L{loseConnection}, where nothing is to be sent before the end: it leaves in this turn.
        """
        self._writeDisconnected = self._sendEnd()
        self.loseConnection()

    def loseWriteConnection(self) -> None:
        if self.connected and (self._writeDisconnected or self.queuePair.path is None):
            # As over TCP, where its doWrite() fails.
            lost = Failure(ConnectionLost("the connection has ended"))
            self.reactor.callLater(0, self.connectionLost, lost)
        elif self.connected:
            self.direct = 0
            self._closedIn = self.channel.device.turns
            self._writeDisconnecting = True
            self.startWriting()

    # -- ITCPTransport: TCP_NODELAY is remembered only, as there is no Nagle delay to turn off

    def getTcpNoDelay(self) -> bool:
        # Nothing is delayed either way.
        return self._noDelay

    def setTcpNoDelay(self, enabled: bool) -> None:
        if bool(enabled) != self._noDelay:
            self._noDelay = bool(enabled)

    def getTcpKeepAlive(self) -> bool:
        return self._keepAlive is not None

    def setTcpKeepAlive(self, enabled: bool) -> None:
        """
        Probe the connection after L{limits.SDP_KEEP_ALIVE_SECONDS} of idle time.
        """
        if self._keepAlive is not None:
            self._keepAlive.stop()
            self._keepAlive = None
        # This finds a peer that has forgotten the connection; the death of a peer is noticed without it where
        # the fabric can tell.
        if enabled and self.connected:
            self._keepAlive = KeepAlive(self, self.reactor)

    # -- ISDPTransport

    def registerMemory(self, sizeOrBuffer: Any, access: int | None = None) -> RDMARegion:
        self.checkCaller()
        return self.openExtensions().openRDMA().register(sizeOrBuffer, access)

    def writeRegistered(
        self, region: RDMARegion, offset: int = 0, length: int | None = None
    ) -> Deferred[None]:
        self.checkCaller()
        ended = self._writeDisconnected or self._aborting or self.queuePair.path is None
        if not self.connected or ended or self.disconnSent:
            return fail(ConnectionDone("the connection has ended"))
        extensions = self.openExtensions()
        if extensions.over:
            return fail(ConnectionDone("the connection has ended"))
        piece = extensions.openRDMA().regions.piece(region, offset, length)
        secure = innermostTLS(self.protocol)
        # Under TLS the peer expects records: registered bytes must not bypass them.
        if secure is not None:
            secure.write(bytes(region.view[offset : offset + piece.length]))
            return succeed(None)
        # Short memory is copied; then it may be used again at once.
        if piece.length < max(extensions.zeroCopySend.least, 1):
            if piece.length:
                SDPTransport.write(self, bytes(region.view[offset : offset + piece.length]))
            return succeed(None)
        return extensions.zeroCopySend.queueRegistered(region, piece)

    def sendUrgent(self, byte: bytes) -> None:
        self._checkUrgent(byte)
        if not self.connected or self._writeDisconnected or self._aborting or self.disconnSent:
            return
        if self.queuePair.path is None:
            # It is lost, as any byte is.
            self.send(byte)
        else:
            self.openExtensions().zeroCopySend.queueUrgent(byte)

    def _checkUrgent(self, byte: bytes) -> None:
        self.checkCaller()
        if not isinstance(byte, bytes):
            raise TypeError("Data must be bytes")
        if len(byte) != 1:
            raise ValueError(f"urgent data is one byte, not {len(byte)}")
        # The byte would travel in the clear, and corrupt the TLS records of a peer that reads it inline.
        if wrapsTLS(self.protocol):
            raise ValueError("there is no urgent data in TLS")

    def _checkThresholds(self, registered: int | None, plain: int | None) -> tuple[int | None, int | None]:
        self.checkCaller()
        if registered is not None:
            registered = checkInteger("registered", registered)
        if plain is not None:
            plain = max(checkInteger("plain", plain), 1)
        return registered, plain

    def setZeroCopyThresholds(self, registered: int | None = None, plain: int | None = None) -> None:
        registered, plain = self._checkThresholds(registered, plain)
        zeroCopySend = self.openExtensions().zeroCopySend
        if registered is not None:
            zeroCopySend.least = registered
        zeroCopySend.plainLeast = plain

    def readAgain(self) -> None:
        # The protocol may now supply buffers.
        if self.extensions is None and ISDPBufferedProtocol.providedBy(self.protocol):
            if self.queuePair.path is not None:
                self.openExtensions().zeroCopyReceive.buffered()
        Stream.readAgain(self)

    # -- for ib-ss

    def phase(self) -> str:
        # In the terms of annex A4, for ib-ss.
        phase = super().phase()
        return phase if phase == CONNECTING else self.machine.state.name

    def credits(self) -> int:
        return max(self.machine.credits(), 0)

    def unsent(self) -> int:
        # With what the peer has not read.
        buffer, extensions = self.buffer, self.extensions
        count = super().unsent()
        if buffer is not None:
            count += buffer.size if self.room < 0 else buffer.limit - self.room
        elif self.written is not None:
            count += len(self.written)
        return count if extensions is None else count + extensions.zeroCopySend.size

    def sendNow(self) -> None:
        """
        Send what was written before the end of the batch, as far as the medium has room.
        """
        if self.queuePair.path is not None and self.extensions is None and self._unsent():
            self._gathering()
            self.resume()

    # -- ITLSTransport

    def startTLS(self, contextFactory: Any, normal: bool = True) -> None:
        """
        Start TLS: see L{interfaces.ITLSTransport.startTLS}.

        @param normal: Whether this end has the TLS role of its connection role.
        """
        startTLS(self, contextFactory, normal, SDPTransport)

    @property
    def TLS(self) -> bool:
        """
        Whether the application's bytes go through TLS.
        """
        return isinstance(self, SecureMixin)

    @TLS.setter
    def TLS(self, started: bool) -> None:
        """
        Change the class, when C{twisted.internet._newtls} sets this.
        """
        if started:
            self.__class__ = secured(self.__class__)

    # -- from the stream

    def endOfStream(self) -> None:
        if not self._aborting:
            self.readConnectionLost(CONNECTION_DONE)

    def readConnectionLost(self, reason: Failure) -> None:
        protocol = interfaces.IHalfCloseableProtocol(self.protocol, None)
        # Without IHalfCloseableProtocol the peer's end ends both directions, as in twisted.internet.tcp.
        if protocol is None:
            self.connectionLost(reason)
        else:
            self.stopReading()
            self._readDisconnected = True
            self._tell(protocol.readConnectionLost)

    def resumeProducing(self) -> None:
        if not self._readDisconnected or self.heldBytes:
            Transport.resumeProducing(self)
        elif self.connected and not self.disconnecting:
            # As over TCP, where it reads again, and finds the end again.
            self.reactor.callLater(0, self._endAgain)

    def _endAgain(self) -> None:
        if self.connected and not self.disconnecting:
            self.endOfStream()

    def writeConnectionLost(self, reason: Failure) -> None:
        self.connectionLost(reason)

    def leaving(self) -> bool:
        return bool(self.disconnecting)

    def connectionLost(self, reason: Failure) -> None:
        if self._keepAlive is not None:
            self._keepAlive.stop()
        if self.extensions is not None and not self.disconnected:
            self.extensions.fail(reason)
            # The peer must not write to the application's buffers any more, even while it continues.
            self.extensions.zeroCopyReceive.ended()
        Transport.connectionLost(self, reason)

    def writing(self) -> bool:
        return Transport.writing(self) or (self._writeDisconnecting and not self._writeDisconnected)

    def drained(self) -> None:
        if not self.connected or self._aborting:
            return
        producer: Any = self.producer
        if producer is not None and (not self.streamingProducer or self.producerPaused):
            self._resumeProducer(producer)
        elif self._closedIn == self.channel.device.turns:
            # As over TCP the close is not part of the turn that asks for it: calls that the application has
            # scheduled with callLater(0) come first.
            self.cork()
        elif self.disconnecting:
            # An end that was asked for before goes ahead of the reset.
            isReset = self.resetsUnread and self.heldBytes and not self._writeDisconnecting
            if isReset or self._sendEnd():
                self.connectionLost(CONNECTION_DONE)
        elif self._writeDisconnecting and not self._writeDisconnected:
            if self._sendEnd():
                self._writeDisconnected = True
                protocol = interfaces.IHalfCloseableProtocol(self.protocol, None)
                if protocol is not None:
                    self._tell(protocol.writeConnectionLost)
        elif producer is None and not self._writeDisconnecting:
            idle = self.extensions is None and self.pendingControl is None and not self.disconnSent
            self.direct = self.prompt if idle else 0

    def _resumeProducer(self, producer: Any) -> None:
        # What a resumed producer has written is sent as soon as it returns, so that it writes on until the
        # medium is full, as over TCP until the socket's buffer is.  The single writes of a pull producer are
        # sent when another one would not fit into their message.
        for _ in range(limits.PRODUCER_TURNS):
            self.producerPaused = False
            self.ahead = limits.PRODUCER_AHEAD
            self._tell(producer.resumeProducing)
            self.ahead = 0
            if self.producer is not producer or (self.streamingProducer and not self.producerPaused):
                return
            buffer = self.buffer
            if buffer is None or not self.corked or self.extensions is not None:
                return
            if not self.streamingProducer:
                pieces = buffer.pieces
                if pieces and buffer.limit - self.room + len(pieces[-1]) <= limits.INLINE_MESSAGE:
                    continue
            self.flush()
            if buffer.size or self.queuePair.pending is not None:
                return
            self.channel.device.ringBells()

    def _sendEnd(self) -> bool:
        self.ending = True
        self.sendDisconn()
        return not self.ending and self.queuePair.pending is None
