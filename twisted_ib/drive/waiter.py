"""
Threads that wait while another one drives, and the lock that a forked child finds in the place of theirs.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterable
from threading import Lock, get_ident, main_thread

from twisted_ib.drive.sleeper import bounded, milliseconds
from twisted_ib.errors import ForkedSocketError


def isMain() -> bool:
    """
    @return: Whether the calling thread is the one in which handlers of signals run.
    """
    return get_ident() == main_thread().ident


class Follower:
    """
    A thread that waits, as the one that drives sees it.

    @ivar ready: Whether its condition holds, asked under the lock of who drives, by any thread.  An error it
        raises again when it is asked again.
    @ivar done: Whether it was told that its condition holds.
    """

    __slots__ = ("done", "ready")

    def __init__(self, ready: Callable[[], object]) -> None:
        """
        @param ready: See the class.
        """
        self.ready, self.done = ready, False

    def wake(self) -> None:
        """
        End its sleep.
        """
        raise NotImplementedError


def tell(followers: Iterable[Follower]) -> int:
    """
    Wake those whose conditions hold.  The lock of who drives is held.

    @return: How many there were.
    """
    woken = 0
    for each in followers:
        if not each.done and _holds(each):
            each.done = True
            each.wake()
            woken += 1
    return woken


def _holds(follower: Follower) -> object:
    try:
        return follower.ready()
    except Exception:
        # An error is for its own thread, which asks itself.  But in the main thread it may be one of a
        # signal's handler, which is for this one: that of a condition comes again.
        if not isMain():
            return True
        try:
            if follower.ready():
                follower.done = True
                follower.wake()
        except Exception:
            return True
        raise


class Waiter(Follower):
    """
    A thread that sleeps on a lock.

    @ivar bell: An event counter, if it waits for descriptors of the kernel too, else -1.
    @ivar grace: Seconds after which it looks, as the deputy.
    @ivar leaves: How often leaders had left when the deputy last looked.
    """

    __slots__ = ("bell", "grace", "leaves", "lock", "thread")

    def __init__(self, ready: Callable[[], object], grace: float) -> None:
        """
        @param ready: See the class; C{grace}, likewise.
        """
        super().__init__(ready)
        self.bell, self.grace, self.leaves = -1, grace, 0
        self.thread = get_ident()
        self.lock = Lock()
        self.lock.acquire()

    def wake(self) -> None:
        if self.bell >= 0:
            os.eventfd_write(self.bell, 1)
        elif self.lock.locked():
            self.lock.release()

    def sleep(self, seconds: float | None, kernel: select.poll | None) -> bool:
        """
        Wait to be woken.

        @return: False when the time is over.
        """
        if kernel is None:
            return self.lock.acquire(True, bounded(seconds))
        found = kernel.poll(milliseconds(seconds))
        if any(descriptor == self.bell for descriptor, _ in found):
            os.eventfd_read(self.bell)
        return bool(found)


class NoLock:
    """
    The lock in a forked child.

    @cvar refusing: called each time before it refuses; nothing by default.
    """

    refusing: Callable[[], object] = staticmethod(lambda: None)

    def acquire(self) -> None:
        """
        Refuse.

        @raise ForkedSocketError: always.
        """
        self.refusing()
        raise ForkedSocketError()

    def __enter__(self) -> None:
        self.acquire()

    def _acquire_restore(self, held: object) -> None:
        self.acquire()

    def release(self) -> None:
        """
        Do nothing: the fork happened while its thread had the lock.
        """

    def __exit__(self, *_: object) -> None:
        raise AssertionError("never entered")
