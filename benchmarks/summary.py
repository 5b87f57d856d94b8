"""
From raw figures to medians, ratios, verdicts, JSON and Markdown.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from math import comb
from typing import Any

from attrs import define, field, frozen

from benchmarks.conditions import inWords
from benchmarks.rows import BULK_CEILING, COMPILED_TARGETS, Row, Target
from benchmarks.rows import byName as rowByName
from benchmarks.transports import BASELINES, BEFORE, COMPILED, CONTROL

#: What is compared with the same subject of another tree, by the other's mark.
_HEADINGS = {
    BEFORE: "This commit against the one before, in the same rounds (above 1 is better)",
    COMPILED: "The compiled form against the pure one, in the same rounds (above 1 is better)",
    CONTROL: "The commit before against itself, in the same rounds",
}

#: A figure of which this commit has less than this of the one before stands first.
FALLEN = 0.95
#: Of code that is no slower, the worst of three runs in as many rounds has at most this chance.
CHANCE = 0.02

#: (placement, row) -> subject -> one dictionary of figures per round, None
#: where the run failed.
Table = dict[tuple[str, str], dict[str, list["dict[str, float] | None"]]]


@frozen
class Verdict:
    """
    A target, and what was reached.

    @ivar subject: The subject that it is for.
    @ivar reached: The median ratio, figure or difference, as the target's kind says; L{None} if
        it was not measured.
    @ivar isFast: The baseline was faster than the one that the target is for.
    """

    placement: str
    row: Row
    metric: str
    unit: str
    target: Target
    reached: float | None
    isFast: bool
    subject: str

    @property
    def isMet(self) -> bool:
        """
        Whether it was reached.
        """
        if self.reached is None:
            return False
        bound = self.target.bound
        return self.reached >= bound if self.target.kind == "times" else self.reached <= bound

    @property
    def wanted(self) -> str:
        """
        The target in words.
        """
        bound = f"{self.target.bound:g}"
        if self.target.kind == "times":
            return f">= {bound}x"
        plus = "+" if self.target.kind == "over" else ""
        return f"<= {plus}{bound} {self.unit.partition(',')[0]}"

    @property
    def text(self) -> str:
        """
        The target and whether it is met, in words.
        """
        if self.reached is None:
            return self.wanted
        met = "met" if self.isMet else "NOT MET"
        return f"{self.wanted}, {met}{', TCP over 3.5 GB/s' if self.isFast else ''}"


@define
class Results:
    """
    Everything that was measured.

    @ivar machine: facts of L{benchmarks.conditions}.
    @ivar settings: How it was run.
    @ivar absent: Subjects that this machine has not, and why.
    @ivar titles: Headings of subjects, by name.
    @ivar failures: One line per run that did not work.
    @ivar leftOut: Placement, title of the row and subject of what was to be compared with the commit before,
        and was not run, or failed in every round.
    """

    machine: dict[str, object]
    settings: dict[str, object]
    absent: dict[str, str] = field(factory=dict)
    titles: dict[str, str] = field(factory=dict)
    table: Table = field(factory=dict)
    failures: list[str] = field(factory=list)
    leftOut: list[tuple[str, str, str]] = field(factory=list)

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
        return self.against(key, subject, rowByName[key[1]].baseline, metric, more)

    def against(self, key: tuple[str, str], subject: str, other: str, metric: str, more: bool) -> list[float]:
        """
        How many times better one subject is than another, for each round that both have.
        """
        cells = self.table[key]
        found = []
        for base, mine in zip(cells.get(other, ()), cells.get(subject, ()), strict=False):
            if base and mine and base.get(metric, 0) > 0 and mine.get(metric, 0) > 0:
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

    def verdict(
        self, key: tuple[str, str], row: Row, metric: str, unit: str, more: bool, isCompiled: bool = False
    ) -> Verdict | None:
        """
        The verdict on a target, if the figure has one.

        @param isCompiled: The target of the compiled form.
        """
        targets = COMPILED_TARGETS.get(row.name, {}) if isCompiled else row.targets
        target = targets.get((key[0], metric))
        if target is None:
            return None
        subject = row.subject + COMPILED * isCompiled
        mine = self.values(key, subject, metric)
        base = self.values(key, row.baseline, metric)
        if target.kind == "times":
            found = self.ratios(key, subject, metric, more)
        elif target.kind == "most":
            found = mine
        else:
            found = [value - other for value, other in zip(mine, base, strict=False)]
        reached = statistics.median(found) if found else None
        isFast = not row.family and row.isBulk and metric == "MB/s" and _median(base) > BULK_CEILING
        return Verdict(key[0], row, metric, unit, target, reached, isFast, subject)

    def verdicts(self) -> list[Verdict]:
        """
        The verdicts on all targets of the rows that were run, and on those of the compiled form where it was
        measured.
        """
        found = (self.verdict(*line, isCompiled) for line in self.lines() for isCompiled in (False, True))
        return [
            each
            for each in found
            if each is not None and (each.subject == each.row.subject or each.reached is not None)
        ]

    def asJSON(self) -> dict[str, Any]:
        """
        Settings, medians, verdicts and every raw figure.
        """
        summary = [
            {
                "placement": key[0],
                "row": row.name,
                "metric": metric,
                "unit": unit,
                "subject": subject,
                "median": _median(self.values(key, subject, metric)),
                "ratio": _median(self.ratios(key, subject, metric, more)),
                "ratios": self.ratios(key, subject, metric, more),
            }
            for key, row, metric, unit, more in self.lines()
            for subject in self.table[key]
        ]
        raw = [
            {"placement": key[0], "row": key[1], "subject": subject, "rounds": rounds}
            for key, cells in self.table.items()
            for subject, rounds in cells.items()
        ]
        targets = [
            {
                "placement": each.placement,
                "row": each.row.name,
                "metric": each.metric,
                "subject": each.subject,
                "kind": each.target.kind,
                "bound": each.target.bound,
                "reached": each.reached,
                "met": each.isMet,
            }
            for each in self.verdicts()
        ]
        return {
            "machine": self.machine,
            "settings": self.settings,
            "absent": self.absent,
            "baselines": BASELINES,
            "targets": targets,
            "summary": summary,
            **{
                mark[1:]: [
                    {"placement": placement, "figure": label, "subject": subject, "ratios": ratios}
                    for placement, label, subject, ratios in self.changes(mark)
                ]
                for mark in _HEADINGS
            },
            "left out": self.leftOut,
            "failures": self.failures,
            "raw": raw,
        }

    def asMarkdown(self) -> str:
        """
        One table per placement and family, and one of the targets.
        """
        parts = [self._preface(), *self._lossTable()]
        for placement in dict.fromkeys(key[0] for key in self.table):
            parts.append(f"\n## {placement}")
            for family in BASELINES:
                parts.extend(self._tableOf(placement, family))
        parts.extend(self._targetTable())
        for mark in _HEADINGS:
            parts.extend(self._treeTable(mark))
        if self.failures:
            parts.append("\n## Runs that failed\n")
            parts.extend(f"- {line}" for line in self.failures)
        return "\n".join(parts) + "\n"

    def _preface(self) -> str:
        """
        The preface: the machine, the settings.
        """
        lines = [
            "# Comparison with Twisted TCP",
            "",
            inWords(self.machine) + ".",
            "",
            ", ".join(f"{name} {value}" for name, value in self.settings.items()) + ".",
            "",
            "Each cell: median of the rounds, **median of the per-round ratios** "
            "against TCP with NODELAY, of what packets carry and of blocking sockets against blocking TCP, "
            "of messages against Int32StringReceiver, between processes of a program against multiprocessing "
            "(lowest-highest; above 1 is better).",
        ]
        if self.absent:
            absent = "; ".join(f"{name} ({why})" for name, why in self.absent.items())
            lines += ["", f"Absent: {absent}."]
        return "\n".join(lines)

    def _tableOf(self, placement: str, family: str) -> Iterator[str]:
        """
        The lines of one table.
        """
        keys = {key for key in self.table if key[0] == placement and rowByName[key[1]].family == family}
        if not keys:
            return
        found = {subject for key in keys for subject in self.table[key]}
        # In the order of the subjects: who is first takes turns.
        subjects = sorted(found, key=[*self.titles, *sorted(found)].index)
        titles = [self.titles.get(name, name) for name in subjects]
        yield ""
        yield "| | " + " | ".join([*titles, "target"]) + " |"
        yield "|---" * (len(subjects) + 2) + "|"
        for key, row, metric, unit, more in self.lines():
            if key not in keys:
                continue
            cells = [self._cell(key, name, metric, more) for name in subjects]
            verdict = self.verdict(key, row, metric, unit, more)
            cells.append(verdict.text if verdict else "")
            yield f"| {labelOf(row, metric, unit)} | " + " | ".join(cells) + " |"

    def _targetTable(self) -> Iterator[str]:
        """
        Every target that was measured, and how many are met.
        """
        found = [each for each in self.verdicts() if each.reached is not None]
        if not found:
            return
        yield f"\n## Targets: {sum(each.isMet for each in found)} of {len(found)} met\n"
        yield "| | placement | TCP | ours | | reached | target |"
        yield "|---" * 7 + "|"
        for each in found:
            key = (each.placement, each.row.name)
            names = each.row.baseline, each.subject
            base, mine = (short(_median(self.values(key, name, each.metric))) for name in names)
            assert each.reached is not None
            reached = short(each.reached) + ("x" if each.target.kind == "times" else "")
            label = labelOf(each.row, each.metric, each.unit)
            form = "compiled" if each.subject.endswith(COMPILED) else "pure"
            yield f"| {label} | {each.placement} | {base} | {mine} | {form} | {reached} | {each.text} |"

    def changes(self, mark: str) -> Iterator[tuple[str, str, str, list[float]]]:
        """
        @param mark: One of L{benchmarks.transports.MARKS}.

        @return: Placement, label and subject of each figure that the other tree has too, and for each round
            how many times better this commit is than the one before, the compiled form than this one, or the
            commit before than itself.
        """
        ours, theirs = {BEFORE: ("", BEFORE), COMPILED: (COMPILED, ""), CONTROL: (CONTROL, BEFORE)}[mark]
        for key, row, metric, unit, more in self.lines():
            for subject in self.table[key]:
                found = self.against(key, subject + ours, subject + theirs, metric, more)
                if found:
                    yield key[0], labelOf(row, metric, unit), subject, found

    def _lossTable(self) -> Iterator[str]:
        """
        What is less than at the commit before, the greatest loss first, and what nobody knows of.  With a
        control what may be chance stands by itself.
        """
        found = list(self.changes(BEFORE))
        if not found:
            return
        fallen = sorted(
            (each for each in found if _median(each[3]) < FALLEN), key=lambda each: _median(each[3])
        )
        yield f"\n## Below {FALLEN} of the commit before: {len(fallen)} of {len(found)} figures"
        controls = {each[:3]: each[3] for each in self.changes(CONTROL)}
        if not controls:
            yield from self._changeTable(fallen)
        else:
            lost = [each for each in fallen if _isLoss(each[3], controls.get(each[:3], []))]
            yield f"\n### More than chance: {len(lost)}"
            yield from self._changeTable(lost, controls)
            yield f"\n### As the commit before differs from itself: {len(fallen) - len(lost)}"
            yield from self._changeTable([each for each in fallen if each not in lost], controls)
        yield f"\n## Not measured: {len(self.leftOut)}"
        if self.leftOut:
            yield "\n| row | placement | subjects |"
            yield "|---" * 3 + "|"
            for placement, title in dict.fromkeys(each[:2] for each in self.leftOut):
                names = [each[2] for each in self.leftOut if each[:2] == (placement, title)]
                yield f"| {title} | {placement} | {', '.join(names)} |"

    def _treeTable(self, mark: str) -> Iterator[str]:
        """
        This tree and another one.
        """
        found = list(self.changes(mark))
        if found:
            yield f"\n## {_HEADINGS[mark]}"
            yield from self._changeTable(found)

    @staticmethod
    def _changeTable(
        found: list[tuple[str, str, str, list[float]]],
        controls: dict[tuple[str, str, str], list[float]] | None = None,
    ) -> Iterator[str]:
        """
        The lines of L{changes}.

        @param controls: The commit before against itself.
        """
        if not found:
            return
        yield "\n| | placement | subject | median | lowest-highest |" + " itself | |" * bool(controls)
        yield "|---" * (7 if controls else 5) + "|"
        for placement, label, subject, ratios in found:
            cells = [placement, subject, *_spread(ratios)]
            if controls:
                cells += _spread(controls.get((placement, label, subject), []))
            yield f"| {label} | {' | '.join(cells)} |"

    def _cell(self, key: tuple[str, str], subject: str, metric: str, more: bool) -> str:
        """
        Median, and the median ratio with its range.
        """
        values = self.values(key, subject, metric)
        if not values:
            runs = self.table[key].get(subject)
            return "failed" if runs and not any(runs) else "-"
        text = short(statistics.median(values))
        ratios = self.ratios(key, subject, metric, more)
        if subject in BASELINES.values() or not ratios:
            return text
        low, high = short(min(ratios)), short(max(ratios))
        return f"{text}, **{short(statistics.median(ratios))}x** ({low}-{high})"


def labelOf(row: Row, metric: str, unit: str) -> str:
    """
    A figure's name, with its unit.
    """
    return f"{row.title}, {unit}" if metric == unit else f"{row.title}, {metric} ({unit})"


def _isLoss(ratios: list[float], controls: list[float]) -> bool:
    """
    Of three runs, two of them of the same code, each is the worst in a third of the rounds by chance.

    @param ratios: This commit against the one before, of each round.
    @param controls: That one against itself.

    @return: Whether this commit is the worst in more rounds than chance makes it; also where the rounds have
        no control.
    """
    rounds = list(zip(ratios, controls, strict=False))
    worst = sum(mine < min(1.0, control) for mine, control in rounds)
    tail = range(worst, len(rounds) + 1)
    ways = sum(comb(len(rounds), n) * 2 ** (len(rounds) - n) for n in tail)
    return not rounds or ways <= CHANCE * 3 ** len(rounds)


def _spread(ratios: list[float]) -> list[str]:
    """
    The median, and the lowest and the highest.
    """
    return [short(_median(ratios)), f"{short(min(ratios))}-{short(max(ratios))}"] if ratios else ["-", "-"]


def _median(values: list[float]) -> float:
    """
    The median, 0 of nothing.
    """
    return statistics.median(values) if values else 0.0


def short(value: float) -> str:
    """
    Three digits that matter.
    """
    if abs(value) >= 100:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.3g}"
