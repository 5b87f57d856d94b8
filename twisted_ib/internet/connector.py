"""
The active side: from a host and a port to a connected transport.

An attempt goes through these steps, each of which may fail it, and any of
which the timeout or the user may end::

    name -> addresses -> path to an HCA -> REQ with a greeting -> REP with the answer

What happens afterwards is the transport's.
"""

from __future__ import annotations

from typing import Any

from twisted.internet import error
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IConnector
from twisted.python import log
from twisted.python.failure import Failure
from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.errors import HCAError, PathLostError
from twisted_ib.hca.device.registry import DEFAULT_DEVICE, isPlacedByUser
from twisted_ib.hca.wire.cm import REJ, REP, RejectReason
from twisted_ib.internet import failures
from twisted_ib.internet.addresses import Address, addressOf, reachable, sharedAddress
from twisted_ib.internet.batchedcalls import BatchedCalls, batchedCallsOf
from twisted_ib.internet.channel import DeviceChannel, channelFor
from twisted_ib.internet.localports import NUMBER_TAKEN, localPorts
from twisted_ib.internet.resolution import Destination, literalOf, resolve

#: Rounds of REQs, of about eight seconds each, before a connect without a
#: timeout gives up; about as long as Linux repeats a SYN.
CONNECT_ROUNDS = 16


