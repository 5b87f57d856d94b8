"""
Fabrics whose connections are made by others: those of TCP connections, and those of an adapter with a kernel.
As a device and its users ask them, and the device, as they see it.
"""

from __future__ import annotations

from collections.abc import Callable
from socket import socket
from typing import TYPE_CHECKING, Any

from twisted_ib.hca.base.interfaces import IAddressDirectory, IFabric, IFabricOwner, IPeerPath

if TYPE_CHECKING:
    from twisted_ib.hca.connection.interfaces import IConnection
    from twisted_ib.hca.connection.request import ConnectRequest


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


__all__ = ["IAdapterFabric", "IAdapterOwner", "IStreamFabric", "IStreamOwner"]
