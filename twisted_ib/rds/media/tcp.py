"""
RDS over TCP: which end connects, and which connections are accepted.  The byte stream itself is in
L{twisted_ib.rds.media.tcpcarrier}.

A connection has the addresses of its path, so the active side binds its address before it connects.  A
process needs an address of its own, as peers look for it at port 16385.  The numerically smaller address
connects.  A larger one with something to send connects too and closes at once: the smaller resets the
accepted socket and connects itself, so that each pair ends up with one canonical connection
(C{rds_tcp_accept_one_path}).

Source: Linux 6.1 C{net/rds/tcp_connect.c}, C{tcp_listen.c}.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from twisted.internet import error
from twisted.internet.defer import Deferred, succeed
from twisted.internet.protocol import ClientFactory, ServerFactory
from twisted.python.failure import Failure
from zope.interface import implementer

from twisted_ib.errors import PeerGoneError, ResourceLimitError
from twisted_ib.hca.host.addresses import localAddresses, normalise, sourceFor
from twisted_ib.rds.media.tcpcarrier import TCPCarrier, TCPConnector, TCPPort
from twisted_ib.rds.paths.carrier import IRDSMedium
from twisted_ib.rds.paths.path import RDSPath
from twisted_ib.rds.protocol.wire import TCP_PORT

if TYPE_CHECKING:
    from twisted_ib.rds.paths.network import Network

#: The timeout of one connection attempt, in seconds.
RDS_CONNECT_SECONDS = 10.0


class _Attempt(ClientFactory):
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
            # Linux tcp_connect.c binds c_laddr and port 0: the peer knows us by our source address alone.
            (path.local, 0),
            medium.network.reactor,
        )
        self._connector.connect()

    def buildProtocol(self, addr: Any) -> TCPCarrier:
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
            # Linux tcp_connect.c (rds_tcp_state_change) does the same: the larger address drops the
            # connection as soon as it is established, to make the smaller one connect back.
            self._done = True
            transport.loseConnection()
            self._path.carrierFailed(PeerGoneError(f"{self._path.remote} has to connect"))

    def clientConnectionFailed(self, connector: Any, reason: Failure) -> None:
        self._medium.gone(self)
        if not self._done:
            self._done = True
            self._path.carrierFailed(PeerGoneError(f"{self._path.remote}: {reason.getErrorMessage()}"))

    def cancel(self) -> None:
        if not self._done:
            self._done = True
            self._connector.stopConnecting()


class _Accepting(ServerFactory):
    """
    A factory that hands accepted connections to the medium.
    """

    noisy = False

    def __init__(self, medium: TCPMedium) -> None:
        self._medium = medium

    def buildProtocol(self, addr: Any) -> TCPCarrier:
        return TCPCarrier(self._medium, self._medium.accepted)


@implementer(IRDSMedium)
class TCPMedium:
    """
    RDS over TCP.

    @ivar name: C{tcp}.
    @ivar acknowledges: false, as TCP acknowledges.
    @ivar network: the sockets that use it.
    @ivar port: the TCP port that peers listen on.
    @ivar alive: everything of ours that is in the reactor.
    """

    name = "tcp"
    acknowledges = sharesAddresses = False
    relay = None

    def __init__(self, network: Network, port: int = TCP_PORT) -> None:
        self.network = network
        self.port = port
        self.alive: set[Any] = set()
        self._ports: dict[str, tuple[TCPPort, set[int]]] = {}
        self._waiters: list[tuple[set[Any], Deferred[None]]] = []

    def localAddresses(self) -> list[str]:
        # RFC 4007 section 6: a link-local address means nothing without its zone, and the peer has another
        # zone.
        return [address for address in map(normalise, localAddresses()) if "%" not in address]

    def sourceFor(self, host: str) -> str:
        return sourceFor(host)

    def hostNamed(self, name: str) -> str:
        # Names are the resolver's.
        return ""

    def locate(self, host: str, found: Callable[[str], object]) -> None:
        found(host)

    def unknownHost(self, name: str) -> str:
        return ""

    def bind(self, address: str, port: int) -> None:
        found = self._ports.get(address)
        if found is None:
            # One listener for each address; Linux tcp_listen.c has one for all, which would take the port
            # from the other processes of this host.
            listening = TCPPort(self.port, _Accepting(self), interface=address, reactor=self.network.reactor)
            try:
                listening.startListening()
            except error.CannotListenError as e:
                raise e.socketError from None
            self.alive.add(listening)
            found = self._ports[address] = listening, set()
        found[1].add(port)

    def unbind(self, address: str, port: int) -> None:
        listening, ports = self._ports[address]
        ports.discard(port)
        if not ports:
            del self._ports[address]
            stopped: Any = listening.stopListening() or succeed(None)
            stopped.addBoth(lambda result: self.gone(listening))

    def pathTo(self, address: str, host: str, port: int) -> RDSPath:
        return self.network.path((address, host), address, host)

    def reconnects(self, path: RDSPath) -> bool:
        # Only the smaller address does.
        # Linux rds.h compares addresses as numbers (IS_CANONICAL, rds_addr_cmp), not as text.
        return _number(path.local) < _number(path.remote)

    def connect(self, path: RDSPath) -> _Attempt:
        return _Attempt(self, path)

    def accepted(self, carrier: TCPCarrier) -> None:
        """
        Attach an accepted connection to its path, or reset it.
        """
        transport: Any = carrier.transport
        local, remote = normalise(transport.getHost().host), normalise(transport.getPeer().host)
        # Addresses of one process use loopback; a connection from one of them is not a peer's.
        if remote == local or self.network.isOurs(remote) or self.network.dormant:
            carrier.abort()
            return
        try:
            path = self.pathTo(local, remote, 0)
        except ResourceLimitError:
            carrier.abort()
            return
        if path.carrier is not None and path.isFull():
            # The peer keeps its unacknowledged messages and tries again.  Accepting would replace the old
            # connection, and bring more data than there is memory for.
            carrier.abort()
        elif self.reconnects(path):
            carrier.abort()
            # Linux tcp_listen.c (rds_tcp_accept_one_path): the smaller address resets the accepted socket
            # and starts its own connection.
            path.connectNow()
        else:
            # An existing carrier is replaced.  Linux tcp_listen.c resolves duelling SYNs in the same way
            # (rds_tcp_reset_callbacks), and so a restarted peer gets through.
            carrier.begin(path)

    def gone(self, what: Any) -> None:
        """
        Something of ours has left the reactor.
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
        if not self.alive:
            return succeed(None)
        waiter: Deferred[None] = Deferred()
        self._waiters.append((set(self.alive), waiter))
        return waiter


def _number(address: str) -> int:
    return int(ip_address(address.partition("%")[0]))
