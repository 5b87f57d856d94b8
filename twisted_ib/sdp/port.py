"""
SDP for Twisted: L{listenSDP} and L{connectSDP}, their port, connector and transports, and the endpoints, used
like C{TCP4ServerEndpoint} and C{HostnameEndpoint}.

Nothing is opened before C{listen} or C{connect} is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IConnector, IListeningPort, IProtocolFactory
from twisted.internet.protocol import ClientFactory

from twisted_ib import limits
from twisted_ib.internet.connector import Connector
from twisted_ib.internet.deferredaccept import HalfOpenAccept
from twisted_ib.internet.endpoints import ClientEndpoint, ServerEndpoint
from twisted_ib.internet.port import Port
from twisted_ib.internet.serverclient import (
    CLIENT_FIELDS,
    SERVER_FIELDS,
    ClientTransport,
    ConnectedTransport,
    ServerTransport,
)
from twisted_ib.sdp import handshake
from twisted_ib.sdp.secure import innermostTLS
from twisted_ib.sdp.transport import SDPTransport

if TYPE_CHECKING:
    from twisted.internet.interfaces import Binding, IProtocol

    from twisted_ib.sdp.extensions import Extensions


class _SDPConnected(ConnectedTransport):
    __slots__ = ()

    direct: bool
    prompt: bool
    extensions: Extensions | None

    def begin(self, protocol: IProtocol | None) -> bool:
        if innermostTLS(protocol) is not None:
            self.prompt = False
        # There is nothing to do at the end of the batch yet; whatever changes that says so.
        self.direct = self.prompt
        return ConnectedTransport.begin(self, protocol)

    def nextTurn(self, shared: dict[Any, Any]) -> None:
        # SrcAvails received before the protocol had a turn are read from now on.
        if self._settling is not None and self.extensions is not None:
            self.cork()
        ConnectedTransport.nextTurn(self, shared)


class SDPServer(_SDPConnected, ServerTransport, SDPTransport):
    """
    The transport of an accepted connection, like L{twisted.internet.tcp.Server}.
    """

    __slots__ = SERVER_FIELDS


class SDPClient(_SDPConnected, ClientTransport, SDPTransport):
    """
    The transport of an active side, like L{twisted.internet.tcp.Client}.
    """

    __slots__ = CLIENT_FIELDS


class SDPConnector(Connector):
    """
    The connector that L{connectSDP} returns.
    """

    handshake = handshake
    protocolName = "SDP"
    transportClass = SDPClient


class HalfOpenStream(HalfOpenAccept):
    """
    Stands for a stream.
    """

    __slots__ = ()

    #: As of a new stream, for the Bufs field of the HelloAck (IBTA vol. 1 annex A4).
    posted = limits.SDP_RECEIVES


class SDPPort(Port):
    """
    The listening port that L{listenSDP} returns.
    """

    handshake = handshake
    transport = SDPServer
    halfOpen = HalfOpenStream
    provider = "sdp"

    _type = "SDP"


def listenSDP(
    reactor: Any,
    port: int | Binding,
    factory: IProtocolFactory,
    backlog: int = 50,
    interface: str = "",
    device: str | None = None,
) -> IListeningPort:
    """
    Listen on an SDP port, like C{reactor.listenTCP}.

    @param reactor: Provides C{IReactorFDSet} and C{IReactorTime}.
    @param port: 0 for any free port; or a C{Binding}.
    @param backlog: Connection requests queued while the port does not accept.
    @param interface: The address to bind; all IPv4 addresses by default.
    @param device: The HCA's name; the host's default by default.
    @raise ValueError: C{port} is not a port number.
    @raise CannotListenError: The port is not available.
    """
    listening = SDPPort(port, factory, backlog, interface, reactor, device)
    listening.startListening()
    return listening


def connectSDP(
    reactor: Any,
    host: str,
    port: int | str,
    factory: ClientFactory,
    timeout: float | None = 30,
    bindAddress: Binding | tuple[str, int] | str | None = None,
    device: str | None = None,
) -> IConnector:
    """
    Connect to an SDP port, like C{reactor.connectTCP}.

    @param reactor: Provides C{IReactorFDSet} and C{IReactorTime}; also a resolver, if C{host} is a name.
    @param port: The port, or the name of its service.
    @param factory: A L{ClientFactory}, notified of failure and loss.
    @param timeout: Seconds.
    @param bindAddress: The local host and port, as a pair or a C{Binding}.
    @param device: The HCA's name; the host's default by default.
    @raise ValueError: C{port} or C{bindAddress} is invalid.
    @raise ServiceNameUnknownError: There is no such service.
    """
    connector = SDPConnector(host, port, factory, timeout, bindAddress, reactor, device)
    connector.connect()
    return connector


class SDPServerEndpoint(ServerEndpoint):
    """
    Listens on an SDP port.
    """

    listenCall = staticmethod(listenSDP)


class SDPClientEndpoint(ClientEndpoint):
    """
    Connects to an SDP port.
    """

    connectCall = staticmethod(connectSDP)
