"""
The machine of an IPoIB interface: packets in, packets out, and everything else to the driver.

A packet to a neighbour that is known costs one look-up and one call of the driver, and makes no object but
the octets of its destination; so does one that arrives.  All else, L{Machine._sendOther} and what it calls,
may take its time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from ipaddress import ip_address
from struct import Struct, error
from typing import TYPE_CHECKING, Any, Final

from twisted_ib import limits
from twisted_ib.hca.base.timers import Timers
from twisted_ib.ipoib.protocol import ip
from twisted_ib.ipoib.protocol.connected import Connections, ConnectionState
from twisted_ib.ipoib.protocol.interfaces import Group, Settings
from twisted_ib.ipoib.protocol.multicast import Groups, GroupState, Membership
from twisted_ib.ipoib.protocol.neighbours import Discovery, Input, Neighbour, Neighbours, State
from twisted_ib.ipoib.protocol.peers import Peer, Peers
from twisted_ib.ipoib.protocol.routes import AnyInterface, Routes
from twisted_ib.ipoib.protocol.wire import (
    CONNECTED_BYTES,
    CONNECTED_MTU,
    ENCAPSULATION,
    ENCAPSULATION_BYTES,
    IPV4_HEADER,
    IPV6_HEADER,
    LEAST_ANNOUNCED,
    RC_CAPABLE,
    Buffer,
    EtherType,
    broadcastGID,
    linkLocalInterface,
    multicastGID,
    packHardwareAddress,
)

if TYPE_CHECKING:
    from twisted_ib.ipoib.protocol.interfaces import IMachineDriver
    from twisted_ib.structs import UnpackFrom


#: Where a frame has its destination.
_IPV4_DESTINATION: Final[UnpackFrom[tuple[bytes]]] = Struct(">20x4s").unpack_from
_IPV6_DESTINATION: Final[UnpackFrom[tuple[bytes]]] = Struct(">28x16s").unpack_from
_IPV4_BYTES: Final = ip.IPV4_BYTES
_IPV6_BYTES: Final = ip.IPV6_BYTES
_ICMPV6: Final = ip.ICMPV6
#: First octet of the EtherType of IPv4.
_IPV4_FIRST: Final = IPV4_HEADER[0]
#: EtherType and reserved octets; first octet and length of an IPv4 header; length, next header of IPv6.
_RECEIVED: Final[UnpackFrom[tuple[int, int, int, int, int]]] = Struct(">IBxHHB").unpack_from
_IPV4: Final = EtherType.IPV4 << 16
_IPV6: Final = EtherType.IPV6 << 16
_PLAIN: Final = 0x45
#: Octets of an address of what frames carry.
_OCTETS: Final = {int(EtherType.IPV4): 4, int(EtherType.IPV6): 16}
#: All hosts of a link (RFC 1112), which each interface listens to.
_ALL_HOSTS: Final = bytes((224, 0, 0, 1))


class Machine:
    """
    The machine of one interface.  No method raises for what a peer sends.

    @ivar mtu: the longest packet, octets; 0 until the broadcast group is joined.
    @ivar hardwareAddress: the 20 octets that ARP and ND tell (RFC 4391 section 9.1.1).
    @ivar neighbours: those of this link.
    """

    def __init__(self, driver: IMachineDriver, settings: Settings) -> None:
        self._driver, self._settings = driver, settings
        self._gid = settings.gid
        self._now = 0.0
        self._post, self._postConnected, self._deliver = driver.post, driver.postConnected, driver.deliver
        self.count = driver.count
        self.mtu = 0
        #: Octets of the longest datagram, encapsulation included.
        self._datagramBytes = 0
        capabilities = RC_CAPABLE if settings.isConnected else 0
        self.hardwareAddress = packHardwareAddress(capabilities, settings.qpn, settings.gid)
        #: Neighbours that packets may be sent to without more ado.
        self._ready: dict[bytes, Neighbour] = {}
        self._errors = ip.ICMPErrors(self._clock, driver.count)
        self._timers = Timers(self._clock)
        self._timers.wanted = driver.deadlineChanged
        longest = CONNECTED_BYTES
        if settings.mtu is not None:
            longest = min(longest, max(settings.mtu, LEAST_ANNOUNCED) + ENCAPSULATION_BYTES)
        self._connections = Connections(
            *(self, driver, self._timers, self._clock, (settings.qpn, longest), settings.isConnected)
        )
        self._peers = Peers(self, driver, self._timers)
        self._groups = Groups(self, driver, self._timers, self._clock, broadcastGID(settings.pKey))
        self.neighbours = Neighbours(self, self._timers, self._clock)
        # The link-local address of the GID is always there (RFC 4391 section 8).
        addresses = dict.fromkeys((*settings.addresses, linkLocalInterface(settings.gid)))
        self._routes = Routes(addresses, settings.gateways)
        self._discovery = Discovery(self, self.neighbours, self.hardwareAddress, settings.gid, self._routes)
        solicitedNodes = (ip.solicitedNode(each) for each in self._routes.own if len(each) == 16)
        for group in (_ALL_HOSTS, ip.ALL_NODES, *solicitedNodes):
            self.joinGroup(group)

    def _clock(self) -> float:
        return self._now

    @property
    def addresses(self) -> tuple[AnyInterface, ...]:
        """
        The link-local one included.
        """
        return self._routes.addresses

    # -- packets out

    def send(self, frame: Buffer, now: float) -> None:
        """
        Send a packet with its header in front.

        @param frame: bytes-like; it is copied if it must wait.
        """
        try:
            if frame[0] == _IPV4_FIRST:
                (destination,) = _IPV4_DESTINATION(frame)
            else:
                (destination,) = _IPV6_DESTINATION(frame)
        except (IndexError, error):
            self.count("send_malformed")
            return
        neighbour = self._ready.get(destination)
        if neighbour is None or len(frame) > neighbour.limit:
            self._sendOther(frame, destination, now)
            return
        neighbour.used = now
        if neighbour.handle is None:
            self._post(neighbour.path, neighbour.qpn, frame)
        elif not self._postConnected(neighbour.handle, frame):
            self.count("connected_full")

    def _sendOther(self, frame: Buffer, destination: bytes, now: float) -> None:
        self._now = now
        header = IPV4_HEADER if len(destination) == 4 else IPV6_HEADER
        length = ip.packetLength(frame, ENCAPSULATION_BYTES, len(frame), len(destination))
        if not length or frame[:ENCAPSULATION_BYTES] != header:
            self.count("send_malformed")
            return
        frame = frame[: ENCAPSULATION_BYTES + length]
        if self._groups.broadcast.group is None:
            self.count("not_up")
        elif header is IPV6_HEADER and ip.isDiscovery(frame, ENCAPSULATION_BYTES, len(frame)):
            self.count("nd_of_user")
        elif ip.isMulticast(destination):
            self.multicast(destination, frame)
        elif destination in self._routes.broadcasts:
            self.broadcast(frame)
        elif destination in self._routes.own:
            self._deliver(frame, ENCAPSULATION_BYTES, len(frame))
        else:
            nextHop = self._routes.nextHop(destination)
            if nextHop is None:
                self._report("no_route", frame)
            else:
                self._sendTo(self.neighbours.obtain(nextHop, now), frame)

    def _sendTo(self, neighbour: Neighbour, frame: Buffer) -> None:
        neighbour.used = self._now
        if neighbour.peer is None:
            self._queue(neighbour.waiting, frame)
        else:
            self.neighbours.input(neighbour, Input.SEND)
            self._transmit(neighbour.peer, frame)

    def _transmit(self, peer: Peer, frame: Buffer) -> None:
        port = peer.port
        if port.path is None and not self._peers.resolve(port):
            self._report("neighbour_failed", frame)
            return
        if port.path is None:
            self._queue(peer.waiting, frame)
            return
        self._connections.want(peer)
        size = len(frame)
        isConnected = peer.state is ConnectionState.CONNECTED
        if isConnected and size <= peer.mtu + ENCAPSULATION_BYTES:
            if not self._postConnected(peer.handle, frame):
                self.count("connected_full")
        elif size <= self._datagramBytes:
            self._post(port.path, peer.qpn, frame)
        elif not isConnected and self._connections.isPossible(peer):
            self._queue(peer.waiting, frame)
        else:
            limit = peer.mtu if isConnected else self._datagramBytes - ENCAPSULATION_BYTES
            self._sendLong(frame, limit, partial(self._transmit, peer))

    def _sendLong(self, frame: Buffer, mtu: int, send: Callable[[bytes], None]) -> None:
        if ip.mayFragment(frame, ENCAPSULATION_BYTES):
            for piece in ip.fragments(frame[ENCAPSULATION_BYTES:], mtu):
                send(IPV4_HEADER + piece)
        else:
            self._report("fragmentation_needed", frame, mtu)

    def _wait(self, waiting: list[bytes], frame: Buffer, counter: str) -> None:
        if len(waiting) < limits.IPOIB_WAITING:
            waiting.append(bytes(frame))
        else:
            self.count(counter)

    def _queue(self, waiting: list[bytes], frame: Buffer) -> None:
        waiting.append(bytes(frame))
        size = sum(max(len(each), limits.IPOIB_WAITING_LEAST) for each in waiting)
        while size > limits.IPOIB_WAITING_BYTES:
            size -= max(len(waiting.pop(0)), limits.IPOIB_WAITING_LEAST)
            self.count("neighbour_waiting")

    def _report(self, counter: str, frame: Buffer, mtu: int = 0) -> None:
        # A packet is dropped, and its sender is told by ICMP.
        self.count(counter)
        isNeighbour = counter == "neighbour_failed"
        packet = self._errors.about(frame[ENCAPSULATION_BYTES:], self._routes, isNeighbour, mtu)
        if packet is not None:
            self._deliver(packet, 0, len(packet))

    # -- to groups

    def broadcast(self, frame: Buffer) -> None:
        """
        Send to all.
        """
        self._sendToGroup(self._groups.broadcast, frame)

    def multicast(self, group: bytes, frame: Buffer) -> None:
        """
        Send to an IP group.
        """
        self._sendToGroup(self._groups.obtain(self._mgid(group), self._now), frame)

    def _sendToGroup(self, membership: Membership | None, frame: Buffer) -> None:
        if membership is None:
            self.count("group_waiting")
        elif membership.group is not None:
            group = membership.group
            if len(frame) <= group.mtu:
                self._driver.postGroup(group, frame)
            else:
                post = partial(self._driver.postGroup, group)
                self._sendLong(frame, group.mtu - ENCAPSULATION_BYTES, post)
        elif membership.state is GroupState.FAILED:
            self.count("group_failed")
        else:
            self._wait(membership.waiting, frame, "group_waiting")

    def joinGroup(self, group: bytes) -> None:
        """
        Receive what is sent to an IP multicast address.  Joins are counted.

        @param group: 4 or 16 octets.
        @raise ValueError: it is no multicast address.
        @raise ResourceLimitError: there are too many groups.
        """
        if not ip.isMulticast(group):
            raise ValueError(f"{ip_address(group)} is not a multicast address")
        self._groups.want(self._mgid(group))

    def leaveGroup(self, group: bytes) -> None:
        """
        Undo one C{joinGroup}.  A group that was not joined is ignored.
        """
        self._groups.unwant(self._mgid(group))

    def _mgid(self, group: bytes) -> int:
        return multicastGID(group, self._settings.pKey)

    def joined(self, mgid: int, group: Group, now: float) -> None:
        """
        Answer of L{IMachineDriver.join}: a L{Group}.
        """
        self._now = now
        self._groups.joined(mgid, group)

    def joinFailed(self, mgid: int, error: Exception, now: float) -> None:
        """
        A group could not be joined, or its membership was lost.
        """
        self._now = now
        self._groups.failed(mgid, error)
        if self._groups.broadcast.group is None:
            self._ready.clear()

    def groupJoined(self, membership: Membership) -> None:
        """
        A group is joined, or has other values.
        """
        group = membership.group
        if membership is self._groups.broadcast and group is not None:
            longest = CONNECTED_MTU if self._settings.isConnected else group.mtu - ENCAPSULATION_BYTES
            self.mtu = longest if self._settings.mtu is None else min(longest, self._settings.mtu)
            self._datagramBytes = group.mtu
            for each in self.neighbours.entries.values():
                self.stateChanged(each)
            self._driver.interfaceUp(self.mtu)
            self._discovery.announce()
        waiting, membership.waiting = membership.waiting, []
        for frame in waiting:
            self._sendToGroup(membership, frame)

    # -- packets in

    def datagramReceived(self, sourceGID: int, buffer: Buffer, start: int, stop: int, now: float) -> None:
        """
        A frame arrived at the UD queue pair.

        @param sourceGID: 0 where the datagram has no GRH.
        """
        if sourceGID == self._gid:
            self.count("own_source")
            return
        at = start + ENCAPSULATION_BYTES
        if stop - at >= _IPV4_BYTES:
            kind, first, length, payload, above = _RECEIVED(buffer, start)
            if kind == _IPV4 and first == _PLAIN and _IPV4_BYTES <= length <= stop - at:
                self._deliver(buffer, at, at + length)
                return
            length = payload + _IPV6_BYTES
            if kind == _IPV6 and first >> 4 == 6 and length <= stop - at and above != _ICMPV6:
                self._deliver(buffer, at, at + length)
                return
        self._receivedOther(sourceGID, buffer, start, stop, now)

    def _receivedOther(self, sourceGID: int, buffer: Buffer, start: int, stop: int, now: float) -> None:
        self._now = now
        etherType, reserved = 0, 0
        if stop - start >= ENCAPSULATION_BYTES:
            etherType, reserved = ENCAPSULATION.unpack_from(buffer, start)
        start += ENCAPSULATION_BYTES
        octets = _OCTETS.get(etherType)
        if reserved or (octets is None and etherType != EtherType.ARP):
            self.count("encapsulation")
        elif octets is None:
            self._discovery.arpReceived(sourceGID, buffer, start, stop, now)
        else:
            length = ip.packetLength(buffer, start, stop, octets)
            stop = start + length
            if not length:
                self.count("ip_malformed")
            elif octets == 16 and ip.isDiscovery(buffer, start, stop):
                self._discovery.messageReceived(sourceGID, buffer, start, stop, now)
            else:
                self._deliver(buffer, start, stop)

    # -- neighbours and their ports

    def lookup(self, address: bytes, now: float) -> None:
        """
        Resolve an IP address without a packet: its own, if it is on this link, or its gateway's.  It is
        answered by L{IMachineDriver.found} or L{IMachineDriver.notFound}, perhaps before this returns.
        """
        self._now = now
        if address in self._routes.own:
            self._driver.found(address, self.hardwareAddress, None)
            return
        nextHop = None
        if self._groups.broadcast.group is not None:
            nextHop = self._routes.nextHop(address)
        if nextHop is None or not self._routes.isOnLink(nextHop):
            self._driver.notFound(address)
            return
        neighbour = self.neighbours.obtain(nextHop, now)
        neighbour.used = now
        if address not in neighbour.lookups:
            if len(neighbour.lookups) >= limits.IPOIB_LOOKUPS:
                self._driver.notFound(address)
                return
            neighbour.lookups.append(address)
        if neighbour.peer is not None:
            self.neighbours.input(neighbour, Input.SEND)
            self._answerLookups(neighbour)

    def _answerLookups(self, neighbour: Neighbour) -> None:
        peer = neighbour.peer
        if peer is None or not neighbour.lookups:
            return
        isFailed = peer.port.path is None and not self._peers.resolve(peer.port)
        if peer.port.path is not None or isFailed:
            lookups, neighbour.lookups = neighbour.lookups, []
            for each in lookups:
                if isFailed:
                    self._driver.notFound(each)
                else:
                    self._driver.found(each, neighbour.hardware, peer.port.path)

    def solicit(self, neighbour: Neighbour, isUnicast: bool) -> None:
        """
        Ask a neighbour, or all, for its hardware address.
        """
        self._discovery.solicit(neighbour, isUnicast)

    def isHeard(self, neighbour: Neighbour, since: float) -> bool:
        """
        Whether packets have arrived on a connection from a neighbour.
        """
        return neighbour.peer is not None and self._connections.isHeard(neighbour.peer, since)

    def request(self, peer: Peer, frame: bytes) -> None:
        """
        Send to one interface, as a datagram.
        """
        if peer.port.path is None and self._peers.resolve(peer.port) and peer.port.path is None:
            self._wait(peer.requests, frame, "neighbour_waiting")
        elif peer.port.path is not None:
            self._post(peer.port.path, peer.qpn, frame)

    def learned(self, neighbour: Neighbour) -> None:
        """
        The hardware address of a neighbour is known, or confirmed, or another.
        """
        peer = self._peers.attach(neighbour)
        if not peer.capabilities & RC_CAPABLE:
            self._connections.drop(peer)
        self.stateChanged(neighbour)
        waiting, neighbour.waiting = neighbour.waiting, []
        for frame in waiting:
            self._transmit(peer, frame)
        if peer.port.path is not None and neighbour.state is State.REACHABLE:
            # It is in use: packets are sent without a look at whether a connection might be made.
            self._connections.want(peer)
        self._answerLookups(neighbour)

    def stateChanged(self, neighbour: Neighbour) -> None:
        """
        Packets to a neighbour go elsewhere, or are to be looked at again.
        """
        peer, isDown = neighbour.peer, self._groups.broadcast.group is None
        if isDown or peer is None or peer.port.path is None or neighbour.state is State.STALE:
            self._ready.pop(neighbour.address, None)
            return
        isConnected = peer.state is ConnectionState.CONNECTED
        neighbour.handle = peer.handle if isConnected else None
        neighbour.limit = peer.mtu + ENCAPSULATION_BYTES if isConnected else self._datagramBytes
        neighbour.path, neighbour.qpn = peer.port.path, peer.qpn
        self._ready[neighbour.address] = neighbour

    def forgotten(self, neighbour: Neighbour, isFailed: bool) -> None:
        """
        A neighbour is in the table no more.
        """
        self._ready.pop(neighbour.address, None)
        self._peers.detach(neighbour)
        lookups, neighbour.lookups = neighbour.lookups, []
        for address in lookups:
            self._driver.notFound(address)
        for frame in neighbour.waiting:
            if isFailed:
                self._report("neighbour_failed", frame)
            else:
                self.count("neighbour_waiting")

    def pathResolved(self, gid: int, path: Any, now: float) -> None:
        """
        Answer of L{IMachineDriver.resolve}; also, unasked, a new path to a port.
        """
        self._now = now
        self._peers.resolved(gid, path)

    def pathFailed(self, gid: int, now: float) -> None:
        """
        Answer of L{IMachineDriver.resolve}: there is no path.
        """
        self._now = now
        self._peers.failed(gid)

    def pathChanged(self, peer: Peer) -> None:
        """
        There is a path to a peer, or another one, or there is none for now.
        """
        requests, peer.requests = peer.requests, []
        for frame in requests:
            self.request(peer, frame)
        self.modeChanged(peer)
        for neighbour in list(peer.neighbours):
            self._answerLookups(neighbour)

    def peerForgotten(self, peer: Peer) -> None:
        """
        A peer has no neighbours any more.
        """
        waiting, peer.waiting = peer.waiting, []
        for _ in waiting:
            self.count("neighbour_waiting")
        self._connections.drop(peer)

    def modeChanged(self, peer: Peer) -> None:
        """
        Packets to a peer go, or do not go, on a connection, or take another path.
        """
        for each in peer.neighbours:
            self.stateChanged(each)
        waiting, peer.waiting = peer.waiting, []
        for frame in waiting:
            self._transmit(peer, frame)

    # -- connections

    def connected(self, handle: Any, privateData: bytes, now: float) -> None:
        """
        Answer of L{IMachineDriver.connect}: the private data is that of the REP.
        """
        self._now = now
        self._connections.connected(handle, privateData)

    def connectFailed(self, handle: Any, now: float) -> None:
        """
        Answer of L{IMachineDriver.connect}: refused, or not answered.
        """
        self._now = now
        self._connections.failed(handle)

    def connectionRequested(self, handle: Any, gid: int, privateData: bytes, now: float) -> bytes | None:
        """
        A peer asks for a connection, on which only the peer sends.

        @param gid: the peer's port.
        @param privateData: of the REQ.
        @return: the private data of the REP; L{None} to refuse.
        """
        self._now = now
        return self._connections.requested(handle, gid, privateData)

    def connectedReceived(self, handle: Any, buffer: Buffer, start: int, stop: int, now: float) -> None:
        """
        A frame arrived on a connection that was accepted.
        """
        incoming = self._connections.incoming.get(handle)
        if incoming is None:
            return
        incoming.used = now
        if stop - start > self._connections.longest:
            self._now = now
            self.count("connected_too_long")
            self._connections.reject(handle)
            return
        self.datagramReceived(incoming.source[0], buffer, start, stop, now)

    def connectionEnded(self, handle: Any, now: float) -> None:
        """
        A connection of either direction was ended by the peer, or failed.
        """
        self._now = now
        peer = self._connections.ended(handle)
        if peer is not None:
            # The peer may have been restarted.
            for each in list(peer.neighbours):
                self.neighbours.input(each, Input.DOUBT)

    # -- the interface

    def begin(self, now: float) -> None:
        """
        Join the broadcast group, and all else when that is done.
        """
        self._now = now
        self._groups.begin()

    def subnetChanged(self, now: float) -> None:
        """
        Ports may have other LIDs: all paths are resolved again.  Groups are rejoined by who has joined them.
        """
        self._now = now
        self._peers.renew()

    def deadline(self) -> float | None:
        """
        @return: when C{tick} is to be called, or L{None}.
        """
        return self._timers.deadline()

    def tick(self, now: float) -> None:
        """
        Do what is due.
        """
        self._now = now
        self._timers.tick(now)

    def close(self, now: float) -> None:
        """
        Leave all groups and end all connections.  Packets that come later are counted, and dropped.
        """
        self._now = now
        for neighbour in list(self.neighbours.entries.values()):
            self.neighbours.forget(neighbour)
        self._connections.close()
        self._groups.close()
