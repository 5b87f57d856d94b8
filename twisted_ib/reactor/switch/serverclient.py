"""
The transports of connections that the application meant for TCP and SDP carries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import ISystemHandle
from twisted.python.failure import Failure
from zope.interface import implementer

from twisted_ib.reactor.switch.handle import ConnectionHandle
from twisted_ib.sdp.port import SDPClient, SDPServer

if TYPE_CHECKING:
    from twisted_ib.internet.addresses import Address
    from twisted_ib.internet.channel import DeviceChannel
    from twisted_ib.reactor.switch.reason import Reason


@implementer(ISystemHandle)
class RedirectedServer(SDPServer):
    """
    The transport of a passive side.

    @ivar why: Why it is one of SDP.
    @ivar _handle: What C{getHandle} has given.
    """

    __slots__ = ("_handle", "why")

    why: Reason
    _handle: ConnectionHandle

    def __init__(
        self, channel: DeviceChannel, local: Address, peer: Address, server: Any, sessionno: int
    ) -> None:
        """
        @param server: The L{SwitchedPort<twisted_ib.reactor.switch.listening.SwitchedPort>}.
        """
        super().__init__(channel, local, peer, server, sessionno)
        server.peers.setdefault(peer.host, set()).add(peer.port)

    def _leavePeers(self) -> None:
        peers = self.server.peers
        numbers = peers.get(self._peerHost)
        if numbers is not None:
            numbers.discard(self._peerPort)
            if not numbers:
                del peers[self._peerHost]

    def connectionLost(self, reason: Failure) -> None:
        """
        The connection is over.
        """
        if not self.disconnected:
            self._leavePeers()
        super().connectionLost(reason)

    def abandon(self) -> None:
        """
        The handshake failed.
        """
        self._leavePeers()
        super().abandon()

    def getHandle(self) -> ConnectionHandle:
        """
        @return: What is like a socket about it.
        """
        return _handleOf(self)

    # TCP's transports have it, and programs set options on it.
    socket: Any = property(getHandle)


@implementer(ISystemHandle)
class RedirectedClient(SDPClient):
    """
    The transport of an active side.

    @ivar why: Why it is one of SDP.
    @ivar bound: The TCP socket that holds the local number which the application has bound.
    @ivar _handle: What C{getHandle} has given.
    """

    __slots__ = ("_handle", "bound", "why")

    why: Reason
    bound: Any
    _handle: ConnectionHandle

    def getHandle(self) -> ConnectionHandle:
        """
        @return: What is like a socket about it.
        """
        return _handleOf(self)

    # TCP's transports have it, and programs set options on it.
    socket: Any = property(getHandle)

    def connectionLost(self, reason: Failure) -> None:
        """
        Give the local number back, too.
        """
        bound = getattr(self, "bound", None)
        if bound is not None:
            self.bound = None
            bound.close()
        super().connectionLost(reason)


def _handleOf(transport: RedirectedServer | RedirectedClient) -> ConnectionHandle:
    try:
        handle = transport._handle
    except AttributeError:
        handle = transport._handle = ConnectionHandle(transport)
    return handle


__all__ = ["RedirectedClient", "RedirectedServer"]
