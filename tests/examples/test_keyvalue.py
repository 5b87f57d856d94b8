"""
Tests of C{examples/keyvalue.py} within one reactor.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionAborted, ConnectionLost
from twisted.internet.task import deferLater
from twisted.trial.unittest import SynchronousTestCase

from tests.examples.case import ExampleTestCase
from tests.examples.programs import load
from twisted_ib.errors import WorkCompletionError

keyvalue = load("keyvalue")


class SlotTests(SynchronousTestCase):
    """
    The bytes of a slot.
    """

    #: A slot: checksum, version 1, a key of 1 byte, a value of 2 bytes.
    SLOT = bytes.fromhex("c40f7c2e 0000000000000001 0001 00000002") + b"kvv"

    def test_bytes(self) -> None:
        """
        A slot is these bytes, both ways; what is behind it in its place does not count.
        """
        entry = keyvalue.Entry(1, b"k", b"vv")
        self.assertEqual(keyvalue.pack(entry).hex(" "), self.SLOT.hex(" "))
        self.assertEqual(keyvalue.unpack(memoryview(self.SLOT)), entry)
        self.assertEqual(keyvalue.unpack(memoryview(self.SLOT + b"older")), entry)

    def test_damaged(self) -> None:
        """
        Any bit that is wrong is seen, in any byte.
        """
        for bit in range(8 * len(self.SLOT)):
            wrong = bytearray(self.SLOT)
            wrong[bit // 8] ^= 1 << bit % 8
            self.assertIsNone(keyvalue.unpack(memoryview(wrong)), bit)

    def test_short(self) -> None:
        """
        Lengths that lead out of the slot are seen.
        """
        for stop in range(keyvalue.SLOT.size, len(self.SLOT)):
            self.assertIsNone(keyvalue.unpack(memoryview(self.SLOT[:stop])))
        body = keyvalue.SLOT.pack(0, 1, 1, 3)[4:] + b"kvv"
        wrong = crc32(body).to_bytes(4, "big") + body
        self.assertIsNone(keyvalue.unpack(memoryview(wrong)))

    def test_never(self) -> None:
        """
        A slot of zeros, which nobody has written, is no entry.
        """
        self.assertIsNone(keyvalue.unpack(memoryview(bytes(64))))


class TableTests(SynchronousTestCase):
    """
    The server's memory.
    """

    def setUp(self) -> None:
        """
        A table with one place, so that all keys are neighbours.
        """
        self.table = keyvalue.Table(1, 32)

    def entries(self) -> list[Any]:
        """
        @return: what is in the slots.
        """
        slots = memoryview(self.table.memory)[keyvalue.HEADER.size :]
        return [keyvalue.unpack(slots[start : start + 32]) for start in range(0, len(slots), 32)]

    def test_neighbours(self) -> None:
        """
        Keys of one place are in the slots from there on, while there are any; a place that was
        left is taken again, with a version that goes on.
        """
        keys = [b"%d" % number for number in range(keyvalue.PROBES)]
        for key in keys:
            self.assertEqual(self.table.put(key, b"v" + key), keyvalue.DONE)
        self.assertEqual(self.entries(), [(1, key, b"v" + key) for key in keys])
        self.assertEqual(self.table.put(b"more", b""), keyvalue.REFUSED)
        self.assertEqual(self.table.delete(b"1"), keyvalue.DONE)
        self.assertEqual(self.table.delete(b"1"), keyvalue.MISSING)
        self.assertEqual(self.table.put(b"3", b"w"), keyvalue.DONE)
        self.assertEqual(self.table.put(b"more", b""), keyvalue.DONE)
        self.assertEqual(
            self.entries(), [(1, b"0", b"v0"), (3, b"more", b""), (1, b"2", b"v2"), (2, b"3", b"w")]
        )

    def test_bounds(self) -> None:
        """
        What does not fit in a slot is refused, and so is a key of nothing.
        """
        room = 32 - keyvalue.SLOT.size
        self.assertEqual(self.table.put(b"k", bytes(room - 1)), keyvalue.DONE)
        self.assertEqual(self.table.put(b"k", bytes(room)), keyvalue.REFUSED)
        self.assertEqual(self.table.put(b"", b"v"), keyvalue.REFUSED)
        self.assertEqual(self.table.delete(b""), keyvalue.MISSING)
        self.assertEqual(self.entries()[0], (1, b"k", bytes(room - 1)))
        self.assertEqual(len(self.table.memory), keyvalue.HEADER.size + keyvalue.PROBES * 32)

    def test_slotsOf(self) -> None:
        """
        Where a key may be is the same everywhere, and within the table.
        """
        self.assertEqual(keyvalue.slotsOf(b"colour", 1024), range(349, 353))
        for number in range(1000):
            found = keyvalue.slotsOf(b"%d" % number, 7)
            self.assertTrue(0 <= found.start < 7 and len(found) == keyvalue.PROBES)


class StoreTests(ExampleTestCase):
    """
    A store and its clients.
    """

    async def client(self, reactor: Any, store: Any) -> Any:
        """
        @return: a client that has looked at the table.
        """
        await self.listen(reactor, store)
        return await self.another(reactor)

    async def another(self, reactor: Any) -> Any:
        """
        @return: a client of the same store.
        """
        client = await self.connect(reactor, self.endpoint, lambda: keyvalue.Client(reactor))
        return await client.open()

    def test_oneSided(self) -> None:
        """
        PUT and DELETE are done by the server's program, GET is not.
        """

        async def steps(reactor: Any) -> None:
            store = keyvalue.Store(keyvalue.Table(64, 128))
            client = await self.client(reactor, store)
            self.assertIsNone(await client.get(b"colour"))
            await client.put(b"colour", b"blue")
            self.assertEqual(await client.get(b"colour"), b"blue")
            await client.put(b"colour", b"")
            self.assertEqual(await client.get(b"colour"), b"")
            self.assertEqual(store.requests, 2)
            for _ in range(100):
                await client.get(b"colour")
            self.assertEqual((store.requests, await client.stats(), client.torn), (2, 3, 0))
            self.assertIs(await client.delete(b"colour"), True)
            self.assertIs(await client.delete(b"colour"), False)
            self.assertIsNone(await client.get(b"colour"))
            self.assertIsNone(await client.get(b""))
            for wrong in ((b"", b"x"), (b"k", bytes(128))):
                with self.assertRaises(keyvalue.StoreError):
                    await client.put(*wrong)
            client.transport.loseConnection()
            await self.assertEmpty(reactor)

        self.drive(steps)

    def test_torn(self) -> None:
        """
        A reader that races a writer, who writes half of a slot, and the other half when that was read, sees
        that it is torn; it never gets a mixture.
        """

        async def steps(reactor: Any) -> None:
            table = keyvalue.Table(1, 1024)
            write = table.write
            client = await self.client(reactor, keyvalue.Store(table))
            seen = set()

            async def slowly(number: int, packed: bytes) -> None:
                torn = client.torn
                write(number, packed[: len(packed) // 2])
                while client.torn == torn:
                    await deferLater(reactor, 0)
                write(number, packed)

            async def change() -> None:
                for number in range(1, 20):
                    writing: list[Deferred[None]] = []
                    table.write = lambda *slot, writing=writing: writing.append(
                        Deferred.fromCoroutine(slowly(*slot))
                    )
                    table.put(b"key", bytes([number]) * 900)
                    await writing[0]
                    while number not in seen:
                        await deferLater(reactor, 0)

            table.put(b"key", bytes(900))
            changing = Deferred.fromCoroutine(change())
            while not changing.called:
                value = await client.get(b"key")
                self.assertEqual(value, value[:1] * 900)
                seen.add(value[0])
            await changing
            self.assertGreaterEqual(client.torn, 19)
            client.transport.loseConnection()
            await self.assertEmpty(reactor)

        self.drive(steps)

    def test_tornForEver(self) -> None:
        """
        A slot that stays torn is an error, and not a value nor the absence of one.
        """

        async def steps(reactor: Any) -> None:
            table = keyvalue.Table(1, 64)
            client = await self.client(reactor, keyvalue.Store(table))
            await client.put(b"key", b"value")
            table.memory[keyvalue.HEADER.size + keyvalue.SLOT.size + 4] ^= 1
            for key in (b"key", b"another"):
                with self.assertRaises(keyvalue.StoreError):
                    await client.get(key)
            self.assertEqual(client.torn, 2 * keyvalue.TRIES)
            await client.put(b"key", b"again")
            self.assertEqual(await client.get(b"key"), b"again")
            client.transport.loseConnection()
            await self.assertEmpty(reactor)

        self.drive(steps)

    def test_noTable(self) -> None:
        """
        A header that makes no sense is an error.
        """

        async def steps(reactor: Any) -> None:
            table = keyvalue.Table(4, 64)
            pack = keyvalue.HEADER.pack
            await self.listen(reactor, keyvalue.Store(table))
            for header in (
                pack(1, 4, 64),
                pack(keyvalue.MAGIC, 0, 64),
                pack(keyvalue.MAGIC, 4, keyvalue.SLOT.size - 1),
                pack(keyvalue.MAGIC, 4, keyvalue.SLOT_BYTES_MOST + 1),
            ):
                table.memory[: len(header)] = header
                with self.assertRaises(keyvalue.StoreError):
                    await self.another(reactor)
            await self.assertEmpty(reactor)

        self.drive(steps)

    def test_readOnly(self) -> None:
        """
        A client cannot write to the table; others do not notice that it tried.
        """

        async def steps(reactor: Any) -> None:
            table = keyvalue.Table(4, 64)
            client = await self.client(reactor, keyvalue.Store(table))
            other = await self.another(reactor)
            before = bytes(table.memory)
            with self.assertRaises(WorkCompletionError) as caught:
                await client.transport.rdmaWrite(b"x", client._address, client._key)
            self.assertEqual(caught.exception.statusName, "REM_ACCESS_ERR")
            self.assertEqual(table.memory, before)
            self.assertIsNone(await other.get(b"key"))
            other.transport.loseConnection()
            await self.assertEmpty(reactor)

        self.drive(steps)

    def test_lost(self) -> None:
        """
        A caller that waits for an answer is told that the connection is lost, and so is a reader.
        """

        async def steps(reactor: Any) -> None:
            client = await self.client(reactor, keyvalue.Store(keyvalue.Table(4, 64)))
            asked = [Deferred.fromCoroutine(client.put(b"k", b"v")), Deferred.fromCoroutine(client.get(b"k"))]
            client.transport.abortConnection()
            for each, error in zip(asked, (ConnectionAborted, WorkCompletionError), strict=True):
                with self.assertRaises(error):
                    await each
            await self.assertEmpty(reactor)

        self.drive(steps)

    def test_garbage(self) -> None:
        """
        A message that is none ends the connection, and one whose key is longer than it is does
        no harm.
        """

        async def steps(reactor: Any) -> None:
            store = keyvalue.Store(keyvalue.Table(4, 64))
            client = await self.client(reactor, store)
            answer: Deferred[bytes] = Deferred()
            client._answers.append(answer)
            client.transport.write(keyvalue.REQUEST.pack(keyvalue.DELETE, 65535) + b"key")
            self.assertEqual(await answer, keyvalue.MISSING)
            for wrong in (b"", b"p", b"p\0"):
                client = await self.another(reactor)
                gone: Deferred[bytes] = Deferred()
                client._answers.append(gone)
                client.transport.write(wrong)
                with self.assertRaises(ConnectionLost):
                    await gone
            self.assertEqual(store.requests, 1)

        self.drive(steps)


globals().update(StoreTests.makeTestCaseClasses())
del StoreTests
