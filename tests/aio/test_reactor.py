"""
Tests for L{twisted_ib.aio.reactor}: the reactor of an event loop, whoever made that.
"""

from __future__ import annotations

import asyncio
import os
import signal
from weakref import WeakSet

from twisted.internet import error
from twisted.trial.unittest import SynchronousTestCase

from tests.aio.case import LoopTestCase
from twisted_ib.aio import reactor
from twisted_ib.aio.reactor import LoopReactor, reactorOf


class OwnTests(LoopTestCase):
    """
    An event loop of this package.
    """

    def test_own(self) -> None:
        """
        It is asked for its own.
        """
        self.assertIs(reactorOf(self.loop), self.loop.reactor)
        self.assertIsInstance(self.loop.reactor, LoopReactor)

    def test_runs(self) -> None:
        """
        It runs with the event loop, from when it is made, and cannot be run.
        """
        self.assertTrue(self.loop.reactor.running)
        self.assertRaises(error.ReactorAlreadyRunning, self.loop.reactor.startRunning, False)


class HangupTests(LoopTestCase):
    """
    An event loop whose rules are in a file.
    """

    rules = "use tcp client * *:*\n"

    def test_reload(self) -> None:
        """
        SIGHUP reloads them, in a turn of the event loop.
        """
        # Where nothing is installed it is ignored, and ends no tests.
        self.addCleanup(signal.signal, signal.SIGHUP, signal.signal(signal.SIGHUP, signal.SIG_IGN))
        configuration = self.loop.reactor.switch.configuration
        self.assertTrue(callable(signal.getsignal(signal.SIGHUP)))
        reloaded: list[bool] = []
        self.patch(configuration, "reload", lambda: reloaded.append(True))

        async def scenario() -> None:
            os.kill(os.getpid(), signal.SIGHUP)
            while not reloaded:
                await asyncio.sleep(0)

        self.play(scenario())
        self.assertEqual(reloaded, [True])


class OthersTests(SynchronousTestCase):
    """
    asyncio's own event loop.
    """

    def test_life(self) -> None:
        """
        It has one reactor, which closes with it, and not with a C{close} that is refused as it runs; then the
        event loop is as it was.
        """
        events = asyncio.SelectorEventLoop()
        self.addCleanup(events.close)
        closed: list[LoopReactor] = []
        close = LoopReactor.close

        def noted(reactor: LoopReactor) -> None:
            closed.append(reactor)
            close(reactor)

        self.patch(LoopReactor, "close", noted)
        made = reactorOf(events)
        self.assertIs(reactorOf(events), made)

        async def closing() -> None:
            self.assertRaises(RuntimeError, events.close)

        events.run_until_complete(closing())
        self.assertEqual(closed, [])
        self.assertIs(reactorOf(events), made)
        events.close()
        events.close()
        self.assertEqual((closed, events.is_closed()), ([made], True))

    def test_dropped(self) -> None:
        """
        At the end of the process those of event loops that nobody has closed are closed, unless they run.
        """
        events = asyncio.SelectorEventLoop()
        self.addCleanup(events.close)
        made = reactorOf(events)
        open_ = WeakSet([made])
        self.patch(reactor, "_open", open_)

        async def running() -> None:
            reactor._closeDropped()

        events.run_until_complete(running())
        self.assertEqual(list(open_), [made])
        reactor._closeDropped()
        self.assertEqual(list(open_), [])

    def test_thread(self) -> None:
        """
        Before the event loop runs any thread is its own.
        """
        events = asyncio.SelectorEventLoop()
        self.addCleanup(events.close)
        made = reactorOf(events)
        self.assertFalse(made.inOtherThread())

        async def asking() -> tuple[bool, bool]:
            return made.inOtherThread(), await asyncio.to_thread(made.inOtherThread)

        self.assertEqual(events.run_until_complete(asking()), (False, True))
