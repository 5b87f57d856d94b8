"""
The Twisted transport over SDP: what TCP's transport is, word for word.

L{SDPTransport} adds to a L{Stream} what applications and Twisted see: ITransport,
ITCPTransport, ITLSTransport, IConsumer, IPushProducer, half close.  C{startTLS}
changes the object's class to L{SecureMixin<twisted_ib.sdp.secure.SecureMixin>}, so that plain connections do
not pay for the question.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import get_ident
from typing import TYPE_CHECKING, Any

from twisted.internet import interfaces
from twisted.internet._newtls import startTLS
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.hca.base.socketrows import CONNECTING
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.queues.queuepair import SEND
from twisted_ib.interfaces import ISDPBufferedProtocol, ISDPTransport
from twisted_ib.internet.addresses import whole
from twisted_ib.internet.logcontext import upcalls
from twisted_ib.internet.region import RDMARegion
from twisted_ib.internet.transport import CONNECTION_DONE, FIELDS, Transport, misused
from twisted_ib.sdp.protocol.machine import M32
from twisted_ib.sdp.protocol.wire import BSDH, MID
from twisted_ib.sdp.secure import SecureMixin, innermostTLS, secured, wrapsTLS
from twisted_ib.sdp.stream import GATHER_LEFT, Stream

if TYPE_CHECKING:
    from twisted.internet.address import IPv4Address, IPv6Address

    from twisted_ib.internet.channel import DeviceChannel

_RTS = QPState.RTS
_pack = BSDH.pack
_DATA = MID.DATA.value


class KeepAlive:
    """
    Gives a sign of life when nothing was sent or received for a time: a WRITE of nothing, as
    OFED's SDP does it.

    @ivar seconds: How long.
    """

    __slots__ = ("_call", "_reactor", "_seen", "_stream", "seconds")

    def __init__(self, stream: Stream, reactor: Any) -> None:
        self._stream = stream
        self._reactor = reactor
        self.seconds = limits.SDP_KEEP_ALIVE_SECONDS
        self._wait()

    def _traffic(self) -> tuple[int, int]:
        machine = self._stream.machine
        return machine.sequence, machine.received

    def _wait(self) -> None:
        self._seen = self._traffic()
        self._call = self._reactor.callLater(self.seconds, self._look)

    def _look(self) -> None:
        if self._traffic() == self._seen:
            self._stream.queuePair.postNothing()
            self._stream.cork()  # The peer may be asleep.
        self._wait()

    def stop(self) -> None:
        """
        Do so no more; harmless when repeated.
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
    One SDP connection as Twisted sees it.

    All methods belong to the reactor's thread.

    @ivar protocol: Who gets the data.
    @ivar connected: 1 from the first to the last call to the protocol.
    @ivar logstr: The log prefix, as TCP's.
    @ivar bufferSize: A streaming producer is paused when more than this many
        bytes wait, or are written at once.
    """

    __slots__ = FIELDS

    provider = "sdp"

    _tlsClientDefault = False
    # For most connections; see L{Transport}.
    _writeDisconnecting = _writeDisconnected = _noDelay = False
    _closedIn = -1
    _keepAlive: KeepAlive | None = None

    def __init__(
        self,
        channel: DeviceChannel,
        local: IPv4Address | IPv6Address,
        peer: IPv4Address | IPv6Address,
    ) -> None:
        """
        @param local: The address of this end.
        @param peer: The address of the other end.
        """
        Stream.__init__(self, channel)
        self._begin(local, peer)

    # -- ITransport

    def write(self, data: bytes, _ident: Any = get_ident) -> None:
        """
        Send C{data}: see L{interfaces.ITransport.write}.

        The first write of a batch goes from here into the medium, if nothing is in its way: what
        L{Stream.send}, L{Machine.header} and L{QueuePair.postInline} do together then, without their
        calls, which would take longer than the work.

        @raise TypeError: C{data} is not L{bytes}.
        @raise WrongThreadError: called outside the reactor's thread.
        """
        if data.__class__ is bytes and _ident() == self.thread:
            length = len(data)
            room = self.room - length
            if room > GATHER_LEFT and length:
                self.room = room
                self.append(data)
                return
            batch = self.channel.device.batch
            if self.direct and length and self.batch != batch and self.buffer is None:
                machine, queuePair = self.machine, self.queuePair
                sequence = machine.sequence + 1
                if (
                    machine.limit - sequence >= 2
                    and length <= machine.maxPayload
                    and queuePair.pending is None
                    and queuePair.state is _RTS
                ):
                    self.batch = batch
                    machine.sequence = sequence
                    received, receives = machine.received, queuePair.posted
                    machine.told = received + receives
                    header = _pack(_DATA, 0, receives, length + 16, sequence & M32, received & M32)
                    if not queuePair.path.post(SEND | queuePair.remote, header, data, length):  # type: ignore[union-attr]
                        queuePair.keep(header, data, length)
                    return
        self._writeSlowly(data)

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """
        See L{interfaces.IConsumer}.
        """
        self.direct = False
        Transport.registerProducer(self, producer, streaming)

    @property
    def _tempDataBuffer(self) -> list[bytes]:
        """
        What waits to be sent, under the name that programs look for in a C{FileDescriptor}.
        """
        return [] if self.buffer is None else list(self.buffer.pieces)

    def _writeSlowly(self, data: bytes) -> None:
        if not isinstance(data, bytes):
            raise TypeError("Data must be bytes")
        if get_ident() != self.thread:
            raise misused(self.channel.device)
        if not self.connected or self._writeDisconnected or self._aborting:
            return
        if data:
            self.send(bytes(data))
            if len(data) > self.bufferSize:
                self.filled()

    def writeSequence(self, data: Iterable[bytes]) -> None:
        """
        Send pieces: see L{interfaces.ITransport.writeSequence}.

        @param data: the pieces, C{bytes}.
        @raise TypeError: one of them is not L{bytes}; then none is sent.
        """
        pieces = list(data)
        for piece in pieces:
            if not isinstance(piece, bytes):
                raise TypeError("Data must be bytes")
        SDPTransport.write(self, b"".join(pieces))

    def loseConnection(self, _connDone: object = None) -> None:
        """
        See L{Transport.loseConnection}; after a half-close nothing is left to
        wait for.
        """
        self.direct = False
        if not self.disconnecting:
            self._closedIn = self.channel.device.turns
        closed = self._writeDisconnected and not self.disconnecting
        if closed and self.connected and get_ident() == self.thread:
            self.stopReading()
            self.connectionLost(CONNECTION_DONE)
        else:
            Transport.loseConnection(self)

    def loseWriteConnection(self) -> None:
        """
        Half-close: see L{interfaces.ITCPTransport.loseWriteConnection}.
        """
        if self.connected:
            self.direct = False
            self._closedIn = self.channel.device.turns
            self._writeDisconnecting = True
            self.startWriting()

    # -- ITCPTransport: remembered, since a message is never held back

    def getTcpNoDelay(self) -> bool:
        """
        @return: What was set; SDP sends the first write of a turn at once
            either way.
        """
        return self._noDelay

    def setTcpNoDelay(self, enabled: bool) -> None:
        """
        Remember C{enabled}.
        """
        if bool(enabled) != self._noDelay:
            self._noDelay = bool(enabled)

    def getTcpKeepAlive(self) -> bool:
        """
        @return: What was set.
        """
        return self._keepAlive is not None

    def setTcpKeepAlive(self, enabled: bool) -> None:
        """
        Give the peer's HCA a sign of life when the connection was idle for
        L{limits.SDP_KEEP_ALIVE_SECONDS}: so one that forgot the connection is noticed.  A
        peer that died is noticed without it, where the fabric knows.
        """
        if self._keepAlive is not None:
            self._keepAlive.stop()
            self._keepAlive = None
        if enabled and self.connected:
            self._keepAlive = KeepAlive(self, self.reactor)

    # -- ISDPTransport

    def checkCaller(self) -> None:
        """
        @raise WrongThreadError: This is not the reactor's thread.
        @raise DeviceClosedError: This is a forked child.
        """
        if get_ident() != self.thread:
            raise misused(self.channel.device)

    def registerMemory(self, sizeOrBuffer: Any, access: int | None = None) -> RDMARegion:
        """
        See L{ISDPTransport.registerMemory}.
        """
        self.checkCaller()
        return self.openExtensions().openRDMA().register(sizeOrBuffer, access)

    def writeRegistered(
        self, region: RDMARegion, offset: int = 0, length: int | None = None
    ) -> Deferred[None]:
        """
        See L{ISDPTransport.writeRegistered}.
        """
        self.checkCaller()
        ended = self._writeDisconnected or self._aborting or self.queuePair.path is None
        if not self.connected or ended or self.saidEnd:
            return fail(ConnectionDone("the connection has ended"))
        extensions = self.openExtensions()
        if extensions.over:
            return fail(ConnectionDone("the connection has ended"))
        piece = extensions.openRDMA().regions.piece(region, offset, length)
        secure = innermostTLS(self.protocol)
        if secure is not None:
            secure.write(bytes(region.view[offset : offset + piece.length]))
            return succeed(None)
        if piece.length < max(extensions.zeroCopySend.least, 1):
            if piece.length:
                SDPTransport.write(self, bytes(region.view[offset : offset + piece.length]))
            return succeed(None)
        return extensions.zeroCopySend.queueRegistered(region, piece)

    def sendUrgent(self, byte: bytes) -> None:
        """
        See L{ISDPTransport.sendUrgent}.
        """
        self.checkCaller()
        if not isinstance(byte, bytes):
            raise TypeError("Data must be bytes")
        if len(byte) != 1:
            raise ValueError(f"urgent data is one byte, not {len(byte)}")
        if wrapsTLS(self.protocol):
            raise ValueError("there is no urgent data in TLS")
        ended = self._writeDisconnected or self._aborting or self.queuePair.path is None
        if self.connected and not ended and not self.saidEnd:
            self.openExtensions().zeroCopySend.queueUrgent(byte)

    def setZeroCopyThresholds(self, registered: int | None = None, plain: int | None = None) -> None:
        """
        See L{ISDPTransport.setZeroCopyThresholds}.
        """
        self.checkCaller()
        if registered is not None:
            registered = whole("registered", registered)
        if plain is not None:
            plain = max(whole("plain", plain), 1)
        zeroCopySend = self.openExtensions().zeroCopySend
        if registered is not None:
            zeroCopySend.least = registered
        zeroCopySend.plainLeast = plain

    def readAgain(self) -> None:
        """
        The application reads; perhaps it has places for what comes.
        """
        if self.extensions is None and ISDPBufferedProtocol.providedBy(self.protocol):
            if self.queuePair.path is not None:
                self.openExtensions().zeroCopyReceive.buffered()
        Stream.readAgain(self)

    # -- for ib-ss

    def phase(self) -> str:
        """
        @return: Its state, in the words of annex A4.
        """
        phase = super().phase()
        return phase if phase == CONNECTING else self.machine.state.name

    def credits(self) -> int:
        """
        @return: How many messages the peer has receives for.
        """
        return max(self.machine.credits(), 0)

    def unsent(self) -> int:
        """
        @return: How many bytes were written that the medium has not taken, or the peer not read.
        """
        buffer, extensions = self.buffer, self.extensions
        count = super().unsent()
        if buffer is not None:
            count += buffer.size if self.room < 0 else limits.INLINE_MESSAGE - self.room
        return count if extensions is None else count + extensions.zeroCopySend.size

    # -- ITLSTransport

    def startTLS(self, contextFactory: Any, normal: bool = True) -> None:
        """
        Go on in TLS: see L{interfaces.ITLSTransport.startTLS}.

        @param contextFactory: as for TCP.
        @param normal: Whether this end's role in TLS is that of its connection.
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
        C{startTLS} sets this when the TLS protocol has taken over.
        """
        if started:
            self.__class__ = secured(self.__class__)

    # -- from the stream

    def deliver(self, data: bytes) -> None:
        """
        Hand data to the protocol; its exceptions end the connection.

        @param data: not empty.
        """
        upcalls.current = self
        try:
            self.protocol.dataReceived(data)
        except BaseException:
            self._raised()
        finally:
            upcalls.current = None

    def endOfStream(self) -> None:
        """
        The peer sends no more.
        """
        if not self._aborting:
            self.readConnectionLost(CONNECTION_DONE)

    def readConnectionLost(self, reason: Failure) -> None:
        """
        Tell the protocol that reading is over, or that everything is.

        @param reason: why.
        """
        protocol = interfaces.IHalfCloseableProtocol(self.protocol, None)
        if protocol is None:
            self.connectionLost(reason)
        else:
            self.stopReading()
            self._tell(protocol.readConnectionLost)

    def writeConnectionLost(self, reason: Failure) -> None:
        """
        See L{interfaces.IHalfCloseableDescriptor}.
        """
        self.connectionLost(reason)

    def leaving(self) -> bool:
        """
        @return: Whether the application has closed and reads no more.
        """
        return bool(self.disconnecting)

    def connectionLost(self, reason: Failure) -> None:
        """
        The last thing that happens, once: see L{Transport.connectionLost}.
        """
        if self._keepAlive is not None:
            self._keepAlive.stop()
        if self.extensions is not None and not self.disconnected:
            self.extensions.fail(reason)
            # The places are the application's, also while the peer goes on.
            self.extensions.zeroCopyReceive.ended()
        Transport.connectionLost(self, reason)

    def writing(self) -> bool:
        """
        @return: Whether a producer is paused or a close waits.
        """
        return Transport.writing(self) or (self._writeDisconnecting and not self._writeDisconnected)

    def drained(self) -> None:
        """
        Everything written has left: more from the producer, or the end.
        """
        if not self.connected or self._aborting:
            return
        producer: Any = self.producer
        if producer is not None and (not self.streamingProducer or self.producerPaused):
            self.producerPaused = False
            self._tell(producer.resumeProducing)
        elif self._closedIn == self.channel.device.turns:
            # As over TCP the end is no part of the turn in which it is asked for: what the application
            # has put off with callLater(0) comes first.
            self.cork()
        elif self.disconnecting:
            if self._sendEnd():
                self.connectionLost(CONNECTION_DONE)
        elif self._writeDisconnecting and not self._writeDisconnected:
            if self._sendEnd():
                self._writeDisconnected = True
                protocol = interfaces.IHalfCloseableProtocol(self.protocol, None)
                if protocol is not None:
                    self._tell(protocol.writeConnectionLost)
        elif producer is None and not self._writeDisconnecting:
            self.direct = self.prompt and self.extensions is None and not self.saidEnd

    def _sendEnd(self) -> bool:
        """
        Say that no more data comes.

        @return: Whether that has left.
        """
        self.ending = True
        self.sendDisconn()
        return not self.ending and self.queuePair.pending is None
