"""
Tests for L{tests.steady}.
"""

from __future__ import annotations

import io
import os
from contextlib import redirect_stdout
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests import steady
from tests.ci.checkout import functions
from tests.support.waiting import waitUntil

TOYS = """
import os
from twisted.trial.unittest import SynchronousTestCase


class ToyTests(SynchronousTestCase):
    def test_green(self):
        pass

    def test_red(self):
        self.fail("always")

    def test_second(self):
        path = os.environ["SEEN"]
        if os.path.exists(path):
            self.fail("the second time")
        open(path, "w").close()
"""
HANGS = "import time\n\ntime.sleep(10_000)\n"


class SteadyTests(SynchronousTestCase):
    """
    Toy tests that are, or are not, always green.
    """

    def setUp(self) -> None:
        """
        Have a folder of toys.
        """
        functions()
        self.folder = Path(self.mktemp()).absolute()
        self.folder.mkdir()
        (self.folder / "toys.py").write_text(TOYS)
        (self.folder / "hangs.py").write_text(HANGS)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        self.patch(os, "environ", {**os.environ, "SEEN": str(self.folder / "seen")})

    def steady(self, *arguments: str) -> tuple[int, list[str]]:
        """
        @return: the status, and the lines.
        """
        out = io.StringIO()
        with redirect_stdout(out):
            status = steady.main(["--jobs", "1", *arguments])
        return status, out.getvalue().splitlines()

    def test_green(self) -> None:
        """
        Tests that are green each time.
        """
        status, lines = self.steady("--times", "2", "toys.ToyTests.test_green")
        self.assertEqual((status, lines[-1]), (0, "1 tests, 2 times, load 0: 0 not steady"))
        self.assertRegex(lines[1], r"^run 2: 1 passed, 0 failed, 0 skipped \(\d+ s\)$")

    def test_red(self) -> None:
        """
        Tests that fail, each time or once, are listed, each with its first traceback.
        """
        status, lines = self.steady("--times", "2", "toys")
        self.assertEqual((status, lines[-1]), (1, "3 tests, 2 times, load 0: 2 not steady"))
        self.assertIn("toys.ToyTests.test_red: failed 2 of 2", lines)
        self.assertIn("toys.ToyTests.test_second: failed 1 of 2", lines)
        self.assertIn("twisted.trial.unittest.FailTest: the second time", lines)

    def test_hang(self) -> None:
        """
        A run that does not end is ended, and said, as is one without any test, or with a wrong name.
        """
        status, lines = self.steady("--times", "1", "--seconds", "2", "hangs")
        self.assertEqual(status, 1)
        self.assertIn("run 1 hung, without a report of failed tests: failed 1 of 1", lines)
        status, lines = self.steady("--times", "1", "nothing")
        self.assertEqual(status, 1)
        self.assertIn("nothing: failed 1 of 1", lines)

    def test_busy(self) -> None:
        """
        There are busy processes meanwhile, and none afterwards.
        """

        def children() -> list[str]:
            own = str(os.getpid())
            found = []
            for entry in Path("/proc").glob("[0-9]*"):
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    if fields[1] == own and b"range(100_000)" in (entry / "cmdline").read_bytes():
                        found.append(entry.name)
                except OSError:
                    pass
            return found

        with steady.busy(2):
            waitUntil(lambda: len(children()) == 2)
        self.assertEqual(children(), [])
