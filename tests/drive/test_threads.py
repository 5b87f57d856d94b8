"""
Tests for L{twisted_ib.drive.threads}.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path
from threading import Event, Thread

from twisted.trial.unittest import SynchronousTestCase

import twisted_ib
from tests.support.waiting import HANG_SECONDS
from twisted_ib.drive import threads

ROOT = Path(twisted_ib.__file__).parent
#: What begins threads by itself: the module itself, and those that are like C{multiprocessing}'s, in programs
#: of Python alone.
OWN = {"drive/threads.py", "queues/queue.py", "queues/listening.py"}


class ThreadTests(SynchronousTestCase):
    """
    L{threads.begin}.
    """

    def test_signals(self) -> None:
        """
        The thread takes no signal that can be blocked; who begins it takes what it took before, also if there
        can be no thread.
        """
        masks: list[set[int]] = []
        over = Event()

        def run(what: Event) -> None:
            masks.append({int(each) for each in signal.pthread_sigmask(signal.SIG_BLOCK, ())})
            what.set()

        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        thread = threads.begin(run, over, name="a name")
        self.assertTrue(over.wait(HANG_SECONDS))
        thread.join()
        self.assertEqual((thread.name, thread.daemon), ("a name", True))
        every = {int(each) for each in signal.valid_signals()} - {signal.SIGKILL, signal.SIGSTOP}
        self.assertEqual(masks, [every])

        def failing(thread: Thread) -> None:
            raise RuntimeError("can't start new thread")

        self.patch(Thread, "start", failing)
        self.assertRaises(RuntimeError, threads.begin, run, over, name="another")
        self.assertEqual(signal.pthread_sigmask(signal.SIG_BLOCK, ()), before)

    def test_all(self) -> None:
        """
        No other module begins one: in a program whose threads block a signal, for signalfd(2), a thread that
        does not would end the process.
        """
        begun = re.compile(r"\bThread\(|start_new_thread")
        found = {
            str(file.relative_to(ROOT))
            for file in ROOT.rglob("*.py")
            if any(begun.search(line) for line in file.read_text().splitlines() if "class " not in line)
        }
        self.assertEqual(found, OWN)
