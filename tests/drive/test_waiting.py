"""
Whoever waits: for events of verbs, in the calls of blocking sockets, in a reactor, for a subnet's devices.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import monotonic
from types import SimpleNamespace
from typing import Any

from attrs import evolve
from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure
from twisted.python.reflect import namedAny
from twisted.trial.unittest import SynchronousTestCase

from tests.blocking.case import BlockingTestCase
from tests.drive.waits import FAR, TimerContract, WaitingContract
from tests.support.rundirectory import ownRunDirectory
from twisted_ib.aio.loop import EventLoop
from twisted_ib.aio.reactor import LoopReactor
from twisted_ib.blocking.loop import BlockingLoop
from twisted_ib.drive.sleeper import Sleep
from twisted_ib.internet.channel import channelFor
from twisted_ib.subnet.hosting.hostthread import Loop
from twisted_ib.verbs.core.hub import Hub


class HubWaits:
    """
    Verbs.
    """

    program = """
from twisted_ib.verbs.core.hub import hub
def begin():
    global device
    device = hub.open("shm0")
def timer(seconds, call):
    with hub:
        device.timers.start(seconds, call)
def wait(ready, seconds):
    return bool(hub.wait(ready, seconds))
begin()
"""

    def __init__(self) -> None:
        self.hub = Hub()
        self.lockQueue = self.hub.lockQueue
        self.device = self.hub.open("shm0")

    def locked(self) -> Hub:
        """
        @return: What takes its lock.
        """
        return self.hub

    def wait(self, ready: Callable[[], object], seconds: float) -> bool:
        """
        Wait as a verb does.
        """
        return bool(self.hub.wait(ready, seconds))

    def isAsleep(self) -> bool:
        """
        @return: Whether a thread has its pipe among the sleepers'.
        """
        return self.hub.isAwaited

    def timer(self, seconds: float, call: Callable[[], object]) -> None:
        """
        Start one with the lock held.
        """
        with self.hub:
            self.device.timers.start(seconds, call)

    def change(self, call: Callable[[], object]) -> None:
        """
        Do it as a verb that changes an object.
        """
        with self.hub:
            call()
            self.hub.wake()

    def drop(self, close: Callable[[], None]) -> None:
        """
        Drop an object of verbs.
        """
        self.hub.closes.closeLater(close)


class _User:
    """
    For whose sake a device is served.
    """

    def connectionLost(self, reason: object) -> None:
        """
        Do nothing.
        """


class SocketWaits:
    """
    Blocking sockets.
    """

    program = """
from time import monotonic
from attrs import evolve
from twisted_ib.blocking.loop import theLoop
from twisted_ib.internet.channel import channelFor
class User:
    def connectionLost(self, reason):
        pass
def begin():
    global device
    with theLoop():
        channel = channelFor(theLoop().reactor, "shm0")
        channel.acquire(User())
        device = channel.device
        device.traits = evolve(device.traits, packets=True)
def timer(seconds, call):
    with theLoop():
        device.timers.start(seconds, call)
        theLoop().flush(device)
def wait(ready, seconds):
    with theLoop():
        return theLoop().wait(ready, monotonic() + seconds)
begin()
"""

    def __init__(self, loop: BlockingLoop) -> None:
        self.loop, self.lockQueue = loop, loop.lockQueue
        with loop:
            channel = channelFor(loop.reactor, "shm0")  # type: ignore[arg-type]
            channel.acquire(_User())
            self.device = channel.device
            # Where messages go through memory no timer begins when one is sent.
            self.device.traits = evolve(self.device.traits, packets=True)

    def wait(self, ready: Callable[[], object], seconds: float) -> bool:
        """
        Wait as a call of a socket does.
        """
        with self.loop:
            return self.loop.wait(ready, monotonic() + seconds)

    def isAsleep(self) -> bool:
        """
        @return: Whether the leader sleeps.
        """
        return self.loop.sleeping

    def timer(self, seconds: float, call: Callable[[], object]) -> None:
        """
        Start one as a call that sends.
        """
        with self.loop:
            self.device.timers.start(seconds, call)
            self.loop.flush(self.device)

    def change(self, call: Callable[[], object]) -> None:
        """
        Do it as a call that closes.
        """
        with self.loop:
            call()
            self.loop.changed()

    def locked(self) -> BlockingLoop:
        """
        @return: What takes its lock.
        """
        return self.loop

    def drop(self, close: Callable[[], None]) -> None:
        """
        Drop a socket.
        """
        self.loop.abandon(close)


_REACTORS = """
from tests.drive.test_waiting import {name}
waits = {name}({made!r})
timer, wait = waits.timer, waits.wait
"""


class ReactorWaits:
    """
    The loop of a reactor, in its thread.
    """

    def __init__(self, made: str) -> None:
        """
        @param made: What makes it.
        """
        self.program = _REACTORS.format(name=type(self).__name__, made=made)
        self.reactor: Any = namedAny(made)()
        # As when it runs: its loop serves the devices in the place of poll(2).
        self.reactor._started = True
        self.channel = channelFor(self.reactor, "shm0")
        self.channel.acquire(_User())

    def wait(self, ready: Callable[[], object], seconds: float) -> bool:
        """
        Run turns.
        """
        reactor, over = self.reactor, [False]
        end = reactor.callLater(seconds, over.__setitem__, 0, True)
        while not ready() and not over[0]:
            self.turn()
        if not over[0]:
            end.cancel()
        return not over[0]

    def turn(self) -> None:
        """
        Run one turn.
        """
        self.reactor.doIteration(self.reactor.timeout())
        self.reactor.runUntilCurrent()

    def timer(self, seconds: float, call: Callable[[], object]) -> None:
        """
        Start one as a call that sends.
        """
        self.channel.device.timers.start(seconds, call)
        self.channel.device.markDirty(SimpleNamespace(endOfBatch=lambda: None))

    def close(self) -> None:
        """
        Close the device, and what the reactor has open.
        """
        self.channel.close()
        for reader in self.reactor.removeAll():
            reader.connectionLost(Failure(ConnectionDone()))
        self.reactor.waker.connectionLost(Failure(ConnectionDone()))
        self.reactor._poller.close()


class AsyncioWaits(ReactorWaits):
    """
    A reactor on an event loop of asyncio.
    """

    def turn(self) -> None:
        """
        Run one turn of the event loop.
        """
        self.reactor._asyncioEventloop._run_once()

    def close(self) -> None:
        """
        Close the device, and the event loop.
        """
        self.channel.close()
        self.reactor.removeAll()
        self.reactor._asyncioEventloop.close()


def ofEventLoop() -> LoopReactor:
    """
    @return: The reactor of an event loop of L{twisted_ib.aio}.
    """
    return EventLoop().reactor


class HostWaits:
    """
    The thread that hosts a subnet.
    """

    program = """
