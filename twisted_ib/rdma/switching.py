"""
L{switchToRDMA}: a connection of bytes goes on as one of messages, RDMA READ and WRITE, as C{startTLS} lets
one go on encrypted.

Both ends agree to switch in their own protocol; then each calls it at the same point, after its last byte.
A L{Switch} waits until what was written has been sent, and then connects a queue pair to the peer's: over the
path of the former transport (L{StreamSwitch}), or over its TCP connection itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from attrs import frozen
from twisted.internet import error, tcp
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IProtocol, IPullProducer, ISSLTransport
from twisted.python.failure import Failure
from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.errors import HCAError, NotSwitchableError, SwitchError, SwitchTimeoutError
from twisted_ib.hca.base.traits import IB_PRIVATE_BYTES
from twisted_ib.hca.connection import ConnectRequest, RejectReason
from twisted_ib.hca.connection.active import ActiveSide
from twisted_ib.hca.connection.rdmacm import HEADER_BYTES, RDMACMHeader
from twisted_ib.interfaces import IRDMATransport, ISDPTransport
from twisted_ib.internet import failures
from twisted_ib.internet.channel import channelFor
from twisted_ib.internet.transport import CONNECTION_DONE
from twisted_ib.rdma import handshake
from twisted_ib.rdma.port import checkMessageSize, checkPrivateData
from twisted_ib.rdma.successor import (
    Former,
    FormerSocket,
    FormerTransport,
    Keeper,
    SwitchedTransport,
    become,
    hasSwitched,
    tell,
)

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall

    from twisted_ib.hca.base.interfaces import IPeerPath
    from twisted_ib.hca.connection import ConnectReply, ConnectRequest, Rejection
    from twisted_ib.hca.connection.interfaces import IConnection
    from twisted_ib.hca.device.device import Device
    from twisted_ib.hca.fabric.base.streams import IAdoptedPath
    from twisted_ib.internet.channel import DeviceChannel

#: The device for a TCP connection; it need not have been added.
DEVICE = "iwarp0"
#: The service ids: a number that an operating system assigns (IBTA vol. 1 annex A3: the first byte is 0x02;
#: Linux cm.c IB_CM_ASSIGN_SERVICE_ID), "SDPR" over SDP and "MPAS" over TCP, and the 24 bits of the passive
#: side's queue pair.
STREAM_SERVICE = 0x02 << 56 | int.from_bytes(b"SDPR", "big") << 24
SOCKET_SERVICE = 0x02 << 56 | int.from_bytes(b"MPAS", "big") << 24
#: Seconds until a REQ is repeated that came before the passive side's call, doubled each time.
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 0.01, 0.5
#: Seconds after which a switch fails, unless it is told otherwise.
SWITCH_SECONDS = 10.0
#: Private data of each end: what a REQ with its RDMA-CM header and a REP hold (IBTA vol. 1 12.6).  MPA would
#: hold more (RFC 5044 section 7.1), but programs do not know what carries their connection.
INITIATOR_BYTES = IB_PRIVATE_BYTES.request - HEADER_BYTES
RESPONDER_BYTES = IB_PRIVATE_BYTES.reply


@frozen
class SwitchOptions:
    """
    The arguments of L{switchToRDMA}.
    """

    isInitiator: bool
    leftover: bytes
    privateData: bytes
    seconds: float
    maxMessageSize: int


@implementer(IPullProducer)
class Switch(ActiveSide, ABC):
    """
    One connection that switches, from the call until its successor has ended.

    @ivar former: The transport that it has been.
    @ivar host: Its address; C{peer} the other end's.
    @ivar deferred: Fires with the successor.
    @ivar protocol: The application's, until the successor has it.
    @ivar transport: The successor, once there is one; C{channel} is that of its device.
    @ivar privateData: The bytes that this end sends; C{maxMessageSize} likewise as of L{switchToRDMA}.
    @cvar kind: The class that is put before that of the former transport.
    """

    device: Device

    kind: type[FormerTransport]

    transport: SwitchedTransport | None = None
    channel: DeviceChannel | None = None
    protocol: IProtocol | None = None
    #: That of the request; 0 for the one of the peer's port.
    serviceID = 0
    _isSending = False
    _served = 0
    #: The delayed call that goes on with what L{drained} has begun.
    _later: IDelayedCall | None = None

    def __init__(self, former: Former, options: SwitchOptions) -> None:
        # The device, which is all that an active side is made with, follows.
        self.former = former
        self.options = options
        self.privateData = options.privateData
        self.maxMessageSize = options.maxMessageSize
        self.host, self.peer = former.getHost(), former.getPeer()
        self.deferred: Deferred[SwitchedTransport] = Deferred(lambda _: self.close("abortConnection"))

    def begin(self) -> Deferred[SwitchedTransport]:
        """
        Take the transport over from the application.
        """
        former = self.former
        self._timer = former.reactor.callLater(self.options.seconds, self._timedOut)
        # A pull producer is asked for more whenever what was written has been sent.
        former.registerProducer(self, False)
        become(former, self.kind, self)
        self.protocol = former.handOver(Keeper(self))
        self.begun()
        return self.deferred

    @abstractmethod
    def begun(self) -> None:
        """
        Start or stop reading from the former transport.
        """

    @abstractmethod
    def drained(self) -> None:
        """
        All that was written has been sent: connect.
        """

    def discard(self) -> None:
        """
        End what L{drained} has begun, and the former transport.
        """
        self.serveNoMore()
        if self._later is not None and self._later.active():
            self._later.cancel()
        if self.transport is not None:
            self.transport.abandon()
        self.former.connectionLost(Failure(error.ConnectionAborted()))

    # -- IPullProducer of the former transport

    def resumeProducing(self) -> None:
        # More could be written; at first this is only the former transport's greeting.
        if self.isOver:
            return
        if not self._isSending:
            self._isSending = True
            self.former.startWriting()
            return
        self.former.unregisterProducer()
        self.drained()

    def stopProducing(self) -> None:
        pass  # The former transport ends, which it tells its protocol too.

    # -- what may happen meanwhile

    def streamReceived(self) -> None:
        """
        The peer wrote to the stream when it should have switched.
        """
        self.failed("the peer went on with its stream of bytes")

    def formerLost(self, reason: Failure) -> None:
        """
        The former transport has ended; nobody else was told.
        """
        if not self.isOver:
            self._fail(SwitchError(f"the connection was lost: {reason.getErrorMessage()}"), reason)

    def _timedOut(self) -> None:
        seconds = self.options.seconds
        self._fail(SwitchTimeoutError(f"the peer did not switch to RDMA within {seconds} s"))

    def close(self, how: str) -> None:
        """
        The application closes the former transport, or cancels the Deferred.

        @param how: C{"loseConnection"} or C{"abortConnection"}.
        """
        if self.transport is not None and self.transport.connected:
            getattr(self.transport, how)()
        else:
            self._fail(SwitchError("this end has closed the connection"), Failure(error.ConnectionAborted()))

    # -- the connection, whatever carries it

    def open(self, channel: DeviceChannel) -> SwitchedTransport:
        """
        Make the successor, on a device.

        @raise HCAError: It cannot be made.
        """
        self.channel, self.device = channel, channel.device
        channel.attempt(self)
        transport = SwitchedTransport(channel, self)
        self.transport = transport
        channel.acquire(transport)
        return transport

    def send(self, path: IPeerPath) -> IConnection:
        assert self.transport is not None
        request = handshake.request(self.transport, self.host, self.peer)
        request.serviceID = self.serviceID or request.serviceID
        return self.device.sendRequest(path, request, self, self.device.clock())

    def join(self, connection: IConnection, reply: ConnectReply) -> bool:
        assert self.transport is not None
        handshake.replied(self.transport, connection, reply)
        return True

    def connected(self, reply: ConnectReply) -> None:
        self.succeed()

    def refused(self, rejection: Rejection) -> None:
        self.failed(failures.rejected(f"{self.peer.host}", rejection.reason))

    def unanswered(self) -> None:
        self.failed("the peer does not answer")

    # -- the passive side: a listener of one request

    def serve(self, service: int) -> None:
        """
        Passive: listen for a request.

        @param service: its service id.
        """
        self.device.services.serve(service, self)
        self._served = service

    def serveNoMore(self) -> None:
        """
        Passive: listen no more; harmless if it does not.
        """
        served, self._served = self._served, 0
        if served and not self.device.closed:
            self.device.services.serveNoMore(served)

    def answer(self, connection: IConnection, request: ConnectRequest) -> None:
        """
        Passive: answer the request, and listen no more.
        """
        channel, transport = self.channel, self.transport
        assert channel is not None and transport is not None
        self.serveNoMore()
        try:
            self.connection = connection
            header = handshake.requested(request)
            reply = handshake.reply(transport, request, header)
            connection.destination.prepareReply(reply, request)
            handshake.accepted(transport, connection, request, header)
            if not connection.accept(reply, channel.now()):
                self.failed("the peer has given up")
        except HCAError as e:
            self.connection = None
            connection.reject(RejectReason.NO_RESOURCES, b"", channel.now())
            self.failed(e)

    def requestWithdrawn(self, connection: IConnection) -> None:
        """
        Do nothing: the request is answered at once.
        """

    def established(self) -> None:
        """
        Passive: the peer has the REP.
        """
        self.succeed()

    # -- the end

    def succeed(self) -> None:
        """
        The successor is connected.
        """
        transport, former = self.transport, self.former
        assert transport is not None
        if self.isOver:
            return
        self._finish()
        protocol, self.protocol = self.protocol, None
        assert protocol is not None
        transport.attach(protocol)
        connector = getattr(former, "connector", None)
        if connector is not None:
            connector.transport = transport
        former.connectionLost(CONNECTION_DONE)
        self.deferred.callback(transport)

    def failed(self, reason: object) -> None:
        self._fail(SwitchError(failures.oneLine(reason)))

    # As an attempt of its channel.

    def logPrefix(self) -> str:
        """
        Return the log prefix, for a reactor that closes everything.
        """
        return "Switch"

    def failIfNotConnected(self, reason: Exception) -> None:
        """
        The device is removed.
        """
        self.failed(reason)

    def connectionLost(self, reason: Failure) -> None:
        """
        The reactor closes.
        """
        self.failed(reason.value)

    def _fail(self, why: SwitchError, reason: Failure | None = None) -> None:
        if self.isOver:
            return
        self._finish()
        self.giveUp()
        self.discard()
        protocol, self.protocol = self.protocol, None
        if reason is None:
            reason = Failure(error.ConnectionLost(str(why)))
        if not self.deferred.called:
            self.deferred.errback(why)
        if protocol is not None:
            tell(protocol.connectionLost, reason)
        tell(self.former.ended, reason)

    def _finish(self) -> None:
        self.isOver = True
        if self._timer.active():
            self._timer.cancel()
        if self.channel is not None:
            self.channel.attempted(self)


def _refusal(transport: Any) -> str:
    # Why it cannot switch; else empty.
    if ISSLTransport.providedBy(transport) or ISSLTransport.providedBy(getattr(transport, "protocol", None)):
        return "TLS cannot go on as RDMA, which would not be encrypted"
    if IRDMATransport.providedBy(transport):
        return "it has RDMA already"
    if hasSwitched(transport):
        return "it has switched, or is about to"
    isSDP = ISDPTransport.providedBy(transport)
    if not isSDP and not isinstance(transport, tcp.Connection):
        return f"a {type(transport).__name__} is no connection of TCP or SDP"
    if not transport.connected or transport.disconnecting:
        return "it is not connected, or closes"
    if transport._writeDisconnecting or transport._writeDisconnected:
        return "it is half-closed"
    if transport.producer is not None:
        return "it has a producer: unregister it first"
    if not isinstance(transport.getPeer(), IPv4Address | IPv6Address):
        return "it is no connection of TCP, but of the local host (UNIX)"
    return ""


def switchToRDMA(
    transport: Any,
    initiator: bool | None = None,
    leftover: bytes = b"",
    privateData: bytes = b"",
    timeout: float = SWITCH_SECONDS,
    maxMessageSize: int = limits.RDMA_MESSAGE,
) -> Deferred[SwitchedTransport]:
    """
    Let a connection of bytes go on as one of messages and RDMA; there is no way back.

    Both ends call it after their last byte.  From then on a use of C{transport} raises
    L{TransportSwitchedError}, and its protocol hears nothing until the Deferred fires: then messages arrive
    in it, by C{messageReceived} of an L{IRDMAProtocol<twisted_ib.interfaces.IRDMAProtocol>}, else by
    C{dataReceived}; its C{transport} is the new one, whose C{protocol} may be set to another one.
    C{connectionMade} is not called again.  C{connectionLost} is called once, when the new connection has
    ended, or when the switch has failed, behind the Deferred.

    A transport that is paused delivers again afterwards.  Bytes that were written before are sent first.

    @param transport: A connected TCP transport of Twisted, on any reactor, or one of
        L{ISDPTransport<twisted_ib.interfaces.ISDPTransport>}; without TLS, half-close or a producer.
    @param initiator: Whether this end asks and the other answers; by default the one that has connected does.
    @param leftover: The bytes that the protocol received behind the peer's last message.
    @param privateData: For the peer, whose C{peerPrivateData} it is: at most 56 bytes of the initiator's,
        196 of the other's.
    @param timeout: Seconds; then the switch has failed.
    @param maxMessageSize: The longest message, in bytes, each way; not negotiated.
    @return: A Deferred of the L{IRDMATransport<twisted_ib.interfaces.IRDMATransport>}.  It fails with
        L{SwitchError}, L{SwitchTimeoutError} in particular, and the connection is lost.  To cancel it aborts
        the connection.
    @raise NotSwitchableError: The connection cannot switch; nothing has happened.
    @raise TypeError: C{leftover} or C{privateData} is not L{bytes}.
    @raise ValueError: Another argument is out of range; nothing has happened.
    """
    refusal = _refusal(transport)
    if refusal:
        raise NotSwitchableError(f"this connection cannot switch to RDMA: {refusal}")
    if not isinstance(leftover, bytes):
        raise TypeError("leftover must be bytes")
    if not timeout > 0:
        raise ValueError(f"timeout is a number of seconds above 0, not {timeout!r}")
    checkMessageSize(maxMessageSize)
    isStream = ISDPTransport.providedBy(transport)
    # Only a connection over TCP has octets of MPA in it.
    if isStream and leftover:
        raise NotSwitchableError("this connection cannot switch to RDMA: the peer goes on with its bytes")
    if initiator is None:
        initiator = hasattr(transport, "connector")
    checkPrivateData(privateData, INITIATOR_BYTES if initiator else RESPONDER_BYTES)
    options = SwitchOptions(initiator, leftover, privateData, timeout, maxMessageSize)
    return (StreamSwitch if isStream else SocketSwitch)(transport, options).begin()


class SocketSwitch(Switch):
    """
    A connection of Twisted's TCP that switches, on any reactor: its socket goes on as iWARP.

    Each end takes the socket from the reactor and gives it to a device C{iwarp0} of the address that the
    connection has here.  The initiator then sends MPA's Request, and the other end answers: RFC 5044 section
    7.1 lets MPA begin on a connection that has carried other octets before.
    """

    kind = FormerSocket

    _adopted: IAdoptedPath | None = None

    def begun(self) -> None:
        # From now on MPA reads the connection.
        self.former.stopReading()

    def drained(self) -> None:
        # Not within doWrite(): the reactor would find that the descriptor has gone.
        self._later = self.former.reactor.callLater(0, self._take)

    def _take(self) -> None:
        former = self.former
        try:
            channel = channelFor(former.reactor, DEVICE, self.host.host)
            transport = self.open(channel)
            options, service = self.options, 0
            if not options.isInitiator:
                service = SOCKET_SERVICE | transport.queuePair.number
                self.serve(service)
            adopt = channel.device.fabric.adopt
            taken = former.takeSocket()
            self._adopted = path = adopt(taken, options.leftover, service, options.seconds, self._ended)
            if options.isInitiator:
                self.pathReady(path)
        except (HCAError, OSError) as e:
            self.failed(e)

    def _ended(self) -> None:
        # Until there is a queue pair nobody else is told.
        self.failed("the TCP connection has ended")

    def discard(self) -> None:
        # First: nobody asks for what closes.
        self.serveNoMore()
        adopted, self._adopted = self._adopted, None
        if adopted is not None:
            adopted.close()
        super().discard()

    def connectionRequested(self, connection: IConnection, request: ConnectRequest) -> None:
        """
        MPA's Request came.
        """
        # MPA has no such header: the addresses are those of the connection.
        header = RDMACMHeader(self.peer.host, self.peer.port, self.host.host)
        request.privateData = header.pack() + request.privateData
        self.answer(connection, request)


class StreamSwitch(Switch):
    """
    A connection over SDP that switches: a second queue pair over the path that there is.

    Nothing new is on the wire: the passive side serves a private service id, made of the number of its
    stream's queue pair, and the active side sends a REQ for it.  With the REP the stream has done its work,
    and closes in order, unnoticed.
    """

    kind = FormerTransport

    _delay = FIRST_RETRY_SECONDS
    _isStreamOver = False

    def begun(self) -> None:
        # The peer's end of stream must be seen, and is none before it has switched.
        self.former.startReading()

    def drained(self) -> None:
        stream = self.former
        self._path, self._remote = stream.connection.destination, stream.queuePair.remote
        try:
            self.open(stream.channel)
            if self.options.isInitiator:
                self._ask()
            else:
                self.serve(STREAM_SERVICE | stream.queuePair.number)
        except HCAError as e:
            self.failed(e)

    # -- the active side

    def _ask(self) -> None:
        self._later = None
        self.serviceID = STREAM_SERVICE | self._remote
        self.pathReady(self._path)

    def rejected(self, connection: IConnection, rejection: Rejection) -> None:
        # Perhaps the passive side's application has not called yet.
        late = rejection.reason == RejectReason.INVALID_SERVICE_ID
        if connection is not self.connection or not late or self._isStreamOver:
            super().rejected(connection, rejection)
            return
        self.connection = None
        self._later = self.former.reactor.callLater(self._delay, self._ask)
        self._delay = min(2 * self._delay, LAST_RETRY_SECONDS)

    def formerLost(self, reason: Failure) -> None:
        # The peer closes it when it has switched, and its end may overtake the REP or the RTU.
        if self.connection is not None and reason.check(error.ConnectionDone):
            self._isStreamOver = True
        else:
            super().formerLost(reason)

    def connectionRequested(self, connection: IConnection, request: ConnectRequest) -> None:
        """
        A REQ came for the service.
        """
        assert self.channel is not None
        now = self.channel.now()
        # The number of a queue pair is no secret: only the peer of this stream is answered.
        if connection.destination.peer != self._path.peer:
            connection.reject(RejectReason.INVALID_SERVICE_ID, b"", now)
            return
        if request.unsupported is not None:
            connection.reject(request.unsupported, b"", now)
            return
        self.answer(connection, request)
