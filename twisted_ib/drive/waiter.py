"""
Threads that wait while another one drives, and the lock that a forked child finds in the place of theirs.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterable
from threading import Lock, get_ident, main_thread
from typing import Protocol

from twisted_ib.drive.sleeper import bounded, milliseconds
from twisted_ib.errors import ForkedSocketError


class Follower(Protocol):
    """
    A thread that waits, as the one that drives sees it.

    @ivar done: Whether it was told that its condition holds.
    """

    done: bool

    @property
    def ready(self) -> Callable[[], object]:
        """
        @return: A function: whether its condition holds.  An error it raises again when it is asked again.
        """

    def wake(self) -> None:
        """
        End its sleep.
        """


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
        if get_ident() != main_thread().ident:
            return True
        try:
            if follower.ready():
                follower.done = True
                follower.wake()
        except Exception:
            return True
        raise


class Waiter:
    """
    A thread that follows.

    @ivar ready: Whether its condition holds, asked under the lock of who drives, by any thread.
    @ivar bell: An event counter, if it waits for descriptors of the kernel too, else -1.
    @ivar done: Whether its condition held.
    @ivar grace: Seconds after which it looks, as the deputy.
    @ivar leaves: How often leaders had left when the deputy last looked.
    """

    __slots__ = ("bell", "done", "grace", "leaves", "lock", "ready", "thread")

    def __init__(self, ready: Callable[[], object], grace: float) -> None:
        """
        @param ready: See the class; C{grace}, likewise.
        """
        self.ready, self.grace = ready, grace
        self.bell, self.leaves, self.done = -1, 0, False
        self.thread = get_ident()
        self.lock = Lock()
        self.lock.acquire()

    def wake(self) -> None:
        """
        End its sleep.
        """
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
