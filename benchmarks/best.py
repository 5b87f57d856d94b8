"""
The best that each row has had on a kind of machine, so that a loss shows also when the commit before had it.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from benchmarks.summary import Results, labelOf, short
from benchmarks.transports import BEFORE, CONTROL
from benchmarks.transports import byName as subjectByName

#: Where the repository keeps them.
BEST = Path(__file__).resolve().parent / "results" / "best.json"
#: Rows and metrics without a best: what the kernel has for an idle connection is next to nothing, and other
#: programs move it.
_UNSTEADY = frozenset({("idle", "kernel")})


def kindOf(machine: Mapping[str, object]) -> str:
    """
    @param machine: Facts of L{benchmarks.conditions}.

    @return: What figures of one machine have to have in common with those of another to be its figures too.
    """
    python = ".".join(str(machine["python"]).split(".")[:2])
    return f"{machine['CPU']}, {machine['CPUs']} CPUs; {python}"


@frozen
class Standing:
    """
    A figure beside its best.

    @ivar what: C{figure}, or C{ratio} to the baseline of the same round.
    @ivar share: How much of the best it is; above 1 is better than that.
    """

    placement: str
    label: str
    subject: str
    what: str
    now: float
    best: float
    commit: str
    share: float


@define
class Best:
    """
    The best medians.

    @ivar machines: Machine -> figure -> its best median, with the commit of it.  A figure's name
        is its placement, row, subject, metric and C{figure} or C{ratio}.
    """

    machines: dict[str, dict[str, dict[str, Any]]] = field(factory=dict)

    @classmethod
    def ofFile(cls, path: Path) -> Best:
        """
        @return: What a file has; nothing if there is none.
        """
        return cls(json.loads(path.read_text())) if path.exists() else cls()

    def toFile(self, path: Path) -> None:
        """
        Write it, a figure a line.
        """
        parts = []
        for machine, figures in sorted(self.machines.items()):
            lines = ",\n".join(
                f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in sorted(figures.items())
            )
            parts.append(f"{json.dumps(machine)}: {{\n{lines}\n}}")
        path.write_text("{\n" + ",\n".join(parts) + "\n}\n")

    @staticmethod
    def _medians(results: Results) -> Iterator[tuple[str, str, str, str, str, float, bool]]:
        """
        @return: Name, placement, label, subject, what it is, the median, more is better.
        """
        for key, row, metric, unit, more in results.lines():
            for subject in results.table[key]:
                known = subjectByName[subject.partition("@")[0]]
                if subject.endswith((BEFORE, CONTROL)) or not known.isOurs or (row.name, metric) in _UNSTEADY:
                    continue
                for what, values, isMore in (
                    ("figure", results.values(key, subject, metric), more),
                    ("ratio", results.ratios(key, subject, metric, more), True),
                ):
                    # An idle machine may have none of something, of which there is no share.
                    if values and statistics.median(values) > 0:
                        name = f"{key[0]} {row.name} {subject} {metric} {what}"
                        label = labelOf(row, metric, unit)
                        yield name, key[0], label, subject, what, statistics.median(values), isMore

    def standings(self, results: Results) -> list[Standing]:
        """
        @return: Of each figure that has a best, the farthest below it first.
        """
        known = self.machines.get(kindOf(results.machine), {})
        found = []
        for name, placement, label, subject, what, now, more in self._medians(results):
            if name in known:
                best, commit = known[name]["median"], known[name]["commit"]
                share = now / best if more else best / now
                found.append(Standing(placement, label, subject, what, now, best, commit, share))
        return sorted(found, key=lambda each: each.share)

    def update(self, results: Results) -> int:
        """
        Take what is better than the best, or new.

        @return: How many figures that were.
        """
        machine, count = results.machine, 0
        known = self.machines.setdefault(kindOf(machine), {})
        for name, _, _, _, _, now, more in self._medians(results):
            best = known.get(name)
            if best is None or (now > best["median"] if more else now < best["median"]):
                known[name] = {
                    "median": float(f"{now:.4g}"),
                    "commit": machine["commit"] or "unknown",
                }
                count += 1
        return count


def asMarkdown(standings: list[Standing], machine: Mapping[str, object]) -> str:
    """
    @return: A table of how far below its best each figure is.
    """
    lines = [f"\n## Against the best of this kind of machine: {len(standings)} figures\n", kindOf(machine)]
    if standings:
        lines += ["\n| | placement | subject | | now | best | commit | share |", "|---" * 8 + "|"]
        for each in standings:
            now, best, share = (short(number) for number in (each.now, each.best, each.share))
            lines.append(
                f"| {each.label} | {each.placement} | {each.subject} | {each.what} | {now} | {best}"
                f" | {each.commit} | {share} |"
            )
    return "\n".join(lines) + "\n"
