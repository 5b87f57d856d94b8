"""
The interfaces that neighbours have, and the paths to their ports.

A port is known by its GID, and its path is asked for once, whatever number of interfaces it has: one that was
restarted has another queue pair, and is another interface.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import define, field

from twisted_ib import limits
from twisted_ib.ipoib.protocol.connected import ConnectionState
from twisted_ib.ipoib.protocol.neighbours import State
from twisted_ib.ipoib.protocol.wire import parseHardwareAddress

if TYPE_CHECKING:
    from twisted_ib.hca.base.timers import Timer, Timers
    from twisted_ib.ipoib.protocol import machine
    from twisted_ib.ipoib.protocol.interfaces import IMachineDriver
    from twisted_ib.ipoib.protocol.neighbours import Neighbour


@define(eq=False, repr=False, weakref_slot=False)
class Peer:
    """
    An interface of a port.

    @ivar capabilities: of its hardware address.
    @ivar qpn: its UD queue pair.
    @ivar neighbours: its IP addresses.
    @ivar waiting: frames that wait for the path, or for the connection.
    @ivar requests: of them those of ARP and neighbour discovery, which are sent as datagrams.
    @ivar state: of the connection to it.
    @ivar handle: of that connection, in CONNECTING and CONNECTED.
    @ivar mtu: the longest packet of the connection.
    """

    port: PeerPort
    qpn: int
    capabilities: int = 0
    neighbours: list[Neighbour] = field(factory=list)
    waiting: list[bytes] = field(factory=list)
    requests: list[bytes] = field(factory=list)
    state: ConnectionState = ConnectionState.IDLE
    handle: Any = None
    mtu: int = 0
    connectionTimer: Timer | None = None


@define(eq=False, repr=False, weakref_slot=False)
class PeerPort:
    """
    A port of a GID.

    @ivar path: as the driver has given it; L{None} while there is none.
    @ivar peers: its interfaces.
    """

    gid: int
    path: Any = None
    isResolving: bool = False
    #: Whether the subnet has changed since the path was asked for.
    isOutdated: bool = False
    peers: list[Peer] = field(factory=list)
    backoff: float = field(factory=lambda: limits.IPOIB_BACKOFF_LEAST)
    #: Runs while the path is not to be asked for again.
    timer: Timer | None = None


class Peers:
    """
    The peers of one interface: no more than it has neighbours.
    """

    def __init__(self, user: machine.Machine, driver: IMachineDriver, timers: Timers) -> None:
        self._user, self._driver, self._timers = user, driver, timers
        self._ports: dict[int, PeerPort] = {}

    def __len__(self) -> int:
        return sum(len(port.peers) for port in self._ports.values())

    def attach(self, neighbour: Neighbour) -> Peer:
        """
        A neighbour has a hardware address: set its C{peer}.

        @return: that peer.
        """
        capabilities, qpn, gid = parseHardwareAddress(neighbour.hardware)
        port = self._ports.get(gid)
        if port is None:
            port = self._ports[gid] = PeerPort(gid)
        peer = next((each for each in port.peers if each.qpn == qpn), None)
        if peer is None:
            peer = Peer(port, qpn)
            port.peers.append(peer)
        # Any port may claim an address of its own and name this peer: capabilities are taken away only by an
        # answer that was asked for, and if no other address has them.
        isLess = bool(peer.capabilities & ~capabilities)
        more = [each for each in peer.neighbours if each.hardware[0] & ~capabilities]
        if not isLess or (neighbour.state is State.REACHABLE and not more):
            peer.capabilities = capabilities
        previous = neighbour.peer
        if previous is not peer:
            neighbour.peer = peer
            peer.neighbours.append(neighbour)
            if previous is not None:
                self._removed(previous, neighbour)
        elif neighbour.tries:
            # It was asked alone, and has answered only what all were asked: the path may be another.
            self.resolve(port)
        return peer

    def detach(self, neighbour: Neighbour) -> None:
        """
        A neighbour was forgotten.
        """
        peer, neighbour.peer = neighbour.peer, None
        if peer is not None:
            self._removed(peer, neighbour)

    def _removed(self, peer: Peer, neighbour: Neighbour) -> None:
        peer.neighbours.remove(neighbour)
        if peer.neighbours:
            return
        port = peer.port
        port.peers.remove(peer)
        if not port.peers:
            del self._ports[port.gid]
            if port.timer is not None:
                port.timer.cancel()
        self._user.peerForgotten(peer)

    # -- paths

    def resolve(self, port: PeerPort) -> bool:
        """
        Ask for the path of a port, unless that is under way.

        @return: False if it has failed, just now or a short time ago.
        """
        if port.timer is None and not port.isResolving:
            port.isResolving, port.isOutdated = True, False
            self._driver.resolve(port.gid)
        return port.timer is None

    def resolved(self, gid: int, path: Any) -> None:
        """
        There is a path.
        """
        port = self._ports.get(gid)
        if port is None:
            return
        if port.timer is not None:
            port.timer.cancel()
        port.path, port.isResolving, port.timer = path, False, None
        port.backoff = limits.IPOIB_BACKOFF_LEAST
        if port.isOutdated:
            self.resolve(port)
        for each in list(port.peers):
            self._user.pathChanged(each)

    def failed(self, gid: int) -> None:
        """
        There is none.  One that is known is used until there is another: subnet administration may be slow.
        """
        port = self._ports.get(gid)
        if port is None or not port.isResolving:
            return
        port.isResolving = False
        if port.isOutdated:
            self.resolve(port)
            return
        port.timer = self._timers.start(port.backoff, lambda: self._again(port))
        port.backoff = min(2 * port.backoff, limits.IPOIB_BACKOFF_SECONDS)
        if port.path is None:
            for each in list(port.peers):
                self._user.pathChanged(each)

    def _again(self, port: PeerPort) -> None:
        port.timer = None
        if port.path is not None:
            self.resolve(port)

    def renew(self) -> None:
        """
        All paths may be others.
        """
        for port in list(self._ports.values()):
            if port.timer is not None:
                port.timer.cancel()
                port.timer = None
            port.isOutdated = port.isResolving
            if port.path is not None:
                self.resolve(port)
