"""
Tests for L{twisted_ib.aio.reactor}: the reactor of an event loop, whoever made that.
"""

from __future__ import annotations

import asyncio
import os
import signal
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

from twisted.internet import error
from twisted.trial.unittest import SynchronousTestCase

from tests.aio.case import HOST, LoopTestCase, Recorder
from twisted_ib.aio import reactor
from twisted_ib.aio.reactor import LoopReactor, reactorOf
from twisted_ib.internet.readers import channelsOf
from twisted_ib.reactor.base import IBReactorBase


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


class WritingTests(LoopTestCase):
    """
    When what a transport is given leaves.
    """

    def test_atOnce(self) -> None:
        """
        Within the call, as over TCP; of several calls in a turn within the last, and of its writes the first.
        What another call has written before that goes along.
        """

        async def scenario() -> None:
            server = await self.loop.create_server(Recorder, HOST, 0, provider="sdp")
            port = server.sockets[0].getsockname()[1]
            made = [await self.loop.create_connection(Recorder, HOST, port, provider="sdp") for _ in range(2)]
            (one, _), (other, _) = made
            (channel,) = channelsOf(self.loop.reactor)
            left: list[bool] = []

            def write(transports: tuple[asyncio.Transport, ...], done: asyncio.Future[None]) -> None:
                for each in transports:
                    before = channel.device.fabric.published()
                    each.write(b"x")
                    left.append(channel.device.fabric.published() != before)
                if len(left) == len(expected):
                    done.set_result(None)

            for calls, expected in (
                ([(one,)], [True]),
                ([(one, other)], [True, False]),
                ([(one,), (other,)], [False, True]),
                ([(one, one, one)], [True, False, False]),
            ):
                # Nothing else is to be done until then.
                while channel.device.progress():
                    pass
                for _ in range(3):
                    await asyncio.sleep(0)
                del left[:]
                done = self.loop.create_future()
                for each in calls:
                    self.loop.call_soon(write, each, done)
                await done
                self.assertEqual(left, expected)
            for each in (one, other):
                each.close()
            server.close()

        self.play(scenario())

    def test_served(self) -> None:
        """
        A message that ends a sleep is served in the turn that slept, and the next one arms the devices
        without serving them again.
        """
        calls: list[str] = []
        turn: Any = SimpleNamespace()
        device: Any = SimpleNamespace(lossless=True, busy=lambda: turn.isBusy)
        reactor: Any = self.loop.reactor
        self.patch(reactor, "_alone", device)

        def doPoll(_: object, timeout: float | None, isServed: bool) -> object:
            calls.append("served" if isServed else "serves")
            reactor._loop.turns += turn.serves
            return turn.found

        self.patch(IBReactorBase, "doPoll", doPoll)
        turns: tuple[tuple[bool, list[object], bool, float | None, str], ...] = (
            (True, [], False, None, "serves"),
            (False, [], False, None, "served"),
            (True, [], False, None, "serves"),
            # Something is due, what a callback wrote, or came meanwhile, is to be sent or served.
            (True, [], False, 0, "serves"),
            (True, [], True, None, "serves"),
            # Who else is told of descriptors may use the devices.
            (True, ["a reader"], False, None, "served"),
            (True, [], False, None, "serves"),
        )
        for turn.serves, turn.found, turn.isBusy, timeout, expected in turns:
            del calls[:]
            self.assertIs(reactor.doPoll(timeout), turn.found)
            self.assertEqual(calls, [expected])
        device.lossless = False
        reactor.doPoll(None)
        self.assertEqual(calls, ["serves", "serves"])


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
