"""
SDP transports of connections that the application asked of TCP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from twisted.internet.interfaces import ISystemHandle
from twisted.python.failure import Failure
from zope.interface import implementer

from twisted_ib.sdp.port import SDPClient, SDPServer
from twisted_ib.switch.handle import ConnectionHandle
from twisted_ib.switch.reason import MOVED

if TYPE_CHECKING:
    from socket import socket

    from twisted_ib.internet.addressing.addresses import Address
    from twisted_ib.internet.channel import DeviceChannel
    from twisted_ib.switch.reason import Reason


# Of its own, as zope.interface takes long to order the interfaces of a whole transport, which few ask for.
@implementer(ISystemHandle)
class _Handled:
    """
    A transport with what TCP's has of its socket.
    """

    __slots__ = ()

    def getHandle(self) -> ConnectionHandle:
        # It has the useful part of a socket's methods.
        transport = cast("RedirectedServer | RedirectedClient", self)
        try:
            return transport._handle
        except AttributeError:
            handle = transport._handle = ConnectionHandle(transport)
            return handle

    # Not public in TCP's transports, but there, and programs set options on it.
    socket: Any = property(getHandle)


class RedirectedServer(_Handled, SDPServer):
    """
    The transport of a passive side.

    @ivar why: The decision.
    @ivar _handle: The result of C{getHandle}, made when first used.
    """

    __slots__ = ("_handle", "why")

    why: Reason
    _handle: ConnectionHandle

    def __init__(
        self, channel: DeviceChannel, local: Address, peer: Address, server: Any, sessionno: int
    ) -> None:
        super().__init__(channel, local, peer, server, sessionno)
        # For SDPListener.isTaken(), over all devices of the port.
        server.peers.setdefault(peer.host, set()).add(peer.port)

    def _leavePeers(self) -> None:
        peers = self.server.peers
        numbers = peers.get(self._peerHost)
        if numbers is not None:
            numbers.discard(self._peerPort)
            if not numbers:
                del peers[self._peerHost]

    def moved(self, skt: socket) -> None:
        """
        Its client has moved the connection to a socket of TCP.
        """
        port = self.getHost()
        self.server.switch.moved(self, MOVED, (port.host, port.port), skt)

    def connectionLost(self, reason: Failure) -> None:
        if not self.disconnected:
            self._leavePeers()
        super().connectionLost(reason)

    def abandon(self) -> None:
        self._leavePeers()
        super().abandon()


class RedirectedClient(_Handled, SDPClient):
    """
    The transport of an active side.

    @ivar why: The decision.
    @ivar bound: The TCP socket that reserves the local port which the application has bound.
    @ivar _handle: The result of C{getHandle}, made when first used.
    """

    __slots__ = ("_handle", "bound", "why")

    why: Reason
    bound: Any
    _handle: ConnectionHandle

    def connectionLost(self, reason: Failure) -> None:
        # libsdp port.c also binds TCP and SDP to one number: while SDP uses it no TCP connection may.
        bound = getattr(self, "bound", None)
        if bound is not None:
            self.bound = None
            bound.close()
        super().connectionLost(reason)

    def sleeps(self) -> None:
        """
        Its messages mostly end sleeps: that of a blocking socket asks to move to TCP then.
        """

    def secured(self) -> None:
        """
        TLS begins on it: likewise.
        """
