"""
Messages for Twisted: L{listenRDMA} and L{connectRDMA}, their port, connector and transports, and the
endpoints, used like C{TCP4ServerEndpoint} and C{HostnameEndpoint}.

Nothing is opened before C{listen} or C{connect} is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IConnector, IListeningPort, IProtocolFactory

from twisted_ib import limits
from twisted_ib.errors import HCAError
from twisted_ib.hca.base.traits import IB_PRIVATE_BYTES, PrivateBytes
from twisted_ib.hca.connection.rdmacm import HEADER_BYTES
from twisted_ib.hca.device.registry import DEFAULT_DEVICE, traitsOf
from twisted_ib.internet.addressing.endpoints import ClientEndpoint, ServerEndpoint
from twisted_ib.internet.connector import Connector
from twisted_ib.internet.deferredaccept import HalfOpenAccept
from twisted_ib.internet.port import Port
from twisted_ib.internet.serverclient import CLIENT_FIELDS, SERVER_FIELDS, ClientTransport, ServerTransport
from twisted_ib.rdma import handshake
from twisted_ib.rdma.transport import RDMATransport

if TYPE_CHECKING:
    from twisted.internet.interfaces import Binding, IReactorTime
    from twisted.internet.protocol import Factory


class RDMAServer(ServerTransport, RDMATransport):
    """
    The transport of an accepted connection, like L{twisted.internet.tcp.Server}.
    """

    __slots__ = SERVER_FIELDS

    @property
    def owner(self) -> object:
        """
        The port.
        """
        return self.server


class RDMAClient(ClientTransport, RDMATransport):
    """
    The transport of an active side, like L{twisted.internet.tcp.Client}.
    """

    __slots__ = CLIENT_FIELDS

    @property
    def owner(self) -> object:
        """
        The connector.
        """
        return self.connector


def privateBytesOf(device: str | None) -> PrivateBytes:
    """
    The private data that a device's fabric carries.

    @param device: Its name, or L{None} for the host's default.
    """
    try:
        return traitsOf(DEFAULT_DEVICE if device is None else device).privateBytes
    except HCAError:
        # Without such a device nothing is sent; opening it tells why.
        return IB_PRIVATE_BYTES


def checkPrivateData(privateData: bytes, most: int) -> bytes:
    """
    Check private data for a CM message.

    @param most: Its room, in bytes.
    @raise TypeError: It is not L{bytes}.
    @raise ValueError: It is too long.
    """
    if not isinstance(privateData, bytes):
        raise TypeError("privateData must be bytes")
    # CM private data has no length field (Linux ib_cm.h ib_cm_data_size): what does not fit cannot be sent.
    if len(privateData) > most:
        raise ValueError(f"privateData has at most {most} bytes here, not {len(privateData)}")
    return privateData


def checkMessageSize(maxMessageSize: int) -> int:
    """
    Check a maximum message size.

    @raise ValueError: It is not an integer, or out of range.
    """
    if not isinstance(maxMessageSize, int) or not 0 < maxMessageSize <= limits.RDMA_MESSAGE_MOST:
        raise ValueError(f"maxMessageSize is 1 to {limits.RDMA_MESSAGE_MOST}, not {maxMessageSize!r}")
    return maxMessageSize


class RDMAConnector(Connector):
    """
    The connector that L{connectRDMA} returns.

    @ivar privateData: Sent to the peer in the REQ.
    @ivar maxMessageSize: The longest message, in bytes, each way.
    """

    handshake = handshake
    protocolName = "RDMA"
    transportClass = RDMAClient

    def __init__(self, *arguments: Any, privateData: bytes, maxMessageSize: int) -> None:
        """
        @param arguments: Those of L{Connector}.
        @raise ValueError: An argument is invalid.
        """
        Connector.__init__(self, *arguments)
        most = privateBytesOf(self.device).request - HEADER_BYTES if privateData else 0
        self.privateData = checkPrivateData(privateData, most)
        self.maxMessageSize = checkMessageSize(maxMessageSize)


class HalfOpenMessages(HalfOpenAccept):
    """
    Stands for a transport of messages.
    """

    __slots__ = ()

    @property
    def privateData(self) -> bytes:
        """
        The port's private data.
        """
        found: bytes = self.port.privateData
        return found

    @property
    def maxMessageSize(self) -> int:
        """
        The port's longest message.
        """
        found: int = self.port.maxMessageSize
        return found


class RDMAPort(Port):
    """
    The listening port that L{listenRDMA} returns.

    @ivar privateData: Sent to each peer in the REP.
    @ivar maxMessageSize: The longest message, in bytes, each way.
    """

    handshake = handshake
    transport = RDMAServer
    halfOpen = HalfOpenMessages
    provider = "rdma"

    _type = "RDMA"

    def __init__(self, *arguments: Any, privateData: bytes, maxMessageSize: int) -> None:
        """
        @param arguments: Those of L{Port}.
        @raise ValueError: An argument is invalid.
        """
        Port.__init__(self, *arguments)
        self.privateData = checkPrivateData(privateData, privateBytesOf(self.device).reply)
        self.maxMessageSize = checkMessageSize(maxMessageSize)


def listenRDMA(
    reactor: IReactorTime,
    port: int | Binding,
    factory: IProtocolFactory | Factory[Any],
    interface: str = "",
    backlog: int = 50,
    device: str | None = None,
    privateData: bytes = b"",
    maxMessageSize: int = limits.RDMA_MESSAGE,
) -> IListeningPort:
    """
    Listen for messages: see L{twisted_ib.interfaces.IReactorRDMA.listenRDMA}.

    @param reactor: Provides C{IReactorFDSet} and C{IReactorTime}.
    @param port: 0 for any free port; or a C{Binding}.
    """
    listening = RDMAPort(
        port,
        factory,
        backlog,
        interface,
        reactor,
        device,
        privateData=privateData,
        maxMessageSize=maxMessageSize,
    )
    listening.startListening()
    return listening


def connectRDMA(
    reactor: IReactorTime,
    host: str,
    port: int,
    factory: IProtocolFactory | Factory[Any],
    timeout: float | None = 30,
    bindAddress: Binding | tuple[str, int] | str | None = None,
    device: str | None = None,
    privateData: bytes = b"",
    maxMessageSize: int = limits.RDMA_MESSAGE,
) -> IConnector:
    """
    Connect to such a port: see L{twisted_ib.interfaces.IReactorRDMA.connectRDMA}.

    @param reactor: Provides C{IReactorFDSet} and C{IReactorTime}; also a resolver, if C{host} is a name.
    @param factory: A C{ClientFactory}; Twisted types what its C{forProtocol} returns as any factory.
    @param bindAddress: The local host and port, as a pair or a C{Binding}.
    """
    connector = RDMAConnector(
        host,
        port,
        factory,
        timeout,
        bindAddress,
        reactor,
        device,
        privateData=privateData,
        maxMessageSize=maxMessageSize,
    )
    connector.connect()
    return connector


class RDMAServerEndpoint(ServerEndpoint):
    """
    Listens for messages; accepts C{privateData} and C{maxMessageSize} too, like L{listenRDMA}.
    """

    listenCall = staticmethod(listenRDMA)


class RDMAClientEndpoint(ClientEndpoint):
    """
    Connects for messages; accepts C{privateData} and C{maxMessageSize} too, like L{connectRDMA}.
    """

    connectCall = staticmethod(connectRDMA)
