"""
Runs of pairs of programs, and what is said of them.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from attrs import frozen

from tests.suites.applications.pairs import PAIRS, Pair
from tests.suites.compare import CONFIGURING

TCP, SDP = WAYS = ("tcp", "sdp")
#: How long a server may take until it listens, and a client beside its measurement, seconds.
PATIENCE_SECONDS = 60.0
_HERE = Path(__file__).parent
_HEAD = f"{'pair':<28} {'rate':>17} {'':>6} {'CPU a request, us':>19} {'':>6}  carried by"


class ApplicationError(Exception):
    """
    A program did not do what it should.
    """


@frozen
class Result:
    """
    What a client has measured.

    @ivar rate: Requests a second.
    @ivar cpu: Microseconds of the processor for one, of both processes.
    @ivar carried: How many of its connections went each way, and why others did not.
    """

    rate: float
    cpu: float
    carried: str


def freePort() -> int:
    """
    @return: A number that no program has now.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


class Programs:
    """
    Starts programs in a virtual environment.
    """

    def __init__(self, environment: Path, folder: Path) -> None:
        """
        @param environment: With the applications and this project.
        @param folder: Where logs and the run directory go.
        """
        self._bin, self._folder = environment / "bin", folder
        (folder / "run").mkdir(mode=0o700, exist_ok=True)
        beside = {key: value for key, value in os.environ.items() if key not in CONFIGURING}
        self._environment = {**beside, "HOME": str(folder), "TWISTED_IB_RUN_DIR": str(folder / "run")}
        self._environment.pop("PYTHONPATH", None)

    def command(self, way: str, module: str, *words: str) -> list[str]:
        """
        @return: The command line of a program: over TCP it is Python's, over SDP C{ib-run}'s.
        """
        run = [str(self._bin / "python")]
        if way == SDP:
            run += ["-m", "twisted_ib.tools.run", "-q", "--summary", "--json"]
        return [*run, str(_HERE / f"{module}.py"), *words]

    @contextmanager
    def serving(self, pair: Pair, way: str) -> Iterator[tuple[int, int]]:
        """
        Within this context a server runs.

        @return: Its port and its process.
        @raise ApplicationError: It does not listen.
        """
        port = freePort()
        with open(self._folder / f"{pair.server}-{way}.log", "wb") as log:
            process = subprocess.Popen(
                self.command(way, "servers", pair.server, str(port)),
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            self._await(process, port)
            yield port, process.pid
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def _await(self, process: subprocess.Popen[bytes], port: int) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        while process.poll() is None and time.monotonic() < end:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                return
            except OSError:
                time.sleep(0.05)
        raise ApplicationError(f"the server does not listen: see {self._folder}")

    def measure(self, pair: Pair, way: str, seconds: float) -> Result:
        """
        @raise ApplicationError: One of the programs has failed.
        """
        with self.serving(pair, way) as (port, pid):
            command = self.command(way, "clients", pair.client, str(port), str(seconds), str(pid))
            try:
                done = subprocess.run(
                    command,
                    cwd=self._folder,
                    env=self._environment,
                    capture_output=True,
                    text=True,
                    timeout=seconds + PATIENCE_SECONDS,
                )
            except subprocess.TimeoutExpired:
                raise ApplicationError("the client does not end") from None
        try:
            found = json.loads(done.stdout.splitlines()[-1])
            return Result(found["rate"], found["cpu"], carried(done.stderr) if way == SDP else "")
        except (IndexError, KeyError, ValueError):
            said = done.stderr.strip().splitlines()
            raise ApplicationError(said[-1] if said else f"status {done.returncode}") from None


def carried(complaints: str) -> str:
    """
    @param complaints: What a client under C{ib-run} has written, with the summary at its end.
    @return: How many connections went each way, and why over TCP.
    """
    for line in reversed(complaints.splitlines()):
        if line.startswith('{"pid"'):
            found = json.loads(line)
            text = f"sdp {found['sdp']}"
            if found["tcp"]:
                kinds = ", ".join(each["kind"] for each in found["reasons"])
                text += f", tcp {found['tcp']} ({kinds})"
            return text
    return "nobody says what"


def line(name: str, results: dict[str, list[Result]]) -> str:
    """
    @param results: Of both ways.
    @return: A row of the table, of the medians: TCP, SDP, and their quotient.
    """
    tcp, sdp = results[TCP], results[SDP]
    rates, costs = (
        [median(getattr(each, what) for each in found) for found in (tcp, sdp)] for what in ("rate", "cpu")
    )
    ways = "; ".join(sorted({each.carried for each in sdp}))
    return (
        f"{name:<28} {rates[0]:>8.0f} {rates[1]:>8.0f} {rates[1] / rates[0]:>5.2f}x"
        f" {costs[0]:>9.0f} {costs[1]:>9.0f} {costs[1] / max(costs[0], 1e-9):>5.2f}x  {ways}"
    )


def table(programs: Programs, names: Sequence[str], rounds: int, seconds: float) -> int:
    """
    Measure pairs, both ways in turns, and print a row for each.

    @return: The exit status: 1 if a program has failed.
    """
    status = 0
    print(f"{_HEAD}\n{'':<28} {'TCP':>8} {'SDP':>8} {'':>6} {'TCP':>9} {'SDP':>9}", flush=True)
    for name in names:
        results: dict[str, list[Result]] = {way: [] for way in WAYS}
        try:
            for _ in range(rounds):
                for way in WAYS:
                    results[way].append(programs.measure(PAIRS[name], way, seconds))
        except ApplicationError as error:
            print(f"{name:<28} failed: {error}", file=sys.stdout, flush=True)
            status = 1
        else:
            print(line(name, results), flush=True)
    return status
