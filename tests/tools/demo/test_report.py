"""
Tests for what C{ib-demo} prints.
"""

from __future__ import annotations

import io
import sys
from importlib import import_module

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.tools.demo.probe import Fetched, RoundTripTimes
from twisted_ib.tools.demo.report import Row, makeTable, progressBar


class TableTests(SynchronousTestCase):
    """
    The table.
    """

    def test_columns(self) -> None:
        """
        Columns are aligned under their titles, in 80 columns also with long figures.
        """
        fetched = Fetched({"a": bytes(1000)}, 0.001)
        rows = [Row("SDP", fetched, RoundTripTimes(5e-6, 12.34e-6), "shm0", "2", "1,234")]
        rows.append(Row("TCP NODELAY", fetched, RoundTripTimes(0.0012345, 0.0098765)))
        first, second, sdp, tcp = makeTable(rows).split("\n")
        self.assertEqual(first.split(), ["queue"])
        self.assertEqual(second.split()[:3], ["device", "pairs", "bytes"])
        self.assertTrue(sdp.startswith("SDP           shm0     2 1,000    1,234     1 MB/s"), sdp)
        self.assertTrue(tcp.endswith(" 1,234.5 us 9,876.5 us"), tcp)
        self.assertEqual({len(line) for line in (first, second, sdp, tcp)}, {len(tcp)})
        self.assertLessEqual(len(tcp), 80)


class ProgressTests(SynchronousTestCase):
    """
    The progress bar.
    """

    def setUp(self) -> None:
        """
        Have a terminal.
        """
        self.stream = io.StringIO()
        self.stream.isatty = lambda: True  # type: ignore[method-assign]
        self.patch(sys, "stdout", self.stream)

    def show(self) -> str:
        """
        @return: what is seen of a transfer of 4 bytes.
        """
        with progressBar(Clock(), "SDP", 4) as advance:
            advance(4)
        return self.stream.getvalue()

    def test_terminal(self) -> None:
        """
        On a terminal it says what is under way.
        """
        self.assertIn("SDP", self.show())

    def test_noRich(self) -> None:
        """
        Without rich there is none.
        """
        self.addCleanup(sys.modules.__setitem__, "rich", import_module("rich"))
        sys.modules["rich"] = None  # type: ignore[assignment]
        self.assertEqual(self.show(), "")