class Attempt:
    """
    One attempt to connect.

    It stands in C{connector.transport} until there is a transport.

    @ivar _channel: Set, and held, once the device is open.
    @ivar _turns: What is asked of the reactor; L{None} once this has begun.
    @ivar _shared: While this begins: the paths that those who begin in the same turn have found.
    @ivar _addresses: Those of the host that are not tried yet.
    @ivar _peer: The one that is being tried.
    @ivar _local: Our end.
    @ivar _route: The search for a path, while it goes on.
    @ivar _path: The path, once found.
    @ivar _transport: The transport to be, once there is a path.
    @ivar _connection: The CM's connection, once a REQ is sent.
    @ivar _numbers: How many of our numbers the peer has for somebody else's.
    @ivar _over: The attempt has succeeded or failed.
    @cvar logstr: What a TCP transport has here until it is connected.
    """

    __slots__ = (
        "_addresses",
        "_channel",
        "_connection",
        "_connector",
        "_local",
        "_numbers",
        "_over",
        "_path",
        "_peer",
        "_rounds",
        "_route",
        "_shared",
        "_transport",
        "_turns",
    )

    logstr = "Uninitialized"

    def __init__(self, connector: Connector) -> None:
        """
        Begin nothing yet.

        @param connector: Whose attempt it is.
        """
        self._connector = connector
        self._channel: DeviceChannel | None = None
        self._addresses: list[str] = []
        self._peer = ""
        self._local: Any = None
        self._shared: dict[Any, Any] | None = None
        self._route: Any = None
        self._path: Any = None
        self._transport: Any | None = None
        self._connection: Any = None
        self._rounds = self._numbers = 0
        self._over = False
        # A connecting call never calls back before it returns.
        turns = batchedCallsOf(connector.reactor)
        self._turns: BatchedCalls | None = turns
        turns.wait(connector.reactor, self)

    def logPrefix(self) -> str:
        """
        @return: For who closes it with everything else: a transport that is not connected has this one.
        """
        return self.logstr

    # -- the way to the peer

    def nextTurn(self, shared: dict[Any, Any]) -> None:
        """
        Open the device and find the host's addresses.

        @param shared: As of L{BatchedCalls.wait}.
        """
        if self._over:
            return
        self._turns = None
        self._shared = shared
        try:
            self._begin(self._connector)
        finally:
            self._shared = None

    def _begin(self, connector: Connector) -> None:
        literal = literalOf(connector.host)
        try:
            if literal is not None:
                self._open(reachable(literal))
            elif connector.bound[0] or not isPlacedByUser(connector.device or DEFAULT_DEVICE):
                self._open("")
        except (HCAError, OSError, ValueError) as e:
            self.failIfNotConnected(failures.connectError(e, connector.where()))
            return
        if literal is not None:
            self._addresses = [reachable(literal)]
            self._tryNext(None)
            return
        found: Deferred[list[str]] = resolve(connector.reactor, connector.host)
        found.addCallback(self._resolved)
        found.addErrback(self.failIfNotConnected)

    def _open(self, peer: str) -> DeviceChannel:
        """
        Have the device.

        @param peer: The address to connect to, if it is known.
        @raise HCAError: It cannot be opened.
        """
        connector, before = self._connector, self._channel
        channel = channelFor(connector.reactor, connector.device, connector.bound[0], peer)
        if channel is not before:
            channel.acquire(self)
            self._channel = channel
            if before is not None:
                before.release(self)
        return channel

    def _resolved(self, addresses: list[str]) -> None:
        """
        The host's addresses are known: try the first.
        """
        if not self._over:
            self._addresses = [reachable(address) for address in addresses]
            self._tryNext(None)

    def _tryNext(self, reason: Exception | None) -> None:
        """
        Try the next address, or fail if there is none.

        @param reason: Why the one before it failed.
        """
        while self._addresses:
            self._peer = self._addresses.pop(0)
            try:
                self._try()
            except (HCAError, ValueError, error.ConnectError) as e:
                self._forget()
                reason = failures.connectError(e, self._connector.where(self._peer))
            else:
                return
        assert reason is not None
        self.failIfNotConnected(reason)

    def _try(self) -> None:
        """
        Look for the path to one address.

        @raise HCAError: There is none.
        """
        connector = self._connector
        channel = self._channel
        if channel is None or channel.device.addressed:
            channel = self._open(self._peer)  # Which one it is may depend on the address.
        peer = sharedAddress(self._peer, connector.port)
        local = self._local = self._localAddress(peer)
        try:
            transport = connector.makeTransport(channel, local, peer)
        except BaseException:
            localPorts(channel).release(local, peer)
            raise
        channel.acquire(transport)
        self._transport = transport
        route = self._search(channel)
        if self._transport is transport and self._path is None:
            self._route = route

    def _search(self, channel: DeviceChannel) -> Any:
        """
        Have the device look for the path.

        @return: Something with C{cancel()}.
        @raise HCAError: There is none.
        """
        connector, shared = self._connector, self._shared
        if shared is not None:
            path = shared.get((channel, connector.handshake.PORT_SPACE, self._peer, connector.port))
            if path is not None and getattr(path, "alive", False):
                self.pathReady(path)
                return None
        return channel.device.connect(
            connector.handshake.PORT_SPACE, self._peer, connector.port, self, channel.now()
        )

    def _localAddress(self, peer: Address) -> Address:
        """
        Choose the local end for one address.

        @raise ConnectBindError: What the user has bound does not fit.
        """
        channel = self._channel
        assert channel is not None
        host, port = self._connector.bound
        try:
            here = channel.device.localAddressFor(self._peer, host)
        except (HCAError, ValueError):
            raise failures.notOurs(host) from None
        if (":" in here) != (":" in self._peer):
            raise failures.notOurs(host or here)
        number = localPorts(channel).take(here, port, peer)
        if number is None:
            raise failures.localPortInUse(here, port)
        return addressOf(here, number)

    def connectFailed(self, reason: HCAError) -> None:
        """
        The device found no path.

        @param reason: What the device says.
        """
        if not self._over:
            self._failed(reason)

    def _failed(self, reason: Exception) -> None:
        """
        This address failed: drop what was made for it and try the next.
        """
        self._forget()
        self._tryNext(failures.connectError(reason, self._connector.where(self._peer)))

    def pathReady(self, path: Any) -> None:
        """
        The device found a path: send a REQ over it.

        @param path: The way to the peer's HCA.
        """
        if not self._over:
            self._route = None
            self._path = path
            if self._shared is not None:
                connector = self._connector
                service = self._channel, connector.handshake.PORT_SPACE, self._peer, connector.port
                self._shared[service] = path
            self._ask()

    def _ask(self) -> None:
        try:
            self._request()
        except HCAError as e:
            self._failed(e)

    def _request(self) -> None:
        channel, transport = self._channel, self._transport
        assert channel is not None and transport is not None
        connector = self._connector
        request = connector.handshake.request(
            transport, self._local, sharedAddress(self._peer, connector.port)
        )
        if channel.device.addressed:
            self._path.prepareREQ(request)
        self._connection = channel.device.cm.connect(self._path, request, self, channel.now())

    # -- what the CM says

    def replied(self, connection: Any, reply: REP) -> None:
        """
        The passive side accepts: check its answer, send RTU.

        @param connection: of the communication manager.
        @param reply: The REP.
        """
        if connection is not self._connection:
            return
        channel, transport = self._channel, self._transport
        assert channel is not None and transport is not None
        try:
            self._connector.handshake.replied(transport, connection, reply)
        except HCAError as e:
            connection.reject(RejectReason.CONSUMER_DEFINED, b"", channel.now())
            self._connection = None
            self._failed(e)
            return
        connection.ready(channel.now())
        self._succeed(channel, transport)

    def rejected(self, connection: Any, rejection: REJ) -> None:
        """
        The passive side refuses.

        @param connection: of the communication manager.
        @param rejection: The REJ.
        """
        if connection is not self._connection:
            return
        self._connection = None
        where = self._connector.where(self._peer)
        if rejection.privateData.startswith(NUMBER_TAKEN) and self._mayTryAnother():
            self._addresses.insert(0, self._peer)
            self._forget()
            self._tryNext(None)
        elif rejection.reason == RejectReason.INVALID_SERVICE_ID:
            self._failed(failures.refused(where))
        else:
            self._failed(failures.rejected(where, rejection.reason))

    def _mayTryAnother(self) -> bool:
        """
        @return: Whether another local number will do, and not too many were tried.
        """
        self._numbers += 1
        return not self._connector.bound[1] and self._numbers < limits.PORT_ATTEMPTS

    def unreachable(self, connection: Any) -> None:
        """
        No answer to any REQ.  The peer's backlog may be full: go on as long as
        TCP does, unless a timeout comes first.

        @param connection: of the communication manager.
        """
        if connection is not self._connection:
            return
        self._connection = None
        self._rounds += 1
        if self._rounds < CONNECT_ROUNDS:
            self._ask()
        else:
            self._failed(failures.noAnswer(self._connector.where(self._peer)))

    def pathLost(self, reason: PathLostError) -> None:
        """
        The peer's process is gone.

        @param reason: What became of the peer.
        """
        if not self._over:
            self._connection = None
            self._failed(reason)

    # -- the end

    def _succeed(self, channel: DeviceChannel, transport: Any) -> None:
        connector = self._connector
        try:
            protocol = connector.buildProtocol(transport.getPeer())
        except BaseException:
            # As the reactor does with what a descriptor's doRead raises.
            log.err()
            self.failIfNotConnected(error.ConnectError(string=failures.oneLine(Failure().value)))
            return
        if self._over:
            return
        self._over = True
        self._connection = self._path = self._transport = None
        connector.transport = transport
        transport.attach(protocol)
        channel.release(self)

    def _forget(self) -> None:
        route, self._route = self._route, None
        if route is not None:
            route.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            assert self._channel is not None
            connection.abandon(self._channel.now())
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abandon()
        self._path = None

    def failIfNotConnected(self, reason: Exception | Failure) -> None:
        """
        End the attempt, if it has not ended.

        @param reason: What the connector's factory is told.
        """
        if self._over:
            return
        self._over = True
        turns, self._turns = self._turns, None
        if turns is not None:
            turns.forget(self)
        if isinstance(reason, error.TimeoutError):
            reason = failures.timedOut(self._connector.where(), self._connector.timeout)
        self._forget()
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.release(self)
        try:
            self._connector.connectionFailed(Failure(reason))
        except BaseException:
            # The factory's mistake: nothing to end a turn of the device for,
            # which others share.
            log.err()

    def connectionLost(self, reason: Failure) -> None:
        """
        The channel is going, with the reactor.

        @param reason: Why.
        """
        self.failIfNotConnected(error.ConnectError(string=failures.oneLine(reason.value)))

    def loseConnection(self) -> None:
        """
        There is no connection yet.
        """
        self.failIfNotConnected(error.UserError())

    def cancel(self) -> None:
        """
        The attempt may take as long as it takes, or is over: as the C{timeoutID} of its connector.
        """
        connector = self._connector
        if connector.timeout is not None:
            batchedCallsOf(connector.reactor).unlimit(connector.timeout, self)


