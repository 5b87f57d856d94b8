"""
Ports and connections of a device as readers of a reactor that watches a descriptor for all of them.
"""

from __future__ import annotations

from typing import Any

from twisted.internet import error
from twisted.internet.epollreactor import EPollReactor
from twisted.internet.protocol import ClientFactory, Factory, Protocol
from twisted.internet.selectreactor import SelectReactor
from twisted.internet.test.reactormixins import ReactorBuilder
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from tests.support.waiting import HANG_SECONDS
from twisted_ib.internet.readers import channelsOf, readersOf, readingUsers, takeUsers
from twisted_ib.sdp.port import connectSDP, listenSDP


class Reactor:
    """
    Watches what it is given.
    """

    def __init__(self) -> None:
        self.readers: list[Any] = ["a reader"]

    def addReader(self, reader: Any) -> None:
        """
        Watch it.
        """
        self.readers.append(reader)

    def removeReader(self, reader: Any) -> None:
        """
        Watch it no more.
        """
        if reader in self.readers:
            self.readers.remove(reader)

    def getReaders(self) -> list[Any]:
        """
        @return: All.
        """
        return list(self.readers)

    def removeAll(self) -> list[Any]:
        """
        Forget all.

        @return: The removed readers.
        """
        removed, self.readers = self.readers, []
        return removed


class User:
    """
    Uses a device.
    """

    def __init__(self, reading: bool) -> None:
        """
        @param reading: Whether it reads.
        """
        self.reading = reading

    def stopReading(self) -> None:
        """
        Read no more.
        """
        self.reading = False


class Channel:
    """
    A device in a reactor.
    """

    def __init__(self, *users: Any) -> None:
        """
        @param users: Its users; there is an attempt to connect too.
        """
        self.users, self.attempts = dict.fromkeys(users), {object(): None}


