"""
Tests of queues between processes, and of what survives that their users are killed.
"""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import signal
import threading
from functools import partial
from pathlib import Path
from queue import Empty, Full
from time import monotonic
from typing import Any
from unittest import mock

from tests.queues.killing import roomOf
from tests.queues.test_connection import Array, PipeTestCase, openDescriptors
from tests.support.commands import running
from tests.support.waiting import HANG_SECONDS, waitUntil
from twisted_ib import limits
from twisted_ib.hca.host import libc
from twisted_ib.queues import JoinableQueue, Queue, SimpleQueue, futex, locks, ring, wait
from twisted_ib.queues.locks import RobustLock, SharedPage
from twisted_ib.queues.queue import BUFFERED, BUFFERS, GOT, SENDER, TAKING, UNFINISHED
from twisted_ib.queues.ring import AWAKE, BELLS, TAKEN

#: The checkout.
ROOT = Path(__file__).resolve().parents[2]
_LONG = bytes(2 * limits.QUEUE_RING)
_KINDS = (Queue, JoinableQueue, SimpleQueue)


def _takeAll(queue: Any, to: Any) -> None:
    while (got := queue.get()) is not None:
        to.put(got)


def _putMany(queue: Any, first: int) -> None:
    for number in range(first, first + 500):
        queue.put((number, bytes(number % 1000)))


def _killWithin(queue: Any) -> None:
    # Before it wakes the reader.
    ring.wake = lambda _: os.kill(os.getpid(), signal.SIGKILL)
    queue.put(1)


