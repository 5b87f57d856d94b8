"""
What C{.ci/run} and C{.ci/long} share: steps with limits of time, what trial says of them, what failed and
runs again, and the report at the end.

A step of tests that fails is looked at once more when all steps are over and nothing else runs: each of its
failed tests alone, in a fresh process, at most twice.  A test that passes then is unsteady: it is listed, and
a run may have L{MOST_UNSTEADY}.  A hang, a crash of the runner, a module that does not import, and a skip for
a reason that is not in C{.ci/skips} are failures in any case.

Only the standard library: nothing is installed yet when this runs.
"""

from __future__ import annotations

import fcntl
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: More unsteady tests than these are a failure.
MOST_UNSTEADY = 10
#: Of more failed tests the rest does not run again: the run is red in any case.
MOST_AGAIN = 2 * MOST_UNSTEADY
#: How often a failed test runs again, and how long each time, seconds.
TIMES_AGAIN, SECONDS_AGAIN = 2, 600
#: The lines at the end of the output that tell all, and those of one failure.
END_LINES, TROUBLE_LINES = 150, 40
#: A program whose time is up has so long to end, seconds.
END_SECONDS = 10
#: The exit status of a check that cannot be made here.
SKIPPED = 77
#: Names the folder of the run in the environment of all its processes.
MARK = "TWISTED_IB_CI"
PREFIX = "twisted-ib-ci-"

_DOUBLE, _SINGLE = "=" * 79, "-" * 79
_SUMMARY = re.compile(r"(?:PASSED|FAILED)(?: \((.*)\))?$")
_RED = ("[FAIL]", "[ERROR]", "[SUCCESS!?!]")
#: The id of a test, which a module that does not import lacks.
_TEST = re.compile(r"\w[\w.]*\.[A-Z_]\w*\.test\w*")


# -- what trial says


@dataclass
class Outcome:
    """
    What a run of trial came to.

    @ivar passed: how many tests passed, or failed as they were expected to.
    @ivar troubles: test id -> what trial says of its failure.
    @ivar skips: reason -> ids of the tests that were skipped for it.
    @ivar ended: whether trial came to the end of its report.
    """

    passed: int = 0
    troubles: dict[str, str] = field(default_factory=dict)
    skips: dict[str, list[str]] = field(default_factory=dict)
    ended: bool = False

    @property
    def skipped(self) -> int:
        """
        How many tests were skipped.
        """
        return sum(map(len, self.skips.values()))


def parse(log: str) -> Outcome:
    """
    Read the last report in trial's output.
    """
    outcome, last = Outcome(), Outcome()
    block: list[str] | None = None
    for line in log.splitlines():
        if line in (_DOUBLE, _SINGLE):
            if block:
                _take(outcome, block)
            block = [] if line == _DOUBLE else None
        elif block is not None:
            block.append(line)
        elif found := _SUMMARY.match(line):
            counts = dict(re.findall(r"(\w+)=(\d+)", found[1] or ""))
            outcome.passed = int(counts.get("successes", 0)) + int(counts.get("expectedFailures", 0))
            outcome.ended = True
            # What comes before may be the report of a trial that a test has run.
            outcome, last = Outcome(), outcome
    return last


def _take(outcome: Outcome, block: list[str]) -> None:
    # What is said, an empty line, and the tests of which it is said.
    kind, lines = block[0], block[1:]
    last = max((number for number, line in enumerate(lines) if not line), default=len(lines))
    text, tests = "\n".join(lines[:last]).strip("\n"), [line for line in lines[last:] if line]
    if kind in _RED:
        for test in tests:
            # The first one is why; others of one test are its consequences.
            outcome.troubles.setdefault(test, f"{kind}\n{text}")
    elif kind == "[SKIPPED]":
        outcome.skips.setdefault(text, []).extend(tests)


def knownSkips(path: Path) -> re.Pattern[str]:
    """
    Read a list of reasons: extended regular expressions, each for a whole reason.
    """
    lines = path.read_text().splitlines()
    return re.compile("|".join(f"(?:{line})" for line in lines if line and not line.startswith("#")))


# -- processes


def shell(script: str) -> list[str]:
    """
    @return: the command that runs a script.
    """
    return ["bash", "-c", script]


