"""
Networks of RDS on a wire in memory, with a virtual clock: connections that break and lose what was on
its way.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.protocol import DatagramProtocol
from twisted.internet.task import Clock
from zope.interface import implementer

from tests.rds.protocol.vectors import isIntact
from twisted_ib.errors import PeerGoneError
from twisted_ib.interfaces import IRDSProtocol
from twisted_ib.rds.paths.carrier import IRDSCarrier, IRDSMedium
from twisted_ib.rds.paths.network import Network
from twisted_ib.rds.port import RDSPort
from twisted_ib.rds.protocol.wire import HEADER, packChecksummed


class Wire:
    """
    The wire between networks.

    @ivar loss: how many of a thousand messages are lost, with the connection and all behind them.
    @ivar duplication: how many arrive, and nobody is told before the connection breaks.
    @ivar corruption: how many have a wrong bit in their header.
    @ivar delay: seconds that a message takes.
    @ivar room: messages that one direction of a connection takes.
    @ivar onlySmaller: whether only the smaller address connects.
    @ivar connections: the ends of those that were made and are not broken.
    """

    def __init__(self, seed: int = 1, onlySmaller: bool = True) -> None:
        self.clock = Clock()
        self.random = Random(seed)
        self.loss = self.duplication = self.corruption = 0
        self.delay = 0.001
        self.room = 64
        self.onlySmaller = onlySmaller
        self.media: dict[str, MemoryMedium] = {}
        self.connections: list[MemoryCarrier] = []
        self.made = 0
        self.broken = 0

    def network(self) -> Network:
        """
        Another process.
        """
        return Network(
            self.clock,
            lambda network: MemoryMedium(self, network),
            self.random.random,
            self.random.randrange,
        )

    def breakAll(self) -> None:
        """
        Break all connections.
        """
        for carrier in list(self.connections):
            carrier.breakDown()

    def advance(self, seconds: float, step: float = 0.001) -> None:
        """
        Let time pass.
        """
        for _ in range(max(1, round(seconds / step))):
            self.clock.advance(step)


@implementer(IRDSCarrier)
class MemoryCarrier:
    """
    One end of a connection.
    """

    peer: MemoryCarrier
    path: Any

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.dead = False
        self.paused = False
        self.closed = False
        self._flying: list[tuple[bytes, bytes, str]] = []
        self._arrived: list[tuple[bytes, bytes, str]] = []
        self._scheduled = False
        self._refused = False

    def send(self, message: Any) -> bool:
        """
        See L{IRDSCarrier}.
        """
        wire = self.wire
        if len(self._flying) >= wire.room:
            self._refused = True
            return False
        header = packChecksummed(
            message.sequence,
            0,
            len(message.payload),
            message.sourcePort,
            message.destinationPort,
            message.flags,
            0,
            bytes(4),
            0,
            message.extensions,
        )
        draw = wire.random.randrange(1000)
        fate = ""
        if draw < wire.loss:
            fate = "lost"
        elif draw - wire.loss < wire.duplication:
            fate = "unacknowledged"
        elif draw - wire.loss - wire.duplication < wire.corruption:
            bit = wire.random.randrange(384)
            if bit >> 3 not in (30, 31):
                wrong = bytearray(header)
                wrong[bit >> 3] ^= 1 << (bit & 7)
                header = bytes(wrong)
        self._flying.append((header, message.payload, fate))
        return True

    def flush(self) -> None:
        """
        See L{IRDSCarrier}.
        """
        if self._flying and not self._scheduled:
            self._scheduled = True
            self.wire.clock.callLater(self.wire.delay, self._land)

    def _land(self) -> None:
        """
        Deliver the messages on the way.
        """
        self._scheduled = False
        if self.dead:
            return
        flying, self._flying = self._flying, []
        self.peer._arrived += flying
        self.peer.take()
        if self._refused and not self.dead:
            self._refused = False
            self.path.resume(self)
        if not self.dead:
            self.flush()

    def take(self) -> None:
        """
        Give the path what has arrived.
        """
        taken = False
        while self._arrived and not self.paused and not self.dead:
            header, payload, fate = self._arrived.pop(0)
            if fate == "lost":
                self.breakDown()
                return
            if not isIntact(header):
                self.path.network.counters["recv_drop_bad_checksum"] += 1
                self.breakDown()
                return
            taken = True
            self.path.messageReceived(self, HEADER.unpack(header), payload)
            if fate and not self.dead:
                self.breakDown()
                return
        after = self.path.machine.nextReceive
        if after and taken and not self.dead:
            self.wire.clock.callLater(self.wire.delay, self.peer.acknowledged, after - 1)

    def acknowledged(self, sequence: int) -> None:
        """
        The peer has said what it has.
        """
        if not self.dead:
            self.path.acknowledged(self, sequence)

    def pauseReading(self) -> None:
        """
        See L{IRDSCarrier}.
        """
        self.paused = True

    def resumeReading(self) -> None:
        """
        See L{IRDSCarrier}.
        """
        self.paused = False
        self.wire.clock.callLater(0, self.take)

    def drain(self) -> None:
        """
        See L{IRDSCarrier}: nothing is acknowledged that the path does not have.
        """

    def breakDown(self) -> None:
        """
        The connection breaks.
        """
        if self.dead:
            return
        self.wire.broken += 1
        for end in (self, self.peer):
            end.dead = True
            self.wire.connections.remove(end)
            if not end.closed:
                self.wire.clock.callLater(0, end.path.lost, end, PeerGoneError("broken"))

    def close(self) -> None:
        """
        See L{IRDSCarrier}.
        """
        self.closed = True
        self.breakDown()


class _Connecting:
    """
    An attempt.
    """

    def __init__(self, medium: MemoryMedium, path: Any) -> None:
        self.medium, self.path = medium, path
        wire = medium.wire
        self.call = wire.clock.callLater(wire.delay, self._arrive)

    def cancel(self) -> None:
        if self.call.active():
            self.call.cancel()

    def _arrive(self) -> None:
        """
        The peer is asked.
        """
        medium, path = self.medium, self.path
        other = medium.wire.media.get(path.remote)
        if other is None:
            path.carrierFailed(PeerGoneError("nobody"))
            return
        there = other.network.path((path.remote, path.local), path.remote, path.local)
        if not medium.reconnects(path):
            there.connectNow()
            path.carrierFailed(PeerGoneError("its turn"))
            return
        mine, theirs = medium.carrierFor(path), other.carrierFor(there)
        mine.peer, theirs.peer = theirs, mine
        medium.wire.connections += [mine, theirs]
        medium.wire.made += 1
        known = medium.wire.random.random() < 0.5
        theirs_, mine_ = (max(0, p.machine.nextReceive - 1) if known else 0 for p in (there, path))
        there.carrierUp(theirs, mine_)
        path.carrierUp(mine, theirs_)


@implementer(IRDSMedium)
class MemoryMedium:
    """
    Connects through a wire.
    """

    name = "memory"
    acknowledges = True
    sharesAddresses = False
    relay = None

    def __init__(self, wire: Wire, network: Network) -> None:
        self.wire = wire
        self.network = network
        self.bound: dict[str, set[int]] = {}

    def localAddresses(self) -> list[str]:
        return ["10.0.0.1", "10.1.0.1"]

    def sourceFor(self, host: str) -> str:
        return self.localAddresses()[0]

    def hostNamed(self, name: str) -> str:
        return ""

    def unknownHost(self, name: str) -> str:
        return ""

    def bind(self, address: str, port: int) -> None:
        other = self.wire.media.setdefault(address, self)
        if other is not self:
            raise OSError(98, "Address already in use")
        self.bound.setdefault(address, set()).add(port)

    def unbind(self, address: str, port: int) -> None:
        self.bound[address].discard(port)
        if not self.bound[address]:
            del self.bound[address], self.wire.media[address]

    def pathTo(self, address: str, host: str, port: int) -> Any:
        return self.network.path((address, host), address, host)

    def connect(self, path: Any) -> Any:
        return _Connecting(self, path)

    def reconnects(self, path: Any) -> bool:
        return not self.wire.onlySmaller or path.local < path.remote

    def carrierFor(self, path: Any) -> MemoryCarrier:
        """
        An end of a new connection.
        """
        carrier = MemoryCarrier(self.wire)
        carrier.path = path
        return carrier

    def whenQuiet(self) -> Deferred[None]:
        return succeed(None)


class Recorder(DatagramProtocol):
    """
    Keeps what comes.
    """

    def __init__(self) -> None:
        self.got: list[tuple[bytes, tuple[str, int]]] = []
        self.events: list[str] = []

    def startProtocol(self) -> None:
        self.events.append("start")

    def stopProtocol(self) -> None:
        self.events.append("stop")

    def datagramReceived(self, datagram: bytes, addr: Any) -> None:
        self.got.append((datagram, addr))


@implementer(IRDSProtocol)
class Told(Recorder):
    """
    The same, and what else it is told.
    """

    def destinationCongested(self, addr: Any) -> None:
        self.events.append(f"congested {addr[0]}:{addr[1]}")

    def destinationCleared(self, addr: Any) -> None:
        self.events.append(f"cleared {addr[0]}:{addr[1]}")

    def peerGone(self, host: str, reason: Exception) -> None:
        self.events.append(f"gone {host}")


class Host:
    """
    A process with an address.
    """

    def __init__(self, wire: Wire, address: str) -> None:
        self.wire = wire
        self.address = address
        self.network = wire.network()

    def socket(self, port: int = 0, protocol: Any = None, **arguments: Any) -> Any:
        """
        Open a socket.
        """
        socket = RDSPort(
            port,
            Told() if protocol is None else protocol,
            self.address,
            reactor=self.wire.clock,
            network=self.network,
            **arguments,
        )
        socket.startListening()
        return socket


def hosts(wire: Wire, count: int) -> list[Host]:
    """
    Some processes.
    """
    return [Host(wire, f"10.0.0.{number + 1}") for number in range(count)]


Maker = Callable[[], Any]
