"""
Run the cases, and compare what becomes of each test.

    python -m tests.suites.multiprocessing [--methods fork,spawn,forkserver] [--run] [--seconds 600]

The exit status is 0 if there is no failure with L{twisted_ib.queues} that there is not with
C{multiprocessing}'s own classes, 77 if the interpreter has no tests of its own.  With C{--run} it is
C{ib-run --queues} that puts them in place.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from tests.suites.projects import SKIPPED

_ROOT = Path(__file__).resolve().parents[3]
_CASES = "tests.suites.multiprocessing.cases"
#: Not with blocking sockets over SDP, which cannot be sent to another process: one of the cases does it.
IB_RUN = ("-m", "twisted_ib.tools.run", "-q", "--queues", "--reactor", "aio")
#: Have the classes put in place by the cases, or by C{ib-run}.
CASES, RUN = "cases", "run"
#: Of C{unittest}: a test, its class, what became of it.
_RESULT = re.compile(r"^(test\w+) \(\S*?(\w+)(?:\.\1)?\) \.\.\. .*?(ok|FAIL|ERROR|skipped.*)$", re.MULTILINE)


def results(method: str, ours: str, names: Sequence[str] = (), seconds: float = 600) -> dict[str, str]:
    """
    Run the cases.

    @param method: how processes start.
    @param ours: L{CASES} or L{RUN} for the classes of L{twisted_ib.queues}; C{""} for the interpreter's.
    @param names: classes of them; by default all.
    @return: What became of each test, by its class and name; C{end} is how the run ended.
    """
    variables = {"METHOD": method, "QUEUES": "1" if ours == CASES else "", "PYTHONPATH": str(_ROOT)}
    command = [sys.executable, "-W", "ignore", *(IB_RUN if ours == RUN else ()), "-m", "unittest", "-v"]
    command += [f"{_CASES}.{each}" for each in names] or [_CASES]
    options = {"cwd": _ROOT, "env": {**os.environ, **variables}, "timeout": seconds}
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, **options)
    found = {f"{kind}.{name}": result for name, kind, result in _RESULT.findall(done.stderr)}
    return {**found, "end": str(done.returncode)}


def worse(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """
    @return: What was good, and is not.
    """
    good = ("ok", "0")
    lost = [each for each in before if before[each] in good and after.get(each) not in good]
    return [f"{each}: {after.get(each)}" for each in lost]


def main() -> int:
    """
    Compare.

    @return: The process's exit status.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--methods", default=",".join(multiprocessing.get_all_start_methods()))
    parser.add_argument("--run", action="store_const", const=RUN, default=CASES)
    parser.add_argument("--seconds", type=float, default=600)
    options = parser.parse_args()
    if find_spec("test._test_multiprocessing") is None:
        print("the interpreter has no tests of its own")
        return SKIPPED
    wrong = []
    for method in options.methods.split(","):
        before, after = (results(method, ours, seconds=options.seconds) for ours in ("", options.run))
        found = worse(before, after)
        print(f"{method}: {len(before) - 1} tests, {len(found)} worse", *found, sep="\n  ")
        wrong += found
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
