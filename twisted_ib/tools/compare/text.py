"""
The results of C{ib-perf compare} as text, with bars; in colours on a terminal, where rich is installed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from textwrap import wrap

from attrs import frozen

from twisted_ib.tools.compare.results import Figure, Results, number, times
from twisted_ib.tools.compare.subjects import LEGEND, Row, inUnits
from twisted_ib.tools.program import write

#: Characters of a line, and of the longest bar in it.
COLUMNS, BAR = 79, 24

#: Blocks of one to eight eighths of a character, left to right (Unicode, Block Elements).
_EIGHTHS = "▏▎▍▌▋▊▉█"

#: The styles of rich for bars of ours and of others.
_OURS, _OTHER = "green", "blue"


@frozen
class Line:
    """
    A line of the results.

    @ivar bar: its bar; C{""} for a line without figures.
    @ivar after: the text right of it.
    @ivar style: the bar's style of rich; the title's, where there is no bar.
    """

    before: str
    bar: str = ""
    after: str = ""
    style: str = ""

    def __str__(self) -> str:
        return f"{self.before}{self.bar}{self.after}".rstrip()


def bar(value: float, most: float, width: int, isASCII: bool = False) -> str:
    """
    @param most: the value of a whole bar.
    @param width: characters of a whole bar.
    @return: a bar, filled up with spaces.
    """
    if isASCII:
        return ("#" * max(1, round(value / most * width))).ljust(width)
    eighths = max(1, round(value / most * width * 8))
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (_EIGHTHS[rest - 1] if rest else "")).ljust(width)


def rowLines(
    row: Row,
    figures: Mapping[str, Figure],
    titles: Mapping[str, str],
    ours: frozenset[str],
    isASCII: bool = False,
) -> Iterator[Line]:
    """
    @return: the title of a row, and a line for each subject.
    """
    measure = row.measure
    title = f"{row.title}, {measure.unit} ({measure.better} is better), {row.placement.title}"
    yield Line(title, style="bold")
    most = max(figure.median for figure in figures.values())
    wide = max(map(len, titles.values()))
    for name, figure in figures.items():
        low, high = number(min(figure.rounds)), number(max(figure.rounds))
        drawn = bar(figure.median, most, BAR, isASCII)
        yield Line(
            f"{figure.place:>3}  {titles[name]:<{wide}}  ",
            drawn,
            f" {number(figure.median):>6}  {f'{low}-{high}':<13} {times(figure.ratio):>5}",
            _OURS if name in ours else _OTHER,
        )


def lines(results: Results, isASCII: bool = False) -> Iterator[Line]:
    """
    @param isASCII: bars have no other characters.
    @return: all lines.
    """
    for row, figures in results.rows.items():
        yield from rowLines(row, figures, results.titles, results.ours, isASCII)
        yield Line("")
    yield from (Line(each) for note in notes(results) for each in wrap(note, COLUMNS))


def notes(results: Results) -> list[str]:
    """
    @return: the meaning of the columns, and the origin of the figures.
    """
    return [
        "Columns: place (= for those that the rounds do not tell apart), median, lowest and highest of"
        f" {results.rounds} rounds, and how many times as good as {results.titles[results.baseline]}.",
        LEGEND,
        *(f"Left out: {name}, as {why}." for name, why in results.absent.items()),
        inWords(results),
    ]


def inWords(results: Results) -> str:
    """
    @return: the machine and its software.
    """
    machine = results.machine
    packages = ", ".join(f"{name} {machine[name]}" for name in ("Twisted", "uvloop") if machine.get(name))
    return (
        f"{machine['CPU']}, {machine['CPUs']} CPUs; {machine['kernel']}; {machine['Python']}, {packages},"
        f" twisted_ib {machine['twisted_ib']} ({machine['form']}); load average {machine['load']} before"
    )


def plan(sizes: Sequence[int], subjects: int, rounds: int, seconds: float) -> str:
    """
    @return: the sizes, rounds and seconds of a comparison.
    """
    each = ", ".join(map(inUnits, sizes))
    return f"ib-perf compare: {subjects} subjects; {each}; {rounds} rounds, {seconds:g} s for each figure"


def show(results: Results) -> None:
    """
    Print the results.
    """
    output = sys.stdout
    try:
        _EIGHTHS.encode(output.encoding or "ascii")
        isASCII = False
    except UnicodeEncodeError:
        isASCII = True
    if output.isatty() and find_spec("rich"):
        from rich.console import Console
        from rich.text import Text

        console = Console(file=output, highlight=False)
        for line in lines(results, isASCII):
            before, drawn = ("", line.style) if line.bar else (line.style, "")
            console.print(Text.assemble((line.before, before), (line.bar, drawn), line.after))
        return
    for line in lines(results, isASCII):
        write(str(line))
