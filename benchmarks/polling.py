"""
What a thread of Python keeps of its speed beside threads of C that poll in vain.

Run C{python -m benchmarks.polling}.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from attrs import define

from twisted_ib.verbs.c.building import libraries
from twisted_ib.verbs.c.building.build import compilerCommand

SOURCE = Path(__file__).with_name("polling.c")
#: Threads that poll, millions of rounds of the loop, and runs, of which the median counts.
THREADS, MILLIONS, RUNS = 2, 20, 5


@define
class Measured:
    """
    One run of the loop.

    @ivar seconds: By the clock.
    @ivar processor: Seconds that it had a processor.
    @ivar polls: Of all threads.
    @ivar entries: Those of them that entered Python.
    @ivar inside: Seconds of a processor that these took.
    """

    seconds: float
    processor: float
    polls: int
    entries: int
    inside: float

    @property
    def kept(self) -> float:
        """
        @return: The loop's share of the time in which anybody ran in Python.
        """
        return self.processor / (self.processor + self.inside)


def compiled(program: str) -> None:
    """
    Compile C{polling.c}.

    @param program: The path of what is made.

    @raise LibraryBuildError: There is no compiler, or the libraries cannot be built.
    """
    library = str(libraries() / "libibverbs.so.1")
    options = ["-w", "-O1", "-pthread", "-rdynamic", str(SOURCE), "-o", program, library, "-ldl"]
    subprocess.run([*compilerCommand(), *options], env={"PATH": "/usr/bin:/bin"}, check=True)


def measured(program: str, threads: int = THREADS, millions: int = MILLIONS) -> dict[str, Measured]:
    """
    @return: The loop C{alone}, and C{beside} the threads.
    """
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries()), "TWISTED_IB_DEVICE": "shm0"}
    command = [program, str(threads), str(millions)]
    text = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    found = {}
    for line in text.splitlines():
        name, seconds, processor, polls, entries, inside = line.split()
        found[name] = Measured(float(seconds), float(processor), int(polls), int(entries), float(inside))
    return found


def main() -> int:
    """
    Print a line for each run, and the median of the ratios.
    """
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "polling")
        compiled(program)
        for _ in range(RUNS):
            found = measured(program)
            alone, beside = found["alone"], found["beside"]
            ratios.append(alone.seconds / beside.seconds)
            print(
                f"{ratios[-1]:.2f} of its speed by the clock, {beside.kept:.3f} of the time in Python; of"
                f" {beside.polls} polls {beside.entries / beside.seconds:.0f} a second entered Python"
            )
    load = os.getloadavg()[0]
    print(f"{sorted(ratios)[RUNS // 2]:.2f} in the median, on {os.cpu_count()} CPUs at a load of {load:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
