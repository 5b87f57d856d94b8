"""
Tests for L{tests.cprograms.lab}.
"""

from __future__ import annotations

import os
import select

from twisted.trial.unittest import SynchronousTestCase

from tests.cprograms import lab
from tests.cprograms.lab import Here, LabError
from tests.cprograms.programs import Program
from tests.support.waiting import HANG_SECONDS, waitUntil


class HereTests(SynchronousTestCase):
    """
    Programs on this host.
    """

    def test_stop(self) -> None:
        """
        What a program has started ends with it: it would keep the address from all that come after it.
        """
        folder = self.mktemp()
        os.mkdir(folder)
        here = Here("shm0", "", tool=("sh", "-c", "sleep 600 & echo $!; wait", "sh"))
        running = here.start(("sleep",), folder)
        waitUntil(running.said)
        child = os.pidfd_open(int(running.said()))
        self.addCleanup(os.close, child)
        running.stop()
        self.assertEqual(select.select([child], [], [], HANG_SECONDS)[0], [child])

    def test_readyLate(self) -> None:
        """
        A server that has waited for a processor is waited for as long as that, too; one that has not is not.
        """
        folder = self.mktemp()
        os.mkdir(folder)
        program = Program("late", "", "", "", "", ready="ready")
        command = "sh", "-c", "sleep 0.2; echo ready; exec sleep 600"
        running = Here("shm0", "", tool=("sh", "-c", 'shift 3; exec "$@"', "sh")).start(command, folder)
        self.addCleanup(running.stop)
        self.patch(lab, "HANG_SECONDS", 0.0)
        self.patch(lab, "denied", lambda pid: 0.0)
        error = self.assertRaises(LabError, running.waitUntilReady, program, 0)
        self.assertEqual(str(error), "sh is not ready: status None")
        self.patch(lab, "denied", lambda pid: HANG_SECONDS)
        running.waitUntilReady(program, 0)
