"""
Tests for L{twisted_ib.tools.progress}.
"""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stdout
from importlib import import_module

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.tools.progress import Progress


class ProgressTests(SynchronousTestCase):
    """
    The bar.
    """

    def test_noTerminal(self) -> None:
        """
        Without a terminal the bar is nothing.
        """
        stream = io.StringIO()
        progress = Progress(stream, 2)
        progress.next("one")
        progress.show(lambda: 1 / 0)
        progress.close()
        self.assertEqual(stream.getvalue(), "")

    def test_noRich(self) -> None:
        """
        On a terminal without rich there is a plain bar, in one line that is blank in the end.
        """
        self.addCleanup(sys.modules.__setitem__, "rich", import_module("rich"))
        sys.modules["rich"] = None  # type: ignore[assignment]
        stream = io.StringIO()
        stream.isatty = lambda: True  # type: ignore[method-assign]
        progress = Progress(stream, 2)
        progress.next("one")
        progress.show(lambda: 0.5)
        progress.next("another")
        progress.close()
        drawn = stream.getvalue().split("\r")
        self.assertEqual(
            [each.rstrip() for each in drawn],
            [
                "",
                f"| one [{'.' * 24}]",
                f"/ one [{'#' * 6}{'.' * 18}]",
                f"- another [{'#' * 12}{'.' * 12}]",
                "",
                "",
            ],
        )
        self.assertEqual(len(drawn[-2]), len(drawn[-3]))

    def test_terminal(self) -> None:
        """
        On a terminal it says what is measured, and gives the terminal back.
        """
        stream = io.StringIO()
        stream.isatty = lambda: True  # type: ignore[method-assign]
        self.patch(sys, "stdout", sys.stdout)
        with redirect_stdout(stream):
            progress = Progress(stream, 2)
            progress.next("64 bytes, latency")
            progress.show(lambda: 2.0)
            progress.close()
            progress.close()
            self.assertIdentical(sys.stdout, stream)
        self.assertIn("64 bytes, latency", stream.getvalue())