class QueueTests(PipeTestCase):
    """
    What is put is taken, once.
    """

    def test_objects(self) -> None:
        """
        Objects are taken in order, also those that are longer than the ring.
        """
        things = [1, "two", b"3" * 100000, Array(bytearray(_LONG)), _LONG, None]
        for kind in _KINDS:
            queue = kind()
            self.sending(lambda queue=queue: [queue.put(each) for each in things])
            got = [queue.get() for _ in things]
            self.assertEqual(got[3].data, _LONG)
            self.assertEqual(got[:3] + got[4:], things[:3] + things[4:])
            self.assertTrue(queue.empty())

    def test_processes(self) -> None:
        """
        Of several producers and consumers every object is taken once.
        """
        for kind in _KINDS:
            queue, results = kind(), kind()
            consumers = [self.forked(_takeAll, queue, results) for _ in range(2)]
            producers = [self.forked(_putMany, queue, 1000 * number) for number in range(3)]
            got = sorted(results.get()[0] for _ in range(1500))
            self.assertEqual(got, [1000 * number + each for number in range(3) for each in range(500)])
            for each in producers:
                each.join(HANG_SECONDS)
            for _ in consumers:
                queue.put(None)
            for each in consumers:
                each.join(HANG_SECONDS)
            self.assertEqual({each.exitcode for each in consumers + producers}, {0})

    def test_direct(self) -> None:
        """
        An object that has room is put by the caller; one that has not, and those behind it, by a thread.
        """
        queue: Queue = Queue()
        queue.put(1)
        self.assertIsNone(queue._thread)
        queue.put(_LONG)
        queue.put(2)
        self.assertIsNotNone(queue._thread)
        self.assertEqual(queue.qsize(), 3)
        self.assertEqual([queue.get(), queue.get(), queue.get()], [1, _LONG, 2])
        waitUntil(lambda: not queue._feeder.waiting)
        queue.close()
        queue.join_thread()

    def test_bound(self) -> None:
        """
        A queue with a bound is full, and who waits for room is woken.
        """
        queue: Queue = Queue(2)
        queue.put(1)
        self.assertFalse(queue.full())
        queue.put(2)
        self.assertTrue(queue.full())
        self.assertRaises(Full, queue.put_nowait, 3)
        self.assertRaises(Full, queue.put, 3, True, 0.01)
        thread = self.sending(queue.put, 3)
        self.assertEqual([queue.get() for _ in range(3)], [1, 2, 3])
        thread.join(HANG_SECONDS)
        self.assertEqual(queue.qsize(), 0)

    def test_calls(self) -> None:
        """
        In a bounded queue an object costs one lock of the counters; who takes one wakes others only if there
        was no room.
        """
        queue: Queue = Queue(2)
        locked = mock.Mock(wraps=queue._counters)
        queue._counters = locked
        with mock.patch.object(futex, "wake", wraps=futex.wake) as wake:
            for number in range(5):
                queue.put(number)
                self.assertEqual(queue.get(), number)
            self.assertEqual((locked.acquire.call_count, wake.mock_calls), (5, []))
            queue.put(5)
            queue.put(6)
            queue.get()
            wake.assert_called_once_with(queue._cells, GOT)
            queue.get()
            self.assertEqual((locked.acquire.call_count, wake.call_count), (7, 1))

    def test_empty(self) -> None:
        """
        Nothing is C{Empty}, at once or after a time.
        """
        queue: Queue = Queue()
        with mock.patch.object(queue._reader, "hasMessage", return_value=False) as waits:
            self.assertRaises(Empty, queue.get_nowait)
            self.assertRaises(Empty, queue.get, False, 5)
            self.assertRaises(Empty, queue.get)
        self.assertEqual([each.args for each in waits.mock_calls], [(0.0,), (0.0,), (None,)])
        self.assertEqual(queue.qsize(), 0)
        began = monotonic()
        self.assertRaises(Empty, queue.get, True, 0.01)
        self.assertGreaterEqual(monotonic() - began, 0.01)

    def test_closed(self) -> None:
        """
        A closed queue takes nothing, but sends what it has taken.
        """
        queue: Queue = Queue()
        process = self.forked(lambda: (queue.put(_LONG), queue.close()))
        self.assertEqual(queue.get(), _LONG)
        process.join(HANG_SECONDS)
        queue.close()
        self.assertRaises(ValueError, queue.put, 1)
        self.assertRaises(ValueError, queue.get)
        self.assertRaises(OSError, queue.empty)

    def test_dropped(self) -> None:
        """
        A queue that nobody has any more leaves no descriptor and no thread.
        """
        before = openDescriptors()
        queue: Queue = Queue()
        queue.put(_LONG)
        queue.get()
        thread = queue._thread
        assert thread is not None
        del queue
        gc.collect()
        thread.join(HANG_SECONDS)
        waitUntil(lambda: openDescriptors() == before)

    def test_cancelled(self) -> None:
        """
        A process that does not wait for what is in its buffers may say so before anything is there or after.
        """
        before, after = Queue(), Queue()
        before.cancel_join_thread()
        for queue in (before, after):
            queue._start(queue._feeder)
        self.assertIsNone(before._jointhread)
        join = after._jointhread
        self.assertTrue(join.still_active())
        after.cancel_join_thread()
        self.assertFalse(join.still_active())
        for queue in (before, after):
            thread = queue._thread
            queue.close()
            thread.join(HANG_SECONDS)
            self.assertFalse(thread.is_alive())

    def test_broken(self) -> None:
        """
        Of a queue whose readers are dead, as C{concurrent.futures} finds, the thread that waits for room
        ends.
        """
        queue = Queue()
        queue._ignore_epipe = True
        queue.put(_LONG)
        thread = queue._thread
        queue._terminate_broken()
        self.assertFalse(thread.is_alive())
        self.assertRaises(ValueError, queue.put, 1)
        self.assertRaises(OSError, queue._reader.poll)

    def test_failed(self) -> None:
        """
        Where nobody reads any more the feeding thread says so, unless it is told that this may be; what
        cannot be pickled is said even then.
        """
        for ignores in (False, True):
            failed: list[type] = []
            told = staticmethod(lambda error, obj, failed=failed: failed.append(type(error)))
            self.patch(Queue, "_on_queue_feeder_error", told)
            queue: Queue = Queue()
            queue._ignore_epipe = ignores
            queue._start(queue._feeder)
            queue._feeder.append(threading.Lock())
            waitUntil(lambda failed=failed: failed)
            queue._reader.close()
            for _ in range(2):
                queue._feeder.append(1)
            queue.close()
            thread = queue._thread
            assert thread is not None
            thread.join(HANG_SECONDS)
            self.assertEqual(failed, [TypeError] + [BrokenPipeError] * (0 if ignores else 2))
            self.assertEqual(queue._cells[SENDER], 0)

    def test_notPickled(self) -> None:
        """
        What cannot be pickled is reported as C{multiprocessing} does, and the next is put.
        """
        failed: list[object] = []
        self.patch(Queue, "_on_queue_feeder_error", staticmethod(lambda error, obj: failed.append(obj)))
        queue: Queue = Queue(1)
        lock = threading.Lock()
        queue.put(lock)
        queue.put(1)
        self.assertEqual(queue.get(), 1)
        queue._feeder.waiting += 1
        queue.put(lock)
        waitUntil(lambda: len(failed) == 2 and not queue.full())
        queue._feeder.waiting -= 1
        queue.put(2)
        self.assertEqual(queue.get(), 2)
        self.assertEqual(failed, [lock, lock])
        queue.close()
        queue.join_thread()

    def test_tasks(self) -> None:
        """
        C{join} waits until all tasks are done; one more is ValueError, and one that had no room counts not.
        """
        queue: JoinableQueue = JoinableQueue(2)
        queue.join()
        queue.put(1)
        queue.put(2)
        self.assertRaises(Full, queue.put, 3, False)
        self.patch(limits, "QUEUE_LOOK_SECONDS", HANG_SECONDS)
        thread = self.sending(queue.join)
        with mock.patch.object(futex, "wake", wraps=futex.wake) as wake:
            queue.task_done()
            self.assertEqual((queue._cells[UNFINISHED], wake.mock_calls), (1, []))
            queue.task_done()
            wake.assert_called_once_with(queue._cells, UNFINISHED)
        thread.join(HANG_SECONDS)
        self.assertFalse(thread.is_alive())
        self.assertRaises(ValueError, queue.task_done)

    def test_wait(self) -> None:
        """
        C{wait} finds the queue that has something, by its reader.
        """
        queues = [Queue() for _ in range(3)]
        readers = [each._reader for each in queues]
        self.assertEqual(wait(readers, 0), [])
        queues[1].put(1)
        self.assertEqual(wait(readers), [readers[1]])


