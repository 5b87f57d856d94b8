"""
RDS of several processes on one address of a host.

There is one connection for two addresses (Linux C{net/rds/connection.c}), so one process of an address has
it: the I{owner}, which is the first that listens for it.  It hands datagrams on over the device C{shm0}, in a
port space of its own, by paths that have the peer's address: one from the peer to this address for what the
peer sends, the opposite for what others here send to it.  So each process sees the peer itself.  Where both
processes have this address the path is direct.

A datagram that is handed on is acknowledged when the other side has acknowledged it: a sender keeps it until
then, and sends it again when the owner has died.  Another process is the owner then, after
L{RDS_TAKEOVER_SECONDS} at most.  It is a new instance of RDS to peers, so what was on its way may come twice
then.

Congestion maps are handed on too.  Of a process that takes nothing, because it is stopped, what waits for it
is bounded: beyond L{limits.RDS_RECEIVE_BUDGET} its port is marked congested, beyond L{RDS_HANDED_MOST} the
peer's connection is not read, and after L{RDS_HANDED_SECONDS} the peer gets its acknowledgements, which it
waits for with those of all others.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from twisted_ib import limits
from twisted_ib.errors import HCAError, NoListenerError, ServiceInUseError
from twisted_ib.rds.media.rcrelaymedium import OWNER_PORT, RelayMedium
from twisted_ib.rds.paths.carrier import Pending
from twisted_ib.rds.paths.network import Network, Route
from twisted_ib.rds.paths.path import RDSPath
from twisted_ib.rds.protocol.bundle import BUNDLE, datagramsOf
from twisted_ib.rds.protocol.machine import RDSMessage
from twisted_ib.rds.protocol.wire import LOWEST_PORT, PING_PORT, Fields

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from twisted.internet.base import DelayedCall, ReactorBase

    from twisted_ib.hca.device.connections import Service
    from twisted_ib.rds.media.rcaddresses import AddressMedium
    from twisted_ib.rds.protocol.congestion import CongestionMap

#: How often a process that is not the owner looks whether it can be, in seconds.
RDS_TAKEOVER_SECONDS = 0.25
#: Bytes that wait for one process, with overhead, until the peer's connection is not read.
RDS_HANDED_MOST = 16 * 1024 * 1024
#: How long a peer waits for an acknowledgement because a process takes nothing, in seconds.
RDS_HANDED_SECONDS = 1.0

_OVERHEAD: Final = limits.RDS_DATAGRAM_OVERHEAD
#: Raised by a look into the run directory; L{ValueError} is mmap's, of a file that is empty.
_UNREADABLE: Final = HCAError, OSError, ValueError


class Flow:
    """
    The messages that wait for one process, or for one peer, or are on their way there.

    @ivar bytes: of all its paths together; beyond L{RDS_HANDED_MOST} nothing more is read.
    @ivar ports: those that are marked congested because of it, with their addresses.
    @ivar told: those that it has said are, by the path that it said it on.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self.ports: set[tuple[str, int]] = set()
        self.told: dict[RDSPath, set[int]] = {}
        self._blocked: set[RDSPath] = set()

    def add(self, message: HandedMessage) -> None:
        """
        A message waits; when there are too many, the path that it came from is not read.
        """
        self.bytes += message.size + _OVERHEAD
        if self.bytes > RDS_HANDED_MOST:
            self._blocked.add(message.origin)
            message.origin.block(self)

    def remove(self, message: HandedMessage) -> None:
        """
        A message has arrived, or is lost.
        """
        self.bytes -= message.size + _OVERHEAD
        if self._blocked and self.bytes < RDS_HANDED_MOST // 2:
            blocked, self._blocked = self._blocked, set()
            for path in blocked:
                path.unblock(self)

    def isFull(self) -> bool:
        """
        @return: see L{RDSPath.isFull}.
        """
        return self.bytes > RDS_HANDED_MOST + limits.RDS_TCP_DRAIN


class HandedMessage(RDSMessage):
    """
    A message that is handed on.

    @ivar origin: the path that it came by.
    @ivar number: its sequence number there; 0 if it has none, or that of another is enough.
    @ivar pending: what it is in, if it has a number.
    @ivar flow: what it waits in.
    """

    __slots__ = ("flow", "number", "origin", "pending")
    pending: Pending

    def __init__(
        self, relay: RelayNetwork, origin: RDSPath, flow: Flow, fields: Fields, payload: bytes, number: int
    ) -> None:
        RDSMessage.__init__(self, fields[3], fields[4], payload, relay, fields[9])
        self.origin = origin
        self.flow = flow
        self.number = number


