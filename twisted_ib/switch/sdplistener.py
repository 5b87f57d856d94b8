"""
The SDP listener of a switched port on one device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted.internet.protocol import Factory

from twisted_ib.hca.connection import ConnectRequest, RejectReason
from twisted_ib.sdp.port import SDPPort

if TYPE_CHECKING:
    from twisted.python.failure import Failure

    from twisted_ib.internet.addressing.addresses import Address
    from twisted_ib.internet.channel import DeviceChannel
    from twisted_ib.switch.listeners import PortListeners
    from twisted_ib.switch.reason import Reason
    from twisted_ib.switch.serverclient import RedirectedServer


class _SharedFactory(Factory):
    # Not the port's factory itself: its doStart() and doStop() would be called once per device.
    noisy = False

    def __init__(self, port: PortListeners) -> None:
        self.port = port

    def buildProtocol(self, addr: Any) -> Any:
        factory: Any = self.port.factory
        return factory.buildProtocol(addr)


class SDPListener(SDPPort):
    """
    The part of a port that listens on one device.

    @ivar main: The port.
    @ivar inode: That of the port's TCP socket; 0 if it has none.
    @ivar v6only: Whether a listener on C{::} refuses IPv4.
    """

    def __init__(self, main: PortListeners, device: str, address: Address, inode: int, v6only: bool) -> None:
        """
        @param address: The address and number that the TCP socket is bound to.
        """
        factory: Any = _SharedFactory(main)
        super().__init__(address.port, factory, main.backlog or 1, address.host, main.reactor, device)
        self.main = main
        self.inode = inode
        self.v6only = v6only

    @property
    def sessionno(self) -> int:
        """
        The number of the next connection, over all providers.
        """
        return self.main.sessionno

    @sessionno.setter
    def sessionno(self, number: int) -> None:
        """
        Set it.
        """
        self.main.sessionno = number

    @property
    def why(self) -> Reason:
        """
        The port's decision.
        """
        return self.main.why

    def _takePort(self, channel: DeviceChannel, address: str) -> tuple[Any, ...]:
        listen, space = channel.device.listen, self.handshake.PORT_SPACE
        first = listen(space, address, self.port, self, self.inode)
        # RFC 3493 section 5.3: the same families as the TCP socket, whose number this is; another number
        # would not do.
        if address != "::" or self.v6only:
            return (first,)
        try:
            return first, listen(space, "0.0.0.0", self.port, self, self.inode)
        except BaseException:
            first.close()
            raise

    def connectionRequested(self, connection: Any, request: ConnectRequest) -> None:
        if self.reading or self.main.alone:
            super().connectionRequested(connection, request)
            return
        channel = self._channel
        assert channel is not None
        # While the port is paused the REQ is rejected (IBTA vol. 1 12.6.7.2, reason 3), and the client falls
        # back to TCP: there the kernel completes the handshake into the accept queue, where another process
        # on the same socket may accept it.  In our queue the client would wait for its timeout.
        channel.count("paused")
        connection.reject(RejectReason.NO_RESOURCES, b"", channel.now())

    def transport(  # type: ignore[override]
        self, channel: Any, here: Any, peer: Any, server: Any, sessionno: int
    ) -> RedirectedServer:
        """
        Make the transport of a connection, which belongs to the port.
        """
        # With the switched port as C{server}: programs find the object there that listenTCP() returned.
        made = self.main.transportClass(channel, here, peer, self.main, sessionno)
        made.why = self.main.switch.accepted(self.main.why, channel)
        return made

    def isTaken(self, peer: Address) -> bool:
        # Each process draws its own numbers, while the kernel never gives two TCP connections to one port the
        # same one.
        return peer.port in self.main.peers.get(peer.host, ())

    def _say(self, text: str) -> None:
        pass

    def logPrefix(self) -> str:
        return str(self.main.logPrefix())

    def close(self, reason: Failure) -> None:
        """
        Close, once.
        """
        if self.connected:
            super().connectionLost(reason)

    def connectionLost(self, reason: Failure) -> None:
        # A port without a socket is closed by this.
        self.close(reason)
        self.main.listenerLost(self, reason)
