"""
What a thread that waits may rely on, whatever it waits in: tests to mix into a
L{SynchronousTestCase<twisted.trial.unittest.SynchronousTestCase>}.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from subprocess import PIPE, Popen
from typing import Any, Protocol

from tests.support.commands import PATH, interpreter, running, stop
from tests.support.waiting import HANG_SECONDS, waitUntil
from twisted_ib.drive import waiter
from twisted_ib.drive.waiter import LockQueue

#: A timer's seconds, soon; a program that is stopped for longer.
SOON, STOPPED = 0.02, 0.2
#: How often a thread takes the lock beside one that polls.
USES = 100
#: Seconds that are more than a lock or poll(2) takes.
FAR = 1e11
#: A process that hangs shows where, and dies of it, before its test ends: by a signal, as a thread that
#: watches would be another one that a fork does not have.
_WATCHED = f"""
import faulthandler, signal
faulthandler.register(signal.SIGALRM, chain=True)
signal.alarm({int(HANG_SECONDS / 3)})
"""


class Waits(Protocol):
    """
    An engine, as these tests see it.

    @cvar program: What makes C{wait} and C{timer}, the same, in another process.
    """

    program: str

    def wait(self, ready: Callable[[], object], seconds: float) -> bool:
        """
        Wait until a condition holds.
        """

    def timer(self, seconds: float, call: Callable[[], object]) -> None:
        """
        Start a timer of a device, without driving it.
        """


class ThreadWaits(Waits, Protocol):
    """
    One that serves all threads.
    """

    lockQueue: LockQueue

    def isAsleep(self) -> bool:
        """
        @return: Whether a thread sleeps.
        """

    def locked(self) -> AbstractContextManager[object]:
        """
        @return: Its lock.
        """

    def change(self, call: Callable[[], object]) -> None:
        """
        Do something that waiting threads are told of.
        """

    def drop(self, close: Callable[[], None]) -> None:
        """
        Leave behind what has to be closed, as the collector of garbage does.
        """


class Waiting:
    """
    Another thread that waits.
    """

    def __init__(self, waits: Waits, ready: Callable[[], object], seconds: float) -> None:
        """
        Begin.
        """
        self._found: list[bool] = []
        self.thread = threading.Thread(
            target=lambda: self._found.append(waits.wait(ready, seconds)), daemon=True
        )
        self.thread.start()

    def __call__(self) -> list[bool]:
        """
        Wait for its end, well before its own deadline.

        @return: What came of it.
        """
        self.thread.join(HANG_SECONDS / 2)
        return self._found


class TimerContract:
    """
    What holds of each engine, also of one that a single thread has.

    @ivar waits: The engine; C{setUp} makes it.
    """

    waits: Waits

    def begun(self: Any, program: str, make: Callable[..., Popen[str]] = running) -> Popen[str]:
        """
        @param make: Starts it.

        @return: A process of the engine's that has said that it begins.
        """
        text = f"{PATH}\n{_WATCHED}\n{self.waits.program}\n{program}"
        process = make(self, "-c", text, cwd="/", stderr=PIPE)
        assert process.stdout is not None
        if process.stdout.readline() != "begins\n":
            self.fail(process.communicate(timeout=HANG_SECONDS))
        return process

    def assertSaid(self: Any, process: Popen[str], text: str) -> None:
        """
        A process ends in order, and has said this; if not, its complaints are shown.
        """
        said, complaints = process.communicate(timeout=HANG_SECONDS / 2)
        self.assertEqual((said, process.returncode), (text, 0), complaints)

    def test_timer(self: Any) -> None:
        """
        A timer runs in the thread that waits, and may be what it waits for; a wait in vain ends in time.
        """
        called: list[int] = []
        self.waits.timer(SOON, lambda: called.append(1))
        self.assertTrue(self.waits.wait(lambda: called, HANG_SECONDS))
        began = time.monotonic()
        self.assertFalse(self.waits.wait(lambda: False, SOON))
        self.assertGreaterEqual(time.monotonic() - began, SOON)

    def test_ownCondition(self: Any) -> None:
        """
        What the condition itself causes is not slept over.
        """
        done: list[int] = []

        def ready() -> bool:
            # Each time it is asked, so also the last time before a sleep.
            self.waits.timer(0, lambda: done.append(1))
            return len(done) > 2

        began = time.monotonic()
        self.assertTrue(self.waits.wait(ready, HANG_SECONDS))
        self.assertLess(time.monotonic() - began, HANG_SECONDS / 2)

    def test_busy(self: Any) -> None:
        """
        A wait in vain ends in time, also if something happens all the time.
        """

        def ready() -> bool:
            self.waits.timer(0, lambda: None)
            if time.monotonic() - began > HANG_SECONDS / 2:
                self.fail("it waits on")
            return False

        began = time.monotonic()
        self.assertFalse(self.waits.wait(ready, SOON))

    def test_stopped(self: Any) -> None:
        """
        A process that is stopped while it waits, beyond its timer, goes on where it was.
        """
        process = self.begun(
            "called = []\n"
            f"timer({STOPPED / 2}, lambda: called.append(1))\n"
            "print('begins', flush=True)\n"
            f"print(wait(lambda: called, {HANG_SECONDS}), wait(lambda: False, {SOON}))\n"
        )
        stop(process.pid)
        # Its timer is over then.
        time.sleep(STOPPED)
        process.send_signal(signal.SIGCONT)
        self.assertSaid(process, "True False\n")


class WaitingContract(TimerContract):
    """
    What holds of those that serve all threads.

    @ivar waits: The engine; C{setUp} makes it.
    """

    waits: ThreadWaits

    def asleep(self: Any, ready: Callable[[], object], seconds: float = HANG_SECONDS) -> Callable[[], object]:
        """
        Have another thread wait, and sleep.

        @return: What waits for its end, well before its own deadline, and returns what came of it.
        """
        ended = Waiting(self.waits, ready, seconds)
        waitUntil(lambda: self.waits.isAsleep() or not ended.thread.is_alive())
        return ended

    def test_earlierTimer(self: Any) -> None:
        """
        Another thread starts a timer, as that of a retransmission, which is due before all that the sleeper
        knows of, and does nothing more: it is in time.  So it is if the sleeper knows of one already.
        """
        for later in None, 2 * HANG_SECONDS:
            called: list[int] = []
            if later is not None:
                self.waits.timer(later, lambda: None)
            ended = self.asleep(lambda called=called: called)
            self.waits.timer(SOON, lambda called=called: called.append(1))
            self.assertEqual(ended(), [True])

    def test_told(self: Any) -> None:
        """
        What another thread changes ends the wait.
        """
        done: list[int] = []
        ended = self.asleep(lambda: done)
        self.waits.change(lambda: done.append(1))
        self.assertEqual(ended(), [True])

    def test_lockQueue(self: Any) -> None:
        """
        Threads that wait for the lock, when they begin to wait and when they have slept, have it once those
        before them leave.
        """
        self.patch(waiter, "UNTOLD_SECONDS", HANG_SECONDS)
        done: list[int] = []
        ends = [self.asleep(lambda: done)]
        queue: LockQueue = self.waits.lockQueue
        with self.waits.locked():
            for count in range(1, 5):
                ends.append(Waiting(self.waits, lambda: True, HANG_SECONDS))
                waitUntil(lambda count=count: len(queue) >= count)
        for ended in ends[1:]:
            self.assertEqual(ended(), [True])
        self.waits.change(lambda: done.append(1))
        self.assertEqual(ends[0](), [True])
        waitUntil(lambda: not queue)

    def test_leaderFirst(self: Any) -> None:
        """
        The one that drives has the lock before others that wait for it.
        """
        done: list[int] = []
        ended = self.asleep(lambda: done)
        queue: LockQueue = self.waits.lockQueue
        with self.waits.locked():
            others = [Waiting(self.waits, lambda: True, HANG_SECONDS) for _ in range(2)]
            waitUntil(lambda: len(queue) >= 2)
            before = list(queue)
            self.waits.change(lambda: done.append(1))
            waitUntil(lambda: len(queue) >= 3)
            self.assertNotIn(queue[0], before)
        self.assertEqual([each() for each in (ended, *others)], [[True]] * 3)

    def test_besidePolls(self: Any) -> None:
        """
        Threads have the lock beside one that polls, which takes it again at once each time.
        """
        done: list[int] = []

        def poll() -> None:
            while not done:
                self.waits.wait(lambda: True, 0)

        def use() -> None:
            for _ in range(USES):
                with self.waits.locked():
                    pass

        polling = threading.Thread(target=poll)
        polling.start()
        self.addCleanup(polling.join)
        self.addCleanup(done.append, 1)
        threads = [threading.Thread(target=use, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG_SECONDS / 2)
            self.assertFalse(thread.is_alive())

    def test_farDeadline(self: Any) -> None:
        """
        A deadline may be farther away than a system call sleeps: for each of two threads.
        """
        done: list[int] = []
        ends = [self.asleep(lambda: done, FAR) for _ in range(2)]
        self.waits.change(lambda: done.append(1))
        self.assertEqual([ended() for ended in ends], [[True], [True]])

    def test_garbage(self: Any) -> None:
        """
        What is dropped while the only thread that drives sleeps is closed.
        """
        done: list[int] = []
        ended = self.asleep(lambda: done)
        closed = threading.Event()
        self.waits.drop(closed.set)
        self.assertTrue(closed.wait(HANG_SECONDS / 2))
        self.waits.change(lambda: done.append(1))
        self.assertEqual(ended(), [True])

    def test_signal(self: Any) -> None:
        """
        A signal's handler waits within the sleep of its thread, and takes time that another thread uses to
        fulfil the outer wait.
        """
        inner: list[bool] = []
        outer: list[int] = []
        called: list[int] = []
        begun: list[int] = []

        def handler(*_: object) -> None:
            begun.append(1)
            if len(begun) > 1:
                return
            self.waits.timer(SOON, lambda: called.append(1))
            inner.append(self.waits.wait(lambda: called, HANG_SECONDS))

        before = signal.signal(signal.SIGUSR1, handler)
        self.addCleanup(signal.signal, signal.SIGUSR1, before)

        def beside() -> None:
            waitUntil(self.waits.isAsleep)
            # A signal between the interpreter's last look for one and poll(2) does not end that.
            while not begun:
                os.kill(os.getpid(), signal.SIGUSR1)
                time.sleep(0.01)
            waitUntil(lambda: called)
            self.waits.change(lambda: outer.append(1))

        thread = threading.Thread(target=beside)
        thread.start()
        self.addCleanup(thread.join)
        began = time.monotonic()
        self.assertTrue(self.waits.wait(lambda: outer, HANG_SECONDS))
        self.assertLess(time.monotonic() - began, HANG_SECONDS / 2)
        self.assertEqual(inner, [True])

    def test_noDescriptor(self: Any) -> None:
        """
        A wait that gets no descriptor says so, or needs none; other threads, and the next wait, are as
        before.
        """

        def full(*_: object) -> None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        done: list[int] = []
        ended = self.asleep(lambda: done)
        patches = [self.patch(os, name, full) for name in ("pipe", "eventfd")]
        try:
            self.assertFalse(self.waits.wait(lambda: False, SOON))
        except OSError as error:
            self.assertEqual(error.errno, errno.EMFILE)
        for patch in patches:
            patch.restore()
        self.waits.timer(SOON, lambda: done.append(1))
        self.assertEqual(ended(), [True])
        self.assertFalse(self.waits.wait(lambda: False, 0))

    def test_daemon(self: Any) -> None:
        """
        A process ends while daemon threads of it wait.
        """
        process = self.begun(
            "import threading\n"
            "asked = threading.Event()\n"
            "for _ in range(3):\n"
            "    threading.Thread(target=wait, args=(asked.set, 1e6), daemon=True).start()\n"
            "asked.wait()\n"
            "print('begins', flush=True)\n",
            # As the interpreter's own end.
            interpreter,
        )
        self.assertSaid(process, "")

    def test_forkBeside(self: Any) -> None:
        """
        A process forks while a thread of it waits: the child has no part in that, and waits for itself.
        """
        process = self.begun(
            "import os, threading\n"
            "asked, done = threading.Event(), []\n"
            "def ready():\n"
            "    asked.set()\n"
            "    return done\n"
            f"thread = threading.Thread(target=wait, args=(ready, {HANG_SECONDS}))\n"
            "thread.start()\n"
            "asked.wait()\n"
            "print('begins', flush=True)\n"
            "child = os.fork()\n"
            "if not child:\n"
            # Before its parent.
            f"    signal.alarm({int(HANG_SECONDS / 4)})\n"
            "    begin()\n"
            "    timer(0, lambda: done.append(1))\n"
            # Not 1, with which a traceback ends, too.
            f"    os._exit(2 + wait(lambda: done, {HANG_SECONDS}))\n"
            "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
            "timer(0, lambda: done.append(1))\n"
            "thread.join()\n"
        )
        self.assertSaid(process, "3\n")


__all__ = ["ThreadWaits", "TimerContract", "WaitingContract", "Waits"]