class RelayNetwork(Network):
    """
    The network between the processes of our addresses; one for each reactor.  See
    L{IRelay<twisted_ib.rds.paths.carrier.IRelay>}.

    @ivar homes: the media of our addresses.
    """

    medium: RelayMedium

    def __init__(self, reactor: ReactorBase) -> None:
        self.homes: dict[str, AddressMedium] = {}
        self._owned: dict[str, Service] = {}
        self._looks: dict[str, DelayedCall] = {}
        self._flows: dict[Hashable, Flow] = {}
        #: The messages of each other process that wait, by its GUID.
        self._senders: dict[int, Flow] = {}
        self._late: dict[RDSPath, DelayedCall] = {}
        self._nobody: dict[tuple[str, int], tuple[float, list[int]]] = {}
        super().__init__(reactor, lambda network: RelayMedium(self))

    # -- our addresses

    def open(self, home: AddressMedium, address: str, port: int) -> None:
        """
        A socket binds a port of an address.

        @raise ServiceInUseError: another process has it.
        """
        before = self.homes.get(address)
        self.homes[address] = home
        try:
            # The sockets are those of the address's own network.
            self.bind([address], port, None)
            self._inherit(address, port)
        except BaseException:
            if before is None:
                del self.homes[address]
            raise

    def shut(self, address: str, port: int) -> None:
        """
        A socket is closed.
        """
        self.unbind([address], port)
        if not self.isOurs(address):
            network = self.homes.pop(address).network
            # Not acknowledged: it is sent again to the next owner.
            self._drop(network, lambda origin: origin.remote == address)
            self._drop(self, lambda origin: origin.network is network and origin.local == address)
            self.ownsNoMore(address)
            look = self._looks.pop(address, None)
            if look is not None:
                look.cancel()

    def owns(self, address: str) -> None:
        """
        This process has become the owner of an address: what it waits to send goes by its own paths now.

        @raise ServiceInUseError: the one before has not gone yet.
        @raise DeviceError: a process of another user is in the way.
        """
        medium = self.medium
        try:
            self._owned[address] = medium.serve(medium.channel(address), address, OWNER_PORT)
        except ServiceInUseError:
            medium.checkOwner(address)
            raise
        try:
            self.homes[address].moved()
            self._move(address)
        except BaseException:
            # Or nobody would be: of our own port the next look would think that it is another's.
            self.ownsNoMore(address)
            raise

    def _move(self, address: str) -> None:
        # Paths by a process that is the owner no more go by the one that is.
        owner = self.medium.servedBy(address, address, OWNER_PORT)
        for path in list(self.paths.values()) if owner is not None else ():
            if path.local == address and path.remote not in self.homes and path.key[2] != owner:
                self.medium.relocate(path)

    def ownsNoMore(self, address: str) -> None:
        """
        This process gives the connections of an address up, if it has them.
        """
        owned = self._owned.pop(address, None)
        if owned is not None:
            owned.close()

    def isOwner(self, address: str) -> bool:
        """
        @return: whether this process is the owner of an address.
        """
        return address in self._owned

    def follow(self, address: str) -> None:
        """
        Another process is the owner: look from time to time whether it still is.
        """
        if address not in self._looks:
            self._looks[address] = self.reactor.callLater(RDS_TAKEOVER_SECONDS, self._look, address)

    def _look(self, address: str) -> None:
        del self._looks[address]
        try:
            self.homes[address].lead(address)
        except _UNREADABLE:
            self.follow(address)
            with suppress(*_UNREADABLE):
                self._move(address)

    def isElsewhere(self, host: str, port: int) -> bool:
        if host not in self.homes or (host, port) in self.sockets or port == PING_PORT:
            return False
        return self.medium.servedBy(host, host, port) is not None

    def route(self, address: str, host: str, port: int) -> Route:
        # For messages whose process is gone.
        home = self.homes.get(address)
        if home is not None:
            return home.network.route(address, host, port)
        if not self.isElsewhere(host, port):
            raise NoListenerError(f"no process of {host} has port {port}")
        return self.medium.pathTo(address, host, port)

    # -- handing on

    def handIn(self, network: Network, path: Route, fields: Fields, payload: bytes) -> bool:
        port, key = fields[4], (path.remote, path.local, fields[4])
        # To port 0 or 1 the process would answer a pong.
        if fields[3] < LOWEST_PORT:
            return False
        try:
            if not isinstance(path, RDSPath):
                return self._passOn(network, key, fields, payload)
            target = self._routes.get(key)
            if target is None or target.closed:
                if self._isNobodys(path.local, port):
                    return False
                target = self._routes[key] = self.medium.servedPath(*key)
        except HCAError:
            # Too many paths: there is none to that process.
            return False
        assert isinstance(target, RDSPath)
        target.machine.ownMap = path.machine.peerMap
        network.counters["recv_handed_on"] += 1
        flow = self._flowOf(target)
        self._hand(flow, path, target, fields, payload)
        if flow.bytes > limits.RDS_RECEIVE_BUDGET and (path.local, port) not in flow.ports:
            flow.ports.add((path.local, port))
            network.setCongested(path.local, port, True)
        if path not in self._late and path.pending:
            self._await(path, path.pending)
        return True

    def _passOn(self, network: Network, key: tuple[str, str, int], fields: Fields, payload: bytes) -> bool:
        # Ours, of a loopback path: another process has bound the port since its route was found.
        if self._isNobodys(key[1], key[2]):
            return False
        network.reroute()
        target = network.route(*key)
        if isinstance(target, RDSPath):
            target.send(RDSMessage(fields[3], fields[4], payload, None, fields[9], fields[5] & BUNDLE))
        return isinstance(target, RDSPath)

    def _isNobodys(self, address: str, port: int) -> bool:
        # Remembered for a while, if no process binds a port: a peer can send any number of messages to ports
        # that nobody has.
        now = self.reactor.seconds()
        stamps = self.medium.stamps(address)
        until, before = self._nobody.get((address, port), (0.0, stamps))
        if now < until and stamps == before:
            return True
        if self.isElsewhere(address, port):
            return False
        if len(self._nobody) >= limits.RDS_ROUTES or len(self._routes) >= limits.RDS_ROUTES:
            self._nobody.clear()
            self._routes.clear()
        self._nobody[address, port] = now + RDS_TAKEOVER_SECONDS, stamps
        return True

    def _await(self, path: RDSPath, pending: Pending) -> None:
        call = self.reactor.callLater(RDS_HANDED_SECONDS, self._tooLate, path, pending, pending.last)
        self._late[path] = call

    def deliver(self, path: Route, fields: Fields, payload: bytes) -> None:
        home, address = self.homes.get(path.local), path.remote
        if home is not None:
            socket = home.network.sockets.get((path.local, fields[4]))
            if socket is None:
                home.network.counters["recv_drop_no_sock"] += 1
            else:
                socket.messageReceived(path, fields, payload)
            return
        home = self.homes.get(address)
        assert isinstance(path, RDSPath)
        if home is None or address not in self._owned:
            # Not acknowledged: it is sent again to the owner.
            if fields[0]:
                self._pendingOf(path, fields[0]).refuse(fields[0])
            return
        network = home.network
        try:
            if fields[3] < LOWEST_PORT:
                raise NoListenerError(f"no socket has port {fields[3]}")
            target = network.path((address, path.local), address, path.local)
        except HCAError:
            network.counters["recv_drop_no_sock"] += 1
            return
        path.machine.ownMap = target.machine.peerMap
        pieces = datagramsOf(payload, 0, len(payload)) if fields[5] & BUNDLE else [payload]
        network.counters["send_handed_on"] += len(pieces)
        flow = self._senders.setdefault(path.key[2], Flow())
        # Those of one message arrive in order: the last tells of all.
        for piece in pieces[:-1]:
            self._hand(flow, path, target, fields, piece, False)
        for piece in pieces[-1:]:
            self._hand(flow, path, target, fields, piece)

    def _pendingOf(self, path: RDSPath, number: int) -> Pending:
        pending = path.pending
        # Without RETRANSMITTED a lower number is a restarted peer's, see PathMachine.received.
        if pending is None or number <= pending.last:
            pending = path.pending = Pending()
        return pending

    def _owing(self, path: RDSPath) -> Hashable:
        # All paths to a process share what may wait for it; a peer has one path.
        return (self.medium.keyOf(path) or path) if path.network is self else path

    def _flowOf(self, path: RDSPath) -> Flow:
        key = self._owing(path)
        flow = self._flows.get(key)
        if flow is None:
            flow = self._flows[key] = Flow()
        return flow

    def _hand(
        self, flow: Flow, path: RDSPath, target: RDSPath, fields: Fields, payload: bytes, isLast: bool = True
    ) -> None:
        message = HandedMessage(self, path, flow, fields, payload, fields[0] if isLast else 0)
        # Number 0 is that of what is not acknowledged.
        if message.number:
            message.pending = self._pendingOf(path, message.number)
            message.pending.add(message.number)
        flow.add(message)
        target.send(message)

    def messageDone(self, message: HandedMessage) -> None:
        """
        The other side has what was handed on.
        """
        self._leave(message)
        if message.number and message.pending.take(message.number):
            self._confirm(message.origin)

    messageDropped = messageDone

    def _leave(self, message: HandedMessage) -> None:
        flow, origin = message.flow, message.origin
        flow.remove(message)
        if flow.ports and flow.bytes < limits.RDS_RECEIVE_BUDGET // 2:
            self._release(flow)
        if not flow.bytes and self._senders.get(origin.key[-1]) is flow:
            del self._senders[origin.key[-1]]

    def _drop(self, network: Network, isGone: Callable[[RDSPath], bool]) -> None:
        def isMeant(message: RDSMessage) -> bool:
            return isinstance(message, HandedMessage) and isGone(message.origin)

        for path in list(network.paths.values()):
            for message in path.machine.dropAll(isMeant):
                if isinstance(message, HandedMessage):
                    self._leave(message)

    def _confirm(self, path: RDSPath) -> None:
        owe = getattr(path.carrier, "owe", None)
        if owe is not None:
            owe()

    def _tooLate(self, path: RDSPath, before: Pending, number: int) -> None:
        del self._late[path]
        pending = path.pending
        if not pending:
            return
        if pending is not before or pending.confirmed(number) >= number:
            self._await(path, pending)
            return
        path.network.counters["recv_handed_late"] += len(pending)
        pending.clear()
        self._confirm(path)

    # -- congestion

    def _remap(self, address: str, congested: set[int], cleared: set[int]) -> None:
        home = self.homes.get(address)
        if home is not None:
            flows = self._flows.values()
            marked = {port for flow in flows for each, port in flow.ports if each == address}
            for flow in flows:
                marked.update(*(ports for path, ports in flow.told.items() if path.remote == address))
            home.network.remap(address, congested, cleared - marked)

    def _release(self, flow: Flow) -> None:
        ports, flow.ports = flow.ports, set()
        for address in {address for address, _ in ports}:
            self._remap(address, set(), {port for each, port in ports if each == address})

    def _inherit(self, address: str, port: int) -> None:
        # A socket that is bound here is not congested, whoever had the port before.
        for flow in self._flows.values():
            flow.ports.discard((address, port))
            for path, ports in flow.told.items():
                if path.remote == address:
                    ports.discard(port)
        self.homes[address].network.setCongested(address, port, False)

    def mapChanged(self, path: Route) -> None:
        # Those that send to the peer hold back what is for its congested ports.
        for each in list(self.paths.values()):
            if (each.remote, each.local) == (path.local, path.remote) and isinstance(path, RDSPath):
                each.machine.ownMap = path.machine.peerMap
                each.mapChanged()

    def mapOf(self, address: str) -> CongestionMap:
        # Our addresses have one map.
        home = self.homes.get(address)
        return super().mapOf(address) if home is None else home.network.mapOf(address)

    def congestionChanged(self, path: Route) -> None:
        # Ports of another process, or of the peer, have been marked or cleared.
        home = self.homes.get(path.local)
        if home is not None:
            if path.held:
                for socket in set(home.network.sockets.values()):
                    socket.portsCleared(path)
            return
        home = self.homes.get(path.remote)
        if home is None or not isinstance(path, RDSPath):
            return
        told = self._flowOf(path).told
        before, now = told.get(path, set()), path.machine.peerMap.ports()
        if now - before:
            # A process speaks for its own ports only.
            now &= before | self._portsOf(path)
        told[path] = now
        self._remap(path.remote, now - before, before - now)

    def _portsOf(self, path: RDSPath) -> set[int]:
        try:
            return self.medium.portsOf(path.remote, self.medium.keyOf(path))
        except (HCAError, OSError):
            return set()

    # -- the end of others

    def forget(self, path: RDSPath) -> list[RDSMessage]:
        # Ports of the process are not congested any more, and what it has sent waits no longer.
        if path.pending:
            for network in {home.network for home in self.homes.values()}:
                self._drop(network, lambda origin: origin is path)
        waiting = super().forget(path)
        key = self._owing(path)
        flow = self._flows.get(key)
        if flow is not None:
            if all(self._owing(each) != key for each in self.paths.values()):
                del self._flows[key]
                self._release(flow)
            self._remap(path.remote, set(), flow.told.pop(path, set()))
        return waiting

    def peerGone(self, path: RDSPath, reason: Exception) -> None:
        home = self.homes.get(path.local)
        if home is not None:
            home.network.peerGone(path, reason)

    def _sleep(self) -> None:
        super()._sleep()
        for late in self._late.values():
            late.cancel()
        self._late.clear()
        self._flows.clear()
        self._senders.clear()
