"""
Tests for C{ib-perf} as its users run it: a server and a client, each a process.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.support.commands import begun, programOf
from tests.support.waiting import HANG_SECONDS

PROGRAM = programOf("perf.perf")


#: The test that the others do without: fewer processes, and no less tried.
ALONE = "read"


class ProcessTests(SynchronousTestCase):
    """
    Output and exit status.

    @cvar names: The tests that are measured; C{tests/soak} has all but that of L{ALONE}.
    """

    names: Sequence[str] = ("send", "atomic", "tcp")

    def setUp(self) -> None:
        """
        Make a place of its own for processes to meet.
        """
        self.directory = Path(self.mktemp()).resolve()
        self.directory.mkdir(mode=0o700)
        self.environment = dict(os.environ, TWISTED_IB_RUN_DIR=str(self.directory), FORCE_COLOR="1")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """
        Start the command.

        @param arguments: its command line.
        """
        return begun(self, self.environment, PROGRAM, *arguments)

    def port(self, server: subprocess.Popen[str]) -> str:
        """
        Wait until a server listens.

        @return: its port.
        """
        assert server.stderr is not None
        said = server.stderr.readline()
        match = re.fullmatch(r"ib-perf \w+: waits for a client on port (\d+)\n", said)
        assert match is not None, said
        return match[1]

    def ended(self, process: subprocess.Popen[str]) -> tuple[int, str, str]:
        """
        @return: the exit status, and what else was said on standard output and standard error.
        """
        out, err = process.communicate(timeout=HANG_SECONDS)
        return process.returncode, out, err

    def figures(self, name: str, client: subprocess.Popen[str], server: subprocess.Popen[str]) -> None:
        """
        Assert that a client has measured, and its server has served it.

        @param name: the test.
        """
        status, out, err = self.ended(client)
        self.assertEqual((status, err), (0, ""), name)
        found = json.loads(out)
        [row] = found["results"]
        latency, speed, size = row["latency"], row["bandwidth"], 8 if name == "atomic" else 64
        self.assertEqual((found["test"], row["bytes"], speed["bytes"]), (name, size, 40 * size))
        self.assertEqual((latency["messages"], speed["messages"]), (40, 40))
        order = [latency[f"{key}_usec"] for key in ("min", "p50", "p99", "p99_9", "max")]
        self.assertEqual(order, sorted(order))
        self.assertTrue(order[0] > 0 and speed["MB_per_sec"] > 0)
        status, out, err = self.ended(server)
        self.assertEqual((status, err), (0, ""), name)
        served = json.loads(out)
        self.assertEqual((served["test"], served["queue_pairs"], served["iterations"]), (name, 2, 20))
        self.assertEqual(served["device"], None if name == "tcp" else "shm0")

    def test_each(self) -> None:
        """
        Each test measures what it is asked for, with two queue pairs.
        """
        names = self.names
        servers: dict[str, Any] = {name: self.start(name, "-p", "0", "--json") for name in names}
        clients: dict[str, Any] = {}
        for name, server in servers.items():
            options = ["-p", self.port(server), "-n", "20", "-q", "2", "--json"]
            clients[name] = self.start(name, "127.0.0.1", *options)
        for name in names:
            self.figures(name, clients[name], servers[name])

    def test_allSizes(self) -> None:
        """
        All sizes of that one, as a table; without a terminal there are no escape codes.
        """
        server = self.start(ALONE, "-p", "0", "-a")
        client = self.start(ALONE, "127.0.0.1", "-p", self.port(server), "-a", "-n", "2")
        status, out, err = self.ended(client)
        self.assertEqual((status, err), (0, ""))
        rows = [line.split() for line in out.splitlines()[4:]]
        self.assertEqual([int(row[0]) for row in rows], [1 << power for power in range(1, 24)])
        self.assertEqual({len(row) for row in rows}, {7})
        self.assertTrue(out.isascii() and "\x1b" not in out and "\r" not in out)
        status, out, err = self.ended(server)
        self.assertEqual((status, out.count("\n"), err), (0, 1, ""))

    def test_interrupt(self) -> None:
        """
        Ctrl-C ends a client that measures, and its server with it, which says why; it ends a server
        that waits, too, and a client that meets nobody says so.
        """
        waiting, server = self.start("sdp", "-p", "0"), self.start("send", "-p", "0")
        client = self.start("send", "127.0.0.1", "-p", self.port(server), "-D", "0.2", "-a")
        alone = self.start("sdp", "127.0.0.1", "-p", "9")
        self.port(waiting)
        waiting.send_signal(signal.SIGINT)
        self.assertEqual(self.ended(waiting), (130, "", ""))
        status, out, err = self.ended(alone)
        self.assertEqual((status, out, err.count("\n")), (1, "", 1))
        self.assertIn("cannot connect to 127.0.0.1 port 9: ", err)
        assert client.stdout is not None
        self.assertTrue(client.stdout.readline().startswith("ib-perf send: device shm0, "))
        client.send_signal(signal.SIGINT)
        status, _, err = self.ended(client)
        self.assertEqual((status, err), (130, ""))
        self.assertEqual(self.ended(server), (1, "", "ib-perf: the client ended before the test did\n"))
