"""
Random graphs over C{ib://} for a long time: memory, registrations and descriptors of each process stay flat.

    python -m tests.dask.soak [--minutes 60] [--seed 1] [--protocol ib]

Each graph has arrays of 1 byte to 8 MiB on both workers and sums of random ones; each result is compared.
Each minute it prints, of scheduler and client, and of both workers: resident memory, what of it is kept for
frames to come, Python's blocks of memory, memory regions while nothing runs, descriptors, threads.  In the
blocks is seen what grows with each graph in Dask itself: over C{tcp} there are as many.

The exit status is 1 if one of these is more at the end than after a tenth of the time: regions at all,
descriptors or threads by what pools may add, memory by more than a tenth and 64 MiB.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.support.waiting import HANG_SECONDS

#: The longest array, bytes.
_MOST = 8 << 20
_SECONDS = 2 * HANG_SECONDS
_PAGE = os.sysconf("SC_PAGESIZE")
#: What resident memory may grow by: that of the allocator, which differs from graph to graph.
_GROWTH = 64 << 20
_PARTS = ("resident", "kept", "blocks", "regions", "descriptors", "threads")
#: What may be added meanwhile, as pools of connections and threads have their bounds.
_ADDED = {"regions": 0, "descriptors": 16, "threads": 8}


async def state() -> dict[str, int]:
    """
    @return: What this process has; in its event loop's thread.
    """
    from twisted_ib.aio.reactor import reactorOf
    from twisted_ib.dask.memory import recycled
    from twisted_ib.internet.readers import channelsOf

    channels = channelsOf(reactorOf(asyncio.get_running_loop()))
    return {
        "resident": int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE,
        "kept": recycled.kept,
        "blocks": sys.getallocatedblocks(),
        "regions": sum(len(each.device.memory.regions) for each in channels),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
    }


def made(value: int, length: int) -> Any:
    """
    @return: An array.
    """
    import numpy

    return numpy.full(length, value, "u1")


def mixed(*arrays: Any) -> Any:
    """
    @return: The sum of as many bytes as the shortest has.
    """
    length = min(len(each) for each in arrays)
    return sum(each[:length] for each in arrays)


def graph(client: Any, workers: list[str], drawn: random.Random) -> None:
    """
    Have one computed, and compare.

    @raise AssertionError: A result is wrong.
    """
    expected = [(drawn.randrange(256), int(_MOST ** drawn.random())) for _ in range(drawn.randrange(1, 5))]
    futures = [client.submit(made, *each, workers=drawn.choice(workers), pure=False) for each in expected]
    for _ in range(drawn.randrange(1, 8)):
        chosen = [drawn.randrange(len(futures)) for _ in range(drawn.randrange(1, 4))]
        values, lengths = zip(*(expected[number] for number in chosen), strict=True)
        expected.append((sum(values) % 256, min(lengths)))
        several = [futures[number] for number in chosen]
        futures.append(client.submit(mixed, *several, workers=drawn.choice(workers), pure=False))
    for result, (value, length) in zip(client.gather(futures), expected, strict=True):
        assert len(result) == length, (len(result), length)
        assert (result == value).all(), value


def states(client: Any) -> dict[str, dict[str, int]]:
    """
    @return: Of each process what it has, once nothing is lent any more.
    """
    deadline = time.monotonic() + _SECONDS
    while True:
        workers = client.run(state)
        found = {"here": client.run_on_scheduler(state)}
        found.update((f"worker {number}", workers[each]) for number, each in enumerate(sorted(workers)))
        if not any(each["regions"] for each in found.values()) or time.monotonic() > deadline:
            return found


def grown(first: dict[str, dict[str, int]], last: dict[str, dict[str, int]]) -> list[str]:
    """
    @return: What has grown, as lines.
    """
    lines = []
    for process, before in first.items():
        after = last[process]
        # Kept memory has a bound of its own.
        resident = [each["resident"] - each["kept"] for each in (before, after)]
        for each, added in _ADDED.items():
            if after[each] > before[each] + added:
                lines.append(f"{process}: {each} {before[each]} -> {after[each]}")
        if resident[1] > resident[0] * 1.1 + _GROWTH:
            lines.append(f"{process}: resident {resident[0]} -> {resident[1]}")
    return lines


def main() -> int:
    """
    @return: The exit status.
    """
    from distributed import Client, LocalCluster

    parser = argparse.ArgumentParser(prog="python -m tests.dask.soak")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--protocol", default="ib")
    options = parser.parse_args()
    drawn = random.Random(options.seed)
    cluster_ = {"n_workers": 2, "threads_per_worker": 2, "dashboard_address": None, "memory_limit": 0}
    with LocalCluster(protocol=options.protocol, **cluster_) as cluster, Client(cluster) as client:
        workers = list(client.scheduler_info()["workers"])
        start = now = time.monotonic()
        end, count, warm, last = start + options.minutes * 60, 0, None, {}
        while now < end:
            step = min(now + 60, end)
            while (now := time.monotonic()) < step:
                graph(client, workers, drawn)
                count += 1
            last = states(client)
            if warm is None and now >= start + options.minutes * 6:
                warm = last
            lines = [f"minute {(now - start) / 60:.0f}, {count} graphs"]
            for name, one in last.items():
                lines.append(f"  {name}: " + ", ".join(f"{part} {one[part]}" for part in _PARTS))
            print("\n".join(lines), flush=True)
        lines = grown(warm or last, last)
    print("\n".join(lines) or "nothing has grown", flush=True)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
