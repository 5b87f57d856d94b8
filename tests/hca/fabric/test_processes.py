"""
Each fabric under SDP with real reactors; rings and sockets between two processes.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from unittest import skipIf

from twisted.trial.unittest import SynchronousTestCase

from tests.support.commands import running
from tests.support.rundirectory import ownRunDirectory
from tests.support.waiting import HANG_SECONDS
from twisted_ib.hca.host import libc

MISSING = libc.available()


class ProcessTests(SynchronousTestCase):
    """
    L{tests.hca.fabric.echoing} in children.
    """

    def setUp(self) -> None:
        """
        A run directory of this test's own.
        """
        ownRunDirectory(self)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """
        @return: a child, killed after the test.
        """
        root = Path(__file__).resolve().parents[3]
        return running(self, "-m", "tests.hca.fabric.echoing", *arguments, cwd=root)

    def line(self, child: subprocess.Popen[str]) -> str:
        """
        @return: what a child says next.
        """
        assert child.stdout is not None
        return child.stdout.readline().strip()

    def echoed(self, fabric: str, *reactors: tuple[str, str]) -> None:
        """
        A client's data comes back, with each pair of reactors.
        """
        for serving, asking in reactors:
            server = self.start(serving, fabric, "server")
            client = self.start(asking, fabric, self.line(server))
            said, _ = client.communicate(timeout=HANG_SECONDS)
            self.assertEqual((said, client.returncode), ("done ConnectionDone\n", 0), (serving, asking))
            with server:
                server.kill()

    def killed(self, fabric: str, reason: str) -> None:
        """
        What the death of a process is to the other, which waits.
        """
        server = self.start("ib", fabric, "server")
        client = self.start("ib", fabric, f"wait-{self.line(server)}")
        self.assertEqual(self.line(client), "connected")
        server.kill()
        said, _ = client.communicate(timeout=HANG_SECONDS)
        self.assertEqual(said, f"lost {reason}\n")

    @skipIf(bool(MISSING), f"missing: {MISSING}")
    def test_rings(self) -> None:
        """
        Rings.
        """
        self.echoed("rings", ("ib", "ib"), ("epoll", "select"))

    def test_sockets(self) -> None:
        """
        The socket carrier.
        """
        self.echoed("sockets", ("ib", "select"), ("epoll", "asyncio"))

    @skipIf(bool(MISSING), f"missing: {MISSING}")
    def test_ringsKilled(self) -> None:
        """
        Rings, and a killed server.
        """
        self.killed("rings", "ConnectionDone")

    def test_socketsKilled(self) -> None:
        """
        The socket carrier, and a killed server.
        """
        self.killed("sockets", "ConnectionLost")

    def test_loopback(self) -> None:
        """
        C{lo0}, in one process, on reactors of each kind.
        """
        for reactor in ("ib", "select", "asyncio"):
            child = self.start(reactor, "lo0", "both")
            said, _ = child.communicate(timeout=HANG_SECONDS)
            self.assertEqual((said, child.returncode), ("done ConnectionDone\n", 0), reactor)
