"""
Paths to peers' addresses, for connection management.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from zope.interface import implementer

from twisted_ib.errors import PathLostError
from twisted_ib.hca.base.interfaces import IPath, IPeerPath
from twisted_ib.hca.fabric.base.streams import ConnectedPeerPath

if TYPE_CHECKING:
    from twisted_ib.hca.fabric.iwarp.iwarp import IWARPFabric


@implementer(IPeerPath)
class PeerPath(ConnectedPeerPath):
    """
    The path to a peer's address. Each request that is sent over it makes a TCP connection.
    """

    __slots__ = ()

    fabric: IWARPFabric

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

    def sendManagement(self, attribute: int, body: bytes, transaction: int = 0) -> None:
        """
        Do what a message of connection management says.
        """
        self.fabric.service.take(self, attribute, body)

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
