"""
The short form of the comparison: counts that are the same in each run, and times of all rows in turn with
another commit's, within three minutes.  For each change, where the long one is for each release.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from benchmarks.best import Standing
from benchmarks.conditions import inWords
from benchmarks.counting import MEASURES
from benchmarks.pairs import ROOT
from benchmarks.rows import byName as rowByName
from benchmarks.summary import FALLEN, Results, short
from benchmarks.transports import BEFORE

#: Those whose times it compares.
SUBJECTS = ("sdp-ib", "ib", "sdp-roce", "rds-ib", "iwarp", "verbs-shm0")
#: When it begins no further row, in seconds from its start, and the timed part of a row.
SECONDS, ROW_SECONDS = 140.0, 0.05
#: The most rounds.
ROUNDS = 9
#: How long counting a tree may take.
COUNTING_SECONDS = 120.0
#: A count that grew by no more than this share of it, or by no more than that much, has not: what happens
#: once in some turns is not in each of the few messages.
SHARE, MUCH = 0.003, 0.4
#: The same share of what is kept: tables grow by leaps.
KEPT_SHARE = 0.01
#: Names the commit to compare with where no tag does.
RELEASE = Path(__file__).resolve().parent / "results" / "release"
#: The exit status without anything to compare with.
SKIPPED = 77


def release(repository: Path) -> str:
    """
    @return: The newest tag of what is checked out, or else the commit that L{RELEASE} names; nothing where
        this is not a repository, or lacks that commit.
    """
    git = ["git", "-C", str(repository)]
    words = "describe", "--tags", "--abbrev=0"
    try:
        tagged = subprocess.run([*git, *words], capture_output=True, text=True).stdout.strip()
        found = tagged or RELEASE.read_text().split()[0]
        known = subprocess.run([*git, "cat-file", "-e", f"{found}^{{commit}}"], capture_output=True)
    except OSError:
        return ""
    return "" if known.returncode else found


Counts = Mapping[str, Mapping[str, Any]]


def countsOf(tree: Path, names: list[str] | None = None) -> Counts:
    """
    Count with a tree's package, and with this one's program for every tree.

    @param names: Of rows; all if not given.

    @raise SystemExit: The program breaks.
    """
    with tempfile.TemporaryDirectory(prefix="counts-") as folder:
        for name, where in (("twisted_ib", tree), ("benchmarks", ROOT)):
            os.symlink(Path(where).resolve() / name, Path(folder) / name)
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TWISTED_IB_")}
        environment |= {
            "PYTHONPATH": folder,
            # Tables of names have the same sizes in every run.
            "PYTHONHASHSEED": "0",
            "TWISTED_IB_RUN_DIR": f"{folder}/run",
            "XDG_CONFIG_HOME": folder,
        }
        try:
            ran = subprocess.run(
                [sys.executable, "-m", "benchmarks.counting", *(names or ())],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=COUNTING_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise SystemExit(f"counting {tree}: not over in {COUNTING_SECONDS:g} s") from None
    if ran.returncode:
        raise SystemExit(f"counting {tree}: status {ran.returncode}: {ran.stderr.strip()}")
    found: Counts = json.loads(ran.stdout)
    return found


def isBroken(results: Results) -> bool:
    """
    @return: Whether a row of this tree failed in each round.
    """
    return any(
        not any(rounds)
        for cells in results.table.values()
        for subject, rounds in cells.items()
        if not subject.endswith(BEFORE)
    )


@frozen
class Count:
    """
    A count of two trees.
    """

    row: str
    subject: str
    measure: str
    before: float
    now: float

    @property
    def ratio(self) -> float:
        """
        Above 1 is better.
        """
        return self.before / self.now if self.now > 0 and self.before > 0 else 1.0

    @property
    def isRisen(self) -> bool:
        """
        Whether there is more of it than there was.
        """
        share = KEPT_SHARE if self.measure in ("kept", "blocks") else SHARE
        return self.now - self.before > max(MUCH, share * self.before)

    @property
    def text(self) -> str:
        """
        In words.
        """
        unit = MEASURES[self.measure]
        numbers = f"{self.before:,.10g} -> {self.now:,.10g}".replace(",", " ")
        return f"{rowByName[self.row].title}, {self.subject}: {self.measure} ({unit}) {numbers}"


@define
class Report:
    """
    What the short form has found.

    @ivar before: The other commit.
    @ivar standings: Beside the best of this kind of machine.
    """

    before: str
    results: Results
    theirs: Counts
    mine: Counts
    standings: list[Standing] = field(factory=list)

    def counts(self) -> Iterator[Count]:
        """
        Those of both trees.
        """
        for row, subjects in self.mine.items():
            for subject, mine in subjects.items():
                theirs = self.theirs.get(row, {}).get(subject)
                if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
                    for measure in mine:
                        if measure in theirs:
                            yield Count(row, subject, measure, theirs[measure], mine[measure])

    def uncounted(self) -> Iterator[str]:
        """
        What could not be counted, and why.
        """
        for which, counts in (("here", self.mine), ("before", self.theirs)):
            for row, subjects in counts.items():
                for subject, found in subjects.items():
                    if isinstance(found, str):
                        yield f"{rowByName[row].title}, {subject}: not counted {which}: {found}"

    def text(self) -> str:
        """
        What is worse first: counts, then times of every round, then medians; then all.
        """
        counts = list(self.counts())
        risen = sorted((each for each in counts if each.isRisen), key=lambda each: each.ratio)
        times = sorted(self.results.changes(BEFORE), key=lambda each: statistics.median(each[3]))
        # One round tells little of a time.
        always = [each for each in times if len(each[3]) > 1 and max(each[3]) < FALLEN]
        mostly = [each for each in times if each not in always and statistics.median(each[3]) < FALLEN]
        unknown = [
            *(f"{title}, {placement}, {name}" for placement, title, name in self.results.leftOut),
            *self.uncounted(),
        ]
        below = [each for each in self.standings if each.share < FALLEN]
        lines = [f"# Short comparison with {self.before}", f"{inWords(self.results.machine)}."]
        for title, found in (
            (f"Counts that grew: {len(risen)} of {len(counts)}", map(_ofCount, risen)),
            (f"Times below {FALLEN} in every round: {len(always)} of {len(times)}", map(_ofTime, always)),
            (f"Times below {FALLEN} in the median, or of one round: {len(mostly)}", map(_ofTime, mostly)),
            (f"Not measured: {len(unknown)}", iter(unknown)),
            (f"Runs that failed: {len(self.results.failures)}", iter(self.results.failures)),
            (
                f"Below {FALLEN} of the best of this kind of machine: {len(below)} of {len(self.standings)}",
                map(_ofStanding, below),
            ),
            (f"All counts: {len(counts)}", map(_ofCount, counts)),
            (f"All times: {len(times)}", map(_ofTime, times)),
        ):
            lines += ["", f"## {title}", *found]
        return "\n".join(lines) + "\n"


def _ofCount(count: Count) -> str:
    return f"{count.ratio:.3f}  {count.text}"


def _ofTime(change: tuple[str, str, str, list[float]]) -> str:
    placement, label, subject, ratios = change
    middle, low, high = (short(each) for each in (statistics.median(ratios), min(ratios), max(ratios)))
    return f"{middle:5}  {label}, {placement}, {subject} ({low}-{high}, {len(ratios)} rounds)"


def _ofStanding(each: Standing) -> str:
    numbers = f"{short(each.now)}, best {short(each.best)} at {each.commit}"
    return f"{each.share:.3f}  {each.label}, {each.placement}, {each.subject}, {each.what}: {numbers}"
