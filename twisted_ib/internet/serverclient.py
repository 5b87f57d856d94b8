"""
Server and client transports, as L{twisted.internet.tcp} has C{Server} and C{Client}.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from twisted.internet.address import IPv6Address
from twisted.internet.interfaces import IProtocol
from twisted.internet.protocol import Protocol
from twisted.python.failure import Failure

from twisted_ib.internet.addressing.addresses import HIGHEST_PORT, Address, End, sharedAddress
from twisted_ib.internet.addressing.endpoints import EndpointFactory
from twisted_ib.internet.logcontext import callLast, upcalls
from twisted_ib.internet.transport import Computed, Transport

if TYPE_CHECKING:
    from twisted_ib.internet.batchedcalls import BatchedCalls, Shared
    from twisted_ib.internet.channel import DeviceChannel

#: Their attributes, for C{__slots__}.
SERVER_FIELDS = ("_session", "_settling", "server")
CLIENT_FIELDS = ("_peerPort", "_settling", "connector")


class ConnectedTransport(Transport):
    """
    A transport that delivers no data in the turn in which it is connected; a base before the protocol's own.

    @ivar held: Data not delivered yet, or L{None}.
    @ivar _settling: The L{BatchedCalls<twisted_ib.internet.batchedcalls.BatchedCalls>} until the next turn;
        then L{None}.
    """

    __slots__ = ()

    held: deque[Any] | None
    _settling: BatchedCalls | None

    def begin(self, protocol: IProtocol | None) -> bool:
        """
        Set the protocol, and close at once if there is none.

        @param protocol: The factory's protocol; L{None} if it wants no connection.
        @return: Whether to call C{makeConnection}.
        """
        self.connected = 1
        self.protocol = Protocol() if protocol is None else protocol
        if protocol is None:
            self.loseConnection()
            return False
        self.readAgain()
        # A ring may hold REP, first data and end of stream together.  Over TCP nothing is read in the turn of
        # connectionMade(), and applications rely on it: ClientCreator fires with the protocol in the next
        # turn.
        if self.held is None:
            self.held = deque()
        channel = self.channel
        self._settling = turns = channel.batchedCalls
        shown = channel.shown
        if shown is not None:
            # At the end of the batch: ib-ss sees it before the application has its first data.
            if not (shown.unshown or shown.gone):
                channel.device.markDirty(shown)
            shown.unshown.append((self, self._localHost, self._localPort, self._peerHost, self._peerPort))
        turns.wait(channel.reactor, self)
        return True

    def nextTurn(self, shared: Shared) -> None:
        """
        Deliver held data with the batch of this turn.
        """
        if self._settling is not None:
            self._settling = None
            if self.held:
                self.cork()
            else:
                self.held = None

    def read(self) -> None:
        """
        Deliver held data, except in the turn of the connect.
        """
        if self._settling is None:
            super().read()  # type: ignore[misc]

    def handOver(self, keeper: IProtocol) -> IProtocol:
        """
        Let another transport carry this connection on: nobody but C{keeper} is told anything any more.

        @return: The protocol.
        """
        protocol: IProtocol = self.protocol
        self.protocol = keeper
        return protocol

    def ended(self, reason: Failure) -> None:
        """
        The transport that carried the connection on has ended.
        """

    def stopReading(self) -> None:
        # The protocol controls delivery from now on: the next turn must not resume it.
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
    @ivar _session: C{sessionno} and the peer's port number: a port may have many, and one integer takes half.
    """

    __slots__ = ()

    def __init__(
        self, channel: DeviceChannel, local: Address, peer: Address, server: Any, sessionno: int
    ) -> None:
        self.server = server
        self._session = sessionno << 16
        self._settling = None
        super().__init__(channel, local, peer)  # type: ignore[call-arg]

    def attach(self, protocol: IProtocol | None) -> None:
        """
        Connect the protocol; what it raises goes to the port.

        @param protocol: The factory's protocol; L{None} if it wants no connection.
        """
        proceed = self.begin(protocol)
        self._prefix = self._getLogPrefix(self.protocol)
        if proceed:
            self.protocol.makeConnection(self)

    @property
    def sessionno(self) -> int:
        """
        Its number among that port's connections.
        """
        return self._session >> 16

    @sessionno.setter
    def sessionno(self, number: int) -> None:
        """
        Set it, as programs may of Twisted's own.
        """
        self._session = number << 16 | self._peerPort

    @property
    def _peerPort(self) -> int:
        return self._session & HIGHEST_PORT

    @_peerPort.setter
    def _peerPort(self, port: int) -> None:
        self._session |= port

    # Public attributes of twisted.internet.tcp.Server, computed from those that are here anyway.
    client: Any = Computed(lambda end: (end._peerHost, end._peerPort))
    hostname: Any = Computed(lambda end: end._peerHost)
    repstr: Any = Computed(lambda end: end._repr())

    def _logName(self) -> str:
        return "-" if self._prefix is None else f"{self._prefix},{self.sessionno},{self.hostname}"

    def _repr(self) -> str:
        if self._prefix is None:
            return ""
        # Once the protocol has gone, by what it was called in the log.
        name = self._prefix if self.protocol is None else self.protocol.__class__.__name__
        return f"<{name} #{self.sessionno} on {self._localPort}>"

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

    def __init__(self, channel: DeviceChannel, local: Address | End, peer: Address, connector: Any) -> None:
        self.connector = connector
        self._settling = None
        super().__init__(channel, local, peer)  # type: ignore[call-arg]

    @property
    def addr(self) -> tuple[str, int] | tuple[str, int, int, int]:
        """
        The peer as a socket address, as C{tcp.Client} has it.
        """
        peer = self.getPeer()
        if isinstance(peer, IPv6Address):
            # RFC 3493 section 3.3: the scope of an IPv6 socket address is a number of its own.
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
        Connect the protocol; what it raises ends the connection.

        @param protocol: The factory's protocol; L{None} if it wants no connection.
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
        # A Deferred that connectionLost() of the protocol fires may end the connection again.
        first = not self.disconnected
        super().connectionLost(reason)
        if first and not self._told:
            self._told = True
            # As L{ended}, without its call.
            self._givePortBack()
            callLast(self, self.connector.connectionLost, reason)

    def handOver(self, keeper: IProtocol) -> IProtocol:
        # The connector and the port number stay with the connection.
        self._told = True
        return super().handOver(keeper)

    def ended(self, reason: Failure) -> None:
        self._givePortBack()
        callLast(self, self.connector.connectionLost, reason)

    def abandon(self) -> None:
        self._givePortBack()
        super().abandon()

    def _givePortBack(self) -> None:
        peer = sharedAddress(self._peerHost, self._peerPort)
        self.channel.localPorts.free(self._localHost, self._localPort, peer)

    def _logName(self) -> str:
        return "-" if self._prefix is None else f"{self._prefix},client"

    def __repr__(self) -> str:
        return f"<{self.__class__} to {self.addr} at {id(self):x}>"
