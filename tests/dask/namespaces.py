"""
Dask between two hosts: two network namespaces with a wire, a worker in each, the scheduler in the first.

    python -m tests.dask.namespaces [--rows tcp,roce0,iwarp0] [--mib 16] [--rounds 6] [--tasks 200]

It needs root.  Of each row, which is C{tcp://} or C{ib://} on that device, it prints the median time of an
array that goes from one worker to the other, and the time of empty tasks.

The exit status is 1 if a row fails or has a wrong result, 77 where there can be no namespaces.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from tests.cprograms.libraries.namespaces import apart, lackingNamespaces
from tests.suites.compare import ROOT
from tests.suites.projects import SKIPPED
from tests.support.waiting import HANG_SECONDS

_PORT = 8786
#: The server's side; the other one is a worker that needs no words.
_FIRST = "first"


def array(mib: int) -> Any:
    """
    @return: An array, each page of which is written.
    """
    import numpy

    return numpy.ones(mib << 20, "u1")


def total(values: Any) -> int:
    """
    @return: The sum.
    """
    return int(values.sum())


def nothing(*_: object) -> None:
    """
    Do nothing.
    """


async def _first(protocol: str, host: str, options: argparse.Namespace) -> None:
    # Scheduler, worker and client.
    from distributed import Client, Scheduler, Worker, wait

    quiet: dict[str, Any] = {"host": host, "dashboard": False, "dashboard_address": None}
    async with (
        Scheduler(protocol=protocol, port=_PORT, **quiet) as scheduler,
        Worker(scheduler.address, nthreads=1, **quiet) as worker,
        Client(scheduler.address, asynchronous=True) as client,
    ):
        await client.wait_for_workers(2)
        (other,) = {*scheduler.workers} - {worker.address}
        ways, times = [(worker.address, other), (other, worker.address)], []
        for number in range(options.rounds):
            there, here = ways[number % 2]
            future = client.submit(array, options.mib, workers=there, pure=False)
            await wait(future)
            start = time.perf_counter()
            assert await client.submit(total, future, workers=here, pure=False) == options.mib << 20
            times.append(time.perf_counter() - start)
        start = time.perf_counter()
        await wait(client.map(nothing, range(options.tasks), pure=False))
        tasks = time.perf_counter() - start
        median = statistics.median(times)
        print(
            f"{options.mib} MiB in {median * 1000:.0f} ms, {options.mib / median:.1f} MiB/s;"
            f" {options.tasks} tasks in {tasks * 1000:.0f} ms; {worker.address}, {other}",
            flush=True,
        )


async def _other(protocol: str, host: str, scheduler: str) -> None:
    from distributed import Worker

    quiet: dict[str, Any] = {"host": host, "dashboard": False, "dashboard_address": None}
    async with Worker(f"{protocol}://{scheduler}:{_PORT}", nthreads=1, **quiet) as worker:
        await worker.finished()


def row(name: str, options: argparse.Namespace) -> bool:
    """
    Have one measured.

    @param name: C{tcp}, or a device.
    @return: Whether it went well.
    """
    with tempfile.TemporaryDirectory(prefix="dask-") as folder, apart(name) as sides, ExitStack() as stack:
        running = []
        for side, role in zip(sides, (_FIRST, sides[0].address), strict=True):
            words = [*side.prefix, sys.executable, "-m", "tests.dask.namespaces", "--role", role]
            words += ["--rows", name, "--host", side.address, "--mib", str(options.mib)]
            words += ["--rounds", str(options.rounds), "--tasks", str(options.tasks)]
            variables = {"TWISTED_IB_RUN_DIR": f"{folder}/{side.address}", "PYTHONPATH": str(ROOT)}
            if name.startswith("iwarp"):
                variables["TWISTED_IB_DEVICES"] = f"{name}=iwarp:{side.address}"
            how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True}
            log = stack.enter_context(Path(folder, f"{side.address}.log").open("w"))
            environment = {**os.environ, **variables}
            process = subprocess.Popen(words, stderr=log, cwd=folder, env=environment, **how)
            stack.callback(process.wait)
            stack.callback(process.kill)
            running.append(process)
        said = ""
        with suppress(subprocess.TimeoutExpired):
            said, _ = running[0].communicate(timeout=HANG_SECONDS)
        print(f"{name}: {said.strip() or 'failed'}", flush=True)
        if not said or running[0].returncode:
            print(*(each.read_text() for each in Path(folder).glob("*.log")), sep="\n")
            return False
        return True


def main() -> int:
    """
    Measure.

    @return: The exit status.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.dask.namespaces")
    parser.add_argument("--rows", default="tcp,roce0,iwarp0")
    parser.add_argument("--mib", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--tasks", type=int, default=200)
    # Of the processes that it starts.
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("--host", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        protocol = "tcp" if options.rows == "tcp" else "ib"
        if options.role == _FIRST:
            asyncio.run(_first(protocol, options.host, options))
        else:
            asyncio.run(_other(protocol, options.host, options.role))
        return 0
    if trouble := lackingNamespaces():
        print(trouble)
        return SKIPPED
    return int(not all([row(each, options) for each in options.rows.split(",")]))


if __name__ == "__main__":
    sys.exit(main())
