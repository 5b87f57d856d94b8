"""
Threads that wait while another one drives, or for the lock of who drives; the lock that a forked child finds
in the place of theirs; and handlers of signals, which wait for the lock, too.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from operator import itemgetter, methodcaller
from threading import Lock, get_ident, main_thread
from types import FrameType
from typing import Final, NoReturn, ParamSpec, Protocol, TypeAlias, TypeVar, cast

from twisted_ib.drive.sleeper import bounded, milliseconds
from twisted_ib.errors import ForkedSocketError

Handler: TypeAlias = Callable[[int, FrameType | None], object]
Waiting: TypeAlias = dict[int, tuple[Handler, FrameType | None]]
# Now: the names may stand for others later (L{twisted_ib.blocking.patch}).
_close, _dup2 = os.close, os.dup2
_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")

#: Seconds after which a thread tries a lock again although nobody has woken it: an error that a signal's
#: handler raises may keep the one that leaves from that.
UNTOLD_SECONDS: Final = 0.5
#: How often it tries in vain, before those that leave the lock stand aside until it has it.
TRIES: Final = 4
#: Seconds for which they do so, at most: one that has it may need what they have.
ASIDE_SECONDS: Final = 0.5


def isMain() -> bool:
    """
    @return: Whether the calling thread is the one in which handlers of signals run.
    """
    return get_ident() == main_thread().ident


def endWaits(descriptor: int) -> None:
    """
    End what waits for a descriptor in this process alone, a forked child: it is another file there, which is
    ready at once, and no epoll(7).
    """
    # None may be free.
    with suppress(OSError):
        ready = os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        _dup2(ready, descriptor, False)
        _close(ready)


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
    @ivar alarm: A descriptor that ends its next sleep, or this one, once it is to look as the deputy; -1 for
        none.
    @ivar grace: Seconds after which it looks, as the deputy.
    @ivar leaves: How often leaders had left when the deputy last looked.
    """

    __slots__ = ("alarm", "bell", "grace", "leaves", "lock", "thread")

    def __init__(self, ready: Callable[[], object], grace: float) -> None:
        """
        @param ready: See the class; C{grace}, likewise.
        """
        super().__init__(ready)
        self.bell, self.alarm, self.grace, self.leaves = -1, -1, grace, 0
        self.thread = get_ident()
        self.lock = Lock()
        self.lock.acquire()

    def wake(self) -> None:
        if self.bell >= 0:
            os.eventfd_write(self.bell, 1)
        elif self.lock.locked():
            self.lock.release()

    def leave(self) -> None:
        """
        The process is a forked child: end its sleep there alone.
        """
        if self.bell >= 0:
            endWaits(self.bell)
        else:
            self.wake()

    def sleep(self, seconds: float | None, kernel: select.poll | None) -> bool:
        """
        Wait to be woken.

        @return: False when the time is over, or by the alarm alone.
        """
        if kernel is None:
            return self.lock.acquire(True, bounded(seconds))
        alarm = self.alarm
        try:
            if alarm >= 0:
                kernel.register(alarm, select.POLLIN)
            found = [descriptor for descriptor, _ in kernel.poll(milliseconds(seconds))]
        finally:
            if alarm >= 0:
                # A signal's handler may have raised before it was there.
                with suppress(KeyError):
                    kernel.unregister(alarm)
                self.alarm = -1
        if self.bell in found:
            os.eventfd_read(self.bell)
        return found not in ([], [alarm])


class TakenLock(Protocol):
    """
    The lock of who drives, for a thread that waits for it.
    """

    def acquire(self, blocking: bool = ...) -> bool:
        """
        Take it.

        @return: Whether it was free.
        """

    def release(self) -> None:
        """
        Give it back.
        """


class DrivingLock(TakenLock, Protocol):
    """
    The same for who drives: an C{RLock}, or what stands for one.
    """

    def _at_fork_reinit(self) -> None: ...
    def _is_owned(self) -> bool: ...
    def _release_save(self) -> object: ...
    def _acquire_restore(self, held: object, /) -> None: ...
    def __enter__(self) -> object: ...
    def __exit__(self, *exception: object) -> None: ...


