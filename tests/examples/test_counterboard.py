"""
Tests of C{examples/counterboard.py} within one reactor.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import deferLater
from twisted.trial.unittest import SynchronousTestCase

from tests.examples.case import ExampleTestCase
from tests.examples.programs import load
from tests.support.waiting import becomes
from twisted_ib.errors import WorkCompletionError

board = load("counterboard")


class BoardTests(ExampleTestCase):
    """
    A board, and clients that count.
    """

    async def visit(self, reactor: Any, endpoint: str) -> Any:
        """
        @return: a client that may begin.
        """
        visitor = await self.connect(reactor, endpoint, board.Visitor)
        await visitor.welcomed
        return visitor

    def test_count(self) -> None:
        """
        What three clients add at a time adds up, and each sees all; the server's program hears
        nothing.
        """

        async def steps(reactor: Any) -> None:
            here = board.Board(3, 10.0)
            endpoint = await self.listen(reactor, here)
            visitors = [await self.visit(reactor, endpoint) for _ in range(3)]
            self.assertEqual(sorted(here.hosts), [1, 2, 3])
            for host in here.hosts.values():
                host.dataReceived = self.fail
            turns = [(row, visitor) for _ in range(200) for row in range(3) for visitor in visitors]
            done = [visitor.count(row, row + 1) for row, visitor in turns]
            before = [await each for each in done]
            self.assertEqual(here.words[::2].tolist(), [600, 1200, 1800])
            for row in range(3):
                seen = sorted(value for n, value in enumerate(before) if n // 3 % 3 == row)
                self.assertEqual(seen, list(range(0, 600 * (row + 1), row + 1)))
            for visitor in visitors:
                self.assertEqual(await visitor.counters(), [600, 1200, 1800])
                visitor.transport.loseConnection()
            await becomes(reactor, lambda: not here.hosts)
            await self.assertEmpty(reactor)

        self.drive(steps)

    def test_seat(self) -> None:
        """
        One at a time has a seat; the next gets it when it is given back.
        """

        async def steps(reactor: Any) -> None:
            here = board.Board(2, 10.0)
            endpoint = await self.listen(reactor, here)
            one, two = [await self.visit(reactor, endpoint) for _ in range(2)]
            order: list[str] = []

            async def sit(name: str, visitor: Any) -> None:
                sitting = await visitor.take(reactor, 1)
                order.append(name + " sits")
                await deferLater(reactor, 0.01)
                order.append(name + " stands up")
                self.assertTrue(await visitor.release(1, sitting))
                self.assertFalse(await visitor.release(1, sitting))

            await gatherResults([Deferred.fromCoroutine(sit(*each)) for each in (("one", one), ("two", two))])
            self.assertEqual(order, ["one sits", "one stands up", "two sits", "two stands up"])
            self.assertEqual(here.words[3], 0)
            one.transport.loseConnection(), two.transport.loseConnection()
            await self.assertEmpty(reactor)

        self.drive(steps)

    def test_revoked(self) -> None:
        """
        A client that keeps a seat loses its window: what it asks for next fails, its connection
        ends, its seat is free; the others go on.
        """

        async def steps(reactor: Any) -> None:
            here = board.Board(1, 0.5)
            endpoint = await self.listen(reactor, here)
            hog, other = [await self.visit(reactor, endpoint) for _ in range(2)]
            await hog.take(reactor, 0)
            self.assertEqual((here.watch(0.0), here.watch(0.5)), ([], []))
            self.assertEqual(await hog.count(0), 0)
            self.assertEqual(here.words[1] >> board.NUMBER_SHIFT, hog.number)
            self.assertEqual(here.watch(0.6), [hog.number])
            self.assertEqual((here.words[1], list(here.hosts)), (0, [other.number]))
            self.assertEqual(self.inUse(reactor)["mw"], 1)
            with self.assertRaises(WorkCompletionError) as caught:
                await hog.count(0)
            self.assertEqual(caught.exception.statusName, "REM_ACCESS_ERR")
            await hog.lost
            self.assertEqual(await other.count(0), 1)
            self.assertTrue(await other.release(0, await other.take(reactor, 0)))
            self.assertEqual(here.words.tolist(), [2, 0])
            other.transport.loseConnection()
            await self.assertEmpty(reactor)

        self.drive(steps)

    def test_again(self) -> None:
        """
        A client that stands up and sits down again keeps nothing, whenever the program looks.
        """

        async def steps(reactor: Any) -> None:
            here = board.Board(1, 0.5)
            visitor = await self.visit(reactor, await self.listen(reactor, here))
            for now in range(5):
                sitting = await visitor.take(reactor, 0)
                self.assertEqual(here.watch(float(now)), [])
                await visitor.release(0, sitting)
            visitor.transport.loseConnection()
            await self.assertEmpty(reactor)

        self.drive(steps)

    def test_gone(self) -> None:
        """
        The seats of a client that is gone are free.
        """

        async def steps(reactor: Any) -> None:
            here = board.Board(2, 10.0)
            endpoint = await self.listen(reactor, here)
            visitor = await self.visit(reactor, endpoint)
            await visitor.take(reactor, 0), await visitor.take(reactor, 1)
            visitor.transport.abortConnection()
            await becomes(reactor, lambda: not here.hosts)
            self.assertEqual(here.words.tolist(), [0, 0, 0, 0])
            await self.assertEmpty(reactor)

        self.drive(steps)

    def test_talks(self) -> None:
        """
        A client that says something is sent away.
        """

        async def steps(reactor: Any) -> None:
            here = board.Board(1, 10.0)
            visitor = await self.visit(reactor, await self.listen(reactor, here))
            visitor.transport.write(b"hello")
            await visitor.lost
            await self.assertEmpty(reactor)

        self.drive(steps)


globals().update(BoardTests.makeTestCaseClasses())
del BoardTests


class WatchTests(SynchronousTestCase):
    """
    Clients that stay too long.
    """

    def setUp(self) -> None:
        """
        A board with one client, who has seat 1.
        """
        self.board = board.Board(2, 1.0)
        self.revoked: list[str] = []
        test = self

        class Host:
            """
            One that only counts.
            """

            class window:
                """
                Its window.
                """

                @staticmethod
                def revoke() -> None:
                    test.revoked.append("revoked")

        self.host: Any = Host()
        self.host.number = self.board.admit(self.host)
        self.seat = self.host.number << board.NUMBER_SHIFT

    def test_busy(self) -> None:
        """
        To sit down again and again is not to keep the seat.
        """
        for now in range(10):
            self.board.words[3] = self.seat | now
            self.assertEqual(self.board.watch(float(now)), [])
        self.assertEqual((self.revoked, self.board.words[3]), ([], self.seat | 9))

    def test_kept(self) -> None:
        """
        More than the patience is too long; exactly that is not.
        """
        self.board.words[3] = self.seat
        for now, revoked in ((5.0, []), (6.0, []), (6.1, ["revoked"]), (9.0, ["revoked"])):
            self.board.watch(now)
            self.assertEqual(self.revoked, revoked, now)
        self.assertEqual((self.board.words[3], self.board.hosts), (0, {}))

    def test_nobody(self) -> None:
        """
        A seat of nobody who is here is freed too; nobody is revoked for it.
        """
        self.board.words[1] = 99 << board.NUMBER_SHIFT
        self.board.watch(0.0), self.board.watch(2.0)
        self.assertEqual((self.board.words[1], self.revoked, len(self.board.hosts)), (0, [], 1))
