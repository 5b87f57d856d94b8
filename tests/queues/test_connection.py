"""
Tests of connections: their semantics are those of C{multiprocessing.connection}.
"""

from __future__ import annotations

import array
import contextlib
import gc
import multiprocessing
import os
import pickle
import select
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable
from functools import partial
from multiprocessing import AuthenticationError, BufferTooShort
from multiprocessing.connection import wait as kernelWait
from struct import pack
from types import SimpleNamespace
from typing import Any
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from tests.support.commands import stop
from tests.support.counting import traced
from tests.support.descriptors import isOpen
from tests.support.waiting import HANG_SECONDS, waitUntil
from twisted_ib import limits
from twisted_ib.hca.host import libc
from twisted_ib.queues import Client, Connection, Listener, Pipe, listening, ring, wait
from twisted_ib.queues.connection import READ_ONLY, Assembly, checkMemory, createMemory
from twisted_ib.queues.ring import AWAKE, BELLS, FIRST, HEAD, TAIL, TAKEN, wake

_LONG = 2 * limits.QUEUE_RING + 12345


class Array:
    """
    What NumPy's arrays do when they are pickled.
    """

    def __init__(self, data: Any) -> None:
        self.data = data

    def __reduce_ex__(self, protocol: int) -> Any:
        assert protocol >= 5
        return Array, (pickle.PickleBuffer(self.data),)


class _Evil:
    """
    Says when it is loaded.
    """

    loaded = 0

    def __reduce__(self) -> Any:
        return _load, ()


def _load() -> None:
    _Evil.loaded += 1


def openDescriptors() -> list[str]:
    """
    @return: What this process has open.
    """
    gc.collect()
    return sorted(os.listdir("/proc/self/fd"))


class PipeTestCase(SynchronousTestCase):
    """
    Both ends of a pipe, here.
    """

    def setUp(self) -> None:
        """
        Make a pipe.
        """
        # Nothing here may need a second look, or it would hide a wake-up that is lost.
        self.patch(limits, "QUEUE_LOOK_SECONDS", 10 * HANG_SECONDS)
        self.one, self.other = self.pipe()

    def pipe(self, duplex: bool = True) -> tuple[Connection, Connection]:
        """
        @return: A pipe that is closed at the test's end.
        """
        ends = Pipe(duplex)
        for end in ends:
            self.addCleanup(end.close)
        return ends

    def sending(self, call: Callable[..., object], *arguments: object) -> threading.Thread:
        """
        @return: A thread that makes a call; the test's end waits for it.
        """
        thread = threading.Thread(target=call, args=arguments, daemon=True)
        thread.start()
        self.addCleanup(thread.join, HANG_SECONDS)
        return thread

    def forked(self, call: Callable[..., object], *arguments: object) -> Any:
        """
        @return: A forked process that makes a call.
        """
        process = multiprocessing.get_context("fork").Process(target=call, args=arguments)
        process.start()

        def end() -> None:
            process.kill()
            process.join(HANG_SECONDS)
            process.close()

        self.addCleanup(end)
        return process


