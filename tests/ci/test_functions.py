"""
Tests for the functions of C{.ci}: runs of toy tests, which fail in each way that there is.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.ci.checkout import functions
from tests.support.waiting import HANG_SECONDS, waitUntil

#: What trial says: two tests with one reason, one that fails twice, a module that does not import.
REPORT = """\
Running 8 tests.
toy
  ToyTests
    test_first ...                                                       [FAIL]
    test_second ...                                                        [OK]

===============================================================================
[SKIPPED]
no tshark

toy.ToyTests.test_third
toy.ToyTests.test_fourth
===============================================================================
[FAIL]
Traceback (most recent call last):
  File "toy.py", line 7, in test_first
    self.assertEqual("a", "b")
twisted.trial.unittest.FailTest: not equal:
a = 'a'

b = 'b'


toy.ToyTests.test_first
toy.ToyTests.test_fifth
===============================================================================
[ERROR]
Traceback (most recent call last):
Failure: twisted.trial.util.DirtyReactorAggregateError: Reactor was unclean.

toy.ToyTests.test_first
===============================================================================
[ERROR]
Traceback (most recent call last):
builtins.OSError: libnothing.so.1: cannot open shared object file

toy.test_other
-------------------------------------------------------------------------------
Ran 8 tests in 1.234s

FAILED (skips=2, failures=2, errors=2, successes=3)
"""


def toy(*bodies: str) -> str:
    """
    @param bodies: of tests.
    @return: a module that has them.
    """
    head = "import os, time\nfrom twisted.trial.unittest import SynchronousTestCase\n\n\n"
    head += "class ToyTests(SynchronousTestCase):\n"
    return head + "".join(
        f"    def test_{number}(self):\n{indent(dedent(body).strip(), ' ' * 8)}\n\n"
        for number, body in enumerate(bodies)
    )


#: A test that fails when it runs for the first time.
ONCE = """
path = self.id()
if not os.path.exists("../../" + path):
    open("../../" + path, "w").close()
    self.fail("once")