def execute(
    command: Sequence[str],
    seconds: float,
    folder: Path,
    environment: Mapping[str, str],
    say: Callable[[str], object],
) -> tuple[int | None, str]:
    """
    Run a program, with all that it starts, and say its output as it comes.

    @return: its status, or L{None} if its time was up, when all of it was ended; and its output.
    """
    end = time.monotonic() + seconds
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    output, parts = process.stdout, []
    assert output is not None

    def read(until: float, hasEnded: Callable[[], bool]) -> None:
        # What a process that it left behind keeps open has no end.
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while time.monotonic() < until:
                if selector.select(0.2):
                    part = os.read(output.fileno(), 1 << 16)
                    if not part:
                        return
                    parts.append(part)
                    say(part.decode(errors="replace"))
                elif hasEnded():
                    return

    try:
        read(end, lambda: process.poll() is not None)
        try:
            status: int | None = process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            status = None
            os.killpg(process.pid, signal.SIGTERM)
            read(time.monotonic() + END_SECONDS, lambda: process.poll() is not None)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.close()
    return status, b"".join(parts).decode(errors="replace")


def marked(folder: str) -> list[tuple[int, str]]:
    """
    @return: the processes that a run with this folder has started, each with its command line.
    """
    found, mark = [], f"{MARK}={folder}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found.append((int(entry.name), command.strip()))
            except OSError:
                pass  # It has ended, or is somebody else's.
    return found


def endAll(folder: str) -> list[str]:
    """
    Kill what a run has left behind.

    @return: the command lines.
    """
    found = []
    # What was just forked is not in the first list.
    while left := marked(folder):
        for process, command in left:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
            if command:
                found.append(command)
        time.sleep(0.05)
    return found


def removed(folder: Path) -> None:
    """
    Remove a folder, also where something in it may not be written.
    """
    subprocess.run(["chmod", "-R", "u+w", str(folder)], stderr=subprocess.DEVNULL)
    shutil.rmtree(folder, ignore_errors=True)


