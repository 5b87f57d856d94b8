"""
Tests of C{rpoll}, C{rselect} and C{repoll_wait} by programs in C.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.verbs.c.library import run
from tests.verbs.c.test_calls import ProgramTestCase
from twisted_ib import limits

#: The handlers without their library: the other thread has the lock first, and removes the descriptor.
_TWO_THREADS = """
import errno, sys
from unittest.mock import MagicMock
sys.modules.update(_twisted_ib_cm=MagicMock(), _twisted_ib_verbs=MagicMock())
from twisted_ib.verbs.c.cm import polling
from twisted_ib.verbs.c.errors import HandleError

class Lock:
    def __enter__(self):
        poll.wanted.clear()
    def __exit__(self, *exception):
        pass

number = polling.repoll_create(0)
poll = polling._polls[number]
poll.wanted[0] = polling._Wanted(0, 0, polling._fileOf(0))
polling.hub = Lock()
try:
    polling.repoll_ctl(number, polling._DELETE, 0, None)
except HandleError as error:
    print(errno.errorcode[error.number])
"""


class OtherTests(ProgramTestCase):
    """
    C{polled.c}: descriptors that are no rsockets.
    """

    def test_others(self) -> None:
        """
        They end the wait at once, by an end that is closed, too; what nobody waits for does not.
        """
        self.passes("polled.c")

    def test_sets(self) -> None:
        """
        C{repolled.c}: sets of descriptors, as many as L{limits.RSOCKET_POLLS}.
        """
        self.assertEqual(limits.RSOCKET_POLLS, 256)
        self.passes("repolled.c")

    def test_twoThreads(self) -> None:
        """
        Two threads remove one descriptor: for the second it is in the set no more.
        """
        command = [sys.executable, "-c", _TWO_THREADS]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual((done.stdout, done.stderr), ("ENOENT\n", ""))

    def passes(self, name: str) -> None:
        """
        Run a program, which says what is wrong.
        """
        program = self.compiled(Path(__file__).with_name(name), "librdmacm.so.1")
        result = run(program, TWISTED_IB_DEVICE="shm0")
        self.assertEqual((result.stdout, result.stderr, result.returncode), ("", "", 0))