"""


class RunTestCase(SynchronousTestCase):
    """
    @ivar module: what is tried.
    """

    def setUp(self) -> None:
        """
        Have a folder for temporary files of this test's own.
        """
        self.module = functions()
        self.base = Path(self.mktemp()).absolute()
        self.base.mkdir()
        self.patch(self.module.tempfile, "tempdir", str(self.base))
        self.said: list[str] = []
        skips = self.base / "skips"
        skips.write_text("# What it needs.\nno [a-z]+\n")
        self.run_ = self.module.Run(2 * HANG_SECONDS, skips, self.said.append)
        self.addCleanup(self.run_.close)

    def step(self, source: str, seconds: float = HANG_SECONDS) -> None:
        """
        Make a step of a module of toy tests.
        """
        folder = self.base / f"toy{len(self.run_.steps)}"
        folder.mkdir()
        (folder / "toy.py").write_text(source)
        python = Path(sys.executable)
        self.run_.tests("toys", seconds, [str(python), "-m", "twisted.trial", "toy"], folder, python)

    def report(self) -> tuple[int, list[str]]:
        """
        @return: the run's status, and the lines of its report.
        """
        status = self.run_.finish()
        lines = "".join(self.said).splitlines()
        begins = [number for number, line in enumerate(lines) if line.startswith(("=== what", "=== unst"))]
        return status, lines[begins[0] if begins else lines.index("=== steps") :]


class RunTests(RunTestCase):
    """
    What makes a run red, and what does not.
    """

    def test_failure(self) -> None:
        """
        A test that always fails is a failure: it runs twice more; its name and traceback are in the report.
        """
        self.step(toy("self.assertEqual(1, 2)", "pass"))
        status, lines = self.report()
        self.assertEqual(status, 1)
        self.assertIn("--- toys: toy.ToyTests.test_0", lines)
        self.assertIn("twisted.trial.unittest.FailTest: 1 != 2", lines)
        self.assertEqual(lines[-2:], ["unsteady: 0", "1 passed, 1 failed, 0 skipped"])
        self.assertEqual("".join(self.said).count("=== once more, alone: toys: toy.ToyTests.test_0\n"), 2)

    def test_shown(self) -> None:
        """
        A check's first lines are in the report, if there is room.
        """
        program = [sys.executable, "-c", "print(*range(100), sep='\\n')"]
        self.assertTrue(self.run_.check("counts", HANG_SECONDS, program, self.base, shown=3))
        status, lines = self.report()
        self.assertEqual(status, 0)
        said = "".join(self.said).splitlines()
        self.assertEqual(said[-len(lines) - 4 : -len(lines)], ["=== counts", "0", "1", "2"])
        self.run_.check("many", HANG_SECONDS, program, self.base, shown=100)
        self.run_.check("much", HANG_SECONDS, program, self.base, shown=100)
        self.said.clear()
        self.report()
        report = "".join(self.said).splitlines()
        self.assertEqual(len(report), 150)
        self.assertEqual(report[-1], "3 passed, 0 failed, 0 skipped")

    def test_unsteady(self) -> None:
        """
        A test that fails once is unsteady: the run is green, and the first traceback is in the report.
        """
        self.step(toy(ONCE, "pass"))
        status, lines = self.report()
        self.assertEqual(status, 0)
        self.assertIn("=== unsteady: failed, then passed alone", lines)
        self.assertIn("--- toys: toy.ToyTests.test_0", lines)
        self.assertIn("twisted.trial.unittest.FailTest: once", lines)
        self.assertEqual(lines[-2:], ["unsteady: 1", "2 passed, 0 failed, 0 skipped"])
        self.assertRegex(lines[-3], r"^toys +\d+ +2 +0 +0$")

    def test_hang(self) -> None:
        """
        A test that hangs is ended at its step's limit, with what it has started, and is no accident.
        """
        self.step(toy("import subprocess", "time.sleep(10_000)"), 1)
        self.assertEqual(self.module.marked(str(self.run_.folder)), [])
        status, lines = self.report()
        self.assertEqual(status, 1)
        self.assertIn("hung: ended after 1 s, without a report of failed tests", lines)
        self.assertEqual(lines[-1], "0 passed, 1 failed, 0 skipped")

    def test_import(self) -> None:
        """
        A module that loads a library when it is imported, where there is none, is no accident.
        """
        self.step("import ctypes\n\nctypes.CDLL('libnothing.so.1')\n")
        status, lines = self.report()
        self.assertEqual(status, 1)
        self.assertNotIn("once more", "".join(self.said))
        self.assertIn("libnothing.so.1", "\n".join(lines))
        self.assertEqual(lines[-1], "0 passed, 1 failed, 0 skipped")

    def test_skips(self) -> None:
        """
        A skip whose reason is in the list is counted; another one is a failure, as is a step without tests.
        """
        self.step(toy("self.skipTest('no tshark')", "self.skipTest('no gcc')"))
        self.assertEqual(self.run_.troubles, [])
        self.step(toy("self.skipTest('no tshark, it seems')", "pass"))
        self.step("")
        status, lines = self.report()
        self.assertEqual(status, 1)
        self.assertIn("skipped for a reason that is not in .ci/skips: no tshark, it seems", lines)
        self.assertEqual(lines[-1], "1 passed, 2 failed, 3 skipped")

    def test_checks(self) -> None:
        """
        A check passes, fails, is skipped with status 77, or hangs; a download is tried a second time.
        """
        shell = self.module.shell
        self.assertTrue(self.run_.check("good", HANG_SECONDS, shell("echo good"), self.base))
        self.assertFalse(self.run_.check("bad", HANG_SECONDS, shell("echo why; exit 3"), self.base))
        self.assertFalse(self.run_.check("none", HANG_SECONDS, shell("exit 77"), self.base))
        self.assertFalse(self.run_.check("long", 0.5, shell("sleep 10000"), self.base))
        fetch = shell("test -e fetched || { touch fetched; exit 1; }")
        self.assertTrue(self.run_.check("fetch", HANG_SECONDS, fetch, self.base, attempts=2))
        (self.base / "fetched").unlink()
        self.assertFalse(self.run_.check("fetch", HANG_SECONDS, fetch, self.base))
        status, lines = self.report()
        self.assertEqual(status, 1)
        self.assertEqual(lines[1:4], ["--- bad", "why", "status 3"])
        self.assertIn("hung: ended after 0.5 s", lines)
        self.assertEqual(lines[-1], "2 passed, 3 failed, 1 skipped")

    def test_leftBehind(self) -> None:
        """
        What a step leaves behind is said and ended, and does not keep the next one waiting.
        """
        shell = self.module.shell
        self.assertTrue(self.run_.check("leaves", HANG_SECONDS, shell("setsid sleep 10000 &"), self.base))
        self.assertIn("left behind: sleep 10000\n", self.said)
        self.assertEqual(self.module.marked(str(self.run_.folder)), [])

    def test_noTime(self) -> None:
        """
        A step for which the whole run has no time left fails.
        """
        run = self.module.Run(0, self.base / "skips", self.said.append)
        self.addCleanup(run.close)
        self.assertFalse(run.check("late", HANG_SECONDS, self.module.shell("true"), self.base))
        self.assertEqual(run.finish(), 1)
        self.assertIn("the whole run has no time left\n", self.said)


class ParseTests(SynchronousTestCase):
    """
    What trial says.
    """

    def test_report(self) -> None:
        """
        Tests, tracebacks with empty lines, reasons and counts are found; of several errors the first.
        """
        outcome = functions().parse(REPORT)
        self.assertTrue(outcome.ended)
        self.assertEqual(outcome.passed, 3)
        self.assertEqual(
            outcome.skips, {"no tshark": ["toy.ToyTests.test_third", "toy.ToyTests.test_fourth"]}
        )
        first = outcome.troubles["toy.ToyTests.test_first"]
        self.assertEqual(first, outcome.troubles["toy.ToyTests.test_fifth"])
        self.assertTrue(first.startswith("[FAIL]\nTraceback") and first.endswith("\nb = 'b'"), first)
        self.assertIn("libnothing.so.1", outcome.troubles["toy.test_other"])
        self.assertEqual(len(outcome.troubles), 3)

    def test_cut(self) -> None:
        """
        A report that is cut short is none; of two the last one counts.
        """
        parse = functions().parse
        for end in (0, REPORT.index("[SKIPPED]"), REPORT.index("FAILED (")):
            self.assertFalse(parse(REPORT[:end]).ended)
        again = parse(
            REPORT + "Running 1 tests.\n" + "-" * 79 + "\nRan 1 tests in 0.1s\n\nPASSED (successes=1)\n"
        )
        self.assertEqual((again.passed, again.troubles, again.skips, again.ended), (1, {}, {}, True))

    def test_skips(self) -> None:
        """
        Every reason in the list of the checkout is a pattern, and none matches everything.
        """
        module = functions()
        known = module.knownSkips(module.ROOT / ".ci" / "skips")
        self.assertFalse(known.fullmatch(""))
        self.assertFalse(known.fullmatch("I do not feel like it"))
        self.assertTrue(known.fullmatch("no tshark"))


#: A run that does not end; it says where it is.
ENDLESS = """
import runpy, sys, tempfile
tempfile.tempdir = sys.argv[2]
module = runpy.run_path(sys.argv[1])
run = module["Run"](1000)
print(run.folder, flush=True)
run.check("endless", 1000, module["shell"]("setsid sleep 10000 & sleep 10000"), run.folder)
"""


class ShortTests(RunTestCase):
    """
    Runs that are cut short.
    """

    def endless(self) -> tuple[Any, str]:
        """
        Begin a run that does not end.

        @return: its process and its folder.
        """
        command = [sys.executable, "-c", ENDLESS, self.module.__file__, str(self.base)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.addCleanup(process.stdout.close)
        folder = process.stdout.readline().strip()
        self.addCleanup(self.module.endAll, folder)
        waitUntil(lambda: len(self.module.marked(folder)) == 3)
        return process, folder

    def test_killed(self) -> None:
        """
        The next run ends and removes what one has left that was killed; a run that goes on keeps all.
        """
        (killed, folder), (_, other) = self.endless(), self.endless()
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        self.assertEqual(len(self.module.marked(folder)), 3)
        self.module.clean(self.base, self.said.append)
        self.assertEqual((self.module.marked(folder), os.path.exists(folder)), ([], False))
        self.assertEqual((len(self.module.marked(other)), os.path.exists(other)), (3, True))
        self.assertIn("a run that was cut short had left: sleep 10000\n", self.said)

    def test_terminated(self) -> None:
        """
        A run that SIGTERM ends makes its report, which is red, and leaves nothing.
        """
        program = ENDLESS.replace('run = module["Run"](1000)\n', "def steps(run):\n")
        program = program.replace("print(run", "    print(run").replace("run.check(", "    run.check(", 1)
        program += 'sys.exit(module["main"](1000, steps))\n'
        command = [sys.executable, "-c", program, self.module.__file__, str(self.base)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            folder = process.stdout.readline().strip()
            waitUntil(lambda: len(self.module.marked(folder)) == 3)
            process.send_signal(signal.SIGTERM)
            said = process.stdout.read()
        self.assertEqual(process.returncode, 1, said)
        self.assertIn("SystemExit: ended by SIGTERM", said)
        self.assertTrue(re.search(r"^0 passed, 1 failed, 0 skipped\n\Z", said, re.MULTILINE), said)
        self.assertFalse(os.path.exists(folder))
        # One that SIGKILL has reached may still be there for a moment.
        waitUntil(lambda: not self.module.marked(folder))
