"""
Change one expression of the HCA and its device, CM, MADs, subnet, its manager, transport, iWARP, SDP, RDS,
IPoIB, RDMA, the loops of asyncio, sockets and reactors, what drives them, the switch, queues, Dask's part, or
the C libraries at a time, and see that a test fails.

    python -m tests.mutants [--count 200] [--seed S] [--minutes 60] [--module PATH] [--list]

Each mutant runs the tests that mirror its module and the contracts that it has to keep, until one fails;
those that are known to be equivalent are not tried.  Those that survive are printed again at the end, and
those whose tests ended by time, which hang or met a busy machine: they count neither as caught nor as
survivors.  The exit status is 1 if more than one in ten of the others has survived.  The tests run unchanged
first; what is not tried when the time is up is left out, and said.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.equivalent import without
from tests.mutants.mutations import sample
from tests.mutants.trying import PARTS, ROOT, Outcome, Tree, testsOf

#: Of the mutants that a test has decided on, so many have to be caught.
LEAST_CAUGHT = 0.9


def sources(root: Path, module: str | None = None) -> dict[str, str]:
    """
    @param module: A path below the root, of a module or folder; all parts if it is not given.

    @return: The modules to change, by their paths.
    """
    found = {path for part in PARTS for path in (root / part).rglob("*.py")}
    paths = {path.relative_to(root).as_posix(): path for path in sorted(found)}
    return {
        name: path.read_text()
        for name, path in paths.items()
        if module is None or (name + "/").startswith(module.rstrip("/") + "/")
    }


def judged(tried: Sequence[tuple[str, Outcome]]) -> tuple[list[str], bool]:
    """
    @param tried: Mutants, and how the tests of each ended.

    @return: The lines for the end, and whether enough are caught.
    """
    named: dict[str, list[str]] = {"killed": [], "survived": [], "timeout": []}
    for mutant, outcome in tried:
        named[outcome.status].append(mutant)
    caught, survived, late = map(len, named.values())
    decided = caught + survived
    lines = [f"{status} {each}" for status in ("survived", "timeout") for each in sorted(named[status])]
    share = f"{caught} of {decided} caught ({caught / max(decided, 1):.1%}), {late} ended by time"
    return [*lines, share], caught >= LEAST_CAUGHT * decided


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Try the mutants that the command line says.

    @return: The exit status.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.split("\n\n")[0])
    parser.add_argument("--count", type=int, default=200, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="which (%(default)s)")
    parser.add_argument("--minutes", type=float, default=60.0, help="none is begun later (%(default)s)")
    parser.add_argument("--module", metavar="PATH", help="of this module or folder only")
    parser.add_argument("--list", action="store_true", help="print them, try none")
    options = parser.parse_args(arguments)
    modules = sources(ROOT, options.module)
    if not modules:
        parser.error(f"--module {options.module}: no module of {', '.join(PARTS)}")
    every = without(modules)
    chosen = sample(every, options.count, options.seed)
    if options.list:
        print("\n".join(f"{path}:{each}" for path, each in chosen))
        print(f"{len(chosen)} of {len(every)}")
        return 0
    tried: list[tuple[str, Outcome]] = []
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        tree = Tree.copied(Path(directory))
        for path, each in chosen:
            if time.monotonic() - begin > options.minutes * 60:
                print(f"the time is up: {len(chosen) - len(tried)} are left out")
                break
            outcome = tree.tried(path, each, testsOf(path, tree.root))
            tried.append((f"{path}:{each}", outcome))
            print(f"{outcome.status} {outcome.seconds:.1f} s {path}:{each}  {outcome.test}", flush=True)
    lines, enough = judged(tried)
    print("\n".join(["", *lines]))
    print(f"{time.monotonic() - begin:.0f} s")
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main())
