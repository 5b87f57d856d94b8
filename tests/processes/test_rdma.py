"""
Messages and RDMA between two processes.
"""

from __future__ import annotations

import os
import subprocess

from tests.processes.processes import ROOT, Child, ProcessTestCase
from tests.support.commands import running
from tests.support.waiting import HANG_SECONDS


class RDMATests(ProcessTestCase):
    """
    A server that offers memory, and a client, on the reactor C{ib}.

    @cvar reactors: of the two.
    """

    program = "tests.processes.programs.messenger.Messenger"
    reactors = ("ib", "ib")

    def pair(self) -> tuple[Child, Child]:
        """
        @return: a server and a client that are connected.
        """
        server, client = (self.spawn(reactor) for reactor in self.reactors)
        port = server.ask("listen", endpoint="ib:0:interface=127.0.0.1")
        client.ask("connect", endpoint=f"ib:127.0.0.1:{port}")
        return server, client

    def test_messages(self) -> None:
        """
        Messages of all sizes arrive whole and in order, and the end after them.
        """
        server, client = self.pair()
        sizes = [0, 1, 64, 4096, 65535, 65536] * 50
        sent = client.ask("write", sizes=sizes)
        client.ask("close")
        found = server.ask("heard", count=len(sizes))
        self.assertEqual((found["count"], found["sha256"]), (len(sizes), sent))
        for child in (server, client):
            self.assertEqual(child.event("lost")["reason"], "ConnectionDone")

    def test_memory(self) -> None:
        """
        Registered memory is written and read, both ways of memory that the other process maps;
        its owner hears of a write with immediate.
        """
        server, client = self.pair()
        self.assertTrue(client.ask("bulk", rounds=5))
        self.assertEqual(server.ask("heard", count=1)["written"], [[5, 4]])

    def test_atomics(self) -> None:
        """
        Atomics are done once each by the owner of the memory.
        """
        _, client = self.pair()
        self.assertEqual(client.ask("add", count=1000), 999)
        self.assertEqual(client.ask("read"), (1000).to_bytes(8, "little").hex())

    def test_paused(self) -> None:
        """
        A process that pauses gets nothing and makes the other wait; then all comes.
        """
        server, client = self.pair()
        server.ask("pause")
        sent = client.ask("write", sizes=[65536] * 100)
        client.ask("close")
        self.assertEqual(server.ask("heard", count=0)["count"], 0)
        server.ask("resume")
        self.assertEqual(server.ask("heard", count=100)["sha256"], sent)
        self.assertEqual(client.event("lost")["reason"], "ConnectionDone")

    def test_revoked(self) -> None:
        """
        Closed memory cannot be read any more.
        """
        server, client = self.pair()
        self.assertEqual(client.ask("read"), "00" * 8)
        server.ask("revoke")
        self.assertEqual(client.ask("read"), "REM_ACCESS_ERR")
        for child in (server, client):
            self.assertEqual(child.event("lost")["reason"], "ConnectionLost")

    def test_abort(self) -> None:
        """
        An abort is a ConnectionAborted here and a ConnectionLost there.
        """
        server, client = self.pair()
        client.ask("abort")
        self.assertEqual(client.event("lost")["reason"], "ConnectionAborted")
        self.assertEqual(server.event("lost")["reason"], "ConnectionLost")

    def test_killed(self) -> None:
        """
        When a process dies, what was asked of it fails, and the connection is lost.
        """
        server, client = self.pair()
        server.ask("pause")
        client.ask("begin")
        server.kill()
        self.assertEqual(client.event("failed")["status"], "RETRY_EXC_ERR")
        self.assertEqual(client.event("lost")["reason"], "ConnectionLost")

    def test_forked(self) -> None:
        """
        A forked child cannot use the connection, and does it no harm.
        """
        _, client = self.pair()
        self.assertEqual(client.ask("fork"), ["DeviceClosedError"] * 6)
        self.assertEqual(client.ask("add", count=2), 1)

    def test_end(self) -> None:
        """
        Processes with connections end by themselves.
        """
        server, client = self.pair()
        client.end(5)
        server.event("lost")
        server.end(5)


class StrangerTests(ProcessTestCase):
    """
    A program of verbs, with identifiers of the RDMA-CM, and one with Twisted.
    """

    program = "tests.processes.programs.messenger.Messenger"

    def stranger(self, *arguments: str) -> subprocess.Popen[str]:
        """
        @return: The program of verbs, running.
        """
        program = "tests.processes.verbs.cmstranger"
        environment = {**os.environ, "TWISTED_IB_RUN_DIR": self.runDirectory}
        return running(self, "-m", program, *arguments, cwd=ROOT, env=environment, stderr=subprocess.PIPE)

    def ended(self, process: subprocess.Popen[str]) -> None:
        """
        It must come to its end.
        """
        output, errors = process.communicate(timeout=HANG_SECONDS)
        self.assertEqual((output, errors, process.returncode), ("done\n", "", 0))

    def test_calls(self) -> None:
        """
        It calls a port of Twisted: messages, READ, WRITE, and an end in order.
        """
        server = self.spawn()
        port = server.ask("listen", endpoint="ib:0:interface=127.0.0.1")
        self.ended(self.stranger("call", str(port)))
        self.assertEqual(server.event("lost")["reason"], "ConnectionDone")
        self.assertEqual(server.ask("heard", count=3)["count"], 3)

    def test_isCalled(self) -> None:
        """
        It is called by Twisted.
        """
        stranger = self.stranger("listen")
        assert stranger.stdout is not None
        port = int(stranger.stdout.readline())
        client = self.spawn()
        client.ask("connect", endpoint=f"ib:127.0.0.1:{port}")
        self.assertEqual(client.ask("read"), b"readable".hex())
        sent = client.ask("write", sizes=[5, 60000, 1])
        self.assertEqual(client.ask("heard", count=3)["sha256"], sent)
        self.assertEqual(client.event("lost")["reason"], "ConnectionDone")
        self.ended(stranger)
