"""
Tests of schedulers, workers and clients of Dask over C{ib://}.
"""

from __future__ import annotations

import logging
import random
import re
import subprocess
from operator import add
from typing import Any

from tests.aio.case import HOST
from tests.dask.case import SKIP, CommTestCase
from tests.support.commands import interpreter
from twisted_ib import limits
from twisted_ib.hca.memory.access import Access
from twisted_ib.internet.readers import channelsOf

if not SKIP:
    from distributed import Client, Scheduler, Worker

#: Longer than a message, so its arrays are lent.
_LONG = 3 * limits.DASK_FRAME_BYTES
_GRAPHS = 30
_SEED = 20


def made(number: int) -> bytes:
    """
    @return: Bytes of one value.
    """
    return bytes([number]) * _LONG


def mixed(*several: bytes) -> bytes:
    """
    @return: Bytes of the length of one, each the sum of the first ones of all.
    """
    return bytes([sum(each[0] for each in several) % 251]) * _LONG


class ClusterTests(CommTestCase):
    """
    Clusters.
    """

    def setUp(self) -> None:
        """
        Have Dask say nothing.
        """
        super().setUp()
        log = logging.getLogger("distributed")
        self.addCleanup(log.setLevel, log.level)
        log.setLevel(logging.WARNING)

    def test_commands(self) -> None:
        """
        Dask's commands start a scheduler and a worker, and a client has its result of them.
        """
        scheduler = self._dask(
            "scheduler", "--protocol", "ib", "--host", HOST, "--port", "0", "--no-dashboard"
        )
        address = ""
        while not address:
            line = scheduler.stderr.readline()
            self.assertTrue(line, "it has ended")
            found = re.search(r"Scheduler at: +(ib://\S+)", line)
            address = found[1] if found else ""
        self._dask("worker", address, "--no-nanny", "--no-dashboard", "--local-directory", self.folder)
        self.play(self._asked(address))

    def _dask(self, *arguments: str) -> Any:
        return interpreter(self, "-m", "dask", *arguments, stderr=subprocess.PIPE)

    async def _asked(self, address: str) -> None:
        async with Client(address, asynchronous=True) as client:
            self.assertEqual(await client.submit(add, 1, 2), 3)
            # Their processes know no modules of the tests.
            self.assertEqual(await client.submit(bytes, _LONG), bytes(_LONG))

    def test_graphs(self) -> None:
        """
        After many random graphs nothing is lent any more.
        """
        self.play(self._graphs())

    async def _graphs(self) -> None:
        drawn = random.Random(_SEED)
        quiet = {"host": HOST, "dashboard_address": None}
        async with Scheduler(protocol="ib", port=0, dashboard=False, **quiet) as scheduler:
            address = scheduler.address
            options = {"nthreads": 1, "dashboard": False, "local_directory": self.folder, **quiet}
            async with (
                Worker(address, **options) as first,
                Worker(address, **options) as second,
                Client(address, asynchronous=True) as client,
            ):
                workers = [first.address, second.address]
                for _ in range(_GRAPHS):
                    await self._graph(client, workers, drawn)
                await self.until(lambda: not self._lent())

    def _lent(self) -> list[Any]:
        devices = [each.device for each in channelsOf(self.loop.reactor)]
        regions = [region for device in devices for region in device.memory.regions.values()]
        return [region for region in regions if region.access & Access.REMOTE_READ]

    async def _graph(self, client: Any, workers: list[str], drawn: random.Random) -> None:
        expected = [made(drawn.randrange(251)) for _ in range(2)]
        futures = [
            client.submit(made, each[0], workers=drawn.choice(workers), pure=False) for each in expected
        ]
        for _ in range(drawn.randrange(1, 5)):
            chosen = [drawn.randrange(len(futures)) for _ in range(drawn.randrange(1, 4))]
            expected.append(mixed(*(expected[number] for number in chosen)))
            several = [futures[number] for number in chosen]
            futures.append(client.submit(mixed, *several, workers=drawn.choice(workers), pure=False))
        self.assertEqual(await client.gather(futures), expected, f"the seed is {_SEED}")
