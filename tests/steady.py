"""
Run tests again and again, on a busy machine if that is wanted, and print which are not always green.

    python -m tests.steady [NAME...] [--times N] [--load N] [--jobs N] [--seconds N]

Names are those that trial takes, by default C{tests}.  C{--load} processes keep the processors busy beside
them.  A run that takes longer than C{--seconds} is ended.  The exit status is 0 if all tests were green each
time, else 1.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.ci.checkout import functions

#: The end of the first traceback of each test that is not steady.
LINES = 40
#: Ends with whoever has started it, however that ends.
_BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))\n"


@contextmanager
def busy(number: int) -> Iterator[None]:
    """
    Have so many processes compute meanwhile.
    """
    processes = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Do it.

    @return: the exit status.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.steady")
    parser.add_argument("names", nargs="*", metavar="NAME", default=["tests"])
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--load", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3600)
    options = parser.parse_args(arguments)
    ci = functions()
    environment = {"TWISTED_IB_TEST_PATIENCE": "3", **os.environ}
    folder = Path(tempfile.mkdtemp())
    failed: Counter[str] = Counter()
    first: dict[str, str] = {}
    most = 0
    command = [sys.executable, "-m", "twisted.trial", f"--temp-directory={folder / 'trial'}"]
    command += [f"-j{options.jobs}"] * (options.jobs > 1) + options.names
    try:
        with busy(options.load):
            for number in range(options.times):
                began = time.monotonic()
                status, log = ci.execute(command, options.seconds, Path.cwd(), environment, len)
                outcome = ci.parse(log)
                troubles = dict(outcome.troubles)
                if not outcome.ended or (status != 0 and not troubles):
                    end = "hung" if status is None else f"ended with status {status}"
                    troubles[f"run {number + 1} {end}, without a report of failed tests"] = log
                failed.update(troubles.keys())
                first = troubles | first
                most = max(most, outcome.passed + len(outcome.troubles))
                words = f"{outcome.passed} passed, {len(troubles)} failed, {outcome.skipped} skipped"
                print(f"run {number + 1}: {words} ({time.monotonic() - began:.0f} s)", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for name, count in failed.most_common():
        print(f"{name}: failed {count} of {options.times}")
        print("\n".join(first[name].splitlines()[-LINES:]))
    print(f"{most} tests, {options.times} times, load {options.load}: {len(failed)} not steady")
    return 1 if failed or not most else 0


if __name__ == "__main__":
    sys.exit(main())
