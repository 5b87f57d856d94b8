"""
Run the tests of pools of processes as they are, and under C{ib-run --queues}, and compare.

    python -m tests.suites.multiprocessing.pools [futures,pebble,joblib] [--seconds 1200]
                                                 [--environment DIRECTORY]

C{futures} are the interpreter's own of C{concurrent.futures.ProcessPoolExecutor}, which Debian has in
C{libpython3.11-testsuite}; C{pebble} and C{joblib} come from PyPI, into a virtual environment with this
project: of pebble all suites of processes, from its archive, of joblib its tests of the back end
C{multiprocessing}.

The exit status is 0 if nothing fails that does not fail as it is, 77 if nothing could run.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from tests.suites.compare import ROOT
from tests.suites.dask.__main__ import parsed
from tests.suites.multiprocessing.__main__ import IB_RUN, worse
from tests.suites.projects import SKIPPED, installed

#: Of C{unittest}: a test, its class, what became of it, which workers that die write before.
_RESULT = re.compile(
    r"^(test\w+) \(\S*?(\w+)(?:\.\1)?\) \.\.\. (?:(?!^test\w+ \()[\s\S])*?(ok|FAIL|ERROR|skipped.*)$",
    re.MULTILINE,
)
#: How often a test with limits of time runs again.
TRIES = 3
_PYTEST = ("-m", "pytest", "-v", "--color=no", "--timeout=120", "-p", "no:cacheprovider")
_PEBBLE = [
    f"test_{kind}_{method}.py"
    for kind in ("asynchronous_process", "concurrent_process", "process_pool")
    for method in ("fork", "spawn", "forkserver")
]
_JOBLIB = ("-k", "multiprocessing", "--pyargs", "joblib.test.test_parallel", "joblib.test.test_memmapping")


class Pools:
    """
    Runs the suites.
    """

    def __init__(self, folder: Path, environment: Path, seconds: float) -> None:
        """
        @param folder: where archives and logs go.
        @param seconds: how long each run of one process may take.
        """
        self._folder, self._environment, self._seconds = folder, environment, seconds

    def missing(self, name: str) -> str:
        """
        @return: why a suite cannot run, or nothing.
        """
        if name == "futures":
            return "" if find_spec("test.test_concurrent_futures") else "the interpreter has no such tests"
        trouble = installed(self._environment, self._folder, [name, "numpy", "pytest", "pytest-timeout"])
        if trouble or name == "joblib":
            return trouble
        fetch = [
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--no-binary",
            ":all:",
            name,
        ]
        done = subprocess.run([self._python(name), *fetch], cwd=self._folder, timeout=self._seconds)
        archives = list(self._folder.glob(f"{name}-*.tar.gz"))
        if done.returncode or not archives:
            return "its archive cannot be had"
        subprocess.run(["tar", "xzf", archives[0].name], cwd=self._folder, check=True)
        return ""

    def _python(self, name: str) -> str:
        return sys.executable if name == "futures" else str(self._environment / "bin" / "python")

    def run(self, name: str, way: tuple[str, ...]) -> dict[str, str]:
        """
        @param way: what starts the tests.
        @return: what became of each.
        """
        command = [self._python(name), "-W", "ignore", *way]
        if name == "futures":
            tests = ["-m", "unittest", "-v", "-k", "ProcessPool", "test.test_concurrent_futures"]
            log = self._log([*command, *tests], self._folder)
            return {f"{kind}.{test}": result for test, kind, result in _RESULT.findall(log)}
        if name == "joblib":
            # Or tests outside of the current folder have no file in their names.
            root = f"--rootdir={self._environment}"
            return _asOk(self._log([*command, *_PYTEST, root, *_JOBLIB], self._folder))
        source = self._source(name)
        found: dict[str, str] = {}
        # The method of a process is set once.
        for each in _PEBBLE:
            found.update(_asOk(self._log([*command, *_PYTEST, each], source)))
        return found

    def passes(self, name: str, test: str) -> bool:
        """
        @return: Whether a test passes that runs again, alone, up to L{TRIES} times: some have limits of time
            for a machine with nothing else to do, as a second for a process to start and to fail.
        """
        if name != "pebble":
            return False
        command = [self._python(name), "-W", "ignore", *IB_RUN, *_PYTEST, test]
        return any("ok" in _asOk(self._log(command, self._source(name))).values() for _ in range(TRIES))

    def _source(self, name: str) -> Path:
        (source,) = (each for each in self._folder.glob(f"{name}-*/test") if each.is_dir())
        return source

    def _log(self, command: list[str], where: Path) -> str:
        environment = {**os.environ, "TWISTED_IB_RUN_DIR": str(self._folder / "run")}
        # Else the virtual environment has this project.
        paths = (str(ROOT), environment.get("PYTHONPATH", "")) if command[0] == sys.executable else ()
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        with (self._folder / "log").open("w+") as log:
            options = {"cwd": where, "env": environment, "stdout": log, "stderr": log}
            try:
                subprocess.run(command, stdin=subprocess.DEVNULL, timeout=self._seconds, **options)
            except subprocess.TimeoutExpired:
                print("the time was up")
            log.seek(0)
            return log.read()


def _asOk(log: str) -> dict[str, str]:
    return {each: "ok" if result == "PASSED" else result for each, result in parsed(log).items()}


def main() -> int:
    """
    Compare.

    @return: The process's exit status.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.suites.multiprocessing.pools")
    parser.add_argument("names", nargs="?", default="futures,pebble,joblib")
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--environment", type=Path, help="a virtual environment to keep and use again")
    options = parser.parse_args()
    statuses = []
    with tempfile.TemporaryDirectory(prefix="pools-") as temporary:
        folder = Path(temporary)
        pools = Pools(folder, (options.environment or folder / "environment").resolve(), options.seconds)
        for name in options.names.split(","):
            if trouble := pools.missing(name):
                print(f"{name}: skipped: {trouble}", flush=True)
                continue
            before, after = pools.run(name, ()), pools.run(name, IB_RUN)
            found = [
                each for each in worse(before, after) if not pools.passes(name, each.rpartition(": ")[0])
            ]
            good = [list(each.values()).count("ok") for each in (before, after)]
            print(
                f"{name}: {len(before)} tests: {good[0]} pass as they are, {good[1]} with --queues",
                *found,
                sep="\n  ",
            )
            statuses.append(bool(found) or not good[1])
    return int(any(statuses)) if statuses else SKIPPED


if __name__ == "__main__":
    sys.exit(main())
