"""
RDS over TCP: each message is its header and its payload in the stream, with nothing between them
(L{twisted_ib.rds.media.tcpcarrier}); here is who connects to whom.

The addresses of a connection are those of its path, so the active side binds its address before it
connects, and one process has an address for itself: port 16385 is where peers look.  The smaller
address connects.  A larger one that has something to say connects too, and lets go at once: the
smaller resets what it has accepted and connects itself, so that there is only one way to have a
connection (C{rds_tcp_accept_one_path}).

Source: Linux 6.1 C{net/rds/tcp_connect.c}, C{tcp_listen.c}.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from twisted.internet import error
from twisted.internet.defer import Deferred, succeed
from twisted.internet.protocol import ClientFactory, ServerFactory
from twisted.python.failure import Failure
from zope.interface import implementer

from twisted_ib.errors import PeerGoneError, ResourceLimitError
from twisted_ib.hca.host.addresses import localAddresses, normalise
from twisted_ib.rds.media.tcpcarrier import TCPCarrier, TCPConnector, TCPPort
from twisted_ib.rds.paths.carrier import IRDSMedium
from twisted_ib.rds.paths.path import RDSPath
from twisted_ib.rds.protocol.wire import TCP_PORT

if TYPE_CHECKING:
    from twisted_ib.rds.network import Network

#: How long one attempt may take, in seconds.
RDS_CONNECT_SECONDS = 10.0


class _Attempt(ClientFactory):
    """
    An attempt to connect a path.
    """

    noisy = False
    _done = False

    def __init__(self, medium: TCPMedium, path: RDSPath) -> None:
        self._medium = medium
        self._path = path
        medium.alive.add(self)
        self._connector = TCPConnector(
            path.remote,
            medium.port,
            self,
            RDS_CONNECT_SECONDS,
            (path.local, 0),
            medium.network.reactor,
        )
        self._connector.connect()

    def buildProtocol(self, addr: Any) -> TCPCarrier:
        """
        See C{IProtocolFactory}.
        """
        return TCPCarrier(self._medium, self._made)

    def _made(self, carrier: TCPCarrier) -> None:
        transport: Any = carrier.transport
        self._medium.gone(self)
        if self._done:
            transport.abortConnection()
        elif self._medium.reconnects(self._path):
            self._done = True
            carrier.begin(self._path)
        else:
            # The peer knows now, and connects; this is not how connections are made.
            self._done = True
            transport.loseConnection()
            self._path.carrierFailed(PeerGoneError(f"{self._path.remote} has to connect"))

    def clientConnectionFailed(self, connector: Any, reason: Failure) -> None:
        """
        See C{ClientFactory}.
        """
        self._medium.gone(self)
        if not self._done:
            self._done = True
            self._path.carrierFailed(PeerGoneError(f"{self._path.remote}: {reason.getErrorMessage()}"))

    def cancel(self) -> None:
        """
        The connection is not wanted any more.
        """
        if not self._done:
            self._done = True
            self._connector.stopConnecting()


class _Accepting(ServerFactory):
    """
    What listens for peers gives their connections to the medium.
    """

    noisy = False

    def __init__(self, medium: TCPMedium) -> None:
        """
        @param medium: the medium.
        """
        self._medium = medium

    def buildProtocol(self, addr: Any) -> TCPCarrier:
        """
        See C{IProtocolFactory}.
        """
        return TCPCarrier(self._medium, self._medium.accepted)


@implementer(IRDSMedium)
class TCPMedium:
    """
    RDS over TCP.

    @ivar name: C{tcp}.
    @ivar acknowledges: no: TCP does.
    @ivar network: whose medium it is.
    @ivar port: where peers listen.
    @ivar alive: what is in the reactor.
    """

    name = "tcp"
    acknowledges = sharesAddresses = False

    def __init__(self, network: Network, port: int = TCP_PORT) -> None:
        self.network = network
        self.port = port
        self.alive: set[Any] = set()
        self._ports: dict[str, tuple[TCPPort, set[int]]] = {}
        self._waiters: list[tuple[set[Any], Deferred[None]]] = []

    def localAddresses(self) -> list[str]:
        """
        See L{IRDSMedium.localAddresses}: all but those that need a scope.
        """
        return [address for address in map(normalise, localAddresses()) if "%" not in address]

    def bind(self, address: str, port: int) -> None:
        """
        See L{IRDSMedium.bind}.
        """
        found = self._ports.get(address)
        if found is None:
            listening = TCPPort(self.port, _Accepting(self), interface=address, reactor=self.network.reactor)
            try:
                listening.startListening()
            except error.CannotListenError as e:
                raise e.socketError from None
            self.alive.add(listening)
            found = self._ports[address] = listening, set()
        found[1].add(port)

    def unbind(self, address: str, port: int) -> None:
        """
        See L{IRDSMedium.unbind}.
        """
        listening, ports = self._ports[address]
        ports.discard(port)
        if not ports:
            del self._ports[address]
            stopped: Any = listening.stopListening() or succeed(None)
            stopped.addBoth(lambda result: self.gone(listening))

    def pathTo(self, address: str, host: str, port: int) -> RDSPath:
        """
        See L{IRDSMedium.pathTo}.
        """
        return self.network.path((address, host), address, host)

    def reconnects(self, path: RDSPath) -> bool:
        """
        See L{IRDSMedium.reconnects}: the smaller address does.
        """
        return _number(path.local) < _number(path.remote)

    def connect(self, path: RDSPath) -> _Attempt:
        """
        See L{IRDSMedium.connect}.
        """
        return _Attempt(self, path)

    def accepted(self, carrier: TCPCarrier) -> None:
        """
        A peer has connected.
        """
        transport: Any = carrier.transport
        local, remote = normalise(transport.getHost().host), normalise(transport.getPeer().host)
        if remote == local or self.network.isOurs(remote) or self.network.dormant:
            carrier.abort()
            return
        try:
            path = self.pathTo(local, remote, 0)
        except ResourceLimitError:
            carrier.abort()
            return
        if path.carrier is not None and path.isFull():
            # What it has is not lost by that; the peer tries again.
            carrier.abort()
        elif self.reconnects(path):
            carrier.abort()
            path.connectNow()
        else:
            carrier.begin(path)

    def gone(self, what: Any) -> None:
        """
        Something is not in the reactor any more.
        """
        self.alive.discard(what)
        waiters, self._waiters = self._waiters, []
        for waited, waiter in waiters:
            waited.discard(what)
            if waited:
                self._waiters.append((waited, waiter))
            else:
                waiter.callback(None)

    def whenQuiet(self) -> Deferred[None]:
        """
        See L{IRDSMedium.whenQuiet}.
        """
        if not self.alive:
            return succeed(None)
        waiter: Deferred[None] = Deferred()
        self._waiters.append((set(self.alive), waiter))
        return waiter


def _number(address: str) -> int:
    return int(ip_address(address.partition("%")[0]))
