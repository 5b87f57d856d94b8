"""
Connections by librdmacm: the kernel has the communication manager's messages and states, and its events
become those of L{twisted_ib.hca.connection}.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from attrs import evolve
from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.errors import PathLostError, ResourceLimitError, UnsupportedOperationError, WireError
from twisted_ib.hca.base.attributes import MTU_CODES
from twisted_ib.hca.connection import ConnectReply, ConnectRequest, Rejection, RejectReason
from twisted_ib.hca.connection.compacthello import compact, expand, isMarked
from twisted_ib.hca.connection.interfaces import IConnector
from twisted_ib.hca.connection.rdmacm import HEADER_BYTES, PortSpace, RDMACMHeader
from twisted_ib.hca.connection.receives import Receives, isTold, sendsHello, toldIn
from twisted_ib.hca.fabric.base.streams import FabricConnection, FabricConnector, PeerPath, pathRecord
from twisted_ib.hca.fabric.hardware.provider import told
from twisted_ib.hca.fabric.hardware.rdmacm import CMEvent, Parameters
from twisted_ib.hca.memory.access import LOCAL_WRITE, REMOTE, REMOTE_ATOMIC

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import IPeerPath
    from twisted_ib.hca.fabric.hardware.adapterpath import AdapterPath
    from twisted_ib.hca.fabric.hardware.hardware import HardwareFabric
    from twisted_ib.hca.fabric.hardware.rdmacm import RDMACM, Notice

#: How long the kernel may look for an address, and for a route, in seconds.
RESOLVE_SECONDS = 5.0
#: How long the kernel may look for the address of a datagram, in seconds, as for C{ibv_create_ah} (Linux
#: addr.c, rdma_addr_find_l2_eth_by_grh()), and for how many at a time.
LOOKUP_SECONDS = 1.0
LOOKUPS = 512
#: Connections that wait in the kernel.
BACKLOG = 128
#: How often a request is offered once more to a service that had no room, after how long each time, in
#: seconds; and how many requests wait so.
OFFERS = 9
OFFER_SECONDS = 1.0
WAITING = 128
#: Events that are taken in one turn.
EVENTS = 64

_PORT: Final = 0xFFFF
_TCP = PortSpace.TCP.value
_SPACES: Final = (_TCP, PortSpace.SDP.value)
_MTU_CODE: Final = MTU_CODES[limits.DATAGRAM_BYTES]
#: The rights on memory that libibverbs and this package have in common.
_RIGHTS: Final = int(LOCAL_WRITE | REMOTE)


class AdapterConnection(FabricConnection):
    """
    One end of a connection.

    @ivar id: librdmacm's identifier; 0 once it is destroyed.
    @ivar offered: active: the private data of the request, as the kernel is given them.
    @ivar stream: the path of its queue pair.
    @ivar tells: whether this side tells the peer of its receives, and C{there} those of the peer, if it has
        told.
    """

    def __init__(self, connector: Connector, way: PeerPath, id: int, stage: str) -> None:
        super().__init__(way, stage)
        self._connector = connector
        self.id = id
        self.stream: AdapterPath = connector.fabric.stream(way, self)
        self.request: Any = None
        self.offered = b""
        # Passive: whether the kernel's word that the peer is ready is awaited, and whether the end follows.
        self._isAwaiting = self._isEnding = False
        self.tells = False
        self.there: Receives | None = None
        self._offers = 0

    def ignore(self, now: float) -> bool:
        # The kernel repeats none that it has handed over, and refuses one that is given up.
        self._offers += 1
        if self._offers > OFFERS or not self._connector.offerAgain(self):
            return super().ignore(now)
        return self._require("requested")

    def behind(self, privateData: bytes, isHello: bool = False) -> bytes:
        """
        @return: private data, and what is told of this side's receives.
        """
        window = self.stream.window
        return privateData if window is None else window.own.behind(privateData, isHello)

    def heard(self, given: Parameters, isHello: bool = False) -> bytes:
        """
        The peer has told of its receives, or has not.

        @return: its private data without that.
        """
        if not self._connector.fabric.isRNIC:
            return given.privateData
        data, self.there = toldIn(given.privateData, isHello)
        self.tells = self.there is not None
        return data

    def _attempt(self, call: Callable[..., None], *arguments: Any) -> bool:
        # The peer may have ended it, and its event is on the way.
        try:
            call(self.id, *arguments)
        except OSError:
            self._connector.fabric.count("hardware_cm_refused")
            return False
        return True

    def sendReply(self, reply: ConnectReply) -> bool:
        connector, stream = self._connector, self.stream
        served, outstanding = connector.depths(reply)
        if stream.window is not None:
            stream.window.told(self.there, True, min(outstanding, self.request.responderResources))
        given = Parameters(
            self.behind(reply.privateData),
            *(served, outstanding),
            rnrRetryCount=reply.rnrRetryCount,
            number=stream.adapterNumber,
            isShared=stream.shared is not None,
        )
        self._isAwaiting = self._attempt(connector.manager.accept, given)
        return self._isAwaiting

    def refuse(self, privateData: bytes) -> bool:
        return self._attempt(self._connector.manager.reject, privateData)

    def confirm(self) -> bool:
        # An RNIC is ready when its request is answered.
        return self._connector.fabric.isRNIC or self._attempt(self._connector.manager.establish)

    def end(self) -> None:
        # What was posted arrives before the word of the end.
        self.stream.whenDrained(self._sendDisconnect)

    def established(self) -> None:
        self._isAwaiting = False
        if not self._isEnding:
            super().established()
        elif self.stage != "ended":
            self._sendDisconnect()

    def _sendDisconnect(self) -> None:
        if self._isAwaiting and not self._connector.fabric.isRNIC:
            # Before that Linux sends no word of the end, and does not say so (cma.c, rdma_disconnect()).
            self._isEnding = True
        elif self.stage != "ended" and not self._attempt(self._connector.manager.disconnect):
            self._connector.gone(self)

    def over(self) -> None:
        # The identifier is destroyed.
        super().over()
        self._connector.forget(self)


@implementer(IConnector)
class Connector(FabricConnector):
    """
    The connections of one fabric.

    @ivar manager: librdmacm's channel, an L{RDMACM<twisted_ib.hca.fabric.hardware.rdmacm.RDMACM>}.
    @ivar served: how many READs and atomics a queue pair of the adapter serves at a time, and C{outstanding}
        how many it has outstanding.
    @ivar rights: those on memory, and of peers on a queue pair, that the adapter knows.
    """

    def __init__(self, fabric: HardwareFabric, manager: RDMACM) -> None:
        self.fabric = fabric
        self.manager = manager
        self.connections: dict[int, AdapterConnection] = {}
        self._listeners: dict[int, int] = {}
        self._lookups: dict[int, Callable[[bool], None]] = {}
        self._ignored = 0
        # Hears of the adapter's end where there is no connection yet.
        self._watch = manager.create()
        try:
            manager.bind(self._watch, fabric.address, 0)
            self.served, self.outstanding, hasAtomics = manager.depths(self._watch)
        except OSError:
            manager.destroy(self._watch)
            raise
        take: dict[int, Callable[[AdapterConnection, Notice], None]] = {
            CMEvent.ADDR_RESOLVED: self._resolved,
            CMEvent.ROUTE_RESOLVED: self._routed,
            CMEvent.CONNECT_RESPONSE: self._responded,
            CMEvent.ESTABLISHED: self._established,
            CMEvent.REJECTED: self._rejected,
            CMEvent.DISCONNECTED: self._disconnected,
            CMEvent.CONNECT_FAILED: self._begun,
        }
        for kind in (CMEvent.ADDR_ERROR, CMEvent.ROUTE_ERROR, CMEvent.CONNECT_ERROR, CMEvent.UNREACHABLE):
            take[kind] = self._unreachable
        self._takers = take
        # Drivers refuse a queue pair or memory for what the adapter has not (Linux mlx5 qp.c,
        # set_qpc_atomic_flags()).
        self.rights = _RIGHTS if hasAtomics else _RIGHTS & ~REMOTE_ATOMIC

    # -- services

    def listen(self, serviceID: int, address: str) -> int:
        """
        Listen at a port, or at any that is free.

        @param serviceID: its port is 0 for any.
        @return: the port.
        @raise UnsupportedOperationError: there is no such port space.
        @raise OSError: it cannot be had.
        """
        # rdma_cm has ids of its own port spaces only (Linux cma.c, cma_select_ib_ps()): a service of SDP has
        # one of the port space TCP, and with iWARP a port of TCP, as over software.
        if serviceID >> 16 not in _SPACES:
            raise UnsupportedOperationError(f"{self.fabric.adapter}: librdmacm has no such port space")
        id = self.manager.create()
        try:
            port: int = self.manager.bind(id, address, serviceID & _PORT)
            self.manager.listen(id, BACKLOG)
        except BaseException:
            self.manager.destroy(id)
            raise
        self._listeners[serviceID & ~_PORT | port] = id
        return port

    def unlisten(self, serviceID: int) -> None:
        """
        Undo L{listen}; harmless if repeated.
        """
        id = self._listeners.pop(serviceID, 0)
        if id:
            self.manager.destroy(id)

    # -- active

    def sendRequest(
        self, path: IPeerPath, request: ConnectRequest, user: Any, now: float
    ) -> AdapterConnection:
        assert isinstance(path, PeerPath)
        self.fabric.check()
        manager, offered = self.manager, request.privateData
        if sendsHello(request.serviceID):
            offered = offered if self.fabric.isRNIC else compact(offered)[HEADER_BYTES:]
        else:
            # The kernel writes the header.
            offered = offered[HEADER_BYTES:]
        try:
            id = manager.create()
        except OSError as error:
            raise ResourceLimitError(f"the kernel makes no rdma_cm identifier: {error.strerror}") from None
        try:
            connection = self.connections[id] = AdapterConnection(self, path, id, "calling")
        except ResourceLimitError:
            manager.destroy(id)
            raise
        connection.user = user
        connection.request, connection.offered = request, offered
        connection.localID = connection.stream.number
        space, port = request.serviceID >> 16, 0
        if space == _TCP:
            port = RDMACMHeader.parse(request.privateData).sourcePort
        try:
            if space not in _SPACES:
                raise OSError("librdmacm has no such port space")
            try:
                manager.bind(id, self.fabric.address, port)
            except OSError:
                manager.bind(id, self.fabric.address, 0)
            manager.resolveAddress(id, path.peer.address, request.serviceID & _PORT, RESOLVE_SECONDS)
        except OSError:
            # In the next turn: the user does not have the connection yet.
            self.fabric.soonCall(connection.unreached)
        return connection

    def depths(self, message: ConnectRequest | ConnectReply) -> tuple[int, int]:
        """
        @return: those of a message, served and outstanding, as far as the adapter has them.
        """
        return min(message.responderResources, self.served), min(message.initiatorDepth, self.outstanding)

    def _resolved(self, connection: AdapterConnection, notice: Notice) -> None:
        self.manager.resolveRoute(connection.id, RESOLVE_SECONDS)

    def _routed(self, connection: AdapterConnection, notice: Notice) -> None:
        request, fabric = connection.request, self.fabric
        isSDP = sendsHello(request.serviceID)
        connection.tells = fabric.isRNIC and isTold(request)
        connection.stream.create(fabric.owner.queuePairs.get(request.localQPN))
        given = Parameters(
            connection.behind(connection.offered, isSDP),
            *self.depths(request),
            *(request.retryCount, request.rnrRetryCount, connection.stream.adapterNumber),
            isShared=connection.stream.shared is not None,
        )
        # Within the call siw connects by TCP (Linux siw_cm.c, siw_connect()), and a card asks the port
        # mappers of both hosts (Linux iwcm.c, iw_cm_map()).
        connect = self.manager.begin if fabric.isRNIC else self.manager.connect
        try:
            connect(connection.id, given)
        except OSError as error:
            self._failed(connection, error.errno)

    def _begun(self, connection: AdapterConnection, notice: Notice) -> None:
        self._failed(connection, notice.status)

    def _failed(self, connection: AdapterConnection, code: int | None) -> None:
        # Of what is heard within the call there is no other event.
        if code == errno.ECONNREFUSED:
            connection.refused(Rejection(RejectReason.INVALID_SERVICE_ID, b""))
        else:
            # Whatever it is, a stranger on the way may have caused it by ICMP.
            connection.unreached()

    def _responded(self, connection: AdapterConnection, notice: Notice) -> None:
        given = notice.parameters
        data = connection.heard(given)
        if connection.stream.window is not None:
            connection.stream.window.told(connection.there, False, given.initiatorDepth)
        reply = ConnectReply(
            privateData=data,
            localQPN=connection.stream.number,
            # The kernel says them as this side is to use them (Linux ib_cm, struct ib_cm_req_event_param).
            responderResources=given.initiatorDepth,
            initiatorDepth=given.responderResources,
            rnrRetryCount=given.rnrRetryCount,
        )
        connection.replied(reply)

    # -- passive

    def _requested(self, notice: Notice) -> None:
        fabric, manager = self.fabric, self.manager
        _, _, there, theirs = manager.ends(notice.id)
        service = next((each for each, id in self._listeners.items() if id == notice.listener), 0)
        given, here, isSDP = notice.parameters, fabric.address, sendsHello(service)
        # The kernel has taken this header away, or there was none.
        header = RDMACMHeader(there, theirs, here).pack()
        try:
            if not fabric.isRNIC and isMarked(given.privateData, 0) is not isSDP:
                raise WireError("a request of another protocol")
            hello = expand(header + given.privateData) if isSDP and not fabric.isRNIC else b""
            connection = AdapterConnection(self, fabric.pathTo(there), notice.id, "requested")
        except (ResourceLimitError, WireError) as error:
            if isinstance(error, WireError):
                fabric.count("hardware_cm_mistaken")
            manager.reject(notice.id, b"")
            manager.destroy(notice.id)
            return
        self.connections[notice.id] = connection
        privateData = hello or connection.heard(given, isSDP)
        if not isSDP:
            privateData = header + privateData
        connection.request = ConnectRequest(
            serviceID=service,
            privateData=privateData,
            localQPN=connection.stream.number,
            # The kernel says them as this side is to use them (Linux ib_cm, struct ib_cm_req_event_param).
            responderResources=given.initiatorDepth,
            initiatorDepth=given.responderResources,
            retryCount=given.retryCount,
            rnrRetryCount=given.rnrRetryCount,
            pathMTU=_MTU_CODE,
            primaryPath=pathRecord(there, here),
        )
        fabric.owner.connectionRequested(connection, connection.request)

    def offerAgain(self, connection: AdapterConnection) -> bool:
        """
        Offer a request once more later.

        @return: False if too many wait already.
        """
        if self._ignored >= WAITING:
            return False
        self._ignored += 1
        connection.listener = None
        self.fabric.timers.start(OFFER_SECONDS, partial(self.fabric.soonCall, self._offer, connection))
        return True

    def _offer(self, connection: AdapterConnection) -> None:
        self._ignored -= 1
        if connection.stage == "requested":
            # Each listener gets one of its own.
            self.fabric.owner.connectionRequested(connection, evolve(connection.request))

    def _established(self, connection: AdapterConnection, notice: Notice) -> None:
        if connection.stage == "calling":
            # An RNIC's reply, with nothing left to do.
            self._responded(connection, notice)
        else:
            connection.established()

    # -- ends

    def _rejected(self, connection: AdapterConnection, notice: Notice) -> None:
        connection.refused(Rejection(self._reasonOf(notice), notice.parameters.privateData))

    def _reasonOf(self, notice: Notice) -> int:
        # Of an RNIC the status is an errno, and nobody listens where TCP is refused.
        if notice.status > 0 and not self.fabric.isRNIC:
            return notice.status
        return RejectReason.INVALID_SERVICE_ID

    def _unreachable(self, connection: AdapterConnection, notice: Notice) -> None:
        connection.unreached()

    def _disconnected(self, connection: AdapterConnection, notice: Notice) -> None:
        connection.disconnectData = notice.parameters.privateData
        self.gone(connection)

    def gone(self, connection: AdapterConnection) -> None:
        """
        A connection has ended at both sides.
        """
        # What came before the word of the end is delivered before it.
        self.fabric.takeAll()
        if connection.user is not None and connection.user.readsFirst:
            connection.stream.whenDelivered(partial(self._delivered, connection))
        else:
            self._delivered(connection)

    def _delivered(self, connection: AdapterConnection) -> None:
        connection.gone()
        stream, queuePair = connection.stream, connection.stream.queuePair
        # Linux cma.c leaves a program's queue pair alone; a stream has no other word of its end.
        if queuePair is not None and not stream.hasWork:
            stream.ended(PathLostError(f"{connection.destination.peer.address} has disconnected"))

    def lose(self, connection: AdapterConnection, reason: PathLostError) -> None:
        """
        A connection is lost.
        """
        connection.lost(reason)
        connection.stream.ended(reason)

    def forget(self, connection: AdapterConnection) -> None:
        """
        Destroy the identifier of a connection that has ended; its queue pair may go on for a while.
        """
        id, connection.id = connection.id, 0
        if id and self.connections.pop(id, None) is not None:
            self.manager.destroy(id, connection.stream.disconnected)

    # -- addresses of datagrams

    @property
    def lookupsLeft(self) -> int:
        """
        How many more addresses the kernel would look for.
        """
        return LOOKUPS - len(self._lookups)

    def lookUp(self, address: str, looked: Callable[[bool], None]) -> None:
        """
        Have the kernel look for an address on the adapter's link, while this thread goes on.

        @param looked: called once, later, with whether somebody has it.
        @raise OSError: it looks for too many, or does not look for this one.
        """
        if self.lookupsLeft <= 0:
            raise OSError(errno.EAGAIN, f"the kernel looks for {LOOKUPS} addresses already")
        manager = self.manager
        # Not of the ports of connections, which their listeners may want.
        id = manager.create(PortSpace.UDP)
        try:
            # So that it looks there and nowhere else.
            manager.bind(id, self.fabric.address, 0)
            manager.resolveAddress(id, address, 0, LOOKUP_SECONDS)
        except OSError:
            manager.destroy(id)
            raise
        self._lookups[id] = looked

    # -- progress

    def progress(self) -> int:
        """
        Take what the kernel tells.

        @return: how much that was.
        """
        n = 0
        while n < EVENTS and not self.fabric.isClosed:
            notice = self.manager.event()
            if notice is None:
                break
            n += 1
            try:
                self._take(notice)
            except BaseException as error:
                self.fabric.failed(error)
        return n

    def _take(self, notice: Notice) -> None:
        if notice.kind == CMEvent.CONNECT_REQUEST:
            self._requested(notice)
            return
        if notice.kind == CMEvent.DEVICE_REMOVAL:
            # Each identifier hears it.
            self.fabric.vanished()
            return
        looked = self._lookups.pop(notice.id, None)
        if looked is not None:
            self.manager.destroy(notice.id)
            looked(notice.kind == CMEvent.ADDR_RESOLVED)
            return
        connection = self.connections.get(notice.id)
        take = self._takers.get(notice.kind)
        if connection is None or take is None:
            return
        try:
            take(connection, notice)
        except OSError as error:
            # What the event asks for is not possible any more.
            self.fabric.count("hardware_cm_refused")
            connection.lost(PathLostError(f"adapter {self.fabric.adapter}: {told(error)}"))

    def close(self) -> None:
        """
        End everything.
        """
        for serviceID in list(self._listeners):
            self.unlisten(serviceID)
        for connection in list(self.connections.values()):
            connection.over()
        for id in (*self._lookups, self._watch):
            self.manager.destroy(id)
        self.manager.close()
