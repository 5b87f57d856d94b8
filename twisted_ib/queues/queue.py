"""
The queues of C{multiprocessing} through shared memory.

An object that has room in the ring is put there by the thread that calls C{put}, as long as none is before
it; others wait in a buffer for a thread that feeds the ring, as all do in C{multiprocessing}.  Counters are
changed in such an order that a process that is killed leaves room for one object too many, never too few,
until the queue is empty again; what a writer has put is counted for it.
"""

from __future__ import annotations

import threading
import traceback
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from multiprocessing import context
from multiprocessing.util import Finalize, is_exiting, register_after_fork
from queue import Empty, Full
from typing import Any, Final

from twisted_ib import limits
from twisted_ib.drive.process import monotonic
from twisted_ib.queues import futex
from twisted_ib.queues.connection import Connection, Pipe
from twisted_ib.queues.locks import RobustLock, SharedPage
from twisted_ib.queues.pickling import Pickled, loads, pieces

#: Cells: objects put directly, put into a buffer, taken, and lost as they could not be sent; tasks not done.
DIRECT: Final = 0
LATER: Final = 1
GOT: Final = 2
LOST: Final = 3
UNFINISHED: Final = 4
#: How many objects are in the buffer of each process that has one; who feeds the ring of it has the lock.
BUFFERED: Final = 5
#: Who is about to publish the end of a message: one more than its cell, L{DIRECT} or that of its buffer; or
#: 0; and the end of the ring then.  Both are of who has the lock for writers.
SENDER: Final = BUFFERED + limits.QUEUE_FEEDERS
SINCE: Final = SENDER + 1
#: Whether the reader that has the lock has counted an object that it has not taken yet.
TAKING: Final = SINCE + 1
#: Added to L{SENDER} while it is counted for one that was killed.
_MENDED: Final = 1 << 32

#: Locks: for the counters, for readers, for writers, for buffers.
_COUNTERS, _READERS, _WRITERS, BUFFERS = range(4)

#: For a queue without a bound, as SEM_VALUE_MAX is in C{multiprocessing}.
_MANY: Final = (1 << 31) - 1
#: Seconds for another process to put its object; its feeding thread takes longer if the ring is full.
_OTHERS: Final = 0.0005

_SENTINEL: Final = object()


def _announce(cells: memoryview, cell: int, tail: int) -> None:
    cells[SENDER] = 0
    cells[SINCE] = tail
    cells[SENDER] = cell + 1


def _mend(cells: memoryview, writer: Connection) -> None:
    # A writer was killed: count for it what it has put.
    writer.repair()
    sender = cells[SENDER]
    if sender:
        if sender < _MENDED and writer.ends()[1].tail != cells[SINCE]:
            # Not twice, if this one is killed too.
            cells[SENDER] = sender + _MENDED
            cells[sender - 1] += 1 if sender == DIRECT + 1 else -1
        cells[SENDER] = 0


class _LockedPipe:
    """
    A simplex pipe with many readers and writers.
    """

    def __init__(self) -> None:
        self._page = SharedPage()
        self._reader, self._writer = Pipe(False)
        self._reader.lookAgain()
        self._locks()

    def _locks(self) -> None:
        self._cells = self._page.cells
        self._rlock = RobustLock(self._page, _READERS, partial(self._cells.__setitem__, TAKING, 0))
        self._wlock = RobustLock(self._page, _WRITERS, partial(_mend, self._cells, self._writer))

    def __getstate__(self) -> tuple[Any, ...]:
        context.assert_spawning(self)
        return self._page, self._reader, self._writer

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._page, self._reader, self._writer = state
        self._locks()


class SimpleQueue(_LockedPipe):
    """
    A queue without a buffer: C{put} waits until there is room.
    """

    def __init__(self, *, ctx: Any = None) -> None:
        """
        @param ctx: nothing depends on it.
        """
        _LockedPipe.__init__(self)

    def close(self) -> None:
        """
        Close both ends in this process.
        """
        self._reader.close()
        self._writer.close()

    def empty(self) -> bool:
        """
        @return: Whether there is nothing.
        """
        return not self._reader.poll()

    def get(self) -> Any:
        """
        Take an object; wait for one.
        """
        with self._rlock:
            parts = self._reader.receiveParts()
        return loads(*parts)

    def put(self, obj: object) -> None:
        """
        Send an object; wait until there is room.
        """
        parts = pieces(obj)
        with self._wlock:
            self._writer.sendParts(parts)


