"""
What a connection gains and loses when it switches to RDMA over its own TCP connection (iWARP).

From the checkout: C{python -m benchmarks.iwarp --rounds 5}.  Blocking TCP, Twisted's TCP, the C{ib}
reactor's TCP before the switch, and the same connection after it, without and with CRC, take turns, in
new processes each round.  A figure is the median of the rounds, a ratio or a difference that of the
same round.
"""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from statistics import median

from attrs import evolve, frozen

from benchmarks.conditions import describe, inWords
from benchmarks.pairs import PLACEMENTS, Pair
from benchmarks.rows import Row
from benchmarks.transports import TO_TCP, Subject, byName

KIB = 1024
#: Bytes of the round trips, and of the writes of the stream.
SIZES = (1, 64, KIB, 4 * KIB, 16 * KIB, 64 * KIB)
STREAM = 64 * KIB
_TCP = byName["tcp"]
_BLOCKING = evolve(byName["blocking-tcp"], name="blocking", title="blocking TCP")
_TWISTED = evolve(_TCP, name="twisted", title="Twisted's TCP")
_BEFORE = evolve(_TCP, name="before", title="ib reactor, TCP before the switch", reactor="ib", rules=TO_TCP)
_AFTER = evolve(byName["iwarp"], name="after", title="after the switch")
_CRC = evolve(byName["iwarp-crc"], name="crc", title="after the switch, with CRC")
_EPOLL = evolve(_AFTER, name="epoll", title="after the switch, epoll reactor", reactor="epoll")
SUBJECTS = (_BLOCKING, _TWISTED, _BEFORE, _AFTER, _CRC, _EPOLL)


@frozen
class Goal:
    """
    What is to be reached.

    @ivar subject: Who should; C{against} whom.
    @ivar bound: The most that may be added, in microseconds or as a share; for a stream the least ratio.
    """

    row: str
    subject: Subject
    against: Subject
    kind: str
    bound: float

    def reached(self, figures: dict[tuple[str, str], list[float]]) -> float:
        """
        @return: The median over the rounds.
        """
        pairs = zip(figures[self.row, self.subject.name], figures[self.row, self.against.name], strict=True)
        if self.kind == "added":
            return median(one - other for one, other in pairs)
        return median(one / other for one, other in pairs)

    def verdict(self, reached: float) -> str:
        """
        @return: A line of the table of goals.
        """
        isMet = reached >= self.bound if self.kind == "least" else reached <= self.bound
        said = {"added": "at most {:g} us more than", "most": "at most {:g}x", "least": "at least {:g}x"}
        unit = " us" if self.kind == "added" else "x"
        wanted = said[self.kind].format(self.bound)
        met = "met" if isMet else "NOT MET"
        goal = f"{wanted} {self.against.title}"
        return f"| {self.row}, {self.subject.title} | {goal} | {reached:.2f}{unit} | {met} |"


GOALS = (
    Goal("64 B", _BEFORE, _TWISTED, "most", 1.03),
    Goal("64 B", _AFTER, _TWISTED, "added", 15.0),
    Goal("stream", _AFTER, _BLOCKING, "least", 0.8),
    Goal("stream", _CRC, _BLOCKING, "least", 0.6),
)


def words(size: int) -> str:
    """
    @return: A size, as in the table.
    """
    return f"{size} B" if size < KIB else f"{size // KIB} KiB"


def rows() -> list[Row]:
    """
    @return: What is measured.
    """
    trips = [Row(words(size), words(size), "roundTrip", size, (), {}) for size in SIZES]
    return [*trips, Row("stream", f"stream of {words(STREAM)}", "stream", STREAM, (), {})]


def table(figures: dict[tuple[str, str], list[float]], subjects: tuple[Subject, ...]) -> list[str]:
    """
    @return: The lines of both tables.
    """
    names = [each.name for each in rows()]
    lines = [
        f"| | {' | '.join(f'{name} (us)' for name in names[:-1])} | {words(STREAM)} stream (MB/s) |",
        "|---|" + "---|" * len(names),
    ]
    for subject in subjects:
        cells = [f"{median(figures[name, subject.name]):.1f}" for name in names]
        lines.append(f"| {subject.title} | {' | '.join(cells)} |")
    lines += ["", "| | goal | reached | |", "|---|---|---|---|"]
    for goal in GOALS:
        if goal.subject in subjects and goal.against in subjects:
            lines.append(goal.verdict(goal.reached(figures)))
    return lines


def main() -> None:
    """
    Do what the command line says.
    """
    parser = ArgumentParser(description="TCP before and after a switch to RDMA.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--placement", choices=PLACEMENTS, default="split")
    parser.add_argument("--subjects", help=",".join(each.name for each in SUBJECTS))
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables")
    options = parser.parse_args()
    named = options.subjects.split(",") if options.subjects else [each.name for each in SUBJECTS]
    subjects = tuple(each for each in SUBJECTS if each.name in named)
    figures: dict[tuple[str, str], list[float]] = {}
    for turn in range(options.rounds):
        # Nobody is always the first.
        first = turn % len(subjects)
        for subject in subjects[first:] + subjects[:first]:
            pair = Pair(subject)
            try:
                pair.place(PLACEMENTS[options.placement])
                for row in rows():
                    found = pair.run(row, options.seconds, 60)
                    figure = found["MB/s" if row.name == "stream" else "p50"]
                    figures.setdefault((row.name, subject.name), []).append(figure)
            finally:
                pair.end()
    lines = table(figures, subjects)
    print("\n".join(lines))
    if options.markdown:
        settings = f"rounds {options.rounds}, seconds {options.seconds}, placement {options.placement}"
        head = ["# TCP before and after a switch to RDMA", "", f"{inWords(describe())}; {settings}.", ""]
        options.markdown.write_text("\n".join([*head, *lines, ""]))


if __name__ == "__main__":
    main()
