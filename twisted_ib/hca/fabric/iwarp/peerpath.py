"""
Paths to peers' addresses, for connection management.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from attrs import evolve
from zope.interface import implementer

from twisted_ib.errors import PathLostError
from twisted_ib.hca.base.interfaces import IPath, IPeerPath
from twisted_ib.hca.connection.rdmacm import gidOf
from twisted_ib.hca.fabric.base.addressdirectory import PeerAddress
from twisted_ib.hca.wire.grh import HOP_LIMIT

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import BoundQueuePair, Waiter
    from twisted_ib.hca.connection.request import ConnectReply, ConnectRequest
    from twisted_ib.hca.fabric.iwarp.iwarp import IWARPFabric


@implementer(IPeerPath)
class PeerPath:
    """
    The path to a peer's address. Each request that is sent over it makes a TCP connection.
    """

    __slots__ = ("__weakref__", "alive", "fabric", "peer")

    def __init__(self, fabric: IWARPFabric, address: str) -> None:
        """
        @param address: the peer's, as text without a scope.
        """
        self.fabric = fabric
        self.peer = PeerAddress.of(address)
        self.alive = True

    def connected(self) -> tuple[socket.socket, bytes] | None:
        """
        @return: the connection that the request is to go over, and octets received on it; L{None} for a new
            one.
        """
        return None

    #: How long the peer's startup frame is awaited; L{None} for MPA's own limits.
    seconds: float | None = None

    def closed(self) -> None:
        """
        A connection of this path has ended: no effect, as there may be others.
        """

    @property
    def isSpent(self) -> bool:
        """
        Whether no further request can be sent over it.
        """
        return False

    def bind(self, queuePair: Any, message: Any = None) -> IPath:
        """
        @return: the queue pair's own path, the TCP connection that stands for its remote number.
        """
        stream: IPath = self.fabric.service.bind(self, queuePair)
        return stream

    def unbind(self, queuePair: BoundQueuePair) -> None:
        """
        No effect: nothing is bound to this path.
        """

    def forget(self, number: int) -> None:
        """
        No effect: a connection has one queue pair.
        """

    def prepareRequest(self, request: ConnectRequest) -> None:
        """
        See L{IPeerPath.prepareRequest}.
        """
        request.primaryPath = evolve(
            request.primaryPath,
            localGID=gidOf(self.fabric.address),
            remoteGID=gidOf(self.peer.address),
            hopLimit=HOP_LIMIT,
        )

    def prepareReply(self, reply: ConnectReply, request: ConnectRequest) -> Any:
        """
        See L{IPeerPath.prepareReply}.
        """
        return None

    def post(self, word: int, header: bytes, payload: Any, length: int) -> bool:
        """
        Drop a datagram: iWARP has none.
        """
        self.fabric.count("datagrams_unsendable")
        return True

    def respond(self, word: int, record: bytes, partition: int) -> bool:
        """
        See L{IPeerPath.respond}.
        """
        return self.post(word, record, b"", 0)

    def sendManagement(self, attribute: int, body: bytes, transaction: int = 0) -> None:
        """
        Do what a message of connection management says.
        """
        self.fabric.service.take(self, attribute, body)

    def unsent(self) -> int:
        """
        @return: 0: messages do not wait here.
        """
        return 0

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


class Setup:
    """
    The state of a stream until FPDUs are exchanged.

    @ivar isDialling: whether its TCP connection is being made.
    @ivar machine: the exchange of startup frames; L{None} before.
    @ivar privateData: of the Request to send.
    @ivar halfOpen: the peer's address, as long as it counts as half open.
    @ivar request: the REQ of its Request; C{times} it was given to connection management.
    """

    __slots__ = (
        "depths",
        "halfOpen",
        "isDialling",
        "leftover",
        "machine",
        "privateData",
        "request",
        "serviceID",
        "times",
    )

    def __init__(self, serviceID: int) -> None:
        self.isDialling = False
        self.machine: Any = None
        self.privateData = self.leftover = b""
        self.halfOpen = ""
        self.request = b""
        self.serviceID = serviceID
        self.depths = (0, 0)
        self.times = 0


__all__ = ["PeerPath", "Setup"]