def _join(reference: weakref.ref[threading.Thread]) -> None:
    thread = reference()
    if thread is not None:
        thread.join()


class _Feeder:
    """
    The buffer of a queue in one process, and what its thread does: it knows no queue, which may be dropped.

    @ivar waiting: objects that are not in the ring yet.
    """

    def __init__(self, pipe: _LockedPipe, counters: RobustLock) -> None:
        self._reader, self._writer = pipe._reader, pipe._writer
        self._cells, self._wlock, self._counters = pipe._cells, pipe._wlock, counters
        self._page = pipe._page
        self._buffer: deque[Any] = deque()
        # Of this buffer; none if too many processes have one.
        self._cell = 0
        self._announce: Callable[[int], object] | None = None
        self.isReady = threading.Event()
        self._notEmpty = threading.Condition()
        self.waiting = 0
        self.ignoresEnd = False
        self.failed: Callable[[Exception, object], object] = print

    def append(self, obj: object) -> None:
        with self._notEmpty:
            # The end is no object: a process may be killed while it waits for that.
            if obj is not _SENTINEL:
                self._count(1)
            self._buffer.append(obj)
            self._notEmpty.notify()

    def _count(self, change: int) -> None:
        self.waiting += change
        if self._cell:
            self._cells[self._cell] = self.waiting

    def run(self) -> None:
        try:
            lock = self._taken()
        finally:
            self.isReady.set()
        try:
            self._feed()
        finally:
            if lock is not None:
                lock.release()

    def _taken(self) -> RobustLock | None:
        for number in range(limits.QUEUE_FEEDERS):
            lock = RobustLock(self._page, BUFFERS + number)
            if not self._cells[BUFFERED + number] and lock.acquire(False):
                self._cell = BUFFERED + number
                self._announce = partial(_announce, self._cells, self._cell)
                return lock
        return None

    def _feed(self) -> None:
        while True:
            with self._notEmpty:
                while not self._buffer:
                    self._notEmpty.wait()
                obj = self._buffer.popleft()
            if obj is _SENTINEL:
                self._reader.close()
                self._writer.close()
                return
            try:
                parts = pieces(obj)
                with self._wlock:
                    try:
                        self._writer.sendParts(parts, self._announce)
                    except BaseException:
                        self._cells[SENDER] = 0
                        raise
                    with self._notEmpty:
                        self._cells[SENDER] = 0
                        self._count(-1)
            except Exception as error:
                # What it uses may be gone when the process ends.
                if is_exiting() or (self.ignoresEnd and isinstance(error, BrokenPipeError)):
                    return
                with self._counters:
                    self._cells[LOST] += 1
                self.failed(error, obj)
                with self._notEmpty:
                    self._count(-1)
            # Not until the next comes.
            del obj


