"""
Run asyncio's own tests, and the suites of projects for asyncio, on its event loop and on that of
L{twisted_ib.aio}; and the suites of projects for Twisted's reactor on asyncio on that and on C{ib-asyncio}.
Compare what becomes of each test.

    python -m tests.suites.aio [interpreter,aiohttp,uvicorn,daphne,scrapy] [--seconds 900]
                               [--output DIRECTORY] [--environment DIRECTORY]

The interpreter's tests are those of its C{test} package, which some distributions have apart.  The others
come from PyPI, as archives with their tests, into virtual environments with what they need; if nothing can
be downloaded they are skipped, with the reason.  C{ib-run} gives them the event loop or the reactor.  Where
not the same becomes of a test its file runs again, on both, and then the test alone, by turns on both; it is
a difference if the results differ each time.  The exit status is 0 if there is no difference, 77 if all
were skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from attrs import Factory, define, frozen

from tests.suites.compare import CONFIGURING, ROOT
from tests.suites.projects import SKIPPED

#: The interpreter's tests of loops with connections, servers, sockets, TLS and processes.
INTERPRETER = (
    "streams",
    "sock_lowlevel",
    "sslproto",
    "ssl",
    "subprocess",
    "server",
    "buffered_proto",
    "sendfile",
)
#: Starts a program on an event loop.
ON_LOOP = ("-m", "twisted_ib.tools.run", "-q")
#: What most suites need.
_COMMON = ("pytest", "pytest-mock", "pytest-reportlog", "pytest-timeout", "trustme", "anyio")
#: The files of an archive that the tests need beside the installed package.
_BESIDE = ("tests", "conftest.py", "pyproject.toml", "setup.cfg")
#: How often a test runs alone on both before it is a difference.
ROUNDS = 3
#: How many tests may run alone: more than these are not what a loaded machine does.
MOST_ALONE = 60
#: How long a process may take to end when its tests have, seconds.
EXIT_SECONDS = 10


@frozen
class Project:
    """
    A project with tests in its archive.

    @ivar requirements: What they need from PyPI beside it.
    @ivar options: For pytest.
    @ivar loop: What C{ib-run} gives them.
    @ivar files: How many files run in one process: what breaks the reactor breaks the tests behind it.
    """

    requirements: tuple[str, ...]
    options: tuple[str, ...] = ()
    loop: str = "aio"
    files: int = sys.maxsize


PROJECTS = {
    "aiohttp": Project(
        (
            "re-assert",
            "proxy.py",
            "freezegun",
            "gunicorn",
            "pytest-codspeed",
            "pytest-xdist",
            "isal",
            "zlib-ng",
            "brotli",
            "python-on-whales",
            "backports.zstd",
        ),
        ("-p", "aiohttp.pytest_plugin", "--ignore=tests/autobahn"),
    ),
    "uvicorn": Project(
        (
            "httpx2",
            "websockets",
            "wsproto",
            "httptools",
            "zttp",
            "a2wsgi",
            "watchfiles",
            "python-dotenv",
            "pyyaml",
            "pytest-codspeed",
        ),
        # They ask for the name of the event loop's class, or are named after it.
        (
            "--deselect=tests/test_auto_detection.py::test_loop_auto",
            "--deselect=tests/test_config.py::test_get_loop_factory",
        ),
    ),
    "daphne": Project(
        ("django", "hypothesis", "pytest-asyncio"),
        # The same examples for both.
        ("-o", "asyncio_mode=auto", "--hypothesis-profile=ci"),
        "ib-asyncio",
    ),
    "scrapy": Project(
        (
            # Later ones warn of the form of its fixtures, and its settings make that an error.
            "pytest<9.2",
            "pexpect",
            "psutil",
            "pyftpdlib",
            "pygments",
            "pytest-rerunfailures",
            "pytest-twisted",
            "pytest-xdist",
            "sybil",
            "boto3",
            "colorlog",
            "httpx2[http2,socks]",
            "ipython",
            "pillow",
            "robotexclusionrulesparser",
            "twisted[http2]",
            "uvloop",
        ),
        ("--reactor=asyncio", "-m", "not requires_internet", "--continue-on-collection-errors"),
        "ib-asyncio",
        20,
    ),
}


@define
class Outcome:
    """
    What became of some tests.

    @ivar count: How many ran.
    @ivar results: By name C{"passed"}, C{"failed"} or C{"skipped"}.
    @ivar reasons: Of those that failed, why.
    """

    count: int = 0
    results: dict[str, str] = Factory(dict)
    reasons: dict[str, str] = Factory(dict)

    def add(self, name: str, result: str, reason: str = "") -> None:
        """
        Add a part of a test, as its set-up; of several, one that fails counts, then one that is left out.
        """
        if reason:
            self.reasons.setdefault(name, reason)
        ranks = ("", "passed", "skipped", "failed")
        self.results[name] = max(self.results.get(name, ""), result, key=ranks.index)
        self.count = len(self.results)

    def read(self, path: Path) -> None:
        """
        Take in what pytest has written, a line for each part of a test.
        """
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                part: dict[str, Any] = json.loads(line)
            except ValueError:
                continue  # It ended while it wrote this.
            of = part.get("$report_type")
            outcome = part.get("outcome")
            if outcome not in ("passed", "skipped", "failed"):
                continue  # It is no test's, or the test runs again.
            if of == "CollectReport" and outcome == "passed":
                continue
            self.add(part["nodeid"], outcome, _reason(part) if outcome == "failed" else "")

    def readLines(self, path: Path) -> None:
        """
        Take in what L{tests.suites.written} has written.
        """
        for line in path.read_text().splitlines() if path.exists() else ():
            result, test = json.loads(line)
            self.add(test, result)

    def join(self, other: Outcome) -> None:
        """
        Take in what became of other tests.
        """
        self.count += other.count
        self.results |= other.results
        self.reasons |= other.reasons

    def having(self, result: str) -> int:
        """
        @return: How many tests have a result.
        """
        return Counter(self.results.values())[result]


def _reason(part: dict[str, Any]) -> str:
    text = part.get("longrepr")
    crash = text.get("reprcrash") if isinstance(text, dict) else None
    said = crash["message"] if crash else str(text)
    return said.strip().splitlines()[0][:200] if said.strip() else ""


class Suites:
    """
    Runs suites.

    @ivar environment: Where the virtual environments are.
    @ivar directory: Where logs and archives are.
    """

    def __init__(self, environment: Path, directory: Path, seconds: int) -> None:
        """
        @param seconds: How long one run may take.
        """
        self.environment = environment
        self.directory = directory
        self.seconds = seconds
        self._count = 0

    def install(self, name: str) -> str:
        """
        Make the virtual environment of a project, and fetch its archive.

        @return: Why that was not possible, or nothing.
        """
        where = self.environment / name
        pip = [str(where / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
        steps = [] if where.exists() else [[sys.executable, "-m", "venv", str(where)]]
        steps.append([*pip, "install", str(ROOT), *_COMMON, name, *PROJECTS[name].requirements])
        steps.append([*pip, "download", "--no-deps", "--no-binary", ":all:", "-d", str(self.directory), name])
        for step in steps:
            done = subprocess.run(
                step,
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                check=False,
                timeout=self.seconds,
            )
            if done.returncode:
                return (done.stderr.strip() or "pip failed").splitlines()[-1]
        (archive,) = self.directory.glob(f"{name}-*.tar.gz")
        subprocess.run(["tar", "xzf", archive.name], cwd=self.directory, check=True)
        return ""

    def source(self, name: str) -> Path:
        """
        @return: The folder of a project's archive.
        """
        (found,) = (path for path in self.directory.glob(f"{name}-*") if path.is_dir())
        return found

    def parts(self, name: str) -> list[list[str]]:
        """
        @return: The tests of a suite, by processes.
        """
        if name == "interpreter":
            return [[f"test.test_asyncio.test_{each}" for each in INTERPRETER]]
        most = PROJECTS[name].files
        if most == sys.maxsize:
            return [["tests"]]
        source = self.source(name)
        found = [*source.glob("tests/**/test_*.py"), *source.glob("tests/**/test_*/__init__.py")]
        chosen = sorted(str(each.relative_to(source)) for each in found)
        return [chosen[first : first + most] for first in range(0, len(chosen), most)]

    def run(self, name: str, isOurs: bool, tests: Sequence[str]) -> Outcome:
        """
        @param isOurs: Whether on our event loop.
        @param tests: Only these.
        @return: What became of them.
        """
        self._count += 1
        loop = PROJECTS[name].loop if name in PROJECTS else "aio"
        base = self.directory / f"{self._count:03}-{name}-{loop if isOurs else 'asyncio'}"
        (base / "tmp").mkdir(parents=True)
        environment = {key: value for key, value in os.environ.items() if key not in CONFIGURING}
        environment.update(
            PYTHONPATH=str(ROOT),
            HOME=str(base),
            TMPDIR=str(base / "tmp"),
            TWISTED_IB_RUN_DIR=str(base / "run"),
        )
        results = base / "results"
        python, where = sys.executable, base
        program = ["-m", "tests.suites.written", str(results), *tests]
        if name != "interpreter":
            python = str(self.environment / name / "bin" / "python")
            where, program = self._pytest(name, base, tests)
        command = [python, *ON_LOOP, f"--reactor={loop}", *program] if isOurs else [python, *program]
        with open(base / "log", "w") as log:
            self._wait(command, results, cwd=where, env=environment, stdout=log, stderr=log)
        outcome = Outcome()
        if name == "interpreter":
            outcome.readLines(results)
        else:
            outcome.read(results)
        return outcome

    def _wait(self, command: list[str], results: Path, **how: Any) -> None:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, **how)
        end = time.monotonic() + self.seconds
        try:
            while process.poll() is None and time.monotonic() < end:
                time.sleep(0.2)
                if results.exists() and b'"SessionFinish"' in results.read_bytes()[-400:]:
                    # Processes that a failed test leaves must not hold up the rest, nor load the machine.
                    end = min(end, time.monotonic() + EXIT_SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _pytest(self, name: str, base: Path, tests: Sequence[str]) -> tuple[Path, list[str]]:
        # Beside the archive's own package: that of the environment may be compiled.
        where = base / "source"
        where.mkdir()
        for each in _BESIDE:
            if (path := self.source(name) / each).exists():
                (where / each).symlink_to(path)
        options = ["-q", "-o", "addopts=", "-p", "no:cacheprovider", "--timeout=60"]
        options += [f"--report-log={base / 'results'}", *PROJECTS[name].options]
        return where, ["-m", "pytest", *options, *tests]


def differing(theirs: Outcome, ours: Outcome, among: Iterable[str] | None = None) -> list[str]:
    """
    @param among: The tests to look at, by default all.
    @return: Those of which not the same became.
    """
    names = theirs.results.keys() | ours.results.keys() if among is None else among
    return sorted(each for each in names if theirs.results.get(each) != ours.results.get(each))


def settle(suites: Suites, name: str, theirs: Outcome, ours: Outcome) -> tuple[list[str], list[str]]:
    """
    Run again the tests of which not the same became, and correct the results.

    @return: Those of which it never did, and those of which it did at last.
    """
    first = still = differing(theirs, ours)
    sides = ((theirs, False), (ours, True))
    if name != "interpreter":
        for path in sorted({each.partition("::")[0] for each in still}):
            for side, isOurs in sides:
                again = suites.run(name, isOurs, [path])
                _correct(side, again, [each for each in still if each.partition("::")[0] == path])
        still = differing(theirs, ours, still)
    for _ in range(ROUNDS if len(still) <= MOST_ALONE else 0):
        for each in still:
            for side, isOurs in sides:
                _correct(side, suites.run(name, isOurs, [each]), [each])
        still = differing(theirs, ours, still)
    return still, sorted(set(first) - set(still))


def _correct(side: Outcome, again: Outcome, names: Iterable[str]) -> None:
    for each in names:
        for old, new in ((side.results, again.results), (side.reasons, again.reasons)):
            if each in new:
                old[each] = new[each]
            else:
                old.pop(each, None)


def compare(suites: Suites, name: str) -> int:
    """
    Print a line about a suite, and its differences.

    @return: How many there are.
    """
    loop = PROJECTS[name].loop if name in PROJECTS else "aio"
    theirs, ours = Outcome(), Outcome()
    sides = {"asyncio": theirs, loop: ours}
    seconds = dict.fromkeys(sides, 0.0)
    for tests in suites.parts(name):
        for which, side in sides.items():
            began = time.monotonic()
            side.join(suites.run(name, side is ours, tests))
            seconds[which] += time.monotonic() - began
    for which, side in sides.items():
        print(f"{name}: {which}: {_counts(side)}; {seconds[which]:.0f} s", flush=True)
    # What neither runs does not differ.
    hasRun = all(side.having("passed") for side in sides.values())
    steady, unsteady = settle(suites, name, theirs, ours)
    for each in unsteady:
        print(f"    differed, and not again: {each}")
    for each in steady:
        found = (f"{which}: {_result(side, each)}" for which, side in sides.items())
        print(f"    DIFFERS: {each}: {'; '.join(found)}")
    for each, result in sorted(ours.results.items()):
        if result == "failed" and each not in steady:
            print(f"    fails on both: {each}: {ours.reasons.get(each, '')}")
    ended = f"{theirs.having('failed')} and {ours.having('failed')} fail after that"
    print(f"{name}: {len(steady)} differences; {ended}{'' if hasRun else '; NOTHING PASSED'}", flush=True)
    return len(steady) + (not hasRun)


def _counts(outcome: Outcome) -> str:
    kinds = ", ".join(f"{outcome.having(kind)} {kind}" for kind in ("passed", "failed", "skipped"))
    return f"{outcome.count} tests, {kinds}"


def _result(side: Outcome, name: str) -> str:
    return f"{side.results.get(name, 'not run')} {side.reasons.get(name, '')}".strip()


def main() -> int:
    """
    Run what is asked for.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.suites.aio")
    parser.add_argument("names", nargs="?", default=",".join(("interpreter", *PROJECTS)))
    parser.add_argument("--seconds", type=int, default=900, help="how long one run may take")
    parser.add_argument("--output", type=Path, help="where the logs go")
    parser.add_argument("--environment", type=Path, help="virtual environments to keep and use again")
    arguments = parser.parse_args()
    directory = (arguments.output or Path(tempfile.mkdtemp(prefix="aio-"))).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    environment = (arguments.environment or directory / "environment").resolve()
    environment.mkdir(parents=True, exist_ok=True)
    suites = Suites(environment, directory, arguments.seconds)
    bad: list[int] = []
    for name in arguments.names.split(","):
        if trouble := suites.install(name) if name in PROJECTS else "":
            print(f"skipped: {name}: {trouble}")
        else:
            bad.append(compare(suites, name))
    return SKIPPED if not bad else int(any(bad))


if __name__ == "__main__":
    sys.exit(main())
