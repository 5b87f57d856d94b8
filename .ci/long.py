"""
What C{.ci/run} has no time for, whole, in parts.

    .ci/long [PART...]

Without a name all of them, in the order of the list: soak, opensm, ipoib, cprograms, interop, twisted,
projects, and python3.10, python3.13 or whichever other Pythons the machine has.
"""

from __future__ import annotations

import sys
from functools import partial

import parts
from functions import Run, main
from machine import install, others

#: All parts take an hour on two quiet cores.
SECONDS = 4 * 3600


def long(names: list[str], run: Run) -> None:
    """
    Some parts.
    """
    install(run, parts.PACKAGES)
    tested = run.copy("tested")
    if {*names} & {*parts.PARTS} and not (
        run.check("environment", 120, [sys.executable, "-m", "venv", ".venv"], tested)
        and parts.extras(run, tested)
    ):
        return
    for name in names:
        if name in parts.PARTS:
            parts.PARTS[name](run, tested)
        else:
            parts.python(run, name.removeprefix("python"))


def parsed(arguments: list[str]) -> list[str]:
    """
    @return: the parts that are asked for.

    @raise SystemExit: one is unknown.
    """
    other = [f"python{version}" for version in others()]
    known = [*parts.PARTS, *other]
    if wrong := [each for each in arguments if each not in known]:
        raise SystemExit(f"{__doc__}\nunknown: {' '.join(wrong)}; there are: {' '.join(known)}")
    # As in the gate, where nothing is asked for: of the other Pythons the oldest and the newest.
    return arguments or [each for each in known if each not in other[1:-1]]


if __name__ == "__main__":
    sys.exit(main(SECONDS, partial(long, parsed(sys.argv[1:]))))