class PutTests(PipeTestCase):
    """
    No caller of C{put} keeps others of it waiting, whatever ends it.
    """

    def putInThread(self, queue: Queue, thing: object) -> None:
        """
        Put in another thread, which finds a lock that this one has.
        """
        self.sending(lambda: queue.put(thing, True, HANG_SECONDS))
        self.assertEqual(queue.get(True, HANG_SECONDS), thing)

    def test_slowPickle(self) -> None:
        """
        While one pickles others put.
        """
        queue: Queue = Queue(10)
        begun, go = threading.Event(), threading.Event()

        class Slow:
            """
            It is pickled when the test says so.
            """

            def __reduce__(self) -> Any:
                begun.set()
                go.wait(HANG_SECONDS)
                return int, ()

        thread = self.sending(lambda: queue.put(Slow()))
        begun.wait(HANG_SECONDS)
        queue.put_nowait(1)
        self.assertEqual(queue.get(True, HANG_SECONDS), 1)
        go.set()
        thread.join(HANG_SECONDS)
        self.assertEqual(queue.get(True, HANG_SECONDS), 0)

    def test_interrupted(self) -> None:
        """
        A signal's handler that raises when a lock has just been had leaves none.
        """
        acquire, left = RobustLock.acquire, []

        def interrupted(lock: RobustLock, block: bool = True, timeout: float | None = None) -> bool:
            """
            Raise in one of the calls.
            """
            has = acquire(lock, block, timeout)
            left.pop()
            if not left:
                raise InterruptedError
            return has

        for number in (1, 2):
            queue: Queue = Queue(10)
            left[:] = [None] * number
            with self.subTest(number):
                self.patch(RobustLock, "acquire", interrupted)
                self.assertRaises(InterruptedError, queue.put, 1)
                self.patch(RobustLock, "acquire", acquire)
            self.putInThread(queue, 2)

    def test_stopped(self) -> None:
        """
        While another has the counters, and is stopped then, who waits for a time waits no longer.
        """
        self.patch(limits, "QUEUE_LOOK_SECONDS", 0.01)
        queue: Queue = Queue(2)
        held, go = threading.Event(), threading.Event()

        def hold() -> None:
            with queue._counters:
                held.set()
                go.wait(HANG_SECONDS)

        thread = self.sending(hold)
        held.wait(HANG_SECONDS)
        for arguments in ((False,), (True, 0.02), (True, -1)):
            self.assertRaises(Full, queue.put, 1, *arguments)
        self.assertEqual(queue.qsize(), 0)
        go.set()
        thread.join(HANG_SECONDS)
        queue.put_nowait(2)
        self.assertEqual(queue.get(), 2)

    def test_interruptedWithin(self) -> None:
        """
        It may raise before C{acquire} has returned.
        """

        def tried(address: int) -> int:
            """
            Have the lock, and raise.
            """
            held(address)
            raise InterruptedError

        held = locks._try
        queue: Queue = Queue(10)
        self.patch(locks, "_try", tried)
        self.assertRaises(InterruptedError, queue.put, 1)
        self.patch(locks, "_try", held)
        self.putInThread(queue, 2)

    def test_noThreadYet(self) -> None:
        """
        Where no thread can be started the object is refused, and the next one has its thread.
        """
        queue: Queue = Queue(10)
        start = threading.Thread.start

        def refused(thread: threading.Thread) -> None:
            """
            There are too many.
            """
            raise RuntimeError("can't start new thread")

        self.patch(threading.Thread, "start", refused)
        self.assertRaises(RuntimeError, queue.put, _LONG)
        self.patch(threading.Thread, "start", start)
        for thing in (1, _LONG, 2):
            queue.put(thing)
        self.assertEqual([queue.get(True, HANG_SECONDS) for _ in range(3)], [1, _LONG, 2])
        queue.close()
        queue.join_thread()