def clean(base: Path, say: Callable[[str], object]) -> None:
    """
    End and remove what runs that were cut short have left: their processes, then their folders.
    """
    for folder in base.glob(f"{PREFIX}*"):
        try:
            with open(folder / "lock", "a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for command in endAll(str(folder)):
                    say(f"a run that was cut short had left: {command[:150]}\n")
                removed(folder)
        except OSError:
            pass  # It goes on, is somebody else's, or has just been removed.


# -- a run


@dataclass
class Step:
    """
    A row of the table.

    @ivar shown: what of its output stands in the report.
    """

    name: str
    seconds: float = 0
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    shown: list[str] = field(default_factory=list)


@dataclass
class Trouble:
    """
    What failed.

    @ivar test: the test's id; empty for the step itself.
    @ivar text: what was said of it.
    @ivar again: runs the test alone: whether it passed.  L{None} for what is never an accident.
    """

    step: Step
    test: str
    text: str
    again: Callable[[], bool] | None = None

    @property
    def name(self) -> str:
        """
        The step's and the test's name.
        """
        return f"{self.step.name}: {self.test}" if self.test else self.step.name


def _words(step: Step) -> str:
    return f"{step.passed} passed, {step.failed} failed, {step.skipped} skipped ({step.seconds:.0f} s)"


def _ended(status: int | None, seconds: float) -> str:
    return f"hung: ended after {seconds:g} s" if status is None else f"status {status}"


def _listed(title: str, troubles: Sequence[Trouble], room: int) -> list[str]:
    """
    @return: at most C{room} lines about what failed, the end of what was said of each.
    """
    if not troubles:
        return []
    each = min(TROUBLE_LINES, max(0, (room - 2) // len(troubles) - 1))
    lines = [f"=== {title}"]
    for trouble in troubles:
        lines.append(f"--- {trouble.name}")
        text = trouble.text.splitlines()
        lines += text if len(text) <= each else text[len(text) - each :]
    return (
        lines if len(lines) <= room else [*lines[: room - 1], f"... and {len(lines) - room + 1} lines more"]
    )


class Run:
    """
    Steps, one after another, in a folder of their own.

    @ivar folder: where everything is, and is removed with.
    @ivar environment: of all steps.
    """

    def __init__(
        self,
        seconds: float,
        skips: Path = ROOT / ".ci" / "skips",
        write: Callable[[str], object] | None = None,
    ) -> None:
        """
        @param seconds: how long the whole run may take.
        @param skips: the list of known reasons.
        @param write: takes the output; by default it is printed.
        """
        self._write = write or self._print
        self._skips = knownSkips(skips)
        self._deadline = time.monotonic() + seconds
        clean(Path(tempfile.gettempdir()), self._write)
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock = open(self.folder / "lock", "a")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        wrong = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "TWISTED_IB_RUN_DIR", "TWISTED_IB_CAPTURE")
        self.environment = {name: value for name, value in os.environ.items() if name not in wrong}
        self.environment |= {
            # Limits that guard tests against hanging are longer: the machine may be busy.
            "TWISTED_IB_TEST_PATIENCE": "3",
            "NO_COLOR": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_NO_INPUT": "1",
            MARK: str(self.folder),
        }
        self.steps: list[Step] = []
        self.troubles: list[Trouble] = []
        self.unsteady: list[Trouble] = []

    @staticmethod
    def _print(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def say(self, line: str) -> None:
        """
        Print a line.
        """
        self._write(f"{line}\n")

    def copy(self, name: str) -> Path:
        """
        Copy what git would commit of the checkout, or all of it where there is no git.

        @return: the copy, in the run's folder.
        """
        target = self.folder / name
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        try:
            listed = subprocess.run(
                command, cwd=ROOT, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            ).stdout
        except (OSError, subprocess.CalledProcessError):
            shutil.copytree(ROOT, target, ignore=lambda path, names: {".venv"} & set(names), symlinks=True)
            return target
        target.mkdir()
        for path in map(os.fsdecode, filter(None, listed.split(b"\0"))):
            # A file that was deleted is listed until that is committed.
            if os.path.lexists(ROOT / path):
                (target / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / path, target / path, follow_symlinks=False)
        return target

    def _begin(self, name: str) -> Step:
        self.say(f"=== {name}")
        step = Step(name)
        self.steps.append(step)
        return step

    def _limited(
        self,
        command: Sequence[str],
        seconds: float,
        folder: Path,
        environment: Mapping[str, str],
        attempts: int,
    ) -> tuple[int | None, str]:
        for attempt in range(attempts):
            left = self._deadline - time.monotonic()
            if left <= 0:
                return None, "the whole run has no time left"
            status, log = execute(
                command, min(seconds, left), folder, {**self.environment, **environment}, self._write
            )
            for each in endAll(str(self.folder)):
                self.say(f"left behind: {each[:150]}")
            # The second attempt is for downloads: trial, once it has begun, needs none.
            if status in (0, None, SKIPPED) or re.search(r"^Running \d+ tests?\.", log, re.MULTILINE):
                break
            if attempt + 1 < attempts:
                self.say(f"status {status}: once more")
        return status, log

    def _failed(self, step: Step, test: str, text: str, again: Callable[[], bool] | None = None) -> None:
        step.failed += 1
        self.troubles.append(Trouble(step, test, text, again))

    def check(
        self,
        name: str,
        seconds: float,
        command: Sequence[str],
        folder: Path,
        environment: Mapping[str, str] = {},
        attempts: int = 1,
        shown: int = 0,
    ) -> bool:
        """
        A step that passes, fails or, with status L{SKIPPED}, is skipped as a whole.

        @param seconds: its limit; at its end everything that it has started is ended.
        @param attempts: 2 for downloads.
        @param shown: how many lines from the beginning of its output stand in the report, if failures leave
            room for them.

        @return: whether it passed.
        """
        step, began = self._begin(name), time.monotonic()
        status, log = self._limited(command, seconds, folder, environment, attempts)
        step.seconds = time.monotonic() - began
        step.shown = log.splitlines()[:shown]
        if status == 0:
            step.passed = 1
        elif status == SKIPPED:
            step.skipped = 1
        else:
            self._failed(step, "", f"{log.strip()}\n{_ended(status, seconds)}")
        self.say(f"--- {name}: {_words(step)}")
        return status == 0

    def tests(
        self,
        name: str,
        seconds: float,
        command: Sequence[str],
        folder: Path,
        python: Path,
        environment: Mapping[str, str] = {},
        attempts: int = 1,
        prefix: Sequence[str] = (),
    ) -> None:
        """
        A step that runs trial: its tests are counted, each skip needs a known reason, and what fails runs
        again at the end.

        @param python: the interpreter that has run the tests.
        @param prefix: what the command begins with, also the one of each test that runs again.
        """
        step, began = self._begin(name), time.monotonic()
        status, log = self._limited([*prefix, *command], seconds, folder, environment, attempts)
        step.seconds = time.monotonic() - began
        outcome = parse(log)
        step.passed, step.skipped = outcome.passed, outcome.skipped
        for test, text in outcome.troubles.items():
            again = None
            if _TEST.fullmatch(test):
                command = [*prefix, str(python), "-m", "twisted.trial", test]
                again = partial(self._passes, command, folder, environment)
            self._failed(step, test, text, again)
        for reason in outcome.skips:
            if not self._skips.fullmatch(reason.split("\n")[0]):
                self._failed(step, "", f"skipped for a reason that is not in .ci/skips: {reason}")
        nothing = not (outcome.passed or outcome.skips or outcome.troubles)
        if not outcome.ended or nothing or (status != 0 and not outcome.troubles):
            end = "\n".join(log.strip().splitlines()[-TROUBLE_LINES:])
            self._failed(step, "", f"{end}\n{_ended(status, seconds)}, without a report of failed tests")
        self.say(f"--- {name}: {_words(step)}, {_ended(status, seconds)}")

    def _passes(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> bool:
        status, log = self._limited(command, SECONDS_AGAIN, folder, environment, 1)
        return status == 0 and parse(log).passed > 0

    def broken(self, text: str) -> None:
        """
        The run itself was cut short, or has a fault.
        """
        step = Step("the run itself")
        self.steps.append(step)
        self._failed(step, "", text)

    def _runAgain(self) -> None:
        left = MOST_AGAIN
        for trouble in list(self.troubles):
            if trouble.again is None or not left:
                continue
            left -= 1
            for _ in range(TIMES_AGAIN):
                self.say(f"=== once more, alone: {trouble.name}")
                if trouble.again():
                    self.troubles.remove(trouble)
                    self.unsteady.append(trouble)
                    trouble.step.failed -= 1
                    trouble.step.passed += 1
                    break

    def finish(self) -> int:
        """
        Run again what failed, and print the report.

        @return: the exit status.
        """
        self._runAgain()
        if len(self.unsteady) > MOST_UNSTEADY:
            self.broken(f"{len(self.unsteady)} tests failed and then passed: more than {MOST_UNSTEADY}")
        return self.report()

    def report(self) -> int:
        """
        Print what failed, what was unsteady, what steps have to say, their table, and the counts.

        @return: the exit status.
        """
        passed, failed, skipped = (
            sum(getattr(step, each) for step in self.steps) for each in ("passed", "failed", "skipped")
        )
        table = [
            f"{step.name[:40]:40} {step.seconds:6.0f} {step.passed:6} {step.failed:6} {step.skipped:7}"
            for step in self.steps
        ]
        table.insert(0, f"{'step':40} {'s':>6} {'passed':>6} {'failed':>6} {'skipped':>7}")
        room = END_LINES - len(table) - 3
        # Each unsteady test has its line, whatever failed.
        lines = _listed("what failed", self.troubles, room - len(self.unsteady) - bool(self.unsteady))
        lines += _listed("unsteady: failed, then passed alone", self.unsteady, room - len(lines))
        for step in self.steps:
            if step.shown and room - len(lines) > 1:
                lines += [f"=== {step.name}", *step.shown][: room - len(lines)]
        for line in (*lines, "=== steps", *table, f"unsteady: {len(self.unsteady)}"):
            self.say(line)
        self.say(f"{passed} passed, {failed} failed, {skipped} skipped")
        return 1 if failed else 0

    def close(self) -> None:
        """
        End what still runs, and remove the folder.
        """
        endAll(str(self.folder))
        removed(self.folder)
        self._lock.close()


def main(seconds: float, steps: Callable[[Run], object]) -> int:
    """
    Make a run, which also ends with its report when it is cut short.

    @param seconds: how long it may take.

    @return: the exit status.
    """

    def interrupt(number: int, frame: object) -> None:
        raise SystemExit(f"ended by {signal.Signals(number).name}")

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    run = Run(seconds)
    try:
        try:
            steps(run)
            return run.finish()
        except BaseException:
            run.broken(traceback.format_exc())
            return run.report()
    finally:
        run.close()
