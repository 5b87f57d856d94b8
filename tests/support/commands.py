"""
The commands of the package, run as a user runs them: as processes.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.processes.programs.nursery import Forked
from tests.support.waiting import HANG_SECONDS, waitUntil

#: Started from anywhere, a program that begins with it runs the code of this checkout.
PATH = f"import sys; sys.path.insert(0, {str(Path(__file__).resolve().parents[2])!r}); "


#: What a fork of the nursery can be given.
_FORKED = {"cwd", "env", "stdin", "stderr"}


def programOf(module: str) -> str:
    """
    @param module: of C{twisted_ib.tools}, the command's.

    @return: a program that is the command.
    """
    return PATH + f"from twisted_ib.tools.{module} import main; sys.exit(main())"


def interpreter(case: SynchronousTestCase, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """
    @param case: the test at whose end the process is killed, if it still runs.
    @param arguments: of Python's command line.
    @param options: more for C{Popen}.

    @return: a process of Python whose output can be read as text.
    """
    return _owned(case, subprocess.Popen, arguments, options)


def running(case: SynchronousTestCase, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """
    @return: the same, where neither its start nor the interpreter's end is what is tested: it is forked off
        where that will do.
    """
    isForked = (arguments[0] in ("-c", "-m") or arguments[0][0] != "-") and options.keys() <= _FORKED
    return _owned(case, Forked if isForked else subprocess.Popen, arguments, options)


def _owned(
    case: SynchronousTestCase,
    make: type[subprocess.Popen[str]],
    arguments: Sequence[str],
    options: dict[str, Any],
) -> subprocess.Popen[str]:
    process = make([sys.executable, *arguments], stdout=subprocess.PIPE, text=True, **options)

    def end() -> None:
        with process:
            process.kill()

    case.addCleanup(end)
    return process


def begun(
    case: SynchronousTestCase, environment: dict[str, str], program: str, *arguments: str
) -> subprocess.Popen[str]:
    """
    @param case: the test at whose end the process ends.
    @param program: what it runs.
    @param arguments: its command line.

    @return: a process whose output and errors can be read.
    """
    pipes = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return running(case, "-c", program, *arguments, cwd="/", env=environment, **pipes)


def stop(pid: int) -> None:
    """
    Stop a process, and wait until it is: SIGSTOP is pending until its main thread runs, and until then
    another of its threads may answer.
    """
    os.kill(pid, signal.SIGSTOP)
    waitUntil(lambda: all(_stateOf(each) == "T" for each in Path(f"/proc/{pid}/task").iterdir()))


def _stateOf(task: Path) -> str:
    # proc(5): the state is behind the name, which is in parentheses and may hold any character.
    return Path(task, "stat").read_text().rpartition(")")[2].split()[0]


def refusal(case: SynchronousTestCase, main: Callable[[Sequence[str]], object], *arguments: str) -> str:
    """
    @param main: what takes a command line.

    @return: the one line with which it refuses one.
    """
    said = io.StringIO()
    with redirect_stderr(said):
        failure = case.assertRaises(SystemExit, main, arguments)
    case.assertEqual(failure.code, 2)
    case.assertEqual(said.getvalue().count("\n"), 1)
    return said.getvalue()


class CommandTestCase(SynchronousTestCase):
    """
    A command, and processes that meet where no other process does.

    @cvar program: the command's.
    @ivar directory: where they meet.
    @ivar environment: theirs.
    """

    program: str

    def setUp(self) -> None:
        """
        Let the processes of a test meet where no other process does.
        """
        self.directory = Path(self.mktemp()).resolve()
        self.directory.mkdir(mode=0o700)
        self.environment = dict(os.environ, TWISTED_IB_RUN_DIR=str(self.directory))

    def ended(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """
        Run the command.

        @param arguments: its command line.

        @return: how it ended.
        """
        process = begun(self, self.environment, self.program, *arguments)
        said = process.communicate(timeout=HANG_SECONDS)
        return subprocess.CompletedProcess(process.args, process.returncode, *said)

    def said(self, *arguments: str) -> str:
        """
        Run the command, which has to succeed.

        @param arguments: its command line.

        @return: what it prints.
        """
        result = self.ended(*arguments)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return result.stdout

    def start(self, program: str, *arguments: str) -> subprocess.Popen[str]:
        """
        @param program: another one, which says when it is ready.
        @param arguments: its command line.

        @return: its process, once it is ready.
        """
        process = running(self, "-c", program, *arguments, cwd="/", env=self.environment)
        assert process.stdout is not None
        self.assertEqual(process.stdout.readline(), "ready\n")
        return process
