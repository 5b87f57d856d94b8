"""
Compare C{sdp:} and C{ib:} with Twisted's TCP and others, round by round: the driver.

See C{README.md} in this folder for the command.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import short
from benchmarks.best import BEST, Best, asMarkdown
from benchmarks.conditions import describe
from benchmarks.pairs import (
    PLACEMENTS,
    ROOT,
    Neighbours,
    Pair,
    environmentFor,
    isCompiled,
    workloadOf,
)
from benchmarks.rows import ROWS, Row
from benchmarks.rows import byName as rowByName
from benchmarks.startup import StartError, start
from benchmarks.summary import Results
from benchmarks.transports import BASELINE, BASELINES, BEFORE, COMPILED, CONTROL, SUBJECTS, Subject
from benchmarks.transports import byName as subjectByName
from benchmarks.ucx import UCXPair
from twisted_ib.tools.compare.processes import WorkerError

#: Rounds of the whole comparison.
ROUNDS = 5
#: Seconds of the timed part of one row; quick and not.
QUICK_SECONDS = 0.06
FULL_SECONDS = 0.25
#: A row may take this long beyond its timed part before it counts as hung.
PATIENCE_SECONDS = 30.0
#: Of how many rounds those that nothing is aimed at take part in one, where that takes long.
OTHERS_EVERY = 4
#: The longest message of subjects that carry messages.
MESSAGE_BYTES = 64 * 1024
#: The subjects that the placements other than C{split} compare when quick.
QUICK_ELSEWHERE = ("tcp", "sdp-ib", "sdp-epoll")


def _listOf(text: str) -> list[str]:
    """
    A comma separated option.
    """
    return [part for part in text.split(",") if part]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """
    Read the command line.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare")
    add = parser.add_argument
    add("--rounds", type=int, help=f"interleaved rounds ({ROUNDS}; short: as many as there is time for)")
    add("--quick", action="store_true", help="short rows, and elsewhere than split few subjects")
    add("--seconds", type=float, help=f"timed part of each row ({FULL_SECONDS}, quick {QUICK_SECONDS})")
    add("--rows", type=_listOf, help=",".join(rowByName))
    add("--subjects", type=_listOf, help=",".join(subjectByName))
    add("--placements", type=_listOf, help=",".join(PLACEMENTS))
    add("--all", action="store_true", help="every row in every placement")
    add("--before", metavar="COMMIT", help="another commit, or a checkout of it, run in the same rounds")
    add("--control", action="store_true", help="that commit twice: how much the same code differs")
    add("--compiled", type=Path, metavar="DIR", help="the compiled form, run in the same rounds")
    add("--short", action="store_true", help="counts, and all rows against the newest release: three minutes")
    add("--repository", type=Path, default=ROOT, metavar="DIR", help="where git finds other commits")
    add("--best", type=Path, default=BEST, metavar="FILE", help="the best of each kind of machine")
    add("--update-best", action="store_true", help="write there what is better")
    add("--json", type=Path, metavar="FILE", help="write everything measured")
    add("--markdown", type=Path, metavar="FILE", help="write the tables")
    options = parser.parse_args(arguments)
    for chosen, known in (
        (options.rows, rowByName),
        (options.subjects, subjectByName),
        (options.placements, PLACEMENTS),
    ):
        for name in chosen or ():
            if name not in known:
                parser.error(f"{name!r} is none of {', '.join(known)}")
    if options.short:
        options.subjects = options.subjects or list(short.SUBJECTS)
        options.seconds = options.seconds or short.ROW_SECONDS
    if options.control and not options.before:
        parser.error("--control is for --before")
    options.rounds = options.rounds or (short.ROUNDS if options.short else ROUNDS)
    if options.compiled and not isCompiled(str(options.compiled.resolve())):
        parser.error(f"{options.compiled} has no compiled form: README.md says how to make one")
    return options


def _checkout(commit: str, folder: str, repository: Path) -> Path:
    """
    @param folder: An empty one, for the files of a commit.
    @param repository: What has the commit.

    @return: The folder that has them, or C{commit} itself where that is one.

    @raise SystemExit: There is no such commit, or no git.
    """
    if os.path.isdir(commit):
        return Path(commit)
    try:
        packed = subprocess.run(["git", "-C", str(repository), "archive", commit], capture_output=True)
    except OSError as error:
        raise SystemExit(f"--before {commit}: git: {error.strerror}") from None
    if packed.returncode:
        raise SystemExit(
            f"--before {commit}: neither a folder nor a commit: {packed.stderr.decode().strip()}"
        )
    subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
    return Path(folder)


def _inTurn(subjects: Sequence[Subject], number: int) -> Iterator[Subject]:
    """
    @param number: Of the round.

    @return: All of them, those of one name after each other.  Whichever tree comes later meets warmer caches:
        each is the first, and the last, as often as the others.
    """
    for base in dict.fromkeys(each.base for each in (subjects if number % 2 else reversed(subjects))):
        trees = [each for each in subjects if each.base == base]
        first = number % len(trees)
        yield from trees[first:] + trees[:first]


