"""
Tests of L{twisted_ib.reactor.base}: the turn with several devices, and the calls of the reactor.
"""

from __future__ import annotations

import inspect
import os
import socket
import tempfile
from typing import Any
from unittest import mock

from twisted.internet import tcp
from twisted.internet.epollreactor import EPollReactor
from twisted.internet.protocol import ClientFactory, DatagramProtocol, Factory, Protocol

from tests.reactor.test_ibreactor import ReactorTestCase
from tests.reactor.test_socketreport import VisibilityTestCase
from tests.support.waiting import HANG_SECONDS
from twisted_ib.drive.sleeper import MOST_SECONDS
from twisted_ib.hca.device.registry import addDevice, removeDevice
from twisted_ib.interfaces import IReactorRDMA
from twisted_ib.reactor import explain

HOST = "127.0.0.1"


class SeveralTests(ReactorTestCase):
    """
    C{doPoll} with two devices.
    """

    def setUp(self) -> None:
        """
        Two devices that are idle.
        """
        super().setUp()
        self.one, self.other = (self.add()[1] for _ in range(2))

    def test_returned(self) -> None:
        """
        A turn returns what waiting for descriptors has; nothing if it did not wait.
        """
        self.reactor._wait = lambda timeout: ("waited", timeout)
        self.one.work = [1]
        self.assertEqual(self.reactor.doPoll(0), ())
        self.assertEqual(self.reactor.doPoll(0), ("waited", 0))

    def test_soonest(self) -> None:
        """
        It sleeps until the first deadline of all devices, or the delayed call before that; not at all if one
        is over.
        """
        now = self.reactor.seconds()
        for dues, timeout, most in (
            ((None, None), None, MOST_SECONDS),
            ((None, None), 7.0, 7.0),
            ((50.0, 30.0), None, 30.0),
            ((30.0, 50.0), None, 30.0),
            ((None, 30.0), None, 30.0),
            ((30.0, None), 50.0, 30.0),
            ((30.0, 50.0), 5.0, 5.0),
            ((30.0, -5.0), 7.0, 0.0),
        ):
            for device, due in zip((self.one, self.other), dues, strict=True):
                device.due = None if due is None else now + due
            self.reactor.doPoll(timeout)
            slept: Any = self.slept.pop()
            if most in (MOST_SECONDS, 0.0):
                self.assertEqual(slept, most)
            else:
                self.assertTrue(most - 1 < slept <= most, (dues, timeout, slept))

    def test_expired(self) -> None:
        """
        Deadlines that are over are served, those of all devices, and only when one is.
        """
        now = self.reactor.seconds()
        self.one.due = self.other.due = now + HANG_SECONDS
        self.reactor.doPoll(7.0)
        self.assertEqual((self.one.ticks, self.other.ticks), ([], []))
        self.one.due = self.other.due = now - 1
        self.reactor.doPoll(7.0)
        self.assertEqual((len(self.one.ticks), len(self.other.ticks)), (1, 1))

    def test_allArmed(self) -> None:
        """
        All are armed; if one has something already nobody sleeps.
        """
        for first, second in ((False, True), (True, False), (True, True)):
            self.one.armed, self.other.armed = first, second
            self.reactor.doPoll(7.0)
            self.assertEqual(self.slept.pop(), 7.0 if first and second else 0)
            for device in (self.one, self.other):
                self.assertEqual(device.log.count("arm"), 1)
                device.log.clear()

    def test_woken(self) -> None:
        """
        What woke epoll is served in the same turn, a batch; without a device's traffic nothing is.
        """
        for looks in ((True, False), (False, True), (False, False)):
            devices = self.one, self.other
            for channel, device, found in zip(self.reactor._channels, devices, looks, strict=True):
                channel.look = lambda found=found: found
                device.work = [0, int(found)]
                device.log.clear()
            before = self.reactor._loop.turns
            self.reactor.doPoll(7.0)
            self.assertEqual([each.log.count("progress") - 1 for each in devices], [*map(int, looks)])
            self.assertEqual(self.reactor._loop.turns - before, int(any(looks)))

    def test_oneLeft(self) -> None:
        """
        The only device is served without the list of all, and one that has gone no more.
        """
        first, second = self.reactor._channels
        self.reactor.removeChannel(first)
        self.assertIs(self.reactor._alone, second.device)
        self.one.log.clear()
        self.reactor.doPoll(7.0)
        self.assertEqual(self.one.log, [])
        self.assertIn("progress", self.other.log)
        self.reactor.removeChannel(second)
        self.assertIsNone(self.reactor._alone)

    def test_notRunning(self) -> None:
        """
        Before it runs any thread may be the reactor's.
        """
        self.assertIs(self.reactor.inOtherThread(), False)


