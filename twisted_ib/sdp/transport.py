"""
The Twisted transport over SDP: what TCP's transport is, word for word.

L{SDPTransport} adds to a L{Stream} what applications and Twisted see: ITransport,
ITCPTransport, ITLSTransport, IConsumer, IPushProducer, half close.  C{startTLS}
changes the object's class to L{SecureTransport}, so that plain connections do
not pay for the question.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import get_ident
from typing import TYPE_CHECKING, Any

from twisted.internet import error, interfaces
from twisted.internet._newtls import startTLS
from twisted.internet.abstract import _ConsumerMixin, _LogOwner
from twisted.internet.main import CONNECTION_DONE
from twisted.python import log
from twisted.python.failure import Failure
from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.errors import DeviceClosedError, HCAError, WrongThreadError
from twisted_ib.hca.logcontext import upcalls
from twisted_ib.sdp.secure import SecureMixin, secured
from twisted_ib.sdp.sender import GATHER_LEFT
from twisted_ib.sdp.stream import Stream

if TYPE_CHECKING:
    from twisted.internet.address import IPv4Address, IPv6Address

    from twisted_ib.hca.channel import DeviceChannel


def misused(device: Any) -> HCAError:
    """
    @return: The error for a call from a thread that is not the reactor's, or
        from a forked child.
    """
    if device.closed:
        return DeviceClosedError("an SDP transport was used in a forked child; it is its parent's")
    return WrongThreadError(
        "an SDP transport was used outside its reactor's thread;"
        " use reactor.callFromThread"
    )


@implementer(
    interfaces.ITCPTransport,
    interfaces.ITLSTransport,
    interfaces.IConsumer,
    interfaces.IPushProducer,
    interfaces.IHalfCloseableDescriptor,
    interfaces.IReadWriteDescriptor,
)
class SDPTransport(Stream, _ConsumerMixin, _LogOwner):
    """
    One SDP connection as Twisted sees it.

    All methods belong to the reactor's thread.

    @ivar protocol: Who gets the data.
    @ivar connected: 1 from the first to the last call to the protocol.
    @ivar logstr: The log prefix, as TCP's.
    @ivar bufferSize: A streaming producer is paused when more than this many
        bytes wait, or are written at once.
    """

    __slots__ = (
        "_aborting",
        "_keepAlive",
        "_local",
        "_noDelay",
        "_peer",
        "_writeDisconnected",
        "_writeDisconnecting",
        "bufferSize",
        "connected",
        "disconnected",
        "disconnecting",
        "logstr",
        "producer",
        "producerPaused",
        "protocol",
        "streamingProducer",
    )

    _tlsClientDefault = False

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
        self._local, self._peer = local, peer
        self.protocol: Any = None
        self.connected = self.disconnected = self.disconnecting = 0
        self._writeDisconnecting = self._writeDisconnected = False
        self._aborting = self._noDelay = self._keepAlive = False
        self.logstr = "-"
        self.bufferSize = limits.SEND_BUFFER
        self.producer = None
        self.producerPaused = self.streamingProducer = False

    @property
    def reactor(self) -> Any:
        """
        The reactor that this transport belongs to.
        """
        return self.channel.reactor

    # -- ITransport

    def write(self, data: bytes, _ident: Any = get_ident) -> None:
        """
        Send C{data}: see L{interfaces.ITransport.write}.

        @raise TypeError: C{data} is not L{bytes}.
        @raise WrongThreadError: called outside the reactor's thread.
        """
        if data.__class__ is bytes and _ident() == self.thread:
            room = self.room - len(data)
            if room > GATHER_LEFT and data:
                self.room = room
                self.append(data)
                return
        self._writeSlowly(data)

    def _writeSlowly(self, data: bytes) -> None:
        """
        A write that is not just gathered.
        """
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

        @raise TypeError: one of them is not L{bytes}; then none is sent.
        """
        pieces = list(data)
        for piece in pieces:
            if not isinstance(piece, bytes):
                raise TypeError("Data must be bytes")
        SDPTransport.write(self, b"".join(pieces))

    def loseConnection(self, _connDone: object = None) -> None:
        """
        Close after everything written has left, and a pull or a paused producer
        is done.  As with TCP a push producer that is not paused is stopped.
        """
        if get_ident() != self.thread:
            raise misused(self.channel.device)
        if not self.connected or self.disconnecting:
            return
        self.stopReading()
        if self._writeDisconnected:
            self.connectionLost(Failure(CONNECTION_DONE))
            return
        self.disconnecting = 1
        self.startWriting()

    def loseWriteConnection(self) -> None:
        """
        Half-close: see L{interfaces.ITCPTransport.loseWriteConnection}.
        """
        if self.connected:
            self._writeDisconnecting = True
            self.startWriting()

    def abortConnection(self) -> None:
        """
        Drop what is queued and reset the connection; the peer sees it as lost.
        """
        if get_ident() != self.thread:
            raise misused(self.channel.device)
        if self.disconnected or self._aborting:
            return
        self._aborting = True
        self.stopReading()
        self.discard()
        # The reset is in the next turn, together with the protocol's end; on a
        # reactor that serves several batches in a turn it waits for no other.
        self.channel.endTurn()
        self.reactor.callLater(
            0, self.connectionLost, Failure(error.ConnectionAborted())
        )

    def getHost(self) -> IPv4Address | IPv6Address:
        """
        @return: The address of this end.
        """
        return self._local

    def getPeer(self) -> IPv4Address | IPv6Address:
        """
        @return: The address of the other end.
        """
        return self._peer

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
        self._noDelay = bool(enabled)

    def getTcpKeepAlive(self) -> bool:
        """
        @return: What was set.
        """
        return self._keepAlive

    def setTcpKeepAlive(self, enabled: bool) -> None:
        """
        Remember C{enabled}; a dead peer is noticed without it.
        """
        self._keepAlive = bool(enabled)

    # -- ITLSTransport

    def startTLS(self, contextFactory: Any, normal: bool = True) -> None:
        """
        Go on in TLS: see L{interfaces.ITLSTransport.startTLS}.

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

    def stopConsuming(self) -> None:
        """
        The producer has nothing more: close.
        """
        self.unregisterProducer()
        self.loseConnection()

    # -- reading: IPushProducer, IReadDescriptor

    def stopReading(self) -> None:
        """
        Take no data until L{startReading}.
        """
        self.reading = False

    def startReading(self) -> None:
        """
        Take data again; what was held comes in a later turn.
        """
        if not self.reading and not self._aborting:
            self.readAgain()

    def pauseProducing(self) -> None:
        """
        Deliver nothing until L{resumeProducing}.
        """
        self.stopReading()

    def resumeProducing(self) -> None:
        """
        Deliver again.
        """
        if self.connected and not self.disconnecting:
            self.startReading()

    def stopProducing(self) -> None:
        """
        Close the connection.
        """
        self.loseConnection()

    def fileno(self) -> int:
        """
        @return: -1: there is no descriptor per connection.
        """
        return -1

    def doRead(self) -> None:
        """
        Nothing: data comes from the device.
        """

    def doWrite(self) -> None:
        """
        Nothing: data goes to the device.
        """

    def getHandle(self) -> Any:
        """
        @return: The queue pair.
        """
        return self.queuePair

    def startWriting(self) -> None:
        """
        Look at what is queued at the end of this batch.
        """
        self.cork()

    def stopWriting(self) -> None:
        """
        Nothing: data leaves by itself.
        """

    # -- from the stream

    def deliver(self, data: bytes) -> None:
        """
        Hand data to the protocol; its exceptions end the connection.
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
            self.readConnectionLost(Failure(CONNECTION_DONE))

    def readConnectionLost(self, reason: Failure) -> None:
        """
        Tell the protocol that reading is over, or that everything is.
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

    def _tell(self, call: Any) -> None:
        """
        Call the protocol; its exceptions end the connection.
        """
        upcalls.current = self
        try:
            call()
        except BaseException:
            self._raised()
        finally:
            upcalls.current = None

    def _raised(self) -> None:
        """
        The protocol or producer raised: log it, as the reactor does, and close.
        """
        failure = Failure()
        log.err(failure)
        self.connectionLost(failure)

    def lost(self, reason: Exception) -> None:
        """
        The connection broke.
        """
        if self.connected and not self._aborting:
            self.connectionLost(Failure(error.ConnectionLost(str(reason))))

    def filled(self) -> None:
        """
        Pause a streaming producer.
        """
        producer: Any = self.producer
        if producer is not None and self.streamingProducer and not self.producerPaused:
            self.producerPaused = True
            producer.pauseProducing()

    def writing(self) -> bool:
        """
        @return: Whether a producer is paused or a close waits.
        """
        return bool(
            self.producerPaused
            or self.disconnecting
            or (self._writeDisconnecting and not self._writeDisconnected)
        )

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
        elif self.disconnecting:
            if self._sendEnd():
                self.connectionLost(Failure(CONNECTION_DONE))
        elif self._writeDisconnecting and not self._writeDisconnected:
            if self._sendEnd():
                self._writeDisconnected = True
                protocol = interfaces.IHalfCloseableProtocol(self.protocol, None)
                if protocol is not None:
                    self._tell(protocol.writeConnectionLost)

    def _sendEnd(self) -> bool:
        """
        Say that no more data comes.

        @return: Whether that has left.
        """
        self.ending = True
        self.sendDisconn()
        return not self.ending and self.queuePair.pending is None

    # -- the end

    def connectionLost(self, reason: Failure) -> None:
        """
        The last thing that happens, once.

        @param reason: L{error.ConnectionAborted} resets the connection; any
            other closes it in order.
        """
        if self.disconnected or self.protocol is None:
            return
        self.disconnected = 1
        self.connected = 0
        producer, self.producer = self.producer, None
        if producer is not None:
            self._log(producer.stopProducing)
        self.stopReading()
        if reason.check(error.ConnectionAborted):
            self.attached = False
            self.reset()
        else:
            if not self.disconnecting:
                self.discard()
            self.detach()
        self.channel.release(self)
        protocol, self.protocol = self.protocol, None
        self._log(protocol.connectionLost, reason)

    def _log(self, call: Any, *arguments: Any) -> None:
        """
        Call the application for the last time; its exceptions are logged and
        are nobody else's.
        """
        upcalls.current = self
        try:
            call(*arguments)
        except BaseException:
            log.err()
        finally:
            upcalls.current = None

    def abandon(self) -> None:
        """
        Give everything back without telling anybody: the handshake failed.
        """
        self.disconnected = 1
        self.connected = 0
        self.attached = False
        self.stopReading()
        self.queuePair.close()
        self.channel.release(self)

    def logPrefix(self) -> str:
        """
        @return: The prefix of log lines about this connection.
        """
        return self.logstr
