"""
Tests of connections on reactors and event loops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.epollreactor import EPollReactor
from twisted.internet.task import deferLater
from twisted.trial.unittest import SynchronousTestCase

from tests.queues.contract import QueueContract
from tests.support.waiting import HANG_SECONDS
from twisted_ib.aio import EventLoop
from twisted_ib.queues import Connection, Pipe
from twisted_ib.reactor.ibreactor import IBReactor


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
