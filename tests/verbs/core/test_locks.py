"""
Tests of the hub's lock while the interpreter ends.
"""

from __future__ import annotations

import subprocess
import sys
from threading import RLock, Thread

from twisted.trial.unittest import SynchronousTestCase

from tests.support.waiting import HANG_SECONDS
from twisted_ib.verbs.core.hub import EndingLock

#: A thread takes the lock after all that is called at exit, and the interpreter stops it there.
_PROGRAM = """
import atexit, os, threading
go, held = threading.Event(), threading.Event()
atexit.register(lambda: (go.set(), held.wait()))
from twisted_ib.verbs.core.hub import hub

def hold():
    go.wait()
    hub.enter()
    held.set()
    threading.Event().wait()

class Last:
    def __del__(self, hub=hub, write=os.write):
        with hub:
            write(1, b"destroyed\\n")

threading.Thread(target=hold, daemon=True).start()
# The thread keeps this module's names.
threading.last = Last()
"""


class EndingLockTests(SynchronousTestCase):
    """
    L{EndingLock}.
    """

    def test_stopped(self) -> None:
        """
        An object that is destroyed while the interpreter ends does not wait for a thread that was stopped
        with the lock.
        """
        command = (sys.executable, "-c", _PROGRAM)
        ended = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
        self.assertEqual((ended.stdout, ended.stderr, ended.returncode), ("destroyed\n", "", 0))

    def test_before(self) -> None:
        """
        Before that it is the lock that it has taken the place of.
        """
        lock = RLock()
        ending = EndingLock(lock)
        taken: list[bool] = []
        with lock:
            thread = Thread(target=lambda: taken.append(ending.acquire(timeout=0.001)))
            thread.start()
            thread.join()
        self.assertEqual(taken, [False])
        self.assertTrue(ending.acquire())
        ending.release()
        self.assertRaises(RuntimeError, ending.release)
