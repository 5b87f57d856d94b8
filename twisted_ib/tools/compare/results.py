"""
The rounds of C{ib-perf compare} together: medians, spreads, ratios, ranks.

Two subjects are told apart only if a second run would tell them apart too: their medians differ by more than
L{TIE}, and most rounds agree.  Those that are not share a rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from attrs import frozen

from twisted_ib.tools.compare.subjects import Row

#: Medians whose ratio is below this are a tie: new processes alone, with other addresses in memory, make such
#: a difference.
TIE = 1.15

#: The part of the rounds that has to agree.
AGREEING = 0.8


@frozen
class Figure:
    """
    A subject's figures in a row.

    @ivar rounds: the figure of each round.
    @ivar ratio: how many times as good as the baseline it is: the median of the rounds' ratios.
    @ivar rank: its place in the row; those that cannot be told apart have the same.
    @ivar isTied: whether others have it too.
    """

    rounds: tuple[float, ...]
    ratio: float
    rank: int
    isTied: bool

    @property
    def median(self) -> float:
        """
        The median of the rounds.
        """
        return median(self.rounds)

    @property
    def place(self) -> str:
        """
        The rank in words.
        """
        return f"{self.rank}{'=' if self.isTied else ''}"

    def json(self) -> dict[str, Any]:
        """
        @return: the figures as JSON values.
        """
        return {
            "median": self.median,
            "lowest": min(self.rounds),
            "highest": max(self.rounds),
            "ratio": self.ratio,
            "rank": self.rank,
            "tied": self.isTied,
            "rounds": list(self.rounds),
        }


def timesAsGood(mine: Sequence[float], others: Sequence[float], isTime: bool) -> list[float]:
    """
    @return: for each round, how many times as good as others' my figure is.
    """
    pairs = zip(others, mine, strict=True) if isTime else zip(mine, others, strict=True)
    return [one / other for one, other in pairs]


def isBetter(mine: Sequence[float], others: Sequence[float], isTime: bool) -> bool:
    """
    @return: whether a second run would find me better, too.
    """
    middle = median(others) / median(mine) if isTime else median(mine) / median(others)
    agreeing = sum(ratio > 1 for ratio in timesAsGood(mine, others, isTime))
    return middle > TIE and agreeing >= AGREEING * len(mine)


def compared(measured: Mapping[str, Sequence[float]], baseline: str, isTime: bool) -> dict[str, Figure]:
    """
    Compare the subjects of a row.

    @param measured: each subject's figures, one for each round, all positive.
    @param baseline: the subject that others are compared with.
    @param isTime: less is better.
    @return: the figures in the same order.
    """
    sign = 1 if isTime else -1
    order = sorted(measured, key=lambda name: sign * median(measured[name]))
    ranks: dict[str, int] = {}
    best = order[0]
    for position, name in enumerate(order, 1):
        # Compared with the first of its rank: in a chain of neighbours the last is not as good as the first.
        if isBetter(measured[best], measured[name], isTime):
            best = name
            ranks[name] = position
        else:
            ranks[name] = ranks.get(best, position)
    given = list(ranks.values())
    return {
        name: Figure(
            rounds=tuple(rounds),
            ratio=median(timesAsGood(rounds, measured[baseline], isTime)),
            rank=ranks[name],
            isTied=given.count(ranks[name]) > 1,
        )
        for name, rounds in measured.items()
    }


@frozen
class Results:
    """
    All that a run has found.

    @ivar machine: facts of the machine and its software, by name.
    @ivar rounds: how many there were.
    @ivar seconds: the time of each measurement.
    @ivar titles: of the subjects, by name, in order.
    @ivar ours: the names of this package's subjects.
    @ivar baseline: the subject of the ratios.
    @ivar rows: the figures of each row by subject; a subject whose messages are shorter is missing.
    @ivar absent: why a subject or a placement was left out, by name.
    """

    machine: Mapping[str, str]
    rounds: int
    seconds: float
    titles: Mapping[str, str]
    ours: frozenset[str]
    baseline: str
    rows: Mapping[Row, Mapping[str, Figure]]
    absent: Mapping[str, str]

    def json(self) -> dict[str, Any]:
        """
        @return: everything as JSON values.
        """
        return {
            "machine": dict(self.machine),
            "rounds": self.rounds,
            "seconds": self.seconds,
            "subjects": dict(self.titles),
            "baseline": self.baseline,
            "absent": dict(self.absent),
            "results": [
                {
                    "placement": row.placement.name,
                    "measure": row.measure.name,
                    "bytes": row.size,
                    "unit": row.measure.unit,
                    "subjects": {name: figure.json() for name, figure in figures.items()},
                }
                for row, figures in self.rows.items()
            ],
        }


def number(value: float) -> str:
    """
    @return: a figure with about three digits: more are not repeatable.
    """
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.3g}"


def times(ratio: float) -> str:
    """
    @return: a ratio in two digits.
    """
    return f"{ratio:.0f}x" if ratio >= 9.95 else f"{ratio:.1f}x" if ratio >= 0.095 else f"{ratio:.2f}x"
