"""
Reliable datagrams between processes under random schedules: connections break, sockets pause, and
everything arrives once and in order.
"""

from __future__ import annotations

from random import Random
from typing import Any

from tests.meeting import ownRunDirectory
from tests.rds_ends import HOST, Process, ProcessesTestCase
from twisted_ib import limits
from twisted_ib.errors import PathLostError, SendBudgetError


class ScheduleTests(ProcessesTestCase):
    """
    Four processes with two sockets each.
    """

    def schedule(self, seed: int, breaks: float, kills: int = 0) -> dict[str, int]:
        """
        Run one schedule.

        @param breaks: How often a connection breaks, of all actions.
        @param kills: How many processes are killed; what they sent and got is not looked at.
        @return: How often what happened.
        """
        random = Random(seed)
        processes = [self.process() for _ in range(4)]
        sockets: dict[int, Any] = {}
        owner: dict[int, Process] = {}
        for index, process in enumerate(processes):
            for n in range(2):
                port = 1000 * (seed % 60) + 100 * index + n + 2000
                sockets[port], owner[port] = process.listen(port), process
        sent: dict[tuple[int, int], list[bytes]] = {}
        happened = {"sent": 0, "broken": 0, "killed": 0}
        ports = list(sockets)
        for _ in range(1200):
            action = random.random()
            living = [process for process in processes if process.alive]
            port, to = random.choice(ports), random.choice(ports)
            if action < 0.5:
                if owner[port].alive and owner[to].alive:
                    size = random.choice((0, 1, 100, 5000, 70_000, 200_000))
                    for _ in range(random.choice((1, 1, 30))):
                        number = len(sent.get((port, to), ()))
                        data = b"%d " % number + bytes([number % 256]) * size
                        try:
                            sockets[port].transport.write(data, (HOST, to))
                        except SendBudgetError:
                            break
                        sent.setdefault((port, to), []).append(data)
                        happened["sent"] += 1
            elif action < 0.9:
                for _ in range(random.choice((1, 3, 20))):
                    random.choice(living).turn()
            elif action < 0.93:
                if owner[port].alive:
                    random.choice(
                        (sockets[port].transport.pauseProducing, sockets[port].transport.resumeProducing)
                    )()
            elif action < 0.96:
                seconds = random.choice((0.001, 0.01, 0.1))
                for process in living:
                    process.reactor.advance(seconds)
            elif action < 0.96 + breaks:
                sessions = list(random.choice(living).medium.sessions.values())
                if sessions:
                    random.choice(sessions).broken(PathLostError("broken by the test"))
                    happened["broken"] += 1
            elif happened["killed"] < kills and action > 0.995:
                random.choice(living).kill()
                happened["killed"] += 1
        for port, socket in sockets.items():
            if owner[port].alive:
                socket.transport.resumeProducing()
        self.pass_(limits.RDS_GONE_SECONDS + 5.0, 0.25)
        for (port, to), expected in sent.items():
            if owner[port].alive and owner[to].alive:
                got = [data for data, address in sockets[to].got if address == (HOST, port)]
                self.assertEqual(len(got), len(expected), (seed, port, to))
                self.assertTrue(got == expected, (seed, port, to))
        living = [process for process in processes if process.alive]
        for process in living:
            self.assertLess(process.queuePairs, len(processes), seed)
            for path in process.network.paths.values():
                if path.key[2] is not None:
                    self.assertTrue(path.machine.isIdle(), (seed, path.key))
        for port, socket in sockets.items():
            if owner[port].alive:
                socket.socket.stopListening()
        self.pass_(limits.RDS_LINGER_SECONDS + 1, 1.0)
        for process in living:
            self.assertEqual((process.queuePairs, process.reactor.getDelayedCalls()), (0, []), seed)
            self.assertEqual(process.reactor.readers, [], seed)
        self.close()
        self.processes.clear()
        return happened

    def test_whole(self) -> None:
        """
        Nothing breaks.
        """
        for seed in range(3):
            self.assertGreater(self.schedule(seed, 0.0)["sent"], 1000)

    def test_broken(self) -> None:
        """
        Connections break all the time.
        """
        for seed in range(10, 16):
            self.assertGreater(self.schedule(seed, 0.03)["broken"], 10)

    def test_killed(self) -> None:
        """
        Processes are killed; nobody else notices.
        """
        killed = sum(self.schedule(seed, 0.01, 2)["killed"] for seed in range(20, 26))
        self.assertGreater(killed, 3)


class ShmScheduleTests(ScheduleTests):
    """
    The same over rings.
    """

    device = "shm0"

    def setUp(self) -> None:
        """
        In a run directory of its own.
        """
        ownRunDirectory(self)
        super().setUp()
