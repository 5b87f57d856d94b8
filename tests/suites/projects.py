"""
Run the suites of other projects from PyPI on epoll and on ib as it is by default, and compare each test.

    python -m tests.suites.projects [treq,klein] [--seconds 600] [--output DIRECTORY]
                                    [--environment DIRECTORY]

A virtual environment is made for them, with this project in it; if nothing can be downloaded they are
skipped, with the reason.  C{ib, all} is a run in which the processes that a suite starts have the ib
reactor as their default, too.  A test whose result is not epoll's runs again, alone, on both; it is a
difference if the results differ again.  The exit status is 0 if there is no difference, 77 if they are
skipped.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from attrs import frozen

from tests.suites.compare import CONFIGURING, ROOT, Outcome

#: The exit status that says so.
SKIPPED = 77
#: How long one suite may take, seconds.
SUITE_SECONDS = 400
#: How long the installation may take, seconds.
INSTALL_SECONDS = 400
#: Makes ib the default of the processes that a suite starts.
EVERYWHERE = Path(__file__).parent / "everywhere"


@frozen
class Project:
    """
    A project.

    @ivar requirements: The packages to install from PyPI.
    @ivar tests: The names to load.
    @ivar starts: Whether its tests start processes that use Twisted.
    """

    requirements: tuple[str, ...]
    tests: tuple[str, ...]
    starts: bool = False


PROJECTS = {
    "treq": Project(("treq", "httpbin", "twisted[tls,http2]"), ("treq",), True),
    "klein": Project(("klein", "treq", "hypothesis"), ("klein",)),
    "mailbox": Project(("magic-wormhole-mailbox-server", "treq"), ("wormhole_mailbox_server",)),
    "foolscap": Project(("foolscap",), ("foolscap",)),
}
#: The runs: the reactor's short name, and whether it is everywhere.
RUNS = {"epoll": ("epoll", False), "ib": ("ib", False), "ib, all": ("ib", True)}


def installed(environment: Path, directory: Path, requirements: Sequence[str]) -> str:
    """
    Make a virtual environment with this project and others, unless it is there.

    @param directory: The current one meanwhile.
    @return: Why that was not possible, or nothing.
    """
    python = str(environment / "bin" / "python")
    steps = [] if environment.exists() else [[sys.executable, "-m", "venv", str(environment)]]
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    steps.append([*pip, str(ROOT), *requirements])
    # The first to ask for plug-ins writes down which there are, and imports them for that.
    steps.append([python, "-m", "twisted.trial", "--help-reactors"])
    for step in steps:
        command = ["timeout", "-k", "5", str(INSTALL_SECONDS), *step]
        done = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
        )
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip() or "it took too long").splitlines()
            return next((line for line in said if line.startswith("ERROR")), said[-1])
    return ""


class Suites:
    """
    Runs suites in a virtual environment.

    @ivar environment: Where that is.
    @ivar directory: Where the logs and results go.
    """

    def __init__(self, environment: Path, directory: Path, seconds: float) -> None:
        """
        @param seconds: After how long suites are left out.
        """
        self.environment = environment
        self.directory = directory
        self.python = str(environment / "bin" / "python")
        self._end = time.monotonic() + seconds  # With the installation.
        self._count = 0

    def install(self, names: Iterable[str]) -> str:
        """
        Make the environment.

        @return: Why that was not possible, or nothing.
        """
        requirements = sorted({each for name in names for each in PROJECTS[name].requirements})
        return installed(self.environment, self.directory, requirements)

    def begin(self, name: str, run: str) -> Outcome | None:
        """
        @return: The result of L{run} for a whole suite, or L{None} if the time is up before its end.
        """
        left = int(self._end - time.monotonic())
        if left < 1:
            return None
        outcome = self.run(run, PROJECTS[name].tests, min(SUITE_SECONDS, left))
        return None if outcome.trouble and outcome.seconds >= left else outcome

    def run(self, run: str, names: Sequence[str], seconds: int = 120) -> Outcome:
        """
        @param run: One of L{RUNS}.
        @param names: The names to load.
        @return: The outcome of the tests.
        """
        self._count += 1
        short, everywhere = RUNS[run]
        base = Path(tempfile.mkdtemp(prefix=f"{self._count:02}-", dir=self.directory))
        environment = {key: value for key, value in os.environ.items() if key not in CONFIGURING}
        search = [str(ROOT), *([str(EVERYWHERE)] if everywhere else [])]
        environment.update(
            PYTHONPATH=os.pathsep.join(search), HOME=str(base), TWISTED_IB_RUN_DIR=str(base / "run")
        )
        path = base / "results"
        command = ["timeout", "-k", "5", str(seconds), self.python, "-m", "tests.suites.child"]
        command += [short, "-", names[0].partition(".")[0] if everywhere else "-", str(path), *names]
        began = time.monotonic()
        with open(base / "log", "w") as log:
            quiet = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            subprocess.run(command, cwd=base, env=environment, check=False, **quiet)  # type: ignore[call-overload]
        outcome = Outcome()
        outcome.read(path)
        outcome.seconds = time.monotonic() - began
        return outcome


def differing(first: Outcome, second: Outcome) -> list[str]:
    """
    @return: The tests of which not the same became.
    """
    names = first.results.keys() | second.results.keys()
    nothing = ("did not run", "")
    return sorted(n for n in names if first.results.get(n, nothing)[0] != second.results.get(n, nothing)[0])


def differences(suites: Suites, run: str, baseline: Outcome, other: Outcome) -> tuple[list[str], list[str]]:
    """
    Compare results; tests of which something else became are tried again.

    @return: A line for each test that differs twice, and the names of those that differ once.
    """
    steady, unsteady = [], []
    for name in differing(baseline, other):
        again, once = suites.run(run, [name]), suites.run("epoll", [name])
        if not differing(once, again):
            unsteady.append(name)
            continue
        what, text = again.results.get(name, ("did not run", again.trouble))
        expected = once.results.get(name, ("did not run", ""))[0]
        steady.append(f"{run}: DIFFERS: {name}: {what}, on epoll {expected}: {text}")
    return steady, unsteady


def report(suites: Suites, names: list[str], outcomes: dict[tuple[str, str], Outcome | None]) -> int:
    """
    Print the table and the differences.

    @return: 0 if there is none.
    """
    form = "{:<10} {:<8} {:>6} {:>6} {:>7} {:>8} {:>10} {:>6} {:>6} {:>8}"
    print(
        form.format("project", "run", "ran", "ok", "failed", "skipped", "different", "sdp", "tcp", "seconds")
    )
    text: list[str] = []
    different = carried = passed = 0
    for name in names:
        found = {run: outcome for run in RUNS if (outcome := outcomes.get((name, run))) is not None}
        if "epoll" not in found or "ib" not in found:
            print(f"{name}: left out: the time is up", flush=True)
            continue
        for run, outcome in found.items():
            steady, unsteady = (
                differences(suites, run, found["epoll"], outcome) if run != "epoll" else ([], [])
            )
            counts = [len(outcome.results), *(len(outcome.having(k)) for k in ("ok", "failed", "skipped"))]
            counts += [len(steady), outcome.ways["sdp"], outcome.ways["tcp"]]
            print(form.format(name, run, *counts, f"{outcome.seconds:.0f}"), flush=True)
            text += [*steady, *(f"{run}: differed once, and not again: {each}" for each in unsteady)]
            different, carried, passed = different + counts[4], carried + counts[5], passed + counts[1]
    print(*text, sep="\n")
    print(f"SDP carried {carried} connections; {different} differences.")
    return 1 if different or not passed else 0


def main() -> int:
    """
    Do it.

    @return: 0 if there is no difference.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.suites.projects")
    parser.add_argument("names", nargs="?", default=",".join(PROJECTS), help="such as treq,klein")
    parser.add_argument("--output", help="where the logs go; by default they are thrown away")
    parser.add_argument("--environment", help="a virtual environment to keep and use again")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3600, help="after how long suites are left out")
    options = parser.parse_args()
    names = options.names.split(",")
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(options.output or temporary).resolve()
        directory.mkdir(parents=True, exist_ok=True)
        environment = Path(options.environment or Path(temporary) / "environment").resolve()
        suites = Suites(environment, directory, options.seconds)
        trouble = suites.install(names)
        if trouble:
            print(f"skipped: the projects cannot be installed: {trouble}")
            return SKIPPED
        with ThreadPoolExecutor(options.processes) as pool:
            futures = {
                (name, run): pool.submit(suites.begin, name, run)
                for name in names
                for run, (_, everywhere) in RUNS.items()
                if PROJECTS[name].starts or not everywhere
            }
            outcomes = {key: future.result() for key, future in futures.items()}
        return report(suites, names, outcomes)


if __name__ == "__main__":
    sys.exit(main())
