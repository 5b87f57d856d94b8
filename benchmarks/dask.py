"""
Dask over C{ib://} beside C{tcp://}: two workers of one thread over each, and the same work in turns.

    python -m benchmarks.dask [--rows transfer,tasks,transpose,adds] [--rounds 7] [--mib 128]
                              [--tasks 10000] [--gib 4] [--device roce0] [--json FILE]

  - C{transfer}: an array of C{--mib} MiB goes from one worker to the other
  - C{tasks}: C{--tasks} empty tasks
  - C{transpose}: C{x + x.T} of C{--gib} GiB in 8 times 8 chunks
  - C{adds}: the same additions, each chunk and its own transposed, so that none is moved: what C{transpose}
    would take if moving cost nothing

Of each round it prints the time and all CPU time; the medians at the end are with the CPU time, page faults
and context switches of each process: the sender and the receiver of C{transfer}, else both workers; C{here}
are scheduler and client.  It needs dask[array].
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

PROTOCOLS = ("tcp", "ib")
_SECONDS = 600
_CHUNKS = 8
_PROCESSES = ("first", "second", "here")

#: CPU seconds, minor page faults, context switches.
Usage = tuple[float, int, int]


def usage() -> Usage:
    """
    @return: That of this process.
    """
    found = resource.getrusage(resource.RUSAGE_SELF)
    return found.ru_utime + found.ru_stime, found.ru_minflt, found.ru_nvcsw + found.ru_nivcsw


def array(mib: int) -> Any:
    """
    @return: An array, each page of which is written.
    """
    return import_module("numpy").ones(mib << 20, "u1")


def nothing(*_: object) -> None:
    """
    Do nothing.
    """


def folded(chunk: Any) -> Any:
    """
    @return: The sum of a chunk and its transposed.
    """
    return chunk + chunk.T


class Cluster:
    """
    Two workers over one protocol.
    """

    def __init__(self, protocol: str) -> None:
        distributed = import_module("distributed")
        self.name = protocol
        # No spilling: it would be measured.
        memory = {"memory_limit": 0, "dashboard_address": None}
        self._cluster = distributed.LocalCluster(
            protocol=protocol, n_workers=2, threads_per_worker=1, **memory
        )
        self.client = distributed.Client(self._cluster)
        self.workers = list(self.client.scheduler_info()["workers"])

    def usages(self) -> dict[str, Usage]:
        """
        @return: Those of the workers and of this process.
        """
        found = self.client.run(usage)
        return {"first": found[self.workers[0]], "second": found[self.workers[1]], "here": usage()}

    def measured(self, prepare: Callable[[], Any], run: Callable[[Any], object]) -> dict[str, Any]:
        """
        @return: Seconds, and what each process has used.
        """
        given = prepare()
        before = self.usages()
        start = time.perf_counter()
        run(given)
        seconds = time.perf_counter() - start
        after = self.usages()
        used = {each: [b - a for a, b in zip(before[each], after[each], strict=True)] for each in before}
        return {"seconds": seconds, **used}

    def transfer(self, mib: int) -> dict[str, Any]:
        """
        Have an array go from the first worker to the second.
        """
        client, (first, second) = self.client, self.workers

        def made() -> Any:
            future = client.submit(array, mib, workers=first, pure=False)
            self._wait(future)
            return future

        def moved(future: Any) -> None:
            client.submit(nothing, future, workers=second, pure=False).result(_SECONDS)

        return self.measured(made, moved)

    def tasks(self, count: int) -> dict[str, Any]:
        """
        Do nothing so many times.
        """
        return self.measured(
            lambda: None, lambda _: self._wait(self.client.map(nothing, range(count), pure=False))
        )

    def transpose(self, gib: float) -> dict[str, Any]:
        """
        Add an array and its transposed.
        """
        return self._added(gib, lambda whole: whole + whole.T)

    def adds(self, gib: float) -> dict[str, Any]:
        """
        Add each chunk and its transposed.
        """
        return self._added(gib, lambda whole: whole.map_blocks(folded))

    def _added(self, gib: float, add: Callable[[Any], Any]) -> dict[str, Any]:
        arrays, numpy = import_module("dask.array"), import_module("numpy")
        side = int((gib * (1 << 30) / 8) ** 0.5) // _CHUNKS * _CHUNKS

        def made() -> Any:
            with self.client.as_current():
                # ones() alone are one number that stands for all.
                whole = arrays.ones((side, side), chunks=side // _CHUNKS).map_blocks(numpy.array).persist()
            self._wait(whole)
            return whole

        def run(whole: Any) -> None:
            with self.client.as_current():
                added = add(whole).persist()
            self._wait(added)

        return self.measured(made, run)

    def _wait(self, futures: Any) -> None:
        # It waits in the event loop of the current client.
        with self.client.as_current():
            import_module("distributed").wait(futures, timeout=_SECONDS)

    def close(self) -> None:
        """
        End it.
        """
        self.client.close()
        self._cluster.close()


def summary(row: str, found: dict[str, list[dict[str, Any]]], mib: int) -> str:
    """
    @return: The medians of a row, as lines.
    """
    lines = []
    medians = {each: statistics.median(one["seconds"] for one in runs) for each, runs in found.items()}
    for protocol, runs in found.items():
        rate = f", {mib / 1024 / medians[protocol]:.2f} GiB/s" if row == "transfer" else ""
        lines.append(f"{row} {protocol}: {medians[protocol] * 1000:.1f} ms{rate}")
        for process in _PROCESSES:
            cpu, faults, switches = (statistics.median(one[process][at] for one in runs) for at in range(3))
            lines.append(
                f"  {process}: CPU {cpu * 1000:.1f} ms, {faults:.0f} page faults, {switches:.0f} switches"
            )
    pairs = zip(*([one["seconds"] for one in found[each]] for each in PROTOCOLS), strict=True)
    ratio = statistics.median(tcp / ib for tcp, ib in pairs)
    return "\n".join([*lines, f"{row}: ib is {ratio:.2f} times as fast as tcp, the median of the rounds"])


def main() -> None:
    """
    Measure.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dask")
    parser.add_argument("--rows", default="transfer,tasks,transpose")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--mib", type=int, default=128)
    parser.add_argument("--tasks", type=int, default=10000)
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--device", help="of ib://, where it is not shm0")
    parser.add_argument("--json")
    options = parser.parse_args()
    if options.device:
        os.environ["DASK_DISTRIBUTED__COMM__IB__DEVICE"] = options.device
    sizes = {"transfer": options.mib, "tasks": options.tasks}
    clusters = [Cluster(each) for each in PROTOCOLS]
    everything = {}
    try:
        for row in options.rows.split(","):
            found: dict[str, list[dict[str, Any]]] = {each: [] for each in PROTOCOLS}
            # The first round is to warm up.
            for number in range(options.rounds + 1):
                for cluster in clusters:
                    one = getattr(cluster, row)(sizes.get(row, options.gib))
                    if number:
                        found[cluster.name].append(one)
                        cpu = sum(one[process][0] for process in _PROCESSES) * 1000
                        print(
                            f"{row} {cluster.name} {one['seconds'] * 1000:.1f} ms, CPU {cpu:.1f}", flush=True
                        )
            everything[row] = found
            print(summary(row, found, options.mib), flush=True)
    finally:
        for cluster in clusters:
            cluster.close()
    if options.json:
        with open(options.json, "w") as file:
            json.dump(everything, file)


if __name__ == "__main__":
    main()
