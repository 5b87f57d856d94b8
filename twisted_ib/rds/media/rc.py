"""
RDS over RC queue pairs: which queue pair carries a path, which end connects it, and how peers are found.

On a device whose peers are IP addresses, connections are made as Linux makes them: to the RDS service at
the peer's address, one connection for each pair of addresses, with the addresses and the version in the
private data.  If both ends connect at once, both reject, and retry after a random pause.

On a device between the processes of a host, all processes have all addresses.  So each socket is
published in a port space of its own, and a sender looks there for the HCA that has the port.  All paths
between two HCAs share one queue pair (L{twisted_ib.rds.media.rcconnection}): the REQ goes to an HCA, not
to a port, and its private data names the requesting HCA (L{twisted_ib.rds.protocol.private}), which the
fabric verifies.  If both connect at once, the request of the HCA with the larger GUID is accepted.

On a device of an InfiniBand subnet a socket may have GIDs besides: a GID names an HCA, which the directory
need not be asked for, but only whether it has the port.

A path leads to one HCA.  When that HCA is gone, or a port has moved to another one, queued messages are
sent to the port's new HCA as new ones: it cannot have seen them.

Source: Linux 6.1 C{net/rds/ib_cm.c}, C{net/rds/rdma_transport.c}.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, succeed
from zope.interface import implementer

from twisted_ib.errors import (
    HCAError,
    NoListenerError,
    NoRouteError,
    PathLostError,
    PeerGoneError,
    ResourceLimitError,
)
from twisted_ib.hca.base.traits import Peers, Proof
from twisted_ib.hca.connection.rdmacm import gidText
from twisted_ib.hca.device.registry import DEFAULT_DEVICE, addressOf, traitsOf
from twisted_ib.hca.host.addresses import localAddresses, normalise, sourceFor
from twisted_ib.internet.channel import DeviceChannel, channelFor
from twisted_ib.rds.media.rcaccept import RDS_DUEL_SECONDS, HalfOpenSession, RequestListener
from twisted_ib.rds.media.rcconnect import (
    PORT_SPACE,
    SESSIONS,
    TCP_SPACE,
    ConnectAttempt,
    PendingCall,
    PendingConnect,
)
from twisted_ib.rds.media.rcconnection import RCConnection
from twisted_ib.rds.paths.carrier import IRDSMedium
from twisted_ib.rds.paths.path import RDSPath
from twisted_ib.rds.paths.rdmaoperations import DeviceMemory
from twisted_ib.rds.paths.rows import PROVIDER, networkRows
from twisted_ib.rds.protocol.bundle import BUNDLE
from twisted_ib.rds.protocol.congestion import CongestionMap
from twisted_ib.rds.protocol.private import servicePort
from twisted_ib.rds.protocol.wire import PING_PORT

if TYPE_CHECKING:
    from twisted_ib.hca.device.device import Device
    from twisted_ib.hca.host.socketpage.page import SocketPage
    from twisted_ib.rds.paths.network import Network, Route

#: Those that await the peer's RTU.
Expected = RCConnection | HalfOpenSession

#: Queue pairs of one process and device.
RDS_SESSIONS = 4096
#: How many unreachable HCAs are remembered, and how long their published services are ignored, in seconds.
RDS_DEAD = 4096
RDS_DEAD_SECONDS = 60.0

_LONG_AGO = float("-inf")


@implementer(IRDSMedium)
class RCMedium:
    """
    RDS on an HCA.

    @ivar name: the device's name.
    @ivar traits: facts of the device's fabric.
    @ivar acknowledges: whether messages request acknowledgements: only where Linux may be the peer;
        otherwise each batch is acknowledged.
    @ivar sharesAddresses: whether other processes have the same addresses.
    @ivar network: the sockets that use it.
    @ivar sessions: connected queue pairs, by the peer's GUID or by both addresses.
    @ivar expected: those whose REP was sent and whose RTU is awaited, by the same keys; only where peers are
        IP addresses.  As anybody can forge the addresses of a REQ, they have no queue pair yet; over iWARP
        they have, where the peer may still reject the reply.
    @ivar calls: connection attempts, by the same keys.
    @cvar provider: the provider's name, for C{ib-ss}.
    """

    provider = PROVIDER

    def __init__(self, network: Network, device: str | None = None) -> None:
        self.network = network
        self.name = DEFAULT_DEVICE if device is None else device
        # isPlacedByUser() comes first: it loads the configured devices, which addressOf() then knows.
        self.traits = traits = traitsOf(self.name)
        self.acknowledges = traits.hasAddress
        self.sharesAddresses = not traits.hasAddress
        self._isOfSubnet = traits.peers is Peers.SUBNET
        self.sessions: dict[Any, RCConnection] = {}
        self.expected: dict[Any, Expected] = {}
        self.calls: dict[Any, ConnectAttempt] = {}
        self._domains: dict[Any, DeviceMemory] = {}
        self._laters: dict[RDSPath, PendingCall] = {}
        self._bound: dict[str, dict[int, Any]] = {}
        self._rows: dict[tuple[str, int], tuple[SocketPage, int | None]] = {}
        self._services: dict[Any, Any] = {}
        self._dead: dict[int, float] = {}
        self._listener = RequestListener(self)

    # -- addresses and sockets

    def localAddresses(self) -> list[str]:
        """
        See L{IRDSMedium.localAddresses}: all addresses without a scope.
        """
        own = addressOf(self.name)
        if own is not None:
            return [own]
        found = [address for address in map(normalise, localAddresses()) if "%" not in address]
        return [*found, *self.channel("").device.gids()] if self._isOfSubnet else found

    def sourceFor(self, host: str) -> str:
        """
        See L{IRDSMedium.sourceFor}: the port's own GID for a GID of its subnet.
        """
        if self._isOfSubnet:
            device = self.channel(host).device
            if device.guidOf(host):
                return str(device.gids()[0])
        return sourceFor(host)

    def locate(self, host: str, found: Callable[[str | HCAError], object]) -> None:
        """
        See L{IRDSMedium.locate}.
        """
        resolver = self.channel(host).device.resolver if self._isOfSubnet else None
        if resolver is None or not resolver.sourceFor(host):
            found(host)
            return

        def located(gid: int | HCAError) -> None:
            found(gid if isinstance(gid, HCAError) else normalise(gidText(gid)))

        resolver.locate(host, located)

    def hostNamed(self, name: str) -> str:
        """
        See L{IRDSMedium.hostNamed}: the GID of a node of the subnet.
        """
        return str(self.channel("").device.hostNamed(name)) if self._isOfSubnet else ""

    def unknownHost(self, name: str) -> str:
        """
        See L{IRDSMedium.unknownHost}.
        """
        return str(self.channel("").device.unknownHost(name)) if self._isOfSubnet else ""

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
        for address in self._bound:
            channel = self.channel(address)
            if channel.device is device:
                return channel
        raise NoRouteError("a device that is not ours was called")

    def bind(self, address: str, port: int) -> None:
        """
        See L{IRDSMedium.bind}.
        """
        try:
            channel = self.channel(address)
        except ValueError as reason:
            raise OSError(errno.EADDRNOTAVAIL, str(reason)) from None
        # Allocated now, while it can still fail: RDMA operations of a peer need the domain too.
        self.domainOf(channel.device)
        ports = self._bound.setdefault(address, {})
        try:
            if self.traits.hasAddress:
                if not ports:
                    # Linux rdma_transport.c: one service for all sockets of an address; the REQ names no
                    # RDS port.
                    self._services[address] = channel.device.listen(
                        TCP_SPACE, address, servicePort(address), self._listener
                    )
                service = None
            else:
                service = channel.device.listen(PORT_SPACE, address, port, self._listener)
                if None not in self._services:
                    # The REQ service of this HCA, for all ports; it is reached by GUID, so it is not
                    # published.
                    channel.device.services.serve(SESSIONS, self._listener)
                    self._services[None] = None
        except BaseException:
            if not ports:
                del self._bound[address]
            raise
        ports[port] = service
        channel.acquire(self)
        if channel.shown is not None:
            page = channel.shown.openPage()
            [offset] = page.add(self.name, [(self, address, port, "", 0)])
            self._rows[address, port] = page, offset
        channel.device.counting["rds"] = self.counters

    def unbind(self, address: str, port: int) -> None:
        """
        See L{IRDSMedium.unbind}.
        """
        channel = self.channel(address)
        ports = self._bound[address]
        service = ports.pop(port)
        if service is not None:
            service.close()
        page, offset = self._rows.pop((address, port), (None, None))
        if page is not None and offset is not None:
            page.remove(offset)
        if not ports:
            del self._bound[address]
            if self.traits.hasAddress:
                self._services.pop(address).close()
                channel.release(self)
        if not self.traits.hasAddress and not self._bound:
            self._services.pop(None, None)
            channel.device.services.serveNoMore(SESSIONS)
            channel.release(self)

    def whenQuiet(self) -> Deferred[None]:
        """
        See L{IRDSMedium.whenQuiet}: DREQs that are still to be sent are the device's business.
        """
        for session in [*self.sessions.values(), *self.expected.values()]:
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

    def pathTo(self, address: str, host: str, port: int) -> Route:
        """
        See L{IRDSMedium.pathTo}.
        """
        network = self.network
        if self.traits.hasAddress:
            return network.path((address, host), address, host)
        device = self.channel(host).device
        if port == PING_PORT and device.guidOf(host) in (0, device.guid):
            # Any process answers a ping for the host: one that is connected, or this one.
            for path in network.paths.values():
                if (path.local, path.remote) == (address, host) and path.carrier is not None:
                    return path
            return network.loop(address, host)
        guid = self._servedBy(host, port)
        if guid is None:
            return network.path((address, host, None, port), address, host)
        return network.path((address, host, guid), address, host)

    def _servedBy(self, host: str, port: int) -> int | None:
        channel = self.channel(host)
        device = channel.device
        found = device.fabric.serving(PORT_SPACE << 16 | port, host)
        named = device.guidOf(host)
        if named:
            # Each HCA answers pings, and no other has its GID.
            found = [named] if named in found or port == PING_PORT else []
        # The directory may still name HCAs of dead processes: those that did not answer are skipped for a
        # while.
        for guid in found:
            if channel.now() - self._dead.get(guid, _LONG_AGO) > RDS_DEAD_SECONDS:
                return int(guid)
        return None

    def serves(self, host: str, port: int) -> bool | None:
        """
        @return: whether some process has a port; L{None} if that cannot be known.
        """
        if self.traits.hasAddress:
            # RDS drops messages to unbound ports silently, so another host gives no answer.
            return None
        return (host, port) in self.network.sockets or self._servedBy(host, port) is not None

    def pathOf(self, session: RCConnection, ours: str, theirs: str) -> RDSPath | None:
        """
        Find the path of a peer's messages.

        @return: L{None} if no socket is open here.
        """
        if self.network.dormant:
            return None
        return self.network.path((ours, theirs, session.key), ours, theirs)

    def moved(self) -> None:
        """
        A port is not where it was thought to be: forget all routes.
        """
        self.network.epoch += 1
        self.network._routes.clear()

    def reconnects(self, path: RDSPath) -> bool:
        """
        See L{IRDSMedium.reconnects}: both ends do, as on Linux IB (rds_queue_reconnect).
        """
        return True

    def connect(self, path: RDSPath) -> Any:
        """
        See L{IRDSMedium.connect}.
        """
        self.later(path, self._connect, path)
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

    def _connect(self, path: RDSPath) -> None:
        key = path.key if self.traits.hasAddress else path.key[2]
        if key is None:
            self._find(path)
            return
        session = self.sessions.get(key)
        # Between processes another path may have connected the queue pair already.
        if session is not None and session.isUp and session.loss is None:
            carrier = session.carrier(path)
            if path.carrier is not carrier:
                path.carrierUp(carrier, session.peerHas)
            return
        call = self.calls.get(key)
        if call is None:
            expected = self.expected.get(key)
            # A REP was sent and its RTU is awaited: a REQ of ours would cross it, and Linux would drop the
            # connection that is just coming up (ib_cm.c, rds_ib_cm_handle_connect).
            if expected and self.channel(path.local).now() - expected.asked < RDS_DUEL_SECONDS:
                path.carrierFailed(PathLostError("the peer is connecting"))
                return
            try:
                call = self.calls[key] = ConnectAttempt(self, key, self.channel(path.local))
            except (HCAError, OSError, ValueError) as reason:
                path.carrierFailed(reason)
                return
            call.waiters[path] = None
            call.begin(path)
        else:
            call.waiters[path] = None

    def _find(self, path: RDSPath) -> None:
        port = path.key[3]
        try:
            served = self.serves(path.remote, port)
        except (HCAError, OSError) as reason:
            path.carrierFailed(reason)
            return
        if served:
            self._relocate(path)
        else:
            path.carrierFailed(NoListenerError(f"nobody has port {port} of {path.remote}"))

    def failed(self, path: RDSPath, reason: Exception) -> None:
        """
        A connection attempt for a path failed.
        """
        if not self.traits.hasAddress and isinstance(reason, NoListenerError):
            # The HCA is gone, though its published services may remain.
            if len(self._dead) >= RDS_DEAD:
                # Bounded: the oldest entry is evicted.
                del self._dead[next(iter(self._dead))]
            self._dead[path.key[2]] = self.channel(path.local).now()
            self._relocate(path)
        elif not self.traits.hasAddress and self._hasMoved(path):
            self._relocate(path)
        else:
            path.carrierFailed(reason)

    def _hasMoved(self, path: RDSPath) -> bool:
        # A queued message may be for a port that is served by another HCA now.
        ports = {message.destinationPort for message in path.machine.waiting if message.owner is not None}
        return any(self._servedBy(path.remote, port) != path.key[2] for port in ports)

    def _relocate(self, path: RDSPath) -> None:
        network = self.network
        self.moved()
        if path.held:
            # The dead peer's congestion map would hold messages back for ever.
            path.machine.peerMap = CongestionMap()
            network.congestionChanged(path)
        for message in network.forget(path):
            # New messages for the new path: numbers and flags belonged to the old one.
            message.sequence = 0
            message.flags &= BUNDLE
            try:
                target = network.route(path.local, path.remote, message.destinationPort)
            except (HCAError, OSError):
                message.owner.messageDropped(message)
                continue
            target.send(message)
        if path.key[2] in self._dead:
            # Stream sessions with the dead process end at once, without waiting for their probes.
            for socket in set(network.sockets.values()):
                gone = getattr(getattr(socket, "protocol", None), "processGone", None)
                if gone is not None:
                    gone(path.remote)

    # -- queue pairs

    def checkRoom(self) -> None:
        """
        @raise ResourceLimitError: there are too many queue pairs.
        """
        if len(self.sessions) + len(self.expected) >= RDS_SESSIONS:
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
            self.later(path, self._connect, path)

    def sessionClosed(self, session: RCConnection) -> None:
        """
        A queue pair is closed.
        """
        if self.sessions.get(session.key) is session:
            del self.sessions[session.key]
        self.ceased(session)
        session.channel.release(session)

    # -- queue pairs that peers ask for

    def accepted(self, session: RCConnection, now: float) -> None:
        """
        A REP was sent: the queue pair is connected now, or when L{arrived} is called.
        """
        if self.traits.proof is Proof.DIRECTORY:
            self._begin(session, {})
            return
        session.asked = now
        self.expect(session)
        session.channel.acquire(session)

    def expect(self, session: Expected) -> None:
        """
        A REP was sent whose RTU is awaited; it replaces an older one for the same peer.
        """
        old = self.expected.get(session.key)
        if old is not None:
            # A repeated REQ does not extend the wait: forged ones could keep us from connecting for ever.
            session.asked = old.asked
            old.close()
        self.expected[session.key] = session

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
            self._begin(session, {self.network.path(key, *key): None})
        except HCAError as reason:
            session.broken(reason)

    def _begin(self, session: RCConnection, waiters: dict[RDSPath, None]) -> None:
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
        for session in [*self.sessions.values(), *self.expected.values()]:
            session.broken(PeerGoneError("the device is going"))
        for socket in set(self.network.sockets.values()):
            stop = getattr(socket, "stopListening", None)
            if stop is not None:
                stop()


__all__ = ["PORT_SPACE", "RCMedium"]
