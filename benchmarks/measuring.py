"""
How fast bytes move, and what that costs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

Figures = dict[str, float]


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
