"""
The subject that is no Python: UCX's shared memory, by its own C{ucx_perftest}.

Its figures are what C can do here.  It measures by itself: contents are not compared, and the
CPU time is that of its two processes over the whole run.
"""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import time

from benchmarks.pairs import PLACEMENTS, workloadOf
from benchmarks.rows import Row
from benchmarks.transports import UCX_PROGRAM, Subject
from twisted_ib.tools.compare.processes import WorkerError, cpusOf
from twisted_ib.tools.compare.subjects import Placement

#: The tests of ucx_perftest, by workload.
_TESTS = {"roundTrip": "tag_lat", "stream": "tag_bw", "rdmaWrite": "ucp_put_bw", "rdmaRead": "ucp_get"}
#: Its megabyte.
_MB = 1 << 20
#: How long its server takes to listen, at most.
_START_SECONDS = 5.0


class UCXPair:
    """
    Like L{Pair<benchmarks.pairs.Pair>}, with two new processes for each run.
    """

    def __init__(self, subject: Subject, environment: dict[str, str]) -> None:
        """
        Nothing runs yet.
        """
        self._subject = subject
        self._environment = environment | {"UCX_TLS": "shm,self", "UCX_WARN_UNUSED_ENV_VARS": "n"}
        self._placement = PLACEMENTS["free"]

    def place(self, placement: Placement) -> None:
        """
        Where the next processes run.
        """
        self._placement = placement

    def run(self, row: Row, seconds: float, patience: float) -> dict[str, float]:
        """
        Run one row: briefly, and then for about so long.

        @raise WorkerError: It did not work.
        """
        test = _TESTS[workloadOf(row, self._subject)]
        count = 100
        lines = self._runBoth(test, row.size, count, 50, patience)
        # Of the overall latency: one way, or one request.
        each = float(lines["overall_lat"]) / 1e6
        count = max(count, int(seconds / max(each, 1e-8)))
        before = _childSeconds()
        lines = self._runBoth(test, row.size, count, 50, patience)
        if test != "tag_lat":
            moved = count * row.size
            used = _childSeconds() - before
            return {"MB/s": float(lines["overall_bw"]) * _MB / 1e6, "CPU": used * 1e9 * 1024 / moved}
        # There and back is twice one way.
        figures = {"p50": 2 * float(lines["50.0_percentile_lat"]), "count": float(count)}
        lines = self._runBoth(test, row.size, count, 99, patience)
        return figures | {"p99": 2 * float(lines["99.0_percentile_lat"])}

    def _runBoth(self, test: str, size: int, count: int, rank: int, patience: float) -> dict[str, str]:
        """
        One run of both programs.

        @return: the client's figures, by the names of its columns.
        """
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = str(taken.getsockname()[1])
        common = [UCX_PROGRAM, "-p", port]
        options = ["-t", test, "-s", str(size), "-n", str(count), "-w", "50", "-R", str(rank), "-f", "-v"]
        server = self._begin(common, self._placement.server)
        try:
            self._awaitListening(server, int(port))
            client = self._begin([*common, "127.0.0.1", *options], self._placement.client)
            try:
                output, _ = client.communicate(timeout=patience)
            except subprocess.TimeoutExpired:
                client.kill()
                client.communicate()
                raise WorkerError(f"silent for {patience:.0f} s") from None
            lines = [line.split(",") for line in output.splitlines() if "," in line]
            if client.returncode or len(lines) < 2:
                raise WorkerError(f"{UCX_PROGRAM} ended with {client.returncode}: {output[-200:]}")
            return dict(zip(lines[-2], lines[-1], strict=False))
        finally:
            try:
                server.wait(1)
            except subprocess.TimeoutExpired:
                server.kill()
            server.communicate()

    def _begin(self, command: list[str], index: int | None) -> subprocess.Popen[str]:
        """
        Start one of them on its CPU.
        """
        begun = subprocess.Popen(
            command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        os.sched_setaffinity(begun.pid, cpusOf(index, sorted(os.sched_getaffinity(0))))
        return begun

    def _awaitListening(self, server: subprocess.Popen[str], port: int) -> None:
        """
        Wait until the server listens; a connection would be taken for its client's.
        """
        wanted = f":{port:04X} "
        end = time.monotonic() + _START_SECONDS
        while time.monotonic() < end and server.poll() is None:
            with open("/proc/net/tcp") as table:
                if any(line.split()[1].endswith(wanted.strip()) for line in table if " 0A " in line):
                    return
            time.sleep(0.01)
        raise WorkerError(f"{UCX_PROGRAM} does not listen")

    def end(self) -> None:
        """
        Nothing runs between rows.
        """


def _childSeconds() -> float:
    """
    CPU time of all ended children.
    """
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