@contextmanager
def _interrupted() -> Iterator[None]:
    """
    Meanwhile SIGTERM is as good as Ctrl-C: whoever ends a long run sees what it has measured.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Comparison:
    """
    One run of the program.
    """

    def __init__(self, options: argparse.Namespace, before: Path | None = None) -> None:
        """
        Choose what to run.

        @param before: The folder of the other commit.
        """
        begun = time.monotonic()
        wanted = set(options.subjects or subjectByName)
        if not options.short:
            wanted |= set(BASELINES.values())
        self._end = begun + short.SECONDS if options.short else None
        absent = {each.name: each.absence() for each in SUBJECTS if each.name in wanted and each.absence()}
        self._subjects = []
        for each in SUBJECTS:
            if each.name in wanted and each.name not in absent:
                self._subjects.append(each)
                control = before if options.control else None
                for mark, tree in ((BEFORE, before), (COMPILED, options.compiled), (CONTROL, control)):
                    if tree and each.isOurs:
                        other = each.ofTree(mark, str(tree.resolve()))
                        if other.absence():
                            absent[other.name] = other.absence()
                        else:
                            self._subjects.append(other)
        self._placements = options.placements or list(PLACEMENTS)
        self._options = options
        self._seconds: float = options.seconds or (QUICK_SECONDS if options.quick else FULL_SECONDS)
        self.results = Results(
            describe(),
            {"rounds": options.rounds, "seconds per row": self._seconds},
            absent,
            {each.name: each.title for each in self._subjects},
        )
        self._pairs: dict[str, Any] = {}
        self._hopeless: set[str] = set()
        self._folder = ""
        self._environments: dict[str, dict[str, str]] = {}

    def _rows(self, placement: str) -> list[Row]:
        """
        The rows of one placement.
        """
        named = self._options.rows
        found = [
            row
            for row in ROWS
            if (row.name in named if named else True)
            and (self._options.all or named or placement in row.placements)
            and (not self._options.short or placement == row.placements[0])
        ]
        # On a busy machine the time ends before what takes longest.
        return sorted(found, key=lambda row: row.isFresh) if self._options.short else found

    def _subjectsIn(self, placement: str) -> list[Subject]:
        """
        The subjects of one placement.
        """
        if not self._options.quick or placement == "split" or self._options.subjects:
            return self._subjects
        return [each for each in self._subjects if each.base in QUICK_ELSEWHERE]

    def run(self) -> None:
        """
        All rounds.
        """
        with tempfile.TemporaryDirectory(prefix="compare-") as self._folder:
            cache = os.path.join(self._folder, "bytecode")
            self._environments = {each.tree: environmentFor(cache, each.tree) for each in self._subjects}
            try:
                self._runRounds()
            except KeyboardInterrupt:
                self._fail("interrupted: the last round is not whole")
        self.results.settings["load average after"] = round(os.getloadavg()[0], 2)
        self.results.leftOut = list(self._leftOut())

    def _runRounds(self) -> None:
        """
        As many as were asked for, or as there is time for.
        """
        for number in range(self._options.rounds):
            if self._isOver():
                break
            begun = time.monotonic()
            self._runRound(number)
            if not self._options.short:
                took = time.monotonic() - begun
                print(f"round {number + 1} of {self._options.rounds}: {took:.1f} s", file=sys.stderr)

    def _leftOut(self) -> Iterator[tuple[str, str, str]]:
        """
        What all rows, placements and subjects of ours would have compared with the commit before, and these
        options did not.
        """
        for placement in PLACEMENTS:
            for row in ROWS:
                if placement not in row.placements[: 1 if self._options.short else None]:
                    continue
                cells = self.results.table.get((placement, row.name), {})
                for subject in SUBJECTS:
                    if not (subject.isOurs and self._runs(subject, row)):
                        continue
                    if self._options.short and subject.name not in short.SUBJECTS:
                        continue
                    pairs = zip(
                        cells.get(subject.name, ()), cells.get(subject.name + BEFORE, ()), strict=False
                    )
                    if not any(mine and other for mine, other in pairs):
                        yield placement, row.title, subject.name

    def _runRound(self, number: int) -> None:
        """
        Every row once, for everybody.
        """
        try:
            for placement in self._placements:
                self._runPlacement(placement, number)
        finally:
            for pair in self._pairs.values():
                pair.end()
            self._pairs.clear()
            self._hopeless.clear()

    def _runPlacement(self, name: str, number: int) -> None:
        """
        One round of the rows of one placement: all subjects of a row follow
        each other at once, so that they meet the same machine.
        """
        rows = self._rows(name)
        subjects = self._subjectsIn(name)
        for subject in subjects:
            if any(self._runs(subject, row) and not (row.isFresh or row.isStart) for row in rows):
                self._start(subject)
        placement = PLACEMENTS[name]
        with Neighbours(name == "contended"):
            for pair in self._pairs.values():
                pair.place(placement)
            for row in rows:
                if self._options.short and row.isFresh and number % OTHERS_EVERY:
                    continue
                for subject in _inTurn(subjects, number):
                    if self._isOver():
                        return
                    if self._runs(subject, row):
                        isAside = row.isFresh and subject.base not in (row.baseline, row.subject)
                        isLeftOut = isAside and number % OTHERS_EVERY
                        figures = None if isLeftOut else self._runRow(subject, row, name)
                        self.results.add(name, row.name, subject.name, figures)

    def _isOver(self) -> bool:
        """
        Whether the time of the short form is up.
        """
        return self._end is not None and time.monotonic() > self._end

    @staticmethod
    def _runs(subject: Subject, row: Row) -> bool:
        """
        Whether a row means something for a subject.
        """
        if row.family not in (
            subject.family,
            *(each for each in BASELINES if BASELINES[each] == subject.name),
        ):
            return False
        if subject.workloads is not None and workloadOf(row, subject) not in subject.workloads:
            return False
        if row.registered:
            return subject.messages or not subject.program or subject.name == BASELINE
        if row.isStart and subject.name != BASELINE:
            # Once for each reactor; the package is the same on all.
            return subject.base in (("sdp-ib", "sdp-asyncio") if row.workload == "twistd" else ("sdp-ib",))
        if subject.messages and row.size > MESSAGE_BYTES:
            return False
        return bool(subject.reactor) or not row.needsReactor

    def _runRow(self, subject: Subject, row: Row, placement: str) -> dict[str, float] | None:
        """
        One run; None if it failed, and fresh processes for the next.
        """
        try:
            if row.isStart:
                return start(row.workload, subject, self._folder, self._environments[subject.tree])
            if row.isFresh:
                return self._runFresh(subject, row, placement)
            if subject.name not in self._pairs:
                self._start(subject)
                if subject.name in self._pairs:
                    self._pairs[subject.name].place(PLACEMENTS[placement])
            pair = self._pairs.get(subject.name)
            return None if pair is None else self._runIn(pair, row)
        except (WorkerError, StartError) as error:
            self._fail(f"{placement}, {row.name}, {subject.name}: {error}")
            pair = self._pairs.pop(subject.name, None)
            if pair is not None:
                pair.end()
            return None

    def _runFresh(self, subject: Subject, row: Row, placement: str) -> dict[str, float]:
        """
        One run in processes that nothing else uses.
        """
        pair = Pair(subject, self._environments[subject.tree])
        try:
            pair.place(PLACEMENTS[placement])
            return self._runIn(pair, row)
        finally:
            pair.end(isHard=True)

    def _runIn(self, pair: Any, row: Row) -> dict[str, float]:
        """
        One run in a pair of processes.
        """
        figures: dict[str, float] = pair.run(row, self._seconds, self._seconds * 8 + PATIENCE_SECONDS)
        return figures

    def _start(self, subject: Subject) -> None:
        """
        Start the processes of a subject, unless they run, or that failed in this round.
        """
        if subject.name in self._hopeless or subject.name in self._pairs:
            return
        try:
            kind: Any = Pair if subject.program else UCXPair
            self._pairs[subject.name] = kind(subject, self._environments[subject.tree])
        except WorkerError as error:
            self._hopeless.add(subject.name)
            self._fail(f"{subject.name} does not start: {error}")

    def _fail(self, line: str) -> None:
        """
        Remember and show a failure.
        """
        self.results.failures.append(line)
        print(line, file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run, print the tables, write the files.

    @return: 0 only if every run worked; of the short form, if each row has a run that did, 77 without a
        release.
    """
    options = _parse(arguments)
    before = options.before or (short.release(options.repository) if options.short else "")
    if options.short and not before:
        print("no release to compare with: no tag, and no commit of benchmarks/results/release")
        return short.SKIPPED
    with tempfile.TemporaryDirectory(prefix="before-") as folder:
        tree = _checkout(before, folder, options.repository) if before else None
        comparison = Comparison(options, tree)
        trees = [tree, ROOT] if options.short and tree else []
        theirs, mine = [short.countsOf(each, options.rows) for each in trees] or ({}, {})
        with _interrupted():
            comparison.run()
    results, best = comparison.results, Best.ofFile(options.best)
    standings = best.standings(results)
    if options.short:
        text = short.Report(before, results, theirs, mine, standings).text()
    else:
        text = results.asMarkdown() + asMarkdown(standings, results.machine)
    print(text)
    if options.update_best:
        print(f"{best.update(results)} figures are the best now", file=sys.stderr)
        best.toFile(options.best)
    if options.markdown:
        options.markdown.write_text(text)
    if options.json:
        options.json.write_text(json.dumps(results.asJSON(), indent=1))
    # A busy machine may be too slow for one run.
    return 1 if (short.isBroken(results) if options.short else results.failures) else 0


if __name__ == "__main__":
    sys.exit(main())
