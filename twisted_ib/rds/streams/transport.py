"""
The Twisted transport of a stream over reliable datagrams.
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
from twisted_ib.internet.addresses import Address, addressOf
from twisted_ib.internet.logcontext import upcalls
from twisted_ib.rds.protocol.frames import Reason
from twisted_ib.rds.protocol.streammachine import StreamEvent, StreamMachine, StreamState

if TYPE_CHECKING:
    from twisted_ib.rds.streams.streamsocket import StreamSocket

_CONNECTION_DONE = Failure(error.ConnectionDone())

#: Why a stream broke, for who reads it.
_WORDS = {
    Reason.ABORTED: "the peer aborted the connection",
    Reason.VIOLATION: "one end found that the other broke the rules",
    Reason.DATA_LOST: "a datagram was lost",
    Reason.SILENT: "the peer does not answer",
    Reason.NO_MEMORY: "too many bytes wait for a protocol that does not read",
    Reason.GONE: "the peer is gone",
    Reason.NO_LISTENER: "nobody listens",
    Reason.TOO_MANY: "the peer has too many connections",
    Reason.UNWANTED: "the peer does not want the connection",
    Reason.VERSION: "the peer speaks another version of streams over RDS",
}


def wordsOf(reason: int) -> str:
    """
    @return: What a reason means; a peer may give any.
    """
    return _WORDS.get(reason, f"reason {reason}")  # type: ignore[call-overload]


@implementer(interfaces.ITCPTransport, interfaces.IConsumer, interfaces.IPushProducer)
class StreamTransport(_ConsumerMixin, _LogOwner):
    """
    One end of a stream as Twisted sees it.

    @ivar socket: The socket that carries it.
    @ivar session: The end itself.
    @ivar protocol: Who gets the data; L{None} when it has heard of the end.
    @ivar connected: 1 from the first to the last call to the protocol.
    @ivar logstr: The log prefix.
    @ivar bufferSize: A streaming producer is paused when more than this many bytes wait, or are
        written at once.
    """

    connected = disconnecting = disconnected = 0
    reading = True
    bufferSize = limits.SEND_BUFFER
    logstr = "Uninitialized"
    protocol: Any = None
    _aborting = _finishing = _readEnded = False
    # Datagrams do not wait for each other, and streams are always watched.
    _noDelay = _keepAlive = True

    def __init__(self, socket: StreamSocket, session: StreamMachine, host: str) -> None:
        """
        @param host: The address of this end.
        """
        self.socket = socket
        self.session = session
        self._host = host
        session.user = self

    # -- the beginning

    def attach(self, protocol: Any, role: str) -> None:
        """
        The stream stands: hook the protocol up.

        @param role: What the log prefix has besides the protocol's.
        """
        self.connected = 1
        self.protocol = protocol
        self.logstr = f"{self._getLogPrefix(protocol)},{role}"
        self._tell(protocol.makeConnection, self)

    # -- ITransport, ITCPTransport

    def write(self, data: bytes) -> None:
        """
        Send bytes, in this turn or when the peer has room.

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

        @raise TypeError: One of them is not L{bytes}; then nothing is sent.
        """
        self.write(b"".join(data))

    def loseConnection(self) -> None:
        """
        Close when everything written has left, and a pull or a paused producer is done.
        """
        if self.connected and not self.disconnecting:
            self.disconnecting = 1
            self.session.discardArrived()
            self.socket.touch(self.session)

    def loseWriteConnection(self) -> None:
        """
        Send nothing more behind what is written; go on reading.
        """
        if self.connected and not self.disconnecting and not self._finishing:
            self._finishing = True
            self.socket.touch(self.session)

    def abortConnection(self) -> None:
        """
        Drop what waits and reset the stream; the peer sees it as lost.
        """
        if self.disconnected or self._aborting:
            return
        self._aborting = True
        self.session.abort()
        self.session.events.clear()
        self.socket.touch(self.session)
        self.socket.reactor.callLater(0, self.connectionLost, Failure(error.ConnectionAborted()))

    def getHost(self) -> Address:
        """
        @return: The address of this end.
        """
        return addressOf(self._host, self.socket.port)

    def getPeer(self) -> Address:
        """
        @return: The address of the other end.
        """
        return addressOf(*self.session.address)

    def getTcpNoDelay(self) -> bool:
        """
        @return: What was set last.
        """
        return self._noDelay

    def setTcpNoDelay(self, enabled: bool) -> None:
        """
        Remember it: what is written leaves at once anyhow.
        """
        self._noDelay = bool(enabled)

    def getTcpKeepAlive(self) -> bool:
        """
        @return: What was set last.
        """
        return self._keepAlive

    def setTcpKeepAlive(self, enabled: bool) -> None:
        """
        Remember it: a peer is watched anyhow.
        """
        self._keepAlive = bool(enabled)

    # -- as a consumer

    def startWriting(self) -> None:
        """
        Look at what is to be done in this turn.
        """
        self.socket.touch(self.session)

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """
        See L{interfaces.IConsumer}.
        """
        super().registerProducer(producer, streaming)
        if self.connected:
            self.socket.touch(self.session)

    def unregisterProducer(self) -> None:
        """
        See L{interfaces.IConsumer}.  The next one begins unpaused.
        """
        self.producerPaused = False
        super().unregisterProducer()
        if self.connected and self._finishing:
            self.startWriting()

    def _filled(self) -> None:
        """
        More than a buffer's worth waits: pause a streaming producer.
        """
        producer: Any = self.producer
        if self.streamingProducer and not self.producerPaused:
            self.producerPaused = True
            producer.pauseProducing()

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
            self.session.close()
        elif self._finishing and not self.session.ending:
            self.session.finish()
            half = interfaces.IHalfCloseableProtocol(self.protocol, None)
            if half is not None:
                self._tell(half.writeConnectionLost)

    # -- as a producer

    def pauseProducing(self) -> None:
        """
        Deliver nothing until C{resumeProducing}.
        """
        self.reading = False

    def resumeProducing(self) -> None:
        """
        Deliver again; what waits comes in this turn, but not from within this call.
        """
        if not self.reading and self.connected and not self.disconnecting:
            self.reading = True
            if self.session.arrived or self.session.events:
                self.socket.look(self)

    def stopProducing(self) -> None:
        """
        Close the connection.
        """
        self.loseConnection()

    startReading = resumeProducing
    stopReading = pauseProducing

    # -- what the session tells

    def arrived(self) -> None:
        """
        Deliver what has arrived, as long as the protocol reads, and then what happened.
        """
        session = self.session
        while session.arrived:
            if not self.connected or self.disconnecting or self._aborting:
                session.discardArrived()
                break
            if not self.reading:
                return
            self._tell(self.protocol.dataReceived, session.take())
        if self.reading or self.disconnecting or not self.connected:
            while session.events:
                event, reason = session.events.popleft()
                if self.connected and not self._aborting:
                    self._happened(event, reason)

    def _happened(self, event: StreamEvent, reason: int) -> None:
        """
        The peer sends no more, or the stream is over.
        """
        if event is StreamEvent.CLOSED and reason:
            self.connectionLost(Failure(error.ConnectionLost(wordsOf(reason))))
            return
        if event is StreamEvent.END and self.disconnecting:
            return  # What is written leaves first.
        half = None if self.disconnecting else interfaces.IHalfCloseableProtocol(self.protocol, None)
        if half is not None and not self._readEnded:
            self._readEnded = True
            self._tell(half.readConnectionLost)
        if event is StreamEvent.CLOSED or half is None:
            self.connectionLost(_CONNECTION_DONE)

    def _tell(self, call: Any, *arguments: Any) -> None:
        """
        Call the application; its exceptions end the connection.
        """
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
        The last thing that happens, once.
        """
        if self.disconnected or self.protocol is None:
            return
        self.disconnected = 1
        self.connected = 0
        producer, self.producer = self.producer, None
        if producer is not None:
            self._log(producer.stopProducing)
        session = self.session
        session.discardArrived()
        if session.state is not StreamState.CLOSED:
            if isinstance(reason.value, error.ConnectionDone):
                # The peer has sent its last: nobody waits for what was not sent.
                session.discardWritten()
                session.close()
            else:
                session.abort()
            self.socket.touch(session)
        session.events.clear()
        protocol, self.protocol = self.protocol, None
        self._log(protocol.connectionLost, reason)
        self.socket.ended(self, reason)

    def _log(self, call: Any, *arguments: Any) -> None:
        """
        Call the application for the last time; its exceptions are logged.
        """
        upcalls.current = self
        try:
            call(*arguments)
        except BaseException:
            log.err()
        finally:
            upcalls.current = None

    def logPrefix(self) -> str:
        """
        @return: The prefix of log lines about this connection.
        """
        return self.logstr

    def __repr__(self) -> str:
        return f"<{self.__class__.__name__} of {self.logstr} with {self.session.address}>"
