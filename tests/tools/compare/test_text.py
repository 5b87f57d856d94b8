"""
Tests for L{twisted_ib.tools.compare.text}.
"""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stdout
from importlib import import_module

from rich.console import Console
from twisted.trial.unittest import SynchronousTestCase

from tests.tools.compare.made import RESULTS
from twisted_ib.tools.compare.text import COLUMNS, bar, lines, show

EXPECTED = """\
Round trip of 64 bytes, us (less is better), each end on a CPU of its own
  2  TCP, NODELAY  ########################     60  50-70          1.0x
  1  sdp:          ##                            6  5-900           10x

Stream of writes of 64 KiB, MB/s (more is better), both ends on one CPU
  1  TCP, NODELAY  ########################  1,100  1,000-1,200    1.0x

Columns: place (= for those that the rounds do not tell apart), median, lowest
and highest of 5 rounds, and how many times as good as TCP, NODELAY.
"""


class BarTests(SynchronousTestCase):
    """
    Bars.
    """

    def test_eighths(self) -> None:
        """
        A bar is exact to an eighth of a character, and never nothing.
        """
        drawn = [bar(value, 32.0, 4) for value in (32.0, 16.0, 9.0, 1.0, 0.01)]
        self.assertEqual(drawn, ["████", "██  ", "█▏  ", "▏   ", "▏   "])

    def test_ASCII(self) -> None:
        """
        Where there are no such characters there are others.
        """
        self.assertEqual([bar(value, 4.0, 4, True) for value in (4.0, 2.4, 0.01)], ["####", "##  ", "#   "])


class Stream(io.TextIOWrapper):
    """
    Standard output.
    """

    def __init__(self, encoding: str, isTerminal: bool) -> None:
        super().__init__(io.BytesIO(), encoding=encoding)
        self.isTerminal = isTerminal

    def isatty(self) -> bool:
        """
        @return: whether it is a terminal.
        """
        return self.isTerminal

    def text(self) -> str:
        """
        @return: the text that was written.
        """
        self.flush()
        buffer = self.buffer
        assert isinstance(buffer, io.BytesIO)
        return buffer.getvalue().decode(self.encoding)


class ShowTests(SynchronousTestCase):
    """
    The whole text.
    """

    def shown(self, encoding: str = "utf-8", isTerminal: bool = False) -> str:
        """
        @return: the results as they are printed.
        """
        self.patch(sys, "stdout", sys.stdout)
        stream = Stream(encoding, isTerminal)
        with redirect_stdout(stream):
            show(RESULTS)
        return stream.text()

    def test_plain(self) -> None:
        """
        Without a terminal there are no escapes, and without UTF-8 no blocks; lines fit 80 columns.
        """
        said = self.shown("ascii")
        self.assertEqual(said[: len(EXPECTED)], EXPECTED)
        self.assertIn("Left out: uvloop, as uvloop is not installed.\n", said)
        self.assertIn("CPython <3> & more, Twisted 26.10.0,", said)
        self.assertTrue(said.endswith("; load average 0.1 before\n"), said)
        for line in said.splitlines():
            self.assertLessEqual(len(line), COLUMNS)
        self.assertEqual("".join(f"{line}\n" for line in lines(RESULTS, True)), said)
        self.assertNotIn("\x1b", self.shown())

    def test_terminal(self) -> None:
        """
        A terminal shows colours, of ours and of others.
        """
        self.patch(Console, "_environ", {"TERM": "xterm-256color", "COLUMNS": "80"})
        said = self.shown(isTerminal=True)
        self.assertIn("\x1b[34m████████████████████████\x1b[0m", said)
        self.assertIn("\x1b[32m██▍", said)

    def test_noRich(self) -> None:
        """
        Without rich a terminal shows plain text.
        """
        self.addCleanup(sys.modules.__setitem__, "rich", import_module("rich"))
        sys.modules["rich"] = None  # type: ignore[assignment]
        said = self.shown(isTerminal=True)
        self.assertIn("██", said)
        self.assertNotIn("\x1b", said)
