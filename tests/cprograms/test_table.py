"""
The table of programs tried, as docs/c-programs.md has it.
"""

from __future__ import annotations

from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from tests.cprograms.table import ROWS, table, whole
from tests.documentation.pages import ROOT


class TableTests(SynchronousTestCase):
    """
    L{tests.cprograms.table}.
    """

    def test_written(self) -> None:
        """
        The page has the table of the command, where all have passed.
        """
        self.assertIn("\n".join(["", *whole(), ""]), (ROOT / "docs" / "c-programs.md").read_text())

    def test_packages(self) -> None:
        """
        Each package has one line, by which the command chooses.
        """
        packages = [row.package for row in ROWS]
        self.assertEqual(sorted(set(packages)), sorted(packages))

    def test_figures(self) -> None:
        """
        A line says how many have passed, and which version was there.
        """
        row = ROWS[0]
        self.assertEqual(
            row.line("1.2", (7, 0, 0)),
            f"| {row.programs} | `{row.package}` 1.2 | 7 of 8 | 0 of 8 | |",
        )

    def test_lacking(self) -> None:
        """
        A program that is not there is told, and counts as one that has failed.
        """
        row = evolve(ROWS[0], package="twisted-ib-no-such-package")
        said = StringIO()
        with redirect_stderr(said), redirect_stdout(StringIO()):
            failed = table([row])
        self.assertEqual(failed, 1)
        self.assertEqual(said.getvalue(), f"{row.programs}: no {row.package} is installed\n")
