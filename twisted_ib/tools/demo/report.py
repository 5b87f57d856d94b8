"""
The figures of C{ib-demo}: ranges of rounds, as no single figure is repeatable where others use the machine;
and its display on a terminal while a step takes time.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from twisted.internet.task import LoopingCall

from twisted_ib.tools.compare.results import TIE
from twisted_ib.tools.progress import Progress


def middle(values: Sequence[float]) -> list[float]:
    """
    @return: the values in order, without the lowest and the highest quarter of them.
    """
    ordered, cut = sorted(values), len(values) // 4
    return ordered[cut : len(ordered) - cut]


def rounded(value: float, up: bool) -> float:
    """
    @param value: a positive one.
    @return: its first two digits, rounded up or down.
    """
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    # Without the tolerance 0.3 / 0.1, and with it all that is computed, were less than it is.
    return step * (math.ceil(value / step - 1e-9) if up else math.floor(value / step + 1e-9))


def between(values: Sequence[float]) -> str:
    """
    @return: the range of the middle of some values, rounded outwards.
    """
    kept = middle(values)
    ends = rounded(kept[0], False), rounded(kept[-1], True)
    said = dict.fromkeys(f"{each:,.0f}" if each >= 10 else f"{each:.1f}" for each in ends)
    return " to ".join(said)


def faster(name: str, mine: Sequence[float], other: str, others: Sequence[float]) -> str:
    """
    Compare two in words.

    @param mine: the rates of each round; C{others} are those of the same rounds.
    """
    ratios = [one / another for one, another in zip(mine, others, strict=True)]
    kept = middle(ratios)
    if kept[0] >= TIE:
        return f"{name} is {between(ratios)} times as fast as {other}"
    if kept[-1] <= 1 / TIE:
        return f"{other} is {between([1 / each for each in ratios])} times as fast as {name}"
    return f"between {name} and {other} the rounds make no difference"


def tripLines(trips: Mapping[str, Sequence[float]], size: int, where: str) -> Iterator[str]:
    """
    @param trips: the seconds of a round trip in each round, by name; the first is compared with the last.
    @param size: bytes of a message.
    @param where: where the two processes run.
    @return: the lines about round trips.
    """
    yield f"Round trips of {size} bytes to Twisted's echo server, {where}:"
    yield from table(trips, "us", 1e6)
    (name, mine), *_, (other, others) = trips.items()
    rates = [[1 / each for each in seconds] for seconds in (mine, others)]
    yield f"{faster(name, rates[0], other, rates[1])}."


def fileLines(files: Mapping[str, Sequence[float]], size: int) -> Iterator[str]:
    """
    @param files: the rates in bytes a second in each round, by name; TCP's first.
    @param size: bytes of the file.
    @return: the lines about files.
    """
    yield f"A file of {size >> 20} MiB, from one process to the other:"
    yield from table(files, "MB/s", 1e-6)
    (other, others), *rest = files.items()
    for name, mine in rest:
        said = faster(name, mine, other, others)
        yield f"{said[0].upper()}{said[1:]}."


def table(figures: Mapping[str, Sequence[float]], unit: str, factor: float) -> Iterator[str]:
    """
    @return: a line for each name.
    """
    wide = max(map(len, figures))
    for name, values in figures.items():
        yield f"  {name:<{wide}}  {between([each * factor for each in values])} {unit}"


class Steps:
    """
    The steps of a demonstration, one after the other; each takes its bar back, so that lines stand between.
    """

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._bar: Progress | None = None
        # Also when a signal ends it: the terminal is the user's again.
        reactor.addSystemEventTrigger("before", "shutdown", self._close)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    @contextmanager
    def measuring(self, what: str) -> Iterator[Progress]:
        """
        A step that says itself how far it is, when that disturbs no measurement.
        """
        self._bar = bar = Progress(sys.stdout, 1)
        bar.next(what)
        try:
            yield bar
        finally:
            bar.close()

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """
        A step of which nobody knows how far it is.
        """
        with self.measuring(what) as bar:
            turning = LoopingCall(bar.show, float)
            turning.clock = self._reactor
            turning.start(bar.interval)
            try:
                yield
            finally:
                turning.stop()
