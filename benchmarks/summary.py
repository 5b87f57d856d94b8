"""
From raw figures to medians, ratios, JSON and Markdown.
"""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Iterator
from typing import Any

from attrs import define, field

from benchmarks.rows import Row
from benchmarks.rows import byName as rowByName
from benchmarks.subjects import BASELINE
from benchmarks.subjects import byName as subjectByName

#: (placement, row) -> subject -> one dictionary of figures per round, None
#: where the run failed.
Table = dict[tuple[str, str], dict[str, list["dict[str, float] | None"]]]


@define
class Results:
    """
    Everything that was measured.

    @ivar failures: One line per run that did not work.
    """

    settings: dict[str, object]
    table: Table = field(factory=dict)
    failures: list[str] = field(factory=list)

    def add(self, placement: str, row: str, subject: str, figures: dict[str, float] | None) -> None:
        """
        Keep the figures of one run.
        """
        cells = self.table.setdefault((placement, row), {})
        cells.setdefault(subject, []).append(figures)

    def ratios(self, key: tuple[str, str], subject: str, metric: str, more: bool) -> list[float]:
        """
        How many times better than the baseline, for each round.
        """
        cells = self.table[key]
        found = []
        for base, mine in zip(cells.get(BASELINE, ()), cells.get(subject, ()), strict=False):
            if base and mine and base.get(metric) and mine.get(metric):
                quotient = mine[metric] / base[metric]
                found.append(quotient if more else 1 / quotient)
        return found

    def values(self, key: tuple[str, str], subject: str, metric: str) -> list[float]:
        """
        One figure of every round.
        """
        return [
            figures[metric] for figures in self.table[key].get(subject, ()) if figures and metric in figures
        ]

    def lines(self) -> Iterator[tuple[tuple[str, str], Row, str, str, bool]]:
        """
        Every line of the tables: key, row, metric, unit, more is better.
        """
        for key in self.table:
            row = rowByName[key[1]]
            for metric, unit, more in row.metrics:
                yield key, row, metric, unit, more

    def asJSON(self) -> dict[str, Any]:
        """
        Settings, medians and every raw figure.
        """
        summary = []
        for key, row, metric, unit, more in self.lines():
            for subject in self.table[key]:
                values = self.values(key, subject, metric)
                ratios = self.ratios(key, subject, metric, more)
                summary.append(
                    {
                        "placement": key[0],
                        "row": row.name,
                        "metric": metric,
                        "unit": unit,
                        "subject": subject,
                        "median": _median(values),
                        "ratio": _median(ratios),
                        "ratios": ratios,
                        "target": row.targets.get((key[0], metric)) if subject == row.subject else None,
                    }
                )
        raw = [
            {"placement": key[0], "row": key[1], "subject": subject, "rounds": rounds}
            for key, cells in self.table.items()
            for subject, rounds in cells.items()
        ]
        return {
            "settings": self.settings,
            "baseline": BASELINE,
            "summary": summary,
            "failures": self.failures,
            "raw": raw,
        }

    def asMarkdown(self) -> str:
        """
        One table per placement.
        """
        parts = [_preface(self.settings)]
        for placement in dict.fromkeys(key[0] for key in self.table):
            parts.append(f"\n## {placement}\n")
            parts.extend(self._tableOf(placement))
        if self.failures:
            parts.append("\n## Runs that failed\n")
            parts.extend(f"- {line}" for line in self.failures)
        return "\n".join(parts) + "\n"

    def _tableOf(self, placement: str) -> Iterator[str]:
        """
        The lines of one placement's table.
        """
        subjects = list(
            dict.fromkeys(
                subject for key, cells in self.table.items() if key[0] == placement for subject in cells
            )
        )
        titles = [subjectByName[name].title for name in subjects]
        yield "| | " + " | ".join([*titles, "target"]) + " |"
        yield "|---" * (len(subjects) + 2) + "|"
        for key, row, metric, unit, more in self.lines():
            if key[0] != placement:
                continue
            label = row.title if metric == unit else f"{row.title}, {metric} ({unit})"
            cells = [self._cell(key, name, metric, more) for name in subjects]
            target = row.targets.get((placement, metric))
            cells.append(self._verdict(key, row.subject, metric, more, target))
            yield f"| {label}{_unitOf(metric, unit)} | " + " | ".join(cells) + " |"

    def _cell(self, key: tuple[str, str], subject: str, metric: str, more: bool) -> str:
        """
        Median, and the median ratio with its range.
        """
        values = self.values(key, subject, metric)
        if not values:
            return "failed" if subject in self.table[key] else "-"
        text = _short(statistics.median(values))
        ratios = self.ratios(key, subject, metric, more)
        if subject == BASELINE or not ratios:
            return text
        low, high = _short(min(ratios)), _short(max(ratios))
        return f"{text}, **{_short(statistics.median(ratios))}x** ({low}-{high})"

    def _verdict(
        self, key: tuple[str, str], subject: str, metric: str, more: bool, target: float | None
    ) -> str:
        """
        The target of a subject and whether it is met.
        """
        if target is None:
            return ""
        ratios = self.ratios(key, subject, metric, more)
        if not ratios:
            return f">= {target:g}x"
        return f">= {target:g}x, {'met' if _median(ratios) >= target else 'NOT MET'}"


def _unitOf(metric: str, unit: str) -> str:
    """
    The unit, where the metric is called by it.
    """
    return f", {unit}" if metric == unit else ""


def _median(values: list[float]) -> float:
    """
    The median, 0 of nothing.
    """
    return statistics.median(values) if values else 0.0


def _short(value: float) -> str:
    """
    Three digits that matter.
    """
    if value >= 100:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.3g}"


def _preface(settings: dict[str, object]) -> str:
    """
    What was run where.
    """
    lines = [
        "# Comparison with Twisted TCP",
        "",
        f"{platform.python_implementation()} {platform.python_version()}, Linux "
        f"{platform.release()}, {len(os.sched_getaffinity(0))} CPUs; "
        + ", ".join(f"{name} {value}" for name, value in settings.items())
        + ".",
        "",
        "Each cell: median of the rounds, **median of the per-round ratios** "
        "against TCP with NODELAY (lowest-highest; above 1 is better).",
    ]
    return "\n".join(lines)
