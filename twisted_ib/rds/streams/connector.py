"""
The active side of streams over reliable datagrams: connection attempts, the connector, and the endpoint like
C{HostnameEndpoint}: C{rds:HOST:PORT}.  L{twisted_ib.rds.protocol.frames} documents the wire format.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from twisted.internet import error
from twisted.internet.interfaces import IConnector
from twisted.internet.protocol import Protocol
from twisted.python import log
from twisted.python.failure import Failure
from zope.interface import implementer

from twisted_ib.errors import HCAError
from twisted_ib.internet import failures
from twisted_ib.internet.addressing.addresses import addressOf, reachable
from twisted_ib.internet.addressing.endpoints import ClientEndpoint, EndpointFactory
from twisted_ib.internet.addressing.resolution import Destination, literalOf, resolve
from twisted_ib.rds.networks import networkFor
from twisted_ib.rds.protocol.frames import EndReason
from twisted_ib.rds.protocol.streammachine import StreamMachine
from twisted_ib.rds.streams.streamsocket import StreamSocket, socketFor
from twisted_ib.rds.streams.transport import StreamTransport, wordsOf

if TYPE_CHECKING:
    from twisted.internet.interfaces import IProtocolFactory, IReactorTime
    from twisted.internet.protocol import Factory


#: Reasons that programs see as "connection refused".
_REFUSALS = (EndReason.NO_LISTENER, EndReason.TOO_MANY, EndReason.UNWANTED, EndReason.VERSION)


class StreamAttempt:
    """
    One connection attempt: name resolution, and an OPEN to each address in turn.

    It is C{connector.transport} until there is a transport.

    @ivar unreachable: why the socket could not send to the peer, if so.
    """

    logstr = "Uninitialized"
    unreachable: Exception | None = None

    def __init__(self, connector: StreamConnector) -> None:
        """
        Start in the next turn: C{connect} never calls back before it returns.
        """
        self._connector = connector
        self._socket: StreamSocket | None = None
        self._session: StreamMachine | None = None
        self._addresses: list[str] = []
        self._over = False
        self._medium: Any = None
        self._begin: Any = connector.reactor.callLater(0, self._start)

    def _start(self) -> None:
        self._begin = None
        connector = self._connector
        host, unknown = connector.host, ""
        try:
            medium = networkFor(connector.reactor, connector.device).medium
            self._medium = medium
            if literalOf(host) is None:
                host, unknown = medium.hostNamed(host) or host, medium.unknownHost(host)
        except (HCAError, OSError) as reason:
            self._notBound(failures.listenError(connector.bound[0], 0, connector.device, reason))
            return
        found = resolve(connector.reactor, host, unknown)
        found.addCallback(self._resolved)
        found.addErrback(self.failIfNotConnected)

    def _resolved(self, addresses: list[str]) -> None:
        if not self._over:
            self._addresses = [reachable(address) for address in addresses]
            self._tryNext()

    def _tryNext(self) -> None:
        self._forget()
        self.unreachable = None
        self._medium.locate(self._addresses.pop(0), self._located)

    def _located(self, host: str | HCAError) -> None:
        connector = self._connector
        if self._over:
            return
        if isinstance(host, HCAError):
            self._failed(failures.connectError(host, connector.where()))
            return
        bound, port = connector.bound
        try:
            # Without a bind address the socket is bound to the one that leads to the peer: binding all of
            # them would accept datagrams on the others.
            interface = bound or self._medium.sourceFor(host)
            self._socket = socketFor(connector.reactor, connector.device, interface, port, self)
        except error.CannotListenError as reason:
            self._notBound(reason)
            return
        except (HCAError, OSError, ValueError) as reason:
            self._failed(failures.connectError(reason, connector.where()))
            return
        # Between processes it is known whether a port is bound: refused at once, not after a timeout.
        if self._socket.isServed((host, connector.port)) is False:
            self._failed(failures.refused(connector.where()))
            return
        self._session = self._socket.connect((host, connector.port), self)
        if self._session is None:
            self._failed(error.ConnectError(string=f"{connector.where()}: too many connections"))

    def sessionOpened(self, session: StreamMachine) -> None:
        """
        ACCEPT was received: hand over to a transport.
        """
        connector, socket = self._connector, self._socket
        assert socket is not None
        try:
            protocol = connector.buildProtocol(addressOf(*session.address))
        except BaseException:
            log.err()
            session.user = None
            self.failIfNotConnected(error.ConnectError(string=failures.oneLine(Failure().value)))
            return
        # buildProtocol() may have cancelled the attempt.
        if self._over:
            return
        self._over = True
        self._session = None
        transport = StreamTransport(socket, session, socket.localHost(session.address[0]))
        transport.connector = connector  # type: ignore[attr-defined]
        connector.transport = transport
        if protocol is None:
            # As twisted.internet.tcp: without a protocol the connection is closed.
            transport.attach(Protocol(), "client")
            transport.loseConnection()
        else:
            transport.attach(protocol, "client")
            factory = connector.factory
            if isinstance(factory, EndpointFactory) and factory._onConnection is not None:
                factory.protocolMade(protocol)
        # Last, as the session now keeps the socket open.
        socket.release(self)

    def sessionFailed(self, session: StreamMachine, reason: int) -> None:
        """
        The peer refused, or is unreachable.
        """
        self._session = None
        where = self._connector.where()
        unreachable = self.unreachable
        if unreachable is not None:
            self._failed(failures.connectError(unreachable, where))
        elif reason == EndReason.NO_LISTENER or reason == EndReason.GONE:
            self._failed(failures.refused(where))
        elif reason in _REFUSALS:
            self._failed(error.ConnectionRefusedError(errno.ECONNREFUSED, f"{where}: {wordsOf(reason)}"))
        else:
            self._failed(error.ConnectError(string=f"{where}: {wordsOf(reason)}"))

    def _notBound(self, reason: error.CannotListenError) -> None:
        why = reason.socketError
        self._failed(error.ConnectBindError(why.errno or errno.EADDRNOTAVAIL, why.strerror or str(why)))

    def _failed(self, reason: Exception) -> None:
        if self._over:
            return
        if self._addresses:
            self._tryNext()
        else:
            self.failIfNotConnected(reason)

    def _forget(self) -> None:
        session, self._session = self._session, None
        socket, self._socket = self._socket, None
        if socket is None:
            return
        if session is not None:
            session.user = None
            # The peer may have accepted meanwhile: its answer will find no session and end its own.
            session.abort()
            session.events.clear()
            socket.streams.settle(session)
            socket.touch(session)
        socket.release(self)

    def failIfNotConnected(self, reason: Exception | Failure) -> None:
        """
        End the attempt, unless it has ended.
        """
        if self._over:
            return
        self._over = True
        begin, self._begin = self._begin, None
        if begin is not None and begin.active():
            begin.cancel()
        if isinstance(reason, error.TimeoutError):
            reason = failures.timedOut(self._connector.where(), self._connector.timeout)
        self._forget()
        try:
            self._connector.connectionFailed(Failure(reason))
        except BaseException:
            log.err()

    def loseConnection(self) -> None:
        """
        Cancel the attempt.
        """
        self.failIfNotConnected(error.UserError())

    def logPrefix(self) -> str:
        """
        @return: the prefix of an unconnected transport.
        """
        return self.logstr


@implementer(IConnector)
class StreamConnector(Destination):
    """
    The connector that C{connectStream} returns.
    """

    protocolName = "RDS"

    def _makeTransport(self) -> Any:
        return StreamAttempt(self)


def connectStream(
    reactor: IReactorTime,
    host: str,
    port: int,
    factory: IProtocolFactory | Factory[Any],
    timeout: float | None = 30,
    bindAddress: Any = None,
    device: str | None = None,
) -> IConnector:
    """
    Connect a stream to a port of L{listenStreams<twisted_ib.rds.streams.listening.listenStreams>}.

    @param reactor: provides C{IReactorFDSet} and C{IReactorTime}; also a resolver, if C{host} is a name.
    @param timeout: of the connection, in seconds.
    @param bindAddress: the local host and port, a pair; port 0 for any.
    @param device: C{"tcp"}, or the HCA's name; see L{twisted_ib.rds.port.listenRDS}.
    @raise ValueError: an argument is invalid.
    """
    connector = StreamConnector(host, port, factory, timeout, bindAddress, reactor, device)
    connector.connect()
    return connector


class RDSClientEndpoint(ClientEndpoint):
    """
    The endpoint that connects a stream.
    """

    connectCall = staticmethod(connectStream)