class ReadersTests(SynchronousTestCase):
    """
    The replacement of a reactor's methods.
    """

    def setUp(self) -> None:
        """
        A reactor, and a device with a user that reads and one that does not.
        """
        self.reactor: Any = Reactor()
        self.reads, self.paused = User(True), User(False)
        self.channel = Channel(self.reads, self.paused)
        (self.trying,) = self.channel.attempts

    def test_patchedMeanwhile(self) -> None:
        """
        If a test replaces a method while a device is there, and restores it when there is none any more, the
        next device does not call itself.
        """
        readersOf(self.reactor).add(self.channel)
        before = self.reactor.getReaders
        self.reactor.getReaders = lambda: ["patched"]
        readersOf(self.reactor).remove(self.channel)
        self.assertEqual(self.reactor.getReaders(), ["patched"])
        self.reactor.getReaders = before
        self.assertEqual(self.reactor.getReaders(), ["a reader"])
        readersOf(self.reactor).add(self.channel)
        self.assertEqual(self.reactor.getReaders(), ["a reader", self.reads])
        readersOf(self.reactor).remove(self.channel)
        self.assertEqual(self.reactor.getReaders(), ["a reader"])
        self.assertFalse({"getReaders", "removeAll"} & set(vars(self.reactor)))

    def test_users(self) -> None:
        """
        Those that read do; when all is closed, those that try to connect are, too.
        """
        self.assertEqual(readingUsers([self.channel]), [self.reads])
        self.assertEqual(takeUsers([self.channel]), [self.reads, self.trying])
        self.assertEqual(readingUsers([self.channel]), [])

    def test_getReaders(self) -> None:
        """
        The device's reading users are shown in its place, as long as it is there.
        """
        readers = readersOf(self.reactor)
        readers.add(self.channel)
        self.assertEqual(self.reactor.readers, ["a reader", self.channel])
        self.assertEqual(self.reactor.getReaders(), ["a reader", self.reads])
        self.reads.reading, self.paused.reading = False, True
        self.assertEqual(self.reactor.getReaders(), ["a reader", self.paused])
        readers.remove(self.channel)
        self.assertEqual(self.reactor.getReaders(), ["a reader"])

    def test_removeAll(self) -> None:
        """
        Reading users are removed; the device stays, and its other users with it.
        """
        readersOf(self.reactor).add(self.channel)
        self.assertEqual(self.reactor.removeAll(), ["a reader", self.reads, self.trying])
        self.assertEqual(self.reactor.readers, [self.channel])
        self.assertEqual(self.reactor.getReaders(), [])

    def test_removeAllInternal(self) -> None:
        """
        A reactor that leaves its own readers alone leaves the device alone, and is not given it again.
        """
        reactor = self.reactor
        reactor._internalReaders = {"a reader"}

        def removeAll() -> list[Any]:
            removed = [one for one in reactor.readers if one not in reactor._internalReaders]
            reactor.readers = [one for one in reactor.readers if one in reactor._internalReaders]
            return removed

        reactor.removeAll = removeAll
        reactor.readers.append("another")
        readersOf(reactor).add(self.channel)
        reactor.addReader = None
        self.assertEqual(reactor.removeAll(), ["another", self.reads, self.trying])
        self.assertEqual(reactor.readers, ["a reader", self.channel])
        self.assertEqual(reactor._internalReaders, {"a reader"})

    def test_severalDevices(self) -> None:
        """
        The methods are the reactor's own again when the last device leaves, not before.
        """
        other = Channel(User(True))
        readers = readersOf(self.reactor)
        readers.add(self.channel)
        self.assertIs(readersOf(self.reactor), readers)
        readersOf(self.reactor).add(other)
        self.assertEqual(self.reactor.getReaders(), ["a reader", self.reads, *other.users])
        readers.remove(self.channel)
        self.assertEqual(self.reactor.getReaders(), ["a reader", *other.users])
        readers.remove(other)
        self.assertEqual(list(vars(self.reactor)), ["readers"])

    def test_patchedBefore(self) -> None:
        """
        Another replacement of before is called, and is there again afterwards.
        """

        def patched() -> list[Any]:
            return ["patched"]

        self.reactor.getReaders = patched
        readers = readersOf(self.reactor)
        readers.add(self.channel)
        self.assertEqual(self.reactor.getReaders(), ["patched", self.reads])
        readers.remove(self.channel)
        self.assertIs(self.reactor.getReaders, patched)
        self.assertNotIn("removeAll", vars(self.reactor))

    def test_patchedAfterwards(self) -> None:
        """
        Another replacement made while a device is there stays.
        """
        readers = readersOf(self.reactor)
        readers.add(self.channel)

        def patched() -> list[Any]:
            return []

        self.reactor.removeAll = patched
        self.assertIs(readersOf(self.reactor), readers)
        readers.remove(self.channel)
        self.assertIs(self.reactor.removeAll, patched)
        self.assertNotIn("getReaders", vars(self.reactor))
        self.assertEqual(self.reactor.readers, ["a reader"])


class RealReactorTests(ReactorBuilder):
    """
    The same on real reactors.
    """

    _reactors = [f"{kind.__module__}.{kind.__name__}" for kind in (EPollReactor, SelectReactor)]

    def test_nothingIsLeft(self) -> None:
        """
        A port and an attempt show, or end, as TCP's do; afterwards the reactor is as it was.
        """
        reactor: Any = self.buildReactor()
        before = set(vars(reactor))
        factory = Factory.forProtocol(Protocol)
        factory.noisy = False
        port: Any = listenSDP(reactor, 0, factory, interface="127.0.0.1", device="lo0")
        self.assertIn(port, reactor.getReaders())
        (channel,) = channelsOf(reactor)
        self.assertNotIn(channel, reactor.getReaders())
        failed: list[Any] = []

        class Clients(ClientFactory):
            """
            Remembers why it failed.
            """

            noisy = False

            def clientConnectionFailed(self, connector: Any, reason: Any) -> None:
                failed.append(reason.value)

        port.stopReading()  # So that the attempt waits.
        connectSDP(reactor, "127.0.0.1", port.getHost().port, Clients(), device="lo0")

        def end() -> None:
            port.startReading()
            for one in reactor.removeAll():
                one.connectionLost(Failure(error.ConnectionLost()))
            reactor.crash()

        reactor.callLater(0.05, end)
        self.runReactor(reactor, timeout=HANG_SECONDS)
        self.assertEqual(len(failed), 1)
        self.assertIsInstance(failed[0], error.ConnectError)
        self.assertEqual(channel.users, {})
        self.assertEqual((set(vars(reactor)) - before) & {"getReaders", "removeAll"}, set())


globals().update(RealReactorTests.makeTestCaseClasses())
