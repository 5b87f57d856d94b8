"""
C{python -m tests.interop.cprograms.repeat}: each program several times, and how often it passed.  Each
run makes all checks of the test.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time

from twisted.trial.reporter import TestResult

from tests.cprograms.programs import PROGRAMS
from tests.interop.cprograms.rxe import ROLES, ProgramTests
from tests.interop.lab.lab import SWITCH, lacking


def main() -> int:
    """
    @return: the exit status: how many runs did not pass, at most 100.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.interop.cprograms.repeat", description=__doc__)
    parser.add_argument("programs", nargs="*", help="names as of the tests (default: all)")
    parser.add_argument("--times", type=int, default=10)
    options = parser.parse_args()
    os.environ[SWITCH] = "1"
    reason = lacking()
    if reason is not None:
        print(reason)
        return 1
    names = options.programs or [each.name for each in PROGRAMS]
    # Tests write below the working directory.
    with tempfile.TemporaryDirectory(prefix="ib-") as directory:
        os.chdir(directory)
        try:
            return _all(names, options.times)
        finally:
            os.chdir("/")


def _all(names: list[str], times: int) -> int:
    failures = 0
    print(f"{'program':<16} {'role':<6} passed  seconds each", flush=True)
    for name in names:
        for role in ROLES:
            passed, begun = 0, time.monotonic()
            for _ in range(times):
                result = TestResult()
                ProgramTests(f"test_{name}_{role}").run(result)
                passed += result.successes
                for _, why in (*result.errors, *result.failures, *result.skips):
                    print(why, file=sys.stderr, flush=True)
            seconds = (time.monotonic() - begun) / times
            print(f"{name:<16} {role:<6} {passed}/{times}  {seconds:.1f}", flush=True)
            failures += times - passed
    return min(failures, 100)


if __name__ == "__main__":
    sys.exit(main())
