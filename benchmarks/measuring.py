"""
How fast bytes move, and what that costs: what every kind of process here measures alike.
"""

from __future__ import annotations

import json
import random
import resource
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import clock_gettime_ns, perf_counter
from typing import Any

Figures = dict[str, float]

#: Distinct buffers of the cold source.
COLD_BUFFERS = 128
#: The pause before each round trip that finds both ends asleep.
SPACE_SECONDS = 0.003


def pattern(length: int) -> bytes:
    """
    Bytes in which no part looks like another; the same in every run.
    """
    return random.Random(length).randbytes(length)


def chunksOf(size: int, isCold: bool) -> list[bytes]:
    """
    The buffers that a stream writes in turn: one buffer, or so many that no cache holds them.

    @param size: Bytes of each.
    """
    chunk = pattern(size)
    if not isCold:
        return [chunk]
    return [number.to_bytes(4, "big") + chunk[4:] for number in range(COLD_BUFFERS)]


def percentile(ordered: Sequence[int], share: float) -> float:
    """
    The value below which C{share} of the sorted values lie.
    """
    return float(ordered[min(len(ordered) - 1, int(len(ordered) * share))])


def latencies(times: list[int]) -> Figures:
    """
    Percentiles in microseconds.

    @param times: Nanoseconds, in any order.
    """
    times.sort()
    shares = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
    figures = {name: percentile(times, share) / 1e3 for name, share in shares.items()}
    return figures | {"count": float(len(times))}


def cpuNanoseconds(processes: Sequence[int]) -> int:
    """
    CPU time of processes so far, user and system.

    @param processes: Their ids.
    """
    # The clock of another process: ((~pid) << 3) | CPUCLOCK_SCHED, what
    # clock_getcpuclockid(3) computes.
    return sum(clock_gettime_ns((~pid << 3) | 2) for pid in processes)


def manyDescriptors() -> None:
    """
    Let this process open as many files as it may: 10,000 connections of TCP are as many.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def measured(
    bench: Any, move: Callable[[int], Awaitable[Any]], count: int, size: int, seconds: float
) -> Figures:
    """
    MB/s and CPU time of a run of about so many seconds.

    A short run first: it warms up, and its rate sets the length of the one that counts.

    @param bench: Knows the CPU time of both processes.
    @param move: Moves that many pieces.
    @param count: Pieces of the first short run.
    @param size: Bytes of a piece.
    """
    while True:
        begun = perf_counter()
        await move(count)
        took = perf_counter() - begun
        if took >= seconds / 8:
            break
        count = int(count * min(8.0, max(1.5, seconds / 4 / took)))
    count = max(1, int(count * seconds / took))
    cpu, begun = bench.cpuNanoseconds(), perf_counter()
    await move(count)
    took, cpu = perf_counter() - begun, bench.cpuNanoseconds() - cpu
    moved = size * count
    return {"MB/s": moved / took / 1e6, "CPU": cpu * 1024 / moved, "bytes": float(moved), "seconds": took}


def answerRows(run: Callable[[dict[str, Any]], Mapping[str, object]]) -> None:
    """
    A client without Twisted: run the rows that come on standard input, a JSON object a line, and answer each
    on standard output.

    @param run: gives the figures of a row.
    """
    print('{"ready": true}', flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            figures: dict[str, object] = dict(run(command))
        except (OSError, ValueError) as error:
            figures = {"error": str(error)}
        print(json.dumps(figures), flush=True)
