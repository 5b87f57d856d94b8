"""
The two ends of a connection, as L{twisted.internet.tcp} has C{Server} and
C{Client}.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from twisted.internet.address import IPv6Address
from twisted.internet.interfaces import IProtocol
from twisted.internet.protocol import Protocol
from twisted.python.failure import Failure

from twisted_ib.internet.addresses import Address, sharedAddress
from twisted_ib.internet.batchedcalls import batchedCallsOf
from twisted_ib.internet.endpoints import EndpointFactory
from twisted_ib.internet.localports import localPorts
from twisted_ib.internet.logcontext import upcalls
from twisted_ib.internet.transport import Computed, Transport

if TYPE_CHECKING:
    from twisted_ib.internet.channel import DeviceChannel

#: The attributes of the two ends, for their C{__slots__}.
SERVER_FIELDS = ("_protocolName", "_settling", "server", "sessionno")
CLIENT_FIELDS = ("_settling", "connector")


class ConnectedTransport(Transport):
    """
    A transport that comes into being while data may be close behind; a base before those of
    the protocol's transport.

    Over TCP nothing is read in the turn in which a connection is made, and
    applications rely on it: C{ClientCreator} gives them their protocol in the
    next turn.  A ring may hold the REP, the first data and the end of the
    stream together, so what comes in that turn is held until the next one.

    @ivar held: What has come and is not delivered, or L{None}.
    @ivar _settling: What the next turn is awaited of, while this lasts.
    """

    __slots__ = ()

    held: deque[Any] | None
    _settling: Any

    def begin(self, protocol: IProtocol | None) -> bool:
        """
        The connection stands: take its protocol, or dispose of the connection
        quickly if there is none.

        @param protocol: What the factory made; L{None} if it wants no connection.
        @return: Whether the protocol is to be told.
        """
        self.connected = 1
        self.protocol = Protocol() if protocol is None else protocol
        if protocol is None:
            self.loseConnection()
            return False
        self.readAgain()
        if self.held is None:
            self.held = deque()
        reactor = self.channel.reactor
        self._settling = turns = batchedCallsOf(reactor)
        turns.wait(reactor, self)
        return True

    def nextTurn(self, shared: dict[Any, Any]) -> None:
        """
        The next turn has come: what was held comes with its batch.

        @param shared: As of L{Turns.wait}.
        """
        if self._settling is not None:
            self._settling = None
            if self.held:
                self.cork()
            else:
                self.held = None

    def read(self) -> None:
        """
        Deliver what was held, unless it is too early.
        """
        if self._settling is None:
            super().read()  # type: ignore[misc]

    def stopReading(self) -> None:
        """
        Take no data.  The protocol has decided for itself: the next turn does
        not matter any more.
        """
        settling, self._settling = self._settling, None
        if settling is not None:
            settling.forget(self)
            if not self.held:
                self.held = None
        super().stopReading()


class ServerTransport(ConnectedTransport):
    """
    The transport of a passive side.

    @ivar server: The port that accepted it.
    @ivar sessionno: Its number among that port's connections.
    @ivar _protocolName: The class of the protocol; empty until there is one.
    """

    __slots__ = ()

    def __init__(
        self, channel: DeviceChannel, local: Address, peer: Address, server: Any, sessionno: int
    ) -> None:
        """
        @param channel: The device in its reactor.
        @param local: The address of this end.
        @param peer: The address of the other end.
        """
        self.server = server
        self.sessionno = sessionno
        self._protocolName = ""
        self._settling = None
        super().__init__(channel, local, peer)  # type: ignore[call-arg]

    def attach(self, protocol: IProtocol | None) -> None:
        """
        The connection is accepted: hook the protocol up.  What it raises goes
        to the port.

        @param protocol: What the factory made; L{None} if it wants no connection.
        """
        proceed = self.begin(protocol)
        self._prefix = self._getLogPrefix(self.protocol)
        self._protocolName = self.protocol.__class__.__name__
        if proceed:
            self.protocol.makeConnection(self)

    # What TCP's server has, from what this has anyway.
    client: Any = Computed(lambda end: (end._peerHost, end._peerPort))
    hostname: Any = Computed(lambda end: end._peerHost)
    repstr: Any = Computed(lambda end: end._repr())

    def _logName(self) -> str:
        """
        @return: The protocol, the number and the peer's host.
        """
        return "-" if self._prefix is None else f"{self._prefix},{self.sessionno},{self.hostname}"

    def _repr(self) -> str:
        name = self._protocolName
        return f"<{name} #{self.sessionno} on {self._localPort}>" if name else ""

    def __repr__(self) -> str:
        return str(self.repstr)


class ClientTransport(ConnectedTransport):
    """
    The transport of an active side.

    @ivar connector: The connector that made it.
    """

    __slots__ = ()

    _tlsClientDefault = True
    _told = False

    def __init__(self, channel: DeviceChannel, local: Address, peer: Address, connector: Any) -> None:
        """
        @param channel: The device in its reactor.
        @param local: The address of this end.
        @param peer: The address of the other end.
        """
        self.connector = connector
        self._settling = None
        super().__init__(channel, local, peer)  # type: ignore[call-arg]

    @property
    def addr(self) -> tuple[str, int] | tuple[str, int, int, int]:
        """
        The peer, in the form of the socket address that TCP's client has here.
        """
        peer = self.getPeer()
        if isinstance(peer, IPv6Address):
            return peer.host.partition("%")[0], peer.port, peer.flowInfo, int(peer.scopeID)
        return peer.host, peer.port

    @property
    def realAddress(self) -> tuple[str, int] | tuple[str, int, int, int]:
        """
        The same: a name is resolved before there is a transport.
        """
        return self.addr

    def attach(self, protocol: IProtocol | None) -> None:
        """
        The connection stands: hook the protocol up.  What it raises ends the
        connection.

        @param protocol: What the factory made; L{None} if it wants no connection.
        """
        proceed = self.begin(protocol)
        upcalls.current = self
        try:
            self._prefix = self._getLogPrefix(protocol)
            if proceed:
                self.protocol.makeConnection(self)
                factory = getattr(self.connector, "factory", None)
                if isinstance(factory, EndpointFactory):
                    factory.protocolMade(protocol)
        except BaseException:
            self._raised()
        finally:
            upcalls.current = None

    def connectionLost(self, reason: Failure) -> None:
        """
        Tell the connector after the protocol, once: who waits for something hears of the end first,
        and may end it again.

        @param reason: Why.
        """
        first = not self.disconnected
        super().connectionLost(reason)
        if first and not self._told:
            self._told = True
            self._givePortBack()
            self._log(self.connector.connectionLost, reason)

    def abandon(self) -> None:
        """
        The handshake failed.
        """
        self._givePortBack()
        super().abandon()

    def _givePortBack(self) -> None:
        peer = sharedAddress(self._peerHost, self._peerPort)
        localPorts(self.channel).free(self._localHost, self._localPort, peer)

    def _logName(self) -> str:
        """
        @return: The protocol, and that this is a client.
        """
        return "-" if self._prefix is None else f"{self._prefix},client"

    def __repr__(self) -> str:
        return f"<{self.__class__} to {self.addr} at {id(self):x}>"
