"""
The passive side: a port that turns the CM's REQs into connections.

A port that reads accepts a REQ at once, or in one of the next turns if there are many.  While it is paused
REQs wait in a queue of the backlog's length; one that does not fit is dropped without an answer, as TCP drops
a SYN, and the peer retransmits it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Protocol

from twisted.internet import base, main
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IListeningPort, IProtocol, IProtocolFactory
from twisted.internet.task import deferLater
from twisted.python import log, reflect
from twisted.python.failure import Failure
from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.errors import HCAError, ResourceLimitError, ServiceInUseError, WireError
from twisted_ib.hca.base.socketrows import LISTEN, LISTENER, Row
from twisted_ib.hca.connection import ConnectRequest, RejectReason
from twisted_ib.hca.host.addresses import isWildcard
from twisted_ib.internet import failures
from twisted_ib.internet.addressing.addresses import (
    Address,
    addressOf,
    canonical,
    checkPort,
    mapped,
    sharedAddress,
    splitBinding,
    withPort,
)
from twisted_ib.internet.addressing.localports import NUMBER_TAKEN
from twisted_ib.internet.channel import DeviceChannel, channelFor
from twisted_ib.internet.deferredaccept import HalfOpenAccept
from twisted_ib.internet.logcontext import callInContext, callLogged

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.base import DelayedCall
    from twisted.internet.interfaces import Binding

    from twisted_ib.hca.base.interfaces import IPeerPath
    from twisted_ib.hca.connection import ConnectReply
    from twisted_ib.hca.connection.interfaces import IConnection
    from twisted_ib.hca.device.connections import Service
    from twisted_ib.hca.device.device import Device
    from twisted_ib.internet.serverclient import ServerTransport

#: The only name that is resolved; a TCP socket would resolve any, and block.
_NAMED_INTERFACES = {"": "0.0.0.0", "localhost": "127.0.0.1"}

#: Counters of REQs that cannot be served, by the reason; other reasons are of the service type.
_UNSUPPORTED = {RejectReason.INVALID_MTU: "bad_path_mtu", RejectReason.PRIMARY_GID: "bad_partition"}

_CONNECTION_DONE = Failure(main.CONNECTION_DONE)


class Handshake(Protocol):
    """
    The requests and replies of a protocol, of a module or an object.
    """

    @property
    def PORT_SPACE(self) -> int:
        """
        The RDMA-CM port space.
        """

    @property
    def UNCONFIRMED(self) -> Collection[int]:
        """
        The vendors whose active sides send no RTU, and whose passive sides need none.
        """

    def request(self, transport: Any, local: Any, peer: Any, /) -> ConnectRequest:
        """
        Return the request of a transport.
        """

    def replied(self, transport: Any, connection: Any, reply: Any, /) -> object:
        """
        Check the reply to it.
        """

    def requested(self, request: ConnectRequest, /) -> Any:
        """
        Return the greeting of a request.
        """

    def addresses(self, greeting: Any, /) -> tuple[str, str]:
        """
        Return the passive side's and the active side's.
        """

    def sourcePort(self, greeting: Any, /) -> int:
        """
        Return the active side's.
        """

    def reply(self, transport: Any, request: ConnectRequest, greeting: Any, /) -> ConnectReply:
        """
        Return the reply to a request.
        """

    def accepted(
        self, transport: Any, connection: IConnection, request: ConnectRequest, greeting: Any, /
    ) -> object:
        """
        The reply will be sent.
        """


@implementer(IListeningPort)
class Port(base.BasePort):
    """
    The port that a listening call returns; see
    L{IServiceListener<twisted_ib.hca.connection.interfaces.IServiceListener>} and
    L{ParkedUser<twisted_ib.hca.connection.interfaces.ParkedUser>}.

    @cvar handshake: The protocol's module or object for requests and replies: C{PORT_SPACE},
        C{requested(request)}, which reads a I{greeting}, C{addresses(greeting)} (the passive side's and the
        active side's), C{sourcePort(greeting)}, C{reply(transport, request, greeting)}, C{accepted(transport,
        connection, request, greeting)}.
    @cvar transport: The class of its transports.
    @cvar halfOpen: The class of what stands for one until its peer is proven.
    @cvar provider: The provider's name of its connections, for C{ib-ss}.
    @ivar reading: Whether connections are accepted now.
    @ivar requests: The waiting REQs with their greetings, oldest first.
    @ivar numberAccepts: REQs accepted in one turn.
    """

    reactor: Any
    handshake: Handshake
    transport: Callable[..., ServerTransport]
    halfOpen = HalfOpenAccept
    provider: str
    numberAccepts = limits.ACCEPTS_PER_TURN
    sessionno = 0
    reading = False

    _type = "HCA"
    _realPortNumber: int | None = None
    _channel: DeviceChannel | None = None
    _services: tuple[Service, ...] = ()
    _turn: DelayedCall | None = None
    _accepted = 0

    def __init__(
        self,
        port: int | Binding,
        factory: IProtocolFactory,
        backlog: int = 50,
        interface: str = "",
        reactor: Any = None,
        device: str | None = None,
    ) -> None:
        """
        Check the arguments; C{startListening} opens the device.

        @param port: The port, 0 for any; or a C{Binding}.
        @param backlog: REQs that wait while nothing is accepted.
        @param interface: The address to bind; C{""} for all IPv4 addresses.
        @param reactor: The reactor, whose thread everything here belongs to.
        @param device: The HCA's name; L{None} for the default.
        @raise ValueError: C{port} is no port number, or C{interface} no string.
        """
        base.BasePort.__init__(self, reactor=reactor)
        number, interface = splitBinding(port, interface)
        self.port = checkPort(number, 0)
        self.factory = factory
        self.backlog = min(max(backlog, 1), limits.LISTEN_BACKLOG)
        if not isinstance(interface, str):
            raise ValueError(f"interface {interface!r} is not an address")
        self.interface = interface
        self.device = device
        self.requests: dict[IConnection, tuple[ConnectRequest, object]] = {}

    def __repr__(self) -> str:
        where = "(not listening)" if self._realPortNumber is None else f"on {self._realPortNumber}"
        return f"<{self.__class__} of {self.factory.__class__} {where}>"

    # -- listening

    def startListening(self) -> None:
        try:
            address = self._bindAddress()
            channel = channelFor(self.reactor, self.device, address)
            address = channel.device.listeningAddress(address)
            # Listening before the port is a user: nothing is delivered before the next turn, and a failure
            # leaves no trace.
            self._services = self._takePort(channel, address)
        except (HCAError, OSError, MemoryError, ValueError) as e:
            raise failures.listenError(self.interface, self.port, self.device, e) from None
        channel.acquire(self)
        self._channel = channel
        number = self._realPortNumber = self._services[0].port
        self._address = addressOf(address, number)
        # It is this host's, unless the listener has all of them.
        self._ownHost = "" if isWildcard(self._address.host) else self._address.host
        self._say(f"{self._getLogPrefix(self.factory)} starting on {number}")
        if channel.shown is not None:
            channel.shown.show([(self, self._address.host, number, "", 0)])
        self.factory.doStart()
        self.connected = True
        self.startReading()

    def _bindAddress(self) -> str:
        address = _NAMED_INTERFACES.get(self.interface) or canonical(self.interface)
        if address is None:
            raise ValueError(f"{self.interface!r} is not an IP address")
        return address

    def _takePort(self, channel: DeviceChannel, address: str) -> tuple[Service, ...]:
        listen = channel.device.listen
        service = listen(self.handshake.PORT_SPACE, address, self.port, self)
        # RFC 3493 section 5.3: a socket bound to :: also accepts IPv4 unless IPV6_V6ONLY is set, so a port on
        # :: takes the number in both families.
        if address != "::":
            return (service,)
        # Port 0 is drawn for IPv6 and may be in use for IPv4; bounded, as both spaces may be nearly full.
        for _ in range(limits.PORT_ATTEMPTS):
            try:
                return service, listen(self.handshake.PORT_SPACE, "0.0.0.0", service.port, self)
            except ServiceInUseError:
                service.close()
                if self.port:
                    raise
            service = listen(self.handshake.PORT_SPACE, address, 0, self)
        service.close()
        raise ServiceInUseError("no port is free for IPv4 and IPv6")

    def getHost(self) -> Address:
        return self._address

    def _say(self, text: str) -> None:
        log.msg(text)

    def logPrefix(self) -> str:
        return reflect.qual(self.factory.__class__)

    def socketRow(self) -> Row | None:
        """
        Return the row of C{ib-ss}.
        """
        if not self.connected:
            return None
        address = self._address
        return Row(LISTENER, self.provider, withPort(address.host, address.port), None, LISTEN)

    # -- requests

    def connectionRequested(self, connection: IConnection, request: ConnectRequest) -> None:
        channel = self._channel
        assert channel is not None
        try:
            greeting = self.handshake.requested(request)
            ends = self.handshake.addresses(greeting)
            self._checkAddresses(channel.device, connection.destination, *ends)
        except WireError:
            # IBTA vol. 1 12.6.7.2, reason 28 (consumer defined): the OpenIB driver and OFED's sdp_cma.c
            # reject a bad Hello with it.
            channel.count("bad_hello")
            connection.reject(RejectReason.CONSUMER_DEFINED, b"", channel.now())
            return
        unsupported = request.unsupported
        if unsupported is not None:
            channel.count(_UNSUPPORTED.get(unsupported, "bad_service_type"))
            connection.reject(unsupported, b"", channel.now())
            return
        if self.reading and not channel.device.lossless:
            # A REP costs little and reserves little (L{HalfOpenAccept}); queued, forged REQs would use up the
            # turn's accepts before an honest one.
            callLogged(self, self._accept, connection, request, greeting, *ends)
        elif self.reading and not self.requests and self._accepted < self.numberAccepts:
            if self._turn is None:
                self._wantTurn()
            callLogged(self, self._accept, connection, request, greeting, *ends)
        elif len(self.requests) < (limits.LISTEN_BACKLOG if self.reading else self.backlog):
            self.requests[connection] = (request, greeting)
            # IBTA vol. 1 12.6.6: the MRA extends the active side's timeout, and its retransmission keeps its
            # slot in the queue.  Linux sends it lazily, too (cm.c ib_prepare_cm_mra: on a duplicate REQ).
            connection.sendMRA(channel.now())
            self._wantTurn()
        else:
            # Linux tcp_input.c (tcp_conn_request) drops a SYN when the accept queue is full.  Linux
            # ucma.c does so with a REQ (cm.c cm_destroy_id: -ENOMEM is not rejected, so that the peer may try
            # again); a program that knows TCP would take a REJ for a refused connection.
            channel.count("backlog_full")
            connection.ignore(channel.now())

    def _checkAddresses(self, device: Device, path: IPeerPath, here: str, peer: str) -> None:
        # Applications decide by getPeer() and getHost() what somebody may do, and a Hello may hold any
        # address (IBTA vol. 1 annex A4): both must be those of path and host.
        if here != self._ownHost and not device.isLocal(here):
            raise WireError(f"a REQ has {here}, which is no address of this host")
        # Where peers have all addresses of this host, its own is theirs as well.
        isTheirs = peer == here and device.sharesAddresses and device.resolver is None
        if not isTheirs and not device.isPeers(path, peer):
            raise WireError(f"a REQ has {peer}, which is no address of who sent it")

    def requestWithdrawn(self, connection: IConnection) -> None:
        self.requests.pop(connection, None)

    def _wantTurn(self) -> None:
        if self.reading and self._turn is None:
            self._turn = self.reactor.callLater(0, self._nextTurn)

    def _nextTurn(self) -> None:
        self._turn = None
        self._accepted = 0
        if self.requests:
            callInContext(self._acceptWaiting)

    def _acceptWaiting(self) -> None:
        while self.reading and self.requests:
            if self._accepted >= self.numberAccepts:
                # twisted.internet.tcp.Port.doRead has the same bound: established connections must have their
                # turn.
                self._wantTurn()
                return
            connection = next(iter(self.requests))
            request, greeting = self.requests.pop(connection)
            ends = self.handshake.addresses(greeting)
            callLogged(self, self._accept, connection, request, greeting, *ends)

    def _accept(
        self, connection: IConnection, request: ConnectRequest, greeting: Any, mine: str, theirs: str
    ) -> None:
        channel = self._channel
        assert channel is not None
        self._accepted += 1
        here, peer = self._ends(greeting, mine, theirs)
        # The private data tells our own active sides to draw another number.
        if self.isTaken(peer):
            channel.count("number_taken")
            connection.reject(RejectReason.CONSUMER_DEFINED, NUMBER_TAKEN, channel.now())
            return
        transport = None
        try:
            # Over IP the source of a REQ is unproven until the RTU.  Within a host the path has proved the
            # process.
            if not channel.device.lossless:
                self.halfOpen(self, channel.device, connection, request, greeting).park()
                return
            transport = self.transport(channel, here, peer, self, self.sessionno)
            channel.acquire(transport)
            reply = self.handshake.reply(transport, request, greeting)
            self.handshake.accepted(transport, connection, request, greeting)
        except HCAError:
            channel.count("accept_failed")
            connection.reject(RejectReason.NO_RESOURCES, b"", channel.now())
            if transport is not None:
                # IBTA vol. 1 12.6.7.2, reason 3.  The transport may exist already, with its queue pair.
                transport.abandon()
            return
        if not connection.accept(reply, channel.now(), request.vendorID not in self.handshake.UNCONFIRMED):
            # The peer has given up meanwhile.
            transport.abandon()
            return
        self.sessionno += 1
        # After the REP: IBTA vol. 1 12.9.8 has the queue pair ready by then, and connectionMade() may write.
        transport.attach(self._buildProtocol(peer))

    def _ends(self, greeting: Any, mine: str, theirs: str) -> tuple[Address, Address]:
        number = self._realPortNumber
        assert number is not None
        # A port on :: shows IPv4 peers in IPv4-mapped form, as TCP does (RFC 3493 section 3.7).
        if ":" in self._address.host:
            mine, theirs = self._scoped(mapped(mine)), self._scoped(mapped(theirs))
        return sharedAddress(mine, number), addressOf(theirs, self.handshake.sourcePort(greeting))

    def resumed(self, connection: IConnection, number: int, kept: bytes) -> None:
        self.halfOpen.resumed(self, connection, number, kept)

    def establish(self, halfOpen: HalfOpenAccept, request: ConnectRequest) -> None:
        """
        The peer of a half-open connection sent its RTU: make the transport.
        """
        channel, connection = self._channel, halfOpen.connection
        if channel is None:
            # The port was closed between REP and RTU; the peer believes that it is connected.
            halfOpen.device.disconnect(connection)
            return
        callLogged(self, self._establish, channel, halfOpen, request)

    def _establish(self, channel: DeviceChannel, halfOpen: HalfOpenAccept, request: ConnectRequest) -> None:
        connection, greeting = halfOpen.connection, self.handshake.requested(request)
        here, peer = self._ends(greeting, *self.handshake.addresses(greeting))
        transport = None
        try:
            # Checked again: another connection may have been established since the REP.
            if self.isTaken(peer):
                raise ResourceLimitError("another connection has this peer's address")
            # The queue pair must get the number that the REP announced.
            with channel.device.withNumber(halfOpen):
                transport = self.transport(channel, here, peer, self, self.sessionno)
            channel.acquire(transport)
            self.handshake.accepted(transport, connection, request, greeting)
        except HCAError:
            channel.count("accept_failed")
            connection.user = None
            channel.device.disconnect(connection)
            if transport is not None:
                transport.abandon()
            return
        self.sessionno += 1
        transport.attach(self._buildProtocol(peer))

    def isTaken(self, peer: Address) -> bool:
        """
        Return whether another connection has this peer's address and port; TCP could not have both.
        """
        return False

    def _buildProtocol(self, peer: Address) -> IProtocol | None:
        try:
            return self.factory.buildProtocol(peer)
        except BaseException:
            # L{None} means that the factory wants no connection.
            log.err()
            return None

    def _scoped(self, host: str) -> str:
        # RFC 4007 section 6: a link-local address is unique within its zone only, and neither Hello nor IP CM
        # header has a field for that.
        _, mark, scope = self._address.host.partition("%")
        return f"{host}{mark}{scope}" if host.startswith("fe80:") else host

    # -- reading

    def startReading(self) -> None:
        self.reading = True
        if self.requests:
            self._wantTurn()

    def stopReading(self) -> None:
        self.reading = False
        self._cancelTurn()

    def startWriting(self) -> None:
        pass  # A port does not write.

    def stopWriting(self) -> None:
        pass  # A port does not write.

    def _cancelTurn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.cancel()
        self._accepted = 0

    # -- the end

    def loseConnection(self, connDone: Failure = _CONNECTION_DONE) -> Deferred[None] | None:
        """
        Stop listening.

        @return: Fires when the port is closed; L{None} if it was not open.
        """
        self.disconnecting = True
        self.stopReading()
        if not self.connected:
            return None
        self.deferred = deferLater(self.reactor, 0, self.connectionLost, connDone)
        return self.deferred

    stopListening = loseConnection

    def connectionLost(self, reason: Failure) -> None:
        self._say(f"({self._type} Port {self._realPortNumber} Closed)")
        self._realPortNumber = None
        base.BasePort.connectionLost(self, reason)
        self.connected = False
        channel, self._channel = self._channel, None
        services, self._services = self._services, ()
        for service in services:
            service.close()
        assert channel is not None
        waiting, self.requests = self.requests, {}
        # IBTA vol. 1 12.6.7.2, reason 8: as if they had come after the close.
        for connection in waiting:
            connection.reject(RejectReason.INVALID_SERVICE_ID, b"", channel.now())
        channel.release(self)
        try:
            self.factory.doStop()
        finally:
            self.disconnecting = False
