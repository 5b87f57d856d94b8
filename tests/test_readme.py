"""
Tests that the README says what is so.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.support.ownaddress import ownAddress
from tests.support.waiting import HANG_SECONDS

ROOT = Path(__file__).resolve().parent.parent

DEMO = "python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/ib-demo"
TEST = (
    "python3 -m venv .venv && .venv/bin/pip install '.[test]' && .venv/bin/python -m twisted.trial -j2 tests"
)


class ReadmeTests(SynchronousTestCase):
    """
    The README's commands and examples.
    """

    def setUp(self) -> None:
        """
        Read it.
        """
        self.text = (ROOT / "README.md").read_text()
        self.lines = [line.strip() for line in self.text.splitlines()]

    def test_commands(self) -> None:
        """
        The two commands stand on a line of their own each, once.
        """
        self.assertEqual((self.lines.count(DEMO), self.lines.count(TEST)), (1, 1))

    def test_pidfile(self) -> None:
        """
        No example of twistd leaves a file in the current directory.
        """
        for path in (ROOT / "README.md", *(ROOT / "twisted_ib").rglob("*.py")):
            for line in path.read_text().splitlines():
                if re.search(r"\btwistd\b.* web ", line) and "--listen" in line:
                    self.assertIn("--pidfile=", line, path)

    def test_scripts(self) -> None:
        """
        Each command that is installed is described.
        """
        metadata = ConfigParser()
        metadata.read(ROOT / "setup.cfg")
        for script in metadata["options.entry_points"]["console_scripts"].split("\n"):
            if script:
                self.assertIn(f"| `{script.split('=')[0].strip()}", self.text)

    def test_paths(self) -> None:
        """
        The files that it sends its reader to exist.
        """
        for path in re.findall(r"^- `([^`]+)`", self.text, re.MULTILINE):
            self.assertTrue((ROOT / path).exists(), path)
        folders = "hca|internet|rdma|rds|reactor|sdp|tests|twisted"
        paths = re.findall(rf"`((?:{folders})/[a-z_/.]*)`", self.text)
        self.assertIn("hca/device/registry.py", paths)
        for path in paths:
            self.assertTrue((ROOT / path).exists() or (ROOT / "twisted_ib" / path).exists(), path)

    def test_examples(self) -> None:
        """
        The two programs, as they stand there but for the port, are a server
        and a client of it.
        """
        server, client, *_ = self.programs()
        # As the port is free for SDP only with luck, the server picks one and says it.
        server = server.replace("7000", "0").replace(
            "(Echo))", "(Echo)).addCallback(lambda port: print(port.getHost().port, flush=True))"
        )
        environment = dict(os.environ, PYTHONPATH=str(ROOT))
        serving = subprocess.Popen(
            [sys.executable, "-c", server], cwd="/", env=environment, stdout=subprocess.PIPE, text=True
        )
        self.addCleanup(serving.communicate)
        self.addCleanup(serving.kill)
        assert serving.stdout is not None
        port = serving.stdout.readline().strip()
        self.assertEqual(self.run_(client.replace("7000", port)), ("hello over SDP\n", ""))

    def test_nobodyListens(self) -> None:
        """
        The client says so when there is no server, and ends.
        """
        _, client, *_ = self.programs()
        said, errors = self.run_(client.replace("7000", "9"))
        self.assertIn("nobody listens on SDP 127.0.0.1:9", said)
        self.assertEqual(errors, "")

    def test_switch(self) -> None:
        """
        The program that knows only TCP, but for what asks why.
        """
        directory = Path(self.mktemp()).resolve()
        directory.mkdir(mode=0o700)
        environment = {"TWISTED_IB_RUN_DIR": str(directory), "HOME": str(directory)}
        said = "both on shm0, by rule default (both)\nsdp on shm0, by rule default (both)\n"
        self.assertEqual(self.run_(self.programs()[2], **environment), (said, ""))

    def test_zeroCopy(self) -> None:
        """
        The program that sends and receives registered memory, and an urgent byte.
        """
        directory = Path(self.mktemp()).resolve()
        directory.mkdir(mode=0o700)
        said = self.run_(self.programs()[3], TWISTED_IB_RUN_DIR=str(directory))
        self.assertEqual(said, ("urgent: !\nsent\n4194304 bytes\n", ""))

    def test_rds(self) -> None:
        """
        The program with reliable datagrams, as it stands there but for the address.
        """
        program = self.programs()[4].replace("127.0.0.1", ownAddress(1))
        self.assertEqual(self.run_(program), ("hello over RDS from port 4000\n", ""))

    def test_rdma(self) -> None:
        """
        The two programs that use RDMA, each by itself.
        """
        *_, messages, verbs = self.programs()
        directory = Path(self.mktemp()).resolve()
        directory.mkdir(mode=0o700)
        alone = {"TWISTED_IB_RUN_DIR": str(directory)}
        self.assertEqual(self.run_(messages, **alone), ("0 were here before\n", ""))
        self.assertEqual(self.run_(verbs, **alone), ("over RDMA\n", ""))

    def programs(self) -> list[str]:
        """
        @return: the Python programs, in order.
        """
        return re.findall(r"```python\n(.*?)```", self.text, re.DOTALL)

    def run_(self, program: str, **environment: str) -> tuple[str, str]:
        """
        Run a Python program until it ends.

        @param environment: what is different in its environment.

        @return: what it wrote to standard output and standard error.
        """
        ended = subprocess.run(
            [sys.executable, "-c", program],
            cwd="/",
            env=dict(os.environ, PYTHONPATH=str(ROOT), **environment),
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
        )
        return ended.stdout, ended.stderr
