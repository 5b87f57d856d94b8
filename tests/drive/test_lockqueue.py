"""
Threads that wait for a lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from tests.support.waiting import HANG_SECONDS, waitUntil
from twisted_ib.drive import waiter
from twisted_ib.drive.waiter import TRIES, LockQueue


class Asked:
    """
    A lock that is taken so many times.

    @ivar asked: How it was asked for.
    """

    def __init__(self, times: int) -> None:
        """
        See the class.
        """
        self.times = times
        self.asked: list[bool] = []

    def acquire(self, blocking: bool = True) -> bool:
        """
        Be taken or not.
        """
        self.asked.append(blocking)
        return blocking or len(self.asked) > self.times

    def release(self) -> None:
        """
        Do nothing.
        """


class LockQueueTests(SynchronousTestCase):
    """
    L{LockQueue}.
    """

    def setUp(self) -> None:
        """
        Make one, where nothing is found without being told.
        """
        self.patch(waiter, "UNTOLD_SECONDS", HANG_SECONDS)
        self.patch(waiter, "ASIDE_SECONDS", HANG_SECONDS)
        self.queue, self.lock = LockQueue(), threading.RLock()

    def inThread(self, call: Callable[[], object]) -> threading.Thread:
        """
        @return: A thread that calls it.
        """
        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        return thread

    def test_order(self) -> None:
        """
        The first that has waited has it first; each that leaves wakes one.
        """
        order: list[int] = []

        def use(number: int) -> None:
            self.queue.acquire(self.lock)
            order.append(number)
            self.lock.release()
            self.queue.wake()

        threads: list[threading.Thread] = []
        with self.lock:
            for number in range(4):
                threads.append(self.inThread(lambda number=number: use(number)))
                waitUntil(lambda number=number: len(self.queue) > number)
        self.queue.wake()
        for thread in threads:
            thread.join(HANG_SECONDS / 2)
            self.assertFalse(thread.is_alive())
        self.assertEqual(order, [0, 1, 2, 3])
        self.assertFalse(self.queue)

    def test_tries(self) -> None:
        """
        A thread does not sleep on the lock itself, which would be given to it while it lacks the interpreter;
        one that finds it taken again is the first again.
        """
        lock, other = Asked(2), threading.Lock()
        thread = self.inThread(lambda: self.queue.acquire(lock))
        waitUntil(lambda: self.queue)
        first = self.queue[0]
        self.queue.append(other)
        self.queue.wake()
        waitUntil(lambda: self.queue[0] is first)
        self.queue.wake()
        thread.join(HANG_SECONDS / 2)
        self.assertFalse(thread.is_alive())
        self.assertEqual(lock.asked, [False] * 3)
        self.assertEqual(list(self.queue), [other])

    def overtaken(self, lock: Asked) -> threading.Thread:
        """
        @return: A thread that has found a lock taken so often that others stand aside for it.
        """
        thread = self.inThread(lambda: self.queue.acquire(lock))
        for tries in range(1, TRIES):
            waitUntil(lambda tries=tries: self.queue and len(lock.asked) >= tries)
            self.queue.wake()
        waitUntil(lambda: self.queue and len(lock.asked) >= TRIES)
        return thread

    def test_overtaken(self) -> None:
        """
        For a thread that has found the lock taken each time those that leave it stand aside: none of them
        takes it again before, and it never sleeps on the lock itself, where nobody knows of it.
        """
        others = 3
        lock = Asked(TRIES + others - 1)
        thread = self.overtaken(lock)
        leaving: list[threading.Thread] = []
        for number in range(others):
            self.assertTrue(all(each.is_alive() for each in (thread, *leaving)))
            leaving.append(self.inThread(self.queue.wake))
            waitUntil(lambda number=number: len(lock.asked) > TRIES + number)
        for each in (thread, *leaving):
            each.join(HANG_SECONDS / 2)
            self.assertFalse(each.is_alive())
        self.assertEqual(lock.asked, [False] * (TRIES + others))
        self.assertFalse(self.queue)

    def test_overtakenFirst(self) -> None:
        """
        One that was overtaken stays the first while it tries again: those that come later are not woken.
        """
        lock, other = Asked(TRIES + 1), threading.Lock()
        other.acquire()
        thread = self.overtaken(lock)
        self.queue.append(other)
        leaving = [self.inThread(self.queue.wake)]
        waitUntil(lambda: len(lock.asked) > TRIES)
        leaving.append(self.inThread(self.queue.wake))
        for each in (thread, *leaving):
            each.join(HANG_SECONDS / 2)
            self.assertFalse(each.is_alive())
        self.assertTrue(other.locked())
        self.assertEqual(list(self.queue), [other])

    def test_asideLong(self) -> None:
        """
        A thread does not stand aside for ever: whoever has the lock may wait for what it has.
        """
        self.patch(waiter, "ASIDE_SECONDS", 0.01)
        lock = Asked(TRIES + 1)
        thread = self.overtaken(lock)
        self.queue.wake()
        waitUntil(lambda: len(lock.asked) > TRIES)
        self.queue.wake()
        thread.join(HANG_SECONDS / 2)
        self.assertFalse(thread.is_alive())

    def test_first(self) -> None:
        """
        One for whom others wait is before them.
        """
        other = threading.Lock()
        self.queue.append(other)
        with self.lock:
            thread = self.inThread(lambda: self.queue.acquire(self.lock, True) or self.lock.release())
            waitUntil(lambda: len(self.queue) > 1)
            self.assertIs(self.queue[1], other)
        self.queue.wake()
        thread.join(HANG_SECONDS / 2)
        self.assertFalse(thread.is_alive())

    def test_main(self) -> None:
        """
        The main thread, whose handlers of signals may wait within that, sleeps on the lock.
        """
        lock: Any = Asked(2)
        self.queue.acquire(lock)
        self.assertEqual(lock.asked, [True])
        self.assertIs(self.queue.held(lock), lock)
        self.assertEqual(lock.asked, [True])

    def test_untold(self) -> None:
        """
        Should nobody wake it, as one whose signal's handler raises before it does, it tries again.
        """
        self.patch(waiter, "UNTOLD_SECONDS", 0.01)
        for leaves in (lambda: None, lambda: self.queue.popleft()):
            with self.lock:
                thread = self.inThread(lambda: self.queue.acquire(self.lock) or self.lock.release())
                waitUntil(lambda: self.queue)
                leaves()
            thread.join(HANG_SECONDS / 2)
            self.assertFalse(thread.is_alive())
            self.assertFalse(self.queue)

    def test_held(self) -> None:
        """
        A thread that has waited for its turn has the lock in its C{with} statement without taking it again,
        before which another one might, and gives it back once.
        """
        happened: list[str] = []
        lock = mock.Mock(
            acquire=lambda blocking: bool(happened.append("take") or len(happened) > 2),
            release=lambda: happened.append("release"),
        )

        def use() -> None:
            with self.queue.held(lock):
                happened.append("use")

        thread = self.inThread(use)
        waitUntil(lambda: self.queue)
        self.queue.wake()
        thread.join(HANG_SECONDS / 2)
        self.assertFalse(thread.is_alive())
        self.assertEqual(happened, ["take", "take", "take", "use", "release"])
