"""
Very many connects at once over C{shm0}, on a machine with too much to do.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.support.commands import running
from tests.support.rundirectory import ownRunDirectory

ROOT = Path(__file__).resolve().parent.parent.parent
CONNECTS, ROUNDS = 5000, 3
#: Programs that only use up the processors.
BUSY = 20
PROCESSES, SERVERS = 150, 10


class OverloadTests(SynchronousTestCase):
    """
    More than the processors can do.
    """

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """
        Start a process.
        """
        environment = dict(os.environ, PYTHONPATH=str(ROOT))
        return running(self, *arguments, cwd=ROOT, env=environment, stdin=subprocess.PIPE)

    def said(self, process: subprocess.Popen[str]) -> Any:
        """
        What a process prints next.
        """
        assert process.stdout is not None
        return json.loads(process.stdout.readline())

    def asked(self, process: subprocess.Popen[str]) -> dict[str, int]:
        """
        What a process has now.
        """
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        found: dict[str, int] = self.said(process)
        return found

    def test_crowd(self) -> None:
        """
        L{PROCESSES} processes connect to L{SERVERS} servers each, and every connect succeeds (issue 16, point
        20).
        """
        ownRunDirectory(self)
        servers = [self.start("-m", "tests.soak.overload", "server") for _ in range(SERVERS)]
        ports = [str(self.said(server)) for server in servers]
        crowd = self.start("-m", "tests.soak.overload", "crowd", str(PROCESSES), *ports)
        self.assertEqual(self.said(crowd), {"connected": PROCESSES * SERVERS})

    def test_overload(self) -> None:
        """
        Beside L{BUSY} busy processes every connect succeeds, both ends have the same connections, no message
        is dropped, and nothing is repeated but what the listener had no room for (issue 16, point 17).
        """
        ownRunDirectory(self)
        for _ in range(BUSY):
            self.start("-c", "while True: pass")
        for _ in range(ROUNDS):
            server = self.start("-m", "tests.soak.overload", "server")
            client = self.start("-m", "tests.soak.overload", "client", str(self.said(server)), str(CONNECTS))
            self.assertEqual(self.said(client), {"echoed": CONNECTS})
            ends = self.asked(client), self.asked(server)
            self.assertEqual([each["live"] for each in ends], [CONNECTS] * 2)
            self.assertEqual([each["management_dropped"] for each in ends], [0, 0])
            self.assertEqual(ends[1]["cm_retransmitted"], 0)
            self.assertLessEqual(ends[0]["cm_retransmitted"], ends[1]["cm_half_open_exceeded"])
            for each in client, server:
                each.kill()
                each.wait()
