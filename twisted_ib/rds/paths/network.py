"""
The state that all RDS sockets of one process share on one device: paths, congestion maps, counters.

It outlives its sockets: sequence numbers continue when another socket is opened, so that a peer's
retransmissions are recognised.  Without a socket it has no connection, and nothing in the reactor.
L{networkRows} are the rows that C{ib-ss} shows of it.

The counters are under the kernel's names: Linux 6.1 C{net/rds/stats.c} (C{rds-info -c} shows them), of which
those are kept that mean something here.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.errors import ResourceLimitError, ServiceInUseError
from twisted_ib.hca.base.socketrows import CONNECTION, LISTEN, LISTENER, Row
from twisted_ib.internet.addressing.addresses import withPort
from twisted_ib.rds.paths.loopback import RDSLoopbackPath
from twisted_ib.rds.paths.path import RDSPath
from twisted_ib.rds.protocol.congestion import PORTS, CongestionMap
from twisted_ib.rds.protocol.wire import LOWEST_PORT, Fields

if TYPE_CHECKING:
    from twisted.internet.base import ReactorBase

    from twisted_ib.rds.paths.carrier import IRDSMedium
    from twisted_ib.rds.paths.path import RDSPath
    from twisted_ib.rds.protocol.machine import RDSMessage

#: The kernel's names, in the order of C{struct rds_statistics} in Linux rds.h.
KERNEL_COUNTERS = (
    "conn_reset",
    "recv_drop_bad_checksum",
    "recv_drop_old_seq",
    "recv_drop_no_sock",
    "recv_drop_dead_sock",
    "recv_delivered",
    "recv_queued",
    "recv_ack_required",
    "recv_rdma_bytes",
    "recv_ping",
    "send_queue_empty",
    "send_queue_full",
    "send_ack_required",
    "send_queued",
    "send_rdma",
    "send_rdma_bytes",
    "send_pong",
    "cong_update_queued",
    "cong_update_received",
    "cong_send_error",
    "cong_send_blocked",
)

#: Our own: malformed input from peers, requests beyond a limit, and our own drops.
OWN_COUNTERS = (
    "recv_bad_length",
    "recv_bad_extension",
    "recv_bad_map",
    "recv_bad_port",
    "recv_bad_ack",
    "recv_bad_frame",
    "recv_bad_request",
    "recv_drop_no_room",
    "send_drop_pong",
    "send_drop_closed",
    "send_retransmitted",
    "peer_restarted",
    "recv_handed_on",
    "send_handed_on",
    "recv_handed_late",
)

#: Of streams (L{twisted_ib.rds.protocol.streams}): datagrams that are no frames or match no session, and
#: streams that were refused or lost.
STREAM_COUNTERS = (
    "stream_plain_datagrams",
    "stream_bad_frames",
    "stream_bad_version",
    "stream_unknown_session",
    "stream_too_many",
    "stream_answers_dropped",
    "stream_overheld",
    "stream_unreachable",
    "stream_stalled",
)

PROVIDER = "rds"
#: A socket that is marked in the congestion map, and a path with messages held back for a congested port.
CONGESTED = "CONGESTED"
#: A path without a connection, wanted or not, and one with; under the names that ss(8) knows from TCP.
CONNECTING, DOWN, UP = "SYN_SENT", "CLOSE", "ESTABLISHED"

_random = secrets.SystemRandom()

#: What leads to another socket.
Route = RDSPath | RDSLoopbackPath


def newCounters() -> dict[str, int]:
    """
    @return: all counters at zero.
    """
    return dict.fromkeys(KERNEL_COUNTERS + OWN_COUNTERS + STREAM_COUNTERS, 0)


def networkRows(network: Network) -> Iterator[Row]:
    """
    @return: a row for each address of a socket, with the bytes sent and not acknowledged, and one for
        each path in use.
    """
    for (address, port), socket in list(network.sockets.items()):
        queued = getattr(socket, "queued", None)
        # A ping has an entry in C{sockets} while it waits, but is no socket.
        if queued is not None:
            state = CONGESTED if port in network.mapOf(address) else LISTEN
            yield Row(LISTENER, PROVIDER, withPort(address, port), None, state, None, queued())
    for path in list(network.paths.values()):
        yield _pathRow(path)


def _pathRow(path: RDSPath) -> Row:
    machine = path.machine
    state = DOWN if path.since is None else CONNECTING
    if path.carrier is not None:
        state = CONGESTED if path.held else UP
    flight = sum(each.size for queue in (machine.waiting, machine.unacknowledged) for each in queue)
    return Row(CONNECTION, PROVIDER, path.local, path.remote, state, None, flight, machine.repeated)


class Network:
    """
    The sockets of one process on one device.

    @ivar reactor: the reactor; all calls are made in its thread.
    @ivar medium: makes connections, an L{IRDSMedium<twisted_ib.rds.paths.carrier.IRDSMedium>}.
    @ivar generation: GEN_NUM of this RDS instance, which peers are told.
    @ivar counters: those of L{newCounters}.
    @ivar sockets: by address and port.
    @ivar paths: by the medium's key.
    @ivar loopbackPaths: loopback paths, by our two addresses.
    @ivar dormant: whether no socket is open.
    @ivar epoch: changes whenever cached routes become invalid.
    """

    def __init__(
        self,
        reactor: ReactorBase,
        medium: Callable[[Network], IRDSMedium],
        random: Callable[[], float] = _random.random,
        below: Callable[[int], int] = secrets.randbelow,
    ) -> None:
        """
        @param reactor: provides C{IReactorTime}, and what the medium needs.
        @param medium: makes the medium.
        @param random: gives a float from 0 to 1.
        @param below: gives a random integer below another.
        """
        self.reactor = reactor
        self.random = random
        self.below = below
        # Random, as Linux's is for each boot (rds_gen_num); 0 means unknown.
        self.generation = 1 + below(0xFFFFFFFF)
        self.counters = newCounters()
        self.sockets: dict[tuple[str, int], Any] = {}
        self.paths: dict[Hashable, RDSPath] = {}
        self.loopbackPaths: dict[tuple[str, str], RDSLoopbackPath] = {}
        self.dormant = True
        self._maps: dict[str, CongestionMap] = {}
        self._routes: dict[tuple[str, str, int], Route] = {}
        self.epoch = 0
        self.medium = medium(self)
        self._shared: bool = self.medium.sharesAddresses

    # -- sockets

    def bind(self, addresses: list[str], port: int, socket: Any) -> int:
        """
        Bind a port for a socket, on each of the addresses.

        @param port: 2 to 65535, or 0 for any.
        @return: the port.
        @raise ServiceInUseError: it is in use.
        @raise ResourceLimitError: there are too many sockets.
        @raise OSError: an address is not local, or cannot be bound.
        """
        if len(self.sockets) + len(addresses) > limits.RDS_SOCKETS:
            raise ResourceLimitError("too many sockets of RDS")
        if port:
            self._bindAll(addresses, port, socket)
            return port
        for attempt in range(limits.PORT_ATTEMPTS, -1, -1):
            # Random, as Linux bind.c does (rds_add_bound): ports are hard to guess, and a late message for
            # a closed socket rarely meets a new one.
            port = LOWEST_PORT + self.below(PORTS - LOWEST_PORT)
            try:
                self._bindAll(addresses, port, socket)
                return port
            except ServiceInUseError:
                if not attempt:
                    raise
        raise AssertionError

    def _bindAll(self, addresses: list[str], port: int, socket: Any) -> None:
        if any((address, port) in self.sockets for address in addresses):
            raise ServiceInUseError(f"port {port} is taken")
        bound: list[str] = []
        try:
            for address in addresses:
                self.medium.bind(address, port)
                bound.append(address)
        except BaseException:
            for address in bound:
                self.medium.unbind(address, port)
            raise
        for address in addresses:
            self.sockets[address, port] = socket
        self.dormant = False
        self.reroute()

    def unbind(self, addresses: list[str], port: int) -> None:
        """
        Release a socket's port.
        """
        for address in addresses:
            del self.sockets[address, port]
            # Linux cong.c (rds_cong_remove_socket): the next owner of the port must not inherit the mark.
            self.setCongested(address, port, False)
            self.medium.unbind(address, port)
        self.reroute()
        if not any(port >= LOWEST_PORT for _, port in self.sockets):
            self._sleep()

    def _sleep(self) -> None:
        self.dormant = True
        for path in list(self.paths.values()):
            path.close()
        for loop in self.loopbackPaths.values():
            loop.close()

    def isOurs(self, address: str) -> bool:
        """
        @return: whether a socket of this process has an address.
        """
        return any(bound == address for bound, _ in self.sockets)

    def freePort(self, address: str) -> int:
        """
        @return: a random free port, for the answer to a ping.
        @raise ResourceLimitError: none was found.
        """
        for _ in range(limits.PORT_ATTEMPTS):
            port = LOWEST_PORT + self.below(PORTS - LOWEST_PORT)
            if (address, port) not in self.sockets:
                return port
        raise ResourceLimitError("no port is free")

    # -- paths

    def reroute(self) -> None:
        """
        Sockets have come or gone: look for all of them again.
        """
        self.epoch += 1
        self._routes.clear()

    def route(self, address: str, host: str, port: int) -> Route:
        """
        Find the path to a socket.

        @param address: the sender's address, one of ours.
        @param host: the receiver's address.
        @param port: the receiver's port.
        @raise ResourceLimitError: there are too many paths, and all are in use.
        """
        key = address, host, port
        found: Route | None = self._routes.get(key)
        if found is not None and not found.closed:
            return found
        # Linux tcp.c prefers loopback for the host's own addresses (t_prefer_loopback).  Where processes
        # share addresses it is right for our own sockets only.
        isHere = not self._shared and (host == address or self.isOurs(host))
        relay = self.medium.relay
        if isHere and relay is not None:
            isHere = not relay.isElsewhere(host, port)
        if isHere or (host, port) in self.sockets:
            found = self.loop(address, host)
        else:
            found = self.medium.pathTo(address, host, port)
        # A cache: starting over is cheaper than tracking its oldest entry for each message.
        if len(self._routes) >= limits.RDS_ROUTES:
            self._routes.clear()
        self._routes[key] = found
        return found

    def loop(self, address: str, host: str) -> RDSLoopbackPath:
        """
        @return: the loopback path between two of our addresses.
        """
        found = self.loopbackPaths.get((address, host))
        if found is None:
            found = self.loopbackPaths[address, host] = RDSLoopbackPath(self, address, host)
        return found

    def path(self, key: Hashable, local: str, remote: str) -> RDSPath:
        """
        Find a path, or make one.

        @param key: its key in the medium.
        @param local: our address.
        @param remote: the peer's.
        @raise ResourceLimitError: there are too many, and all are in use.
        """
        found = self.paths.get(key)
        if found is None:
            if len(self.paths) >= limits.RDS_PATHS:
                self._forgetIdle()
            found = self.paths[key] = RDSPath(self, self.medium, key, local, remote)
        return found

    def _forgetIdle(self) -> None:
        # The oldest idle path is evicted.
        for path in self.paths.values():
            if path.carrier is None and not path.needed():
                self.forget(path)
                return
        raise ResourceLimitError("too many paths of RDS")

    def forget(self, path: RDSPath) -> list[RDSMessage]:
        """
        Forget a path whose peer process is gone for good.

        @return: its queued messages.
        """
        path.close()
        path.closed = True
        self.paths.pop(path.key, None)
        waiting = [message for message in path.machine.waiting if message.owner is not None]
        path.machine.waiting.clear()
        return waiting

    def routes(self) -> list[Route]:
        """
        @return: all paths that its sockets may have messages on.
        """
        relay = self.medium.relay
        shared = [] if relay is None else relay.paths.values()
        return [*self.paths.values(), *self.loopbackPaths.values(), *shared]

    # -- congestion maps

    def mapOf(self, address: str) -> CongestionMap:
        """
        @return: the congestion map of one of our addresses.
        """
        found = self._maps.get(address)
        if found is None:
            found = self._maps[address] = CongestionMap()
        return found

    def setCongested(self, address: str, port: int, congested: bool) -> None:
        """
        Mark or clear a port of ours, and send the map to all peers.
        """
        self.remap(address, {port} if congested else set(), set() if congested else {port})

    def remap(self, address: str, congested: set[int], cleared: set[int]) -> None:
        """
        Mark and clear ports of ours, and send the map once to all peers.
        """
        ports = self.mapOf(address)
        isMarked = sum(map(ports.mark, congested))
        isCleared = sum(map(ports.clear, cleared))
        if not isMarked and not isCleared:
            return
        for path in self.routes():
            if path.local == address and isinstance(path, RDSPath):
                path.mapChanged()
        if isCleared:
            for loop in list(self.loopbackPaths.values()):
                if loop.remote == address:
                    self.congestionChanged(loop)

    def congestionChanged(self, path: Route) -> None:
        """
        Ports of a peer may have been cleared: let sockets send what they hold back.
        """
        relay = self.medium.relay
        if relay is not None:
            relay.mapChanged(path)
        if path.held:
            for socket in set(self.sockets.values()):
                socket.portsCleared(path)

    # -- receiving

    def deliver(self, path: Route, fields: Fields, payload: bytes) -> None:
        """
        Deliver a message to its socket.
        """
        socket = self.sockets.get((path.local, fields[4]))
        if socket is None:
            relay = self.medium.relay
            if relay is not None and relay.handIn(self, path, fields, payload):
                return
            # Linux recv.c: dropped silently, but acknowledged; the sender's path must not stop for it.
            self.counters["recv_drop_no_sock"] += 1
            return
        socket.messageReceived(path, fields, payload)

    def peerGone(self, path: RDSPath, reason: Exception) -> None:
        """
        A peer has been unreachable for long, and messages wait for it.
        """
        for socket in set(self.sockets.values()):
            socket.peerGone(path, reason)
