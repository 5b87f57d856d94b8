"""
The part of a port of the switch that listens on one device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted.internet.protocol import Factory

from twisted_ib.hca.wire.cm import REQ, RejectReason
from twisted_ib.reactor.switch.serverclient import RedirectedServer
from twisted_ib.sdp.port import SDPPort

if TYPE_CHECKING:
    from twisted.python.failure import Failure

    from twisted_ib.internet.addresses import Address
    from twisted_ib.internet.channel import DeviceChannel
    from twisted_ib.reactor.switch.listening import SwitchedPort
    from twisted_ib.reactor.switch.reason import Reason


class _Borrowed(Factory):
    """
    The factory of a companion: its protocols are those of the port's.
    """

    noisy = False

    def __init__(self, port: SwitchedPort) -> None:
        """
        @param port: The port.
        """
        self.port = port

    def buildProtocol(self, addr: Any) -> Any:
        """
        @return: What the port's factory makes.
        """
        factory: Any = self.port.factory
        return factory.buildProtocol(addr)


class SDPListener(SDPPort):
    """
    The part of a port that listens on one device.

    @ivar main: The port.
    @ivar inode: That of the port's TCP socket; 0 if it has none.
    @ivar v6only: Whether a companion on C{::} leaves IPv4 alone.
    """

    def __init__(self, main: SwitchedPort, device: str, address: Address, inode: int, v6only: bool) -> None:
        """
        @param device: The HCA's name.
        @param address: The address and the number that the TCP socket is bound to.
        """
        factory: Any = _Borrowed(main)
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
        Count one.
        """
        self.main.sessionno = number

    @property
    def why(self) -> Reason:
        """
        The port's.
        """
        return self.main.why

    def _takePort(self, channel: DeviceChannel, address: str) -> tuple[Any, ...]:
        listen, space = channel.device.listen, self.handshake.PORT_SPACE
        first = listen(space, address, self.port, self, self.inode)
        if address != "::" or self.v6only:
            return (first,)
        try:
            return first, listen(space, "0.0.0.0", self.port, self, self.inode)
        except BaseException:
            first.close()
            raise

    def connectionRequested(self, connection: Any, request: REQ) -> None:
        """
        A REQ came.  While the port is paused the place to wait is TCP's queue, where the kernel answers at
        once and others who listen on the same socket find it.
        """
        if self.reading or self.main.alone:
            super().connectionRequested(connection, request)
            return
        channel = self._channel
        assert channel is not None
        channel.count("paused")
        connection.reject(RejectReason.NO_RESOURCES, b"", channel.now())

    def transport(  # type: ignore[override]
        self, channel: Any, here: Any, peer: Any, server: Any, sessionno: int
    ) -> RedirectedServer:
        """
        Make the transport of a connection, which belongs to the port.
        """
        made = RedirectedServer(channel, here, peer, self.main, sessionno)
        made.why = self.main.switch.accepted(self.main.why, channel)
        return made

    def isTaken(self, peer: Address) -> bool:
        """
        @return: Whether another connection of the port has this peer's address: each process draws its own
            numbers, and with TCP no two peers have the same.
        """
        return peer.port in self.main.peers.get(peer.host, ())

    def _say(self, text: str) -> None:
        """
        Nothing: the port does.
        """

    def logPrefix(self) -> str:
        """
        @return: The port's.
        """
        return str(self.main.logPrefix())

    def close(self, reason: Failure) -> None:
        """
        End, once.
        """
        if self.connected:
            super().connectionLost(reason)

    def connectionLost(self, reason: Failure) -> None:
        """
        Somebody closes everything; a port that has no socket hears of it here.
        """
        self.close(reason)
        self.main.companionLost(self, reason)


__all__ = ["SDPListener"]
