"""
SDP for Twisted: L{listenSDP} and L{connectSDP}, their port, connector and transports, and the endpoints, used
like C{TCP4ServerEndpoint} and C{HostnameEndpoint}.

Nothing is opened before C{listen} or C{connect} is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IConnector, IListeningPort, IProtocolFactory

from twisted_ib import limits
from twisted_ib.errors import PeerEndedError
from twisted_ib.hca.connection.rdmacm import PortSpace, gidNumber, gidText
from twisted_ib.internet.addressing.endpoints import ClientEndpoint, ServerEndpoint
from twisted_ib.internet.connector import Attempt, Connector
from twisted_ib.internet.deferredaccept import HalfOpenAccept
from twisted_ib.internet.port import Port
from twisted_ib.internet.serverclient import (
    CLIENT_FIELDS,
    SERVER_FIELDS,
    ClientTransport,
    ConnectedTransport,
    ServerTransport,
)
from twisted_ib.sdp.handshake import GID_HANDSHAKE, SDP_HANDSHAKE
from twisted_ib.sdp.protocol.machine import State
from twisted_ib.sdp.secure import innermostTLS
from twisted_ib.sdp.transport import SDPTransport

if TYPE_CHECKING:
    from twisted.internet.interfaces import Binding, IProtocol, IReactorTime
    from twisted.internet.protocol import Factory

    from twisted_ib.hca.connection.interfaces import IConnection
    from twisted_ib.hca.device.device import Device
    from twisted_ib.internet.batchedcalls import Shared
    from twisted_ib.internet.channel import DeviceChannel
    from twisted_ib.sdp.extensions import Extensions


class _SDPConnected(ConnectedTransport):
    __slots__ = ()

    connection: Any
    direct: int
    prompt: int
    extensions: Extensions | None

    def begin(self, protocol: IProtocol | None) -> bool:
        if innermostTLS(protocol) is not None:
            self.prompt = 0
        self.connection = self.channel.device.settle(self.connection)
        # There is nothing to do at the end of the batch yet; whatever changes that says so.
        self.direct = self.prompt
        return ConnectedTransport.begin(self, protocol)

    def nextTurn(self, shared: Shared) -> None:
        # SrcAvails received before the protocol had a turn are read from now on.
        if self._settling is not None and self.extensions is not None:
            self.cork()
        ConnectedTransport.nextTurn(self, shared)


class SDPServer(_SDPConnected, ServerTransport, SDPTransport):
    """
    The transport of an accepted connection, like L{twisted.internet.tcp.Server}.
    """

    __slots__ = SERVER_FIELDS

    def givenUp(self, connection: IConnection) -> None:
        """
        The client has closed before it heard of the connection: the end of the stream as over TCP, whose
        kernel completes the handshake by itself; a reset if it was sent to.
        """
        machine = self.machine
        # A DisConn is no octet.
        if machine.state > State.FIN_WAIT1 or machine.sequence > self.disconnSent:
            self.peerDisconnected(connection)
            return
        reason = PeerEndedError("the peer has given up its connect")
        reason.needed[self.queuePair.number] = 0
        self.channel.device.resume(self)
        self.failed(reason)


class SDPClient(_SDPConnected, ClientTransport, SDPTransport):
    """
    The transport of an active side, like L{twisted.internet.tcp.Client}.
    """

    __slots__ = CLIENT_FIELDS


class GIDAttempt(Attempt):
    """
    An attempt that finds the HCA of a GID without a look-up of its service.
    """

    def _isHCA(self, device: Device) -> bool:
        return device.paths.isOfGUID(self._peer)

    def _addressHere(self, channel: DeviceChannel) -> str:
        if self._isHCA(channel.device) and not self._connector.bound[0]:
            return gidText(channel.device.gid)
        return Attempt._addressHere(self, channel)

    def _reach(self, channel: DeviceChannel) -> Any:
        if self._isHCA(channel.device):
            return channel.device.services.connectHCA(gidNumber(self._peer), self)
        return Attempt._reach(self, channel)


class SDPConnector(Connector):
    """
    The connector that L{connectSDP} returns.
    """

    handshake = SDP_HANDSHAKE
    protocolName = "SDP"
    transportClass = SDPClient


class GIDConnector(SDPConnector):
    """
    The connector of C{portSpace=PortSpace.IB}: its hosts are GIDs.
    """

    handshake = GID_HANDSHAKE
    attemptClass = GIDAttempt


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

    handshake = SDP_HANDSHAKE
    transport = SDPServer
    halfOpen = HalfOpenStream
    provider = "sdp"

    _type = "SDP"


class GIDPort(SDPPort):
    """
    The listening port of C{portSpace=PortSpace.IB}.
    """

    handshake = GID_HANDSHAKE

    _type = "AF_IB SDP"

    def _bindAddress(self) -> str:
        # All GIDs, those of IPv4 addresses too.
        return SDPPort._bindAddress(self) if self.interface else "::"

    def _takePort(self, channel: DeviceChannel, address: str) -> tuple[Any, ...]:
        device = channel.device
        # The GID made of the GUID is of this HCA alone, so that there is nothing to publish: whoever finds
        # the HCA by it asks for the service.
        if device.paths.isOfGUID(address):
            if gidNumber(address) != device.gid:
                raise ValueError(f"{address} is not the GID of device {device.name}, {gidText(device.gid)}")
            address = "::"
        return SDPPort._takePort(self, channel, address)

    def _checkAddresses(self, device: Device, path: Any, here: str, peer: str) -> None:
        # An HCA may name itself by the GID of its own path.
        isOwn = gidNumber(peer) == device.paths.gidOf(path) and device.paths.isProven(path)
        if not (isOwn and device.hasGID(gidNumber(here))):
            SDPPort._checkAddresses(self, device, path, here, peer)


_PORTS: dict[int, type[SDPPort]] = {PortSpace.SDP: SDPPort, PortSpace.IB: GIDPort}
_CONNECTORS: dict[int, type[SDPConnector]] = {PortSpace.SDP: SDPConnector, PortSpace.IB: GIDConnector}


def _classOf(classes: dict[int, Any], portSpace: int) -> Any:
    if portSpace not in classes:
        raise ValueError(f"SDP has the port spaces PortSpace.SDP and PortSpace.IB, not {portSpace!r}")
    return classes[portSpace]


def listenSDP(
    reactor: IReactorTime,
    port: int | Binding,
    factory: IProtocolFactory | Factory[Any],
    backlog: int = 50,
    interface: str = "",
    device: str | None = None,
    portSpace: int = PortSpace.SDP,
) -> IListeningPort:
    """
    Listen on an SDP port, like C{reactor.listenTCP}.

    @param reactor: Provides C{IReactorFDSet} and C{IReactorTime}.
    @param port: 0 for any free port; or a C{Binding}.
    @param backlog: Connection requests queued while the port does not accept.
    @param interface: The address to bind; all IPv4 addresses by default.
    @param device: The HCA's name; the host's default by default.
    @param portSpace: C{PortSpace.SDP}; or C{PortSpace.IB}, where addresses are GIDs, as AF_IB's.
    @raise ValueError: C{port} is not a port number, or C{portSpace} is another one.
    @raise CannotListenError: The port is not available.
    """
    listening = _classOf(_PORTS, portSpace)(port, factory, backlog, interface, reactor, device)
    listening.startListening()
    return listening


def connectSDP(
    reactor: IReactorTime,
    host: str,
    port: int | str,
    factory: IProtocolFactory | Factory[Any],
    timeout: float | None = 30,
    bindAddress: Binding | tuple[str, int] | str | None = None,
    device: str | None = None,
    portSpace: int = PortSpace.SDP,
) -> IConnector:
    """
    Connect to an SDP port, like C{reactor.connectTCP}.

    @param reactor: Provides C{IReactorFDSet} and C{IReactorTime}; also a resolver, if C{host} is a name.
    @param port: The port, or the name of its service.
    @param factory: A C{ClientFactory}, notified of failure and loss; Twisted types what its
        C{forProtocol} returns as any factory.
    @param timeout: Seconds.
    @param bindAddress: The local host and port, as a pair or a C{Binding}.
    @param device: The HCA's name; the host's default by default.
    @param portSpace: As of L{listenSDP}.
    @raise ValueError: C{port}, C{bindAddress} or C{portSpace} is invalid.
    @raise ServiceNameUnknownError: There is no such service.
    """
    connector = _classOf(_CONNECTORS, portSpace)(host, port, factory, timeout, bindAddress, reactor, device)
    connector.connect()
    return connector


class SDPServerEndpoint(ServerEndpoint):
    """
    Listens on an SDP port; accepts C{portSpace} too, like L{listenSDP}.
    """

    listenCall = staticmethod(listenSDP)


class SDPClientEndpoint(ClientEndpoint):
    """
    Connects to an SDP port; accepts C{portSpace} too, like L{connectSDP}.
    """

    connectCall = staticmethod(connectSDP)
