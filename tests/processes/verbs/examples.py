"""
Servers and clients of the examples for verbs, each a process of its own.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from unittest import skipIf

from twisted.trial.unittest import SynchronousTestCase

from tests.support.commands import running
from tests.support.waiting import HANG_SECONDS
from twisted_ib.hca.host import libc

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"
ADDRESS = r"LID 0x[0-9a-f]{4}, QPN 0x[0-9a-f]{6}, PSN 0x[0-9a-f]{6}, GID [0-9a-f:]+\n"
N = r"\d+\.\d\d"
RESULT = rf"%d bytes in {N} seconds = {N} Mbit/sec\n%d iters in {N} seconds = {N} usec/iter\n"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz"


def freePort() -> int:
    """
    @return: a TCP port that nobody listens on.
    """
    # On all addresses, as the examples listen.
    with socket.create_server(("", 0)) as found:
        port: int = found.getsockname()[1]
        return port


@skipIf(libc.available(), "shm0 does not work here")
class ExampleTestCase(SynchronousTestCase):
    """
    Programs that meet in a run directory of the test's own, and run outside of the checkout.
    """

    def setUp(self) -> None:
        """
        Make the directories.
        """
        self.directory = tempfile.mkdtemp(prefix="tib-")
        self.addCleanup(shutil.rmtree, self.directory)
        self.runDirectory = os.path.join(self.directory, "run")
        self.port = str(freePort())

    def start(self, program: str, *arguments: str) -> subprocess.Popen[str]:
        """
        Start a program, that is killed after the test if it still runs.
        """
        command = str(EXAMPLES / f"{program}.py"), "-p", self.port, *arguments
        environment = dict(os.environ, TWISTED_IB_RUN_DIR=self.runDirectory, PYTHONPATH=str(ROOT))
        pipes = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        return running(self, *command, cwd=self.directory, env=environment, **pipes)

    def line(self, child: subprocess.Popen[str]) -> str:
        """
        @return: the next line that a program writes to standard output; no more is read.
        """
        assert child.stdout is not None
        found = b""
        while not found.endswith(b"\n"):
            octet = os.read(child.stdout.fileno(), 1)
            self.assertTrue(octet, "it ended")
            found += octet
        return found.decode()

    def end(self, child: subprocess.Popen[str], status: int = 0) -> tuple[str, str]:
        """
        Wait until a program ends.

        @return: what it wrote to standard output and to standard error.
        """
        output, errors = child.communicate(timeout=HANG_SECONDS)
        self.assertEqual(child.returncode, status, (child.args, output, errors))
        return output, errors

    def assertClean(self) -> None:
        """
        The programs left nothing but the lock, which stays.
        """
        self.assertEqual(os.listdir(self.runDirectory), ["lock"])

    def refused(self, program: str, *arguments: str, status: int = 1) -> str:
        """
        @return: the sentence with which a program ends at once.
        """
        output, errors = self.end(self.start(program, *arguments), status)
        self.assertEqual(output, "")
        self.assertNotIn("Traceback", errors)
        return errors


class PingPongTestCase(ExampleTestCase):
    """
    C{ibv_rc_pingpong} and those like it.
    """

    def pair(self, program: str, *arguments: str, host: str = "localhost") -> tuple[str, str]:
        """
        Run a server and a client.

        @return: what they wrote.
        """
        server = self.start(program, *arguments)
        first = self.line(server)  # It listens now.
        client = self.start(program, *arguments, host)
        played, _ = self.end(client)
        served, _ = self.end(server)
        self.assertClean()
        return first + served, played

    def played(self, program: str, *arguments: str, size: int = 4096, iters: int = 200, qps: int = 1) -> None:
        """
        Both print where they are, and how fast it was.
        """
        options = ["-c", "-n", str(iters), "-s", str(size), *arguments]
        lines = (
            rf"(?:  local address:  {ADDRESS}){{{qps}}}(?:  remote address: {ADDRESS}){{{qps}}}"
            + RESULT % (size * iters * 2, iters)
        )
        said = self.pair(program, *options)
        for text in said:
            self.assertTrue(re.fullmatch(lines, text), text)
        here, there = (re.findall(r" address: +(LID .*)", text) for text in said)
        self.assertEqual((here[:qps], here[qps:]), (there[qps:], there[:qps]))


class RPingTestCase(ExampleTestCase):
    """
    C{rping}.
    """

    def serve(self, *arguments: str) -> subprocess.Popen[str]:
        """
        @return: a server, which listens.
        """
        server = self.start("rping", "-s", "-d", *arguments)
        self.assertEqual(self.line(server), "listening\n")
        return server

    def ping(self, *arguments: str) -> str:
        """
        @return: what a client printed.
        """
        output, errors = self.end(self.start("rping", "-c", *arguments))
        self.assertEqual(errors, "client DISCONNECT EVENT...\n")
        return output

    def pinged(self, serving: tuple[str, ...], asking: tuple[str, ...]) -> tuple[str, str]:
        """
        Run a server and a client.

        @return: what they printed.
        """
        server = self.serve(*serving)
        played = self.ping(*asking)
        served, errors = self.end(server)
        self.assertEqual(errors, "server DISCONNECT EVENT...\n")
        self.assertClean()
        return served, played
