"""
Kill a worker of a cluster over C{ib://}, again and again, while it computes.

    python -m tests.dask.killing [ROUNDS] [PROTOCOL]

Each round must end with the right result within 60 seconds.
"""

from __future__ import annotations

import os
import signal
import sys
import time

#: Dask's clusters close for good what dies twice within 15 seconds, by default.
_SETTINGS = {"distributed.deploy.lost-worker-timeout": "600s", "distributed.scheduler.allowed-failures": 100}
#: The longest time for one result, seconds.
_SECONDS = 60
_TASKS = 40


def slow(number: int) -> int:
    """
    @return: The next one.
    """
    time.sleep(0.02)
    return number + 1


def main(rounds: int, protocol: str) -> None:
    """
    Kill.

    @raise TimeoutError: There is no result.
    """
    import dask
    from distributed import Client, LocalCluster

    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with (
        dask.config.set(_SETTINGS),
        LocalCluster(protocol=protocol, **options) as cluster,
        Client(cluster) as client,
    ):
        for number in range(rounds):
            futures = client.map(slow, range(_TASKS), key=f"slow-{number}")
            total = client.submit(sum, futures, key=f"total-{number}")
            time.sleep(0.1)
            # One that starts again meanwhile has none.
            pids = [pid for nanny in cluster.workers.values() if (pid := nanny.pid)]
            os.kill(pids[number % len(pids)], signal.SIGKILL)
            assert total.result(timeout=_SECONDS) == sum(range(1, _TASKS + 1))
            print(f"{number + 1} of {rounds}", flush=True)


if __name__ == "__main__":
    main(int((sys.argv[1:2] or ["20"])[0]), (sys.argv[2:3] or ["ib"])[0])