class MessageTests(PipeTestCase):
    """
    What is sent arrives.
    """

    def test_lengths(self) -> None:
        """
        Bytes of lengths around those of slots, records, and the ring arrive.
        """
        edges = (0, 56, 64, limits.QUEUE_BUFFER_BYTES, limits.QUEUE_RECORD, limits.QUEUE_RING)
        for length in sorted({max(0, edge + more) for edge in edges for more in (-1, 0, 1)} | {_LONG}):
            data = os.urandom(length)
            self.sending(self.one.send_bytes, data)
            self.assertEqual(self.other.recv_bytes(), data)
            self.sending(self.other.send, data)
            self.assertEqual(self.one.recv(), data)

    def test_grown(self) -> None:
        """
        A message takes no more memory than its bytes have, wherever it ends.
        """
        size = limits.QUEUE_RECORD
        # About where its memory grows, and grows to its end.
        edges = [size * eighths // 8 for eighths in (8, 16, 18, 20, 32, 36, 40, 64, 72, 80, 160)]
        for length in (edge + more for edge in edges for more in (-1, 0, 1)):
            data = memoryview((bytes(range(251)) * (length // 251 + 1))[:length])
            found: list[Any] = []

            def assemble(data: memoryview = data, found: list[Any] = found) -> None:
                assembly = Assembly((len(data) | READ_ONLY,))
                found += [assembly.add(0, data[at : at + size]) for at in range(0, len(data), size)]

            self.assertLess(traced(assemble)[1], length + 8192)
            self.assertEqual(found.pop(), (data, []))
            self.assertEqual(set(found), {None} if found else set())

    def test_around(self) -> None:
        """
        Messages of many lengths arrive in order, also where the ring ends.
        """
        lengths = [(7919 * number) % 40000 for number in range(200)]

        def send() -> None:
            for number, length in enumerate(lengths):
                self.one.send_bytes(bytes([number % 251]) * length)

        self.sending(send)
        for number, length in enumerate(lengths):
            self.assertEqual(self.other.recv_bytes(), bytes([number % 251]) * length)

    def test_objects(self) -> None:
        """
        Objects arrive; a message of bytes may be a pickle, and a pickle is read as bytes.
        """
        for thing in (None, True, 1, 2.5, "text", b"bytes", (1, [2, {3: "x"}]), "y" * _LONG):
            self.sending(self.one.send, thing)
            self.assertEqual(self.other.recv(), thing)
        self.one.send_bytes(pickle.dumps([1, 2]))
        self.assertEqual(self.other.recv(), [1, 2])
        self.one.send([1, 2])
        self.assertEqual(pickle.loads(self.other.recv_bytes()), [1, 2])

    def test_buffers(self) -> None:
        """
        Large buffers are not pickled, and stay writable or not; small ones are pickled.
        """
        for size in (limits.QUEUE_BUFFER_BYTES - 1, limits.QUEUE_BUFFER_BYTES, _LONG):
            data = os.urandom(size)
            self.sending(self.one.send, [Array(bytearray(data)), Array(data)])
            writable, readOnly = self.other.recv()
            self.assertEqual((writable.data, readOnly.data), (bytearray(data), data))
            self.assertEqual((type(writable.data), type(readOnly.data)), (bytearray, bytes))

    def test_buffersAsBytes(self) -> None:
        """
        The bytes of an object with large buffers are its whole pickle.
        """
        data = bytearray(limits.QUEUE_BUFFER_BYTES)
        self.sending(self.one.send, Array(data))
        self.assertEqual(self.other.recv_bytes()[:1], b"\x80")
        self.sending(self.one.send, b"x" * _LONG)
        into = bytearray(2 * _LONG)
        length = self.other.recv_bytes_into(into)
        self.assertEqual(pickle.loads(into[:length]), b"x" * _LONG)
        # With other objects beside, in several frames, and both kinds of buffers.
        objects = [Array(data), "y" * _LONG, Array(bytes(data)), 3]
        self.sending(self.one.send, objects)
        one, text, two, three = pickle.loads(self.other.recv_bytes())
        self.assertEqual([one.data, text, two.data, three], [data, "y" * _LONG, bytes(data), 3])
        self.assertEqual([type(one.data), type(two.data)], [bytearray, bytes])

    def test_bytesLoadNothing(self) -> None:
        """
        Bytes are received without loading a pickle, whatever comes with them.
        """
        for evil in (_Evil(), [_Evil(), Array(bytearray(limits.QUEUE_BUFFER_BYTES))]):
            for receive in (self.other.recv_bytes, lambda: self.other.recv_bytes_into(bytearray(_LONG))):
                self.sending(self.one.send, evil)
                receive()
        for pickled in (b"", b"no pickle", b"\x80\x05\x97\x97.", b"\x80\x05\x8e" + b"\xff" * 8):
            parts = [pickled], [memoryview(bytes(limits.QUEUE_BUFFER_BYTES))]
            self.sending(self.one.sendParts, parts)
            self.assertRaises(OSError, self.other.recv_bytes)
        self.assertEqual(_Evil.loaded, 0)

    def test_manyBuffers(self) -> None:
        """
        Buffers beyond C{limits.QUEUE_BUFFERS} are pickled.
        """
        self.patch(limits, "QUEUE_BUFFERS", 2)
        data = [Array(bytearray(limits.QUEUE_BUFFER_BYTES)) for _ in range(4)]
        self.sending(self.one.send, data)
        _, lengths = self.other._begin()
        assert lengths is not None
        self.assertEqual(len(lengths), 3)
        self.assertGreater(lengths[0] & ~(1 << 63), 2 * limits.QUEUE_BUFFER_BYTES)
        pickled, buffers = self.other._rest(lengths)
        self.assertEqual(len(pickle.loads(pickled, buffers=buffers)), 4)

    def test_slices(self) -> None:
        """
        Parts of any buffer are sent, with the errors of C{multiprocessing}.
        """
        send = self.one.send_bytes
        send(array.array("i", range(4)))
        self.assertEqual(self.other.recv_bytes(), array.array("i", range(4)).tobytes())
        send(b"abcdef", 2, 3)
        self.assertEqual(self.other.recv_bytes(), b"cde")
        for arguments in ((b"a", -1), (b"a", 2), (b"a", 0, -1), (b"a", 1, 1)):
            self.assertRaises(ValueError, send, *arguments)

    def test_into(self) -> None:
        """
        Bytes are received into a buffer; what is too long for it comes with the error.
        """
        for length in (6, _LONG):
            data = os.urandom(length)
            into = bytearray(length + 10)
            self.sending(self.one.send_bytes, data)
            self.assertEqual(self.other.recv_bytes_into(into, 7), length)
            self.assertEqual(into[7 : 7 + length], data)
            self.sending(self.one.send_bytes, data)
            error = self.assertRaises(BufferTooShort, self.other.recv_bytes_into, bytearray(length - 1))
            self.assertEqual(error.args, (data,))
        self.one.send_bytes(b"")
        self.assertEqual(self.other.recv_bytes_into(bytearray(1), 1), 0)
        self.assertRaises(ValueError, self.other.recv_bytes_into, bytearray(1), -1)
        self.assertRaises(ValueError, self.other.recv_bytes_into, bytearray(1), 2)

    def test_maxlengthOfAll(self) -> None:
        """
        Large buffers count, too.
        """
        one, other = self.pipe()
        self.sending(self.suppressed, one.send, Array(bytearray(limits.QUEUE_BUFFER_BYTES)))
        self.assertRaises(OSError, other.recv_bytes, limits.QUEUE_BUFFER_BYTES)
        other.close()

    def test_maxlength(self) -> None:
        """
        After a message that is too long nothing can be received.
        """
        for length in (6, _LONG):
            one, other = self.pipe()
            self.assertRaises(ValueError, other.recv_bytes, -1)
            one.send_bytes(b"")
            self.assertEqual(other.recv_bytes(0), b"")
            self.sending(one.send_bytes, b"x" * 5)
            self.assertEqual(other.recv_bytes(5), b"x" * 5)
            thread = self.sending(self.suppressed, one.send_bytes, b"x" * length)
            self.assertRaises(OSError, other.recv_bytes, 5)
            self.assertRaises(OSError, other.recv)
            self.assertFalse(other.readable)
            other.close()
            thread.join(HANG_SECONDS)
            self.assertFalse(thread.is_alive())

    def test_maxlengthOfOneWay(self) -> None:
        """
        An end that only receives is closed by it.
        """
        here, there = self.pipe(False)
        there.send_bytes(b"x" * 6)
        self.assertRaises(OSError, here.recv_bytes, 5)
        self.assertTrue(here.closed)

    def suppressed(self, call: Callable[..., object], *arguments: object) -> None:
        """
        Make a call that may fail.
        """
        try:
            call(*arguments)
        except OSError:
            pass


class EndTests(PipeTestCase):
    """
    The end of an end, and what an end cannot do.
    """

    def test_directions(self) -> None:
        """
        Of a simplex pipe one end receives and the other sends.
        """
        one, other = self.pipe(False)
        self.assertEqual((one.readable, one.writable), (True, False))
        self.assertEqual((other.readable, other.writable), (False, True))
        self.assertRaises(OSError, one.send, 1)
        self.assertRaises(OSError, other.recv)
        self.assertRaises(OSError, other.poll)
        other.send(1)
        self.assertEqual(one.recv(), 1)

    def test_closed(self) -> None:
        """
        A closed end raises OSError for all, and closes again.
        """
        before = openDescriptors()
        one, other = Pipe()
        with other, one as entered:
            self.assertIs(entered, one)
            self.assertFalse(one.closed)
        self.assertTrue(one.closed)
        one.close()
        for call in (one.recv, one.recv_bytes, one.poll, one.fileno):
            self.assertRaises(OSError, call)
        self.assertRaises(OSError, one.send, 1)
        self.assertEqual(openDescriptors(), before)

    def test_dropped(self) -> None:
        """
        An end that nobody has any more is closed.
        """
        before = openDescriptors()
        Pipe()
        gc.collect()
        self.assertEqual(openDescriptors(), before)

    def test_end(self) -> None:
        """
        What was sent before the end is received; then comes EOFError, and for who sends BrokenPipeError.
        """
        self.one.send(1)
        self.other.send(2)
        self.one.close()
        self.assertTrue(self.other.poll())
        self.assertEqual(self.other.recv(), 1)
        self.assertTrue(self.other.poll())
        self.assertRaises(EOFError, self.other.recv)
        self.assertRaises(BrokenPipeError, self.other.send, 1)

    def test_endWhileWaiting(self) -> None:
        """
        The end wakes who waits for a message, and who waits for room.
        """
        got: list[BaseException] = []

        def call(function: Callable[..., object], *arguments: object) -> None:
            try:
                function(*arguments)
            except (EOFError, BrokenPipeError) as error:
                got.append(error)

        threads = [self.sending(call, self.one.recv), self.sending(call, self.one.send_bytes, bytes(_LONG))]
        waitUntil(lambda: self.one._writer._cells[ring.ROOM] and not self.one._reader._cells[AWAKE])
        self.other.close()
        for thread in threads:
            thread.join(HANG_SECONDS)
        self.assertEqual({type(each) for each in got}, {EOFError, BrokenPipeError})

    def test_endWithinMessage(self) -> None:
        """
        An end within a message is OSError.
        """
        self.one._writer.write(FIRST, pack("<Q", 100), 8)
        self.one.close()
        self.assertRaises(OSError, self.other.recv)

    def test_killed(self) -> None:
        """
        A process that is killed is an end: for who waits for a message, and for who waits for room.
        """
        # Who waits for room sleeps where the kernel tells of no end.
        self.patch(limits, "QUEUE_LOOK_SECONDS", 0.01)
        for call in (Connection.recv, lambda end: end.send_bytes(bytes(_LONG))):
            one, other = self.pipe()
            process = self.forked(lambda end: (end.send("here"), signal.pause()), one)
            one.close()
            self.assertEqual(other.recv(), "here")
            stop(process.pid)
            timer = threading.Timer(0.05, process.kill)
            timer.start()
            self.addCleanup(timer.join)
            self.assertRaises((EOFError, BrokenPipeError), call, other)


class PollTests(PipeTestCase):
    """
    Waiting for a message.
    """

    def isReadable(self, descriptor: int) -> bool:
        """
        @return: Whether the kernel says so.
        """
        return bool(select.select([descriptor], [], [], 0)[0])

    def test_poll(self) -> None:
        """
        It says whether there is a message, and waits no longer than it should.
        """
        self.assertFalse(self.other.poll())
        self.assertFalse(self.other.poll(-1))
        self.assertFalse(self.other.poll(0.01))
        self.one.send(1)
        for timeout in (0, 0.01, None):
            self.assertTrue(self.other.poll(timeout))
        self.other.recv()
        self.assertFalse(self.other.poll())

    def test_pollSleeps(self) -> None:
        """
        It sleeps for the milliseconds that are left, rounded up, and looks from time to time.
        """
        self.patch(limits, "QUEUE_LOOK_SECONDS", 2.0)
        self.patch(ring, "monotonic", lambda: 7.0)
        for timeout, expected in (
            (0.0101, [11]),
            (0.0004, [1]),
            (0.0, [0]),
            (-1, [0]),
            (5.0, [2000]),
            (None, [2000]),
        ):
            waits: list[int] = []

            def poll(milliseconds: int, waits: list[int] = waits) -> list[tuple[int, int]]:
                waits.append(milliseconds)
                self.one.send(1)
                return []

            self.patch(self.other._reader, "_poller", SimpleNamespace(poll=poll))
            self.assertTrue(self.other.poll(timeout))
            self.assertEqual(waits, expected)
            self.other.recv()

    def test_waitSleeps(self) -> None:
        """
        C{wait} passes on how long is left: nothing less than none, and None for ever.
        """
        module = sys.modules[wait.__module__]
        for timeout, expected in ((0, [0.0]), (-1, [0.0]), (5, [5.0, 3.0, 1.0, 0.0]), (None, [None] * 4)):
            clock, waits = [8.0], []

            def kernel(objects: object, left: float | None, clock: Any = clock, waits: Any = waits) -> Any:
                # Woken in vain, a few times.
                waits.append(left)
                clock[0] += 2
                return [] if left == 0.0 or len(waits) == 4 else [self.other]

            self.patch(module, "kernelWait", kernel)
            self.patch(module, "monotonic", lambda clock=clock: clock[0])
            self.assertEqual(wait([self.other], timeout), [])
            self.assertEqual(waits, expected)

    def test_collected(self) -> None:
        """
        Connections in a circle of objects nobody has any more are closed without a complaint.
        """
        circle: list[Any] = [*Pipe()]
        circle.append(circle)
        fds = [each.fileno() for each in circle[:2]]
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            del circle
            gc.collect()
        self.assertEqual(warned, [])
        self.assertEqual([isOpen(fd) for fd in fds], [False, False])

    def test_pollTwice(self) -> None:
        """
        Two threads may poll a connection at a time.
        """
        found: list[bool] = []
        # Whoever is the second there, the kernel's object refuses.
        poller = mock.Mock(wraps=self.other._reader._poller)
        self.patch(self.other._reader, "_poller", poller)
        thread = threading.Thread(target=lambda: found.append(self.other.poll(HANG_SECONDS)))
        thread.start()
        waitUntil(lambda: poller.poll.called)
        self.assertFalse(self.other.poll())
        self.assertEqual(wait([self.other], 0), [])
        self.one.send(1)
        thread.join(HANG_SECONDS)
        self.assertEqual(found, [True])

    def test_pollReceived(self) -> None:
        """
        Who polls takes no wake-up from a thread that receives; a forked child knows no such thread.
        """
        reader, found = self.other._reader, list[object]()
        thread = threading.Thread(target=lambda: found.append(self.other.recv()))
        thread.start()
        waitUntil(lambda: not self._takes())
        with mock.patch.object(ring.RingReader, "_isReadable", return_value=True):
            with mock.patch.object(ring.RingReader, "take") as taken:
                self.assertTrue(self.other.poll())
        taken.assert_not_called()
        child = os.fork()
        if not child:
            os._exit(not reader._taker().acquire(False))
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.one.send(1)
        thread.join(HANG_SECONDS)
        self.assertEqual(found, [1])

    def _takes(self) -> bool:
        lock = self.other._reader._taker()
        if lock.acquire(False):
            lock.release()
            return True
        return False

    def test_descriptor(self) -> None:
        """
        The descriptor is readable exactly while there is a message, whatever came before it was asked for.
        """
        for before in range(4):
            one, other = self.pipe()
            for _ in range(before):
                one.send(0)
            for _ in range(before and before - 1):
                other.recv()
            descriptor = other.fileno()
            self.assertEqual(self.isReadable(descriptor), before > 0)
            while other.poll():
                other.recv()
            for count in (1, 3):
                self.assertFalse(self.isReadable(descriptor))
                for _ in range(count):
                    one.send(0)
                for _ in range(count):
                    self.assertTrue(self.isReadable(descriptor))
                    other.recv()
            one.close()
            self.assertTrue(self.isReadable(descriptor))

    def test_descriptorOfBusy(self) -> None:
        """
        So it is after many messages to a reader that waited in L{Connection.recv}.
        """

        def echo() -> None:
            for _ in range(2000):
                self.other.send(self.other.recv())

        thread = self.sending(echo)
        for number in range(2000):
            self.one.send(number)
            self.assertEqual(self.one.recv(), number)
        thread.join(HANG_SECONDS)
        descriptor = self.one.fileno()
        self.assertFalse(self.isReadable(descriptor))
        self.other.send(1)
        self.assertTrue(self.isReadable(descriptor))
        self.one.recv()
        self.assertFalse(self.isReadable(descriptor))

    def test_announced(self) -> None:
        """
        A record that is sent without a wake-up, to a reader that is awake, is not a second one's excuse.
        """
        cells = self.other._reader._cells
        cells[AWAKE] = 1
        self.one.send(1)
        self.assertEqual(cells[BELLS], cells[TAKEN])
        self.one.send(2)
        self.assertEqual(cells[BELLS], cells[TAKEN] + 1)

    def test_sleeps(self) -> None:
        """
        A reader sleeps, and a message wakes it.
        """
        got: list[object] = []
        thread = self.sending(lambda: got.append(self.other.recv()))
        tasks = f"/proc/self/task/{thread.native_id}/wchan"
        waitUntil(lambda: self.other._reader._polling.spins and not self.other._reader._cells[AWAKE])
        self.assertTrue(os.path.exists(tasks))
        self.one.send(1)
        thread.join(HANG_SECONDS)
        self.assertEqual(got, [1])

    def test_wait(self) -> None:
        """
        Both C{wait}s find connections that are ready, with descriptors and processes.
        """
        pair = socket.socketpair()
        for each in pair:
            self.addCleanup(each.close)
        pipes = [self.pipe() for _ in range(3)]
        ends = [other for _, other in pipes]
        for call in (wait, kernelWait):
            everything = [*ends, pair[0]]
            self.assertEqual(call(everything, 0), [])
            pipes[1][0].send(1)
            pair[1].send(b"x")
            self.assertEqual(call(everything), [ends[1], pair[0]])
            ends[1].recv()
            pair[0].recv(1)
        pipes[2][0].close()
        self.assertEqual(wait(ends), [ends[2]])

    def test_takenMeanwhile(self) -> None:
        """
        A reader that takes the last wake-up while the next record is published gets one more, and one only.
        """
        reader, acquire = self.other._reader, ring.acquire
        cells = reader._cells
        self.one.send_bytes(b"1")

        def takes(isWaiting: bool) -> bool:
            self.patch(ring, "acquire", acquire)
            self.assertEqual(reader._socket.recv(9), b"!")
            cells[TAKEN], cells[AWAKE] = cells[BELLS], 1
            return acquire(isWaiting)

        self.patch(ring, "acquire", takes)
        for each in (b"2", b"3"):
            self.one.send_bytes(each)
            self.assertEqual((cells[TAKEN], cells[BELLS]), (1, 2))
        self.assertEqual(reader._socket.recv(9, socket.MSG_PEEK), b"!")
        self.assertEqual([self.other.recv_bytes() for _ in range(3)], [b"1", b"2", b"3"])

    def test_amidFence(self) -> None:
        """
        A signal's handler may find that its thread is within a fence: it waits for nothing.
        """
        self.assertTrue(ring.acquire(False))
        try:
            self.one.send("short")
            self.assertEqual(self.other.recv(), "short")
            thread = self.sending(partial(self.one.send, _LONG))
            self.assertEqual(self.other.recv(), _LONG)
            thread.join(HANG_SECONDS)
        finally:
            ring.release()

    def test_nothingTaken(self) -> None:
        """
        Who takes a wake-up where none is counts none, and hears the end.
        """
        reader = self.other._reader
        self.assertTrue(reader.take())
        self.assertEqual(reader._cells[TAKEN], 0)
        self.one.send_bytes(b"x")
        self.assertTrue(reader.take())
        self.assertEqual(reader._cells[TAKEN], 1)
        self.one.close()
        self.assertFalse(reader.take())

    def test_room(self) -> None:
        """
        Of what has several parts is known too whether there is room for it.
        """
        most = limits.QUEUE_RING
        for parts, hasRoom in (
            (([b"x" * 100], []), True),
            (([b"x" * 100], [b"y" * 1000]), True),
            (([b"x" * 100], [b"y" * (most // 2)]), True),
            (([b"x" * 100], [b"y" * most]), False),
        ):
            self.assertEqual(self.one.hasRoom(parts), hasRoom)

    def test_roomLeft(self) -> None:
        """
        In a ring of 512 KiB with records of 128 KiB room is promised up to this octet: with a header of each
        record, and the most that the ring's end may skip.
        """
        whole = 393080
        for start in (0, 64):
            self.one._writer._cells[TAIL] = self.one._writer._cells[HEAD] = start
            for length, hasRoom in ((whole, True), (whole + 1, False)):
                self.assertEqual(self.one.hasRoom(([bytes(length)], [])), hasRoom)
        for parts, length in ((2, 392196), (5, 391488)):
            small = [b"x" * 100] * (parts - 1)
            for more, hasRoom in ((0, True), (1, False)):
                found = [small[0]], [*small[1:], bytes(length + more)]
                self.assertEqual(self.one.hasRoom(found), hasRoom)

    def test_lateWakeUp(self) -> None:
        """
        A wake-up whose message was read before it is no message.
        """
        self.other.fileno()
        wake(self.one._socket)
        self.assertEqual(wait([self.other], 0.01), [])
        self.one.send(1)
        self.assertEqual(wait([self.other]), [self.other])


class FaultTests(PipeTestCase):
    """
    What a peer may do wrong.
    """

    def test_badTail(self) -> None:
        """
        A tail that cannot be is OSError.
        """
        cells = self.other._reader._cells
        for tail in (limits.QUEUE_RING + 64, 1 << 60):
            cells[TAIL] = tail
            self.assertRaises(OSError, self.other.recv)
        cells[TAIL], cells[HEAD] = 64, 128
        self.assertRaises(OSError, self.other.recv)

    def test_badHead(self) -> None:
        """
        A head that cannot be is OSError.
        """
        self.one._writer._cells[HEAD] = 1 << 20
        self.assertRaises(OSError, self.one.send, 1)

    def test_badLength(self) -> None:
        """
        A record longer than what was published, and lengths that cannot be, are OSError.
        """
        self.one.send_bytes(b"x")
        reader = self.other._reader
        ring._pack(reader._map, reader._first, 1000, ring.FIRST | ring.LAST)
        self.assertRaises(OSError, self.other.recv)
        for manifest in (b"", b"1234567", b"\xff" * 8, bytes(8 * (limits.QUEUE_BUFFERS + 2))):
            one, other = self.pipe()
            one._writer.write(FIRST, manifest, len(manifest))
            self.assertRaises(OSError, other.recv)
        one, other = self.pipe()
        one._writer.write(FIRST, pack("<Q", 2), 8)
        one._writer.write(0, b"abc", 3)
        self.assertRaises(OSError, other.recv)

    def test_claim(self) -> None:
        """
        What is only claimed takes no memory, and what comes after all is whole.
        """
        for sent in (b"x" * _LONG, Array(bytearray(b"y" * _LONG)), Array(b"z" * _LONG)):
            self.sending(self.one.send, sent)
            got = self.other.recv()
            self.assertEqual(getattr(got, "data", got), getattr(sent, "data", sent))
            self.assertIs(type(getattr(got, "data", got)), type(getattr(sent, "data", sent)))
        for claim in (1 << 20, 64 << 20, limits.REGION_BYTES):
            for mark in (0, READ_ONLY):
                one, other = self.pipe()
                one._writer.write(FIRST, pack("<Q", claim | mark), 8)
                one.close()
                most = traced(partial(self.assertRaises, OSError, other.recv))[1]
                self.assertLess(most, 4 * limits.QUEUE_RECORD)

    def test_badBells(self) -> None:
        """
        Wake-ups that cannot have been are OSError.
        """
        self.one.send_bytes(b"x")
        self.other._reader._cells[BELLS] = 1 << 63
        self.assertEqual(self.other.recv_bytes(), b"x")
        self.assertRaises(OSError, self.other.fileno)
        # As many as 4,096 may be on their way.
        cells = self.other._reader._cells
        cells[BELLS] = cells[TAKEN] + 4097
        self.assertRaises(OSError, self.other._reader.settle)
        cells[BELLS] -= 1
        self.other._reader.settle()
        self.assertEqual(cells[TAKEN], cells[BELLS])

    def test_lastCells(self) -> None:
        """
        Numbers at the end of what a cell holds, which a peer may write there, are OSError, if they matter.
        """
        for number in range(32):
            for value in ((1 << 64) - 1, (1 << 64) - 64, 1 << 63):
                for others in (0, value):
                    one, other = self.pipe()
                    cells = one._writer._cells
                    for each in (TAIL, HEAD, BELLS, TAKEN) if others else ():
                        cells[each] = others
                    cells[number] = value
                    one.lookAgain()
                    other.lookAgain()
                    for call in (
                        lambda one=one: one.send_bytes(b"x"),
                        one._writer.repair,
                        lambda one=one: one.send_bytes(b"x" * 100),
                        one.close,
                        lambda other=other: other.poll(0.001),
                        other.fileno,
                        other.recv_bytes,
                    ):
                        try:
                            call()
                        except (OSError, EOFError):
                            pass

    def test_noEnd(self) -> None:
        """
        A message whose writer was killed within it is passed over, and so is the rest of one whose reader
        was.
        """
        writer = self.one._writer
        writer.write(0, b"abc", 3)
        writer.write(ring.LAST, b"abc", 3)
        writer.write(FIRST, pack("<Q", 200), 8)
        writer.write(0, b"abc", 3)
        self.one.send(1)
        self.assertEqual(self.other.recv(), 1)
        for again in (b"x", b"y" * (limits.QUEUE_RECORD + 1)):
            writer.write(FIRST, pack("<Q", 200), 8)
            self.one.send_bytes(again)
            self.assertEqual(self.other.recv_bytes(), again)

    def test_noEndInto(self) -> None:
        """
        So it is for bytes that are received into a buffer; what is longer than it said is OSError.
        """
        writer, into = self.one._writer, bytearray(1000)
        writer.write(FIRST, pack("<Q", 1000 | READ_ONLY), 8)
        writer.write(0, b"x" * 100, 100)
        self.one.send_bytes(b"whole")
        self.assertEqual(self.other.recv_bytes_into(into), 5)
        self.assertEqual(into[:5], b"whole")
        writer.write(FIRST, pack("<Q", 10 | READ_ONLY), 8)
        writer.write(0, b"y" * 11, 11)
        self.assertRaisesRegex(OSError, "length", self.other.recv_bytes_into, into)

    def test_memory(self) -> None:
        """
        Memory that could be cut short, or has another size, is refused.
        """
        fd = createMemory()
        self.addCleanup(os.close, fd)
        checkMemory(fd)
        self.assertRaises(PermissionError, os.ftruncate, fd, 0)
        other = os.memfd_create("test", os.MFD_ALLOW_SEALING)
        self.addCleanup(os.close, other)
        os.ftruncate(other, os.fstat(fd).st_size)
        self.assertRaises(OSError, checkMemory, other)

    def test_format(self) -> None:
        """
        The memory is what the first octets of a client name, whichever release of this package it has: the
        cells of the writer and those of the reader are in cache lines of their own.
        """
        self.assertEqual(listening._HELLO, b"twisted_ib queues 1")
        writers, readers = (TAIL, BELLS), (HEAD, AWAKE, TAKEN, ring.WATCHED)
        self.assertEqual((writers, readers, ring.ROOM), ((0, 1), (8, 9, 10, 11), 16))
        self.assertEqual((ring.SLEEPS, ring.POLLED, FIRST, ring.LAST), (1, 2, 1, 2))
        self.assertEqual((ring.PAGE, ring._SIZE, ring._RECORD), (4096, 1 << 19, 1 << 17))

    def test_machine(self) -> None:
        """
        A machine that cannot have rings is an OSError, which says why.
        """
        self.patch(libc, "available", lambda size: ("an x86-64 processor",))
        error = self.assertRaises(OSError, Pipe)
        self.assertIn("an x86-64 processor", str(error))


class ListenerTests(PipeTestCase):
    """
    Listeners and clients.
    """

    def test_accepted(self) -> None:
        """
        A client need not wait until it is accepted.
        """
        for authkey in (None, b"secret"):
            with Listener(authkey=authkey) as listener:
                got: list[Any] = []

                def connect(
                    got: list[Any] = got, authkey: bytes | None = authkey, to: Any = listener.address
                ) -> None:
                    got.append(Client(to, authkey=authkey))
                    got[0].send("hello")

                thread = self.sending(connect)
                if authkey is None:
                    thread.join(HANG_SECONDS)
                with listener.accept() as accepted:
                    self.assertIsInstance(accepted, Connection)
                    self.assertEqual(accepted.recv(), "hello")
                    accepted.send(_LONG)
                    thread.join(HANG_SECONDS)
                    self.assertEqual(got[0].recv(), _LONG)
                got[0].close()

    def test_clientFails(self) -> None:
        """
        A client that cannot make its memory, or cannot send it, leaves nothing open.
        """
        with Listener() as listener:
            for place, name in ((listening, "createMemory"), (socket, "send_fds")):
                before = openDescriptors()
                with mock.patch.object(place, name, side_effect=OSError("none left")):
                    self.assertRaisesRegex(OSError, "none left", Client, listener.address)
                self.assertEqual(openDescriptors(), before)
                self.assertRaises(ConnectionAbortedError, listener.accept)

    def test_amidAccept(self) -> None:
        """
        A signal's handler accepts while its thread does, also the client that this is about to return.
        """
        kind = listening._Handshake
        isOver, within = kind.isOver, list[Any]()

        def interrupted(this: Any, ready: set[int], now: float) -> bool:
            if isOver(this, ready, now):
                self.patch(kind, "isOver", isOver)
                os.eventfd_write(listener._woken, 1)
                within.append(listener.accept())
                return True
            return False

        self.patch(kind, "isOver", interrupted)
        with Listener() as listener, Client(listener.address) as one, Client(listener.address) as two:
            one.send(1)
            two.send(2)
            with listener.accept() as accepted, within[0]:
                self.assertEqual((within[0].recv(), accepted.recv()), (1, 2))

    def test_wrongSecret(self) -> None:
        """
        Who does not know the secret is refused.
        """
        with Listener(authkey=b"secret") as listener:

            def connect() -> None:
                self.assertRaises(AuthenticationError, Client, listener.address, authkey=b"x")

            self.sending(connect)
            self.assertRaises(AuthenticationError, listener.accept)

    def test_inet(self) -> None:
        """
        Connections by an IP address are C{multiprocessing}'s own.
        """
        with Listener(("127.0.0.1", 0)) as listener, Client(listener.address) as client:
            client.send(1)
            with listener.accept() as accepted:
                self.assertEqual(accepted.recv(), 1)

    def test_inetSecret(self) -> None:
        """
        A secret is asked for there too; it is a string of bytes.
        """
        self.assertRaises(TypeError, Listener, authkey="secret")
        with Listener(("127.0.0.1", 0), authkey=b"secret") as listener:
            for authkey, error in ((b"wrong", AuthenticationError), (b"secret", None)):
                before = openDescriptors()
                client: Any = partial(Client, listener.address, None, authkey)
                thread = self.sending(self._sends, client)
                if error:
                    self.assertRaises(error, listener.accept)
                else:
                    with listener.accept() as accepted:
                        self.assertEqual(accepted.recv(), 1)
                thread.join(HANG_SECONDS)
                self.assertEqual(openDescriptors(), before)
            self.assertEqual(listener.last_accepted[0], "127.0.0.1")

    def _sends(self, client: Callable[[], Any]) -> None:
        with contextlib.suppress(AuthenticationError, OSError), client() as connection:
            connection.send(1)

    def test_strangers(self) -> None:
        """
        Who sends no memory, or something else, or nothing, is an OSError for the listener, which goes on.
        """
        before = openDescriptors()
        with Listener() as listener:
            address = listener.address
            for data, fds in ((b"", []), (b"hello", []), (b"twisted_ib queues 1", [0])):
                with socket.socket(socket.AF_UNIX) as pair:
                    pair.connect(address)
                    if data:
                        socket.send_fds(pair, [data], fds)
                    pair.shutdown(socket.SHUT_WR)
                    self.assertRaises(OSError, listener.accept)
            self.patch(limits, "QUEUE_HANDSHAKE_SECONDS", 0.01)
            with socket.socket(socket.AF_UNIX) as pair:
                pair.connect(address)
                self.assertRaises(ConnectionAbortedError, listener.accept)
        self.assertEqual(openDescriptors(), before)

    def test_asleep(self) -> None:
        """
        While one says nothing the listener sleeps until that one is late.
        """
        polls: list[Any] = []

        def poll() -> Any:
            polls.append(select.poll())
            return polls[-1]

        self.patch(limits, "QUEUE_HANDSHAKE_SECONDS", 0.2)
        self.patch(listening, "select", SimpleNamespace(poll=poll, POLLIN=select.POLLIN))
        with Listener() as listener, socket.socket(socket.AF_UNIX) as pair:
            to: Any = listener.address
            pair.connect(to)
            self.assertRaises(ConnectionAbortedError, listener.accept)
        # It has come; it is late, which a sleep of whole milliseconds may end before.
        self.assertLess(len(polls), 10)

    def test_silentClients(self) -> None:
        """
        An honest client does not wait until those before it, which are silent, are late: with a secret and
        without.  They are a bounded number: over it the oldest is given up.
        """
        self.patch(limits, "QUEUE_HANDSHAKES", 8)
        self.patch(limits, "QUEUE_HANDSHAKE_SECONDS", 100 * HANG_SECONDS)
        before = openDescriptors()
        for authkey in (None, b"secret"):
            with Listener(backlog=32, authkey=authkey) as listener:
                to: Any = listener.address
                silent = [socket.socket(socket.AF_UNIX) for _ in range(10)]
                for pair in silent[:6]:
                    pair.connect(to)
                got: list[Any] = []
                thread = self.sending(lambda got=got, to=to, key=authkey: got.append(Client(to, authkey=key)))
                with listener.accept() as accepted:
                    thread.join(HANG_SECONDS)
                    got[0].send(1)
                    self.assertEqual(accepted.recv(), 1)
                got[0].close()
                self.assertEqual(len(listener._handshakes), 6)
                for pair in silent[6:]:
                    pair.connect(to)
                self.assertRaises(ConnectionAbortedError, listener.accept)
                self.assertRaises(ConnectionAbortedError, listener.accept)
                self.assertEqual(len(listener._handshakes), 7)
            for pair in silent:
                pair.close()
        waitUntil(lambda: not set(openDescriptors()) - set(before))

    def test_lateAnswer(self) -> None:
        """
        A client that is given up, as it is late or the oldest of too many, gets in by no octets: not even by
        those that one sends who has answered.
        """
        waits = threading.Event()
        self.addCleanup(waits.set)
        self.patch(listening, "_challenged", lambda connection, authkey: waits.wait(HANG_SECONDS))
        woken, memory = libc.eventfd(), createMemory()
        self.addCleanup(os.close, woken)
        self.addCleanup(os.close, memory)
        pair, client = socket.socketpair()
        with client:
            handshake = listening._Handshake(pair, b"secret", woken)
            socket.send_fds(client, [listening._HELLO], [memory])
            self.assertTrue(handshake.isOver(set(), handshake.deadline))
            self.assertRaises(ConnectionAbortedError, handshake.result)
            self.assertEqual(pair.fileno(), -1)

    def test_noThread(self) -> None:
        """
        Where no thread can be started to ask for the secret the client is refused, and nothing is kept.
        """
        before = openDescriptors()

        def start(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        self.patch(threading.Thread, "start", start)
        with Listener(authkey=b"secret") as listener, socket.socket(socket.AF_UNIX) as client:
            to: Any = listener.address
            client.connect(to)
            self.assertRaises(ConnectionAbortedError, listener.accept)
        # A thread of the test before may close its own meanwhile.
        waitUntil(lambda: set(openDescriptors()) <= set(before))

    def test_forkedListener(self) -> None:
        """
        Of a listener that is forked amid handshakes these stay the parent's.
        """
        with Listener(backlog=8) as listener, socket.socket(socket.AF_UNIX) as silent:
            to: Any = listener.address
            silent.connect(to)
            got: list[Any] = []
            thread = self.sending(lambda: got.append(Client(to)))
            listener.accept().close()
            thread.join(HANG_SECONDS)

            def serve() -> None:
                with listener.accept() as accepted:
                    accepted.send(len(listener._handshakes))

            def close() -> None:
                listener.close()

            self.assertEqual(len(listener._handshakes), 1)
            # As a thread that accepts meanwhile.
            with listener._accepting:
                self.forked(serve)
            with Client(to) as client:
                self.assertEqual(client.recv(), 0)
            self.forked(close).join(HANG_SECONDS)
            self.assertEqual(len(listener._handshakes), 1)
            self.assertRaises(BlockingIOError, silent.recv, 1, socket.MSG_DONTWAIT)
            silent.close()
            self.assertRaises(ConnectionAbortedError, listener.accept)
            got[0].close()
