"""
Paths to peers' addresses, and over TCP connections that were made for something else and go on as iWARP.

RFC 5044 section 7.1: MPA may begin on a connection that has carried other octets, if both ends know where.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attrs import define
from zope.interface import implementer

from twisted_ib.errors import PathLostError
from twisted_ib.hca.fabric.base.streams import IAdoptedPath, PeerPath
from twisted_ib.hca.fabric.iwarp.streampath import RECEIVE_BYTES

if TYPE_CHECKING:
    from twisted_ib.hca.connection import ConnectRequest
    from twisted_ib.hca.connection.receives import Receives
    from twisted_ib.hca.fabric.iwarp.iwarp import IWARPFabric


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
    @ivar there: the peer's receives, if it has told of them.
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
    there: Receives | None = None


@implementer(IAdoptedPath)
class AdoptedPath(StreamPeerPath):
    """
    The path of one adopted connection: a request to connect goes over this, and no second one.

    The side that sends the request is MPA's initiator. The other side's listener gets it from connection
    management, by the service id that it was adopted with.
    """

    __slots__ = ("_ended", "_leftover", "_socket", "seconds")

    def __init__(
        self,
        fabric: IWARPFabric,
        made: socket.socket,
        leftover: bytes,
        seconds: float | None = None,
        ended: Callable[[], object] | None = None,
    ) -> None:
        """
        @param made: connected; the fabric's from now on.
        @raise PathLostError: it is connected no more, or the peer has sent what it may not.
        @param leftover: octets received behind the program's last, which belong to MPA.
        @param seconds: how long the peer's startup frame is awaited; by default as on any connection.
        @param ended: called once, when the connection has ended.
        """
        try:
            made.setblocking(False)
            address = made.getpeername()[0].partition("%")[0]
            if len(leftover) > RECEIVE_BYTES:
                # It answers nothing that this side has sent.
                raise PathLostError(f"{address} has sent {len(leftover)} octets before MPA's startup")
        except OSError as error:
            made.close()
            raise PathLostError(f"the TCP connection to adopt is lost: {error.strerror}") from error
        except PathLostError:
            made.close()
            raise
        super().__init__(fabric, address)
        self._socket: socket.socket | None = made
        self._leftover = leftover
        self.seconds = seconds
        self._ended = ended

    def connected(self) -> tuple[socket.socket, bytes] | None:
        made, self._socket = self._socket, None
        leftover, self._leftover = self._leftover, b""
        # The second request over one connection: nothing is left to make it with.
        return None if made is None else (made, leftover)

    @property
    def isSpent(self) -> bool:
        return self._socket is None

    def closed(self) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended()

    def close(self) -> None:
        self._ended = None
        made, self._socket = self._socket, None
        if made is not None:
            made.close()
        for stream in list(self.fabric.streams.values()):
            if stream.way is self and stream.queuePair is None:
                stream.close()
