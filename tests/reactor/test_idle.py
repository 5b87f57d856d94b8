"""
Tests that nothing is done where nothing happens: turns, looks and timed calls are counted.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from twisted.internet.epollreactor import EPollReactor
from twisted.internet.pollreactor import PollReactor
from twisted.internet.protocol import ClientFactory, Factory, Protocol, connectionDone
from twisted.internet.selectreactor import SelectReactor
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from tests.support.calls import PACKAGE, called
from tests.support.descriptors import closeWakers
from tests.support.rundirectory import ownRunDirectory
from twisted_ib.drive.sleeper import MOST_SECONDS
from twisted_ib.internet.readers import channelsOf
from twisted_ib.reactor.ibreactor import IBReactor
from twisted_ib.sdp.port import connectSDP, listenSDP

CONNECTIONS = 20
#: Turns of a reactor that is left alone.
TURNS = 100


class Talker(Protocol):
    """
    Says something, or answers.
    """

    factory: Any

    def connectionMade(self) -> None:
        """
        A client begins.
        """
        self.factory.made.append(self)
        if isinstance(self.factory, ClientFactory):
            assert self.transport is not None
            self.transport.write(b"question")

    def dataReceived(self, data: bytes) -> None:
        """
        A server answers.
        """
        self.factory.heard += 1
        if not isinstance(self.factory, ClientFactory):
            assert self.transport is not None
            self.transport.write(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """
        Nothing.
        """


class IdleTests(SynchronousTestCase):
    """
    A listener and connections that have talked, and then do not.
    """

    def setUp(self) -> None:
        """
        Have HCAs meet in a directory of their own.
        """
        super().setUp()
        ownRunDirectory(self)

    def turn(self, timeout: float | None) -> None:
        """
        One turn of the reactor's loop.

        @param timeout: how long it may sleep, if no timed call is due before.
        """
        self.reactor.runUntilCurrent()
        due = self.reactor.timeout()
        known = [each for each in (timeout, due) if each is not None]
        self.reactor.doIteration(min(known, default=None))

    def talk(self, make: Any, device: str) -> Any:
        """
        Make a reactor with connections, have them talk, and wait until they have done.

        @return: the device.
        """
        self.reactor: Any = make()
        server: Any = Factory.forProtocol(Talker)
        client: Any = ClientFactory()
        client.protocol = Talker
        for factory in (server, client):
            factory.made, factory.heard, factory.noisy = [], 0, False
        port: Any = listenSDP(self.reactor, 0, server, interface="127.0.0.1", device=device)
        for _ in range(CONNECTIONS):
            connectSDP(self.reactor, "127.0.0.1", port.getHost().port, client, None, device=device)
        for _ in range(5000):
            self.turn(0.01)
            if client.heard == server.heard == CONNECTIONS:
                break
        self.assertEqual((client.heard, server.heard), (CONNECTIONS, CONNECTIONS))
        (channel,) = channelsOf(self.reactor)
        self.addCleanup(self.end, channel)
        for _ in range(20):
            self.turn(0.001)
        self.assertEqual(self.reactor.getDelayedCalls(), [])
        return channel.device

    def end(self, channel: Any) -> None:
        """
        Close everything.
        """
        channel.close()
        closeWakers(self.reactor)
        poller: Any = getattr(self.reactor, "_poller", None)
        if hasattr(poller, "close"):
            poller.close()

    def ib(self, name: str) -> None:
        """
        The C{ib} reactor sleeps for good: no spin, no timeout, no device that need be armed again.
        """
        device = self.talk(IBReactor, name)
        slept: list[float | None] = []
        self.reactor._wait = slept.append
        polling = self.reactor.polling.counters()
        for _ in range(TURNS):
            self.turn(None)
        self.assertEqual(slept, [MOST_SECONDS] * TURNS)
        self.assertEqual(self.reactor.polling.counters(), polling)
        self.assertEqual(device.statistics()["polling_spins"], polling["polling_spins"])

    def test_ib(self) -> None:
        """
        Over shared memory, with a path whose other end is here too.
        """
        self.ib("shm0")

    def test_ibLoopback(self) -> None:
        """
        Over the loopback device.
        """
        self.ib("lo0")

    def test_calls(self) -> None:
        """
        A turn that sleeps, as each that a thread or a socket ends, is 18 functions of the package, one
        of them for each of the two ends: threads would wait for the interpreter meanwhile.
        """
        self.talk(IBReactor, "shm0")
        self.reactor._wait = lambda _: None
        self.assertLessEqual(sum(called(partial(self.turn, None), PACKAGE).values()), 18)

    def other(self, make: Any) -> None:
        """
        Other reactors are not woken: the device has no turn, and nothing is due.
        """
        device = self.talk(make, "shm0")
        turns, sleeps = device.turns, device.fabric.sleeps
        for _ in range(TURNS):
            self.turn(0)
        self.assertEqual((device.turns, device.fabric.sleeps), (turns, sleeps))
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_epoll(self) -> None:
        """
        On epoll.
        """
        self.other(EPollReactor)

    def test_poll(self) -> None:
        """
        On poll.
        """
        self.other(PollReactor)

    def test_select(self) -> None:
        """
        On select.
        """
        self.other(SelectReactor)


__all__ = ["IdleTests"]
