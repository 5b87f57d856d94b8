"""
Tests of connections on reactors and event loops.
"""

from __future__ import annotations

import asyncio
import gc
import pickle
from collections.abc import Awaitable, Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.epollreactor import EPollReactor
from twisted.internet.task import deferLater
from twisted.trial.unittest import SynchronousTestCase

from tests.queues.contract import QueueContract
from tests.support.descriptors import closeWakers
from tests.support.waiting import HANG_SECONDS
from twisted_ib import limits
from twisted_ib.aio import EventLoop
from twisted_ib.queues import Connection, Pipe
from twisted_ib.reactor.ibreactor import IBReactor


class _Chain:
    # Calls, each of which begins within the callback of the one before, some frames deeper.

    def __init__(self, call: Callable[[], Deferred[Any]], count: int) -> None:
        self.done: Deferred[None] = Deferred()
        self.deepest = self._depth = 0
        self._call, self._left = call, count
        self._next(10)

    def _next(self, frames: int) -> None:
        if frames:
            self._next(frames - 1)
        else:
            self._call().addCallback(self._over).addErrback(self.done.errback)

    def _over(self, _: object) -> None:
        self._depth += 1
        self.deepest = max(self.deepest, self._depth)
        self._left -= 1
        if self._left:
            self._next(10)
        else:
            self.done.callback(None)
        self._depth -= 1


class EPollTests(QueueContract, SynchronousTestCase):
    """
    On Twisted's own reactor.
    """

    kind: Any = EPollReactor

    def drive(self, story: Callable[[], Awaitable[None]]) -> None:
        """
        See L{QueueContract.drive}.
        """
        self.reactor: Any = self.kind()
        found: list[Any] = []

        def run() -> None:
            told: Any = story()
            done = Deferred.fromCoroutine(told).addTimeout(HANG_SECONDS, self.reactor)
            done.addBoth(found.append).addBoth(lambda _: self.reactor.stop())

        self.reactor.callWhenRunning(run)
        try:
            self.reactor.run(installSignalHandlers=False)
        finally:
            self.reactor.fireSystemEvent("shutdown")
            closeWakers(self.reactor)
        if found[0] is not None:
            found[0].raiseException()

    def wrap(self, connection: Connection) -> Any:
        """
        See L{QueueContract.wrap}.
        """
        return connection.onReactor(self.reactor)

    def turn(self, seconds: float = 0) -> Any:
        """
        See L{QueueContract.turn}.
        """
        return deferLater(self.reactor, seconds)

    def test_chain(self) -> None:
        """
        However many messages are there, callbacks that receive and send are no deeper in each other than
        C{limits.QUEUE_CALLS_AT_ONCE}.
        """
        count, depths = 2000, []

        async def story() -> None:
            here, there = self.pair()
            for _ in range(count):
                there.send_bytes(b"x")
            for call in (here.recv_bytes, lambda: here.send_bytes(b"y")):
                chain = _Chain(call, count)
                await chain.done
                depths.append(chain.deepest)
            self.assertEqual({there.recv_bytes() for _ in range(count)}, {b"y"})
            self.assertFalse(there.poll())

        self.drive(story)
        # Within the callback of one that has waited.
        self.assertEqual(depths, [1 + limits.QUEUE_CALLS_AT_ONCE] * 2)


class IBTests(EPollTests):
    """
    On the reactor of this package.
    """

    kind = IBReactor


class AsyncioTests(QueueContract, SynchronousTestCase):
    """
    On asyncio's own loop.
    """

    kind: Any = asyncio.SelectorEventLoop

    def drive(self, story: Callable[[], Awaitable[None]]) -> None:
        """
        See L{QueueContract.drive}.
        """
        loop = self.kind()
        try:
            loop.run_until_complete(asyncio.wait_for(story(), HANG_SECONDS))
        finally:
            loop.close()

    def wrap(self, connection: Connection) -> Any:
        """
        See L{QueueContract.wrap}.
        """
        return connection.onLoop()

    def turn(self, seconds: float = 0) -> Any:
        """
        See L{QueueContract.turn}.
        """
        return asyncio.sleep(seconds)

    def test_closedUnseen(self) -> None:
        """
        Calls that nobody awaits when their connection is closed are not reported.
        """
        told: list[dict[str, Any]] = []

        async def story() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
            here, _ = self.pair()
            here.recv()
            here.close()
            gc.collect()

        self.drive(story)
        self.assertEqual(told, [])

    def test_cancelledLate(self) -> None:
        """
        Tasks that are cancelled after their messages have come, and before they go on, leave them to the next
        calls, in order; a future that another task awaits, too, leaves nothing.
        """

        async def story() -> None:
            here, there = self.pair()
            found: list[Any] = []

            async def receive(answer: Any) -> None:
                found.append(await answer)

            answers = [here.recv() for _ in range(3)]
            tasks = [asyncio.create_task(receive(each)) for each in (*answers, answers[2])]
            await self.turn()
            for each in range(5):
                there.send(each)
            there.close()
            here._turn()
            for task in tasks[:3]:
                task.cancel()
            # These are the first to run, and read on; what is given back is for whoever calls next.
            await asyncio.gather(*tasks, return_exceptions=True)
            self.assertEqual(found, [2])
            self.assertEqual(len(await here.recv_bytes()), len(pickle.dumps(0, 5)))
            self.assertEqual([each async for each in here], [1, 3, 4])

        self.drive(story)

    def test_cancelledForAnother(self) -> None:
        """
        A message that its task leaves behind is given to a call that waits already.
        """

        async def story() -> None:
            here, there = self.pair()
            answer = here.recv()
            task = asyncio.create_task(asyncio.wait_for(answer, None))
            await self.turn()
            there.send(1)
            here._turn()
            after = here.recv()
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.assertEqual(await after, 1)
            # One that is closed meanwhile keeps nothing.
            task = asyncio.create_task(asyncio.wait_for(here.recv(), None))
            await self.turn()
            there.send(2)
            here._turn()
            task.cancel()
            here.close()
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.assertEqual(here._returned, [])

        self.drive(story)


class AioTests(AsyncioTests):
    """
    On the event loop of this package.
    """

    kind = EventLoop


class ReactorTests(SynchronousTestCase):
    """
    Of a reactor alone.
    """

    def test_stopped(self) -> None:
        """
        A reactor that stops closes its connections, and whoever waits is told.
        """
        reactor: Any = EPollReactor()
        here, there = Pipe()
        connection = here.onReactor(reactor)
        found: list[Any] = []
        connection.recv().addBoth(found.append)
        self.assertEqual(connection.logPrefix(), "Connection")
        reactor.callWhenRunning(reactor.stop)
        reactor.run(installSignalHandlers=False)
        self.assertTrue(connection.closed)
        self.assertEqual(str(found[0].value), "handle is closed")
        self.assertRaises(EOFError, there.recv)
        there.close()