class LockQueue(deque[Lock]):
    """
    Threads that wait for a lock, the first first, each on a lock of its own: whoever leaves wakes one of
    them, which tries.

    A thread that sleeps on the lock itself is given it while it lacks the interpreter, and has it for as long
    as it waits for that.  Others find it taken meanwhile, and sleep on it, too: of many threads that use it
    all soon do nothing but hand it on (a lock convoy).  So none does.

    A thread that has just left may take the lock again before the one that it woke has the interpreter, and
    one that polls does so each time.  So for the first that has tried L{TRIES} times in vain each thread that
    leaves stands aside until it has the lock: from then on every other thread is before it once at most.

    @ivar main: The thread in which handlers of signals run, and wait: it sleeps on the lock.
    """

    def __init__(self) -> None:
        super().__init__()
        self.main = main_thread().ident
        # Of each that was overtaken, by its own lock: what is free once it has the lock that it waits for.
        self._passed: dict[Lock, Lock] = {}

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
        tries = 0
        try:
            while not lock.acquire(False):
                tries += 1
                if tries == TRIES:
                    passed = Lock()
                    passed.acquire()
                    self._passed[own] = passed
                if own.acquire(True, UNTOLD_SECONDS) and (tries < TRIES or own not in self):
                    self.appendleft(own)
        finally:
            with suppress(ValueError):
                self.remove(own)
            if tries >= TRIES:
                self._passed.pop(own).release()

    def held(self, lock: DrivingLock) -> AbstractContextManager[object]:
        """
        Take it, in the turn of this thread.

        @return: For a C{with} statement, which gives it back.  In the main thread it is the lock itself,
            which that takes: between its parts no handler of a signal runs.
        """
        if get_ident() == self.main:
            return lock
        if not lock.acquire(False):
            self.acquire(lock)
        return _Taken(lock)

    def giveUp(self, lock: TakenLock) -> None:
        """
        A signal's handler has raised while this thread took a lock: release it, should it be taken.
        """
        with suppress(RuntimeError):
            lock.release()
            self.wake()

    def wake(self) -> None:
        """
        The lock is free: wake the first, and let it pass if it has been overtaken.
        """
        try:
            own = self[0]
            if own not in self._passed:
                own = self.popleft()
        except IndexError:
            # Another thread has woken it.
            return
        passed = self._passed.get(own)
        with suppress(RuntimeError):
            # Another thread may have woken one that stays the first.
            own.release()
        if passed is not None and passed.acquire(True, ASIDE_SECONDS):
            passed.release()


