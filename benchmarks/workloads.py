"""
What a client does for one row: connect, warm up, check, measure.

Each workload is C{async def workload(bench, size, seconds) -> figures}.
Whatever is compared between both ends is compared outside the timed part.
"""

from __future__ import annotations

import hashlib
import random
import struct
import time
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter, perf_counter_ns
from typing import Any, TypeVar

from attrs import define
from twisted.internet.defer import DeferredList, ensureDeferred, gatherResults
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.threads import deferToThread

from benchmarks.measuring import Figures, measured
from benchmarks.protocols import Caller, Collector, Source
from benchmarks.registered import rdmaRead, rdmaWrite, rdmaWriteCold

_P = TypeVar("_P", bound=Protocol)

#: Connections of the crowd, and how many connects are under way at a time.
CROWD = 1000
CONNECTING = 32
#: Distinct buffers of the cold source, and the least bytes of a checked stream.
COLD_BUFFERS = 128
CHECKED_BYTES = 1 << 20


class ContentError(Exception):
    """
    Other bytes arrived than were sent.
    """


@define
class Bench:
    """
    Where the server is.

    @ivar noDelay: Set C{TCP_NODELAY} on each connection that is made.
    @ivar processes: The processes whose CPU time counts.
    """

    echo: IStreamClientEndpoint
    sink: IStreamClientEndpoint
    thread: IStreamClientEndpoint
    memory: IStreamClientEndpoint
    noDelay: bool
    processes: tuple[int, ...]

    async def connect(self, endpoint: IStreamClientEndpoint, protocol: Callable[[], _P]) -> _P:
        """
        Make one connection.
        """
        made: Any = await endpoint.connect(Factory.forProtocol(protocol))
        if self.noDelay:
            made.transport.setTcpNoDelay(True)
        return made

    def cpuNanoseconds(self) -> int:
        """
        CPU time of all processes so far, user and system.
        """
        # The clock of another process: ((~pid) << 3) | CPUCLOCK_SCHED, what
        # clock_getcpuclockid(3) computes.
        return sum(time.clock_gettime_ns((~pid << 3) | 2) for pid in self.processes)


def percentile(ordered: Sequence[int], share: float) -> float:
    """
    The value below which C{share} of the sorted values lie.
    """
    return float(ordered[min(len(ordered) - 1, int(len(ordered) * share))])


def _pattern(length: int) -> bytes:
    """
    Bytes in which no part looks like another; the same in every run.
    """
    return random.Random(length).randbytes(length)


def _deadline(seconds: float) -> int:
    """
    A moment of C{perf_counter_ns}.
    """
    return perf_counter_ns() + int(seconds * 1e9)


async def _checkEcho(bench: Bench, size: int) -> None:
    """
    One message must come back as it was.
    """
    collector = await bench.connect(bench.echo, Collector)
    message = _pattern(size)
    if await collector.collect(message) != message:
        raise ContentError(f"an echo of {size} bytes differs")
    await collector.close()


async def roundTrip(bench: Bench, size: int, seconds: float) -> Figures:
    """
    One message out and back, again and again: percentiles in microseconds.
    """
    await _checkEcho(bench, size)
    return await _percentiles(bench, bench.echo, size, seconds)


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
    message = _pattern(size)
    await caller.call(message, _deadline(seconds / 4), [])
    times: list[int] = []
    await caller.call(message, _deadline(seconds), times)
    await caller.close()
    times.sort()
    shares = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
    figures = {name: percentile(times, share) / 1e3 for name, share in shares.items()}
    return figures | {"count": float(len(times))}


