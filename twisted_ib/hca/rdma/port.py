"""
The passive side of messages; and the two classic calls, L{listenRDMA} and L{connectRDMA}.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IConnector, IListeningPort, IProtocolFactory
from twisted.internet.protocol import ClientFactory

from twisted_ib import limits
from twisted_ib.hca.endpoints.port import Port
from twisted_ib.hca.rdma import handshake
from twisted_ib.hca.rdma.connector import RDMAConnector, checkMessageSize, checkPrivateData
from twisted_ib.hca.rdma.ends import RDMAServer
from twisted_ib.hca.wire.rdmacm import REP_USER_BYTES

if TYPE_CHECKING:
    from twisted.internet.interfaces import Binding


class RDMAPort(Port):
    """
    What C{listenRDMA} gives.

    @ivar privateData: What each peer is told in the REP.
    @ivar maxMessageSize: The longest message, in bytes, each way.
    """

    handshake = handshake
    transport = RDMAServer
    provider = "rdma"

    _type = "RDMA"

    def __init__(self, *arguments: Any, privateData: bytes, maxMessageSize: int) -> None:
        """
        @param arguments: Those of L{Port}.
        @raise ValueError: An argument makes no sense.
        """
        self.privateData = checkPrivateData(privateData, REP_USER_BYTES)
        self.maxMessageSize = checkMessageSize(maxMessageSize)
        Port.__init__(self, *arguments)


def listenRDMA(
    reactor: Any,
    port: int | Binding,
    factory: IProtocolFactory,
    interface: str = "",
    backlog: int = 50,
    device: str | None = None,
    privateData: bytes = b"",
    maxMessageSize: int = limits.RDMA_MESSAGE,
) -> IListeningPort:
    """
    Listen on a port for messages: see L{twisted_ib.interfaces.IReactorRDMA.listenRDMA}.

    @param reactor: Provides C{IReactorFDSet} and C{IReactorTime}.
    @param port: The port, 0 for any that is free; or a C{Binding}.
    @param factory: Makes the protocols.
    @param interface: The address to bind; all IPv4 addresses by default.
    @param backlog: How many requests wait while the port does not accept.
    @param device: The HCA's name; the host's default by default.
    @param privateData: What each peer is told in the REP, at most 196 bytes.
    @param maxMessageSize: The longest message, in bytes, each way.
    @raise ValueError: C{port}, C{privateData} or C{maxMessageSize} makes no sense.
    @raise CannotListenError: The port can not be had.
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
    reactor: Any,
    host: str,
    port: int,
    factory: ClientFactory,
    timeout: float | None = 30,
    bindAddress: Binding | tuple[str, int] | str | None = None,
    device: str | None = None,
    privateData: bytes = b"",
    maxMessageSize: int = limits.RDMA_MESSAGE,
) -> IConnector:
    """
    Connect to such a port: see L{twisted_ib.interfaces.IReactorRDMA.connectRDMA}.

    @param reactor: Provides C{IReactorFDSet} and C{IReactorTime}; also a
        resolver, if C{host} is a name.
    @param host: The peer's address or name.
    @param port: The peer's port.
    @param factory: Makes the protocol and hears of failure and loss.
    @param timeout: The seconds to wait for the connection.
    @param bindAddress: The local host and port to connect from, a pair or a C{Binding}.
    @param device: The HCA's name; the host's default by default.
    @param privateData: What the peer is told in the REQ, at most 56 bytes.
    @param maxMessageSize: The longest message, in bytes, each way.
    @raise ValueError: An argument makes no sense.
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
