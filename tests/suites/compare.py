"""
Run Twisted's own suite on epoll, on ib, and on ib with each TCP connection inside the process carried
by SDP, and compare what fails.

    python -m tests.suites.compare [--packages web,test] [--device shm0] [--seconds 840] [--output DIRECTORY]

Two processes run at a time.  A test that fails on ib but not on epoll runs again, alone, on both; it is
a difference if it fails again.  Packages that are not begun when the time is up are left out, by name.
The exit status is 0 if there is no difference.

What the environment lacks (Twisted's extras C{tls}, C{conch}, C{http2}, C{test} ...) is skipped by all
three runs alike.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

import twisted

#: How a row of the table is run: the reactor's short name and class, and whether TCP is redirected.
EPOLL = ("epoll", "twisted.internet.epollreactor.EPollReactor")
IB = ("ib", "twisted_ib.reactor.ibreactor.IBReactor")
RUNS = {"epoll": (*EPOLL, False), "ib": (*IB, False), "ib, SDP": (*IB, True)}
#: The packages, those that connect most first.
PACKAGES = ("test", "internet", "web", "mail", "spread", "words", "names", "protocols", "trial", "conch")
#: These take a second each: together they are one row.
SMALL = ("_threads", "application", "cred", "logger", "pair", "persisted", "plugins", "positioning")
SMALL += ("python", "runner", "scripts")
#: Those which open nearly all the connections: half of the suite.
HALF = ("test", "internet", "web", "mail", "spread", "protocols")
#: How long one package may take, seconds.
PACKAGE_SECONDS = 420
ROOT = Path(__file__).resolve().parents[2]

Results = dict[str, tuple[str, str]]


def plain(name: str) -> str:
    """
    @return: A test's name, the same for both reactors.
    """
    return re.sub(r"_IBReactorTests\b", "_EPollReactorTests", name)


class Outcome:
    """
    What became of some tests in one run.

    @ivar results: By name (see L{plain}): C{"ok"}, C{"failed"} or C{"skipped"}, and the text.
    @ivar names: The names that trial knows them by.
    @ivar carried: How many connections SDP carried.
    @ivar trouble: What ended the process early, if anything did.
    """

    def __init__(self) -> None:
        """
        Nothing ran.
        """
        self.results: Results = {}
        self.names: dict[str, str] = {}
        self.carried = 0
        self.trouble = ""
        self.seconds = 0.0

    def read(self, path: Path) -> None:
        """
        Take in the file that a child has written.
        """
        begun, ended = "", False
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                kind, *rest = json.loads(line)
            except ValueError:
                continue  # The child died while it wrote this.
            if kind == "carried":
                self.carried, ended = rest[0], True
            elif kind == "ran":
                begun = rest[0]
            else:
                self._add(kind, *rest)
        if not ended:
            self.trouble = f"ended in {begun or 'nothing'}"
            self._add("failed", begun or path.name, self.trouble)

    def _add(self, kind: str, name: str, text: str) -> None:
        """
        Add one result; of two, as of a test that fails and leaves something behind, a failure counts.
        """
        key = plain(name)
        self.names[key] = name
        if self.results.get(key, ("",))[0] != "failed":
            self.results[key] = (kind, text)

    def having(self, kind: str) -> set[str]:
        """
        @return: The names of the tests of which C{kind} became.
        """
        return {name for name, (what, _) in self.results.items() if what == kind}


class Runner:
    """
    Runs tests in other processes.

    @ivar directory: Where their files are.
    """

    def __init__(self, directory: Path, device: str, seconds: float) -> None:
        """
        @param device: The HCA that carries TCP.
        @param seconds: After how long no package is begun.
        """
        self.directory = directory
        self.device = device
        self._end = time.monotonic() + seconds
        self._lock = Lock()
        self._count = 0

    def begin(self, run: str, names: Iterable[str]) -> Outcome | None:
        """
        @return: What L{run} gives, or L{None} if the time is up.
        """
        return self.run(run, names) if time.monotonic() < self._end else None

    def run(self, run: str, names: Iterable[str], seconds: int = PACKAGE_SECONDS) -> Outcome:
        """
        @param run: One of L{RUNS}.
        @param names: What to load.
        @param seconds: How long it may take.
        @return: What became of the tests.
        """
        with self._lock:
            self._count += 1
            base = self.directory / f"{self._count:03}-{re.sub(r'[^a-z]+', '-', run)}"
        short, kind, redirected = RUNS[run]
        path = Path(f"{base}.results")
        where = Path(f"{base}.d")
        where.mkdir()
        device = self.device if redirected else "-"
        command = ["timeout", "-k", "5", str(seconds), sys.executable, "-m", "tests.suites.child"]
        command += [short, kind, device, str(path), *names]
        search = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": search, "HOME": str(where)}
        if redirected:
            environment["TWISTED_IB_RUN_DIR"] = str(where / "run")
        began = time.monotonic()
        with open(f"{base}.log", "w") as log:
            quiet = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            subprocess.run(command, cwd=where, env=environment, check=False, **quiet)  # type: ignore[call-overload]
        outcome = Outcome()
        outcome.read(path)
        outcome.seconds = time.monotonic() - began
        return outcome


def differences(runner: Runner, run: str, baseline: Outcome, other: Outcome) -> tuple[list[str], list[str]]:
    """
    Compare failures; those that are new are tried again.

    @return: The tests that fail twice in C{run} and not on epoll, and those that fail once.
    """
    new = sorted(other.having("failed") - baseline.having("failed"))
    steady, unsteady = [], []
    for name in new:
        again = runner.run(run, [other.names[name]], 120)
        once = runner.run("epoll", [baseline.names.get(name, name)], 120)
        fails = again.having("failed") or not again.results
        (steady if fails and not once.having("failed") else unsteady).append(name)
    return steady, unsteady


def packages(wanted: str) -> dict[str, list[str]]:
    """
    @param wanted: Names, separated by commas; C{half} for L{HALF}; empty for all.
    @return: The rows of the table, and what each loads.
    """
    rows = {name: [f"twisted.{name}"] for name in PACKAGES}
    where = Path(twisted.__file__).parent
    rows["small"] = [f"twisted.{name}" for name in SMALL if (where / name / "test").is_dir()]
    if not wanted:
        return rows
    names = HALF if wanted == "half" else wanted.split(",")
    return {name: rows.get(name, [name]) for name in names}


def main() -> int:
    """
    Do it.

    @return: 0 if there is no difference.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.suites.compare")
    parser.add_argument("--packages", default="", help="such as web,test; `half` for those that connect most")
    parser.add_argument("--device", default="lo0", help="the HCA that carries TCP")
    parser.add_argument("--output", help="where the logs go; by default they are thrown away")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3600, help="after how long no package is begun")
    options = parser.parse_args()
    rows = packages(options.packages)
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(options.output or temporary).resolve()
        directory.mkdir(parents=True, exist_ok=True)
        runner = Runner(directory, options.device, options.seconds)
        with ThreadPoolExecutor(options.processes) as pool:
            futures = {
                (row, run): pool.submit(runner.begin, run, names)
                for row, names in rows.items()
                for run in RUNS
            }
            outcomes = {key: future.result() for key, future in futures.items()}
        return report(runner, list(rows), outcomes)