class _Taken(AbstractContextManager[None]):
    # A lock that its thread has.

    __slots__ = ("_lock",)

    def __init__(self, lock: TakenLock) -> None:
        self._lock = lock

    def __exit__(self, *exception: object) -> None:
        self._lock.release()


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

    def _at_fork_reinit(self) -> None:
        # It refuses the children of this child, too.
        pass

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
    A reactor of several threads: its lock, and those that wait for that.
    """

    lock: DrivingLock
    lockQueue: LockQueue


#: How often a thread had a lock that L{_release} gave back.
_times: Final = cast("Callable[[object], int]", itemgetter(0))
#: Gives a lock back, as often as its thread has it, and returns what takes it again.
_release: Final = cast("Callable[[DrivingLock], object]", methodcaller("_release_save"))


class Handlers:
    """
    Handlers of signals in this process: they wait while the thread that they interrupt has the lock of who
    drives.

    The interpreter calls one between any two instructions of the main thread, and it may raise, as that of
    SIGINT does.  The state that the lock protects is half changed then: octets would be lost, or sent twice.
    They are called once the lock is free, as after a system call: before it is taken, while its thread
    sleeps, and when it is given back.

    @ivar waiting: Those that wait, by signal, with the frame that it has interrupted.
    """

    def __init__(self) -> None:
        self.waiting: Waiting = {}
        self._lock: DrivingLock | None = None
        self._depth = 0
        self._isInstalled = False

    def protect(self, lock: DrivingLock | None) -> Waiting:
        """
        Have them wait for a lock.

        @param lock: L{None} for none, as when it is not given back any more.
        @return: Those that wait: who gives the lock back looks, and has L{call} called.
        """
        self._lock = lock
        return self.waiting

    def forked(self) -> None:
        """
        The process is a forked child: those that wait are called in its parent, and what else they wait for
        may be a thread that is not here.
        """
        self._lock, self._depth = None, 0
        self.waiting.clear()

    def install(self, sameAction: Callable[[int], AbstractContextManager[object]]) -> None:
        """
        Have the program's handlers wait, those of today and those to come, if this is the main thread: others
        may set none.

        @param sameAction: Within what it returns the kernel keeps its handler of a signal: that may be one in
            C that calls the program's (faulthandler), or restart system calls.
        """
        if self._isInstalled or not isMain():
            return
        plain = cast("_Signals", sys.modules["_signal"])
        try:
            for number in plain.valid_signals():
                handler = plain.getsignal(number)
                if not (handler is None or isinstance(handler, (int, _Kept))):
                    with sameAction(number):
                        plain.signal(number, _Kept(self, cast("Handler", handler)))
        except ValueError:
            # The first thread that has imported threading, in a C program; or another interpreter's.
            return
        # signal.signal and getsignal call this one, whatever the names by which a program has them.
        setattr(signal, _MODULE, _KeptSignals(self, plain))
        self._isInstalled = True

    def areKept(self) -> bool:
        """
        @return: Whether they wait now; asked in the main thread.
        """
        return self._depth > 0 or (self._lock is not None and self._lock._is_owned())

    @contextmanager
    def keep(self) -> Iterator[None]:
        """
        Within this context they wait, whether the lock is free or not.
        """
        if not isMain():
            # They interrupt the main thread alone, whose the depth is.
            yield
            return
        depth = self._depth
        try:
            self._depth = depth + 1
            yield
        finally:
            self._depth = depth
            self.call()

    def call(self) -> None:
        """
        Call those that have waited, unless they still do.
        """
        if self.waiting and not self.areKept() and isMain():
            # The handler of another signal, between any two of these steps, may have called them all.
            number = min(self.waiting, default=0)
            handler, frame = self.waiting.pop(number, (_nothing, None))
            try:
                handler(number, frame)
            finally:
                self.call()

    def left(self, driving: Driving) -> None:
        """
        The lock was given back, perhaps only once of several times.
        """
        if driving.lockQueue and not driving.lock._is_owned():
            driving.lockQueue.wake()
        self.call()

    def aside(
        self,
        driving: Driving,
        isFirst: bool,
        call: Callable[_Arguments, _Result],
        *arguments: _Arguments.args,
        **named: _Arguments.kwargs,
    ) -> _Result:
        """
        Call something without the lock, in which the calling thread is.

        @param isFirst: Whether it has the lock again before those that wait.
        @raise ForkedSocketError: A signal's handler has forked meanwhile, and this is the child.
        """
        isHandling = get_ident() == driving.lockQueue.main
        held: list[object] = []
        lock = driving.lock
        try:
            # In one step: as soon as the lock is free, a signal's handler may raise.
            held.extend(map(_release, (lock,)))
            if driving.lockQueue:
                driving.lockQueue.wake()
            if self.waiting:
                self.call()
            return call(*arguments, **named)
        finally:
            if isHandling:
                # In one step, too: amid a function of Python it may raise.
                lock._acquire_restore(held[0])
                if driving.lock is not lock:
                    # It has forked, and this is the child: those that called this give back what they took.
                    driving.lock.acquire()
            else:
                # Not in that step, which sleeps on the lock itself if another thread is faster.
                if not lock.acquire(False):
                    driving.lockQueue.acquire(lock, isFirst)
                for _ in range(_times(held[0]) - 1):
                    lock.acquire(False)


class _Kept:
    # A handler of the program's, as the interpreter has it.

    __slots__ = ("handler", "owner")

    def __init__(self, owner: Handlers, handler: Handler) -> None:
        self.owner, self.handler = owner, handler

    @property
    def __call__(self) -> Handler:
        # Of a traceback this is no part: what is called is the program's own.
        owner = self.owner
        return self._keep if owner.waiting or owner.areKept() else self.handler

    def _keep(self, number: int, frame: FrameType | None) -> None:
        # Or have its turn among those that wait.
        self.owner.waiting[number] = self.handler, frame
        self.owner.call()


class _Signals(Protocol):
    # The functions of its module in C that signal.py calls.

    def signal(self, number: int, handler: object, /) -> object: ...

    def getsignal(self, number: int, /) -> object: ...

    def valid_signals(self) -> set[int]: ...


#: The name by which it has that module.
_MODULE: Final = "_signal"


class _KeptSignals:
    # In the place of the module.

    def __init__(self, owner: Handlers, plain: _Signals) -> None:
        self._owner, self._plain = owner, plain

    def __getattr__(self, name: str) -> object:
        return _attribute(self._plain, name)

    def signal(self, number: int, handler: object, /) -> object:
        # At once: the program may have it called by one in C.  What is none is refused.
        kept = _Kept(self._owner, cast("Handler", handler)) if _isCallable(handler) else handler
        return _handlerOf(self._plain.signal(number, kept))

    def getsignal(self, number: int, /) -> object:
        return _handlerOf(self._plain.getsignal(number))


def _nothing(number: int, frame: FrameType | None) -> None:
    pass


_isCallable: Final[Callable[[object], bool]] = callable
_attribute: Final[Callable[[object, str], object]] = getattr


def _handlerOf(found: object) -> object:
    return found.handler if isinstance(found, _Kept) else found


#: Of this process.
handlers: Final = Handlers()
