"""
Tests for L{twisted_ib.drive.waiter}: handlers of signals wait for a lock.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from threading import RLock, Thread
from types import FrameType
from typing import Any, cast
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from tests.support.calls import requireReplaceable
from tests.support.waiting import HANG_SECONDS
from twisted_ib.blocking.loop import BlockingLoop
from twisted_ib.drive.waiter import DrivingLock, Handlers, LockQueue, handlers

NUMBER, OTHER = signal.SIGUSR1, signal.SIGUSR2
#: A handler in C that calls the program's, and one that restarts system calls, both older than the sockets.
_ACTIONS = """
import ctypes, faulthandler, os, signal, sys
heard = []
for number in (signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda *_: heard.append(1))
with open(sys.argv[1], "w+") as file:
    faulthandler.register(signal.SIGUSR1, file, chain=True)
    signal.siginterrupt(signal.SIGUSR2, False)

    def actions():
        found = []
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            found.append(ctypes.create_string_buffer(1024))
            ctypes.CDLL(None).sigaction(number, None, found[-1])
        # Their functions, and their flags: of the signals' sets only the beginning is the kernel's.
        return [each.raw[:16] + each.raw[136:140] for each in found]

    before = actions()
    from twisted_ib.blocking.loop import theLoop
    loop = theLoop()
    assert actions() == before
    with loop:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert not heard
    assert heard
    assert os.fstat(file.fileno()).st_size
