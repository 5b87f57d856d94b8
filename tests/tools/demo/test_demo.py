"""
Tests for C{ib-demo}, run as a user runs it: as a process.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.processes.programs.nursery import Forked
from tests.support.commands import programOf
from tests.support.waiting import HANG_SECONDS
from twisted_ib.hca.host import libc
from twisted_ib.tools.demo.demo import LARGE

COMMAND = [sys.executable, "-c", programOf("demo.demo")]


class DemoTestCase(SynchronousTestCase):
    """
    The program, run where nothing else is.
    """

    def setUp(self) -> None:
        """
        Make a place for temporary files, and a container's poor environment.
        """
        self.temporary = Path(self.mktemp()).resolve()
        self.temporary.mkdir()
        self.environment = dict(os.environ, TMPDIR=str(self.temporary), FORCE_COLOR="1")
        self.environment.pop("XDG_RUNTIME_DIR", None)

    def start(self) -> subprocess.Popen[str]:
        """
        Start the demonstration in a directory that nobody can write to.

        @return: the process, leader of a process group of its own.
        """
        process = Forked(
            COMMAND,
            cwd="/proc",
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.addCleanup(self.end, process)
        return process

    def end(self, process: subprocess.Popen[str]) -> None:
        """
        End what a failed test may have left.

        @param process: the demonstration.
        """
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.communicate()

    def leavesNothing(self, process: subprocess.Popen[str]) -> None:
        """
        Assert that no process and no file of an ended demonstration is left.

        @param process: the demonstration.
        """
        self.assertRaises(ProcessLookupError, os.killpg, process.pid, 0)
        self.assertEqual(os.listdir(self.temporary), [])


class DemoTests(DemoTestCase):
    """
    How C{ib-demo} fails and is ended, and what it leaves; C{tests/soak} has one that goes to its end.
    """

    def test_noSDP(self) -> None:
        """
        Where SDP cannot work it says why in one sentence, and fails.
        """
        self.environment["TWISTED_IB_RUN_DIR"] = "/dev/null"
        process = self.start()
        out, err = process.communicate(timeout=HANG_SECONDS)
        self.assertNotEqual(process.returncode, 0)
        self.assertEqual(err.count("\n"), 1, err)
        self.assertTrue(err.startswith("ib-demo: SDP does not work here: "), err)
        self.assertIn("/dev/null", err)
        self.assertNotIn("Errno", err)
        self.assertIsNone(re.search("TCP|hashes match", out))
        self.leavesNothing(process)

    def interrupted(self, number: signal.Signals) -> None:
        """
        Assert that a signal ends the demonstration and all that it started.

        @param number: the signal.
        """
        process = self.start()
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("Starting:"):
                break
        process.send_signal(number)
        _, err = process.communicate(timeout=HANG_SECONDS)
        self.assertEqual((process.returncode, err), (128 + number, ""))
        self.leavesNothing(process)

    def test_interrupt(self) -> None:
        """
        Ctrl-C leaves nothing behind.
        """
        self.interrupted(signal.SIGINT)

    def test_terminate(self) -> None:
        """
        SIGTERM leaves nothing behind.
        """
        self.interrupted(signal.SIGTERM)

    def test_hangUp(self) -> None:
        """
        A closed terminal leaves nothing behind.
        """
        self.interrupted(signal.SIGHUP)

    def test_killed(self) -> None:
        """
        The children of one that is killed end by themselves, and remove its files.
        """
        process = self.start()
        assert process.stdout is not None
        for line in process.stdout:
            # Both servers run.
            if line.startswith("Round trips"):
                break
        with open(f"/proc/{process.pid}/task/{process.pid}/children") as children:
            servers = [libc.pidfdOpen(int(each)) for each in children.read().split()]
        poller = select.poll()
        for each in servers:
            self.addCleanup(os.close, each)
            poller.register(each, select.POLLIN)
        # And the one that removes the files.
        self.assertEqual(len(servers), 3)
        [folder] = os.listdir(self.temporary)
        self.assertIn(LARGE, os.listdir(self.temporary / folder))
        process.kill()
        for _ in servers:
            [(ended, _), *_] = poller.poll(HANG_SECONDS * 1000) or [(-1, 0)]
            self.assertIn(ended, servers)
            poller.unregister(ended)
        self.assertEqual(os.listdir(self.temporary), [])
