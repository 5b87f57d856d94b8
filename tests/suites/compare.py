"""
Run Twisted's own suite on epoll, on ib as it is by default, and on ib with rules for loopback that say
C{use sdp} or C{use both}, and compare what fails.

    python -m tests.suites.compare [--packages web,test] [--full] [--seconds 840] [--output DIRECTORY]

The last two runs have the packages that connect most, and not what Twisted has for reactors beside
epoll's; with C{--full} all of it.  Two processes run at
a time.  A test that fails on ib but not on epoll runs again, alone, on both; it is a difference if it
fails again.  Packages that are not begun when the time is up are left out, by name.  The exit status is
0 if there is no difference.

The table says how many connections SDP carried, and TCP; below it are the reasons against SDP.  Tests
of extras that the environment lacks (C{tls}, C{conch}, C{http2}, C{test} ...) are skipped by all runs alike.
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

from attrs import frozen

import twisted


@frozen
class Run:
    """
    A column of the comparison.

    @ivar short: The reactor's short name.
    @ivar kind: Its class.
    @ivar left: The sets of exclusions that hold.
    @ivar verdict: The rules' verdict on loopback; L{None} for no file of rules.
    @ivar most: Whether only the packages that connect most run, and of the parameterised tests those
        of the one reactor.
    """

    short: str
    kind: str
    left: tuple[str, ...] = ()
    verdict: str | None = None
    most: bool = False


IB = ("ib", "twisted_ib.reactor.ibreactor.IBReactor")
RUNS = {
    "epoll": Run("epoll", "twisted.internet.epollreactor.EPollReactor"),
    "ib": Run(*IB, ("by name", "sockets")),
    "ib, sdp": Run(*IB, ("by name", "sockets", "no tcp"), "sdp", True),
    "ib, both": Run(*IB, ("by name", "sockets"), "both", True),
}
#: The loopback addresses.
LOOPBACK = ("127.0.0.0/8", "::1")
#: The packages, those that connect most first.
PACKAGES = ("test", "internet", "web", "mail", "spread", "words", "names", "protocols", "trial", "conch")
#: These take a second each: together they are one row.
SMALL = ("_threads", "application", "cred", "logger", "pair", "persisted", "plugins", "positioning")
SMALL += ("python", "runner", "scripts")
#: Those which open nearly all the connections.
MOST = ("test", "internet", "web", "mail", "spread")
#: Environment variables that choose the rules.
CONFIGURING = ("TWISTED_IB_CONFIG", "SIMPLE_LIBSDP", "XDG_CONFIG_HOME")
#: Matches the names of parameterised tests of other reactors.
OTHERS = re.compile(r"_(?!EPoll|IB)[A-Za-z]+ReactorTests\b").search
#: How long one package may take, seconds.
PACKAGE_SECONDS = 420
ROOT = Path(__file__).resolve().parents[2]

Results = dict[str, tuple[str, str]]


def rules(verdict: str) -> str:
    """
    @return: A file of rules that has one verdict for loopback.
    """
    roles = ("listen", "connect")
    return "".join(f"use {verdict} {role} * {network}:*\n" for role in roles for network in LOOPBACK)


def plain(name: str) -> str:
    """
    @return: A test's name, the same for both reactors.
    """
    return re.sub(r"_IBReactorTests\b", "_EPollReactorTests", name)


class Outcome:
    """
    The outcome of some tests in one run.

    @ivar results: By name (see L{plain}): C{"ok"}, C{"failed"} or C{"skipped"}, and the text.
    @ivar names: The names that trial knows them by.
    @ivar ways: How many connections C{"sdp"} and C{"tcp"} carried, and why not the former.
    @ivar trouble: The reason why the process ended early, if it did.
    """

    def __init__(self) -> None:
        """
        Nothing ran.
        """
        self.results: Results = {}
        self.names: dict[str, str] = {}
        self.ways: Counter[str] = Counter()
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
            if kind == "ways":
                self.ways, ended = Counter(rest[0]), True
            elif kind == "ran":
                begun = rest[0]
            else:
                self._add(kind, *rest)
        if not ended:
            self.trouble = f"ended in {begun}" if begun else "never began"
            if begun:
                self._add("failed", begun, self.trouble)

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
    @ivar full: Whether each run has all tests.
    """

    def __init__(self, directory: Path, seconds: float, full: bool) -> None:
        """
        @param seconds: After how long no package is begun.
        """
        self.full = full
        self.directory = directory
        self._end = time.monotonic() + seconds
        self._lock = Lock()
        self._count = 0

    def begin(self, run: str, names: Iterable[str]) -> Outcome | None:
        """
        @return: The result of L{run}, or L{None} if the time is up.
        """
        return self.run(run, names) if time.monotonic() < self._end else None

    def run(self, run: str, names: Iterable[str], seconds: int = PACKAGE_SECONDS) -> Outcome:
        """
        @param run: One of L{RUNS}.
        @param names: The names to load.
        @param seconds: How long it may take.
        @return: The outcome of the tests.
        """
        with self._lock:
            self._count += 1
            base = self.directory / f"{self._count:03}-{re.sub(r'[^a-z]+', '-', run)}"
        how = RUNS[run]
        kind = f"only {how.kind}" if how.most and not self.full else how.kind
        path = Path(f"{base}.results")
        where = Path(f"{base}.d")
        where.mkdir()
        command = ["timeout", "-k", "5", str(seconds), sys.executable, "-m", "tests.suites.child"]
        command += [how.short, kind, ",".join(how.left) or "-", str(path), *names]
        search = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environment = {key: value for key, value in os.environ.items() if key not in CONFIGURING}
        environment.update(PYTHONPATH=search, HOME=str(where), TWISTED_IB_RUN_DIR=str(where / "run"))
        if how.verdict is not None:
            config = Path(f"{base}.conf")
            config.write_text(rules(how.verdict))
            environment["TWISTED_IB_CONFIG"] = str(config)
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
    @param wanted: Names, separated by commas; C{most} for L{MOST}; empty for all.
    @return: The rows of the table, and what each loads.
    """
    rows = {name: [f"twisted.{name}"] for name in PACKAGES}
    where = Path(twisted.__file__).parent
    rows["small"] = [f"twisted.{name}" for name in SMALL if (where / name / "test").is_dir()]
    if not wanted:
        return rows
    names = MOST if wanted == "most" else wanted.split(",")
    return {name: rows.get(name, [name]) for name in names}


def main() -> int:
    """
    Do it.

    @return: 0 if there is no difference.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.suites.compare")
    parser.add_argument("--packages", default="", help="such as web,test; `most` for those that connect most")
    parser.add_argument("--full", action="store_true", help="all packages, and all reactors, on all runs")
    parser.add_argument("--output", help="where the logs go; by default they are thrown away")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3600, help="after how long no package is begun")
    options = parser.parse_args()
    every, rows = packages(""), packages(options.packages)
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(options.output or temporary).resolve()
        directory.mkdir(parents=True, exist_ok=True)
        runner = Runner(directory, options.seconds, options.full)
        with ThreadPoolExecutor(options.processes) as pool:
            futures = {
                (row, run): pool.submit(runner.begin, run, names)
                for row, names in rows.items()
                for run, how in RUNS.items()
                if options.full or not how.most or row not in every or row in MOST
            }
            outcomes = {key: future.result() for key, future in futures.items()}
        return report(runner, list(rows), outcomes)


