"""
Measure pairs of programs that people run, over TCP and, both under C{ib-run}, over SDP.

    python -m tests.suites.applications [PAIR ...] [--rounds 5] [--seconds 1] [--environment DIRECTORY]

A virtual environment is made for them, with this project in it; if nothing can be downloaded they are
skipped, with the reason.  A row has the medians of the rounds, in which TCP and SDP take turns: requests a
second, microseconds of the processor that one takes of both processes, and what has carried the connections.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.suites.applications.measuring import Programs, table
from tests.suites.applications.pairs import PAIRS
from tests.suites.projects import SKIPPED, installed


def main() -> int:
    """
    Do it.

    @return: 0 if all programs have run; L{SKIPPED} if they cannot be installed.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.suites.applications")
    parser.add_argument("pairs", nargs="*", metavar="PAIR", help=f"by default all: {', '.join(PAIRS)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="how long each measures")
    parser.add_argument("--output", help="where the logs go; by default they are thrown away")
    parser.add_argument("--environment", help="a virtual environment to keep and use again")
    options = parser.parse_args()
    names = options.pairs or list(PAIRS)
    wrong = [name for name in names if name not in PAIRS]
    if wrong:
        parser.error(f"there is no pair {wrong[0]!r}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.output or temporary).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        environment = Path(options.environment or Path(temporary) / "environment").resolve()
        requirements = sorted({each for name in names for each in PAIRS[name].requirements})
        trouble = installed(environment, folder, requirements)
        if trouble:
            print(f"skipped: the applications cannot be installed: {trouble}")
            return SKIPPED
        return table(Programs(environment, folder), names, options.rounds, options.seconds)


if __name__ == "__main__":
    sys.exit(main())