async def _stream(bench: Bench, chunks: Sequence[bytes], seconds: float) -> Figures:
    """
    Write until the announced length is acknowledged: MB/s and CPU time.
    """
    size = len(chunks[0])
    source = await bench.connect(bench.sink, Source)
    count = max(8, (1 << 18) // size)
    figures = await measured(bench, lambda count: source.send(chunks, count), count, size, seconds)
    await _checkStream(source, size)
    await source.close()
    return figures


async def _checkStream(source: Source, size: int) -> None:
    """
    A stream of the same write size in which every chunk differs must have the
    same hash on the other side.
    """
    count = max(2, CHECKED_BYTES // size)
    content = _pattern(size + count)
    chunks = [content[at : at + size] for at in range(count)]
    # Source begins with the second chunk.
    order = [*chunks[1:], chunks[0]]
    wanted = hashlib.sha256(b"".join(order)).digest()
    if await source.send(chunks, count, True) != wanted:
        raise ContentError(f"a stream of {size} byte writes differs")


async def stream(bench: Bench, size: int, seconds: float) -> Figures:
    """
    The same buffer is written again and again.
    """
    return await _stream(bench, [_pattern(size)], seconds)


async def cold(bench: Bench, size: int, seconds: float) -> Figures:
    """
    Buffers that no cache holds are written in turn.
    """
    rest = _pattern(size - 4)
    chunks = [struct.pack(">I", each) + rest for each in range(COLD_BUFFERS)]
    return await _stream(bench, chunks, seconds)


async def _many(count: int, one: Callable[[], Awaitable[None]]) -> None:
    """
    Await C{one()} C{count} times, L{CONNECTING} at a time.
    """
    left = count

    async def chain() -> None:
        """
        One after the other while there are any left.
        """
        nonlocal left
        while left:
            left -= 1
            await one()

    await gatherResults(
        [ensureDeferred(_coroutine(chain)) for _ in range(CONNECTING)],
        consumeErrors=True,
    )


async def _coroutine(function: Callable[[], Awaitable[None]]) -> None:
    """
    What C{ensureDeferred} wants, from anything that can be awaited.
    """
    await function()


async def crowd(bench: Bench, size: int, seconds: float) -> Figures:
    """
    L{CROWD} connections, each with one message under way: messages a second.
    """
    callers: list[Caller] = []

    async def join() -> None:
        """
        One more connection.
        """
        callers.append(await bench.connect(bench.echo, Caller))

    await _checkEcho(bench, size)
    await _many(CROWD, join)
    message = _pattern(size)

    async def talk(span: float) -> list[int]:
        """
        Everybody calls until the time is over.
        """
        times: list[int] = []
        deadline = _deadline(span)
        await gatherResults(
            [each.call(message, deadline, times) for each in callers],
            consumeErrors=True,
        )
        return times

    await talk(seconds / 4)
    begun = perf_counter()
    times = await talk(seconds)
    took = perf_counter() - begun
    await DeferredList([each.close() for each in callers])
    times.sort()
    return {
        "msg/s": len(times) / took,
        "p50": percentile(times, 0.5) / 1e3,
        "p99": percentile(times, 0.99) / 1e3,
        "count": float(len(times)),
    }


async def connects(bench: Bench, size: int, seconds: float) -> Figures:
    """
    Connect, echo once, close, L{CONNECTING} at a time: connections a second.
    """
    message = _pattern(size)

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
        await _many(count, one)
        took = perf_counter() - begun
        if took >= seconds / 4:
            break
        count *= 2
    count = max(CONNECTING, int(count * seconds / took))
    begun = perf_counter()
    await _many(count, one)
    return {"conn/s": count / (perf_counter() - begun), "count": float(count)}


async def threads(bench: Bench, size: int, seconds: float) -> Figures:
    """
    Calls to a thread, one after the other, while a message goes back and
    forth: calls a second.
    """
    caller = await bench.connect(bench.echo, Caller)
    times: list[int] = []
    talking = caller.call(_pattern(size), _deadline(seconds), times)
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
    "stream": stream,
    "cold": cold,
    "crowd": crowd,
    "connects": connects,
    "threads": threads,
    "throughThread": throughThread,
    "rdmaWrite": rdmaWrite,
    "rdmaWriteCold": rdmaWriteCold,
    "rdmaRead": rdmaRead,
}
