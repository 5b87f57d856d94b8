"""
Ranks of MPI that share an address of C{roce0}: C{python -m tests.soak.killed.ranks [--ranks 16] [--kills 16]
[--no-hpcc]}.

First the HPC Challenge, a small one, which checks its results.  Then rings of Open MPI over UCX; in each of
them one rank is killed, each one in turn, and all others must have ended L{TOLD_SECONDS} later.

What came of it is printed as a line of JSON.  The status is 1 if anything was wrong, or late.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL

from tests.cprograms.libraries.mpi import IMPLEMENTATIONS, runHPCC
from tests.support.ownaddress import ownAddress
from tests.support.waiting import HANG_SECONDS, PATIENCE

#: How soon all must have ended.
TOLD_SECONDS = 5.0 * PATIENCE
#: More turns than a ring comes to do.
TURNS = "1000000"
#: How long the HPC Challenge may take: its ranks wait out each other's time slices.
HPCC_SECONDS = 60 * HANG_SECONDS


def ranksOf(program: Path) -> dict[int, int]:
    """
    @return: the process of each rank of Open MPI that runs a program, by its number.
    """
    found = {}
    for each in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.readlink(each / "exe") == str(program):
                words = (each / "environ").read_bytes().split(b"\0")
                # One that ends has none any more, before it is gone.
                for word in words:
                    if word.startswith(b"OMPI_COMM_WORLD_RANK="):
                        found[int(word.partition(b"=")[2])] = int(each.name)
    return found


def killOne(ring: Path, ranks: int, victim: int) -> float:
    """
    Kill a rank amid a ring.

    @return: after how many seconds no rank was left.
    @raise AssertionError: the ring was none, or did not end.
    """
    first = IMPLEMENTATIONS[0]
    command = first.startedOnAddress((str(ring), TURNS), ranks, ownAddress(1))
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, env=first.environmentOn("roce0"), stdout=subprocess.PIPE, stderr=errors, text=True
        ) as started,
    ):
        try:
            assert started.stdout is not None
            said = started.stdout.readline()
            errors.seek(0)
            assert said == f"ring of {ranks}: 0 wrong\n", said + errors.read()
            them = ranksOf(ring)
            assert sorted(them) == list(range(ranks)), them
            begun = time.monotonic()
            os.kill(them[victim], SIGKILL)
            while ranksOf(ring):
                assert time.monotonic() < begun + HANG_SECONDS, "ranks are left"
                time.sleep(0.01)
            told = time.monotonic() - begun
            # What it has said since is as good, but for a last line that is cut off.
            more, _ = started.communicate(timeout=HANG_SECONDS)
            assert said.startswith(more.replace(said, "")), more
        finally:
            started.kill()
    assert started.returncode, "the ring ended well"
    return told


def main() -> int:
    """
    Do what the command line says.

    @return: the exit status.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.soak.killed.ranks")
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--kills", type=int, default=16)
    parser.add_argument("--no-hpcc", action="store_true")
    options = parser.parse_args()
    found: dict[str, object] = {"ranks": options.ranks, "kills": options.kills}
    if not options.no_hpcc:
        begun = time.monotonic()
        runHPCC("roce0", options.ranks, ownAddress(1), HPCC_SECONDS)
        found["hpcc, s"] = round(time.monotonic() - begun)
    told: list[float] = []
    with tempfile.TemporaryDirectory(prefix="ib-") as name:
        ring = IMPLEMENTATIONS[0].compiled(Path(name).resolve())
        for kill in range(options.kills):
            told.append(killOne(ring, options.ranks, kill % options.ranks))
            print(f"{kill % options.ranks}: all have ended in {told[-1]:.2f} s", file=sys.stderr, flush=True)
    late = sum(each > TOLD_SECONDS for each in told)
    found["late"] = late
    if told:
        found |= {"ended, median s": round(statistics.median(told), 2), "ended, most s": round(max(told), 2)}
    print(json.dumps(found), flush=True)
    return int(bool(late))


if __name__ == "__main__":
    sys.exit(main())
