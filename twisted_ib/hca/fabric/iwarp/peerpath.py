"""
Paths to peers' addresses.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from attrs import define

from twisted_ib.hca.fabric.base.streams import PeerPath

if TYPE_CHECKING:
    from twisted_ib.hca.connection import ConnectRequest


class StreamPeerPath(PeerPath):
    """
    The path to a peer's address: a request makes a TCP connection.
    """

    __slots__ = ()

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


@define(eq=False, repr=False, weakref_slot=False)
class Setup:
    """
    The state of a stream until FPDUs are exchanged.

    @ivar isDialling: whether its TCP connection is being made.
    @ivar machine: the exchange of startup frames; L{None} before.
    @ivar privateData: of the Request to send.
    @ivar halfOpen: the peer's address, as long as it counts as half open.
    @ivar request: that of its Request; C{times} it was offered again.
    """

    serviceID: int
    isDialling: bool = False
    machine: Any = None
    privateData: bytes = b""
    leftover: bytes = b""
    halfOpen: str = ""
    request: ConnectRequest | None = None
    depths: tuple[int, int] = (0, 0)
    times: int = 0
