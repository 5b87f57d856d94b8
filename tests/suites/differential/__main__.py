"""
See L{tests.suites.differential}.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from tests.suites.differential.loops import scenarios as loops
from tests.suites.differential.reactors import scenarios as reactors
from tests.suites.differential.record import Scenarios
from tests.suites.differential.sockets import scenarios as sockets

PROGRAMS: dict[str, Scenarios] = {"asyncio": loops, "reactor": reactors, "socket": sockets}


def _show(scenarios: Scenarios, name: str) -> None:
    for isSDP in (False, True):
        print(f"{name} over {'SDP' if isSDP else 'TCP'}")
        for part, lines in scenarios.play(scenarios.named[name], isSDP).parts.items():
            print("\n    ".join([f"  {part}", *lines]), flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Compare what the command line says.

    @return: The exit status.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.suites.differential", description=__doc__)
    parser.add_argument("program", choices=sorted(PROGRAMS))
    parser.add_argument("--only", metavar="NAME", default="", help="those with this in their names")
    parser.add_argument("--show", action="store_true", help="print what each says")
    options = parser.parse_args(arguments)
    scenarios = PROGRAMS[options.program]
    names = [name for name in scenarios.named if options.only in name]
    if not names:
        parser.error(f"no scenario of {options.program} is called {options.only}")
    faults, known, begin = 0, 0, time.monotonic()
    for name in names:
        if options.show:
            _show(scenarios, name)
            continue
        found = scenarios.compared(name)
        for each in found:
            if each.name in scenarios.known:
                known += 1
                print(f"{each}\n    known: {scenarios.known[each.name]}")
        for line in scenarios.faults(name, found):
            faults += 1
            print(line, flush=True)
    spent = time.monotonic() - begin
    print(f"{len(names)} scenarios, {known} known differences, {faults} faults, {spent:.1f} s")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
