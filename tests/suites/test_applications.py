"""
Tests for the measurement of applications, with programs that need nothing but the standard library.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.documentation.pages import ROOT
from tests.suites.applications.clients import CLIENTS
from tests.suites.applications.measuring import SDP, TCP, ApplicationError, Programs, Result, carried, line
from tests.suites.applications.pairs import PAIRS, Pair
from tests.suites.applications.servers import SERVERS


class TableTests(SynchronousTestCase):
    """
    The pairs, and the rows.
    """

    def test_pairs(self) -> None:
        """
        Each pair has its programs, and each program a pair.
        """
        self.assertEqual({pair.server for pair in PAIRS.values()}, set(SERVERS))
        self.assertEqual({pair.client for pair in PAIRS.values()}, set(CLIENTS))

    def test_line(self) -> None:
        """
        A row has the medians, and the quotients of SDP and TCP.
        """
        tcp = [Result(rate, 50.0, "") for rate in (90.0, 100.0, 2000.0)]
        sdp = [Result(rate, 75.0, way) for rate, way in ((120.0, "sdp 1"), (150.0, "sdp 1"), (1.0, "sdp 0"))]
        words = line("pair", {TCP: tcp, SDP: sdp}).split()
        self.assertEqual(words[:7], ["pair", "100", "120", "1.20x", "50", "75", "1.50x"])
        self.assertEqual(" ".join(words[7:]), "sdp 0; sdp 1")

    def test_carried(self) -> None:
        """
        The carrier is what the client's summary says, amid what else it has written.
        """
        summary = '{"pid": 7, "connections": 3, "sdp": 2, "tcp": 1, "reasons": [{"kind": "remote"}]}'
        self.assertEqual(carried(f"a warning\n{summary}\n"), "sdp 2, tcp 1 (remote)")
        self.assertEqual(carried("a warning\n"), "nobody says what")


class MeasuringTests(SynchronousTestCase):
    """
    Programs of this interpreter.
    """

    def setUp(self) -> None:
        """
        A folder of this test's own, and this project where the programs find it.
        """
        folder = Path(self.mktemp()).resolve()
        folder.mkdir()
        search = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
        self.programs = Programs(Path(sys.prefix), folder)
        # Neither program is one in C: in an empty cache ib-run would build the libraries for those.
        self.programs._environment.update(PYTHONPATH=search, XDG_CACHE_HOME=os.devnull)

    def test_standard(self) -> None:
        """
        A pair of the standard library, both ways: over SDP its client's connections are counted.
        """
        for way in (TCP, SDP):
            result = self.programs.measure(PAIRS["http.server + urllib"], way, 0.05)
            self.assertGreater(result.rate, 0)
            self.assertTrue(result.carried.startswith("sdp ") if way == SDP else not result.carried, result)

    def test_failed(self) -> None:
        """
        A program that fails is named, with what it says.
        """
        error = self.assertRaises(
            ApplicationError, self.programs.measure, Pair("standard", "nobody"), TCP, 0.05
        )
        self.assertIn("nobody", str(error))
        with self.assertRaises(ApplicationError):
            self.programs.measure(Pair("nobody", "urllib"), TCP, 0.05)
