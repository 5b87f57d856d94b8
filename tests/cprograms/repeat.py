"""
C{python -m tests.cprograms.repeat}: each program several times, and how often it passed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from functools import partial

from tests.cprograms.iscsi.disk import runDisk
from tests.cprograms.lab import SWITCH, Here, Lab, LabError, lacking, sides
from tests.cprograms.libraries.dapl import SIZES, runDAPL
from tests.cprograms.programs import DEVICES, PROGRAMS, Program


def _run(program: Program, server: Here, client: Here) -> None:
    Lab(server, client).run(program)


#: The runs between two sides, by name.
_RUNS: dict[str, Callable[[Here, Here], None]] = {
    **{program.name: partial(_run, program) for program in PROGRAMS},
    "dtest": runDAPL,
    **{f"dtest_{size}": partial(runDAPL, options=f"-b {size} -D") for size in SIZES},
    "iser": runDisk,
}


def _where(text: str) -> tuple[str, tuple[str, ...]]:
    # NAMESPACE:ADDRESS
    name, _, address = text.partition(":")
    return address, ("ip", "netns", "exec", name)


def main() -> int:
    """
    @return: the exit status: how many runs failed, at most 100.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", nargs="*", help="names as of the tests (default: all)")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--device", choices=DEVICES, action="append")
    parser.add_argument("--namespace", type=_where, nargs=2, metavar="NAME:ADDRESS", help="both sides'")
    options = parser.parse_args()
    os.environ[SWITCH] = "1"
    reason = lacking()
    if reason is not None:
        print(reason)
        return 1
    failures = 0
    print(f"{'program':<16} {'device':<6} passed  seconds each", flush=True)
    for name, run in _RUNS.items():
        if options.programs and name not in options.programs:
            continue
        for device in options.device or DEVICES:
            named = options.namespace
            server, client = (Here(device, *each) for each in named) if named else sides(device)
            errors: list[str] = []
            begun = time.monotonic()
            for _ in range(options.times):
                try:
                    run(server, client)
                except LabError as error:
                    errors.append(str(error))
            seconds = (time.monotonic() - begun) / options.times
            passed = options.times - len(errors)
            print(f"{name:<16} {device:<6} {passed}/{options.times}  {seconds:.1f}", flush=True)
            failures += len(errors)
            if errors:
                print(errors[0], file=sys.stderr, flush=True)
    return min(failures, 100)


if __name__ == "__main__":
    sys.exit(main())