from tests.drive.test_waiting import HostWaits
waits = HostWaits()
timer, wait = waits.timer, waits.wait
"""

    def __init__(self) -> None:
        self.loop = Loop()
        self.timer = self.loop.callLater

    def wait(self, ready: Callable[[], object], seconds: float) -> bool:
        """
        Run turns.
        """
        over: list[bool] = []
        end = self.loop.callLater(seconds, over.append, True)
        while not ready() and not over:
            self.loop.turn()
        end.cancel()
        return not over


class HostTests(TimerContract, SynchronousTestCase):
    """
    The thread that hosts a subnet.
    """

    def setUp(self) -> None:
        """
        Make its loop.
        """
        self.waits = waits = HostWaits()
        self.addCleanup(waits.loop.close)

    def test_farDeadline(self) -> None:
        """
        A deadline may be farther away than epoll sleeps.
        """
        self.waits.timer(FAR, lambda: self.fail("it is over"))
        reader, writer = os.pipe()
        for fd in reader, writer:
            self.addCleanup(os.close, fd)
        os.write(writer, b"!")
        read: list[int] = []
        self.waits.loop.addReader(
            SimpleNamespace(fileno=lambda: reader, doRead=lambda: read.append(reader))  # type: ignore[arg-type]
        )
        self.waits.loop.turn()
        self.assertEqual(read, [reader])


class IBReactorTests(TimerContract, SynchronousTestCase):
    """
    The C{ib} reactor.

    @cvar made: What makes the reactor.
    @cvar makes: What makes the engine.
    """

    makes = ReactorWaits
    made = "twisted_ib.reactor.ibreactor.IBReactor"

    def setUp(self) -> None:
        """
        Make a reactor, with a device.
        """
        ownRunDirectory(self)
        self.waits = waits = self.makes(self.made)
        self.addCleanup(waits.close)


class EPollReactorTests(IBReactorTests):
    """
    A reactor of Twisted's, for which a device is a reader.
    """

    made = "twisted.internet.epollreactor.EPollReactor"


class IBAsyncioReactorTests(IBReactorTests):
    """
    The C{ib-asyncio} reactor.
    """

    makes = AsyncioWaits
    made = "twisted_ib.reactor.asyncioreactor.IBAsyncioReactor"


class EventLoopTests(IBAsyncioReactorTests):
    """
    The event loop of L{twisted_ib.aio}.
    """

    made = "tests.drive.test_waiting.ofEventLoop"


class VerbsTests(WaitingContract, SynchronousTestCase):
    """
    Threads that wait for events of verbs.

    @cvar makes: What makes the engine.
    """

    makes = HubWaits

    def setUp(self) -> None:
        """
        Make a hub.
        """
        ownRunDirectory(self)
        self.waits = waits = self.makes()
        self.addCleanup(waits.hub.close, waits.device)


class LyingDown(HubWaits):
    """
    Threads of verbs that sleep by themselves, as those of C programs do.
    """

    def wait(self, ready: Callable[[], object], seconds: float) -> bool:
        """
        Wait as C{rpoll}.
        """
        end = monotonic() + seconds
        while isinstance(found := self.hub.lieDown(ready, end), Sleep):
            try:
                found.sleep(end)
            finally:
                self.hub.getUp(found.sleeper)
                found.sleeper.close()
        return bool(found)


class LyingDownTests(VerbsTests):
    """
    Those that sleep by themselves.
    """

    makes = LyingDown


class SocketTests(WaitingContract, BlockingTestCase):
    """
    Threads in the calls of blocking sockets.
    """

    def setUp(self) -> None:
        """
        Make a loop.
        """
        super().setUp()
        self.waits = SocketWaits(self.loop)


__all__ = [
    "EPollReactorTests",
    "EventLoopTests",
    "HostTests",
    "IBAsyncioReactorTests",
    "IBReactorTests",
    "LyingDownTests",
    "SocketTests",
    "VerbsTests",
]
