"""
Run the interpreter's own tests of sockets as they are, and with blocking sockets over SDP in the place of the
standard library's, and compare what fails.

    python -m tests.suites.interpreter [test_socket,test_select] [--seconds 300]

They are in the package C{test} of the interpreter, which on Debian is C{libpython3.11-testsuite}.  A test
that fails under the patch and not without it runs again, alone, both ways; it is a difference if it fails
again.  The exit status is 0 if there is none, 77 if there is no package C{test}.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.suites.compare import CONFIGURING, ROOT
from tests.suites.projects import SKIPPED

#: The modules.
MODULES = (
    "test_socket",
    "test_socketserver",
    "test_httpservers",
    "test_httplib",
    "test_xmlrpc",
    "test_ftplib",
    "test_smtplib",
    "test_select",
    "test_selectors",
)
#: Tests that are left out of both runs: they wait for ever where a kernel has vsock and no hypervisor.
LEFT = "VSOCK"

Results = dict[str, str]


def _flat(suite: Any) -> Iterator[Any]:
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from _flat(each)
        elif LEFT not in each.id():
            yield each


class _Result(unittest.TextTestResult):
    """
    Writes a line for each result.
    """

    def say(self, kind: str, test: Any) -> None:
        """
        Write one.
        """
        print(json.dumps([kind, test.id()]), flush=True)

    def addSuccess(self, test: Any) -> None:
        super().addSuccess(test)
        self.say("ok", test)

    def addSkip(self, test: Any, reason: str) -> None:
        super().addSkip(test, reason)
        self.say("skipped", test)

    def addFailure(self, test: Any, err: Any) -> None:
        super().addFailure(test, err)
        self.say("failed", test)

    def addError(self, test: Any, err: Any) -> None:
        super().addError(test, err)
        self.say("failed", test)


def child(isPatched: bool, names: Sequence[str]) -> None:
    """
    Run tests in this process, and write their results and how many connections each provider carried.
    """
    if isPatched:
        from twisted_ib.blocking.patch import patch

        patch()
    from test import support

    support.use_resources = ["network", "cpu"]  # type: ignore[attr-defined]
    tests = unittest.defaultTestLoader.loadTestsFromNames([f"test.{name}" for name in names])
    runner: Any = unittest.TextTestRunner(stream=sys.stderr, resultclass=_Result, verbosity=2)
    runner.run(unittest.TestSuite(_flat(tests)))
    if isPatched:
        from twisted_ib.blocking.loop import _loop as loop

        counters = {} if loop is None else dict(loop.reactor.switch.counters)
        print(json.dumps(["counters", counters]), flush=True)


def run(isPatched: bool, names: Sequence[str], seconds: float, directory: str) -> tuple[Results, Any]:
    """
    Run tests in a process of their own.

    @return: Their results by name, and the switch's counters.
    """
    command = [sys.executable, "-m", "tests.suites.interpreter", "--child", str(int(isPatched)), *names]
    environment = {key: value for key, value in os.environ.items() if key not in CONFIGURING}
    search = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment.update(PYTHONPATH=search, TWISTED_IB_RUN_DIR=str(Path(directory) / "run"))
    quiet: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    timeout = ["timeout", "-k", "5", str(seconds)]
    ended = subprocess.run(
        [*timeout, *command], cwd=directory, env=environment, check=False, text=True, **quiet
    )
    results: Results = {}
    counters: Any = {}
    for line in ended.stdout.splitlines():
        try:
            kind, what = json.loads(line)
        except ValueError:
            # A test of the interpreter's printed it.
            continue
        if kind == "counters":
            counters = what
        elif results.get(what) != "failed":
            results[what] = kind
    if ended.returncode:
        results[f"the process of {' '.join(names)} ended with {ended.returncode}"] = "failed"
    return results, counters


def main() -> int:
    """
    Do it.

    @return: The exit status.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.suites.interpreter")
    parser.add_argument("modules", nargs="*", help="such as test_socket,test_select; all by default")
    parser.add_argument("--seconds", type=float, default=300, help="for one module")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        child(options.child == "1", options.modules)
        return 0
    if importlib.util.find_spec("test.test_socket") is None:
        print("skipped: this interpreter has no package test")
        return SKIPPED
    modules = [name for each in options.modules for name in each.split(",")] or list(MODULES)
    form = "{:<18} {:>6} {:>6} {:>7} {:>8} {:>4}"
    print(form.format("module", "ran", "ok", "failed", "skipped", "new"))
    differences: list[str] = []
    with tempfile.TemporaryDirectory() as directory:
        for module in modules:
            plain, _ = run(False, [module], options.seconds, directory)
            ours, counters = run(True, [module], options.seconds, directory)
            new = []
            for name in sorted(name for name, kind in ours.items() if kind == "failed"):
                if plain.get(name) != "failed" and _failsAgain(name, options.seconds, directory):
                    new.append(name)
            new += sorted(f"{name} did not run" for name in plain.keys() - ours.keys())
            kinds = [list(ours.values()).count(kind) for kind in ("ok", "failed", "skipped")]
            print(form.format(module, len(ours), *kinds, len(new)), counters, flush=True)
            differences += new
    print(*differences, f"{len(differences)} differences.", sep="\n")
    return 1 if differences else 0


def _failsAgain(name: str, seconds: float, directory: str) -> bool:
    if not name.startswith("test."):
        return True
    short = [name.removeprefix("test.")]
    ours, plain = (run(isPatched, short, seconds, directory)[0] for isPatched in (True, False))
    return ours.get(name) != "ok" and plain.get(name) != "failed"


if __name__ == "__main__":
    sys.exit(main())