class CallTests(VisibilityTestCase):
    """
    The calls that the rules or the adapter answer.
    """

    def setUp(self) -> None:
        """
        No rules but those of the test.
        """
        folder = tempfile.mkdtemp()
        self.addCleanup(os.rmdir, folder)
        environment = mock.patch.dict(os.environ, XDG_CONFIG_HOME=folder)
        environment.start()
        self.addCleanup(environment.stop)
        os.environ.pop("TWISTED_IB_CONFIG", None)
        super().setUp()

    def rules(self, verdict: str) -> None:
        """
        Have one verdict for everything.
        """
        path = os.path.abspath(self.mktemp())
        with open(path, "w") as file:
            file.write(f"use {verdict} server * *:*\nuse {verdict} client * *:*\n")
        os.environ["TWISTED_IB_CONFIG"] = path

    def bound(self, family: Any = socket.AF_INET, address: Any = (HOST, 0)) -> int:
        """
        @return: The descriptor of a socket that listens.
        """
        skt = socket.socket(family)
        self.addCleanup(skt.close)
        skt.bind(address)
        skt.listen()
        return skt.fileno()

    def test_signatures(self) -> None:
        """
        The calls take what Twisted's take, with the same defaults; those for messages are as their interface
        says.
        """
        for name in ("listenTCP", "connectTCP", "adoptStreamPort"):
            ours, theirs = (
                [(each.name, each.default) for each in inspect.signature(call).parameters.values()]
                for call in (getattr(self.reactor, name), getattr(EPollReactor, name))
            )
            self.assertEqual(ours, theirs[1:])
        for name in ("listenRDMA", "connectRDMA"):
            ours = inspect.signature(getattr(self.reactor, name)).parameters.values()
            given = {each.name: each.default for each in ours if each.default is not each.empty}
            self.assertEqual(given, IReactorRDMA[name].getSignatureInfo()["optional"])

    def test_direct(self) -> None:
        """
        Under rules that leave everything to TCP ports and connectors are Twisted's own, and their reason is
        the rule.
        """
        self.rules("tcp")
        self.assertIsNone(self.reactor.openSwitch)
        port = self.reactor.listenTCP(0, Factory(), interface=HOST)
        adopted = self.reactor.adoptStreamPort(self.bound(), socket.AF_INET, Factory())
        connector = self.reactor.connectTCP(HOST, port.getHost().port, ClientFactory.forProtocol(Protocol))
        self.assertIs(type(port), tcp.Port)
        self.assertIs(type(adopted), tcp.Port)
        self.assertIs(type(connector), tcp.Connector)
        lines = [explain(each).rule.rpartition(":")[2] for each in (port, adopted, connector)]
        self.assertEqual(lines, ["1", "1", "2"])
        self.assertIs(self.reactor.openSwitch, self.reactor.switch)
        connector.disconnect()

    def test_hangup(self) -> None:
        """
        SIGHUP reloads rules where a file is named, and only where there is a switch for them.
        """
        os.environ.pop("TWISTED_IB_CONFIG", None)
        self.patch(self.reactor, "_folder", self.mktemp())
        self.assertFalse(self.reactor._hasRules())
        self.rules("tcp")
        self.assertTrue(self.reactor._hasRules())
        reloaded: list[int] = []
        self.patch(self.reactor.switch.configuration, "reload", lambda: reloaded.append(1))
        for switchless, expected in ((False, [1]), (True, [1])):
            self.patch(self.reactor, "_switchless", switchless)
            self.reactor._reload()
            self.assertEqual(reloaded, expected)

    def test_switched(self) -> None:
        """
        Without rules they are the switch's: ports listen on both, and a client goes over SDP.
        """
        made: list[Any] = []
        factory = Factory.forProtocol(Protocol)
        client = ClientFactory()
        client.buildProtocol = lambda addr: made.append(Protocol()) or made[-1]  # type: ignore[assignment]
        for port in (
            self.reactor.listenTCP(0, factory, interface=HOST),
            self.reactor.adoptStreamPort(self.bound(), socket.AF_INET, factory),
        ):
            self.assertEqual(explain(port).provider, "both")
            self.assertIn(port, self.reactor.openSwitch.ports)
            self.assertIs(self.reactor.whyOf(port), port.why)
            self.reactor.connectTCP(HOST, port.getHost().port, client)
            while not made:
                self.turn()
            self.assertEqual(explain(made.pop().transport).provider, "sdp")
            (row,) = [
                each for each in self.ours(port) if (each["kind"], each["provider"]) == ("listener", "tcp")
            ]
            self.assertEqual(row["rule"], "default")

    def test_unix(self) -> None:
        """
        The rules say nothing of a UNIX socket.
        """
        path = tempfile.mkdtemp()
        self.addCleanup(os.rmdir, path)
        name = os.path.join(path, "s")
        port = self.reactor.adoptStreamPort(self.bound(socket.AF_UNIX, name), socket.AF_UNIX, Factory())
        self.assertIsNone(self.reactor.openSwitch)
        self.assertEqual(self.reactor.selectables().count(port), 1)
        port.stopListening()
        self.turn()

    def test_closePorts(self) -> None:
        """
        Ports that nobody has closed are closed with it, those that are closed stay so, and devices that are
        added later do not find them.
        """
        self.reactor.closePorts()
        port, closed = (self.reactor.listenTCP(0, Factory(), interface=HOST) for _ in range(2))
        closed.connectionLost(None)
        self.reactor.closePorts()
        self.assertEqual((port.connected, port.sdpListeners), (False, ()))
        addDevice("more", "loopback")
        self.addCleanup(removeDevice, "more")
        self.assertEqual(port.sdpListeners, ())

    def test_messages(self) -> None:
        """
        Ports and connectors for messages and reliable datagrams.
        """
        made: list[Any] = []

        class Server(Protocol):
            def connectionMade(self) -> None:
                made.append(self)

        port = self.reactor.listenRDMA(0, Factory.forProtocol(Server), HOST)
        number = port.getHost().port
        connector = self.reactor.connectRDMA(HOST, number, ClientFactory.forProtocol(Protocol))
        while not made:
            self.turn()
        self.assertEqual(connector.state, "connected")
        self.assertIn(port, self.reactor.getReaders())
        datagrams = self.reactor.listenRDS(0, DatagramProtocol(), HOST)
        self.assertEqual(datagrams.getHost().host, HOST)
        self.assertIn(port, self.reactor.removeAll())
        port.connectionLost(None)