class Queue(_LockedPipe):
    """
    A queue, with at most C{maxsize} objects if that is positive.
    """

    def __init__(self, maxsize: int = 0, *, ctx: Any = None) -> None:
        """
        @param maxsize: objects, in the ring and in all buffers.
        @param ctx: nothing depends on it.
        """
        _LockedPipe.__init__(self)
        self._maxsize = maxsize if maxsize > 0 else _MANY
        # For concurrent.futures.
        self._ignore_epipe = False
        self._reset()

    def __getstate__(self) -> tuple[Any, ...]:
        return (*_LockedPipe.__getstate__(self), self._maxsize, self._ignore_epipe)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _LockedPipe.__setstate__(self, state[:3])
        self._maxsize, self._ignore_epipe = state[3:]
        self._reset()

    def _reset(self, after_fork: bool = False) -> None:
        # The child of a fork has no thread, and nothing in its buffer.
        self._counters = RobustLock(self._page, _COUNTERS)
        self._feeder = _Feeder(self, self._counters)
        self._thread: threading.Thread | None = None
        self._jointhread: Any = None
        self._joincancelled = False
        self._closed = False
        self._close: Any = None
        if not after_fork:
            register_after_fork(self, Queue._after_fork)

    def _after_fork(self) -> None:
        self._reset(True)

    # -- counting

    def qsize(self) -> int:
        """
        @return: About how many objects there are, those in buffers included.
        """
        cells = self._cells
        return max(0, cells[DIRECT] + cells[LATER] - cells[GOT] - cells[LOST])

    def empty(self) -> bool:
        """
        @return: Whether there is nothing.
        @raise OSError: the queue is closed.
        """
        if self._closed:
            raise OSError(f"Queue {self!r} is closed")
        return not self._reader.poll()

    def full(self) -> bool:
        """
        @return: Whether there is no room.
        """
        return self.qsize() >= self._maxsize

    def _waitForRoom(self, block: bool, end: float | None) -> None:
        cells = self._cells
        while True:
            got = cells[GOT]
            # Below 0 something is counted that was not put.
            if 0 <= cells[DIRECT] + cells[LATER] - got - cells[LOST] < self._maxsize:
                return
            try:
                self._lock(block, end)
                self._recover()
            finally:
                self._counters.abandon()
            if not self.full():
                return
            left = limits.QUEUE_LOOK_SECONDS
            if end is not None:
                left = min(left, end - monotonic())
            if not block or left <= 0:
                raise Full
            futex.wait(cells, GOT, got, left)

    def _lock(self, block: bool, end: float | None) -> None:
        # Others have the counters for a moment only, but may be stopped then.
        left = None if block and end is None else limits.QUEUE_LOOK_SECONDS
        if block and left is not None and end is not None:
            left = max(left, end - monotonic())
        if not self._counters.acquire(True, left):
            raise Full

    def _recover(self) -> None:
        # Count as lost what processes that were killed had in their buffers, and as put what they had put
        # but not counted, or had counted as taken but not taken.  The counters are locked.
        cells = self._cells
        # The last writer may have been killed before it counted what it had put: then the lock is free, and
        # taking it counts that.  Else another has the lock and may count it now.
        if self._wlock.acquire(False):
            self._wlock.release()
        for number in range(limits.QUEUE_FEEDERS):
            cell = BUFFERED + number
            if cells[cell]:
                lock = RobustLock(self._page, BUFFERS + number)
                if lock.acquire(False):
                    if cells[SENDER] % _MENDED != cell + 1:
                        cells[LOST] += cells[cell]
                        cells[cell] = 0
                    lock.release()
        isMended = cells[SENDER] % _MENDED != DIRECT + 1
        # A writer into a bounded queue has the counters too, and only what is there is taken, but by a reader
        # that waits with a part of a message: else there are never less than none.
        lack = cells[GOT] + cells[LOST] - cells[DIRECT] - cells[LATER]
        if lack > 0 and isMended and not cells[TAKING]:
            cells[DIRECT] += lack

    # -- putting

    def put(self, obj: object, block: bool = True, timeout: float | None = None) -> None:
        """
        Put an object.

        @param block: whether to wait until there is room.
        @param timeout: for so many seconds at most.
        @raise Full: there is none.
        @raise ValueError: the queue is closed.
        """
        if self._closed:
            raise ValueError(f"Queue {self!r} is closed")
        if self._maxsize != _MANY:
            self._putBounded(obj, block, timeout)
            return
        parts = self._pickled(obj)
        if parts is None or (parts and self._putDirectly(parts)):
            return
        with self._counters:
            self._putLater(obj)

    def _putBounded(self, obj: object, block: bool, timeout: float | None) -> None:
        end = None if timeout is None else monotonic() + timeout
        while True:
            self._waitForRoom(block, end)
            # Without the lock: it is the program's code, and may take long.
            parts = self._pickled(obj)
            if parts is None:
                return
            # Whatever a signal's handler raises, and wherever: a living process must not keep it.
            try:
                self._lock(block, end)
                if not self.full():
                    if not parts or not self._putDirectly(parts):
                        self._putLater(obj)
                    return
            finally:
                self._counters.abandon()

    def _pickled(self, obj: object) -> Pickled | tuple[()] | None:
        # Nothing if the feeding thread is to do it, None if it cannot be done.
        if self._feeder.waiting:
            return ()
        try:
            return pieces(obj)
        except Exception as error:
            # Nobody waits for it: in multiprocessing its thread would say so.
            self._on_queue_feeder_error(error, obj)
            return None

    def _putLater(self, obj: object) -> None:
        # The counters are locked.
        if self._thread is None:
            self._start(self._feeder)
        self._feeder.append(obj)
        self._cells[LATER] += 1

    def _putDirectly(self, parts: Pickled) -> bool:
        try:
            # Another thread may have begun to wait meanwhile.
            if (
                not self._wlock.acquire(True, _OTHERS)
                or self._feeder.waiting
                or not self._writer.hasRoom(parts)
            ):
                return False
            try:
                self._writer.sendParts(parts, partial(_announce, self._cells, DIRECT))
            finally:
                self._cells[SENDER] = 0
            self._cells[DIRECT] += 1
        finally:
            self._wlock.abandon()
        return True

    @staticmethod
    def _on_queue_feeder_error(error: Exception, obj: object) -> None:
        # concurrent.futures has its own.
        traceback.print_exc()

    def _start(self, feeder: _Feeder) -> None:
        feeder.ignoresEnd, feeder.failed = self._ignore_epipe, self._on_queue_feeder_error
        thread = threading.Thread(target=feeder.run, name="QueueFeederThread", daemon=True)
        thread.start()
        self._thread = thread
        if not self._joincancelled:
            self._jointhread = Finalize(thread, _join, [weakref.ref(thread)], exitpriority=-5)
        self._close = Finalize(self, feeder.append, [_SENTINEL], exitpriority=10)
        feeder.isReady.wait()

    def close(self) -> None:
        """
        Say that this process puts nothing more; what is in its buffer is sent.
        """
        self._closed = True
        close, self._close = self._close, None
        if close is not None:
            close()

    def join_thread(self) -> None:
        """
        Wait until the buffer of a closed queue is empty; so does the process before it ends.
        """
        assert self._closed, f"Queue {self!r} not closed"
        if self._jointhread is not None:
            self._jointhread()

    def cancel_join_thread(self) -> None:
        """
        Let the process end without waiting for that.
        """
        self._joincancelled = True
        if self._jointhread is not None:
            self._jointhread.cancel()

    def _terminate_broken(self) -> None:
        # For concurrent.futures, if its workers have died: who waits for room gets EPIPE.
        self._reader.close()
        self.close()
        self.join_thread()

    def put_nowait(self, obj: object) -> None:
        """
        Put an object, or raise L{Full}.
        """
        self.put(obj, False)

    # -- getting

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """
        Take an object.

        @param block: whether to wait for one.
        @param timeout: for so many seconds at most.
        @raise Empty: there is none.
        @raise ValueError: the queue is closed.
        """
        if self._closed:
            raise ValueError(f"Queue {self!r} is closed")
        end = None if timeout is None else monotonic() + timeout
        if not self._rlock.acquire(block, timeout):
            raise Empty
        try:
            left = 0.0 if not block else None if end is None else end - monotonic()
            if not self._reader.hasMessage(left):
                raise Empty
            # Before it is taken: who is killed in between leaves it to the next.
            wasFull = self.full()
            self._cells[TAKING] = 1
            self._cells[GOT] += 1
            parts = self._reader.receiveParts()
        finally:
            self._cells[TAKING] = 0
            self._rlock.release()
        if wasFull:
            futex.wake(self._cells, GOT)
        return loads(*parts)

    def get_nowait(self) -> Any:
        """
        Take an object, or raise L{Empty}.
        """
        return self.get(False)


class JoinableQueue(Queue):
    """
    A queue whose users say when they are done with an object.
    """

    def put(self, obj: object, block: bool = True, timeout: float | None = None) -> None:
        self._count(1)
        try:
            Queue.put(self, obj, block, timeout)
        except BaseException:
            self._count(-1)
            raise

    def _count(self, change: int) -> None:
        cells = self._cells
        with self._counters:
            count = cells[UNFINISHED] + change
            if count < 0:
                raise ValueError("task_done() called too many times")
            cells[UNFINISHED] = count
        if not count:
            futex.wake(cells, UNFINISHED)

    def task_done(self) -> None:
        """
        Say that an object that was taken is done with.

        @raise ValueError: more often than objects were put.
        """
        self._count(-1)

    def join(self) -> None:
        """
        Wait until all objects are done with.
        """
        cells = self._cells
        while count := cells[UNFINISHED]:
            futex.wait(cells, UNFINISHED, count, limits.QUEUE_LOOK_SECONDS)