class KilledTests(PipeTestCase):
    """
    A process that is killed stops nobody.
    """

    def killedWithin(self, call: Any) -> None:
        """
        Have a process killed within a call that does so.
        """
        process = self.forked(call)
        process.join(HANG_SECONDS)
        self.assertEqual(process.exitcode, -signal.SIGKILL)

    def test_lock(self) -> None:
        """
        The lock of a process that was killed is the next one's, who is told.
        """
        died: list[int] = []
        lock = RobustLock(SharedPage(), 3, lambda: died.append(1))
        self.killedWithin(lambda: (lock.acquire(), os.kill(os.getpid(), signal.SIGKILL)))
        self.assertTrue(lock.acquire())
        self.assertEqual(died, [1])
        got: list[bool] = []
        for arguments in ((False,), (True, 0.01), (True, -1.0)):
            self.sending(lambda arguments=arguments: got.append(lock.acquire(*arguments))).join()
        lock.release()
        self.assertEqual(got, [False] * 3)
        self.assertTrue(lock.acquire(False))
        lock.release()
        self.assertRaises(OSError, lock.release)

    def test_lockOfProcesses(self) -> None:
        """
        A C library that has no locks of several processes is an error, and no lock that does not wake them.
        """
        self.patch(locks, "_SHARED", 2)
        error = self.assertRaises(OSError, locks.SharedPage)
        self.assertEqual(error.errno, errno.EINVAL)

    def test_sealed(self) -> None:
        """
        Whoever has the page can make it neither shorter nor longer.
        """
        page = SharedPage()
        for length in (0, 1 << 20):
            self.assertRaises(PermissionError, os.ftruncate, page._fd, length)
        self.assertRaises(PermissionError, libc.addSeals, page._fd, libc.F_SEAL_FUTURE_WRITE)

    def test_lockWaits(self) -> None:
        """
        Who waits for a lock gets it once it is let go of, or its owner is killed.
        """
        lock = RobustLock(SharedPage(), 0)
        one, other = self.pipe()
        process = self.forked(lambda: (lock.acquire(), other.send(1), signal.pause()))
        one.recv()
        thread = self.sending(lambda: (lock.acquire(), lock.release()))
        process.kill()
        thread.join(HANG_SECONDS)
        self.assertFalse(thread.is_alive())

    def test_lockSleeps(self) -> None:
        """
        Who waits for a lock sleeps until the time is up, but looks for signals from time to time.
        """
        self.patch(limits, "QUEUE_LOOK_SECONDS", 0.5)
        for timeout, expected, gets in (
            (1.25, [1000.5, 1001.0, 1001.25], False),
            (0.25, [1000.25], False),
            (None, [1000.5, 1001.0, 1001.5, 1002.0], True),
        ):
            now, asked = [0.0], []

            def timed(address: int, until: int, now: Any = now, asked: Any = asked) -> int:
                # pthread_mutex_timedlock(3): the time is one of the clock, not how long.
                found = futex.Timespec.from_address(until)
                asked.append(found.seconds + found.nanoseconds / 1e9)
                now[0] = asked[-1] - 1000
                return 0 if len(asked) == 4 else errno.ETIMEDOUT

            self.patch(locks, "monotonic", lambda now=now: now[0])
            self.patch(locks, "time", lambda now=now: 1000 + now[0])
            self.patch(locks, "_try", lambda address: errno.EBUSY)
            self.patch(locks, "_timed", timed)
            self.assertEqual(RobustLock(SharedPage(), 0).acquire(True, timeout), gets)
            self.assertEqual(asked, expected)

    def test_reader(self) -> None:
        """
        A reader that was killed while it waited, or with a part of a message, leaves the queue to others.
        """
        for kind in _KINDS:
            queue = kind()
            one, other = self.pipe()
            process = self.forked(lambda queue=queue, other=other: (other.send(1), queue.get()))
            one.recv()
            waitUntil(lambda queue=queue: not queue._rlock.acquire(False) or queue._rlock.release())
            process.kill()
            process.join(HANG_SECONDS)
            queue.put(1)
            self.assertEqual(queue.get(), 1)

    def test_writer(self) -> None:
        """
        A message whose writer was killed before it woke the reader is found; the next writer wakes it too.
        """
        for kind in _KINDS:
            queue = kind()

            got: list[object] = []
            self.killedWithin(lambda queue=queue: _killWithin(queue))
            cells = queue._reader._reader._cells
            self.assertEqual(cells[BELLS], cells[TAKEN] + 1)
            thread = self.sending(lambda queue=queue, got=got: got.append(queue.get()))
            thread.join(HANG_SECONDS)
            self.assertEqual(got, [1])
            thread = self.sending(lambda queue=queue, got=got: got.append(queue.get()))
            queue.put(2)
            thread.join(HANG_SECONDS)
            self.assertEqual(got, [1, 2])

    def test_look(self) -> None:
        """
        A reader that sleeps finds such a message too, though nobody else writes.
        """
        self.patch(limits, "QUEUE_LOOK_SECONDS", 0.01)
        for kind in _KINDS:
            queue = kind()
            got: list[object] = []
            thread = self.sending(lambda queue=queue, got=got: got.append(queue.get()))
            reader = queue._reader._reader
            waitUntil(lambda reader=reader: reader._polling.spins and not reader._cells[AWAKE])
            self.killedWithin(lambda queue=queue: _killWithin(queue))
            thread.join(HANG_SECONDS)
            self.assertEqual(got, [1])

    def test_buffer(self) -> None:
        """
        What a process has in its buffer when it is killed takes no room of a bounded queue; nor do those of
        processes that have ended, or of one more than are counted, which lives.
        """
        queue: Queue = Queue(2)
        one, other = self.pipe()
        for _ in range(3):
            with queue._wlock:
                process = self.forked(lambda: (queue.put(1), queue.put(2), other.send(1), signal.pause()))
                one.recv()
                self.assertTrue(queue.full())
                self.assertRaises(Full, queue.put_nowait, 3)
                process.kill()
                process.join(HANG_SECONDS)
            queue.put(3, timeout=HANG_SECONDS)
            queue.put(4, timeout=HANG_SECONDS)
            self.assertEqual([queue.get(), queue.get(), queue.qsize()], [3, 4, 0])
        queue._feeder._count(1)
        queue.put(5)
        self.assertEqual(queue.get(), 5)
        waitUntil(lambda: queue._feeder.waiting == 1)
        queue._feeder._count(-1)
        queue.close()
        queue.join_thread()
        queue._closed = False
        self.assertEqual([*queue._cells[BUFFERED : BUFFERED + limits.QUEUE_FEEDERS]], [0] * 48)
        queue._recover()
        self.assertEqual(queue.qsize(), 0)

    def test_buffers(self) -> None:
        """
        One buffer more than are counted is not: it works like the others, but for that.
        """
        queue: Queue = Queue(1)
        raised: list[object] = []
        self.patch(threading, "excepthook", raised.append)
        locks = [RobustLock(queue._page, BUFFERS + number) for number in range(limits.QUEUE_FEEDERS)]
        for lock in locks:
            self.assertTrue(lock.acquire(False))
            self.addCleanup(lock.release)
        queue.put(_LONG)
        self.assertEqual((queue._feeder._cell, queue.qsize()), (0, 1))
        self.assertEqual(queue.get(), _LONG)
        queue.put(1)
        self.assertEqual(queue.get(), 1)
        queue.close()
        thread = queue._thread
        assert thread is not None
        thread.join(HANG_SECONDS)
        self.assertEqual(raised, [])

    def test_ending(self) -> None:
        """
        The room is as it was after a process that is killed while it ends and waits for its buffer.
        """
        queue: Queue = Queue(3)
        one, other = self.pipe()
        with queue._wlock:
            process = self.forked(
                lambda: (queue.put(1), queue.put(2), queue.close(), other.send(1), signal.pause())
            )
            one.recv()
            process.kill()
            process.join(HANG_SECONDS)
        self.assertEqual(roomOf(queue), 3)

    def test_inBetween(self) -> None:
        """
        The room of a queue is as it was after a process that is killed between putting an object and counting
        it, directly or from its buffer; for one that counts what it does not take, once the queue is empty.
        """

        def putting(putsDirectly: bool) -> None:
            send = queue._writer.sendParts
            queue._writer.sendParts = lambda *found: (send(*found), os.kill(os.getpid(), signal.SIGKILL))
            if not putsDirectly:
                queue._putDirectly = lambda _: False
            queue.put(bytes(limits.QUEUE_RECORD + 1))
            signal.pause()

        def taking() -> None:
            queue._reader.receiveParts = lambda: os.kill(os.getpid(), signal.SIGKILL)
            queue.get()

        for act in partial(putting, True), partial(putting, False), taking:
            queue: Any = Queue(3)
            queue.put(1)
            self.killedWithin(act)
            if act is not taking:
                queue.put_nowait(3)
                self.assertRaises(Full, queue.put_nowait, 4)
            self.assertEqual(roomOf(queue), 3)

    def test_inPart(self) -> None:
        """
        Who waits with a part of a message, whose writer was killed, has counted one that is not there: this
        is not mended.
        """
        queue: Any = Queue(3)

        def putting() -> None:
            write = queue._writer._writer.write
            queue._writer._writer = mock.Mock(
                write=lambda *found: (write(*found), os.kill(os.getpid(), signal.SIGKILL)),
                hasRoom=lambda _: True,
            )
            queue.put(bytes(limits.QUEUE_RECORD + 1))

        self.killedWithin(putting)
        thread = self.sending(queue.get)
        waitUntil(lambda: queue._cells[TAKING])
        queue.put(1)
        thread.join(HANG_SECONDS)
        self.assertEqual(roomOf(queue), 3)

    def test_nothingLeft(self) -> None:
        """
        No semaphore and no file is left, whoever is killed.
        """
        before = set(os.listdir("/dev/shm"))
        queue: Queue = Queue(1)
        self.killedWithin(lambda: (queue.put(1), os.kill(os.getpid(), signal.SIGKILL)))
        # Others use the folder meanwhile, and do not stay.
        waitUntil(lambda: set(os.listdir("/dev/shm")) <= before)


