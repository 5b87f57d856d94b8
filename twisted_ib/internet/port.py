"""
The passive side: a port that turns the CM's requests into connections.

A REQ that finds the port reading is accepted at once, or in one of the next
turns of the reactor if there are many.  While the port is paused they wait in a
queue as long as the backlog; one that does not fit is dropped without a word, as
TCP does with a SYN, and its peer asks again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted.internet import base, main
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IListeningPort, IProtocol, IProtocolFactory
from twisted.internet.task import deferLater
from twisted.python import log, reflect
from twisted.python.failure import Failure
from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.errors import HCAError, ResourceLimitError, ServiceInUseError, WireError
from twisted_ib.hca.base.attributes import MTU_CODES
from twisted_ib.hca.base.socketrows import LISTEN, LISTENER, Row
from twisted_ib.hca.wire.cm import REQ, RejectReason
from twisted_ib.internet import failures
from twisted_ib.internet.addresses import (
    Address,
    addressOf,
    canonical,
    checkPort,
    mapped,
    sharedAddress,
    unbound,
    withPort,
)
from twisted_ib.internet.channel import DeviceChannel, channelFor
from twisted_ib.internet.deferredaccept import HalfOpenAccept
from twisted_ib.internet.localports import NUMBER_TAKEN
from twisted_ib.internet.logcontext import callInContext, upcalls

if TYPE_CHECKING:
    from twisted.internet.interfaces import Binding

    from twisted_ib.hca.device.device import Device

#: What a TCP socket would look up; nothing else is.
_NAMED_INTERFACES = {"": "0.0.0.0", "localhost": "127.0.0.1"}

_CONNECTION_DONE = Failure(main.CONNECTION_DONE)


@implementer(IListeningPort)
class Port(base.BasePort):
    """
    What a listening call gives.

    @cvar handshake: What REQ and REP say in this protocol, a module: C{PORT_SPACE},
        C{requested(request)}, which reads a I{greeting}, C{addresses(greeting)} (the passive
        side's and the active side's), C{sourcePort(greeting)}, C{reply(transport, request,
        greeting)}, C{accepted(transport, connection, request, greeting)}.
    @cvar transport: What it makes of a request.
    @cvar provider: What its connections are, for C{ib-ss}.

    @ivar port: The port that was asked for; 0 for any.
    @ivar reading: Whether connections are accepted now.
    @ivar requests: The REQs that wait, oldest first, with their greetings.
    @ivar numberAccepts: How many are accepted in one turn.
    """

    reactor: Any
    handshake: Any
    transport: Any
    provider: str
    numberAccepts = limits.ACCEPTS_PER_TURN
    sessionno = 0
    reading = False

    _type = "HCA"
    _realPortNumber: int | None = None
    _channel: DeviceChannel | None = None
    _services: tuple[Any, ...] = ()
    _turn: Any = None
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
        Nothing is opened before C{startListening} is called.

        @param port: The port, 0 for any; or a C{Binding}.
        @param factory: Makes the protocols.
        @param backlog: How many requests wait while nothing is accepted.
        @param interface: The address to bind; C{""} for all IPv4 addresses.
        @param reactor: The reactor, whose thread everything here belongs to.
        @param device: The HCA's name; L{None} for the default.
        @raise ValueError: C{port} is no port number, or C{interface} no string.
        """
        base.BasePort.__init__(self, reactor=reactor)
        number, interface = unbound(port, interface)
        self.port = checkPort(number, 0)
        self.factory = factory
        self.backlog = min(max(backlog, 1), limits.LISTEN_BACKLOG)
        if not isinstance(interface, str):
            raise ValueError(f"interface {interface!r} is not an address")
        self.interface = interface
        self.device = device
        self.requests: dict[Any, tuple[REQ, Any]] = {}

    def __repr__(self) -> str:
        where = "(not listening)" if self._realPortNumber is None else f"on {self._realPortNumber}"
        return f"<{self.__class__} of {self.factory.__class__} {where}>"

    # -- listening

    def startListening(self) -> None:
        """
        Take the port.

        @raise CannotListenError: It cannot be had.
        """
        try:
            address = self._bindAddress()
            channel = channelFor(self.reactor, self.device, address)
            address = channel.device.listeningAddress(address)
            self._services = self._takePort(channel, address)
        except (HCAError, OSError, ValueError) as e:
            raise failures.listenError(self.interface, self.port, self.device, e) from None
        channel.acquire(self)
        self._channel = channel
        number = self._realPortNumber = self._services[0].port
        self._address = addressOf(address, number)
        self._say(f"{self._getLogPrefix(self.factory)} starting on {number}")
        self.factory.doStart()
        self.connected = True
        self.startReading()

    def _bindAddress(self) -> str:
        """
        Give the IP address to bind.

        @raise ValueError: The interface is not an address.
        """
        address = _NAMED_INTERFACES.get(self.interface) or canonical(self.interface)
        if address is None:
            raise ValueError(f"{self.interface!r} is not an IP address")
        return address

    def _takePort(self, channel: DeviceChannel, address: str) -> tuple[Any, ...]:
        """
        Take the port of one address, or of all.

        C{::} is all IPv6 and all IPv4 addresses, as for a TCP socket of Linux.
        """
        listen = channel.device.listen
        service = listen(self.handshake.PORT_SPACE, address, self.port, self)
        if address != "::":
            return (service,)
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
        """
        Give the address that is listened on.
        """
        return self._address

    def _say(self, text: str) -> None:
        """
        Log that the port opens or closes.

        @param text: in TCP's words.
        """
        log.msg(text)

    def logPrefix(self) -> str:
        """
        Give the name of the factory's class.
        """
        return reflect.qual(self.factory.__class__)

    def socketRow(self) -> Row | None:
        """
        @return: What C{ib-ss} shows of it.
        """
        if not self.connected:
            return None
        address = self._address
        return Row(LISTENER, self.provider, withPort(address.host, address.port), None, LISTEN)

    # -- requests

    def connectionRequested(self, connection: Any, request: REQ) -> None:
        """
        A REQ came for this port.

        @param connection: of the communication manager.
        @param request: The REQ.
        """
        channel = self._channel
        assert channel is not None
        try:
            greeting = self.handshake.requested(request)
            ends = self.handshake.addresses(greeting)
            self._checkAddresses(channel.device, connection.destination, *ends)
        except WireError:
            channel.count("bad_hello")
            connection.reject(RejectReason.CONSUMER_DEFINED, b"", channel.now())
            return
        if request.transportServiceType:
            channel.count("bad_service_type")
            connection.reject(RejectReason.INVALID_TRANSPORT_TYPE, b"", channel.now())
            return
        if channel.device.addressed and not self._mayBeSo(channel.device, connection, request.pathMTU):
            # Packets of the size that the peer will send do not reach it from here.
            channel.count("bad_path_mtu")
            connection.reject(RejectReason.INVALID_MTU, b"", channel.now())
            return
        if self.reading and channel.device.addressed:
            # To say yes is little work, and whoever comes next may be somebody honest.
            self._acceptLogged(connection, request, greeting, ends)
        elif self.reading and not self.requests and self._accepted < self.numberAccepts:
            if self._turn is None:
                self._wantTurn()
            self._acceptLogged(connection, request, greeting, ends)
        elif len(self.requests) < (limits.LISTEN_BACKLOG if self.reading else self.backlog):
            self.requests[connection] = (request, greeting)
            # So that the peer keeps its place here when it asks again.
            connection.sendMRA(channel.now())
            self._wantTurn()
        else:
            channel.count("backlog_full")
            connection.ignore(channel.now())

    def _checkAddresses(self, device: Device, path: Any, here: str, peer: str) -> None:
        """
        Refuse addresses that the peer cannot have: an application may decide
        by C{getPeer} and C{getHost} what somebody may do.

        @param path: The way that the REQ came.
        @raise WireError: It does.
        """
        if not device.isLocal(here):
            raise WireError(f"a REQ has {here}, which is no address of this host")
        if (peer != here or device.addressed) and not device.isPeers(path, peer):
            raise WireError(f"a REQ has {peer}, which is no address of who sent it")

    @staticmethod
    def _mayBeSo(device: Device, connection: Any, code: int) -> bool:
        """
        @return: Whether packets of a path MTU reach the peer.
        """
        if not 0 < code <= max(MTU_CODES.values()):
            return False
        # The kernel is asked only if it matters: whoever sends much, from many addresses, costs little.
        most = MTU_CODES[device.pathMTU]
        return code <= most or code <= MTU_CODES[device.pathMTUTo(connection.destination)]

    def requestWithdrawn(self, connection: Any) -> None:
        """
        The peer gave up before it was accepted.

        @param connection: of the communication manager.
        """
        self.requests.pop(connection, None)

    def _wantTurn(self) -> None:
        if self.reading and self._turn is None:
            self._turn = self.reactor.callLater(0, self._nextTurn)

    def _nextTurn(self) -> None:
        """
        A new turn of the reactor: accept those that wait.
        """
        self._turn = None
        self._accepted = 0
        if self.requests:
            callInContext(self._acceptWaiting)

    def _acceptWaiting(self) -> None:
        """
        Accept those that wait, as many as one turn may.
        """
        while self.reading and self.requests:
            if self._accepted >= self.numberAccepts:
                self._wantTurn()
                return
            connection = next(iter(self.requests))
            request, greeting = self.requests.pop(connection)
            self._acceptLogged(connection, request, greeting, self.handshake.addresses(greeting))

    def _acceptLogged(self, connection: Any, request: REQ, greeting: Any, ends: tuple[str, str]) -> None:
        """
        Make a connection of a request; what the application raises is logged, under this port's name.

        @param ends: The texts of our address and the peer's.
        """
        upcalls.current = self
        try:
            self._accept(connection, request, greeting, *ends)
        except KeyboardInterrupt:
            raise
        except BaseException:
            log.err()
        finally:
            upcalls.current = None

    def _accept(self, connection: Any, request: REQ, greeting: Any, mine: str, theirs: str) -> None:
        channel = self._channel
        assert channel is not None
        self._accepted += 1
        here, peer = self._ends(greeting, mine, theirs)
        if self.isTaken(peer):
            channel.count("number_taken")
            connection.reject(RejectReason.CONSUMER_DEFINED, NUMBER_TAKEN, channel.now())
            return
        transport = None
        try:
            if channel.device.addressed:
                HalfOpenAccept(self, channel.device, connection, request, greeting)
                return
            transport = self.transport(channel, here, peer, self, self.sessionno)
            channel.acquire(transport)
            reply = self.handshake.reply(transport, request, greeting)
            self.handshake.accepted(transport, connection, request, greeting)
        except HCAError:
            channel.count("accept_failed")
            connection.reject(RejectReason.NO_RESOURCES, b"", channel.now())
            if transport is not None:
                transport.abandon()
            return
        if not connection.accept(reply, channel.now()):
            # The peer has given up meanwhile.
            transport.abandon()
            return
        self.sessionno += 1
        transport.attach(self._buildProtocol(peer))

    def _ends(self, greeting: Any, mine: str, theirs: str) -> tuple[Address, Address]:
        number = self._realPortNumber
        assert number is not None
        if ":" in self._address.host:
            mine, theirs = self._scoped(mapped(mine)), self._scoped(mapped(theirs))
        return sharedAddress(mine, number), addressOf(theirs, self.handshake.sourcePort(greeting))

    def fulfil(self, promise: HalfOpenAccept, request: REQ) -> None:
        """
        A peer that was promised a connection is ready.

        @param request: What it asked for.
        """
        channel, connection = self._channel, promise.connection
        if channel is None:
            promise.device.disconnect(connection)
            return
        upcalls.current = self
        try:
            self._fulfil(channel, promise, request)
        except KeyboardInterrupt:
            raise
        except BaseException:
            log.err()
        finally:
            upcalls.current = None

    def _fulfil(self, channel: DeviceChannel, promise: HalfOpenAccept, request: REQ) -> None:
        connection, greeting = promise.connection, self.handshake.requested(request)
        here, peer = self._ends(greeting, *self.handshake.addresses(greeting))
        transport = None
        try:
            if self.isTaken(peer):
                raise ResourceLimitError("another connection has this peer's address")
            with channel.device.fulfilling(promise):
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
        @return: Whether applications would take this peer for another one.
        """
        return False

    def _buildProtocol(self, peer: Address) -> IProtocol | None:
        """
        Ask the factory; what it raises is logged and counts as a no.
        """
        try:
            return self.factory.buildProtocol(peer)
        except BaseException:
            log.err()
            return None

    def _scoped(self, host: str) -> str:
        """
        Give a link-local address the scope that the port is bound to: a greeting
        has no place for it.
        """
        _, mark, scope = self._address.host.partition("%")
        return f"{host}{mark}{scope}" if host.startswith("fe80:") else host

    # -- reading

    def startReading(self) -> None:
        """
        Accept connections.
        """
        self.reading = True
        if self.requests:
            self._wantTurn()

    def stopReading(self) -> None:
        """
        Let requests wait.
        """
        self.reading = False
        self._cancelTurn()

    def startWriting(self) -> None:
        """
        A port does not write.
        """

    def stopWriting(self) -> None:
        """
        A port does not write.
        """

    def _cancelTurn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.cancel()
        self._accepted = 0

    # -- the end

    def loseConnection(self, connDone: Failure = _CONNECTION_DONE) -> Deferred[None] | None:
        """
        Stop accepting connections.

        @param connDone: As for TCP.
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
        """
        Give the port back and refuse those who wait.

        @param reason: Why.
        """
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
        for connection in waiting:
            connection.reject(RejectReason.INVALID_SERVICE_ID, b"", channel.now())
        channel.release(self)
        try:
            self.factory.doStop()
        finally:
            self.disconnecting = False
