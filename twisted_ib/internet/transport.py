"""
What the transports of all protocols have in common: the faces of TCP's transport that have
nothing to do with what is sent.

L{Transport} is one base of a transport; the other, the protocol's own, sends and receives.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any

from twisted.internet import error
from twisted.internet.abstract import _ConsumerMixin, _LogOwner
from twisted.python import log
from twisted.python.failure import Failure

from twisted_ib import limits
from twisted_ib.errors import DeviceClosedError, HCAError, WrongThreadError
from twisted_ib.hca.base.socketrows import CLOSING, CONNECTING, CONNECTION, ESTABLISHED, Row
from twisted_ib.internet.addresses import addressOf, withPort
from twisted_ib.internet.logcontext import upcalls

if TYPE_CHECKING:
    from twisted.internet.address import IPv4Address, IPv6Address

    from twisted_ib.hca.queues.queuepair import QueuePair
    from twisted_ib.internet.channel import DeviceChannel


#: The attributes of L{Transport} that every connection has: a class that is made of it has them
#: among its C{__slots__}.
FIELDS = (
    "_localHost",
    "_localPort",
    "_peerHost",
    "_peerPort",
    "_prefix",
    "connected",
    "protocol",
)


#: The end of a connection in order: one for all, as the reactor has it for TCP.
CONNECTION_DONE = Failure(error.ConnectionDone())


def misused(device: Any) -> HCAError:
    """
    @param device: The device.
    @return: The error for a call from a thread that is not the reactor's, or
        from a forked child.
    """
    if device.closed:
        return DeviceClosedError("a transport was used in a forked child; it is its parent's")
    return WrongThreadError("a transport was used outside its reactor's thread; use reactor.callFromThread")


class Computed:
    """
    An attribute that is computed whenever somebody looks, unless he has set it: that stands then in the
    object's dictionary, which comes before this.
    """

    __slots__ = ("_compute",)

    def __init__(self, compute: Callable[[Any], Any]) -> None:
        """
        @param compute: Gives the value for an object.
        """
        self._compute = compute

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """
        @return: The value, or this for the class.
        """
        return self if instance is None else self._compute(instance)


class Transport(_ConsumerMixin, _LogOwner):
    """
    One connection as Twisted sees it; a base beside what sends and receives.

    All methods belong to the reactor's thread.

    What most connections never change stands in the class; those that do have it in a dictionary of their
    own, so that an idle connection stays small.

    @ivar protocol: Who gets the data.
    @ivar connected: 1 from the first to the last call to the protocol.
    @ivar logstr: The log prefix, as TCP's.
    @ivar bufferSize: A streaming producer is paused when more than this many
        bytes wait, or are written at once.
    @ivar _prefix: The protocol's part of C{logstr}; L{None} until there is one.
    @cvar provider: What carries it, for C{ib-ss}.
    """

    __slots__ = ()

    provider: str
    disconnected = disconnecting = 0
    bufferSize = limits.SEND_BUFFER
    _aborting = False

    channel: DeviceChannel
    queuePair: QueuePair
    thread: int
    reading: bool
    attached: bool
    _localHost: str
    _localPort: int
    _peerHost: str
    _peerPort: int
    _prefix: str | None

    def _begin(self, local: IPv4Address | IPv6Address, peer: IPv4Address | IPv6Address) -> None:
        """
        Set the attributes.

        @param local: The address of this end.
        @param peer: The address of the other end.
        """
        self._localHost, self._localPort = local.host, local.port
        self._peerHost, self._peerPort = peer.host, peer.port
        self._prefix = None
        self.protocol: Any = None
        self.connected = 0

    if TYPE_CHECKING:  # What the other base does.

        def cork(self) -> None:
            """
            Have the end of the batch told.
            """

        def discard(self) -> None:
            """
            Forget what the application wrote and has not left.
            """

        def readAgain(self) -> None:
            """
            The application reads again.
            """

        def reset(self) -> None:
            """
            End the connection so that the peer sees it as lost.
            """

        def detach(self) -> None:
            """
            The application's part is over.
            """

        def destroy(self) -> None:
            """
            It was never connected: destroy the queue pair.
            """

    # -- ITransport

    @property
    def reactor(self) -> Any:
        """
        The reactor that this transport belongs to.
        """
        return self.channel.reactor

    def loseConnection(self, _connDone: object = None) -> None:
        """
        Close after everything written has left, and a pull or a paused producer
        is done.  As with TCP a push producer that is not paused is stopped.
        """
        if get_ident() != self.thread:
            raise misused(self.channel.device)
        if not self.connected or self.disconnecting:
            return
        self.disconnecting = 1
        self.stopReading()
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
        self.reactor.callLater(0, self.connectionLost, Failure(error.ConnectionAborted()))

    def getHost(self) -> IPv4Address | IPv6Address:
        """
        @return: The address of this end.
        """
        return addressOf(self._localHost, self._localPort)

    def getPeer(self) -> IPv4Address | IPv6Address:
        """
        @return: The address of the other end.
        """
        return addressOf(self._peerHost, self._peerPort)

    def unregisterProducer(self) -> None:
        """
        See L{interfaces.IConsumer<twisted.internet.interfaces.IConsumer>}.  The next one begins
        unpaused.
        """
        self.producerPaused = False
        super().unregisterProducer()

    def stopConsuming(self) -> None:
        """
        The producer has nothing more: close.
        """
        self.unregisterProducer()
        self.loseConnection()

    # -- for ib-ss

    def socketRow(self) -> Row | None:
        """
        @return: What C{ib-ss} shows of it; L{None} if it is over.
        """
        state, path = self.phase(), self.queuePair.path
        if path is None and state != CONNECTING:
            return None
        return Row(
            CONNECTION,
            self.provider,
            withPort(self._localHost, self._localPort),
            withPort(self._peerHost, self._peerPort),
            state,
            self.credits(),
            self.unsent(),
            getattr(path, "retransmits", 0),
        )

    def phase(self) -> str:
        """
        @return: Its state, in TCP's words.
        """
        if self.connected:
            return CLOSING if self.disconnecting else ESTABLISHED
        return CLOSING if self.disconnected else CONNECTING

    def credits(self) -> int | None:
        """
        @return: How many messages the peer takes now; L{None} if there are no credits.
        """
        return None

    def unsent(self) -> int:
        """
        @return: How many bytes were written that the medium has not taken.
        """
        pending = self.queuePair.pending
        return sum([send[3] for send in pending]) if pending else 0

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

        @param reason: Why.
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
        return bool(self.producerPaused or self.disconnecting)

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
        producer = self.producer
        if producer is not None:
            self.producer = None
            self._log(producer.stopProducing)
        self.stopReading()
        if isinstance(reason.value, error.ConnectionAborted):
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
        self.destroy()
        self.channel.release(self)

    def _logName(self) -> str:
        return "-" if self._prefix is None else self._prefix

    logstr: Any = Computed(lambda transport: transport._logName())

    def logPrefix(self) -> str:
        """
        @return: The prefix of log lines about this connection.
        """
        return str(self.logstr)
