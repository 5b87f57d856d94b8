"""
Tests of broadcasts: one writer, many readers.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import threading
from struct import Struct
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.queues.test_connection import Array
from tests.support.waiting import HANG_SECONDS
from twisted_ib import limits
from twisted_ib.hca.host import libc
from twisted_ib.queues import Broadcast, BroadcastReader, Pipe, broadcast
from twisted_ib.queues.broadcast import DISCONNECT, DROP, WAIT, Overrun

_MIB = 1 << 20
_fork = multiprocessing.get_context("fork")


def _read(writer: Broadcast, number: int, results: Any) -> None:
    # Whatever comes, until the end.
    reader = writer.take(number)
    results.send("ready")
    total = count = 0
    try:
        while True:
            with reader.reading() as found:
                total += len(found)
                count += 1
    except EOFError:
        results.send((count, total, reader.dropped))


def _readSent(reader: BroadcastReader, results: Any) -> None:
    results.send(reader.recv())


def _write(writer: Broadcast) -> None:
    for each in writer.readers:
        each.close()
    number = 0
    while True:
        writer.send((number, bytes(1000)))
        number += 1


class BroadcastTests(SynchronousTestCase):
    """
    What is sent, each reader gets.
    """

    def broadcast(self, *arguments: Any, **named: Any) -> Any:
        """
        @return: a writer.
        """
        writer = Broadcast(*arguments, **named)
        self.addCleanup(writer.close)
        for each in writer.readers:
            self.addCleanup(each.close)
        return writer

    def test_objects(self) -> None:
        """
        Objects and bytes of any size, by copy and in place, around the end of the ring.
        """
        writer = self.broadcast(2, size=_MIB)
        for each in (1, "a", b"", [1.5], b"b" * 100000, "c" * 200000, *range(200)):
            writer.send(each)
            for reader in writer.readers:
                self.assertEqual(reader.recv(), each)
        for size in (1, 70000, 300000) * 9:
            writer.send(Array(bytearray(b"d" * size)))
            writer.send_bytes(b"e" * size)
            copied, placed = writer.readers
            self.assertEqual(bytes(copied.recv().data), b"d" * size)
            self.assertEqual(copied.recv_bytes(), b"e" * size)
            with placed.reading() as found:
                self.assertEqual(bytes(found.data), b"d" * size)
            self.assertEqual(placed.recv_bytes(), b"e" * size)
        writer.send(Array(bytearray(70000)))
        self.assertIn(bytes(70000), writer.readers[0].recv_bytes())

    def test_copies(self) -> None:
        """
        1 MiB to 8 readers is copied once in all, into the ring.
        """
        writer = self.broadcast(8)
        whole, copied = writer._map, []

        class Memory(bytearray):
            # Has the header that is packed, and no message.
            def __setitem__(self, place: Any, data: Any) -> None:
                copied.append(len(data))
                whole[place] = data

        writer._map = memory = Memory(broadcast.PAGE + 64)
        writer.send(bytes(_MIB))
        header = broadcast.PAGE
        whole[header : header + 64] = bytes(memory)[header:]
        found = [reader.reading() for reader in writer.readers]
        views = [each.__enter__() for each in found]
        self.assertEqual([(type(each), each.nbytes) for each in views], [(memoryview, _MIB)] * 8)
        self.assertEqual(
            {each.obj is reader._map for each, reader in zip(views, writer.readers, strict=True)}, {True}
        )
        # The pickle of one buffer, and the buffer.
        self.assertEqual(copied, [4, _MIB])
        writer._map = whole

    def test_processes(self) -> None:
        """
        Readers in other processes sleep, read all, and see the end; one that is sent reads, too.
        """
        writer = self.broadcast(4, size=_MIB)
        pipes, processes = [], []
        for number in range(3):
            mine, theirs = Pipe(False)
            processes.append(_fork.Process(target=_read, args=(writer, number, theirs), daemon=True))
            processes[-1].start()
            pipes.append(mine)
            self.assertEqual(mine.recv(), "ready")
        mine, theirs = Pipe(False)
        context = multiprocessing.get_context("spawn")
        sent = context.Process(target=_readSent, args=(writer.readers[3], theirs), daemon=True)
        sent.start()
        for each in writer.readers:
            each.close()
        for _ in range(50):
            writer.send(bytes(100000))
            if _ == 0:
                self.assertEqual(mine.recv(), bytes(100000))
                sent.join(HANG_SECONDS)
        writer.close()
        self.assertEqual([each.recv() for each in pipes], [(50, 5000000, 0)] * 3)
        for process in processes:
            process.join(HANG_SECONDS)
            self.assertEqual(process.exitcode, 0)

    def test_wait(self) -> None:
        """
        A writer waits for the slowest reader, which is told what it misses: nothing.
        """
        writer = self.broadcast(2, WAIT, _MIB)
        quick, slow = writer.readers
        done = threading.Event()

        def write() -> None:
            for number in range(30):
                writer.send((number, bytes(100000)))
            done.set()

        thread = threading.Thread(target=write)
        thread.start()
        for number in range(5):
            self.assertEqual(quick.recv()[0], number)
        self.assertFalse(done.wait(0.05))
        reading = threading.Thread(target=lambda: [quick.recv() for _ in range(25)])
        reading.start()
        self.assertEqual([slow.recv()[0] for _ in range(30)], list(range(30)))
        for each in (thread, reading):
            each.join(HANG_SECONDS)
        self.assertTrue(done.is_set())
        self.assertEqual((quick.dropped, slow.dropped), (0, 0))

    def test_readMeanwhile(self) -> None:
        """
        A writer that is about to wait for room does not if the last slow reader reads meanwhile.
        """
        writer = self.broadcast(1, WAIT, 8192)
        (reader,) = writer.readers
        writer.send_bytes(bytes(3900))
        writer.send_bytes(bytes(3900))
        fence, read = broadcast.fence, []

        def reads() -> None:
            fence()
            if not read:
                read.append(1)
                reader.recv_bytes()

        self.patch(limits, "QUEUE_LOOK_SECONDS", HANG_SECONDS)
        self.patch(broadcast, "fence", reads)
        writer.send_bytes(bytes(3900))
        self.assertEqual((read, writer._cells[broadcast.ROOM]), ([1], 0))
        self.assertEqual([len(reader.recv_bytes()) for _ in range(2)], [3900] * 2)

    def test_looks(self) -> None:
        """
        A message costs one call to see that a reader lives, however many there are; the first may be gone.
        """
        writer = self.broadcast(3, DROP, 8192)
        for closed, connected in ((1, 3), (0, 1)):
            writer.readers[closed].close()
            writer.send(1)
            self.assertEqual(writer.connected, connected)
        self.assertEqual(writer.readers[2].recv(), 1)

    def test_sealed(self) -> None:
        """
        A reader can make the memory neither shorter nor longer, and cannot forbid to write to it.
        """
        (reader,) = self.broadcast(1, size=8192).readers
        for length in (0, 1 << 20):
            self.assertRaises(PermissionError, os.ftruncate, reader._memory, length)
        self.assertRaises(PermissionError, libc.addSeals, reader._memory, libc.F_SEAL_FUTURE_WRITE)

    def test_exact(self) -> None:
        """
        A message that ends where the ring does is put there.
        """
        writer = self.broadcast(1, DROP, 8192)
        (reader,) = writer.readers
        for number in range(1, 9):
            writer.send_bytes(bytes([number]) * (2048 - 64))
            self.assertEqual(writer._tail, number * 2048)
            self.assertEqual(reader.recv_bytes(), bytes([number]) * (2048 - 64))

    def test_drop(self) -> None:
        """
        A slow reader misses the oldest messages, and knows how many; it is told if what it reads in place is
        overwritten.
        """
        writer = self.broadcast(1, DROP, _MIB)
        (reader,) = writer.readers
        for number in range(100):
            writer.send((number, bytes(50000)))
        first = reader.recv()[0]
        self.assertEqual(reader.dropped, first)
        self.assertGreater(first, 50)
        self.assertEqual([reader.recv()[0] for _ in range(first + 1, 100)], list(range(first + 1, 100)))
        writer.send(100)
        with self.assertRaises(Overrun), reader.reading() as found:
            self.assertEqual(found, 100)
            for number in range(101, 150):
                writer.send((number, bytes(50000)))
        self.assertGreater(reader.recv()[0], 101)

    def overwritten(self, isBroken: bool) -> None:
        """
        Read while the writer overwrites what is read.

        @param isBroken: whether the header then looks broken.
        """
        writer = self.broadcast(1, DROP, 8192)
        (reader,) = writer.readers
        parts, seen = reader._parts, []

        def overwriting(head: int, tail: int) -> Any:
            found = parts(head, tail)
            if not seen:
                seen.append(head)
                for number in range(1, 4):
                    writer.send_bytes(bytes([number]) * 3900)
                if isBroken:
                    raise OSError("bad message length")
            return found

        writer.send_bytes(b"first")
        self.patch(reader, "_parts", overwriting)
        self.assertEqual([reader.recv_bytes()[:1] for _ in range(2)], [b"\2", b"\3"])
        self.assertEqual(reader.dropped, 2)

    def test_overwritten(self) -> None:
        """
        A message that is overwritten while its header is read is missed, and no error.
        """
        for isBroken in (False, True):
            self.overwritten(isBroken)

    def test_disconnect(self) -> None:
        """
        A slow reader is disconnected; the others go on.
        """
        writer = self.broadcast(3, DISCONNECT, _MIB)
        quick, slow, placed = writer.readers
        for number in range(40):
            writer.send((number, bytes(50000)))
            for each in (quick, placed):
                self.assertEqual(each.recv()[0], number)
        self.assertEqual(writer.connected, 2)
        self.assertRaises(ConnectionAbortedError, slow.recv)
        writer.send(40)
        with self.assertRaises(ConnectionAbortedError), placed.reading() as found:
            self.assertEqual((found, quick.recv()), (40, 40))
            for number in range(41, 80):
                writer.send((number, bytes(50000)))
                self.assertEqual(quick.recv()[0], number)
        # The last reader: nothing is overwritten for nobody.
        with self.assertRaises(BrokenPipeError):
            for _ in range(40):
                writer.send_bytes(bytes(50000))
        with self.assertRaises(ConnectionAbortedError):
            while True:
                quick.recv_bytes()

    def test_poll(self) -> None:
        """
        C{poll} says whether there is a message, and C{fileno} wakes who waits for one.
        """
        writer = self.broadcast(1)
        (reader,) = writer.readers
        self.assertEqual((reader.poll(), reader.poll(0.01)), (False, False))
        writer.send(1)
        self.assertEqual(select.select([reader], [], [], HANG_SECONDS)[0], [reader])
        self.assertTrue(reader.poll())
        self.assertEqual(reader.recv(), 1)
        self.assertFalse(reader.poll())
        writer.close()
        self.assertTrue(reader.poll())
        self.assertRaises(EOFError, reader.recv)
        self.assertRaisesRegex(OSError, "closed", writer.send, 1)
        reader.close()
        for call in (reader.poll, reader.fileno):
            self.assertRaisesRegex(OSError, "closed", call)

    def test_limits(self) -> None:
        """
        No more readers than there are cells, no message longer than half of the ring, and no other policy.
        """
        for arguments in (
            (0,),
            (limits.BROADCAST_READERS + 1,),
            (1, "often"),
            (1, WAIT, 100),
            (1, WAIT, 0),
            (1, WAIT, 5000),
        ):
            self.assertRaises(ValueError, Broadcast, *arguments)
        writer = self.broadcast(limits.BROADCAST_READERS, size=8192)
        self.assertRaises(ValueError, writer.send_bytes, bytes(4096))
        writer.send_bytes(bytes(3900))
        self.assertEqual(len(writer.readers[-1].recv_bytes()), 3900)

    def test_badHeader(self) -> None:
        """
        A header that the writer cannot have written is C{OSError}, however often it is read.
        """
        for more, header in (
            (0, (0, 1)),
            # Right but for the number of its buffers, which are empty.
            (_MIB // 2, (limits.QUEUE_BUFFERS + 2, 1, *[0] * (limits.QUEUE_BUFFERS + 2))),
            (0, (1, 0)),
            (0, (1, 1, 1 << 40)),
            (0, (2, 1, 5, _MIB)),
            (0, (1, 1, 100)),
            # Within what is said to be published, and over the end of the ring.
            (_MIB - 128, (1, 1, _MIB - 128)),
        ):
            writer = self.broadcast(2, size=_MIB)
            # The message before is as it should be.
            writer.send_bytes(b"first")
            for reader in writer.readers:
                self.assertEqual(reader.recv_bytes(), b"first")
            writer.send_bytes(b"second")
            copied, placed = writer.readers
            Struct(f"<{len(header)}Q").pack_into(copied._map, broadcast.PAGE + 128, *header)
            copied._cells[broadcast.TAIL] += more
            for _ in range(2):
                with self.assertRaisesRegex(OSError, "layout"):
                    copied.recv_bytes()
                with self.assertRaisesRegex(OSError, "layout"), placed.reading():
                    pass
            self.assertEqual(copied._cells[copied._head], 128)

    def test_badCells(self) -> None:
        """
        So are counters that the writer cannot have written.
        """
        for cell, value in (
            (broadcast.TAIL, (1 << 64) - 1),
            (broadcast.TAIL, 64),
            (broadcast.OLDEST, (1 << 64) - 1),
            (broadcast.OLDEST, 1 << 63),
            (8 + broadcast.HEAD, _MIB - 1),
        ):
            writer = self.broadcast(1, size=_MIB)
            writer.send_bytes(bytes(1000))
            (reader,) = writer.readers
            reader._cells[cell] = value
            for _ in range(2):
                with self.assertRaisesRegex(OSError, "layout"):
                    reader.recv_bytes()

    def test_killedReader(self) -> None:
        """
        A reader that is killed holds up nobody; with the last the writer gets C{BrokenPipeError}.
        """
        writer = self.broadcast(3, size=_MIB)
        own = writer.readers[2]
        processes = []
        for number in range(2):
            mine, theirs = Pipe(False)
            processes.append(_fork.Process(target=_read, args=(writer, number, theirs), daemon=True))
            processes[-1].start()
            self.assertEqual(mine.recv(), "ready")
        for each in writer.readers[:2]:
            each.close()
        for number in range(60):
            if number in (20, 40):
                process = processes[number // 20 - 1]
                process.kill()
                process.join(HANG_SECONDS)
            writer.send((number, bytes(50000)))
            self.assertEqual(own.recv()[0], number)
        own.close()
        self.assertRaises(BrokenPipeError, writer.send, 1)

    def test_killedWriter(self) -> None:
        """
        A writer that is killed is the end, after what it had sent.
        """
        writer = self.broadcast(1, size=_MIB)
        (reader,) = writer.readers
        process = _fork.Process(target=_write, args=(writer,), daemon=True)
        process.start()
        writer.close()
        for number in range(20):
            self.assertEqual(reader.recv()[0], number)
        process.kill()
        number = 20
        with self.assertRaises(EOFError):
            while True:
                self.assertEqual(reader.recv(), (number, bytes(1000)))
                number += 1
        process.join(HANG_SECONDS)
