"""
Threads that wait while another one drives, or for the lock of who drives, and the lock that a forked child
finds in the place of theirs.
"""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import Lock, get_ident, main_thread
from typing import Final, NoReturn, ParamSpec, Protocol, TypeVar

from twisted_ib.drive.sleeper import bounded, milliseconds
from twisted_ib.errors import ForkedSocketError

_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")

#: Seconds after which a thread tries a lock again although nobody has woken it: an error that a signal's
#: handler raises may keep the one that leaves from that.
UNTOLD_SECONDS: Final = 0.5
#: How often it tries, before it sleeps on the lock itself.
TRIES: Final = 4


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


class DrivingLock(Protocol):
    """
    The lock of who drives: an C{RLock}, or what stands for one.
    """

    def acquire(self, blocking: bool = ...) -> bool: ...
    def release(self) -> None: ...
    def _is_owned(self) -> bool: ...
    def _release_save(self) -> object: ...
    def _acquire_restore(self, held: object, /) -> None: ...
    def __enter__(self) -> object: ...
    def __exit__(self, *exception: object) -> None: ...


class TakenLock(Protocol):
    """
    The same, for who waits for it.
    """

    def acquire(self, blocking: bool = ...) -> bool: ...
    def release(self) -> None: ...


class LockQueue(deque[Lock]):
    """
    Threads that wait for a lock, the first first, each on a lock of its own: whoever leaves wakes one of
    them, which tries.

    A thread that sleeps on the lock itself is given it while it lacks the interpreter, and has it for as long
    as it waits for that.  Others find it taken meanwhile, and sleep on it, too: of many threads that use it
    all soon do nothing but hand it on (a lock convoy).  So only one that has tried in vain does: a thread
    that polls takes the lock again each time before another has the interpreter.

    @ivar main: The thread in which handlers of signals run, and wait: it sleeps on the lock.
    """

    def __init__(self) -> None:
        super().__init__()
        self.main = main_thread().ident

    def acquire(self, lock: TakenLock, isFirst: bool = False) -> None:
        """
        Take a lock that was not free.

        @param isFirst: Whether that is before all others, which wait for what this thread does.
        """
        if get_ident() == self.main:
            lock.acquire()
            return
        own = Lock()
        own.acquire()
        (self.appendleft if isFirst else self.append)(own)
        try:
            for _ in range(TRIES):
                if lock.acquire(False):
                    return
                if not own.acquire(True, UNTOLD_SECONDS):
                    break
                self.appendleft(own)
        finally:
            with suppress(ValueError):
                self.remove(own)
        lock.acquire()

    def awaitFree(self, lock: TakenLock, isFirst: bool = False) -> None:
        """
        Wait until it is free: for who takes it by C{with}, between whose parts no handler of a signal runs.

        @param isFirst: See L{acquire}.
        """
        if get_ident() != self.main:
            if not lock.acquire(False):
                self.acquire(lock, isFirst)
            lock.release()

    def wake(self) -> None:
        """
        The lock is free: wake the first.
        """
        try:
            self.popleft().release()
        except IndexError:
            # Another thread has woken it.
            pass


class NoLock:
    """
    The lock in a forked child.

    @cvar refusing: called each time before it refuses; nothing by default.
    """

    refusing: Callable[[], object] = staticmethod(lambda: None)

    def acquire(self, blocking: bool = True) -> NoReturn:
        """
        Refuse.

        @raise ForkedSocketError: always.
        """
        self.refusing()
        raise ForkedSocketError()

    def __enter__(self) -> None:
        self.acquire()

    def _is_owned(self) -> bool:
        # Those that wait for it are the parent's.
        return True

    def _release_save(self) -> NoReturn:
        self.acquire()

    def _acquire_restore(self, held: object, /) -> None:
        self.acquire()

    def release(self) -> None:
        """
        Do nothing: the fork happened while its thread had the lock.
        """

    def __exit__(self, *_: object) -> None:
        raise AssertionError("never entered")


class Driving(Protocol):
    """
    What threads drive that have its lock.
    """

    lock: DrivingLock
    lockQueue: LockQueue


def aside(
    driving: Driving,
    isFirst: bool,
    call: Callable[_Arguments, _Result],
    *arguments: _Arguments.args,
    **named: _Arguments.kwargs,
) -> _Result:
    """
    Call something without the lock, in which the calling thread is.

    @param isFirst: Whether it has the lock again before those that wait.
    """
    isHandling = get_ident() == driving.lockQueue.main
    held = driving.lock._release_save()
    try:
        if driving.lockQueue:
            driving.lockQueue.wake()
        return call(*arguments, **named)
    finally:
        if not isHandling:
            if not driving.lock.acquire(False):
                driving.lockQueue.acquire(driving.lock, isFirst)
            driving.lock.release()
        # In one step: amid a function of Python a signal's handler may raise.
        driving.lock._acquire_restore(held)
