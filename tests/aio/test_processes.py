"""
Programs of asyncio in two processes, on the event loop and on asyncio's own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.processes.processes import ROOT
from tests.support.commands import programOf, running
from tests.support.rundirectory import ownRunDirectory
from tests.support.waiting import HANG_SECONDS


class ProcessTests(SynchronousTestCase):
    """
    A server and its clients.
    """

    def setUp(self) -> None:
        """
        Make a run directory, and have no rules.
        """
        self.environment = {**os.environ, "TWISTED_IB_RUN_DIR": ownRunDirectory(self)}
        self.environment["HOME"] = self.environment["TWISTED_IB_RUN_DIR"]
        self.environment.pop("TWISTED_IB_CONFIG", None)

    def begin(self, *arguments: str) -> Any:
        """
        @return: A process of the program.
        """
        return running(
            self,
            "-m",
            "tests.aio.program",
            *arguments,
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.PIPE,
            # The peers of a process that the test ends complain of it.
            stderr=subprocess.DEVNULL,
        )

    def sockets(self) -> list[dict[str, Any]]:
        """
        @return: What C{ib-ss} lists.
        """
        shown = subprocess.run(
            [sys.executable, "-c", programOf("show.ss"), "--json"],
            env=self.environment,
            capture_output=True,
            check=True,
            timeout=HANG_SECONDS,
        )
        found: list[dict[str, Any]] = json.loads(shown.stdout)
        return found

    def test_shown(self) -> None:
        """
        Two processes with asyncio's streams talk over SDP, by C{ib-ss}; a client on asyncio's own event loop
        goes to the same server over TCP.
        """
        server = self.begin("aio", "server")
        port = server.stdout.readline().strip()
        clients = [self.begin(kind, "client", port) for kind in ("aio", "plain")]
        answers = [client.stdout.readline().strip() for client in clients]
        self.assertEqual(answers, ["sdp ping", "plain ping"])
        rows = [row for row in self.sockets() if row["kind"] == "connection"]
        seen = sorted((row["pid"], row["provider"]) for row in rows)
        over = [(server.pid, "sdp"), (server.pid, "tcp"), (clients[0].pid, "sdp")]
        self.assertEqual(seen, sorted(over))

    def test_plainServer(self) -> None:
        """
        A server on asyncio's own event loop is reached over TCP.
        """
        server = self.begin("plain", "server")
        client = self.begin("aio", "client", server.stdout.readline().strip())
        self.assertEqual(client.stdout.readline().strip(), "tcp ping")
