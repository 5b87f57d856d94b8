"""
How all clients measure: the time of round trips, and the rate of a stream until its last byte has arrived.

A client has C{call}, C{collect} or C{send}, whose results can be awaited, under Twisted and asyncio alike
(L{applications<twisted_ib.tools.compare.twistedprocess>},
L{asyncioprocess<twisted_ib.tools.compare.asyncioprocess>}).
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from time import clock_gettime_ns, perf_counter, perf_counter_ns
from typing import Any

#: The kinds of client: of one round trip after the other, of one whose bytes are compared, of a stream.
CALLER, COLLECTOR, SOURCE = "caller", "collector", "source"

#: The measures, by their names in commands; and what comes before them.
LATENCY, THROUGHPUT, WARM = "latency", "throughput", "warm"

Figures = dict[str, float]

#: Returns the connection for one of the three, the same each time.
Connect = Callable[[str], Awaitable[Any]]

#: Messages, and bytes of each, before anything is measured.
_WARM_MESSAGES, _WARM_BYTES = 192, 48 * 1024

#: Bytes of the first stream, which warms up and sets the length of the next one.
_FIRST_BYTES = 1 << 18

#: The least bytes of a stream whose content is compared.
_CHECKED_BYTES = 1 << 18


class ContentError(Exception):
    """
    Other bytes arrived than were sent.
    """


def pattern(length: int) -> bytes:
    """
    @return: bytes in which no part looks like another; the same in every run.
    """
    return random.Random(length).randbytes(length)


def percentile(ordered: Sequence[int], share: float) -> float:
    """
    @return: the value below which C{share} of the sorted values lie.
    """
    return float(ordered[min(len(ordered) - 1, int(len(ordered) * share))])


def cpuNanoseconds(processes: Sequence[int]) -> int:
    """
    @param processes: their ids.
    @return: the CPU time of processes so far, user and system.
    """
    # The clock of another process: ((~pid) << 3) | CPUCLOCK_SCHED, what clock_getcpuclockid(3) computes.
    return sum(clock_gettime_ns((~pid << 3) | 2) for pid in processes)


def deadlineIn(seconds: float) -> int:
    """
    @return: a moment of C{perf_counter_ns}.
    """
    return perf_counter_ns() + int(seconds * 1e9)


async def measured(
    cpu: Callable[[], int], move: Callable[[int], Awaitable[Any]], count: int, size: int, seconds: float
) -> Figures:
    """
    Measure a stream of about so many seconds.

    A short one first: it warms up, and its rate sets the length of the one that counts.

    @param cpu: reads the CPU time of both processes, in nanoseconds.
    @param move: moves that many pieces.
    @param count: the pieces of the first short stream.
    @param size: the bytes of a piece.
    @return: C{MB/s}, and C{CPU} in nanoseconds for each KiB.
    """
    while True:
        begun = perf_counter()
        await move(count)
        took = perf_counter() - begun
        if took >= seconds / 8:
            break
        count = int(count * min(8.0, max(1.5, seconds / 4 / took)))
    count = max(1, int(count * seconds / took))
    used, begun = cpu(), perf_counter()
    await move(count)
    took, used = perf_counter() - begun, cpu() - used
    moved = size * count
    return {"MB/s": moved / took / 1e6, "CPU": used * 1024 / moved, "bytes": float(moved), "seconds": took}


async def warm(connect: Connect, size: int, seconds: float, cpu: Callable[[], int]) -> Figures:
    """
    Send messages both ways, so that all memory that two processes share has been used.

    The kernel gives its pages at their first use only, which takes longer than what is measured.
    """
    collector = await connect(COLLECTOR)
    message = pattern(_WARM_BYTES)
    for _ in range(_WARM_MESSAGES):
        await collector.collect(message)
    return {}


async def latency(connect: Connect, size: int, seconds: float, cpu: Callable[[], int]) -> Figures:
    """
    Measure one message out and back, again and again.

    @return: C{p50} in microseconds, and C{CPU} of a round trip, too.
    """
    message = pattern(size)
    collector = await connect(COLLECTOR)
    if await collector.collect(message) != message:
        raise ContentError(f"an echo of {size} bytes differs")
    caller = await connect(CALLER)
    await caller.call(message, deadlineIn(seconds / 4), [])
    times: list[int] = []
    used = cpu()
    await caller.call(message, deadlineIn(seconds), times)
    used = cpu() - used
    times.sort()
    return {"p50": percentile(times, 0.5) / 1e3, "CPU": used / len(times) / 1e3, "count": float(len(times))}


async def throughput(connect: Connect, size: int, seconds: float, cpu: Callable[[], int]) -> Figures:
    """
    Measure a stream of writes of one size.

    @return: as L{measured}.
    """
    source = await connect(SOURCE)
    send = partial(source.send, [pattern(size)])
    figures = await measured(cpu, send, max(8, _FIRST_BYTES // size), size, seconds)
    await checkStream(source, size, max(2, _CHECKED_BYTES // size))
    return figures


async def checkStream(source: Any, size: int, count: int) -> None:
    """
    Send a stream in which no two chunks are alike, which must have the same hash at the other end.

    @raise ContentError: it has not.
    """
    content = pattern(size + count)
    chunks = [content[at : at + size] for at in range(count)]
    if await source.send(chunks, count, True) != hashlib.sha256(b"".join(chunks)).digest():
        raise ContentError(f"a stream of {size} byte writes differs")


MEASURES: dict[str, Callable[[Connect, int, float, Callable[[], int]], Coroutine[Any, Any, Figures]]] = {
    LATENCY: latency,
    THROUGHPUT: throughput,
    WARM: warm,
}


async def perform(command: Mapping[str, Any], connect: Connect) -> Figures:
    """
    Measure what a command of the driver asks for.
    """
    processes = os.getpid(), command["server"]
    run = MEASURES[command["measure"]]
    return await run(connect, command["size"], command["seconds"], lambda: cpuNanoseconds(processes))
