"""
What all sockets of one process share on one device: paths, congestion maps, counters.

It outlives its sockets: the numbers of its paths go on when another socket is opened, so that a
peer's repetitions are known.  Without a socket it has no connection, and nothing in the reactor.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Hashable
from typing import Any
from weakref import WeakKeyDictionary

from twisted_ib import limits
from twisted_ib.errors import ResourceLimitError, ServiceInUseError
from twisted_ib.rds.media.loopback import RDSLoopbackPath
from twisted_ib.rds.paths.path import RDSPath
from twisted_ib.rds.protocol.congestion import PORTS, CongestionMap
from twisted_ib.rds.protocol.counters import newCounters
from twisted_ib.rds.protocol.wire import LOWEST_PORT, Fields

_random = secrets.SystemRandom()


class Network:
    """
    The sockets of one process on one device.

    @ivar reactor: gives the time.
    @ivar medium: what makes connections, an
        L{IRDSMedium<twisted_ib.rds.paths.carrier.IRDSMedium>}.
    @ivar generation: the number of this instance of RDS, which peers are told.
    @ivar counters: what happened, see L{twisted_ib.rds.protocol.counters}.
    @ivar sockets: by address and port.
    @ivar paths: by the medium's key.
    @ivar loops: the paths that do not leave this process, by our two addresses.
    @ivar dormant: whether there is no socket.
    @ivar epoch: how often sockets came and went, and with them the ways between addresses.
    @ivar random: gives a float from 0 to 1.
    """

    def __init__(
        self,
        reactor: Any,
        medium: Callable[[Network], Any],
        random: Callable[[], float] = _random.random,
        below: Callable[[int], int] = secrets.randbelow,
    ) -> None:
        """
        @param reactor: Provides C{IReactorTime}, and what the medium needs.
        @param medium: Makes the medium.
        @param random: Gives a float from 0 to 1.
        @param below: Gives a random integer below another.
        """
        self.reactor = reactor
        self.random = random
        self.below = below
        self.generation = 1 + below(0xFFFFFFFF)
        self.counters = newCounters()
        self.sockets: dict[tuple[str, int], Any] = {}
        self.paths: dict[Hashable, RDSPath] = {}
        self.loops: dict[tuple[str, str], RDSLoopbackPath] = {}
        self.dormant = True
        self._maps: dict[str, CongestionMap] = {}
        self._routes: dict[tuple[str, str, int], Any] = {}
        self.epoch = 0
        self.medium = medium(self)
        self._shared = getattr(self.medium, "sharesAddresses", False)

    # -- sockets

    def bind(self, addresses: list[str], port: int, socket: Any) -> int:
        """
        A socket takes a port.

        @param addresses: of this host; the port is taken of each.
        @param port: 2 to 65535, or 0 for any.
        @return: the port.
        @raise ServiceInUseError: it is taken.
        @raise ResourceLimitError: there are too many sockets.
        @raise OSError: an address is not of this host, or cannot be had.
        """
        if len(self.sockets) + len(addresses) > limits.RDS_SOCKETS:
            raise ResourceLimitError("too many sockets of RDS")
        if port:
            self._bindAll(addresses, port, socket)
            return port
        for attempt in range(limits.PORT_ATTEMPTS, -1, -1):
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
        self.epoch += 1
        self._routes.clear()

    def unbind(self, addresses: list[str], port: int) -> None:
        """
        The socket receives nothing more.
        """
        for address in addresses:
            del self.sockets[address, port]
            self.setCongested(address, port, False)
            self.medium.unbind(address, port)
        self.epoch += 1
        self._routes.clear()
        if not any(port >= LOWEST_PORT for _, port in self.sockets):
            self._sleep()

    def _sleep(self) -> None:
        """
        There is no socket: leave the reactor alone.
        """
        self.dormant = True
        for path in list(self.paths.values()):
            path.close()
        for loop in self.loops.values():
            loop.close()

    def isOurs(self, address: str) -> bool:
        """
        @return: whether a socket of this process has an address.
        """
        return any(bound == address for bound, _ in self.sockets)

    def freePort(self, address: str) -> int:
        """
        A port for the answer to a ping, which nobody else can know.

        @raise ResourceLimitError: none was found.
        """
        for _ in range(limits.PORT_ATTEMPTS):
            port = LOWEST_PORT + self.below(PORTS - LOWEST_PORT)
            if (address, port) not in self.sockets:
                return port
        raise ResourceLimitError("no port is free")

    # -- paths

    def route(self, address: str, host: str, port: int) -> Any:
        """
        Find the path to a socket.

        @param address: the sender's, ours.
        @param host: the receiver's.
        @param port: the receiver's.
        @raise ResourceLimitError: there are too many paths, and all are in use.
        """
        key = address, host, port
        found = self._routes.get(key)
        if found is not None and not found.closed:
            return found
        if (host, port) in self.sockets or (not self._shared and (host == address or self.isOurs(host))):
            found = self.loop(address, host)
        else:
            found = self.medium.pathTo(address, host, port)
        if len(self._routes) >= limits.RDS_ROUTES:
            self._routes.clear()
        self._routes[key] = found
        return found

    def loop(self, address: str, host: str) -> RDSLoopbackPath:
        """
        @return: the path between two of our addresses.
        """
        found = self.loops.get((address, host))
        if found is None:
            found = self.loops[address, host] = RDSLoopbackPath(self, address, host)
        return found

    def path(self, key: Hashable, local: str, remote: str) -> RDSPath:
        """
        Find a path, or make one.

        @param key: what the medium knows it by.
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
        """
        Forget a path that nobody uses, the oldest.

        @raise ResourceLimitError: there is none.
        """
        for path in self.paths.values():
            if path.carrier is None and not path.needed():
                self.forget(path)
                return
        raise ResourceLimitError("too many paths of RDS")

    def forget(self, path: RDSPath) -> list[Any]:
        """
        A path leads nowhere any more, as its peer's process is gone for good.

        @return: the messages that wait on it.
        """
        path.close()
        path.closed = True
        self.paths.pop(path.key, None)
        waiting = [message for message in path.machine.waiting if message.owner is not None]
        path.machine.waiting.clear()
        return waiting

    # -- maps

    def mapOf(self, address: str) -> CongestionMap:
        """
        @return: the congestion map of an address of ours.
        """
        found = self._maps.get(address)
        if found is None:
            found = self._maps[address] = CongestionMap()
        return found

    def setCongested(self, address: str, port: int, congested: bool) -> None:
        """
        Mark a port of ours, or clear it, and tell all peers.
        """
        ports = self.mapOf(address)
        if not (ports.mark(port) if congested else ports.clear(port)):
            return
        for path in list(self.paths.values()):
            if path.local == address:
                path.mapChanged()
        if not congested:
            for loop in list(self.loops.values()):
                if loop.remote == address:
                    self.congestionChanged(loop)

    def congestionChanged(self, path: Any) -> None:
        """
        Ports of a peer may take something again.
        """
        if path.held:
            for socket in set(self.sockets.values()):
                socket.portsCleared(path)

    # -- what comes

    def deliver(self, path: Any, fields: Fields, payload: bytes) -> None:
        """
        A message for a socket came.
        """
        socket = self.sockets.get((path.local, fields[4]))
        if socket is None:
            self.counters["recv_drop_no_sock"] += 1
            return
        socket.messageReceived(path, fields, payload)

    def peerGone(self, path: Any, reason: Exception) -> None:
        """
        A peer cannot be reached for a long time, and something waits for it.
        """
        for socket in set(self.sockets.values()):
            socket.peerGone(path, reason)


_networks: WeakKeyDictionary[Any, dict[str, Network]] = WeakKeyDictionary()


def networksOf(reactor: Any) -> list[Network]:
    """
    @return: the networks of a reactor.
    """
    return list(_networks.get(reactor, {}).values())


def networkFor(reactor: Any, device: str | None) -> Network:
    """
    @param reactor: The reactor.
    @param device: C{tcp}, or a device's name; L{None} for the host's default.
    @return: the one network of a reactor and a device.
    """
    networks = _networks.setdefault(reactor, {})
    name = device or ""
    found = networks.get(name)
    if found is None:
        found = networks[name] = Network(reactor, _mediumFor(name))
    return found


def _mediumFor(name: str) -> Callable[[Network], Any]:
    if name == "tcp":
        from twisted_ib.rds.media.tcp import TCPMedium

        return TCPMedium
    from twisted_ib.rds.media.rc import RCMedium

    return lambda network: RCMedium(network, name or None)
