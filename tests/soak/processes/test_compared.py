"""
The comparison of C{benchmarks} with all that it compares.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from twisted.trial.unittest import SynchronousTestCase

from benchmarks import sockets
from benchmarks.pairs import ROOT, environmentFor
from tests import test_benchmarks
from tests.support.waiting import HANG_SECONDS


class ComparisonTests(test_benchmarks.ProgramTests):
    """
    The programs, with more subjects and rows.
    """

    subjects = (
        "tcp",
        "sdp-ib",
        "blocking",
        "blocking-tcp",
        "blocking-sdp",
        "asyncio",
        "multiprocessing",
        "zmq",
        "iceoryx2",
    )
    subjects += ("pipe", "queues", "queue", "queues-queue", "zmq-pair", "iceoryx2-pair")
    rows = ("rt64", "stream64k", "echo100", "connects", "mp64", "mp1m", "sockets64")

    def test_steps(self):
        """
        Every step still is where the program looks for it.
        """
        path = os.path.abspath(self.mktemp())
        ended = subprocess.run(
            [sys.executable, "-m", "benchmarks.steps", "--runs", "2", "--json", path],
            cwd=ROOT,
            env=environmentFor(),
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
        )
        self.assertEqual(ended.returncode, 0, ended.stderr)
        with open(path) as file:
            tables = json.load(file)["tables"]
        self.assertEqual(
            [each["title"].partition(",")[0] for each in tables],
            [
                "Send 64 B",
                "Receive 64 B",
                "One record of 64 KiB",
                "The bound: a bare ring between two processes",
                "A bytes object",
                "The copies of a 64 KiB record",
                "One connection",
                "Verbs on lo0",
                "Verbs on shm0",
                "Packets over UDP",
                *("Packets over UDP", "One MiB in packets of 60 KiB"),
                *("Packets over UDP", "One MiB in packets of 4 KiB"),
            ],
        )
        for table in tables:
            self.assertGreater(len(table["steps"]), 4)


class SocketsTests(SynchronousTestCase):
    """
    Round trips of two processes.
    """

    def test_loops(self) -> None:
        """
        A loop has them over both providers, or the program says that SDP has not carried them.
        """
        command = [sys.executable, "-m", "benchmarks.sockets", "--placement", "free", "--face"]
        said = subprocess.run(
            [*command, *sockets.FACES, "--rounds", "1", "--trips", "3", "--warming", "1"],
            capture_output=True,
            check=True,
            cwd=ROOT,
            text=True,
            timeout=2 * HANG_SECONDS,
        )
        rows = [line.split()[:3] for line in said.stdout.splitlines()[1:]]
        self.assertEqual(rows, [[face, "free", "0.0"] for face in sockets.FACES])