def report(runner: Runner, rows: list[str], outcomes: dict[tuple[str, str], Outcome | None]) -> int:
    """
    Print the table and the differences.

    @return: 0 if there is none.
    """
    form = "{:<10} {:<8} {:>6} {:>6} {:>7} {:>8} {:>4} {:>8} {:>8}"
    print(form.format("package", "run", "ran", "ok", "failed", "skipped", "new", "carried", "seconds"))
    sums = {run: [0] * 6 for run in RUNS}
    text: list[str] = []
    for row in rows:
        found = {run: outcome for run in RUNS if (outcome := outcomes[row, run]) is not None}
        if len(found) < len(RUNS):
            print(f"{row}: left out: the time is up", flush=True)
            continue
        baseline = found["epoll"]
        for run, outcome in found.items():
            steady, unsteady = differences(runner, run, baseline, outcome) if run != "epoll" else ([], [])
            counts = [len(outcome.results), *(len(outcome.having(k)) for k in ("ok", "failed", "skipped"))]
            counts += [len(steady), outcome.carried]
            sums[run] = [a + b for a, b in zip(sums[run], counts, strict=True)]
            print(form.format(row, run, *counts, f"{outcome.seconds:.0f}"), flush=True)
            text += [f"{run}: FAILS: {name}: {outcome.results[name][1]}" for name in steady]
            text += [f"{run}: failed once, and not again: {name}" for name in unsteady]
            text += _others(run, baseline, outcome) if run != "epoll" else []
    for run in RUNS:
        print(form.format("sum", run, *sums[run], ""))
    print(*text, sep="\n")
    bad = sums["ib"][4] + sums["ib, SDP"][4]
    print(f"SDP carried {sums['ib, SDP'][5]} connections; {bad} differences.")
    return 1 if bad or not sums["epoll"][1] else 0


def _others(run: str, baseline: Outcome, outcome: Outcome) -> list[str]:
    """
    @return: What else differs: tests that are left out, are missing, or fail on epoll alone.
    """
    text = []
    left = sorted(outcome.having("skipped") - baseline.having("skipped"))
    reasons = Counter(outcome.results[name][1] for name in left)
    for reason, count in reasons.items():
        first = next(name for name in left if outcome.results[name][1] == reason)
        text.append(f"{run}: left out: {count}, such as {first}: {reason}")
    for name in sorted(set(baseline.results) - set(outcome.results)):
        text.append(f"{run}: did not run: {name}")
    for name in sorted(baseline.having("failed") & outcome.having("ok")):
        text.append(f"{run}: fails on epoll only: {name}")
    return text


if __name__ == "__main__":
    sys.exit(main())
