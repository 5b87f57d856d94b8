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


class OthersTests(SynchronousTestCase):
    """
    L{threads.Others}: by a clock of the test's.
    """

    def setUp(self) -> None:
        self.process, self.thread = 0, 0
        self.patch(threads, "process_time_ns", lambda: self.process)
        self.patch(threads, "thread_time_ns", lambda: self.thread)
        self.others = threads.Others()

    def used(self, seconds: float, own: float = 0.0) -> None:
        """
        The process has used a CPU for so many seconds; for C{own} of them it was this thread.
        """
        self.process += round(seconds * 1e9)
        self.thread += round(own * 1e9)

    def look(self, now: float) -> bool:
        """
        Look; return what was found.
        """
        self.others.look(now)
        self.assertEqual(self.others.until, now + threads.LOOK_SECONDS)
        return self.others.areWorking

    def test_look(self) -> None:
        """
        Others work if they have used more than a small share of a CPU since the last look; this thread,
        however busy, is none of them.
        """
        # All that a process has done before: nothing beside the time that the clock shows.
        self.used(1.0, 1.0)
        self.assertFalse(self.look(1000.0))
        now = 1000.0
        for own, other, expected in [
            (0.1, 0.0, False),
            (0.1, 0.0016, True),
            (0.0, 0.1, True),
            (0.1, 0.0015, False),
            (0.0, 0.0, False),
        ]:
            self.used(own + other, own)
            now += 0.1
            self.assertIs(self.look(now), expected, (own, other))

    def test_young(self) -> None:
        """
        Each thread looks for itself; the first look of one is at what happened since the last of any.
        """
        self.look(1000.0)
        self.used(0.1)
        found: list[bool] = []

        def look(now: float) -> None:
            thread = Thread(target=lambda: found.append(self.look(now)))
            thread.start()
            thread.join(HANG_SECONDS)

        look(1000.1)
        # It is the one that has used all that was used since then.
        self.used(0.1, 0.1)
        look(1000.2)
        self.assertEqual(found, [True, False])
        # Of this thread's own look: half of the time there was another one.
        self.thread = 0
        self.assertTrue(self.look(1000.2))
