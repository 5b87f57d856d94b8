"""
Datagrams between processes whose connections break: none is lost, none comes twice, and those of each
pair come in order.
"""

from __future__ import annotations

from hashlib import sha256
from random import Random
from typing import Any

from twisted.internet.protocol import DatagramProtocol
from twisted.trial.unittest import SynchronousTestCase

from tests.rds.net import Host, Wire, hosts
from twisted_ib.errors import SendBudgetError


class Counting(DatagramProtocol):
    """
    Has a running hash for each peer.
    """

    def __init__(self) -> None:
        self.hashes: dict[Any, Any] = {}
        self.counts: dict[Any, int] = {}

    def datagramReceived(self, datagram: bytes, addr: Any) -> None:
        self.hashes.setdefault(addr, sha256()).update(len(datagram).to_bytes(4, "big") + datagram)
        self.counts[addr] = self.counts.get(addr, 0) + 1


class Traffic:
    """
    All sockets write to all sockets of other processes.
    """

    def __init__(self, wire: Wire, members: list[Host], sockets: int, seed: int) -> None:
        self.wire = wire
        self.random = Random(seed)
        self.sockets = [host.socket(protocol=Counting()) for host in members for _ in range(sockets)]
        self.sent: dict[Any, Any] = {}
        self.counts: dict[Any, int] = {}

    def place(self, socket: Any) -> tuple[str, int]:
        host = socket.getHost()
        return host.host, host.port

    def write(self) -> bool:
        """
        Write one datagram from somewhere to somewhere.
        """
        random = self.random
        source, target = random.sample(self.sockets, 2)
        size = random.choice((0, 1, 8, 8, 8, 100, 3000))
        data = random.randbytes(size)
        here, there = self.place(source), self.place(target)
        try:
            source.write(data, there)
        except SendBudgetError:
            return False
        self.sent.setdefault((here, there), sha256()).update(len(data).to_bytes(4, "big") + data)
        self.counts[here, there] = self.counts.get((here, there), 0) + 1
        return True

    def run(self, count: int, reconnects: int) -> None:
        """
        Write so many, and break all connections so often.
        """
        every = count // (reconnects + 1)
        done = 0
        while done < count:
            for _ in range(self.random.randrange(1, 60)):
                if done == count or not self.write():
                    break
                done += 1
                if reconnects and done % every == 0:
                    self.wire.breakAll()
            self.wire.clock.advance(0.001)

    def received(self) -> int:
        """
        How many datagrams have come.
        """
        return sum(sum(socket.protocol.counts.values()) for socket in self.sockets)

    def settle(self, count: int) -> None:
        """
        Wait until all have come, and then some.
        """
        for _ in range(20_000):
            if self.received() >= count and not any(socket._queued for socket in self.sockets):
                break
            self.wire.clock.advance(0.002)
        self.wire.advance(0.5, 0.01)


def simulate(
    test: SynchronousTestCase,
    count: int,
    faults: tuple[int, int, int],
    reconnects: int,
    seed: int,
    onlySmaller: bool = True,
) -> Wire:
    """
    Let three processes with two sockets each write to each other.

    @param faults: loss, duplication and corruption, of a thousand.
    """
    wire = Wire(seed, onlySmaller)
    traffic = Traffic(wire, hosts(wire, 3), 2, seed + 1)
    wire.loss, wire.duplication, wire.corruption = faults
    traffic.run(count, reconnects)
    traffic.settle(count)
    message = f"seed {seed}, faults {faults}, reconnects {reconnects}"
    got = {
        (source, traffic.place(socket)): number
        for socket in traffic.sockets
        for source, number in socket.protocol.counts.items()
    }
    test.assertEqual(got, traffic.counts, message)
    for socket in traffic.sockets:
        here = traffic.place(socket)
        for source, digest in socket.protocol.hashes.items():
            test.assertEqual(digest.digest(), traffic.sent[source, here].digest(), message)
    for socket in traffic.sockets:
        socket.stopListening()
    wire.advance(0.1)
    test.assertEqual(wire.clock.getDelayedCalls(), [])
    return wire


class SimulationTests(SynchronousTestCase):
    """
    A small number of datagrams; C{tests/soak} has the large one.
    """

    def test_quiet(self) -> None:
        """
        Without faults there is one connection for each pair of processes.
        """
        wire = simulate(self, 2000, (0, 0, 0), 0, 11)
        self.assertEqual(wire.made, 3)

    def test_reconnects(self) -> None:
        """
        Twenty times all connections break.
        """
        wire = simulate(self, 2000, (0, 0, 0), 20, 12)
        self.assertGreater(wire.broken, 20)

    def test_loss(self) -> None:
        """
        One message of a hundred, and one of ten, is lost with its connection.
        """
        simulate(self, 2000, (10, 0, 0), 0, 13)
        simulate(self, 2000, (100, 0, 0), 20, 14)

    def test_duplication(self) -> None:
        """
        So many come without the sender being told.
        """
        simulate(self, 2000, (0, 10, 0), 0, 15)
        simulate(self, 2000, (0, 100, 0), 20, 16)

    def test_corruption(self) -> None:
        """
        So many have a wrong bit.
        """
        simulate(self, 2000, (0, 0, 10), 0, 17)
        simulate(self, 2000, (0, 0, 100), 20, 18)

    def test_all(self) -> None:
        """
        All of it, and either side connects.
        """
        for seed in range(20, 26):
            simulate(self, 1000, (30, 30, 30), 20, seed, onlySmaller=False)
