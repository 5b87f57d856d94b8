"""
C{ib-perf compare}, with processes that measure.
"""

from __future__ import annotations

import json
import os
from xml.etree.ElementTree import parse

from tests.support.waiting import HANG_SECONDS
from tests.tools.compare.test_comparison import ProcessTestCase


class MeasuredTests(ProcessTestCase):
    """
    What it says and draws.
    """

    def test_measures(self) -> None:
        """
        One short round of a subject of each kind, and of one that cannot work here: figures and a picture,
        and an error.
        """
        self.environment["TWISTED_IB_RUN_DIR"] = "/dev/null"
        picture = os.path.abspath(self.mktemp())
        options = ["--subjects", "tcp-nodelay,switched,asyncio,sdp", "--rounds", "1", "--seconds", "0.001"]
        out, err = self.start(*options, "--json", "--plot", picture).communicate(timeout=HANG_SECONDS)
        self.assertTrue(err.startswith("ib-perf: sdp failed: "), err)
        self.assertEqual(err.count("\n"), 1)
        found = json.loads(out)
        self.assertEqual(list(found["subjects"]), ["tcp-nodelay", "switched", "asyncio"])
        self.assertEqual([row["measure"] for row in found["results"]], ["latency", "throughput"])
        for row in found["results"]:
            for figures in row["subjects"].values():
                self.assertGreater(figures["median"], 0)
        self.assertEqual(parse(picture).getroot().tag, "{http://www.w3.org/2000/svg}svg")
