"""
Tests for C{ib-devinfo}, run as a user runs it: as a process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.tools.devinfo import heading

ROOT = Path(__file__).resolve().parent.parent

# Started from anywhere, they run the code of this checkout.
PATH = f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
PROGRAM = PATH + "from twisted_ib.tools.devinfo import main; sys.exit(main())"
SERVER = PATH + "from twisted_ib.tools.echo import main; sys.exit(main(['sdp:0', 'sdp:0']))"

COUNTS = ("pd", "mr", "cq", "qp", "srq", "ah", "mw")


class DevinfoTests(SynchronousTestCase):
    """
    What C{ib-devinfo} prints.
    """

    def setUp(self) -> None:
        """
        Let the processes of a test meet where no other process does.
        """
        directory = Path(self.mktemp()).resolve()
        directory.mkdir(mode=0o700)
        self.environment = dict(os.environ, TWISTED_IB_RUN_DIR=str(directory))

    def devinfo(self, *arguments: str) -> str:
        """
        Run the command, which has to succeed.

        @param arguments: its command line.

        @return: what it prints.
        """
        result = subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments],
            cwd="/",
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return result.stdout

    def list(self) -> list[dict[str, Any]]:
        """
        @return: what the command prints as JSON.
        """
        found: list[dict[str, Any]] = json.loads(self.devinfo("-v", "--json"))
        for entry in found:
            self.assertLessEqual({"hca_id", "pid", "program", "in_use"}, set(entry))
        return found

    def serve(self) -> subprocess.Popen[str]:
        """
        Start a process with two SDP ports.

        @return: the process, which is listening.
        """
        server = subprocess.Popen(
            [sys.executable, "-c", SERVER], cwd="/", env=self.environment, stdout=subprocess.PIPE, text=True
        )
        self.addCleanup(server.communicate)
        self.addCleanup(server.kill)
        assert server.stdout is not None
        self.assertEqual(server.stdout.readline(), "ready\n")
        return server

    def test_own(self) -> None:
        """
        Where nobody else is, the list has the command's own HCA, with nothing
        in use.
        """
        [own] = self.list()
        self.assertEqual(own["hca_id"], "shm0")
        self.assertEqual(set(own["in_use"]), set(COUNTS))
        self.assertEqual(own["in_use"]["qp"], 0)

    def test_other(self) -> None:
        """
        A process that has an HCA is in the list; once it is gone, or killed,
        it is not.
        """
        servers = [self.serve(), self.serve()]
        found = self.list()
        self.assertEqual(len(found), 3)
        for server in servers:
            [entry] = [entry for entry in found if entry["pid"] == server.pid]
            self.assertEqual(entry["hca_id"], "shm0")
            self.assertTrue(entry["program"])
            self.assertEqual(set(entry["in_use"]), set(COUNTS))
            self.assertTrue(all(isinstance(count, int) for count in entry["in_use"].values()))
        servers[0].terminate()
        servers[1].kill()
        for server in servers:
            server.wait(60)
        self.assertEqual(len(self.list()), 1)

    def test_silent(self) -> None:
        """
        A process that does not answer is in the list, and what it has in use
        is not known.
        """
        server = self.serve()
        server.send_signal(signal.SIGSTOP)
        self.addCleanup(server.send_signal, signal.SIGCONT)
        [entry] = [entry for entry in self.list() if entry["pid"] == server.pid]
        self.assertIsNone(entry["in_use"])
        self.assertEqual(entry["hca_id"], "shm0")
        self.assertTrue(entry["program"])
        self.assertIn("does not answer", self.devinfo())

    def test_text(self) -> None:
        """
        Without C{--json} the list is in C{ibv_devinfo}'s style; C{-v} adds the
        counts and C{-d} selects by name.
        """
        brief, full = self.devinfo(), self.devinfo("-v", "-d", "shm0")
        for text in (brief, full):
            self.assertTrue(text.startswith("hca_id:\tshm0\n"), text)
            self.assertIn("\tpid:", text)
        self.assertNotIn("\t\tqp:", brief)
        for name in COUNTS:
            self.assertIn(f"\t\t{name}:", full)
        self.assertEqual(self.devinfo("-l"), "shm0\n")

    def test_errors(self) -> None:
        """
        An unknown device, a run directory that is none, and a bad option are
        errors of one line.
        """
        for arguments, directory, word in (
            (["-d", "nosuch0"], None, "nosuch0"),
            (["--nosuch"], None, "--nosuch"),
            ([], "/dev/null", "/dev/null"),
        ):
            if directory is not None:
                self.environment["TWISTED_IB_RUN_DIR"] = directory
            result = subprocess.run(
                [sys.executable, "-c", PROGRAM, *arguments],
                cwd="/",
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=60,
            )
            self.assertNotEqual(result.returncode, 0)
            self.assertEqual((result.stdout, result.stderr.count("\n")), ("", 1), result.stderr)
            self.assertTrue(result.stderr.startswith("ib-devinfo: "))
            self.assertIn(word, result.stderr)

    def test_unknownFields(self) -> None:
        """
        Whatever else a process says of its HCA is printed as it is.
        """
        entry = {"hca_id": "shm0", "pid": 7, "guid": "0001", "in_use": {"qp": 2}}
        self.assertEqual(
            [line.split() for line in heading(entry, True)],
            [["hca_id:", "shm0"], ["pid:", "7"], ["guid:", "0001"], ["in_use:"], ["qp:", "2"]],
        )
