"""
The threads that wait: for events of verbs, and in the calls of blocking sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from types import SimpleNamespace

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from tests.blocking.case import BlockingTestCase
from tests.drive.waits import WaitingContract
from tests.support.rundirectory import ownRunDirectory
from twisted_ib.blocking.loop import BlockingLoop
from twisted_ib.internet.channel import channelFor
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
wait = hub.wait
begin()
"""

    def __init__(self) -> None:
        self.hub = Hub()
        self.device = self.hub.open("shm0")

    def wait(self, ready: Callable[[], object], seconds: float) -> bool:
        """
        Wait as a verb does.
        """
        return self.hub.wait(lambda: bool(ready()), seconds)

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
        self.loop = loop
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

    def drop(self, close: Callable[[], None]) -> None:
        """
        Drop a socket.
        """
        self.loop.abandon(SimpleNamespace(close=close))


class VerbsTests(WaitingContract, SynchronousTestCase):
    """
    Threads that wait for events of verbs.
    """

    def setUp(self) -> None:
        """
        Make a hub.
        """
        ownRunDirectory(self)
        self.waits = waits = HubWaits()
        self.addCleanup(waits.hub.close, waits.device)


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


__all__ = ["SocketTests", "VerbsTests"]
