"""
The two transports of a connection that switches to RDMA: the former one, which is of no use any more, and its
successor.

The class of a former transport is changed to one with the methods of L{FormerTransport}, so that transports
which do not switch pay nothing for the possibility.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast
from typing import Protocol as Shape

from twisted.internet import tcp
from twisted.internet.endpoints import _WrappingProtocol
from twisted.internet.interfaces import IProtocol
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python import log
from twisted.python.failure import Failure

from twisted_ib.errors import TransportSwitchedError
from twisted_ib.internet.logcontext import callLast
from twisted_ib.internet.serverclient import ConnectedTransport
from twisted_ib.rdma.transport import RDMATransport

if TYPE_CHECKING:
    from twisted.internet.address import IPv4Address, IPv6Address
    from twisted.internet.interfaces import IReactorTime

    from twisted_ib.hca.connection.interfaces import IConnection
    from twisted_ib.hca.queues.queuepair import QueuePair
    from twisted_ib.internet.channel import DeviceChannel
    from twisted_ib.rdma.switching import Switch

#: Protocols around the application's that are searched.
_DEPTH = 16


class Keeper(Protocol):
    """
    The protocol of a former transport: it tells the switch what happens to it.
    """

    def __init__(self, switch: Switch) -> None:
        self._switch = switch

    def dataReceived(self, data: bytes) -> None:
        # The peer wrote to what is no stream any more.
        self._switch.streamReceived()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._switch.formerLost(reason)


def _refusal() -> TransportSwitchedError:
    return TransportSwitchedError(
        "this transport's connection switches to RDMA, or has switched: use the one that the Deferred of"
        " switchToRDMA gives"
    )


class Former(Shape):
    """
    A transport of bytes, as the switch sees it.
    """

    reactor: IReactorTime
    startReading: Callable[[], object]
    stopReading: Callable[[], object]
    startWriting: Callable[[], object]
    registerProducer: Callable[[Switch, bool], object]
    unregisterProducer: Callable[[], object]
    getHost: Callable[[], IPv4Address | IPv6Address]
    getPeer: Callable[[], IPv4Address | IPv6Address]
    handOver: Callable[[IProtocol], IProtocol]
    takeSocket: Callable[[], socket.socket]
    connectionLost: Callable[[Failure], object]
    ended: Callable[[Failure], object]
    #: Of those that SDP carries.
    channel: DeviceChannel
    connection: IConnection
    queuePair: QueuePair
    _switch: Switch


class FormerTransport:
    """
    The calls to a transport from when its connection begins to switch.
    """

    _switch: Switch

    def write(self, data: bytes) -> None:
        """
        @raise TransportSwitchedError: Always.
        """
        raise _refusal()

    def writeSequence(self, data: Iterable[bytes]) -> None:
        """
        @raise TransportSwitchedError: Always.
        """
        raise _refusal()

    def registerProducer(self, producer: object, streaming: bool) -> None:
        """
        @raise TransportSwitchedError: Always.
        """
        raise _refusal()

    def startTLS(self, contextFactory: object, normal: bool = True) -> None:
        """
        @raise TransportSwitchedError: Always.
        """
        raise _refusal()

    def loseWriteConnection(self) -> None:
        """
        @raise TransportSwitchedError: Always.
        """
        raise _refusal()

    def loseConnection(self, _connDone: object = None) -> None:
        """
        Close the connection, whatever carries it now.
        """
        self._switch.close("loseConnection")

    def abortConnection(self) -> None:
        """
        Abort the connection, whatever carries it now.
        """
        self._switch.close("abortConnection")

    def getHost(self) -> IPv4Address | IPv6Address:
        """
        Return the address of this end.
        """
        return self._switch.host

    def getPeer(self) -> IPv4Address | IPv6Address:
        """
        Return the address of the other end.
        """
        return self._switch.peer

    def resumeProducing(self) -> None:
        """
        Do nothing: whether messages are delivered is for the successor to say.
        """

    pauseProducing = resumeProducing


class FormerSocket(FormerTransport):
    """
    One of Twisted's TCP.
    """

    connector: Any = None
    protocol: Any

    def handOver(self, keeper: IProtocol) -> IProtocol:
        """
        See L{ConnectedTransport.handOver}.
        """
        protocol: IProtocol = self.protocol
        self.protocol = keeper
        return protocol

    def connectionLost(self, reason: Failure) -> None:
        """
        Close the socket, unless it was taken away.
        """
        # Not BaseClient.connectionLost, which also notifies the connector.
        tcp.Connection.connectionLost(self, reason)  # type: ignore[arg-type]

    def takeSocket(self) -> socket.socket:
        """
        Take the socket away.  The transport is then as after its end.
        """
        connection = cast(tcp.Connection, self)
        connection.stopReading()
        connection.stopWriting()
        this: Any = self
        # Not by connectionLost(): in order it calls shutdown(2), else it sets SO_LINGER to 0, and both act on
        # the connection.
        taken = socket.socket(fileno=this.socket.detach())
        this.connected, this.disconnected = 0, 1
        del this.protocol, this.socket, this.fileno
        return taken

    def ended(self, reason: Failure) -> None:
        """
        Notify the connector, if there is one.
        """
        if self.connector is not None:
            self.connector.connectionLost(reason)


_formers: dict[type, type] = {}


def become(transport: Former, kind: type[FormerTransport], switch: Switch) -> None:
    """
    Make a transport a former one.
    """
    plain: type = transport.__class__
    found = _formers.get(plain)
    if found is None:
        # An assignment to __class__ needs the same layout: hence the empty __slots__, and no second base.
        methods = {
            name: method
            for each in (FormerTransport, kind)
            for name, method in vars(each).items()
            if not name.startswith("__")
        }
        found = _formers[plain] = type("Former" + plain.__name__, (plain,), {"__slots__": (), **methods})
    transport._switch = switch
    transport.__class__ = found


def hasSwitched(transport: object) -> bool:
    """
    Return whether a transport is a former one.
    """
    return transport.__class__ in _formers.values()


class SwitchedTransport(ConnectedTransport, RDMATransport):
    """
    The successor.

    @ivar owner: The switch.
    """

    __slots__ = ("_settling", "owner")

    def __init__(self, channel: DeviceChannel, owner: Switch) -> None:
        self.owner = owner
        self._settling = None
        super().__init__(channel, owner.host, owner.peer)

    def attach(self, protocol: Any) -> None:
        """
        Go on with the protocol of the former transport, which is not told of a new connection.
        """
        # A protocol that an endpoint has wrapped gets its messages itself, as it may provide IRDMAProtocol.
        for _ in range(_DEPTH):
            self._follow(protocol)
            if not isinstance(protocol, _WrappingProtocol):
                break
            protocol = protocol._wrappedProtocol
        self._prefix = f"{self._getLogPrefix(protocol)},rdma"
        self.begin(protocol)

    def _follow(self, protocol: Any) -> None:
        if getattr(protocol, "transport", None) is self.owner.former:
            protocol.transport = self

    def established(self, connection: IConnection) -> None:
        """
        Passive: the peer has the REP.
        """
        self.owner.established()

    def lost(self, reason: Exception) -> None:
        # Notify the protocol of the end; of a connection that is not complete, the switch.
        if self.connected:
            super().lost(reason)
        else:
            self.owner.failed(f"{reason}")

    def connectionLost(self, reason: Failure) -> None:
        first = not self.disconnected and self.protocol is not None
        super().connectionLost(reason)
        if first:
            callLast(self, self.owner.former.ended, reason)

    def __repr__(self) -> str:
        return f"<{self.__class__} to {self.getPeer()} at {id(self):x}>"


def tell(call: Callable[[Failure], object], reason: Failure) -> None:
    """
    Make a call of the application; what it raises is logged.
    """
    try:
        call(reason)
    except BaseException:
        log.err()
