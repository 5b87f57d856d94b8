"""
C{ib-perf compare}: the options, and the rounds.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

from twisted_ib import limits
from twisted_ib.errors import HCAError
from twisted_ib.hca.device.registry import addressOf, kindOf
from twisted_ib.tools.compare import text
from twisted_ib.tools.compare.measuring import Figures
from twisted_ib.tools.compare.plot import plot
from twisted_ib.tools.compare.processes import START_SECONDS, Pair, Patience, WorkerError
from twisted_ib.tools.compare.results import Results, compared
from twisted_ib.tools.compare.subjects import (
    BASELINE,
    LOOPBACK,
    MEASURES,
    PLACEMENTS,
    SUBJECTS,
    Placement,
    Row,
    Subject,
)
from twisted_ib.tools.machine import adapterOf, describe
from twisted_ib.tools.program import (
    INTERRUPTED,
    ArgumentParser,
    ProgramError,
    complain,
    secondsWithin,
    size,
    whole,
    write,
)
from twisted_ib.tools.progress import Progress

NAME = "compare"

SUMMARY = "Twisted's transports and others, side by side, in one command"

#: The defaults: with all subjects and both placements about half a minute.
SIZES = (64, 65536)
ROUNDS = 5
SECONDS = 0.03

_EPILOG = (
    "Subjects: {subjects}. Placements: {placements}. Each subject has a server and a client, both processes;"
    " in each round they take turns, row by row. A figure is the median of the rounds."
)

_Named = TypeVar("_Named", Subject, Placement)


def _listOf(parse: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    def parsed(given: str) -> list[Any]:
        # Each once, in the order given.
        return list(dict.fromkeys(parse(each) for each in given.split(",")))

    return parsed


def _oneOf(known: Sequence[_Named]) -> Callable[[str], _Named]:
    names = {each.name: each for each in known}

    def parse(given: str) -> _Named:
        if given not in names:
            raise ArgumentTypeError(f"{given!r} is none of {', '.join(names)}")
        return names[given]

    return parse


def addOptions(parser: ArgumentParser) -> None:
    """
    Add the options of the command.
    """
    add = parser.add_argument
    default = ",".join(map(str, SIZES))
    add("--sizes", type=_listOf(size), default=list(SIZES), metavar="SIZE,...", help=f"by default {default}")
    subjects, placements = _listOf(_oneOf(SUBJECTS)), _listOf(_oneOf(PLACEMENTS))
    add("--subjects", type=subjects, default=list(SUBJECTS), metavar="NAME,...", help="by default all")
    add("--device", metavar="NAME", help="that of sdp: and ib:; what names none is left out then")
    add("--placements", type=placements, default=list(PLACEMENTS), metavar="NAME,...", help="by default all")
    rounds = whole(1, limits.COMPARE_ROUNDS)
    add("--rounds", type=rounds, default=ROUNDS, metavar="N", help=f"rounds, by default {ROUNDS}")
    seconds = secondsWithin(0, limits.COMPARE_SECONDS)
    what = f"seconds of each figure, by default {SECONDS}"
    add("--seconds", type=seconds, default=SECONDS, metavar="S", help=what)
    patience = secondsWithin(0, limits.COMPARE_PATIENCE)
    what = f"seconds for which a process may do nothing before it is given up, by default {START_SECONDS:g}"
    add("--patience", type=patience, default=START_SECONDS, metavar="S", help=what)
    add("--plot", metavar="FILE.svg", help="draw the results into a file, too")
    add("--json", action="store_true", help="one JSON object in place of the text")
    parser.epilog = _EPILOG.format(
        subjects=", ".join(each.name for each in SUBJECTS),
        placements=", ".join(f"{each.name} ({each.title})" for each in PLACEMENTS),
    )


def _present(chosen: Sequence[_Named], absent: dict[str, str]) -> list[_Named]:
    for each in chosen:
        if why := each.absence():
            absent[each.name] = why
    return [each for each in chosen if each.name not in absent]


def _onDevice(chosen: list[Subject], device: str | None, absent: dict[str, str]) -> list[Subject]:
    if device is None:
        return chosen
    try:
        kindOf(device)
    except HCAError as error:
        raise ProgramError(str(error)) from None
    address = addressOf(device) or LOOPBACK
    placed = [each.on(device, address) for each in chosen]
    # What switches, and an event loop, choose their devices by the rules.
    absent.update(
        {each.name: "its device is not chosen" for each in placed if each.isOurs and each in chosen}
    )
    return [each for each in placed if each.name not in absent]


class Comparison:
    """
    One run of the command.

    @ivar failures: the errors of subjects that failed, by name; they are out of all rows then.
    """

    def __init__(self, options: Namespace) -> None:
        """
        @raise ProgramError: nothing is left to measure.
        """
        self._absent: dict[str, str] = {}
        self.subjects: list[Subject] = _present(
            # In the order of the table, so that each run has the same.
            _onDevice([each for each in SUBJECTS if each in options.subjects], options.device, self._absent),
            self._absent,
        )
        placements = _present(options.placements, self._absent)
        if not self.subjects or not placements:
            said = "; ".join(f"{name}: {why}" for name, why in self._absent.items())
            raise ProgramError(f"there is nothing to measure: {said}")
        self.rows = [
            Row(placement, measure, size)
            for placement in placements
            for measure in MEASURES
            for size in options.sizes
        ]
        # Before the rounds, which make a load of their own.
        self._machine = describe()
        if options.device is not None and (adapter := adapterOf(options.device)):
            self._machine["adapter"] = adapter
        self._rounds: int = options.rounds
        self._seconds: float = options.seconds
        self._patience: float = options.patience
        self._pairs: dict[Subject, Pair] = {}
        self._figures: dict[Row, dict[str, list[float]]] = {row: {} for row in self.rows}
        self.failures: dict[str, str] = {}

    @property
    def measurements(self) -> int:
        """
        The number of steps that L{run} has.
        """
        return self._rounds * len(self.rows)

    def run(self, folder: str, next: Callable[[str], None]) -> Results:
        """
        Measure, each round in new processes.

        @param folder: an empty one.
        @param next: called at the beginning of each row of each round, with words for it.
        @raise ProgramError: every subject failed.
        """
        for number in range(self._rounds):
            # ASLR alone makes a round trip of two processes on one CPU longer or shorter by a third: one pair
            # of processes says little.
            with ExitStack() as stack:
                self._start(os.path.join(folder, str(number)), stack)
                self._round(number, next)
        return self._results()

    def _start(self, folder: str, stack: ExitStack) -> None:
        self._pairs.clear()
        for subject in self._left():
            home = os.path.join(folder, subject.name)
            os.makedirs(home)
            pair = self._pairs[subject] = Pair(subject, home, patience=self._patience)
            # Before it is started: Ctrl-C may come at any moment.
            stack.callback(pair.end)
            pair.start()
        started = [process for pair in self._pairs.values() for process in pair.processes]
        patience = Patience(self._patience, started)
        for subject, pair in list(self._pairs.items()):
            self._try(subject, pair.ready, patience)
        for subject, pair in list(self._pairs.items()):
            self._try(subject, pair.warm)

    def _left(self) -> list[Subject]:
        return [each for each in self.subjects if each.name not in self.failures]

    def _round(self, number: int, next: Callable[[str], None]) -> None:
        placed = None
        for row in self.rows:
            next(f"{row.title}, {row.placement.name}")
            if row.placement is not placed:
                placed = row.placement
                for subject, pair in list(self._pairs.items()):
                    self._try(subject, pair.place, placed)
            # The second one meets warmer caches, or another load: they take turns.
            order = list(self._pairs)
            for subject in order if number % 2 else reversed(order):
                if row.size <= subject.most:
                    self._measure(row, subject)

    def _measure(self, row: Row, subject: Subject) -> None:
        pair, measure = self._pairs[subject], row.measure
        figures: Figures | None = self._try(subject, pair.measure, measure.name, row.size, self._seconds)
        if figures is not None:
            self._figures[row].setdefault(subject.name, []).append(figures[measure.key])

    def _try(self, subject: Subject, step: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return step(*arguments)
        except WorkerError as error:
            # The others still can be compared.
            del self._pairs[subject]
            self.failures[subject.name] = str(error)
            return None

    def _results(self) -> Results:
        left = self._left()
        if not left:
            name, error = next(iter(self.failures.items()))
            raise ProgramError(f"every subject failed, {name} first: {error}")
        names = [each.name for each in left]
        baseline = BASELINE if BASELINE in names else names[0]
        rows = {}
        for row in self.rows:
            measured = {name: self._figures[row][name] for name in names if name in self._figures[row]}
            if measured:
                # Messages may be too long for the baseline, if that is another one.
                base = baseline if baseline in measured else next(iter(measured))
                rows[row] = compared(measured, base, row.measure.isTime)
        return Results(
            machine=self._machine,
            rounds=self._rounds,
            seconds=self._seconds,
            titles={each.name: each.title for each in left},
            ours=frozenset(each.name for each in left if each.isOurs),
            baseline=baseline,
            rows=rows,
            absent={**self._absent, **self.failures},
        )


def compare(options: Namespace) -> int:
    """
    Measure, and show the results.

    @return: the exit status: 0 only if no subject failed.
    @raise ProgramError: nothing could be compared.
    """
    # Before half a minute of measuring.
    if options.plot and not os.path.isdir(os.path.dirname(options.plot) or os.curdir):
        raise ProgramError(f"{options.plot}: there is no such folder")
    comparison = Comparison(options)
    if not options.json:
        rounds, seconds = options.rounds, options.seconds
        write(text.plan(options.sizes, len(comparison.subjects), rounds, seconds) + "\n")
    progress = Progress(sys.stderr if options.json else sys.stdout, comparison.measurements)
    try:
        with tempfile.TemporaryDirectory(prefix="ib-perf-") as folder:
            results = comparison.run(folder, progress.next)
    finally:
        progress.close()
    if options.json:
        write(json.dumps(results.json(), indent=2))
    else:
        text.show(results)
    if options.plot:
        with open(options.plot, "w", encoding="utf-8") as file:
            file.write(plot(results))
    for name, error in comparison.failures.items():
        complain("ib-perf", ProgramError(f"{name} failed: {error}"))
    return 1 if comparison.failures else 0


def main(options: Namespace) -> int:
    """
    Run the command.

    @return: the exit status.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            # As Ctrl-C: the processes and the folder go.
            signal.signal(number, signal.default_int_handler)
    try:
        return compare(options)
    except KeyboardInterrupt:
        pass
    except (ProgramError, OSError) as error:
        complain("ib-perf", error)
        return 1
    # A process that was just being started is nobody's, and ends as its standard input is closed.
    try:
        while True:
            os.wait()
    except ChildProcessError:
        return INTERRUPTED
