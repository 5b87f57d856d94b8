"""
The active side: from a host and a port to a connected transport.

An attempt goes through these steps, each of which may fail; timeout or user may end any of them::

    name -> addresses -> path to an HCA -> REQ with a greeting -> REP with the answer

The steps after the REP are the transport's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted.internet import error
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IConnector
from twisted.python import log
from twisted.python.failure import Failure
from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.errors import HCAError
from twisted_ib.hca.connection import ConnectReply, Rejection, RejectReason
from twisted_ib.hca.connection.active import ActiveSide
from twisted_ib.hca.device.registry import DEFAULT_DEVICE, isPlacedByUser
from twisted_ib.internet import failures
from twisted_ib.internet.addressing.addresses import Address, End, reachable, sharedAddress
from twisted_ib.internet.addressing.localports import NUMBER_TAKEN
from twisted_ib.internet.addressing.resolution import Destination, literalOf, resolve
from twisted_ib.internet.batchedcalls import BatchedCalls, batchedCallsOf
from twisted_ib.internet.channel import DeviceChannel, channelFor

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted_ib.hca.base.interfaces import IPeerPath, Search
    from twisted_ib.hca.connection import ConnectRequest
    from twisted_ib.hca.connection.interfaces import IConnection
    from twisted_ib.internet.batchedcalls import Shared
    from twisted_ib.internet.port import Handshake
    from twisted_ib.internet.serverclient import ClientTransport


#: Rounds of REQs, about eight seconds each, before a connect without a timeout gives up: about as long as
#: Linux repeats a SYN (tcp_syn_retries 6, 127 s; tcp_timer.c).  RFC 9293 section 3.8.3 asks for 3 minutes at
#: least.
CONNECT_ROUNDS = 16
#: How long a connect without a timeout asks for an address that does not answer, in seconds: as long as it
#: repeats REQs.
CONNECT_ADDRESS_SECONDS = 127.0


class Attempt(ActiveSide):
    """
    One attempt to connect, in C{connector.transport} until there is a transport.

    @ivar _channel: Set, and acquired, once the device is open.
    @ivar turns: The reactor's shared calls while the attempt waits to begin; else L{None}.
    @ivar _shared: While it begins: the findings of attempts of the same turn, and under which key is its own.
    @ivar _addresses: The host's addresses not yet tried.
    @ivar _peer: The address that is being tried; C{_here} is the one of this end.
    @ivar _remote: The peer's address and port; C{_local} are those of this end.
    @ivar _path: The path, once resolved.
    @ivar _transport: The transport to be, once a path is searched for.
    @ivar _request: The REQ, where packets may be lost; each round sends the same.
    @ivar _numbers: How many of our port numbers the peer has refused as taken.
    @cvar addressSeconds: How long it asks for an address that does not answer.
    @cvar logstr: As of a TCP transport before it is connected.
    """

    logstr = "Uninitialized"
    addressSeconds = CONNECT_ADDRESS_SECONDS

    _channel: DeviceChannel | None = None
    turns: BatchedCalls | None = None
    _shared: tuple[Shared, object] | None = None
    _peer = _here = ""
    _local: End | None = None
    _remote: Address | None = None
    _path: IPeerPath | None = None
    _transport: ClientTransport | None = None
    _request: ConnectRequest | None = None
    _rounds = _numbers = 0

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._addresses: list[str] = []
        # A connecting call never calls the factory before it returns: programs set attributes of the factory
        # after it.
        turns = self.turns = batchedCallsOf(connector.reactor)
        turns.wait(connector.reactor, self)

    def logPrefix(self) -> str:
        """
        Return the log prefix of a transport that is not connected, for whoever closes everything.
        """
        return self.logstr

    # -- resolving the path to the peer

    def nextTurn(self, shared: Shared) -> None:
        """
        Open the device and resolve the host.

        @param shared: As of L{BatchedCalls.wait}.
        """
        if self.isOver:
            return
        self.turns = None
        service = self._service()
        found = shared.get(service)
        if found is None or not found[3].alive:
            self._shared = shared, service
            try:
                self._begin(self._connector)
            finally:
                self._shared = None
            return
        # Connects of one turn to one service share the path: a thousand of them resolve it once.
        channel, self._peer, here, path = found
        channel.attempt(self)
        self._channel, self.device = channel, channel.device
        try:
            self._prepare(channel, here)
            self.pathReady(path)
        except (HCAError, ValueError, error.ConnectError) as e:
            self.forget()
            self.failIfNotConnected(failures.connectError(e, self._connector.where(self._peer)))

    def _service(self) -> tuple[object, ...]:
        connector = self._connector
        space = connector.handshake.PORT_SPACE
        return connector.device, connector.bound, connector.host, connector.port, space

    def _begin(self, connector: Connector) -> None:
        literal, reason = literalOf(connector.host), ""
        try:
            if literal is not None:
                literal = reachable(literal)
                self._open(literal)
            # A device placed by the user's address (RoCE) is chosen by the peer's address, which a name does
            # not tell yet.
            elif connector.bound[0] or not isPlacedByUser(connector.device or DEFAULT_DEVICE):
                device = self._open("").device
                literal = device.hostNamed(connector.host) or None
                reason = device.unknownHost(connector.host)
        except (HCAError, OSError, MemoryError, ValueError) as e:
            self.failIfNotConnected(failures.connectError(e, connector.where()))
            return
        if literal is not None:
            self._addresses = [literal]
            self._tryNext(None)
            return
        found: Deferred[list[str]] = resolve(connector.reactor, connector.host, reason)
        found.addCallback(self._resolved)
        found.addErrback(self.failIfNotConnected)

    def _open(self, peer: str) -> DeviceChannel:
        connector, before = self._connector, self._channel
        channel = channelFor(connector.reactor, connector.device, connector.bound[0], peer)
        if channel is not before:
            # The new channel first: a channel without a user leaves the reactor.
            channel.attempt(self)
            self._channel, self.device = channel, channel.device
            if before is not None:
                before.attempted(self)
        return channel

    def _resolved(self, addresses: list[str]) -> None:
        # A look-up is not cancelled with its attempt, so the addresses may come after the end.
        if not self.isOver:
            self._addresses = [reachable(address) for address in addresses]
            self._tryNext(None)

    def _tryNext(self, reason: Exception | None) -> None:
        # A loop: an address that fails at once must not recurse, a name may have many.
        while self._addresses:
            self._peer = self._addresses.pop(0)
            try:
                self._try()
            except (HCAError, ValueError, error.ConnectError) as e:
                self.forget()
                reason = failures.connectError(e, self._connector.where(self._peer))
            else:
                return
        assert reason is not None
        self.failIfNotConnected(reason)

    def _try(self) -> None:
        channel = self._channel
        if channel is None or channel.device.address is not None:
            # With several interfaces the device depends on the route to the address.
            channel = self._open(self._peer)
        self._prepare(channel, self._addressHere(channel))
        transport = self._transport
        search = self._reach(channel)
        # connect() may have called pathReady() or connectFailed() already; then there is no search to cancel.
        if self._transport is transport and self._path is None:
            self._search = search

    def _addressHere(self, channel: DeviceChannel) -> str:
        host = self._connector.bound[0]
        try:
            here: str = channel.device.localAddressFor(self._peer, host)
        except (HCAError, ValueError):
            raise failures.notOurs(host) from None
        # Hello and IP CM header have one IP version for both addresses (IBTA vol. 1 annex A4, annex A11).
        if (":" in here) != (":" in self._peer):
            raise failures.notOurs(host or here)
        return here

    def _prepare(self, channel: DeviceChannel, here: str) -> None:
        connector = self._connector
        peer = self._remote = sharedAddress(self._peer, connector.port)
        port = connector.bound[1]
        number = channel.localPorts.take(here, port, peer)
        if number is None:
            raise failures.localPortInUse(here, port)
        self._here = here
        local = self._local = End(here, number)
        try:
            transport = connector.makeTransport(channel, local, peer)
        except BaseException:
            # The transport was not made, so its end cannot free the number.
            channel.localPorts.release(local, peer)
            raise
        channel.acquire(transport)
        self._transport = transport

    def _reach(self, channel: DeviceChannel) -> Search | None:
        connector = self._connector
        space, port = connector.handshake.PORT_SPACE, connector.port
        # The host may be away, as long as the caller waits; but another address of it may answer.
        seconds = 0.0 if self._addresses else self.addressSeconds
        return channel.device.connect(space, self._peer, port, self, seconds)

    # -- of an active side

    def failed(self, reason: Exception) -> None:
        if not self.isOver:
            self.forget()
            self._tryNext(failures.connectError(reason, self._connector.where(self._peer)))

    def send(self, path: IPeerPath) -> IConnection:
        channel, connector = self._channel, self._connector
        assert channel is not None
        self._path = path
        # The next connect would try this address, and no other.
        if self._shared is not None and not self._addresses:
            shared, service = self._shared
            shared[service] = channel, self._peer, self._here, path
        request = self._request or connector.handshake.request(self._transport, self._local, self._remote)
        if not channel.device.lossless:
            # Only there is silence the rule.  Elsewhere 10,000 connects at once would lie apart in memory
            # for what they keep meanwhile, and be slower for their whole life.
            self._request = request
        return self.device.sendRequest(path, request, self, self.device.clock())

    def join(self, connection: IConnection, reply: ConnectReply) -> bool:
        handshake = self._connector.handshake
        handshake.replied(self._transport, connection, reply)
        return reply.vendorID not in handshake.UNCONFIRMED

    def refused(self, rejection: Rejection) -> None:
        where = self._connector.where(self._peer)
        # Two processes of this host draw port numbers without knowing of each other; over TCP the kernel
        # would not give both the same one.  Another number will do, unless the user has bound this one.
        if rejection.privateData.startswith(NUMBER_TAKEN) and self._mayTryAnother():
            self._addresses.insert(0, self._peer)
            self.forget()
            self._tryNext(None)
        # IBTA vol. 1 12.6.7.2: a REJ may be a listener's refusal or the CM's answer that there is no
        # listener; programs see ConnectionRefusedError either way, as with TCP.
        elif rejection.reason == RejectReason.INVALID_SERVICE_ID:
            self.failed(failures.refused(where))
        elif rejection.reason == RejectReason.TIMEOUT:
            self.failed(failures.noAnswer(where))
        else:
            self.failed(failures.rejected(where, rejection.reason))

    def _mayTryAnother(self) -> bool:
        self._numbers += 1
        return not self._connector.bound[1] and self._numbers < limits.PORT_ATTEMPTS

    def unreachable(self, connection: IConnection) -> None:
        # To a peer that was away and reads all of them late, they are one request, whose answer is good for
        # each.
        if connection is self.connection and self._request is not None:
            self._request.communicationID = connection.localID
        super().unreachable(connection)

    def unanswered(self) -> None:
        self._rounds += 1
        # A full backlog drops REQs without an answer, as TCP drops SYNs, so silence does not prove that
        # nobody is there.
        if self._rounds < CONNECT_ROUNDS and self._path is not None:
            self.pathReady(self._path)
        else:
            self.failed(failures.noAnswer(self._connector.where(self._peer)))

    # -- the end

    def connected(self, reply: ConnectReply) -> None:
        channel, transport, peer = self._channel, self._transport, self._remote
        assert channel is not None and transport is not None and peer is not None
        connector = self._connector
        try:
            protocol = connector.buildProtocol(peer)
        except BaseException:
            # As the reactor does with what doRead() of a descriptor raises.
            log.err()
            self.failIfNotConnected(error.ConnectError(string=failures.oneLine(Failure().value)))
            return
        # buildProtocol() may have called stopConnecting().
        if self.isOver:
            return
        self.isOver = True
        self.connection = self._request = self._path = self._transport = None
        connector.transport = transport
        # The connector has its transport before connectionMade(), as with TCP.
        transport.attach(protocol)
        channel.attempted(self)

    def forget(self) -> None:
        super().forget()
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abandon()
        self._path = self._request = None

    def failIfNotConnected(self, reason: Exception | Failure) -> None:
        """
        End the attempt, if it has not ended.

        @param reason: The reason for the connector's factory.
        """
        if self.isOver:
            return
        self.giveUp()
        turns, self.turns = self.turns, None
        if turns is not None:
            turns.forget(self)
        if isinstance(reason, error.TimeoutError):
            reason = failures.timedOut(self._connector.where(), self._connector.timeout)
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.attempted(self)
        try:
            self._connector.connectionFailed(Failure(reason))
        except BaseException:
            # The factory's mistake must not end a turn of the device, which others share.
            log.err()

    def connectionLost(self, reason: Failure) -> None:
        """
        The channel closes, with the reactor.
        """
        self.failIfNotConnected(error.ConnectError(string=failures.oneLine(reason.value)))

    def loseConnection(self) -> None:
        """
        End the attempt: there is no connection yet.
        """
        self.failIfNotConnected(error.UserError())

    def cancel(self) -> None:
        """
        Cancel the timeout.
        """
        connector, channel = self._connector, self._channel
        if connector.timeout is not None:
            calls = batchedCallsOf(connector.reactor) if channel is None else channel.batchedCalls
            calls.unlimit(connector.timeout, self)


@implementer(IConnector)
class Connector(Destination):
    """
    The connector that a connecting call returns.

    @cvar handshake: The protocol's module or object for requests and replies: C{PORT_SPACE},
        C{UNCONFIRMED}, C{request(transport, local, peer)}, C{replied(transport, connection, reply)}.
    @cvar attemptClass: The class of its attempts.
    @cvar transportClass: The class of its transports.
    """

    handshake: Handshake
    attemptClass = Attempt
    transportClass: Callable[..., ClientTransport]

    def connect(self) -> None:
        """
        Begin an attempt.

        @raise RuntimeError: one is in progress, or there is a connection.
        """
        # As twisted.internet.base.BaseConnector.connect, but all attempts with the same timeout share one
        # delayed call.
        if self.state != "disconnected":
            raise RuntimeError("can't connect in this state")
        self.state = "connecting"
        if not self.factoryStarted:
            self.factory.doStart()
            self.factoryStarted = 1
        self.transport = attempt = self._makeTransport()
        if self.timeout is not None:
            attempt.turns.limit(self.reactor, self.timeout, attempt)
        self.factory.startedConnecting(self)

    def _makeTransport(self) -> Any:
        return self.attemptClass(self)

    def cancelTimeout(self) -> None:
        """
        Cancel the timeout of the attempt, which needs no C{timeoutID}.
        """
        if isinstance(self.transport, Attempt):
            self.transport.cancel()

    def makeTransport(self, channel: DeviceChannel, host: End, peer: Address) -> ClientTransport:
        """
        Make the transport for one address.

        @param host: The address of this end.
        @param peer: The address of the other end.
        """
        return self.transportClass(channel, host, peer, self)
