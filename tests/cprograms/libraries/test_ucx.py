"""
UCX's tests of itself.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.cprograms.lab import LabError, lacking, missing, sides
from tests.cprograms.libraries.ucx import PROGRAMS, TRANSPORTS, runUCX
from tests.support.waiting import HANG_SECONDS


class PerformanceTests(SynchronousTestCase):
    """
    C{ucx_perftest}, between two addresses of the loopback interface.
    """

    timeout = 10 * HANG_SECONDS
    skip = lacking() or missing(PROGRAMS[0])

    def passes(self, device: str) -> None:
        """
        Each test over connections, and one over datagrams alone.
        """
        connected, datagrams = TRANSPORTS
        for program, transport in (*((each, connected) for each in PROGRAMS), (PROGRAMS[0], datagrams)):
            try:
                runUCX(program, transport, *sides(device))
            except LabError as error:
                self.fail(f"{program.name} {transport}: {error}")

    def test_shm0(self) -> None:
        """
        Through shared memory.
        """
        self.passes("shm0")

    def test_roce0(self) -> None:
        """
        Over RoCEv2.
        """
        self.passes("roce0")
