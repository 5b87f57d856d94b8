"""
The results of C{ib-perf compare} as a picture: SVG 1.1, a chart of bars for each row.

Charts of one placement are a column.  Widths of text are estimated: viewers have different fonts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from textwrap import wrap
from xml.sax.saxutils import escape

from attrs import frozen

from twisted_ib.tools.compare.results import Figure, Results, number, times
from twisted_ib.tools.compare.subjects import LEGEND, Row
from twisted_ib.tools.compare.text import inWords

#: Pixels.
MARGIN = 20
CHART_WIDTH = 430
LABEL_WIDTH = 98
VALUE_WIDTH = 92
BAR_HEIGHT = 14
LINE_HEIGHT = 20
#: Above the bars, the title; below them, the axis with its numbers and unit.
TITLE_HEIGHT = 30
AXIS_HEIGHT = 48
HEAD_HEIGHT = 74
NOTE_HEIGHT = 16

#: How much longer than the longest bar an axis is.  One bad round may be a hundred times as long: the line of
#: the rounds ends with the axis.
ROOM = 1.2

#: Characters of a line of notes that are as wide as a column.
NOTE_CHARACTERS = 70

#: The background belongs to the picture: a page may be dark where the viewer's setting is light.
_STYLE = """
  text { font: 12px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328; }
  .title { font-size: 17px; font-weight: 600; }
  .column { font-size: 14px; font-weight: 600; }
  .chart { font-weight: 600; }
  .note, .tick { font-size: 11px; fill: #59636e; }
  .paper { fill: #ffffff; stroke: #d1d9e0; }
  .grid { stroke: #d1d9e0; }
  .spread { stroke: #1f2328; }
  .ours { fill: #1a7f37; }
  .other { fill: #8296ab; }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc; }
    .note, .tick { fill: #9198a1; }
    .paper { fill: #0d1117; stroke: #3d444d; }
    .grid { stroke: #3d444d; }
    .spread { stroke: #f0f6fc; }
    .ours { fill: #3fb950; }
    .other { fill: #57687a; }
  }
"""


@frozen
class Axis:
    """
    The axis of a chart: from 0 in steps of 1, 2 or 5 times a power of ten.

    @ivar step: between two ticks.
    @ivar end: the value at its end, a multiple of the step.
    """

    step: float
    end: float

    @classmethod
    def of(cls, most: float, ticks: int = 5) -> Axis:
        """
        @param most: the largest value, which is positive.
        @param ticks: at most so many steps.
        """
        least = most / ticks
        power = 10.0 ** math.floor(math.log10(least))
        step = next(each * power for each in (1, 2, 5, 10) if each * power >= least * (1 - 1e-9))
        return cls(step, step * math.ceil(most / step - 1e-9))

    @property
    def ticks(self) -> list[float]:
        """
        The values of the ticks.
        """
        return [self.step * each for each in range(round(self.end / self.step) + 1)]


def words(x: float, y: float, content: str, style: str = "", anchor: str = "start") -> str:
    """
    @return: an element of text.
    """
    named = f' class="{style}"' if style else ""
    return f'<text x="{x:g}" y="{y:g}"{named} text-anchor="{anchor}">{escape(content)}</text>'


def chart(
    x: float,
    y: float,
    row: Row,
    figures: Mapping[str, Figure],
    titles: Mapping[str, str],
    ours: frozenset[str],
) -> Iterator[str]:
    """
    @param x: its left side; C{y} its top.
    @param titles: of all subjects: one without a figure has a line all the same, as in other charts.
    @return: the elements of a row's chart.
    """
    left, top = x + LABEL_WIDTH, y + TITLE_HEIGHT
    width = CHART_WIDTH - LABEL_WIDTH - VALUE_WIDTH
    bottom = top + len(titles) * LINE_HEIGHT
    axis = Axis.of(max(figure.median for figure in figures.values()) * ROOM)
    yield words(x, y + 18, row.title, "chart")
    for tick in axis.ticks:
        at = left + width * tick / axis.end
        yield f'<line class="grid" x1="{at:g}" y1="{top}" x2="{at:g}" y2="{bottom + 4:g}"/>'
        yield words(at, bottom + 17, f"{tick:,g}", "tick", "middle")
    unit = f"{row.measure.unit}, {row.measure.better} is better"
    yield words(left + width / 2, bottom + 33, unit, "tick", "middle")
    for position, (name, title) in enumerate(titles.items()):
        middle = top + position * LINE_HEIGHT + LINE_HEIGHT / 2
        yield words(left - 8, middle + 4, title, anchor="end")
        figure = figures.get(name)
        if figure is None:
            yield words(left + 6, middle + 4, "shorter messages only", "note")
            continue
        low, high = (width * min(each(figure.rounds) / axis.end, 1.0) for each in (min, max))
        length = max(1.0, width * figure.median / axis.end)
        kind = "ours" if name in ours else "other"
        yield (
            f'<rect class="{kind}" x="{left:g}" y="{middle - BAR_HEIGHT / 2:g}"'
            f' width="{length:.1f}" height="{BAR_HEIGHT}" rx="2"/>'
        )
        yield (
            f'<line class="spread" x1="{left + low:.1f}" y1="{middle:g}"'
            f' x2="{left + high:.1f}" y2="{middle:g}"/>'
        )
        said = f"{number(figure.median)}  ({times(figure.ratio)})"
        yield words(round(left + max(length, high) + 6, 1), middle + 4, said)


def plot(results: Results) -> str:
    """
    @return: the picture, an SVG document.
    """
    placements = list(dict.fromkeys(row.placement for row in results.rows))
    rows = list(dict.fromkeys((row.measure, row.size) for row in results.rows))
    width = MARGIN + len(placements) * (CHART_WIDTH + MARGIN)
    baseline = results.titles[results.baseline]
    notes = [
        line
        for note in (
            f"Bars: medians of {results.rounds} rounds; lines in them: from the lowest to the highest round,"
            f" if that is on the axis; in brackets: how many times as good as {baseline}. {LEGEND}",
            inWords(results),
        )
        for line in wrap(note, NOTE_CHARACTERS * len(placements))
    ]
    high = TITLE_HEIGHT + len(results.titles) * LINE_HEIGHT + AXIS_HEIGHT
    bottom = HEAD_HEIGHT + len(rows) * high
    height = bottom + len(notes) * NOTE_HEIGHT + MARGIN
    title = "Between two processes of one host: twisted_ib and others"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6"/>',
        words(MARGIN, 32, title, "title"),
    ]
    for column, placement in enumerate(placements):
        x = MARGIN + column * (CHART_WIDTH + MARGIN)
        parts.append(words(x, 60, placement.title[:1].upper() + placement.title[1:], "column"))
        for line, (measure, size) in enumerate(rows):
            row = Row(placement, measure, size)
            if row in results.rows:
                y = HEAD_HEIGHT + line * high
                parts += chart(x, y, row, results.rows[row], results.titles, results.ours)
    for position, note in enumerate(notes):
        parts.append(words(MARGIN, bottom + 10 + position * NOTE_HEIGHT, note, "note"))
    return "\n".join([*parts, "</svg>", ""])
