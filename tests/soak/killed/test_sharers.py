"""
Processes that share an address, see L{tests.soak.killed.sharers}.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.soak.killed.sharers import lacking
from tests.support.waiting import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[3]
PROCESSES, ROUNDS, KILLS = 16, 50, 20


class SharersTests(SynchronousTestCase):
    """
    L{PROCESSES} on each of two hosts, as nobody.
    """

    timeout = 10 * HANG_SECONDS

    def test_kills(self) -> None:
        """
        All rounds are done, and those that are not killed lose nothing.
        """
        if trouble := lacking():
            raise SkipTest(f"there may be no namespaces here: {trouble}")
        words = "--processes", str(PROCESSES), "--rounds", str(ROUNDS), "--kills", str(KILLS)
        command = sys.executable, "-m", "tests.soak.killed.sharers", *words
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=self.timeout)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        found = json.loads(ran.stdout)
        self.assertEqual(found["rounds"], 2 * PROCESSES * ROUNDS)
        self.assertEqual((found["kills"], found["lost by others"], found["told late"]), (KILLS, [], 0))
