"""
Tests for L{tests.cprograms.lab}.
"""

from __future__ import annotations

import os
import select

from twisted.trial.unittest import SynchronousTestCase

from tests.cprograms.lab import Here
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
