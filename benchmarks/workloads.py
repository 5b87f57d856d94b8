"""
The client's part of one row: connect, warm up, check, measure.

Each workload is C{async def workload(bench, size, seconds) -> figures}.
Whatever is compared between both ends is compared outside the timed part.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import perf_counter

from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread

from benchmarks.bench import CONNECTING, Bench, many
from benchmarks.clients import SPACE_SECONDS, chunksOf, latencies
from benchmarks.crowds import crowd, idle, scale
from benchmarks.registered import rdmaRead, rdmaWrite, rdmaWriteCold
from twisted_ib.tools.compare.measuring import (
    ContentError,
    Figures,
    checkStream,
    deadlineIn,
    measured,
    pattern,
)
from twisted_ib.tools.compare.twistedprocess import Caller, Collector, Source

#: The least bytes of a checked stream.
CHECKED_BYTES = 1 << 20


async def roundTrip(bench: Bench, size: int, seconds: float) -> Figures:
    """
    One message out and back, again and again: percentiles in microseconds.
    """
    await bench.checkEcho(size)
    return await _percentiles(bench, bench.echo, size, seconds)


async def spaced(bench: Bench, size: int, seconds: float) -> Figures:
    """
    One message out and back, and a pause in which both ends fall asleep, again and again.
    """
    await bench.checkEcho(size)
    caller = await bench.connect(bench.echo, Caller)
    message = pattern(size)
    times: list[int] = []
    end = perf_counter() + seconds
    while perf_counter() < end:
        await deferLater(bench.reactor, SPACE_SECONDS)
        await caller.call(message, 0, times)
    await caller.close()
    return latencies(times)


async def throughThread(bench: Bench, size: int, seconds: float) -> Figures:
    """
    The same with a server that asks one of its threads each time.
    """
    return await _percentiles(bench, bench.thread, size, seconds)


async def _percentiles(bench: Bench, endpoint: IStreamClientEndpoint, size: int, seconds: float) -> Figures:
    """
    Time round trips to a service.
    """
    caller = await bench.connect(endpoint, Caller)
    message = pattern(size)
    await caller.call(message, deadlineIn(seconds / 4), [])
    times: list[int] = []
    await caller.call(message, deadlineIn(seconds), times)
    await caller.close()
    return latencies(times)


async def _stream(bench: Bench, chunks: Sequence[bytes], seconds: float) -> Figures:
    """
    Write until the announced length is acknowledged: MB/s and CPU time.
    """
    size = len(chunks[0])
    source = await bench.connect(bench.sink, Source)
    count = max(8, (1 << 18) // size)
    figures = await measured(bench.cpuNanoseconds, partial(source.send, chunks), count, size, seconds)
    await checkStream(source, size, max(2, CHECKED_BYTES // size))
    await source.close()
    return figures


async def stream(bench: Bench, size: int, seconds: float) -> Figures:
    """
    The same buffer is written again and again.
    """
    return await _stream(bench, chunksOf(size, False), seconds)


async def cold(bench: Bench, size: int, seconds: float) -> Figures:
    """
    Buffers that no cache holds are written in turn.
    """
    return await _stream(bench, chunksOf(size, True), seconds)


async def connects(bench: Bench, size: int, seconds: float) -> Figures:
    """
    Connect, echo once, close, L{CONNECTING} at a time: connections a second.
    """
    message = pattern(size)

    async def one() -> None:
        """
        One whole connection.
        """
        collector = await bench.connect(bench.echo, Collector)
        if await collector.collect(message) != message:
            raise ContentError("a first echo differs")
        await collector.close()

    count = CONNECTING
    while True:
        begun = perf_counter()
        await many(count, one)
        took = perf_counter() - begun
        if took >= seconds / 4:
            break
        count *= 2
    count = max(CONNECTING, int(count * seconds / took))
    cpu, begun = bench.cpuNanoseconds(), perf_counter()
    await many(count, one)
    took, cpu = perf_counter() - begun, bench.cpuNanoseconds() - cpu
    return {"conn/s": count / took, "CPU/conn": cpu / count / 1e3, "count": float(count)}


async def threads(bench: Bench, size: int, seconds: float) -> Figures:
    """
    Calls to a thread, one after the other, while a message goes back and
    forth: calls a second.
    """
    caller = await bench.connect(bench.echo, Caller)
    times: list[int] = []
    talking = caller.call(pattern(size), deadlineIn(seconds), times)
    calls = 0
    begun = perf_counter()
    while perf_counter() - begun < seconds:
        await deferToThread(sum, range(100))
        calls += 1
    took = perf_counter() - begun
    await talking
    await caller.close()
    return {"calls/s": calls / took, "round trips": float(len(times))}


WORKLOADS: dict[str, Callable[[Bench, int, float], Awaitable[Figures]]] = {
    "roundTrip": roundTrip,
    "spaced": spaced,
    "stream": stream,
    "cold": cold,
    "crowd": crowd,
    "scale": scale,
    "idle": idle,
    "connects": connects,
    "threads": threads,
    "throughThread": throughThread,
    "rdmaWrite": rdmaWrite,
    "rdmaWriteCold": rdmaWriteCold,
    "rdmaRead": rdmaRead,
}
