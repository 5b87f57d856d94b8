"""
Make runs: C{python -m tests.simulation --runs N --seed S [--kind K]}.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from tests.simulation.kinds import KINDS
from tests.simulation.run import Failure, Run


def main() -> int:
    """
    Make the runs that the command line says.

    @return: the exit status: 1 if one has failed.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--runs", type=int, default=400, help="how many (%(default)s)")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the first; the next have the next (%(default)s)"
    )
    parser.add_argument("--kind", choices=sorted(KINDS), help="of fault; all in turn if it is not given")
    parser.add_argument("--log", action="store_true", help="print what happens")
    options = parser.parse_args()
    kinds, failed, begin = list(KINDS), 0, time.monotonic()
    for seed in range(options.seed, options.seed + options.runs):
        run = Run(seed, options.kind or kinds[seed % len(kinds)])
        try:
            run.go()
        except Failure as failure:
            failed += 1
            print(failure)
            if options.log:
                traceback.print_exc()
        if options.log:
            print("\n".join(run.world.log))
    seconds = time.monotonic() - begin
    print(f"{options.runs} runs, {failed} failed, {seconds:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
