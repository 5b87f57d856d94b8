"""
Servers that are away, see L{tests.soak.stopped}.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.soak.stopped import isGood, story
from tests.support.commands import running
from tests.support.rundirectory import ownRunDirectory

ROOT = Path(__file__).resolve().parent.parent.parent
CONNECTS = 20
#: Longer than the repeats of a REQ of C{sdp} last on C{roce0}.
LONG = 20.0
#: Longer than IPoIB asks for an address.
HOST = 5.0


class StoppedTests(SynchronousTestCase):
    """
    L{CONNECTS} connects during a stop: each works at both ends, or fails at the client with a reason.
    """

    def start(self, arguments: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
        """
        Start an end.
        """
        words = "-m", "tests.soak.stopped", *arguments
        self.ends.append(running(self, *words, cwd=ROOT, env=environment, stdin=subprocess.PIPE))
        return self.ends[-1]

    def stop(self, device: str, seconds: float, hosts: str = "client") -> None:
        """
        Tell the story with each kind of program.

        @param hosts: see L{story}.
        """
        ownRunDirectory(self)
        for kind in ("sdp", "ib", "rds", "cmid"):
            self.ends: list[subprocess.Popen[str]] = []
            found = story(device, kind, seconds, CONNECTS, self.start, hosts)
            # Their addresses are the next ones' too.
            for end in self.ends:
                end.kill()
                end.wait()
            self.assertTrue(isGood(kind, found), (kind, found))

    def test_roce(self) -> None:
        """
        Over packets, where REQs are repeated and then given up.
        """
        self.stop("roce0", LONG)

    def test_ib(self) -> None:
        """
        In a subnet that the clients' process hosts.
        """
        self.stop("ib0", 1.0)

    def test_ibServerHosts(self) -> None:
        """
        In one that the server's process hosts: longer than ARP is repeated.
        """
        self.stop("ib0", HOST, "server")

    def test_ibHost(self) -> None:
        """
        While a third process is stopped, which hosts the subnet.
        """
        self.stop("ib0", HOST, "other")

    def test_iwarp(self) -> None:
        """
        Over TCP.
        """
        self.stop("iwarp0", 1.0)

    def test_shm(self) -> None:
        """
        In memory.
        """
        self.stop("shm0", 1.0)
