"""
The contract of connections through shared memory on a reactor or an event loop.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from multiprocessing import Process
from typing import TYPE_CHECKING, Any

from tests.queues.test_connection import Array
from tests.support.commands import stop
from tests.support.counting import traced
from tests.support.waiting import HANG_SECONDS
from twisted_ib import limits
from twisted_ib.queues import Connection, Pipe, ring
from twisted_ib.queues.connection import READ_ONLY

if TYPE_CHECKING:
    from twisted.trial.unittest import SynchronousTestCase
else:
    SynchronousTestCase = object

_LONG = 2 * limits.QUEUE_RING + 12345
#: A whole number of records of this size is in a full ring.
_RECORD = 64 * 1024 - 8


def _echo(mine: Connection, theirs: Any) -> None:
    theirs.close()
    while True:
        try:
            mine.send(mine.recv())
        except (EOFError, OSError):
            return


def _fill(connection: Connection) -> None:
    # As many as there is room for.
    while connection.hasRoom(([bytes(_RECORD)], [])):
        connection.send_bytes(bytes(_RECORD))


class _Cells:
    # Those of a ring, of which the peer changes one when it was read once.

    def __init__(self, cells: Any, changes: int, value: Callable[[], int]) -> None:
        self._cells, self._changes, self._value = cells, changes, value
        self._isRead = False

    def __getitem__(self, number: int) -> int:
        if number != self._changes:
            return int(self._cells[number])
        wasRead, self._isRead = self._isRead, True
        return self._value() if wasRead else int(self._cells[number])

    def __setitem__(self, number: int, value: int) -> None:
        # Nobody sleeps in a loop: neither for room nor for a record.
        assert (number, value) not in ((ring.ROOM, ring.SLEEPS), (ring.AWAKE, 1))
        self._cells[number] = value

    def release(self) -> None:
        self._cells.release()


class _Poller:
    # Notes for how long is waited.

    def __init__(self) -> None:
        self.waits: list[int] = []

    def poll(self, milliseconds: int) -> list[tuple[int, int]]:
        self.waits.append(milliseconds)
        return []


class QueueContract(SynchronousTestCase):
    """
    What C{Connection.onReactor} and C{onLoop} do on each reactor and loop.
    """

    def drive(self, story: Callable[[], Awaitable[None]]) -> None:
        """
        Run a story until it ends.
        """
        raise NotImplementedError

    def wrap(self, connection: Connection) -> Any:
        """
        @return: the connection on this reactor or loop.
        """
        raise NotImplementedError

    def turn(self, seconds: float = 0) -> Any:
        """
        @return: what is awaited for a turn of the loop, or longer.
        """
        raise NotImplementedError

    def pair(self, duplex: bool = True) -> tuple[Any, Connection]:
        """
        @return: an end here, and the other, which waits.
        """
        here, there = Pipe(duplex)
        self.addCleanup(there.close)
        wrapped = self.wrap(here)
        self.addCleanup(wrapped.close)
        return wrapped, there

    def _cancel(self, *waiters: Any) -> None:
        for each in waiters:
            each.cancel()
            # A Deferred minds if nobody looks at it.
            if hasattr(each, "addErrback"):
                each.addErrback(lambda _: None)

    def test_echo(self) -> None:
        """
        Objects go to another process and back, in order, whatever their size; no thread is made for it.
        """

        async def story() -> None:
            here, there = Pipe()
            process = Process(target=_echo, args=(there, here), daemon=True)
            process.start()
            self.addCleanup(process.join, HANG_SECONDS)
            self.addCleanup(process.kill)
            there.close()
            before = threading.active_count()
            async with self.wrap(here) as connection:
                objects = [1, "a" * 300000, bytes(_LONG), Array(bytearray(b"b" * _LONG)), b"", [b"c" * 70000]]
                answers = [connection.recv() for _ in objects]
                for each in [connection.send(each) for each in objects]:
                    self.assertIsNone(await each)
                found = [await each for each in answers]
                self.assertEqual([*found[:3], *found[4:]], [*objects[:3], *objects[4:]])
                self.assertEqual(found[3].data, objects[3].data)  # type: ignore[attr-defined]
                for number in range(300):
                    await connection.send(number)
                    self.assertEqual(await connection.recv(), number)
                self.assertEqual(threading.active_count(), before)
            self.assertTrue(connection.closed)

        self.drive(story)

    def test_bytes(self) -> None:
        """
        Bytes are sent and received as such; an object's are its pickle.
        """

        async def story() -> None:
            here, there = self.pair()
            for each in (b"", b"abc", bytes(200000)):
                await here.send_bytes(bytearray(each))
                self.assertEqual(there.recv_bytes(), each)
                there.send_bytes(each)
                self.assertEqual(await here.recv_bytes(), each)
            there.send("a")
            self.assertIn(b"a", await here.recv_bytes())
            there.send([Array(bytearray(70000))])
            self.assertIn(bytes(70000), await here.recv_bytes())

        self.drive(story)

    def test_sleeps(self) -> None:
        """
        A call that waits takes no turn of the loop; nor does a message that nobody waits for.
        """

        async def story() -> None:
            here, there = self.pair()
            ready, calls = here._ready, []
            here._ready = lambda: (calls.append(1), ready())
            answer = here.recv()
            for _ in range(20):
                await self.turn()
            self.assertEqual(calls, [])
            there.send(1)
            there.send(2)
            self.assertEqual(await answer, 1)
            for _ in range(20):
                await self.turn()
            # The second may have rung once more.
            self.assertLessEqual(len(calls), 2)
            self.assertEqual(await here.recv(), 2)

        self.drive(story)

    def test_full(self) -> None:
        """
        What has no room waits, and others do meanwhile; the reader says when there is some.
        """
        self.patch(limits, "QUEUE_LOOK_SECONDS", HANG_SECONDS)

        async def story() -> None:
            here, there = self.pair()
            filling = [here.send_bytes(bytes(_RECORD)) for _ in range(9)]
            last = here.send("last")
            await self.turn()
            there.send("meanwhile")
            self.assertEqual(await here.recv(), "meanwhile")
            for _ in filling:
                self.assertEqual(len(there.recv_bytes()), _RECORD)
                await self.turn()
            for each in [*filling, last]:
                self.assertIsNone(await each)
            self.assertEqual(there.recv(), "last")

        self.drive(story)

    def test_headLowered(self) -> None:
        """
        A peer that takes back room, once this end has seen it, does not make the loop sleep.
        """

        async def story() -> None:
            here, there = self.pair()
            for _ in range(9):
                await here.send_bytes(bytes(_RECORD))
                there.recv_bytes()
            writer = here._writer
            cells = writer._cells
            writer._cells = _Cells(cells, ring.HEAD, lambda: cells[ring.TAIL] - limits.QUEUE_RING)
            try:
                sends = [here.send("first"), here.send("second")]
                self.assertEqual([here._isDone(each) for each in sends], [True, False])
            finally:
                writer._cells = cells
            self.assertEqual(there.recv(), "first")
            here._turn()
            self.assertIsNone(await sends[1])
            self.assertEqual(there.recv(), "second")

        self.drive(story)

    def test_tailTaken(self) -> None:
        """
        A peer that takes back a message, once this end has seen it, does not make the loop sleep.
        """

        async def story() -> None:
            here, there = self.pair()
            there.send(1)
            cells = here._reader._cells
            here._reader._cells = _Cells(cells, ring.TAIL, lambda: 0)
            try:
                answer = here.recv()
            finally:
                here._reader._cells = cells
            with self.assertRaisesRegex(OSError, "taken back"):
                await answer

        self.drive(story)

    def test_announced(self) -> None:
        """
        A peer that announces a byte and does not send it holds up no loop.
        """

        async def story() -> None:
            here, there = self.pair()
            there.send(1)
            reader = here._reader
            reader._cells[ring.WATCHED] = 1
            reader._cells[ring.BELLS] = reader._cells[ring.TAKEN] + 10
            poller, reader._poller = reader._poller, _Poller()
            try:
                self.assertEqual(await here.recv(), 1)
                self.assertEqual(reader._poller.waits, [0])
            finally:
                reader._poller = poller

        self.drive(story)

    def test_stopped(self) -> None:
        """
        A reader that is killed once it has freed the ring and before it says so keeps nobody waiting.
        """
        self.patch(limits, "QUEUE_LOOK_SECONDS", 0.01)

        async def story() -> None:
            here, there = self.pair()
            filling = [here.send_bytes(bytes(_RECORD)) for _ in range(9)]
            reader = there.ends()[0]
            for _ in range(5):
                _, _, _, end = reader.next()
                reader._cells[8] = end
            for each in filling:
                self.assertIsNone(await each)

        self.drive(story)

    def test_end(self) -> None:
        """
        What was sent before the end arrives; then it is C{EOFError} to receive and C{BrokenPipeError} to
        send, for calls that wait, too.
        """

        async def story() -> None:
            here, there = self.pair()
            there.send(1)
            there.send(2)
            first = here.recv()
            there.close()
            self.assertEqual([await first, *[each async for each in here]], [1, 2])
            for call, error in ((here.recv, EOFError), (lambda: here.send(1), BrokenPipeError)):
                with self.assertRaises(error):
                    await call()
            here, there = self.pair()
            waits = [here.send_bytes(bytes(_RECORD)) for _ in range(9)][-1]
            answer = here.recv()
            there.close()
            with self.assertRaises(BrokenPipeError):
                await waits
            with self.assertRaises(EOFError):
                await answer

        self.drive(story)

    def test_killed(self) -> None:
        """
        A process that is killed within a message is an error that says so, and one that was stopped is none.
        """

        async def story() -> None:
            here, there = Pipe()
            process = Process(target=_echo, args=(there, here), daemon=True)
            process.start()
            there.close()
            connection = self.wrap(here)
            await connection.send(1)
            self.assertEqual(await connection.recv(), 1)
            assert process.pid is not None
            stop(process.pid)
            waits = [connection.send_bytes(bytes(_LONG)), connection.recv()]
            for _ in range(5):
                await self.turn()
            process.kill()
            for each in waits:
                with self.assertRaises((EOFError, BrokenPipeError)):
                    await each
            process.join(HANG_SECONDS)
            connection.close()

        self.drive(story)

    def test_within(self) -> None:
        """
        The end within a message is C{OSError}.
        """

        async def story() -> None:
            here, there = self.pair()
            there.ends()[1].write(1, (100).to_bytes(8, "little"), 8)
            answer = here.recv()
            there.ends()[1].write(0, b"a" * 50, 50)
            there.close()
            with self.assertRaisesRegex(OSError, "during message"):
                await answer

        self.drive(story)

    def test_claimed(self) -> None:
        """
        Memory is given for what has come of a message, at most 5/2 of it and some records, and not for what
        is claimed by its first record, however often.
        """
        size, some = limits.QUEUE_RECORD, 4 * limits.QUEUE_RECORD
        record = bytes(size)

        async def story() -> None:
            for mark in (0, READ_ONLY):
                here, there = self.pair()
                answer = here.recv()
                write = there.ends()[1].write
                for _ in range(40):
                    write(1, (64 << 20 | mark).to_bytes(8, "little"), 8)
                self.assertLess(traced(here._turn)[1], some)
                self.assertFalse(here._reader.pending())

                def come(here: Any = here, write: Callable[..., object] = write) -> None:
                    # As many at a time as there is room for.
                    for _ in range(8):
                        for _ in range(3):
                            write(0, record, size)
                        here._turn()

                self.assertLess(traced(come)[1], 24 * size * 5 // 2 + some)
                self.assertFalse(here._reader.pending())
                self._cancel(answer)

        self.drive(story)

    def test_broken(self) -> None:
        """
        What is no message closes the connection: it would be found again by each call, and what has come of
        it would be kept.
        """

        async def story() -> None:
            records = (
                ((1, b"\xff" * 8),),
                ((1, b"1234567"),),
                ((1, (1 << 62).to_bytes(8, "little")), (0, b"a" * 50)),
                ((1, (100).to_bytes(8, "little")), (0, b"a" * 90), (2, b"b" * 11)),
            )
            for each in records:
                here, there = self.pair()
                first, second, sends = here.recv(), here.recv(), here.send_bytes(bytes(_LONG))
                # All of them are there before the loop looks.
                for flags, data in each:
                    there.ends()[1].write(flags, data, len(data))
                with self.assertRaisesRegex(OSError, "bad message length"):
                    await first
                for waiter in (second, sends, here.recv()):
                    with self.assertRaisesRegex(OSError, "closed"):
                        await waiter
                self.assertEqual((here.closed, bool(here._assembly)), (True, False))
                with self.assertRaises(BrokenPipeError):
                    there.send(1)

        self.drive(story)

    def test_cancelled(self) -> None:
        """
        A call that is cancelled takes no message and sends none, unless a part of it is sent.
        """

        async def story() -> None:
            here, there = self.pair()
            first, second = here.recv(), here.recv()
            self._cancel(first)
            there.send(1)
            self.assertEqual(await second, 1)
            long, never, last = here.send_bytes(bytes(_LONG)), here.send("never"), here.send("last")
            self._cancel(long, never)
            reading = threading.Thread(target=lambda: found.extend([there.recv_bytes(), there.recv()]))
            found: list[Any] = []
            reading.start()
            self.assertIsNone(await last)
            reading.join(HANG_SECONDS)
            self.assertEqual([len(found[0]), found[1]], [_LONG, "last"])

        self.drive(story)

    def test_limit(self) -> None:
        """
        No more than C{limits.QUEUE_CALLS} wait; those that were cancelled do not count.
        """
        self.patch(limits, "QUEUE_CALLS", 3)

        async def story() -> None:
            here, there = self.pair()
            waits = [here.recv() for _ in range(3)]
            with self.assertRaises(BlockingIOError):
                await here.recv()
            self._cancel(waits[1])
            waits[1:2] = [here.recv()]
            for each in range(3):
                there.send(each)
            self.assertEqual({await each for each in waits}, {0, 1, 2})
            sends = [here.send_bytes(bytes(_LONG)) for _ in range(3)]
            with self.assertRaises(BlockingIOError):
                await here.send(1)
            here.close()
            for each in sends:
                with self.assertRaisesRegex(OSError, "closed"):
                    await each

        self.drive(story)

    def test_turn(self) -> None:
        """
        No more than C{limits.QUEUE_TURN_BYTES} are moved in one turn of the loop.
        """
        self.patch(limits, "QUEUE_TURN_BYTES", 8 * 4096)

        async def story() -> None:
            here, there = self.pair()
            for each in range(100):
                there.send(each)
            answers = [here.recv() for _ in range(100)]
            done = [each for each in answers if here._isDone(each)]
            self.assertLess(len(done), 9)
            self.assertEqual([await each for each in answers], list(range(100)))

        self.drive(story)

    def test_turnOfSends(self) -> None:
        """
        A message counts its octets and 4,096 more; once the turn's are used up nothing more is sent in it.
        """
        self.patch(limits, "QUEUE_TURN_BYTES", 8 * 5000)
        self.patch(limits, "QUEUE_LOOK_SECONDS", HANG_SECONDS)

        async def story() -> None:
            here, there = self.pair()
            answers = [here.send_bytes(bytes(5000 - 4096)) for _ in range(20)]
            self.assertEqual(len([each for each in answers if here._isDone(each)]), 8)
            for each in answers:
                await each
            self.assertEqual({len(there.recv_bytes()) for _ in range(20)}, {5000 - 4096})

        self.drive(story)

    def test_atOnce(self) -> None:
        """
        C{limits.QUEUE_CALLS_AT_ONCE} calls of a turn are over before they return; once they are used up the
        next turn is asked for, and not before.
        """
        self.patch(limits, "QUEUE_CALLS_AT_ONCE", 3)

        async def story() -> None:
            here, there = self.pair()
            for number in range(2):
                self.assertTrue(here._isDone(here.send(number)))
            waits = here.recv()
            self.assertIsNone(here._timer)
            self.assertTrue(here._isDone(here.send(2)))
            last = here.send(3)
            self.assertEqual((here._isDone(last), here._isSoon), (False, True))
            await last
            there.send(4)
            self.assertEqual([there.recv() for _ in range(4)] + [await waits], [0, 1, 2, 3, 4])

        self.drive(story)

    def test_turnWhileFull(self) -> None:
        """
        Receiving more than one turn's share, while a message has no room, waits for the next turn only.
        """
        self.patch(limits, "QUEUE_LOOK_SECONDS", HANG_SECONDS)
        self.patch(limits, "QUEUE_TURN_BYTES", 8 * 4096)

        async def story() -> None:
            here, there = self.pair()
            waits = here.send_bytes(bytes(_LONG))
            await self.turn()
            for each in range(100):
                there.send(each)
            self.assertEqual([await here.recv() for _ in range(100)], list(range(100)))
            self._cancel(waits)

        self.drive(story)

    def test_emptyMessage(self) -> None:
        """
        A message that cannot be loaded for it ends too early is an error, and not the end of a loop.
        """

        async def story() -> None:
            here, there = self.pair()
            there.send(1)
            there.send_bytes(b"")
            there.send(2)
            there.close()
            with self.assertRaises(EOFError):
                async for each in here:
                    self.assertEqual(each, 1)
            self.assertEqual([each async for each in here], [2])

        self.drive(story)

    def test_errors(self) -> None:
        """
        What cannot be pickled, or loaded, fails alone; one direction that is not there is C{OSError}.
        """

        async def story() -> None:
            here, there = self.pair()
            with self.assertRaises((TypeError, AttributeError)):
                await here.send(threading.Lock())
            there.send_bytes(b"no pickle")
            there.send(1)
            with self.assertRaises(Exception):  # noqa: B017
                await here.recv()
            self.assertEqual(await here.recv(), 1)
            here, _ = self.pair(duplex=False)
            with self.assertRaisesRegex(OSError, "read-only"):
                await here.send(1)
            waits = here.recv()
            here.close()
            here.close()
            with self.assertRaisesRegex(OSError, "closed"):
                await waits
            for call in (here.recv, lambda: here.send(1)):
                with self.assertRaisesRegex(OSError, "closed"):
                    await call()

        self.drive(story)


__all__ = ["QueueContract"]