def report(runner: Runner, rows: list[str], outcomes: dict[tuple[str, str], Outcome | None]) -> int:
    """
    Print the table and the differences.

    @return: 0 if there is none.
    """
    form = "{:<10} {:<8} {:>6} {:>6} {:>7} {:>8} {:>4} {:>6} {:>6} {:>8}"
    print(form.format("package", "run", "ran", "ok", "failed", "skipped", "new", "sdp", "tcp", "seconds"))
    sums = {run: [0] * 7 for run in RUNS}
    ways: dict[str, Counter[str]] = {run: Counter() for run in RUNS}
    text: list[str] = []
    for row in rows:
        wanted = [run for run in RUNS if (row, run) in outcomes]
        found = {run: outcome for run in wanted if (outcome := outcomes[row, run]) is not None}
        if len(found) < len(wanted):
            print(f"{row}: left out: the time is up", flush=True)
            continue
        baseline = found["epoll"]
        for run, outcome in found.items():
            steady, unsteady = differences(runner, run, baseline, outcome) if run != "epoll" else ([], [])
            counts = [len(outcome.results), *(len(outcome.having(k)) for k in ("ok", "failed", "skipped"))]
            gone = missing(baseline, outcome, RUNS[run].most and not runner.full)
            if gone:
                text.append(f"{run}: {row}: DID NOT RUN: {len(gone)}, such as {gone[0]}: {outcome.trouble}")
            counts += [len(steady) + len(gone), outcome.ways["sdp"], outcome.ways["tcp"]]
            sums[run] = [a + b for a, b in zip(sums[run], counts, strict=True)]
            ways[run] += outcome.ways
            print(form.format(row, run, *counts, f"{outcome.seconds:.0f}"), flush=True)
            text += [f"{run}: FAILS: {name}: {outcome.results[name][1]}" for name in steady]
            text += [f"{run}: failed once, and not again: {name}" for name in unsteady]
            text += _others(run, baseline, outcome) if run != "epoll" else []
    for run in RUNS:
        print(form.format("sum", run, *sums[run], ""))
    text += [_waysOf(run, counts) for run, counts in ways.items() if counts]
    print(*text, sep="\n")
    bad = sum(counts[4] for counts in sums.values())
    print(f"SDP carried {sum(counts[5] for counts in sums.values())} connections; {bad} differences.")
    return 1 if bad or not sums["epoll"][1] else 0


def _waysOf(run: str, ways: Counter[str]) -> str:
    """
    @return: The providers of a run's connections, in a line.
    """
    reasons = ", ".join(f"{kind} {n}" for kind, n in ways.most_common() if kind not in ("sdp", "tcp"))
    return f"{run}: {ways['sdp']} connections by SDP, {ways['tcp']} by TCP; why not SDP: {reasons or 'never'}"


def missing(baseline: Outcome, outcome: Outcome, narrow: bool) -> list[str]:
    """
    @param narrow: Whether one reactor's parameterised tests are enough.
    @return: The tests that ran on epoll only.
    """
    names = set(baseline.results) - set(outcome.results)
    return sorted(name for name in names if not (narrow and OTHERS(name)))


def _others(run: str, baseline: Outcome, outcome: Outcome) -> list[str]:
    """
    @return: Other differences: tests that are left out, or fail on epoll alone.
    """
    text = []
    left = sorted(outcome.having("skipped") - baseline.having("skipped"))
    reasons = Counter(outcome.results[name][1] for name in left)
    for reason, count in reasons.items():
        first = next(name for name in left if outcome.results[name][1] == reason)
        text.append(f"{run}: left out: {count}, such as {first}: {reason}")
    for name in sorted(baseline.having("failed") & outcome.having("ok")):
        text.append(f"{run}: fails on epoll only: {name}")
    return text


if __name__ == "__main__":
    sys.exit(main())
