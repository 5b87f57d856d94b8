"""
Reliable datagrams between processes under random schedules: connections break, sockets pause, and
everything arrives once and in order.
"""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import Any

from tests.rds.ends import HOST, Process, ProcessesTestCase
from tests.support.rundirectory import OwnDirectory
from twisted_ib.errors import PathLostError, SendBudgetError
from twisted_ib.rds import port as rdsPort
from twisted_ib.rds.paths import path as pathsPath


class Schedule:
    """
    Four processes with two sockets each, and what happens to them.

    @ivar sent: The hashes of what one socket has sent to another; C{got} of what has come.
    @ivar happened: How often what.
    """

    def __init__(self, case: ProcessesTestCase, seed: int, breaks: float, kills: int) -> None:
        """
        @param breaks: How often a connection breaks, of all actions.
        @param kills: How many processes are killed; what they sent and got is not looked at.
        """
        self.case, self.seed = case, seed
        self.random = Random(seed)
        self.breaks, self.kills = breaks, kills
        self.processes = [case.process() for _ in range(4)]
        self.sockets: dict[int, Any] = {}
        self.owner: dict[int, Process] = {}
        for index, process in enumerate(self.processes):
            for n in range(2):
                port = 1000 * (seed % 60) + 100 * index + n + 2000
                self.sockets[port], self.owner[port] = process.listen(port), process
        self.ports = list(self.sockets)
        self.sent: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        self.got: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        self.happened = {"sent": 0, "broken": 0, "killed": 0}

    def act(self) -> None:
        """
        Do one thing.
        """
        random = self.random
        action = random.random()
        living = [process for process in self.processes if process.alive]
        port, to = random.choice(self.ports), random.choice(self.ports)
        if action < 0.5:
            if self.owner[port].alive and self.owner[to].alive:
                self.write(port, to)
        elif action < 0.9:
            for _ in range(random.choice((1, 3, 20))):
                random.choice(living).turn()
        elif action < 0.93:
            transport = self.sockets[port].transport
            if self.owner[port].alive:
                random.choice((transport.pauseProducing, transport.resumeProducing))()
        elif action < 0.96:
            seconds = random.choice((0.001, 0.01, 0.1))
            for process in living:
                process.reactor.advance(seconds)
        elif action < 0.96 + self.breaks:
            sessions = list(random.choice(living).medium.sessions.values())
            if sessions:
                random.choice(sessions).broken(PathLostError("broken by the test"))
                self.happened["broken"] += 1
        elif self.happened["killed"] < self.kills and action > 0.995:
            random.choice(living).kill()
            self.happened["killed"] += 1

    def write(self, port: int, to: int) -> None:
        """
        Write some datagrams, as long as that is permitted.
        """
        size = self.random.choice((0, 1, 100, 5000, 70_000, 200_000))
        for _ in range(self.random.choice((1, 1, 30))):
            number = len(self.sent[port, to])
            data = b"%d " % number + bytes([number % 256]) * size
            try:
                self.sockets[port].transport.write(data, (HOST, to))
            except SendBudgetError:
                break
            self.sent[port, to].append(hash(data))
            self.happened["sent"] += 1

    def take(self) -> None:
        """
        Look at what has come: much of it comes, and memory is not for that.
        """
        for to, socket in self.sockets.items():
            for data, (host, port) in socket.got:
                self.case.assertEqual(host, HOST)
                self.got[port, to].append(hash(data))
            socket.got.clear()

    def settle(self) -> None:
        """
        All sockets take what comes: everything arrives, and nothing is left over.
        """
        case, seed = self.case, self.seed
        for port, socket in self.sockets.items():
            if self.owner[port].alive:
                socket.transport.resumeProducing()
        case.pass_(pathsPath.RDS_GONE_SECONDS + 5.0, 0.25)
        self.take()
        for (port, to), expected in self.sent.items():
            if self.owner[port].alive and self.owner[to].alive:
                got = self.got[port, to]
                case.assertEqual(len(got), len(expected), (seed, port, to))
                case.assertTrue(got == expected, (seed, port, to))
        for process in self.processes:
            if process.alive:
                case.assertLess(process.queuePairs, len(self.processes), seed)
                for path in process.network.paths.values():
                    if path.key[2] is not None:
                        case.assertTrue(path.machine.isIdle(), (seed, path.key))

    def close(self) -> None:
        """
        Close all sockets: there are no connections any more.
        """
        for port, socket in self.sockets.items():
            if self.owner[port].alive:
                socket.socket.stopListening()
        self.case.pass_(rdsPort.RDS_LINGER_SECONDS + 1, 1.0)
        for process in self.processes:
            if process.alive:
                left = process.queuePairs, process.reactor.getDelayedCalls(), process.reactor.readers
                self.case.assertEqual(left, (0, [], []), self.seed)


class ScheduleTests(ProcessesTestCase):
    """
    Random schedules.
    """

    seeds = 2

    def schedule(self, seed: int, breaks: float, kills: int = 0) -> dict[str, int]:
        """
        Run one schedule.

        @return: How often what happened.
        """
        schedule = Schedule(self, seed, breaks, kills)
        for _ in range(1200):
            schedule.act()
            schedule.take()
        schedule.settle()
        schedule.close()
        self.close()
        self.processes.clear()
        return schedule.happened

    def test_whole(self) -> None:
        """
        Nothing breaks.
        """
        for seed in range(self.seeds // 2):
            self.assertGreater(self.schedule(seed, 0.0)["sent"], 1000)

    def test_broken(self) -> None:
        """
        Connections break all the time.
        """
        for seed in range(10, 10 + self.seeds):
            self.assertGreater(self.schedule(seed, 0.03)["broken"], 10)

    def test_killed(self) -> None:
        """
        Processes are killed; nobody else notices.
        """
        killed = sum(self.schedule(seed, 0.01, 2)["killed"] for seed in range(20, 20 + self.seeds))
        self.assertGreaterEqual(killed, self.seeds)


class ShmScheduleTests(OwnDirectory, ScheduleTests):
    """
    The same over rings.
    """

    device = "shm0"
