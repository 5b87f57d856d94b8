"""
Compare C{sdp:} with Twisted's TCP, round by round: the driver.

See C{README.md} in this folder for the command.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.processes import PLACEMENTS, Neighbours, Pair, WorkerError
from benchmarks.rows import ROWS, Row
from benchmarks.rows import byName as rowByName
from benchmarks.subjects import BASELINE, SUBJECTS, Subject
from benchmarks.subjects import byName as subjectByName
from benchmarks.summary import Results

#: Seconds of the timed part of one row; quick and not.
QUICK_SECONDS = 0.06
FULL_SECONDS = 0.5
#: A row may take this long beyond its timed part before it counts as hung.
PATIENCE_SECONDS = 30.0
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
    add("--rounds", type=int, default=7, help="interleaved rounds (7)")
    add("--quick", action="store_true", help="short rows, under two minutes")
    add("--seconds", type=float, help="timed part of each row")
    add("--rows", type=_listOf, help=",".join(rowByName))
    add("--subjects", type=_listOf, help=",".join(subjectByName))
    add("--placements", type=_listOf, help=",".join(PLACEMENTS))
    add("--all", action="store_true", help="every row in every placement")
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
    return options


class Comparison:
    """
    One run of the program.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        """
        Choose what to run.
        """
        wanted = set(options.subjects or subjectByName) | {BASELINE}
        self._subjects = [each for each in SUBJECTS if each.name in wanted]
        self._placements = options.placements or list(PLACEMENTS)
        self._options = options
        self._seconds: float = options.seconds or (QUICK_SECONDS if options.quick else FULL_SECONDS)
        self.results = Results(
            {
                "rounds": options.rounds,
                "seconds per row": self._seconds,
                "load average before": os.getloadavg()[0],
            }
        )
        self._pairs: dict[str, Pair] = {}
        self._hopeless: set[str] = set()

    def _rows(self, placement: str) -> list[Row]:
        """
        The rows of one placement.
        """
        named = self._options.rows
        return [
            row
            for row in ROWS
            if (row.name in named if named else True)
            and (self._options.all or named or placement in row.placements)
        ]

    def _subjectsIn(self, placement: str) -> list[Subject]:
        """
        The subjects of one placement.
        """
        if not self._options.quick or placement == "split" or self._options.subjects:
            return self._subjects
        return [each for each in self._subjects if each.name in QUICK_ELSEWHERE]

    def run(self) -> None:
        """
        All rounds.
        """
        for number in range(self._options.rounds):
            begun = time.monotonic()
            try:
                for subject in self._subjects:
                    self._start(subject)
                for placement in self._placements:
                    self._runPlacement(placement)
            finally:
                for pair in self._pairs.values():
                    pair.end()
                self._pairs.clear()
                self._hopeless.clear()
            took = time.monotonic() - begun
            print(
                f"round {number + 1} of {self._options.rounds}: {took:.1f} s",
                file=sys.stderr,
            )

    def _runPlacement(self, name: str) -> None:
        """
        One round of the rows of one placement: all subjects of a row follow
        each other at once, so that they meet the same machine.
        """
        placement = PLACEMENTS[name]
        with Neighbours(placement.neighbours):
            for pair in self._pairs.values():
                pair.place(placement)
            for row in self._rows(name):
                for subject in self._subjectsIn(name):
                    if not self._runs(subject, row):
                        continue
                    self.results.add(name, row.name, subject.name, self._runRow(subject, row, name))

    @staticmethod
    def _runs(subject: Subject, row: Row) -> bool:
        """
        Whether a row means something for a subject.
        """
        if row.registered:
            return subject.messages or subject.name == BASELINE
        if subject.messages and row.size > MESSAGE_BYTES:
            return False
        return bool(subject.reactor) or not row.needsReactor

    def _runRow(self, subject: Subject, row: Row, placement: str) -> dict[str, float] | None:
        """
        One run; None if it failed, and fresh processes for the next.
        """
        if subject.name not in self._pairs:
            self._start(subject)
            if subject.name in self._pairs:
                self._pairs[subject.name].place(PLACEMENTS[placement])
        pair = self._pairs.get(subject.name)
        if pair is None:
            return None
        try:
            return pair.run(row, self._seconds, self._seconds * 8 + PATIENCE_SECONDS)
        except WorkerError as error:
            self._fail(f"{placement}, {row.name}, {subject.name}: {error}")
            self._pairs.pop(subject.name).end()
            return None

    def _start(self, subject: Subject) -> None:
        """
        Start the processes of a subject, unless that failed in this round.
        """
        if subject.name in self._hopeless:
            return
        try:
            self._pairs[subject.name] = Pair(subject)
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

    @return: 0 only if every run worked.
    """
    options = _parse(arguments)
    comparison = Comparison(options)
    comparison.run()
    text = comparison.results.asMarkdown()
    print(text)
    if options.markdown:
        options.markdown.write_text(text)
    if options.json:
        options.json.write_text(json.dumps(comparison.results.asJSON(), indent=1))
    return 1 if comparison.results.failures else 0


if __name__ == "__main__":
    sys.exit(main())
