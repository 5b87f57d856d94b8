"""
Processes with sockets of RDS, on HCAs of one thread, with reactors that turn when the test says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.protocol import DatagramProtocol
from twisted.trial.unittest import SynchronousTestCase

from tests.sdp.pair import HandReactor
from tests.support.waiting import waitUntil
from twisted_ib.internet.readers import channelsOf
from twisted_ib.rds.networks import networkFor
from twisted_ib.rds.paths.network import Network
from twisted_ib.rds.port import listenRDS

HOST = "127.0.0.1"


class Recorder(DatagramProtocol):
    """
    Keeps what comes.

    @ivar got: Datagrams and whose they were.
    """

    noisy = False

    def __init__(self) -> None:
        """
        Nothing has.
        """
        self.got: list[tuple[bytes, Any]] = []

    def datagramReceived(self, datagram: bytes, addr: Any) -> None:
        """
        Keep it.
        """
        self.got.append((datagram, addr))

    @property
    def data(self) -> list[bytes]:
        """
        @return: The datagrams alone.
        """
        return [datagram for datagram, _ in self.got]


class Process:
    """
    A process of this host: a reactor, and what it has opened.
    """

    def __init__(self, device: str = "lo0") -> None:
        """
        Nothing is open.
        """
        self.reactor = HandReactor()
        self.device = device
        self.alive = True

    @property
    def network(self) -> Network:
        """
        @return: The state that its sockets share.
        """
        return networkFor(self.reactor, self.device)

    @property
    def medium(self) -> Any:
        """
        @return: Its medium.
        """
        return self.network.medium

    @property
    def queuePairs(self) -> int:
        """
        @return: How many there are.
        """
        return sum(len(channel.device.queuePairs) for channel in channelsOf(self.reactor))

    def listen(self, port: int = 0, interface: str = HOST, protocol: Any = None) -> Any:
        """
        @return: The protocol of a new socket.
        """
        protocol = Recorder() if protocol is None else protocol
        protocol.socket = listenRDS(self.reactor, port, protocol, interface, device=self.device)
        return protocol

    def turn(self) -> int:
        """
        @return: How much there was to do.
        """
        now = self.reactor.seconds()
        due = sum(call.getTime() <= now for call in self.reactor.getDelayedCalls())
        return due + self.reactor.turn()

    def kill(self) -> None:
        """
        End without a word, but for what the medium tells.
        """
        self.alive = False
        for channel in channelsOf(self.reactor):
            channel.leave()
            channel.device.close()


class ProcessesTestCase(SynchronousTestCase):
    """
    Some processes.
    """

    device = "lo0"

    def setUp(self) -> None:
        """
        There are none.
        """
        self.processes: list[Process] = []
        self.addCleanup(self.close)

    def process(self) -> Process:
        """
        @return: Another process.
        """
        process = Process(self.device)
        self.processes.append(process)
        return process

    def settle(self, most: int = 20000) -> None:
        """
        Turn until nothing moves.
        """
        quiet = 0
        for _ in range(most):
            n = sum(process.turn() for process in self.processes if process.alive)
            quiet = 0 if n else quiet + 1
            if quiet > 3:
                return
        raise AssertionError("the processes do not come to rest")

    def pass_(self, seconds: float, step: float = 0.05) -> None:
        """
        Let time pass.
        """
        while seconds > 0:
            for process in self.processes:
                if process.alive:
                    process.reactor.advance(min(step, seconds))
            seconds -= step
            self.settle()

    def until(self, holds: Callable[[], object]) -> None:
        """
        Serve the processes until something holds.
        """

        def turn() -> None:
            for process in self.processes:
                process.reactor.advance(0.01)
                process.turn()

        waitUntil(holds, turn)

    def close(self) -> None:
        """
        Give everything back.
        """
        for process in self.processes:
            if process.alive:
                for channel in channelsOf(process.reactor):
                    channel.close()
