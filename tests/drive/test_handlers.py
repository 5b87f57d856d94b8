"""
Tests for L{twisted_ib.drive.waiter}: handlers of signals wait for a lock.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path
from threading import RLock, Thread
from types import FrameType

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.drive.waiter import Handlers, handlers

NUMBER, OTHER = signal.SIGUSR1, signal.SIGUSR2


class HandlersTests(SynchronousTestCase):
    """
    Those of the process, with a lock of the test's own.
    """

    def setUp(self) -> None:
        """
        Protect the lock.
        """
        self.lock = RLock()
        before = handlers._lock
        handlers.protect(self.lock)
        self.addCleanup(handlers.protect, before)
        self.said: list[int] = []
        for number in (NUMBER, OTHER):
            self.addCleanup(signal.signal, number, signal.signal(number, self.say))

    def say(self, number: int, frame: FrameType | None) -> None:
        """
        The handler.
        """
        self.said.append(number)

    def refuse(self, number: int, frame: FrameType | None) -> None:
        """
        One that raises.
        """
        self.said.append(number)
        raise KeyError(number)

    def test_waits(self) -> None:
        """
        Within the lock none is called, and outside it each at once; one that comes twice is called once.
        """
        with self.lock:
            signal.raise_signal(NUMBER)
            signal.raise_signal(NUMBER)
            handlers.call()
            self.assertEqual(self.said, [])
        handlers.call()
        self.assertEqual(self.said, [NUMBER])
        signal.raise_signal(NUMBER)
        self.assertEqual(self.said, [NUMBER, NUMBER])

    def test_kept(self) -> None:
        """
        They wait for the end of a context, too, and for the lock within it.
        """
        with self.lock:
            with handlers.keep():
                signal.raise_signal(NUMBER)
            self.assertEqual(self.said, [])
        with handlers.keep():
            signal.raise_signal(OTHER)
            self.assertEqual(self.said, [])
        self.assertEqual(self.said, [NUMBER, OTHER])

    def test_raises(self) -> None:
        """
        An error of one keeps no other from its turn.
        """
        signal.signal(NUMBER, self.refuse)
        with self.lock:
            signal.raise_signal(OTHER)
            signal.raise_signal(NUMBER)
        self.assertRaises(KeyError, handlers.call)
        self.assertEqual(self.said, [NUMBER, OTHER])
        self.assertFalse(handlers.waiting)

    def test_aside(self) -> None:
        """
        They are called when the lock is given back for a while, and it is taken again if one raises.
        """
        signal.signal(NUMBER, self.refuse)
        with self.lock, self.lock:
            signal.raise_signal(NUMBER)
            self.assertRaises(KeyError, handlers.aside, self.lock, int)
            self.assertTrue(handlers.areKept())
            self.assertEqual(handlers.aside(self.lock, handlers.areKept), False)
        self.assertFalse(handlers.areKept())

    def test_others(self) -> None:
        """
        Another thread that has the lock keeps none, nor calls any.
        """
        with self.lock:
            signal.raise_signal(NUMBER)
            thread = Thread(target=handlers.call)
            thread.start()
            thread.join()
            self.assertEqual(self.said, [])

    def test_seen(self) -> None:
        """
        A program finds its own handlers, and those that are none stay.
        """
        self.assertEqual(signal.getsignal(NUMBER), self.say)
        self.assertEqual(signal.signal(NUMBER, signal.SIG_IGN), self.say)
        self.assertIs(signal.getsignal(NUMBER), signal.SIG_IGN)
        self.assertIs(signal.signal(NUMBER, self.say), signal.SIG_IGN)
        self.assertRaises(TypeError, signal.signal, NUMBER, "handler")

    def test_names(self) -> None:
        """
        All that C{signal.py} calls of its module in C is there.
        """
        names = set(re.findall(r"\b_signal\.(\w+)\(", Path(signal.__file__).read_text()))
        self.assertIn("signal", names)
        self.assertEqual([name for name in names if not hasattr(vars(signal)["_signal"], name)], [])

    def test_traceback(self) -> None:
        """
        What is called at once has no frame but its own in its traceback.
        """
        signal.signal(NUMBER, signal.default_int_handler)
        error = self.assertRaises(KeyboardInterrupt, signal.raise_signal, NUMBER)
        trace = error.__traceback__
        names = set()
        while trace is not None:
            names.add(trace.tb_frame.f_globals["__name__"])
            trace = trace.tb_next
        self.assertNotIn("twisted_ib.drive.waiter", names)

    def test_otherThread(self) -> None:
        """
        A thread that may set no handlers leaves them as they are.
        """
        own = Handlers()
        thread = Thread(target=own.install)
        thread.start()
        thread.join()
        self.assertFalse(own._isInstalled)
