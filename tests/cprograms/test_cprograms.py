"""
Each program once on each device; when a server is taken for one that waits for its clients.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.cprograms.lab import Lab, LabError, activity, lacking, missing, sides
from tests.cprograms.programs import DEVICES, PROGRAMS, Program
from tests.support.waiting import HANG_SECONDS, waitUntil

#: A thread that is busy, while the main thread sleeps.
_BUSY = """
from threading import Thread
def work():
    while True:
        pass
Thread(target=work).start()
"""


class ActivityTests(SynchronousTestCase):
    """
    L{activity}.
    """

    def started(self, *words: str) -> int:
        """
        A process, killed after the test.
        """
        process = subprocess.Popen(words)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process.pid

    def test_sleeps(self) -> None:
        """
        A process whose only thread sleeps.
        """
        pid = self.started("sleep", "1000")
        waitUntil(lambda: activity(pid)[0])

    def test_works(self) -> None:
        """
        One whose main thread sleeps, while another works: it does not sleep, and takes a processor.
        """
        pid = self.started(sys.executable, "-S", "-c", _BUSY)
        stat = Path(f"/proc/{pid}/stat")
        waitUntil(lambda: activity(pid)[1] >= 0.1 and stat.read_text().rpartition(") ")[2].startswith("S"))
        self.assertFalse(activity(pid)[0])


class ProgramTests(SynchronousTestCase):
    """
    Both processes end with status 0, and the client says that all was right.
    """

    timeout = 3 * HANG_SECONDS
    skip = lacking()


def _test(program: Program, device: str) -> Callable[[ProgramTests], None]:
    def test(self: ProgramTests) -> None:
        reason = missing(program)
        if reason is not None:
            raise SkipTest(reason)
        try:
            Lab(*sides(device)).run(program)
        except LabError as error:
            self.fail(str(error))

    test.__doc__ = f"{program.name} on {device}."
    return test


for _program in PROGRAMS:
    for _device in DEVICES:
        setattr(ProgramTests, f"test_{_program.name}_{_device}", _test(_program, _device))
