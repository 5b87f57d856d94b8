"""
Run asyncio's own tests, and the suites of aiohttp and uvicorn, on asyncio's event loop and on that of
L{twisted_ib.aio}, and compare what fails.

    python -m tests.suites.aio [interpreter,aiohttp,uvicorn] [--seconds 900] [--output DIRECTORY]
                               [--environment DIRECTORY]

The interpreter's tests are those of its C{test} package, which some distributions have apart.  The others
come from PyPI, as archives with their tests, into a virtual environment with what they need; if nothing can
be downloaded they are skipped, with the reason.  C{ib-run --reactor=aio} gives them the event loop.  A test
that fails on it alone runs again, on both; it is a difference if it fails again.  The exit status is 0 if
there is no difference, 77 if all were skipped.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

from attrs import field, frozen

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
#: Starts a program on the event loop.
ON_LOOP = ("-m", "twisted_ib.tools.run", "-q", "--reactor=aio")
#: What most suites need.
_COMMON = ("pytest", "pytest-mock", "pytest-timeout", "trustme", "anyio")
#: As C{unittest} reports a test that has not passed.
_FAILED = re.compile(r"^(?:FAIL|ERROR): \S+ \((\S+)\)", re.M)
_RAN = re.compile(r"^Ran (\d+) tests?", re.M)


@frozen
class Project:
    """
    A project with tests in its archive.

    @ivar requirements: What they need from PyPI beside it.
    @ivar options: For pytest.
    """

    requirements: tuple[str, ...]
    options: tuple[str, ...] = ()


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
        ("httpx2", "websockets", "wsproto", "httptools", "a2wsgi", "watchfiles", "python-dotenv", "pyyaml"),
        # It asks for the name of the module of the event loop's class.
        ("--deselect=tests/test_auto_detection.py::test_loop_auto",),
    ),
}


@frozen
class Outcome:
    """
    What became of some tests.

    @ivar count: How many ran.
    @ivar failed: Those that did not pass.
    """

    count: int
    failed: frozenset[str] = field(converter=frozenset)


class Suites:
    """
    Runs suites.

    @ivar python: The interpreter.
    @ivar directory: Where logs and archives are.
    """

    def __init__(self, environment: Path, directory: Path, seconds: int) -> None:
        """
        @param seconds: How long one run may take.
        """
        self.environment = environment
        self.python = sys.executable
        self.directory = directory
        self.seconds = seconds
        self._count = 0

    def install(self, names: Iterable[str]) -> str:
        """
        Make the virtual environment, and fetch the archives.

        @return: Why that was not possible, or nothing.
        """
        python = str(self.environment / "bin" / "python")
        pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        steps = [] if self.environment.exists() else [[sys.executable, "-m", "venv", str(self.environment)]]
        steps.append([*pip, "install", str(ROOT), *_COMMON])
        for name in names:
            steps.append([*pip, "install", name, *PROJECTS[name].requirements])
            steps.append(
                [*pip, "download", "--no-deps", "--no-binary", ":all:", "-d", str(self.directory), name]
            )
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
        for name in names:
            (archive,) = self.directory.glob(f"{name}-*.tar.gz")
            subprocess.run(["tar", "xzf", archive.name], cwd=self.directory, check=True)
        self.python = python
        return ""

    def run(self, name: str, isOurs: bool, tests: Iterable[str] = ()) -> Outcome:
        """
        @param isOurs: Whether on our event loop.
        @param tests: Only these.
        @return: What became of them.
        """
        self._count += 1
        base = self.directory / f"{self._count:02}-{name}-{'aio' if isOurs else 'asyncio'}"
        base.mkdir()
        environment = {key: value for key, value in os.environ.items() if key not in CONFIGURING}
        environment.update(PYTHONPATH=str(ROOT), HOME=str(base), TWISTED_IB_RUN_DIR=str(base / "run"))
        program, where, results = self._command(name, base, tests)
        command = [
            "timeout",
            "-k",
            "5",
            str(self.seconds),
            self.python,
            *(ON_LOOP if isOurs else ()),
            *program,
        ]
        with open(base / "log", "w") as log:
            subprocess.run(
                command,
                cwd=where,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=False,
            )
        if results is None:
            said = (base / "log").read_text()
            return Outcome(sum(map(int, _RAN.findall(said))), _FAILED.findall(said))
        if not results.exists():
            return Outcome(0, ())
        cases = list(ElementTree.parse(results).iter("testcase"))
        failed = [
            each for each in cases if each.find("failure") is not None or each.find("error") is not None
        ]
        return Outcome(len(cases), {f"{each.get('classname')}::{each.get('name')}" for each in failed})

    def _command(self, name: str, base: Path, tests: Iterable[str]) -> tuple[list[str], Path, Path | None]:
        if name == "interpreter":
            modules = list(tests) or [f"test.test_asyncio.test_{each}" for each in INTERPRETER]
            return ["-m", "unittest", "-v", *modules], base, None
        (source,) = (path for path in self.directory.glob(f"{name}-*") if path.is_dir())
        # Beside the archive's own package: that of the environment is compiled.
        where = base / "source"
        where.mkdir()
        for each in ("tests", "pyproject.toml", "setup.cfg"):
            if (source / each).exists():
                (where / each).symlink_to(source / each)
        results = base / "results.xml"
        options = ["-q", "-o", "addopts=", "-p", "no:cacheprovider", "--timeout=60", f"--junitxml={results}"]
        chosen = sorted({_path(each) for each in tests}) or ["tests"]
        return ["-m", "pytest", *options, *PROJECTS[name].options, *chosen], where, results


def _path(name: str) -> str:
    # Of a name in the results of pytest: the module's file, so that its fixtures are there.
    module = name.partition("::")[0].split(".")
    while module and not module[-1].startswith("test_"):
        module.pop()
    return "/".join(module) + ".py"


def compare(suites: Suites, name: str) -> int:
    """
    Print a line about a suite, and its differences.

    @return: How many there are.
    """
    theirs, ours = suites.run(name, False), suites.run(name, True)
    new = ours.failed - theirs.failed
    if new and name == "interpreter":
        again = suites.run(name, True, new).failed - suites.run(name, False, new).failed
    elif new:
        again = suites.run(name, True, new).failed & new
    else:
        again = frozenset()
    complete = ours.count == theirs.count > 0
    print(
        f"{name}: {theirs.count} tests on asyncio, {len(theirs.failed)} fail;"
        f" {ours.count} on aio, {len(ours.failed)} fail, {len(again)} of them here alone"
        f"{'' if complete else '; not all ran'}",
        flush=True,
    )
    for each in sorted(again):
        print("   ", each)
    return len(again) + (not complete)


def main() -> int:
    """
    Run what is asked for.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="?", default=",".join(("interpreter", *PROJECTS)))
    parser.add_argument("--seconds", type=int, default=900)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--environment", type=Path)
    arguments = parser.parse_args()
    directory = (arguments.output or Path(tempfile.mkdtemp(prefix="aio-"))).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    names = arguments.names.split(",")
    environment = (arguments.environment or directory / "environment").resolve()
    suites = Suites(environment, directory, arguments.seconds)
    trouble = suites.install(projects) if (projects := [each for each in names if each in PROJECTS]) else ""
    if trouble:
        print(f"skipped: {', '.join(projects)}: {trouble}")
        names = [each for each in names if each not in PROJECTS]
    if not names:
        return SKIPPED
    return 1 if sum([compare(suites, each) for each in names]) else 0


if __name__ == "__main__":
    sys.exit(main())
