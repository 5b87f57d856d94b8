"""
The subjects of other event loops: asyncio's C{BufferedProtocol}, on its own loop or uvloop, over TCP with
NODELAY.

Talks to the driver as L{benchmarks.worker} does:
C{python -m benchmarks.loops (server|client) REACTOR (asyncio|uvloop)}, where the reactor is of no interest.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from importlib import import_module
from time import perf_counter
from typing import Any

from benchmarks.clients import answerRows, chunksOf, latencies, manyDescriptors
from benchmarks.footprint import IDLE_TIMES, REST_SECONDS, SETTLE_SECONDS, Idleness
from twisted_ib.tools.compare.asyncioprocess import HOST, Client, serve
from twisted_ib.tools.compare.measuring import (
    ContentError,
    Figures,
    checkStream,
    cpuNanoseconds,
    deadlineIn,
    measured,
    pattern,
)

#: How many connects are under way at a time.
CONNECTING = 32


class Bench:
    """
    Where the server is.
    """

    def __init__(self, command: dict[str, Any]) -> None:
        """
        @param command: The row, as the driver tells it.
        """
        self.command = command
        self.size: int = command["size"]
        self.seconds: float = command["seconds"]
        self.processes = (os.getpid(), command["server"])

    async def connect(self, service: str) -> Client:
        """
        Make one connection.
        """
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(Client, HOST, int(self.command[service]))
        return client

    def cpuNanoseconds(self) -> int:
        """
        CPU time of both processes so far.
        """
        return cpuNanoseconds(self.processes)

    async def checked(self) -> Client:
        """
        A connection that has had its message back as it was.
        """
        client = await self.connect("echo")
        message = pattern(self.size)
        if await client.collect(message) != message:
            raise ContentError("an echo differs")
        return client


async def roundTrip(bench: Bench) -> Figures:
    """
    One message out and back, again and again.
    """
    client = await bench.checked()
    times: list[int] = []
    message = pattern(bench.size)
    await client.call(message, deadlineIn(bench.seconds / 4), [])
    await client.call(message, deadlineIn(bench.seconds), times)
    await client.close()
    return latencies(times)


async def stream(bench: Bench) -> Figures:
    """
    Write until the announced length is acknowledged.
    """
    size = bench.size
    chunks = chunksOf(size, bench.command["workload"] == "cold")
    client = await bench.connect("sink")

    async def move(count: int) -> None:
        """
        One whole stream.
        """
        await client.send(chunks, count)

    figures = await measured(bench.cpuNanoseconds, move, max(8, (1 << 18) // size), size, bench.seconds)
    await checkStream(client, size, 9)
    await client.close()
    return figures


async def crowd(bench: Bench) -> Figures:
    """
    Many connections, each with one message under way.
    """
    callers = [await bench.checked() for _ in range(bench.command["count"])]
    message = pattern(bench.size)
    for seconds in (bench.seconds / 4, bench.seconds):
        times: list[int] = []
        used, begun = bench.cpuNanoseconds(), perf_counter()
        deadline = deadlineIn(seconds)
        await asyncio.gather(*[each.call(message, deadline, times) for each in callers])
        took, used = perf_counter() - begun, bench.cpuNanoseconds() - used
    await asyncio.gather(*[each.close() for each in callers])
    return {"msg/s": len(times) / took, "CPU/msg": used / len(times) / 1e3}


async def connects(bench: Bench) -> Figures:
    """
    Connect, echo once, close, L{CONNECTING} at a time.
    """
    end = perf_counter() + bench.seconds
    count = 0

    async def chain() -> None:
        """
        One after the other.
        """
        nonlocal count
        while perf_counter() < end:
            await (await bench.checked()).close()
            count += 1

    begun = perf_counter()
    await asyncio.gather(*[chain() for _ in range(CONNECTING)])
    return {"conn/s": count / (perf_counter() - begun)}


async def idle(bench: Bench) -> Figures:
    """
    Connections that are open and silent, after one echo each.
    """
    count = bench.command["count"]
    kept = [await bench.checked()]
    await asyncio.sleep(SETTLE_SECONDS)
    idleness = Idleness(bench.processes, count)
    for _ in range(count):
        kept.append(await bench.checked())
    await asyncio.sleep(SETTLE_SECONDS)
    idleness.connected()
    await asyncio.sleep(REST_SECONDS)
    idleness.rested()
    await asyncio.sleep(bench.seconds * IDLE_TIMES)
    return idleness.figures()


WORKLOADS: dict[str, Callable[[Bench], Coroutine[Any, Any, Figures]]] = {
    "roundTrip": roundTrip,
    "stream": stream,
    "cold": stream,
    "crowd": crowd,
    "scale": crowd,
    "idle": idle,
    "connects": connects,
}


if __name__ == "__main__":
    manyDescriptors()
    run = import_module(sys.argv[3]).run
    if sys.argv[1] == "server":
        run(serve())
    else:
        answerRows(lambda command: run(WORKLOADS[command["workload"]](Bench(command))))
