"""
The parts of a transport that do not depend on what is sent: the same for streams and messages.

L{Transport} is one base class of a transport; the protocol's own base class sends and receives.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any

from twisted.internet import error
from twisted.internet.abstract import _ConsumerMixin, _LogOwner
from twisted.python import log
from twisted.python.failure import Failure

from twisted_ib.errors import DeviceClosedError, HCAError, WrongThreadError
from twisted_ib.hca.base.socketrows import CLOSING, CONNECTING, CONNECTION, ESTABLISHED, Row
from twisted_ib.internet.addressing.addresses import Address, End, addressOf, withPort
from twisted_ib.internet.logcontext import callLast, upcalls

if TYPE_CHECKING:
    from twisted.internet.address import IPv4Address, IPv6Address
    from twisted.internet.base import ReactorBase

    from twisted_ib.hca.transport.requester import Requester
    from twisted_ib.internet.channel import DeviceChannel


#: Attributes that each connection has, for the C{__slots__} of the classes made of L{Transport}.
FIELDS = (
    "_localHost",
    "_localPort",
    "_peerHost",
    "_prefix",
    "connected",
)


#: The reason of an orderly close, one object for all, as C{twisted.internet.main} has it for TCP.
CONNECTION_DONE = Failure(error.ConnectionDone())


def misused(device: Any) -> HCAError:
    """
    Return the error for a call from a thread that is not the reactor's, or from a forked child.
    """
    # librdmacm/preload.c: RDMA connections do not cross a fork; it connects over TCP and switches to RDMA in
    # the process that uses the socket.  Here the child has no device at all.
    if device.closed:
        return DeviceClosedError("a transport was used in a forked child; it is its parent's")
    return WrongThreadError("a transport was used outside its reactor's thread; use reactor.callFromThread")


class Computed:
    """
    A non-data descriptor that computes its value; an instance's C{__dict__} overrides it.
    """

    __slots__ = ("_compute",)

    def __init__(self, compute: Callable[[Any], Any]) -> None:
        self._compute = compute

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else self._compute(instance)


class Transport(_ConsumerMixin, _LogOwner):
    """
    One connection as Twisted sees it; all methods belong to the reactor's thread: see
    L{ITCPTransport<twisted.internet.interfaces.ITCPTransport>},
    L{IPushProducer<twisted.internet.interfaces.IPushProducer>}, and as a reactor closes all that it has, see
    L{IReadWriteDescriptor<twisted.internet.interfaces.IReadWriteDescriptor>}.

    Attributes that few connections change stand in the class: an idle connection stays small.

    @ivar protocol: The protocol; L{None} before and after the connection.
    @ivar connected: 1 from the first to the last call to the protocol.
    @ivar logstr: The log prefix, as TCP's.
    @ivar bufferSize: A streaming producer is paused when more than this many bytes wait, or are written at
        once.
    @ivar _prefix: The protocol's part of C{logstr}; L{None} until there is one.
    @cvar provider: The provider's name, for C{ib-ss}.
    """

    __slots__ = ()

    provider: str
    disconnected = disconnecting = 0
    _aborting = False

    channel: DeviceChannel
    queuePair: Any
    thread: int
    reading: bool
    attached: bool
    _localHost: str
    _localPort: int
    _peerHost: str
    _peerPort: int
    _prefix: str | None
    bufferSize: int

    def _begin(self, local: Address | End, peer: Address) -> None:
        self._localHost, self._localPort = local.host, local.port
        self._peerHost, self._peerPort = peer.host, peer.port
        self._prefix = None
        self.protocol: Any = None
        self.connected = 0

    def checkCaller(self) -> None:
        """
        Check the calling thread.

        @raise WrongThreadError: This is not the reactor's thread.
        @raise DeviceClosedError: This is a forked child.
        """
        if get_ident() != self.thread:
            raise misused(self.channel.device)

    # For type checkers: methods of the other base class, which documents them.
    if TYPE_CHECKING:

        def cork(self) -> None: ...
        def discard(self) -> None: ...
        def readAgain(self) -> None: ...
        def reset(self) -> None: ...
        def detach(self) -> None: ...
        def destroy(self) -> None: ...

    # -- ITransport

    @property
    def reactor(self) -> ReactorBase:
        """
        The reactor that this transport belongs to.
        """
        return self.channel.reactor

    def loseConnection(self, _connDone: object = None) -> None:
        """
        Close after all written data and after a pull producer or a paused push producer is done.

        As with TCP a push producer that is not paused is stopped.
        """
        # A device is not locked: a call from another thread would corrupt the queue pair, and silently.
        if get_ident() != self.thread:
            raise misused(self.channel.device)
        if not self.connected or self.disconnecting:
            return
        self.disconnecting = 1
        self.stopReading()
        self.startWriting()

    def abortConnection(self) -> None:
        if get_ident() != self.thread:
            raise misused(self.channel.device)
        if self.disconnected or self._aborting:
            return
        self._aborting = True
        self.stopReading()
        self.discard()
        # RFC 9293 section 3.10.5: an abort sends a reset.  Like Twisted's TCP the protocol is notified in the
        # next turn, never within its own call.  The reset goes with that, and a reactor that serves several
        # batches in a turn ends its turn here so as not to delay it.
        self.channel.endTurn()
        self.reactor.callLater(0, self.connectionLost, Failure(error.ConnectionAborted()))

    def getHost(self) -> IPv4Address | IPv6Address:
        return addressOf(self._localHost, self._localPort)

    def getPeer(self) -> IPv4Address | IPv6Address:
        return addressOf(self._peerHost, self._peerPort)

    def unregisterProducer(self) -> None:
        # The next producer begins unpaused.
        self.producerPaused = False
        super().unregisterProducer()

    def stopConsuming(self) -> None:
        """
        Unregister the producer and close.
        """
        self.unregisterProducer()
        self.loseConnection()

    # -- for ib-ss

    def socketRow(self) -> Row | None:
        """
        Return the row of C{ib-ss}; L{None} after the connection.
        """
        state, path = self.phase(), self.queuePair.path
        if path is None and state != CONNECTING:
            return None
        row = Row(
            CONNECTION,
            self.provider,
            withPort(self._localHost, self._localPort),
            withPort(self._peerHost, self._peerPort),
            state,
            self.credits(),
            self.unsent(),
            getattr(path, "retransmits", 0),
        )
        # Counted by the sequence numbers that there are: nothing is counted for each message.
        owner: object = self.queuePair.work or self.queuePair.consumer
        traffic: Callable[[], tuple[int, int, int, int]] | None = getattr(owner, "traffic", None)
        if traffic is not None:
            _, _, row.messagesSent, row.messagesReceived = traffic()
        # Of packets, which the peer acknowledges by itself.
        requester: Requester | None = getattr(path, "requester", None)
        if requester is not None:
            row.roundTrip = requester.pacing.roundTrip() or None
        return row

    def phase(self) -> str:
        """
        Return the state in TCP's words.
        """
        if self.connected:
            return CLOSING if self.disconnecting else ESTABLISHED
        return CLOSING if self.disconnected else CONNECTING

    def credits(self) -> int | None:
        """
        Return how many messages the peer accepts now; L{None} without flow control by credits.
        """
        return None

    def unsent(self) -> int:
        """
        Return how many bytes were written that the medium has not accepted.
        """
        pending = self.queuePair.pending
        return sum([send[3] for send in pending]) if pending else 0

    # -- reading: IPushProducer, IReadDescriptor

    def stopReading(self) -> None:
        """
        Pause delivery until L{startReading}.
        """
        self.reading = False

    def startReading(self) -> None:
        """
        Resume delivery; data that was held back comes in a later turn.
        """
        if not self.reading and not self._aborting:
            self.readAgain()

    def pauseProducing(self) -> None:
        self.stopReading()

    def resumeProducing(self) -> None:
        # twisted.internet.abstract.FileDescriptor.resumeProducing has the same condition: a consumer that
        # resumes its producer after loseConnection() gets no more data.
        if self.connected and not self.disconnecting:
            self.startReading()

    def stopProducing(self) -> None:
        self.loseConnection()

    def fileno(self) -> int:
        # A connection has no descriptor.
        return -1

    def doRead(self) -> None:
        pass  # Data comes from the device.

    def doWrite(self) -> None:
        pass  # Data goes to the device.

    def getHandle(self) -> Any:
        """
        Return the queue pair.
        """
        return self.queuePair

    def startWriting(self) -> None:
        self.cork()

    def stopWriting(self) -> None:
        """
        Do nothing: data leaves by itself.
        """

    def _tell(self, call: Any) -> None:
        upcalls.current = self
        try:
            call()
        except BaseException:
            self._raised()
        finally:
            upcalls.current = None

    def _raised(self) -> None:
        # As the reactor does with what doRead() of a TCP connection raises (twisted.internet.posixbase,
        # _disconnectSelectable).
        failure = Failure()
        log.err(failure)
        self.connectionLost(failure)

    def lost(self, reason: Exception) -> None:
        """
        Report a broken connection to the protocol.
        """
        # A reset of our own also flushes the queue pair with an error; its reason is ConnectionAborted.
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
        Return whether a producer is paused or a close waits.
        """
        return bool(self.producerPaused or self.disconnecting)

    # -- the end

    def connectionLost(self, reason: Failure) -> None:
        """
        End the connection and notify the protocol, once.

        @param reason: L{error.ConnectionAborted} resets the connection; any other closes it in order.
        """
        if self.disconnected or self.protocol is None:
            return
        # Before any call of the application: stopProducing() may close again.
        self.disconnected = 1
        self.connected = 0
        producer = self.producer
        if producer is not None:
            self.producer = None
            callLast(self, producer.stopProducing)
        if self.reading:
            self.stopReading()
        if isinstance(reason.value, error.ConnectionAborted):
            self.attached = False
            self.reset()
        else:
            # Data written before loseConnection() is still sent.  An error cuts it off, as connectionLost()
            # of twisted.internet.abstract drops the buffers of a TCP transport.
            if not self.disconnecting:
                self.discard()
            self.detach()
        self.channel.release(self)
        # Transport and protocol refer to each other; without this only the garbage collector would free them.
        protocol, self.protocol = self.protocol, None
        callLast(self, protocol.connectionLost, reason)

    def abandon(self) -> None:
        """
        Release everything without notifying anybody: the handshake failed.
        """
        self.disconnected = 1
        self.connected = 0
        self.attached = False
        self.stopReading()
        self.destroy()
        self.channel.release(self)

    def _logName(self) -> str:
        return "-" if self._prefix is None else self._prefix

    logstr: Any = Computed(lambda transport: transport._logName())

    def logPrefix(self) -> str:
        return str(self.logstr)