print("done")
"""


class Driving:
    """
    What has a lock, and threads that wait for it.
    """

    def __init__(self, lock: object) -> None:
        """
        See the class.
        """
        self.lock, self.lockQueue = cast(DrivingLock, lock), LockQueue()


class HandlersTests(SynchronousTestCase):
    """
    Those of the process, with a lock of the test's own.
    """

    def setUp(self) -> None:
        """
        Protect the lock.
        """
        self.lock = RLock()
        handlers.install(lambda number: nullcontext())
        self.addCleanup(handlers.protect, handlers._lock)
        handlers.protect(cast(DrivingLock, self.lock))
        # SIGCHLD may have come while an earlier test had its lock, and nobody looked when it was given back.
        handlers.call()
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
        driving = Driving(self.lock)
        with self.lock, self.lock:
            signal.raise_signal(NUMBER)
            self.assertRaises(KeyError, handlers.aside, driving, False, int)
            self.assertTrue(handlers.areKept())
            self.assertEqual(handlers.aside(driving, False, handlers.areKept), False)
        self.assertFalse(handlers.areKept())

    def test_asideInOrder(self) -> None:
        """
        A thread that takes the lock again is one of those that wait for it in order, and does not sleep on
        the lock itself; it has it as often as before.
        """
        lock, owned = self.lock, cast("Any", self.lock)._is_owned
        asked: list[bool] = []

        def acquire(blocking: bool = True) -> bool:
            asked.append(blocking)
            return lock.acquire(blocking)

        restore = mock.Mock(side_effect=AssertionError)
        release = cast("Any", lock)._release_save
        watched = mock.Mock(acquire=acquire, _release_save=release, _acquire_restore=restore)
        driving = Driving(watched)
        had: list[bool] = []

        def use() -> None:
            with lock, lock:
                had.append(handlers.aside(driving, False, owned))
                had.append(owned())
            had.append(owned())

        thread = Thread(target=use)
        thread.start()
        thread.join()
        self.assertEqual((had, asked), ([False, True, False], [False, False]))

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
        names.update(vars(sys.modules["_signal"]))
        self.assertEqual([name for name in names if not hasattr(vars(signal)["_signal"], name)], [])

    def test_atOnce(self) -> None:
        """
        A handler is set by one call, so that none comes between, nor is what the program then asks of the
        kernel undone; what is no handler is refused as ever.
        """
        plain = mock.Mock()
        plain.signal.return_value = signal.SIG_DFL
        kept: Any = type(vars(signal)["_signal"])(handlers, plain)
        self.assertEqual(kept.signal(NUMBER, self.say), signal.SIG_DFL)
        ((number, handler),) = [call.args for call in plain.signal.call_args_list]
        self.assertEqual((number, handler.handler), (NUMBER, self.say))
        kept.signal(NUMBER, signal.SIG_IGN)
        plain.signal.assert_called_with(NUMBER, signal.SIG_IGN)

    def test_actions(self) -> None:
        """
        The handlers that the kernel has stay as they are, those in C and their flags.
        """
        command = [sys.executable, "-c", _ACTIONS, self.mktemp()]
        done = subprocess.run(command, stdout=subprocess.PIPE, timeout=HANG_SECONDS, check=False)
        self.assertEqual((done.returncode, done.stdout), (0, b"done\n"))

    def test_installedLater(self) -> None:
        """
        Should the handlers of the program not all be found, they are the next time.
        """
        own = Handlers()
        self.patch(signal, "_signal", vars(signal)["_signal"])
        # As it was before there were sockets.
        plain: Any = sys.modules["_signal"]
        plain.signal(NUMBER, self.say)
        self.assertRaises(ZeroDivisionError, own.install, lambda number: 1 / 0)
        own.install(lambda number: nullcontext())
        self.assertIs(plain.getsignal(NUMBER).owner, own)

    def test_refused(self) -> None:
        """
        Where the interpreter takes no handler, as in a program in C whose script runs in another thread than
        its main one, none waits, and sockets work.
        """
        own = Handlers()
        before = vars(signal)["_signal"]
        plain = mock.Mock()
        plain.valid_signals.return_value = {NUMBER}
        plain.signal.side_effect = ValueError("signal only works in main thread of the main interpreter")
        with mock.patch.dict(sys.modules, _signal=plain):
            own.install(lambda number: nullcontext())
        plain.signal.assert_called_once()
        self.assertIs(vars(signal)["_signal"], before)

    def test_calledBetween(self) -> None:
        """
        The handler of a signal that comes while those that wait are about to be called calls them itself.
        """
        lock, asked = mock.Mock(), [1]

        def isOwned() -> bool:
            if asked:
                asked.clear()
                handlers.call()
            return False

        lock._is_owned.side_effect = isOwned
        handlers.protect(lock)
        handlers.waiting[NUMBER] = self.say, None
        handlers.call()
        self.assertEqual(self.said, [NUMBER])

    def test_refusesOwner(self) -> None:
        """
        An error of a handler that was not yet among those that wait leaves the devices their owner: the
        thread asks anew.
        """
        requireReplaceable(Handlers, "install")
        loop = BlockingLoop()
        self.addCleanup(loop.reactor.dispose)
        loop.owner = 0
        self.patch(Handlers, "install", lambda own, sameAction: 1 / 0)
        self.assertRaises(ZeroDivisionError, loop.own)
        self.assertEqual(loop.owner, 0)

    def test_end(self) -> None:
        """
        At the end of the process, when the lock is never given back, they wait for it no more.
        """
        loop = BlockingLoop()
        self.addCleanup(loop.reactor.dispose)
        with loop:
            signal.raise_signal(NUMBER)
            self.assertEqual(self.said, [])
            loop.close(True)
            self.assertEqual(self.said, [NUMBER])
            signal.raise_signal(OTHER)
            self.assertEqual(self.said, [NUMBER, OTHER])

    def test_child(self) -> None:
        """
        A child that another thread forks calls its handlers, and none that wait in its parent, whatever the
        main thread does there.
        """
        ended: list[int] = []

        def fork() -> None:
            child = os.fork()
            if not child:
                signal.raise_signal(OTHER)
                os._exit(7 if self.said == [OTHER] else 1)
            ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

        with self.lock, handlers.keep():
            signal.raise_signal(NUMBER)
            thread = Thread(target=fork)
            thread.start()
            thread.join()
        self.assertEqual(ended, [7])

    def test_childWithin(self) -> None:
        """
        In a child that is forked where they wait they do as ever, once that is left.
        """
        with handlers.keep():
            handlers.forked()
        for _ in range(2):
            with handlers.keep():
                signal.raise_signal(NUMBER)
                self.assertNotIn(NUMBER, self.said)
            self.assertEqual(self.said, [NUMBER])
            self.said.clear()

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
        thread = Thread(target=own.install, args=(nullcontext,))
        thread.start()
        thread.join()
        self.assertFalse(own._isInstalled)
