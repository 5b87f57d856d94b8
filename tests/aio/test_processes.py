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

#: Leaves an event loop with a connection of each side to the interpreter's end.
DROPPED = """
import asyncio
from twisted_ib.aio import new_event_loop

class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)

class Client(Echo):
    def connection_made(self, transport):
        self.answered = asyncio.Event()
        self.provider = transport.get_extra_info("why").provider
        transport.write(b"hello")

    def data_received(self, data):
        self.answered.set()

async def main():
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Echo, "127.0.0.1", 0)
    _, client = await loop.create_connection(Client, *server.sockets[0].getsockname())
    await client.answered.wait()
    print(client.provider)

def run():
    loop = new_event_loop()
    loop.run_until_complete(main())

run()
"""


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

    def test_dropped(self) -> None:
        """
        A program that never closes its event loop ends in silence.
        """
        ended = subprocess.run(
            [sys.executable, "-c", DROPPED],
            env=self.environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
        )
        self.assertEqual((ended.stdout, ended.stderr, ended.returncode), ("sdp\n", "", 0))

    def test_plainServer(self) -> None:
        """
        A server on asyncio's own event loop is reached over TCP.
        """
        server = self.begin("plain", "server")
        client = self.begin("aio", "client", server.stdout.readline().strip())
        self.assertEqual(client.stdout.readline().strip(), "tcp ping")