_SPAWNED = """
import multiprocessing, sys
from twisted_ib.queues import JoinableQueue, Pipe, Queue, SimpleQueue, wait

def work(connection, queues, results):
    for queue in queues:
        results.put(queue.get())
    inner = connection.recv()
    inner.send(connection.recv() * 2)
    connection.close()

def main(method):
    context = multiprocessing.get_context(method)
    queues = [Queue(), SimpleQueue(), JoinableQueue(3)]
    results = Queue(ctx=context)
    one, other = Pipe()
    process = context.Process(target=work, args=(other, queues, results))
    process.start()
    other.close()
    for number, queue in enumerate(queues):
        queue.put(number)
    got = [results.get() for _ in queues]
    inner, sent = Pipe()
    one.send(sent)
    sent.close()
    one.send(21)
    print(method, got, inner.recv())
    assert wait([one]) == [one]
    try:
        one.recv()
    except EOFError:
        print("end")
    process.join()
    sys.exit(process.exitcode)

if __name__ == "__main__":
    main(sys.argv[1])
"""


class MethodTests(PipeTestCase):
    """
    Connections and queues are inherited, or sent along, in each way to start a process.
    """

    def test_methods(self) -> None:
        """
        C{fork}, C{spawn} and C{forkserver}: all queues, and a connection that is sent over another.
        """
        path = self.mktemp()
        with open(path, "w") as file:
            file.write(_SPAWNED)
        for method in multiprocessing.get_all_start_methods():
            process = running(self, path, method, env=dict(os.environ, PYTHONPATH=str(ROOT)))
            output, _ = process.communicate(timeout=HANG_SECONDS)
            self.assertEqual(output, f"{method} [0, 1, 2] 42\nend\n")
            self.assertEqual(process.returncode, 0)