@implementer(IConnector)
class Connector(Destination):
    """
    What a connecting call gives.

    @cvar handshake: What REQ and REP say in this protocol, a module: C{PORT_SPACE},
        C{request(transport, local, peer)}, C{replied(transport, connection, reply)}.
    @cvar transportClass: What it makes once there is a path.
    """

    handshake: Any
    transportClass: Any

    def connect(self) -> None:
        """
        Begin an attempt: what C{BaseConnector} does, but for the delayed call of the timeout, which
        all attempts with the same timeout share.
        """
        if self.state != "disconnected":
            raise RuntimeError("can't connect in this state")
        self.state = "connecting"
        if not self.factoryStarted:
            self.factory.doStart()
            self.factoryStarted = 1
        self.transport = attempt = self._makeTransport()
        if self.timeout is not None:
            self.timeoutID = attempt
            batchedCallsOf(self.reactor).limit(self.reactor, self.timeout, attempt)
        self.factory.startedConnecting(self)

    def _makeTransport(self) -> Any:
        return Attempt(self)

    def makeTransport(self, channel: DeviceChannel, host: Address, peer: Address) -> Any:
        """
        Make the transport for one address.

        @param channel: The device in its reactor.
        @param host: The address of this end.
        @param peer: The address of the other end.
        @return: the transport.
        """
        return self.transportClass(channel, host, peer, self)
