"""
What other processes on an address of RoCE cost a flow.

From the checkout: C{python -m benchmarks.sharers [--rounds 9] [--neighbours 15] [--realtime]}.  A server and
a client of C{sdp:} on C{roce0} are measured in turns: alone with their addresses, and with so many idle
processes on each.  These come and go; the two that are measured, and their connections, stay.  A figure is
the median of the rounds, a ratio the median of those of the rounds.  They are measured alone twice in each
round, which shows the noise.

C{--realtime} (root) has both run before everything else of the machine, as long as they are measured.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from statistics import median

from benchmarks.conditions import describe, inWords
from benchmarks.pairs import PLACEMENTS, Pair, environmentFor
from benchmarks.rows import byName as rows
from benchmarks.transports import byName as subjects

#: What is measured: a row, a figure of it, and whether more is better.
MEASURED = (("roce1m", "MB/s", True), ("roce1m", "CPU", False), ("roce64", "p50", False))
#: How long a measurement may take, seconds.
PATIENCE = 120.0
_SUBJECT = subjects["sdp-roce"]
#: With addresses and a number: so many processes that have each address.
_NEIGHBOURS = """
import os, signal, sys
from twisted_ib.hca.fabric.roce.roce import RoCELink
addresses, count = sys.argv[1:-1], int(sys.argv[-1])
children = []
for _ in range(count):
    receiver, sender = os.pipe()
    child = os.fork()
    if not child:
        links = [RoCELink(each, isShared=True) for each in addresses]
        os.write(sender, b"+")
        signal.pause()
    children.append(child)
    os.close(sender)
    assert os.read(receiver, 1)
print("here", flush=True)
sys.stdin.read()
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""


def addresses() -> list[str]:
    """
    @return: those of the server and of the client.
    """
    fields = [each for text in (_SUBJECT.server, _SUBJECT.client) for each in text.split(":")]
    return [each.partition("=")[2] for each in fields if each.startswith(("interface=", "bindAddress="))]


@contextmanager
def neighbours(count: int, environment: dict[str, str]) -> Iterator[None]:
    """
    Have so many processes on each address.
    """
    command = [sys.executable, "-c", _NEIGHBOURS, *addresses(), str(count)]
    ran = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert ran.stdout is not None
        assert ran.stdout.readline() == "here\n"
        yield
    finally:
        ran.communicate()


class RealTime:
    """
    Both processes of a pair come before all others, as long as the context lasts.
    """

    def __init__(self, pair: Pair, wanted: bool) -> None:
        """
        @param wanted: whether they do.
        """
        pids = [each.process.pid for each in pair._workers] if wanted else []
        self._threads = [int(each) for pid in pids for each in os.listdir(f"/proc/{pid}/task")]

    def __enter__(self) -> None:
        """
        Put them first.
        """
        for each in self._threads:
            os.sched_setscheduler(each, os.SCHED_FIFO, os.sched_param(1))

    def __exit__(self, *reason: object) -> None:
        """
        They are as all others.
        """
        for each in self._threads:
            with suppress(ProcessLookupError):  # A thread that has ended meanwhile.
                os.sched_setscheduler(each, os.SCHED_OTHER, os.sched_param(0))


def measure(pair: Pair, seconds: float, isFirst: bool) -> dict[str, float]:
    """
    @return: the figures of a turn, by row and name.
    """
    found: dict[str, float] = {}
    for name in dict.fromkeys(row for row, _, _ in MEASURED):
        with RealTime(pair, isFirst):
            figures = pair.run(rows[name], seconds, PATIENCE)
        found |= {f"{name} {key}": value for key, value in figures.items()}
    return found


def main() -> None:
    """
    Do what the command line says.
    """
    parser = ArgumentParser(description="What other processes on an address cost a flow.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--neighbours", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--placement", choices=PLACEMENTS, default="split")
    parser.add_argument("--realtime", action="store_true")
    options = parser.parse_args()
    turns: dict[str, list[dict[str, float]]] = {"alone": [], "shared": [], "alone again": []}
    with tempfile.TemporaryDirectory(prefix="ib-") as folder:
        environment = {**environmentFor(), "TWISTED_IB_RUN_DIR": folder}
        pair = Pair(_SUBJECT, environment)
        try:
            pair.place(PLACEMENTS[options.placement])
            take = lambda: measure(pair, options.seconds, options.realtime)  # noqa: E731
            take()
            for turn in range(options.rounds):
                # None is always the first.
                names = list(turns)
                for name in names[turn % 3 :] + names[: turn % 3]:
                    if name == "shared":
                        with neighbours(options.neighbours, environment):
                            turns[name].append(take())
                    else:
                        turns[name].append(take())
        finally:
            pair.end()
    print(f"{inWords(describe())}; rounds {options.rounds}, neighbours {options.neighbours}, ", end="")
    print(f"seconds {options.seconds}, placement {options.placement}, real time {options.realtime}")
    print("| | alone | shared | shared to alone | alone again to alone |\n|---|---|---|---|---|")
    for row, key, isMore in MEASURED:
        alone, shared, again = ([each[f"{row} {key}"] for each in turns[name]] for name in turns)
        ratios = []
        for them in shared, again:
            of = [one / other for one, other in zip(them, alone, strict=True)]
            of = of if isMore else [1 / each for each in of]
            ratios.append(f"{median(of):.3f} ({min(of):.2f}-{max(of):.2f})")
        print(f"| {row} {key} | {median(alone):.4g} | {median(shared):.4g} | {' | '.join(ratios)} |")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    main()
