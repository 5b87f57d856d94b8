"""
The cost of the offload switch for a connection that TCP carries.

From the checkout: C{python -m benchmarks.switch --rounds 9}.  Plain epoll, C{ib} under a rule
C{tcp}, and C{ib} with the default rules and a server without SDP take turns, in new processes each
time: two pairs of the same kind differ by some per cent.  A figure is the median of the rounds, what
is added the median of the differences to epoll in the same round; C{epoll again} shows the noise.
"""

from __future__ import annotations

import os
import tempfile
from argparse import ArgumentParser
from pathlib import Path
from statistics import median

from attrs import evolve, frozen

from benchmarks.conditions import describe, inWords
from benchmarks.pairs import PLACEMENTS, Pair, environmentFor
from benchmarks.rows import byName as rows
from benchmarks.transports import byName as subjects

#: The most that may be added, as a share of epoll's.
ADDED = 0.03
#: How long a new pair of processes talks before it is measured: what an C{ib} reactor shows of
#: itself (C{ib-ss}) it opens within two seconds.
SETTLING = 2.0
_RULES = "use tcp server * *:*\nuse tcp client * *:*\n"
_TCP = subjects["tcp"]


@frozen
class Case:
    """
    A client and a server.

    @ivar reactors: the server's and the client's.
    @ivar rules: what the file of rules says; L{None} for no file.
    @ivar limited: the rows for which L{ADDED} holds.
    """

    title: str
    reactors: tuple[str, str]
    rules: str | None
    limited: tuple[str, ...]

    def start(self, folder: str) -> Pair:
        """
        Start both processes.

        @param folder: where files of rules are.
        """
        environment = environmentFor()
        environment["XDG_CONFIG_HOME"] = folder
        if self.rules is not None:
            environment["TWISTED_IB_CONFIG"] = os.path.join(folder, "ib.conf")
            with open(environment["TWISTED_IB_CONFIG"], "w") as file:
                file.write(self.rules)
        server, client = self.reactors
        return Pair(evolve(_TCP, reactor=server, clientReactor=client), environment)


CASES = (
    Case("epoll", ("epoll", "epoll"), None, ()),
    Case("epoll again", ("epoll", "epoll"), None, ()),
    Case("ib, a rule tcp", ("ib", "ib"), _RULES, ("rt64", "connects")),
    Case("ib by default, to a server without SDP", ("epoll", "ib"), None, ("rt64",)),
    Case("ib by default, from a client without SDP", ("ib", "epoll"), None, ()),
)


def measure(pair: Pair, name: str, seconds: float) -> float:
    """
    @return: microseconds of a round trip, or of a connection with its first echo.
    """
    row = rows[name]
    found = pair.run(row, seconds, 60)
    return found["p50"] if name == "rt64" else 1e6 / found["conn/s"]


def main() -> None:
    """
    Do what the command line says.
    """
    parser = ArgumentParser(description="What the switch costs TCP.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--placement", choices=PLACEMENTS, default="same")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table")
    options = parser.parse_args()
    figures: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="tib-") as folder:
        for turn in range(options.rounds):
            # Nobody is always the first.
            first = turn % len(CASES)
            for case in CASES[first:] + CASES[:first]:
                pair = case.start(folder)
                try:
                    pair.place(PLACEMENTS[options.placement])
                    # One-time work is over.
                    measure(pair, "rt64", SETTLING)
                    for name in ("rt64", "connects"):
                        found = measure(pair, name, options.seconds)
                        figures.setdefault((name, case.title), []).append(found)
                finally:
                    pair.end()
    lines = [
        "| | 64 B round trip (us) | added | connect, echo, close (us) | added |",
        "|---|---|---|---|---|",
    ]
    for case in CASES:
        cells = [case.title]
        for name in ("rt64", "connects"):
            mine, base = figures[name, case.title], figures[name, CASES[0].title]
            added = median(one / other - 1 for one, other in zip(mine, base, strict=True))
            verdict = f" ({'met' if added <= ADDED else 'NOT MET'})" if name in case.limited else ""
            cells += [f"{median(mine):.1f}", f"{added:+.1%}{verdict}"]
        lines.append("| " + " | ".join(cells) + " |")
    print("\n".join(lines))
    if options.markdown:
        settings = f"rounds {options.rounds}, seconds {options.seconds}, placement {options.placement}"
        options.markdown.write_text(
            "\n".join(
                [
                    "# What the switch costs a connection that TCP carries",
                    "",
                    f"{inWords(describe())}; {settings}.",
                    "",
                    "Two pairs of processes of one kind differ by some per cent.",
                    "",
                    *lines,
                    "",
                ]
            )
        )


if __name__ == "__main__":
    main()
