"""
Fabrics of connections: each queue pair has one of its own, of TCP or of an adapter, and there are no
datagrams.  As a device and its users ask them, the device, as they see it, and what their paths
and connections have in common.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from socket import socket
from typing import TYPE_CHECKING, Any

from zope.interface import Attribute, implementer

from twisted_ib.errors import ConnectionStateError, HCAError, NoRouteError
from twisted_ib.hca.base.interfaces import IAddressDirectory, IFabric, IFabricOwner, IPeerPath
from twisted_ib.hca.base.timers import Timers
from twisted_ib.hca.cm.states import State
from twisted_ib.hca.connection import PathRecord, Rejection, RejectReason
from twisted_ib.hca.connection.interfaces import IConnection
from twisted_ib.hca.connection.rdmacm import gidOf
from twisted_ib.hca.fabric.base.addressdirectory import AddressDirectory, PeerAddress
from twisted_ib.hca.fabric.base.waker import LinkWaker
from twisted_ib.hca.host.libc import KernelEpoll
from twisted_ib.hca.wire.grh import HOP_LIMIT

if TYPE_CHECKING:
    from twisted_ib.errors import PathLostError
    from twisted_ib.hca.base.interfaces import BoundQueuePair, IPath, Waiter
    from twisted_ib.hca.base.states import QPState, QPType
    from twisted_ib.hca.connection.interfaces import IConnectionUser, IConnector, ILookup, IServiceListener
    from twisted_ib.hca.connection.request import ConnectReply, ConnectRequest, LookupRequest


class IAdoptedPath(IPeerPath):
    """
    The path of a socket that a fabric has adopted, for one request.
    """

    def close() -> None:
        """
        Close a connection that has no queue pair yet.
        """


class IStreamFabric(IFabric, IAddressDirectory):
    """
    A fabric of TCP connections.
    """

    # RFC 5044 section 7.1: startup may follow octets of another protocol.
    def adopt(
        made: socket,
        leftover: bytes = b"",
        serviceID: int = 0,
        seconds: float | None = None,
        ended: Callable[[], object] | None = None,
    ) -> IAdoptedPath:
        """
        Let a connected TCP socket go on as a connection of this fabric.

        @param made: the C{socket.socket}; the fabric's from now on.
        @param leftover: octets received on it behind the program's last.
        @param serviceID: nonzero: the peer sends the request to connect, and the listener of this service id
            gets it (L{Services.serve<twisted_ib.hca.device.connections.Services.serve>}); 0: this side sends
            one, over the path that is returned.
        @param seconds: how long the peer may take for the request, or its answer; by default as elsewhere.
        @param ended: called once, when the connection has ended.
        @return: the path to the peer.
        @raise PathLostError: the socket is connected no more, or more was received than a peer may send.
        """


class IConnectorOwner(IFabricOwner):
    """
    The device, as a fabric sees it that makes its connections itself.
    """

    def useConnector(connector: IConnector) -> None:
        """
        Have requests to connect sent by a connector of the fabric's, from now on.
        """

    def connectionRequested(connection: IConnection, request: ConnectRequest) -> None:
        """
        A request to connect arrived for a published service.
        """


class IAdapterFabric(IFabric, IAddressDirectory):
    """
    A fabric with memory keys of its own.
    """

    pathMTU: int = Attribute("The most octets of a datagram.")

    def register(view: memoryview, access: int, pd: Any) -> tuple[int, int, Any]:
        """
        Register memory.

        @param access: L{Access<twisted_ib.hca.memory.access.Access>} bits.
        @param pd: the protection domain.
        @return: its key, the address of its first byte, and an object with C{close()}, which ends that.
        @raise MemoryRegionError: the adapter does not take it.
        """

    def share(pd: Any, queuePair: Any) -> None:
        """
        Have memory of a protection domain registered in that of a stream's queue pair, which the adapter has
        given it; without effect where it is connected no more.
        """

    def reserve(pd: Any, kind: QPType) -> int:
        """
        Make a queue pair for a program that may connect it by itself, or sends datagrams.

        @param pd: the protection domain.
        @param kind: its service.
        @return: its number, which peers know it by; 0 where there is no connecting by itself, and it is made
            when its connection is.
        @raise ResourceLimitError: the adapter makes none, or none of a number that is free.
        @raise UnsupportedOperationError: rdma_cm alone connects, and it is not reliable.
        """

    def release(number: int) -> None:
        """
        Undo L{reserve}; harmless for other numbers.
        """

    def step(number: int, state: QPState, attributes: Mapping[str, Any]) -> None:
        """
        A queue pair of datagrams is about to be modified; without effect for other numbers.

        @raise QueuePairError: the adapter does not take it, and has what it had.
        """


class IAdapterOwner(IConnectorOwner):
    """
    The device, as such a fabric sees it.
    """

    def useAdapter(adapter: IAdapterFabric) -> None:
        """
        Have memory registered by a fabric, from now on.
        """

    def adapterGone(reason: PathLostError, release: Callable[[], bool]) -> None:
        """
        The adapter has disappeared, and all its connections are lost; C{release} is called until it is true.
        """


class ConnectedFabric(AddressDirectory):
    """
    A fabric that has a path for each connection, and one descriptor for all that wakes it.

    @ivar clock: returns the time in seconds.
    @ivar timers: of listeners and connections.
    @ivar streams: the paths of queue pairs, by the number that stands for the peer's queue pair.
    @ivar soon: those that have something to do in the next turn.
    @ivar inbox: what L{soonCall} was given, in order: what users are told of connections, and the ends of
        streams.
    """

    streams: Mapping[int, Any]
    soon: dict[Any, None]

    def __init__(self, owner: Any, guid: int, address: str, clock: Callable[[], float]) -> None:
        super().__init__(owner, guid, address)
        self.clock = clock
        self.timers = Timers(clock)
        self.streams = {}
        self.soon = {}
        self.inbox: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._poller = KernelEpoll()
        self._waker = LinkWaker(self._poller)

    # -- services

    def listen(self, serviceID: int) -> int:
        """
        Have requests for a service id taken at this device's address.

        @param serviceID: with port 0 for any that is free.
        @return: its port.
        @raise ServiceInUseError: the port is taken, by whomever.
        """
        raise NotImplementedError

    def publish(self, serviceID: int, address: str, inode: int = 0) -> None:
        super().publish(serviceID, address)
        try:
            self.listen(serviceID)
        except BaseException:
            super().withdraw(serviceID, address)
            raise

    def publishAny(self, prefix: int, address: str) -> int:
        address = self._check(address)
        port = self.listen(prefix)
        self._services.add((prefix + port, address))
        return port

    # -- paths and turns

    def leave(self, group: int) -> None:
        pass  # Nothing was joined.

    def paths(self) -> list[Any]:
        return [stream for stream in self.streams.values() if stream.queuePair is not None]

    def later(self, stream: Any) -> None:
        """
        Have C{stream.progress} called in the next turn.
        """
        if stream not in self.soon:
            self.soon[stream] = None
            self.want()

    def soonCall(self, call: Callable[..., object], *arguments: object) -> None:
        """
        Call in the next turn.
        """
        self.inbox.append((call, arguments))
        self.want()

    def doom(self, stream: Any, reason: HCAError) -> None:
        """
        Fail the queue pair of a stream in the next turn.
        """
        self.soonCall(stream.lost, reason)

    def _dispatch(self) -> int:
        # A call may ask for others, which wait for the next turn, as they may do so again.  It may also close
        # the device, which takes the others away.
        left = count = len(self.inbox)
        while left and self.inbox:
            left -= 1
            call, arguments = self.inbox.popleft()
            self._try(call, *arguments)
        return count

    def ringBells(self) -> None:
        if self.bells:
            bells, self.bells = self.bells, []
            for stream in bells:
                stream.ring()

    @property
    def hot(self) -> tuple[Any, ...]:
        return (self,) if self.streams else ()

    def deadline(self) -> float | None:
        return self.timers.deadline()

    def tick(self, now: float) -> None:
        self.timers.tick(now)
        self._raise()


def pathRecord(here: str, there: str) -> PathRecord:
    """
    @return: the path between two addresses, the first of which is the sender's of the request.
    """
    return PathRecord(localGID=gidOf(here), remoteGID=gidOf(there), hopLimit=HOP_LIMIT)


class ConnectionPath:
    """
    A path without datagrams: that of a queue pair's own connection, or the one to its peer's address.  See
    L{IPath<twisted_ib.hca.base.interfaces.IPath>}.
    """

    __slots__ = ()

    def forget(self, number: int) -> None:
        pass  # A connection has one queue pair.

    def expect(self, requester: Any) -> None:
        pass  # Nothing is refused for want of a queue pair.

    def modified(self, queuePair: BoundQueuePair) -> None:
        pass  # What was agreed on is not changed.

    def respond(self, word: int, record: bytes, partition: int) -> bool:
        # There are no datagrams here.
        return True

    def sendManagement(self, attribute: int, body: bytes, transaction: int = 0) -> None:
        pass  # There is no queue pair 1 here.

    def unsent(self) -> int:
        return 0

    # Only the descriptor of the fabric says that something has come.
    pending = unsent

    def prepareRequest(self, request: ConnectRequest) -> None:
        pass  # A connection negotiates no attributes of packets.

    def prepareReply(self, reply: ConnectReply, request: ConnectRequest) -> None:
        pass

    def readReply(self, reply: ConnectReply, number: int) -> None:
        pass


class OwnPath(ConnectionPath):
    """
    The path of one queue pair, over its own connection.
    """

    __slots__ = ()

    way: Any
    queuePair: Any

    def bind(self, queuePair: BoundQueuePair, message: Any = None) -> Any:
        return self.way.bind(queuePair, message)

    def queuePairs(self) -> list[BoundQueuePair]:
        """
        @return: the queue pair, if there is one.
        """
        return [] if self.queuePair is None else [self.queuePair]


@implementer(IPeerPath)
class PeerPath(ConnectionPath):
    """
    The path to a peer's address. Each request that is sent over it makes a connection.
    """

    __slots__ = ("__weakref__", "alive", "fabric", "peer")

    def __init__(self, fabric: Any, address: str) -> None:
        """
        @param fabric: gives queue pairs their paths, by C{bind}.
        @param address: the peer's, as text without a scope.
        """
        self.fabric = fabric
        self.peer = PeerAddress.of(address)
        self.alive = True

    def bind(self, queuePair: Any, message: Any = None) -> IPath:
        path: IPath = self.fabric.bind(self, queuePair)
        return path

    def unbind(self, queuePair: BoundQueuePair) -> None:
        pass  # Nothing is bound to this path.

    def post(self, word: int, header: bytes, payload: Any, length: int) -> bool:
        # There are no datagrams here.
        self.fabric.count("datagrams_unsendable")
        return True

    def wantSpace(self, waiter: Waiter) -> None:
        pass  # Nothing waits for space.

    wantNoSpace = wantSpace

    def position(self) -> int:
        # 0: nothing is posted here.
        return 0

    def lost(self, reason: PathLostError) -> None:
        """
        The device is closed.
        """
        self.alive = False


@implementer(IConnection)
class FabricConnection:
    """
    One end of a connection that a fabric makes itself, in whatever way. Its user calls what is before
    C{replied}, the fabric what follows; a subclass does what its stages need.

    @ivar stage: C{"calling"}, C{"replied"}, C{"requested"}, C{"accepted"}, C{"up"} or C{"ended"}.
    @ivar state: C{DREQ_SENT} while this side has ended it and the peer has not answered, as the state of
        L{twisted_ib.hca.cm.machine.Connection}.
    @ivar listener: passive: the listener of the service.
    """

    ackSeconds: float = 0.0
    isDelayed: bool = False
    localID: int = 0

    def __init__(self, way: IPeerPath, stage: str) -> None:
        """
        @param way: the path that the request takes.
        @param stage: C{"calling"} or C{"requested"}.
        """
        self.destination: Any = way
        self.stage = stage
        self.state = State.IDLE
        self.user: IConnectionUser | None = None
        self.listener: IServiceListener | None = None
        self.disconnectData = b""

    def _require(self, stage: str) -> bool:
        # The peer may have ended it, and its event is on the way.
        if self.stage == "ended":
            return False
        if self.stage != stage:
            raise ConnectionStateError(f"the connection is {self.stage}, not {stage}")
        return True

    def accept(self, reply: ConnectReply, now: float, isConfirmed: bool = True) -> bool:
        if not self._require("requested"):
            return False
        self.stage = "accepted" if isConfirmed else "up"
        try:
            return self.sendReply(reply)
        except HCAError:
            # It can be refused yet.
            self.stage = "requested"
            raise

    def reject(self, reason: RejectReason, privateData: bytes, now: float) -> bool:
        if self.stage != "replied" and not self._require("requested"):
            return False
        isSent = self.refuse(privateData)
        self.over()
        return isSent

    def ignore(self, now: float) -> bool:
        # Nobody repeats a request, so it can only be refused.
        return self.reject(RejectReason.NO_RESOURCES, b"", now)

    def sendMRA(self, now: float) -> bool:
        # Nobody is impatient.
        return self.stage != "ended"

    def ready(self, now: float, privateData: bytes = b"", isConfirmed: bool = True) -> bool:
        if not self._require("replied"):
            return False
        self.stage = "up"
        return self.confirm()

    def abandon(self, now: float) -> bool:
        self.user = None
        return self.disconnect(now)

    def disconnect(self, now: float, privateData: bytes = b"") -> bool:
        """
        End it in any state.

        @return: whether C{peerDisconnected} follows, or a request or reply was refused.
        """
        stage = self.stage
        if stage == "requested" or stage == "replied":
            return self.reject(RejectReason.CONSUMER_DEFINED, privateData, now)
        if stage == "calling":
            self.withdraw()
            self.over()
        if self.stage == "ended" or self.state is State.DREQ_SENT:
            return False
        self.state = State.DREQ_SENT
        self.end()
        return True

    def leave(self, now: float, privateData: bytes = b"") -> bool:
        return self.disconnect(now, privateData)

    def finish(self, now: float) -> bool:
        """
        End it, as both users know already.
        """
        return self.disconnect(now)

    # -- how the fabric does it

    def sendReply(self, reply: ConnectReply) -> bool:
        """
        @return: whether the peer still waits for it.
        """
        raise NotImplementedError

    def refuse(self, privateData: bytes) -> bool:
        """
        Refuse the request, or the reply.

        @return: whether the peer still waits for that.
        """
        raise NotImplementedError

    def confirm(self) -> bool:
        """
        The reply is good.

        @return: whether the connection is still there.
        """
        return True

    def withdraw(self) -> None:
        """
        Give up the request that was sent.
        """

    def end(self) -> None:
        """
        Tell the peer of the end; L{gone} follows.
        """
        raise NotImplementedError

    def over(self) -> None:
        """
        It has ended; nothing more is heard of it.
        """
        self.stage = "ended"
        self.state = State.IDLE

    # -- what the fabric tells

    def replied(self, reply: ConnectReply) -> None:
        """
        The peer accepts.
        """
        if self.stage == "calling" and self.user is not None:
            self.stage = "replied"
            self.user.replied(self, reply)

    def established(self) -> None:
        """
        The peer has the reply, and is ready.
        """
        if self.stage == "accepted":
            self.stage = "up"
            established = getattr(self.user, "established", None)
            if established is not None:
                established(self)

    def _ended(self) -> IConnectionUser | None:
        # Returns the user to be told how.  A listener that has not answered hears that it need not.
        user, self.user = self.user, None
        listener = self.listener if self.stage == "requested" and user is None else None
        self.over()
        if listener is not None:
            listener.requestWithdrawn(self)
        return user

    def refused(self, rejection: Rejection) -> None:
        """
        The peer refuses, or has withdrawn its request.
        """
        if self.stage != "ended" and (user := self._ended()) is not None:
            user.rejected(self, rejection)

    def unreached(self) -> None:
        """
        The peer does not answer.
        """
        if self.stage != "ended" and (user := self._ended()) is not None:
            user.unreachable(self)

    def gone(self) -> None:
        """
        Both sides have ended it.
        """
        if self.stage == "calling":
            # Its user awaits an answer.
            self.refused(Rejection(RejectReason.CONSUMER_DEFINED))
        if self.stage != "ended" and (user := self._ended()) is not None:
            user.peerDisconnected(self)

    def lost(self, reason: PathLostError) -> None:
        """
        The way to the peer is gone.
        """
        if self.stage != "ended":
            lost = getattr(self._ended(), "pathLost", None)
            if lost is not None:
                lost(reason)


class FabricConnector:
    """
    The common part of the connectors of such fabrics, which have no datagrams: see
    L{IConnector<twisted_ib.hca.connection.interfaces.IConnector>}.
    """

    def sendLookup(self, path: IPeerPath, request: LookupRequest, user: Any, now: float) -> ILookup:
        raise NoRouteError(f"{path.fabric.name} has no datagrams, and no services of them")
