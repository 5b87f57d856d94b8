"""
RDS over RC queue pairs: what its media have in common.

All paths between two ends of a connection share one queue pair (L{twisted_ib.rds.media.rcconnection}).  Whose
ends those are, and how peers are found, depends on what names the device's peers:
L{twisted_ib.rds.media.rcaddresses} and L{twisted_ib.rds.media.rcprocesses}.

Source: Linux 6.1 C{net/rds/ib_cm.c}, C{net/rds/rdma_transport.c}.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from twisted.internet.defer import Deferred, succeed

from twisted_ib.errors import (
    HCAError,
    NoRouteError,
    PathLostError,
    PeerGoneError,
    ResourceLimitError,
)
from twisted_ib.hca.device.registry import DEFAULT_DEVICE
from twisted_ib.hca.host.addresses import sourceFor
from twisted_ib.internet.channel import DeviceChannel, channelFor
from twisted_ib.rds.media.rcconnect import (
    RDS_DUEL_SECONDS,
    ConnectAttempt,
    HalfOpenSession,
    PendingCall,
    PendingConnect,
    RequestListener,
)
from twisted_ib.rds.media.rcconnection import RCConnection
from twisted_ib.rds.paths.network import PROVIDER, networkRows
from twisted_ib.rds.paths.path import RDSPath
from twisted_ib.rds.paths.rdmaoperations import DeviceMemory

if TYPE_CHECKING:
    from twisted_ib.hca.connection.interfaces import Parking
    from twisted_ib.hca.device.device import Device
    from twisted_ib.hca.host.socketpage.page import SocketPage
    from twisted_ib.rds.media.rcrelay import RelayNetwork
    from twisted_ib.rds.paths.network import Network

#: Those that await the peer's RTU.
Expected = RCConnection | HalfOpenSession

#: Queue pairs of one process and device.
RDS_SESSIONS = 4096


class RCMedium:
    """
    RDS on an HCA; a base of media: see L{IRDSMedium<twisted_ib.rds.paths.carrier.IRDSMedium>}.

    @ivar name: the device's name.
    @ivar network: the sockets that use it.
    @ivar sessions: connected queue pairs, by the peer's GUID or by both addresses.
    @ivar expected: those whose REP was sent and whose RTU is awaited, by the same keys.
    @ivar parking: where the rest of those is kept as octets.
    @ivar calls: connection attempts, by the same keys.
    @ivar relay: hands datagrams on between the processes of an address, or L{None}.
    @cvar provider: the provider's name, for C{ib-ss}.
    @cvar acknowledges: whether messages request acknowledgements: only where Linux may be the peer;
        otherwise each batch is acknowledged.
    @cvar sharesAddresses: whether other processes have the same addresses.
    @cvar space: the port space in which sockets are published, if they are.
    @cvar counted: the group of its counters in the device's.
    @cvar attemptClass: makes its connection attempts.
    @cvar listenerClass: makes the listener of its services.
    """

    relay: RelayNetwork | None = None
    provider = PROVIDER
    acknowledges: ClassVar[bool]
    sharesAddresses: ClassVar[bool]
    space: ClassVar[int] = 0
    counted: ClassVar[str] = "rds"
    attemptClass: ClassVar[type[ConnectAttempt]]
    listenerClass: ClassVar[type[RequestListener]]

    def __init__(self, network: Network, device: str | None = None) -> None:
        self.network = network
        self.name = DEFAULT_DEVICE if device is None else device
        self.sessions: dict[Any, RCConnection] = {}
        self.expected: dict[Any, Expected] = {}
        self.parking: dict[Parking, None] = {}
        self.calls: dict[Any, ConnectAttempt] = {}
        self._domains: dict[Any, DeviceMemory] = {}
        self._laters: dict[RDSPath, PendingCall] = {}
        self.bound: dict[str, dict[int, Any]] = {}
        self._rows: dict[tuple[str, int], tuple[SocketPage, int | None]] = {}
        self.services: dict[Any, Any] = {}
        self.listener = self.listenerClass(self)

    # -- what the peers' names make of it

    def serve(self, channel: DeviceChannel, address: str, port: int) -> Any:
        """
        Have peers find a socket.

        @return: the service of its own, or L{None}.
        """
        raise NotImplementedError

    def serveNoMore(self, channel: DeviceChannel, address: str) -> None:
        """
        A socket of an address was the last, or may have been.
        """
        raise NotImplementedError

    def keyOf(self, path: RDSPath) -> Any:
        """
        @return: the key of the connection for a path.
        """
        raise NotImplementedError

    def failed(self, path: RDSPath, reason: Exception) -> None:
        """
        A connection attempt for a path failed.
        """
        path.carrierFailed(reason)

    def accepted(self, session: RCConnection, now: float) -> None:
        """
        A REP was sent: the queue pair is connected now, or when L{arrived} is called.
        """
        raise NotImplementedError

    # -- addresses and sockets

    def sourceFor(self, host: str) -> str:
        return sourceFor(host)

    def locate(self, host: str, found: Callable[[str | HCAError], object]) -> None:
        found(host)

    def hostNamed(self, name: str) -> str:
        return ""

    unknownHost = hostNamed

    def channel(self, address: str) -> DeviceChannel:
        """
        @param address: one of ours.
        @return: the device that has it.
        """
        return channelFor(self.network.reactor, self.name, address)

    def channelOf(self, device: Device) -> DeviceChannel:
        """
        @return: that of a device that sockets are bound on.
        @raise NoRouteError: none are.
        """
        for address in self.bound:
            channel = self.channel(address)
            if channel.device is device:
                return channel
        raise NoRouteError("a device that is not ours was called")

    def bind(self, address: str, port: int) -> None:
        try:
            channel = self.channel(address)
        except ValueError as reason:
            raise OSError(errno.EADDRNOTAVAIL, str(reason)) from None
        # Allocated now, while it can still fail: RDMA operations of a peer need the domain too.
        self.domainOf(channel.device)
        ports = self.bound.setdefault(address, {})
        try:
            ports[port] = self.serve(channel, address, port)
        except BaseException:
            if not ports:
                del self.bound[address]
            raise
        self.attend(channel)
        if channel.shown is not None and self.counted == RCMedium.counted:
            page = channel.shown.openPage()
            [offset] = page.add(self.name, [(self, address, port, "", 0)])
            self._rows[address, port] = page, offset
        channel.device.counting[self.counted] = self.counters

    def attend(self, channel: DeviceChannel) -> None:
        """
        Have the reactor look at a device on which a socket is bound.
        """
        channel.acquire(self)

    def unbind(self, address: str, port: int) -> None:
        channel = self.channel(address)
        ports = self.bound[address]
        service = ports.pop(port)
        if service is not None:
            service.close()
        page, offset = self._rows.pop((address, port), (None, None))
        if page is not None and offset is not None:
            page.remove(offset)
        if not ports:
            del self.bound[address]
            self.serveNoMore(channel, address)

    def whenQuiet(self) -> Deferred[None]:
        # DREQs that are still to be sent are the device's business.
        for session in self._all():
            session.close()
        for call in list(self.calls.values()):
            call.done()
        domains, self._domains = self._domains, {}
        for domain in domains.values():
            domain.close()
        return succeed(None)

    # -- memory

    def domain(self, address: str) -> DeviceMemory:
        """
        @param address: one of ours.
        @return: the memory of its device.
        @raise ResourceLimitError: there are too many protection domains.
        """
        return self.domainOf(self.channel(address).device)

    def domainOf(self, device: Device) -> DeviceMemory:
        """
        @return: the memory of a device.
        @raise ResourceLimitError: there are too many protection domains.
        """
        found = self._domains.get(device)
        if found is None:
            found = self._domains[device] = DeviceMemory(device)
        return found

    # -- paths

    def pathOf(self, session: RCConnection, ours: str, theirs: str) -> RDSPath | None:
        """
        Find the path of a peer's messages.

        @return: L{None} if no socket is open here.
        """
        if self.network.dormant:
            return None
        return self.network.path((ours, theirs, session.key), ours, theirs)

    def isUnbound(self, address: str, port: int) -> bool:
        """
        @return: whether a peer is told that a port has no socket here.
        """
        return (address, port) not in self.network.sockets

    def areBetween(self, session: RCConnection, ours: str, theirs: str) -> bool:
        """
        @return: whether the peer of a queue pair may have a path between two addresses.
        """
        device = session.channel.device
        try:
            path = session.queuePair.path
            return path is not None and device.isLocal(ours) and device.isPeers(path, theirs)
        except ValueError:
            return False

    def moved(self) -> None:
        """
        A port is not where it was thought to be: forget all routes.
        """
        self.network.epoch += 1
        self.network._routes.clear()

    def reconnects(self, path: RDSPath) -> bool:
        # Both ends do, as on Linux IB (rds_queue_reconnect).
        return True

    def connect(self, path: RDSPath) -> Any:
        self.later(path, self.begin, path)
        return PendingConnect(self, path)

    def later(self, path: RDSPath, call: Any, *arguments: Any) -> None:
        """
        Call something for a path in the next turn; it replaces the call that is pending.
        """
        found = self._laters.get(path)
        if found is not None:
            found.cancel()

        def now() -> None:
            del self._laters[path]
            call(*arguments)

        self._laters[path] = PendingCall(self.network.reactor, now)

    def forgetWaiting(self, path: RDSPath) -> None:
        """
        Cancel the path's pending call and its part in connection attempts.
        """
        later = self._laters.pop(path, None)
        if later is not None:
            later.cancel()
        for call in list(self.calls.values()):
            if call.waiters.pop(path, path) is None and not call.waiters:
                call.done()

    def begin(self, path: RDSPath) -> None:
        """
        Connect a path, or take part in the attempt that there is.
        """
        key = self.keyOf(path)
        session = self.sessions.get(key)
        # Between processes another path may have connected the queue pair already.
        if session is not None and session.isUp and session.loss is None:
            carrier = session.carrier(path)
            if path.carrier is not carrier:
                path.carrierUp(carrier, session.peerHas)
            return
        call = self.calls.get(key)
        if call is None:
            expected = self.expectedFor(key)
            # A REP was sent and its RTU is awaited: a REQ of ours would cross it, and Linux would drop the
            # connection that is just coming up (ib_cm.c, rds_ib_cm_handle_connect).
            if expected and self.channel(path.local).now() - expected.asked < RDS_DUEL_SECONDS:
                path.carrierFailed(PathLostError("the peer is connecting"))
                return
            try:
                call = self.calls[key] = self.attemptClass(self, key, self.channel(path.local))
            except (HCAError, OSError, ValueError) as reason:
                path.carrierFailed(reason)
                return
            call.waiters[path] = None
            call.begin(path)
        else:
            call.waiters[path] = None

    # -- queue pairs

    def checkRoom(self) -> None:
        """
        @raise ResourceLimitError: there are too many queue pairs.
        """
        parked = sum(parking.ofListener[self.listener] for parking in self.parking)
        if len(self.sessions) + len(self.expected) + parked >= RDS_SESSIONS:
            raise ResourceLimitError("too many connections of RDS")

    def newSession(self, key: Any, channel: DeviceChannel) -> RCConnection:
        """
        Create a queue pair.

        @raise ResourceLimitError: there are too many.
        """
        self.checkRoom()
        return RCConnection(self, key, channel, self.sharesAddresses)

    def sessionUp(self, session: RCConnection, waiters: dict[RDSPath, None]) -> None:
        """
        A queue pair is connected: it replaces an older one with the same peer.
        """
        old = self.sessions.get(session.key)
        if old is not None:
            # The peer believes the old connection to be gone, as after a restart.  Linux ib_cm.c drops an
            # UP connection on a new REQ as well.
            old.broken(PathLostError("another connection took its place"))
        self.sessions[session.key] = session
        session.channel.acquire(session)
        for path in waiters:
            self.later(path, self.begin, path)

    def sessionClosed(self, session: RCConnection) -> None:
        """
        A queue pair is closed.
        """
        if self.sessions.get(session.key) is session:
            del self.sessions[session.key]
        self.ceased(session)
        session.channel.release(session)

    # -- queue pairs that peers ask for

    def expect(self, session: Expected) -> None:
        """
        A REP was sent whose RTU is awaited; it replaces an older one for the same peer.
        """
        old = self.expectedFor(session.key)
        if old is not None:
            # A repeated REQ does not extend the wait: forged ones could keep us from connecting for ever.
            session.asked = old.asked
            old.close()
        self.expected[session.key] = session

    def expectedFor(self, key: Any) -> Expected | None:
        """
        @return: what is expected of a key.
        """
        return self.expected.get(key)

    def _all(self) -> list[Expected]:
        for parking in list(self.parking):
            parking.resumeAll(self.listener)
        return [*self.sessions.values(), *self.expected.values()]

    def ceased(self, session: Expected) -> None:
        """
        No RTU is awaited any more.
        """
        if self.expected.get(session.key) is session:
            del self.expected[session.key]

    def arrived(self, session: RCConnection) -> None:
        """
        The peer has the REP: the RTU, or a message, has come.
        """
        if self.expected.get(session.key) is session:
            del self.expected[session.key]
            self.proved(session)

    def proved(self, session: RCConnection) -> None:
        """
        A queue pair is connected to a peer that has the address it gives.
        """
        key = session.key
        try:
            if self.network.dormant:
                raise PathLostError("nobody is here")
            # Only now a path is made: the RTU, or a message in its place (IBTA vol. 1 12.9.8), proves
            # that the REQ came from the address that it gives.
            self.connected(session, {self.network.path(key, *key): None})
        except HCAError as reason:
            session.broken(reason)

    def connected(self, session: RCConnection, waiters: dict[RDSPath, None]) -> None:
        """
        A queue pair is connected that a peer has asked for: what waits for one has it.
        """
        key = session.key
        call = self.calls.get(key)
        if call is not None:
            waiters.update(call.waiters)
            call.waiters = {}
            call.done()
        self.sessionUp(session, waiters)

    # -- reports and shutdown

    def socketRows(self) -> Any:
        """
        @return: the rows that C{ib-ss} shows.
        """
        return networkRows(self.network)

    def counters(self) -> dict[str, int]:
        """
        @return: the counters that C{ib-devinfo} shows besides the device's own.
        """
        return self.network.counters

    def connectionLost(self, reason: Any) -> None:
        """
        The device is going: close the sockets.
        """
        for session in self._all():
            session.broken(PeerGoneError("the device is going"))
        for socket in set(self.network.sockets.values()):
            stop = getattr(socket, "stopListening", None)
            if stop is not None:
                stop()
