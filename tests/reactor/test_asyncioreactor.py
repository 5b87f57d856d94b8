"""
Tests for L{twisted_ib.reactor.asyncioreactor}: those of the C{ib} reactor's turns and life, and those of its
event loop.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from typing import Any

from twisted.internet.asyncioreactor import AsyncioSelectorReactor
from twisted.trial.unittest import SynchronousTestCase

from tests.reactor import test_ibreactor
from tests.reactor.test_ibreactor import HotPath
from tests.support.descriptors import closeWakers
from tests.support.waiting import HANG_SECONDS
from twisted_ib.blocking.patch import patched
from twisted_ib.drive.sleeper import MOST_SECONDS
from twisted_ib.reactor import IBAsyncioReactor


def makeReactor() -> Any:
    """
    @return: one with an event loop of its own.
    """
    return IBAsyncioReactor(asyncio.SelectorEventLoop())


def closeReactor(reactor: Any) -> None:
    """
    Close a reactor's own descriptors.
    """
    closeWakers(reactor)
    reactor._asyncioEventloop.close()


class TurnTests(test_ibreactor.TurnTests):
    """
    Turns.
    """

    makeReactor = staticmethod(makeReactor)
    closeReactor = staticmethod(closeReactor)

    def setUp(self) -> None:
        """
        An event loop that does not run, as that of a reactor that was stopped.
        """
        super().setUp()
        self.events = self.reactor._asyncioEventloop
        self.events._stopping = True

    def running(self) -> None:
        """
        Have the event loop believe that it runs.
        """
        super().running()
        self.events._stopping = False

    def freeze(self) -> None:
        """
        Stop its clock.
        """
        super().freeze()
        self.events.time = self.reactor.seconds

    def test_doesNotStay(self) -> None:
        """
        A turn ends after the batch in which something became due: a timed call, an earlier one, a call from a
        thread, one of asyncio's, the end.
        """
        self.running()
        _, device = self.add()
        (path,) = device.hot = (HotPath(),)
        events = self.events
        later: list[Any] = []
        for upcall in (
            lambda: self.reactor.callLater(0, lambda: None),
            lambda: self.reactor.callFromThread(lambda: None),
            lambda: later[0].reset(0),
            lambda: events.call_soon(lambda: None),
            lambda: events.call_later(0, lambda: None),
            events.stop,
            self.reactor.crash,
        ):
            later[:] = [self.reactor.callLater(3600, lambda: None)]
            path.found = [True] * 4
            looks = path.looks
            device.work = [1, lambda: bool(upcall()) or 1, 1]  # noqa: B023
            self.reactor.doPoll(3600)
            self.assertEqual((len(device.work), path.looks - looks), (1, 1))
            self.assertEqual(self.slept, [])
            self.forget()
            self.running()

    def forget(self) -> None:
        """
        Forget everything that is due.
        """
        for call in self.reactor.getDelayedCalls():
            call.cancel()
        self.reactor._newTimedCalls.clear()
        self.reactor._pendingTimedCalls.clear()
        self.reactor._scheduledAt = None
        self.events._ready.clear()
        self.events._scheduled.clear()

    def test_namesReplaced(self) -> None:
        """
        Doorbells are in the selector's epoll object also if C{select.epoll} stands for another class, as
        under C{ib-run}: no descriptor of the device's becomes readable by each of them.
        """
        events = asyncio.SelectorEventLoop()
        with patched():
            reactor: Any = IBAsyncioReactor(events)
        self.addCleanup(closeReactor, reactor)
        self.assertIs(reactor._poller, reactor._selector._selector)

    def test_threadWaits(self) -> None:
        """
        While a call in a thread waits for the interpreter, the reactor sleeps after each batch, so that the
        thread has it, unless there is more to do.
        """
        self.running()
        _, device = self.add()
        (path,) = device.hot = (HotPath(),)
        loop = self.reactor._loop
        self.addCleanup(setattr, loop, "inThreads", 0)
        path.found = [True] * 3
        for work, slept in (
            (lambda: None, MOST_SECONDS),
            (lambda: self.events.call_soon(lambda: None), 0),
            (lambda: self.reactor.callFromThread(lambda: None), 0),
        ):
            loop.inThreads = 1
            device.work = [lambda: bool(work()) or 1]  # noqa: B023
            self.reactor.doPoll(None)
            self.assertEqual(self.slept.pop(), slept)
            self.forget()
        device.work = [lambda: bool(self.reactor.callLater(1.5, lambda: None)) or 1]
        self.reactor.doPoll(None)
        self.assertTrue(1 < self.slept.pop() <= 1.5)  # type: ignore[operator]
        self.assertEqual(path.looks, 0)
        self.forget()


class ViewTests(test_ibreactor.ViewTests):
    """
    The reactor as others see it.
    """

    makeReactor = staticmethod(makeReactor)
    closeReactor = staticmethod(closeReactor)

    def test_loop(self) -> None:
        """
        It takes an event loop whose selector it can stand in for, and no other.
        """
        self.assertIsInstance(self.reactor, AsyncioSelectorReactor)

        class Other(asyncio.AbstractEventLoop):
            """
            As uvloop's.
            """

        error = self.assertRaises(TypeError, IBAsyncioReactor, Other())
        self.assertIn("needs an asyncio.SelectorEventLoop, not ", str(error))

    def test_runningLoop(self) -> None:
        """
        By default its event loop is the one that runs, else a new one that is asyncio's, whatever the policy.
        """

        async def make() -> Any:
            return IBAsyncioReactor(), asyncio.get_running_loop()

        events = asyncio.SelectorEventLoop()
        self.addCleanup(events.close)
        reactor, running = events.run_until_complete(make())
        self.addCleanup(closeReactor, reactor)
        self.assertIs(reactor._asyncioEventloop, running)
        # A policy in which no loop was ever set: with set_event_loop(None) other tests would find no loop.
        self.addCleanup(asyncio.set_event_loop_policy, asyncio.get_event_loop_policy())
        asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy())
        other = IBAsyncioReactor()
        self.addCleanup(closeReactor, other)
        self.assertIsNot(other._asyncioEventloop, running)


class RunningTests(test_ibreactor.RunningTests):
    """
    A reactor that runs.
    """

    makeReactor = staticmethod(makeReactor)
    closeReactor = staticmethod(closeReactor)

    def executor(self, endless: int) -> None:
        """
        Make a call in a thread of asyncio's.
        """
        self.use(endless)
        inThreads: list[int] = []
        loop, events = self.reactor._loop, self.reactor._asyncioEventloop

        async def work() -> None:
            await asyncio.to_thread(time.sleep, 0.01)
            inThreads.append(loop.inThreads)
            self.reactor.stop()

        task = events.create_task(work())
        events.call_soon(lambda: inThreads.append(loop.inThreads))
        self.run_()
        self.assertTrue(task.done())
        self.assertEqual(inThreads, [1, 0])

    def test_executor(self) -> None:
        """
        A call in a thread of asyncio's ends; while it works nothing is polled in its way.
        """
        self.executor(0)

    def test_executorUnderTraffic(self) -> None:
        """
        Also under endless traffic.
        """
        self.executor(1)

    def test_soonFromThread(self) -> None:
        """
        C{call_soon_threadsafe} and coroutines go on under endless traffic.
        """
        self.use(1)
        events = self.reactor._asyncioEventloop
        done: list[str] = []

        async def sleep() -> None:
            await asyncio.sleep(0.01)
            done.append("slept")
            threading.Thread(target=events.call_soon_threadsafe, args=(self.reactor.stop,)).start()

        task = events.create_task(sleep())
        self.run_()
        self.assertTrue(task.done())
        self.assertEqual(done, ["slept"])


class FromThreadTests(SynchronousTestCase):
    """
    Calls from threads.
    """

    def setUp(self) -> None:
        """
        A reactor whose event loop turns once when it is told to.
        """
        self.reactor = makeReactor()
        self.addCleanup(closeReactor, self.reactor)

    def turn(self) -> None:
        """
        One turn of the event loop.
        """
        events = self.reactor._asyncioEventloop
        events.call_soon(events.stop)
        events.run_forever()

    def fromThread(self, *arguments: Any, **options: Any) -> None:
        """
        Call C{callFromThread} in another thread, which has ended then.
        """
        thread = threading.Thread(target=self.reactor.callFromThread, args=arguments, kwargs=options)
        thread.start()
        thread.join(HANG_SECONDS)

    def test_oneTurn(self) -> None:
        """
        They are called in the next turn of the event loop, in order, without a timer.
        """
        called: list[Any] = []
        self.fromThread(called.append, 1)
        self.fromThread(lambda *, more: called.extend(more), more=[2, 3])
        self.assertEqual(called, [])
        self.turn()
        self.assertEqual(called, [1, 2, 3])
        self.assertEqual((self.reactor.getDelayedCalls(), self.reactor._timerHandle), ([], None))

    def test_raises(self) -> None:
        """
        What one raises is logged, and keeps no other from its call.
        """
        called: list[int] = []
        self.fromThread(int, "x")
        self.fromThread(called.append, 1)
        self.turn()
        self.assertEqual(called, [1])
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)

    def test_exits(self) -> None:
        """
        Nor does SystemExit end the event loop, as it does not end the C{ib} reactor.
        """
        called: list[int] = []
        self.fromThread(sys.exit)
        self.fromThread(called.append, 1)
        self.turn()
        self.assertEqual(called, [1])
        self.assertEqual(len(self.flushLoggedErrors(SystemExit)), 1)


class InstallTests(SynchronousTestCase):
    """
    The reactor of a process.
    """

    def run_(self, *command: str) -> str:
        """
        @return: what a process with this command line writes.
        """
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([path for path in sys.path if path])}
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, timeout=HANG_SECONDS, env=environment
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_install(self) -> None:
        """
        C{twisted_ib.reactor.install}, as Scrapy calls it: the reactor is of the class beside it.
        """
        script = (
            "import twisted_ib.reactor as module\n"
            "module.install()\n"
            "from twisted.internet import reactor\n"
            "print(type(reactor) is module.IBAsyncioReactor)\n"
        )
        self.assertEqual(self.run_("-c", script), "True\n")

    def test_named(self) -> None:
        """
        C{--reactor=ib-asyncio}.
        """
        self.assertIn("ib-asyncio", self.run_("-m", "twisted.trial", "--help-reactors"))

    def test_protocols(self) -> None:
        """
        A stream over SDP and one of asyncio's own in one loop; the reactor finds both ends by the switch.
        """
        script = (
            "import asyncio\n"
            "import twisted_ib.reactor as module\n"
            "module.install()\n"
            "from twisted.internet import reactor, protocol, endpoints\n"
            "class Echo(protocol.Protocol):\n"
            "    def dataReceived(self, data): self.transport.write(data)\n"
            "class Ask(protocol.Protocol):\n"
            "    def connectionMade(self):\n"
            "        self.done = asyncio.get_running_loop().create_future()\n"
            "        self.transport.write(b'hello')\n"
            "    def dataReceived(self, data): self.done.set_result(data)\n"
            "async def main():\n"
            "    server = endpoints.serverFromString(reactor, 'sdp:0:interface=127.0.0.1:device=lo0')\n"
            "    port = await server.listen(protocol.Factory.forProtocol(Echo)).asFuture(loop)\n"
            "    text = f'sdp:127.0.0.1:{port.getHost().port}:device=lo0'\n"
            "    client = endpoints.clientFromString(reactor, text)\n"
            "    ask = await client.connect(protocol.Factory.forProtocol(Ask)).asFuture(loop)\n"
            "    print(await ask.done)\n"
            "    there = await asyncio.start_server(lambda r, w: w.write(b'tcp\\n'), '127.0.0.1', 0)\n"
            "    number = there.sockets[0].getsockname()[1]\n"
            "    reader, writer = await asyncio.open_connection('127.0.0.1', number)\n"
            "    print(await reader.readline())\n"
            "    reactor.stop()\n"
            "loop = reactor._asyncioEventloop\n"
            "reactor.callWhenRunning(lambda: asyncio.ensure_future(main()))\n"
            f"reactor.callLater({HANG_SECONDS / 2}, reactor.stop)\n"
            "reactor.run()\n"
        )
        self.assertEqual(self.run_("-c", script), "b'hello'\nb'tcp\\n'\n")
