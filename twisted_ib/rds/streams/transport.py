"""
The Twisted transport of a stream over reliable datagrams (ITCPTransport).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from twisted.internet import error, interfaces
from twisted.internet.abstract import _ConsumerMixin, _LogOwner
from twisted.python import log
from twisted.python.failure import Failure
from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.internet.addressing.addresses import Address, addressOf
from twisted_ib.internet.logcontext import callLast, upcalls
from twisted_ib.rds.protocol.frames import EndReason
from twisted_ib.rds.protocol.streammachine import StreamEvent, StreamMachine, StreamState

if TYPE_CHECKING:
    from twisted_ib.rds.streams.streamsocket import StreamSocket

_CONNECTION_DONE = Failure(error.ConnectionDone())

#: The texts of the reasons, for logs and exceptions.
_WORDS: dict[int, str] = {
    EndReason.ABORTED: "the peer aborted the connection",
    EndReason.VIOLATION: "one end found that the other broke the rules",
    EndReason.DATA_LOST: "a datagram was lost",
    EndReason.SILENT: "the peer does not answer",
    EndReason.NO_MEMORY: "too many bytes wait for a protocol that does not read",
    EndReason.GONE: "the peer is gone",
    EndReason.NO_LISTENER: "nobody listens",
    EndReason.TOO_MANY: "the peer has too many connections",
    EndReason.UNWANTED: "the peer does not want the connection",
    EndReason.VERSION: "the peer speaks another version of streams over RDS",
}


def wordsOf(reason: int) -> str:
    """
    @return: the text of a reason; a peer may send any number.
    """
    return _WORDS.get(reason, f"reason {reason}")


@implementer(interfaces.ITCPTransport, interfaces.IConsumer, interfaces.IPushProducer)
class StreamTransport(_ConsumerMixin, _LogOwner):
    """
    One end of a stream as a Twisted transport.

    @ivar socket: the socket that carries it.
    @ivar session: its state machine.
    @ivar protocol: the protocol; L{None} after its C{connectionLost}.
    @ivar connected: 1 from the first to the last call of the protocol.
    @ivar logstr: the log prefix.
    @ivar bufferSize: a streaming producer is paused when more bytes than this are queued.
    """

    connected = disconnecting = disconnected = 0
    reading = True
    bufferSize = limits.SEND_BUFFER
    logstr = "Uninitialized"
    protocol: Any = None
    _aborting = _finishing = _readEnded = False
    # Nothing like Nagle's algorithm delays data, and keepalive probes are always sent.
    _noDelay = _keepAlive = True

    def __init__(self, socket: StreamSocket, session: StreamMachine, host: str) -> None:
        self.socket = socket
        self.session = session
        self._host = host
        session.user = self

    # -- connecting

    def attach(self, protocol: Any, role: str) -> None:
        """
        The stream is established: connect the protocol.

        @param role: the log prefix behind the protocol's.
        """
        self.connected = 1
        self.protocol = protocol
        self.logstr = f"{self._getLogPrefix(protocol)},{role}"
        self._tell(protocol.makeConnection, self)

    # -- ITransport, ITCPTransport

    def write(self, data: bytes) -> None:
        """
        Send bytes, in this turn or when the peer's window allows.

        @raise TypeError: C{data} is not L{bytes}.
        """
        if not isinstance(data, bytes):
            raise TypeError("Data must be bytes")
        if self.connected and not self._aborting and not self._finishing:
            session = self.session
            session.write(data)
            if self.producer is not None and session.queuedBytes > self.bufferSize:
                self._filled()
            self.socket.touch(session)

    def writeSequence(self, data: Iterable[bytes]) -> None:
        """
        Send pieces as if they were one.

        @raise TypeError: one of them is not L{bytes}; nothing is sent then.
        """
        self.write(b"".join(data))

    def loseConnection(self) -> None:
        """
        Close when everything written is sent, and a pull producer or a paused one has finished.
        """
        if self.connected and not self.disconnecting:
            self.disconnecting = 1
            # Nothing is delivered after loseConnection(); unread data would keep the window closed, and the
            # peer's FIN behind it.
            self.session.discardArrived()
            self.socket.touch(self.session)

    def loseWriteConnection(self) -> None:
        """
        Half close: send FIN behind the data written, and go on reading (RFC 9293 section 3.6.1).
        """
        if self.connected and not self.disconnecting and not self._finishing:
            self._finishing = True
            self.socket.touch(self.session)

    def abortConnection(self) -> None:
        """
        Drop queued data and reset the stream.
        """
        if self.disconnected or self._aborting:
            return
        self._aborting = True
        self.session.abort()
        self.session.events.clear()
        self.socket.touch(self.session)
        # In a later turn, as twisted.internet.tcp does: the caller may be the protocol itself.
        self.socket.reactor.callLater(0, self.connectionLost, Failure(error.ConnectionAborted()))

    def getHost(self) -> Address:
        return addressOf(self._host, self.socket.port)

    def getPeer(self) -> Address:
        return addressOf(*self.session.address)

    def getTcpNoDelay(self) -> bool:
        return self._noDelay

    def setTcpNoDelay(self, enabled: bool) -> None:
        """
        Remember the value.  There is no Nagle algorithm to switch off (RFC 1122 section 4.2.3.4).
        """
        self._noDelay = bool(enabled)

    def getTcpKeepAlive(self) -> bool:
        return self._keepAlive

    def setTcpKeepAlive(self, enabled: bool) -> None:
        """
        Remember the value.  Keepalive probes are always sent (as RFC 9293 section 3.8.4).
        """
        self._keepAlive = bool(enabled)

    # -- as a consumer

    def startWriting(self) -> None:
        self.socket.touch(self.session)

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        super().registerProducer(producer, streaming)
        if self.connected:
            self.socket.touch(self.session)

    def unregisterProducer(self) -> None:
        """
        See L{interfaces.IConsumer}.  The next producer starts unpaused.
        """
        self.producerPaused = False
        super().unregisterProducer()
        if self.connected and self._finishing:
            self.startWriting()

    def _filled(self) -> None:
        producer: Any = self.producer
        if self.streamingProducer and not self.producerPaused:
            self.producerPaused = True
            producer.pauseProducing()

    def drained(self) -> None:
        """
        Everything written is sent: resume the producer, or end this direction.
        """
        if not self.connected or self._aborting:
            return
        producer: Any = self.producer
        # As twisted.internet.abstract: the producer finishes before a connection is closed.
        if producer is not None and (not self.streamingProducer or self.producerPaused):
            self.producerPaused = False
            self._tell(producer.resumeProducing)
        elif self.disconnecting:
            self.session.close()
        elif self._finishing and not self.session.ending:
            self.session.finish()
            half = interfaces.IHalfCloseableProtocol(self.protocol, None)
            if half is not None:
                self._tell(half.writeConnectionLost)

    # -- as a producer

    def pauseProducing(self) -> None:
        self.reading = False

    def resumeProducing(self) -> None:
        if not self.reading and self.connected and not self.disconnecting:
            self.reading = True
            if self.session.arrived or self.session.events:
                self.socket.look(self)

    def stopProducing(self) -> None:
        self.loseConnection()

    startReading = resumeProducing
    stopReading = pauseProducing

    # -- delivery and end

    def arrived(self) -> None:
        """
        Deliver received data while the protocol reads, then the events behind them.
        """
        session = self.session
        while session.arrived:
            if not self.connected or self.disconnecting or self._aborting:
                session.discardArrived()
                break
            if not self.reading:
                return
            self._tell(self.protocol.dataReceived, session.take())
        # The end of the stream waits behind unread data.
        if self.reading or self.disconnecting or not self.connected:
            while session.events:
                event, reason = session.events.popleft()
                if self.connected and not self._aborting:
                    self._happened(event, reason)

    def _happened(self, event: StreamEvent, reason: int) -> None:
        if event is StreamEvent.CLOSED and reason:
            self.connectionLost(Failure(error.ConnectionLost(wordsOf(reason))))
            return
        if event is StreamEvent.END and self.disconnecting:
            # The peer has only half closed: what was written is still sent before the end.
            return
        # A protocol that cannot half close loses the connection at the peer's FIN, as in
        # twisted.internet.tcp.
        half = None if self.disconnecting else interfaces.IHalfCloseableProtocol(self.protocol, None)
        if half is not None and not self._readEnded:
            self._readEnded = True
            self._tell(half.readConnectionLost)
        if event is StreamEvent.CLOSED or half is None:
            self.connectionLost(_CONNECTION_DONE)

    def _tell(self, call: Any, *arguments: Any) -> None:
        # An exception of the protocol ends its connection, as in twisted.internet.posixbase.
        upcalls.current = self
        try:
            call(*arguments)
        except BaseException:
            failure = Failure()
            log.err(failure)
            self.connectionLost(failure)
        finally:
            upcalls.current = None

    def connectionLost(self, reason: Failure) -> None:
        """
        End the connection, once.
        """
        if self.disconnected or self.protocol is None:
            return
        self.disconnected = 1
        self.connected = 0
        producer, self.producer = self.producer, None
        if producer is not None:
            callLast(self, producer.stopProducing)
        session = self.session
        session.discardArrived()
        if session.state is not StreamState.CLOSED:
            if isinstance(reason.value, error.ConnectionDone):
                # The peer has closed in order, or half closed to a protocol that cannot: unsent data is
                # dropped.
                session.discardWritten()
                session.close()
            else:
                session.abort()
            self.socket.touch(session)
        session.events.clear()
        protocol, self.protocol = self.protocol, None
        callLast(self, protocol.connectionLost, reason)
        self.socket.ended(self, reason)

    def logPrefix(self) -> str:
        return self.logstr

    def __repr__(self) -> str:
        return f"<{self.__class__.__name__} of {self.logstr} with {self.session.address}>"
