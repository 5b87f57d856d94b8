"""
Fabrics of connections: each queue pair has one of its own, of TCP or of an adapter, and there are no
datagrams.  As a device and its users ask them, the device, as they see it, and what their paths have in
common.
"""

from __future__ import annotations

from collections.abc import Callable
from socket import socket
from typing import TYPE_CHECKING, Any

from zope.interface import implementer

from twisted_ib.hca.base.interfaces import IAddressDirectory, IFabric, IFabricOwner, IPeerPath
from twisted_ib.hca.connection import PathRecord
from twisted_ib.hca.connection.rdmacm import gidOf
from twisted_ib.hca.fabric.base.addressdirectory import PeerAddress

if TYPE_CHECKING:
    from twisted_ib.errors import PathLostError
    from twisted_ib.hca.base.interfaces import BoundQueuePair, IPath, Waiter
    from twisted_ib.hca.connection.interfaces import IConnection
    from twisted_ib.hca.connection.request import ConnectReply, ConnectRequest

_HOP_LIMIT = 64


class IAdoptedPath(IPeerPath):
    """
    The path of a socket that a fabric has adopted, for one request.
    """

    def close() -> None:
        """
        Close a connection that has no queue pair yet.
        """


class IStreamFabric(IFabric, IAddressDirectory):
    """
    A fabric of TCP connections.
    """

    # RFC 5044 section 7.1: startup may follow octets of another protocol.
    def adopt(
        made: socket,
        leftover: bytes = b"",
        serviceID: int = 0,
        seconds: float | None = None,
        ended: Callable[[], object] | None = None,
    ) -> IAdoptedPath:
        """
        Let a connected TCP socket go on as a connection of this fabric.

        @param made: the C{socket.socket}; the fabric's from now on.
        @param leftover: octets received on it behind the program's last.
        @param serviceID: nonzero: the peer sends the request to connect, and the listener of this service id
            gets it (L{Services.serve<twisted_ib.hca.device.connections.Services.serve>}); 0: this side sends
            one, over the path that is returned.
        @param seconds: how long the peer may take for the request, or for its answer; by default as on other
            connections.
        @param ended: called once, when the connection has ended.
        @return: the path to the peer.
        @raise PathLostError: the socket is connected no more, or more was received behind the program's last
            octet than a peer may have sent.
        """


class IStreamOwner(IFabricOwner):
    """
    The device, as the fabric of TCP connections sees it.
    """

    # IBTA vol. 1 12.9.8: the RTU, or the first message.  MPA has no frame for it.
    def communicationEstablished(number: int) -> None:
        """
        The peer of a queue pair whose connection was accepted is ready.

        @param number: the queue pair's.
        """


class IAdapterFabric(IFabric, IAddressDirectory):
    """
    A fabric with a communication manager and memory keys of its own.
    """

    def connect(path: IPeerPath, request: ConnectRequest, user: Any, now: float) -> IConnection:
        """
        Send a request to connect over a path that this fabric has resolved.

        @param user: an L{IConnectionUser<twisted_ib.hca.connection.interfaces.IConnectionUser>}, which hears
            of it in a later turn.
        @raise OSError: the kernel has no room.
        """

    def register(view: memoryview, access: int, pd: Any) -> tuple[int, int, Any]:
        """
        Register memory.

        @param access: L{Access<twisted_ib.hca.memory.access.Access>} bits.
        @param pd: the protection domain.
        @return: its key, the address of its first byte, and an object with C{close()}, which ends that.
        @raise MemoryRegionError: the adapter does not take it.
        """


class IAdapterOwner(IFabricOwner):
    """
    The device, as such a fabric sees it.
    """

    def useAdapter(adapter: IAdapterFabric) -> None:
        """
        Have requests to connect sent, and memory registered, by a fabric, from now on.
        """

    def connectionRequested(connection: IConnection, request: ConnectRequest) -> None:
        """
        A request to connect arrived for a published service.
        """


def pathRecord(here: str, there: str) -> PathRecord:
    """
    @return: the path between two addresses, the first of which is the sender's of the request.
    """
    return PathRecord(localGID=gidOf(here), remoteGID=gidOf(there), hopLimit=_HOP_LIMIT)


class ConnectionPath:
    """
    What the path of a queue pair's own connection, and the one to its peer's address, do without.
    """

    __slots__ = ()

    def forget(self, number: int) -> None:
        """
        No effect: a connection has one queue pair.
        """

    def expect(self, requester: Any) -> None:
        """
        No effect: nothing is refused for want of a queue pair.
        """

    def modified(self, queuePair: BoundQueuePair) -> None:
        """
        No effect: what was agreed on is not changed.
        """

    def respond(self, word: int, record: bytes, partition: int) -> bool:
        """
        Drop a datagram: there are none here.
        """
        return True

    def sendManagement(self, attribute: int, body: bytes, transaction: int = 0) -> None:
        """
        No effect: there is no queue pair 1 here.
        """

    def unsent(self) -> int:
        """
        @return: 0: messages of connection management do not wait here.
        """
        return 0

    def prepareRequest(self, request: ConnectRequest) -> None:
        """
        No effect: a connection negotiates no attributes of packets.
        """

    def prepareReply(self, reply: ConnectReply, request: ConnectRequest) -> None:
        """
        No effect.
        """


@implementer(IPeerPath)
class PeerPath(ConnectionPath):
    """
    The path to a peer's address. Each request that is sent over it makes a connection.
    """

    __slots__ = ("__weakref__", "alive", "fabric", "peer")

    def __init__(self, fabric: Any, address: str) -> None:
        """
        @param fabric: gives queue pairs their paths, by C{bind}.
        @param address: the peer's, as text without a scope.
        """
        self.fabric = fabric
        self.peer = PeerAddress.of(address)
        self.alive = True

    def bind(self, queuePair: Any, message: Any = None) -> IPath:
        """
        @return: the queue pair's own path, the connection that stands for its remote number.
        """
        path: IPath = self.fabric.bind(self, queuePair)
        return path

    def unbind(self, queuePair: BoundQueuePair) -> None:
        """
        No effect: nothing is bound to this path.
        """

    def post(self, word: int, header: bytes, payload: Any, length: int) -> bool:
        """
        Drop a datagram: there are none here.
        """
        self.fabric.count("datagrams_unsendable")
        return True

    def wantSpace(self, waiter: Waiter) -> None:
        """
        No effect: nothing waits for space.
        """

    def wantNoSpace(self, waiter: Waiter) -> None:
        """
        No effect.
        """

    def position(self) -> int:
        """
        @return: 0: nothing is posted here.
        """
        return 0

    def lost(self, reason: PathLostError) -> None:
        """
        The device is closed.
        """
        self.alive = False


__all__ = [
    "ConnectionPath",
    "IAdapterFabric",
    "IAdapterOwner",
    "IStreamFabric",
    "IStreamOwner",
    "PeerPath",
    "pathRecord",
]
