"""
Tests for L{twisted_ib.switch.switch}, without a reactor.
"""

from __future__ import annotations

from threading import get_ident
from types import SimpleNamespace
from typing import Any
from unittest import mock
from unittest.mock import Mock

from twisted.logger import Logger, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.errors import WrongThreadError
from twisted_ib.hca.device.device import addDevice, removeDevice
from twisted_ib.switch import switch as module
from twisted_ib.switch.reason import Fallback, Reason
from twisted_ib.switch.rules.configuration import Configuration
from twisted_ib.switch.switch import Switch


class FallbackTests(SynchronousTestCase):
    """
    The log of connections that TCP carries.
    """

    def setUp(self) -> None:
        """
        A switch, and what it logs.
        """
        self.logged: list[Any] = []
        self.patch(Switch, "_log", Logger(observer=self.logged.append))
        self.switch = Switch(Configuration({}, "p"))

    def fall(self, kind: str, port: int, verdict: str = "both") -> None:
        """
        A connection falls back.
        """
        why = Reason("default", verdict)
        self.switch.fellBack(why, Fallback(kind, f"because of {kind}"), "::1", port)
        self.assertEqual(str(why.fallback), f"because of {kind}")

    def test_once(self) -> None:
        """
        One line for a peer and a kind of reason; each is counted.
        """
        for _ in range(2):
            self.fall("no_listener", 1)
            self.fall("timeout", 1)
        self.assertEqual(
            [formatEvent(event) for event in self.logged],
            ["[::1]:1 goes over TCP: because of no_listener", "[::1]:1 goes over TCP: because of timeout"],
        )
        self.assertEqual(self.switch.counters["switch_fallback_timeout"], 2)

    def test_unasked(self) -> None:
        """
        Nothing of what nobody expects over SDP, and nothing where a rule wants SDP alone: that is an error.
        """
        self.fall("remote", 1)
        self.fall("no_listener", 1, "sdp")
        self.assertEqual(self.logged, [])

    def test_many(self) -> None:
        """
        So many are remembered; the oldest is logged again.
        """
        self.patch(module, "FALLBACKS_LOGGED", 2)
        for port in (1, 2, 1, 2, 3, 2, 1):
            self.fall("refused", port)
        self.assertEqual(len(self.logged), 4)


class SettledTests(SynchronousTestCase):
    """
    The log of decisions.
    """

    def test_level(self) -> None:
        """
        A listen or connect is a line of libsdp's level 7, which is made if that is logged.
        """
        configuration, logged = Configuration({}, "p"), []
        self.patch(configuration, "log", lambda *line: logged.append(line))
        why = Reason("rules:1", "both", "tcp")
        switch = Switch(configuration)
        with mock.patch.object(Reason, "__str__", side_effect=AssertionError):
            switch.settled("listen", why, "::1", 80)
        self.assertEqual(logged, [])
        self.patch(configuration, "logs", lambda level: level == 7)
        switch.settled("listen", why, "::1", 80)
        self.assertEqual(logged, [(7, f"listen [::1]:80: {why}")])


class DeviceTests(SynchronousTestCase):
    """
    The devices for an address.
    """

    def test_added(self) -> None:
        """
        Those that the program added are beside the default one, but for those of subnets, which have no IP
        addresses, and of iWARP, whose TCP ports are the program's own.
        """
        for name, fabric, address in (
            ("lo5", "loopback", None),
            ("ib5", "ib", None),
            ("iwarp5", "iwarp", "127.0.0.1"),
        ):
            addDevice(name, fabric, address)
            self.addCleanup(removeDevice, name)
        self.assertEqual(Switch(Configuration({}, "p")).devicesFor("127.0.0.1"), ("shm0", "lo5"))


class CandidatesTests(SynchronousTestCase):
    """
    Who may serve a connect.
    """

    def setUp(self) -> None:
        """
        A switch that records whom it asks.
        """
        self.switch = Switch(Configuration({}, "p"))
        self.asked: Any = Mock()
        self.asked.gainless.holds.return_value = None
        self.switch.openCandidates = self.asked
        self.reactor: Any = SimpleNamespace(seconds=lambda: 5.0)
        self.checked: list[str] = []
        self.patch(self.switch, "checkThread", lambda reactor, device: self.checked.append(device))

    def find(self, verdict: str, blocks: bool = False) -> Any:
        """
        @return: The candidates for a port of this host.
        """
        return self.switch.candidatesFor(self.reactor, verdict, "127.0.0.1", 80, blocks)

    def test_verdicts(self) -> None:
        """
        None under C{tcp}; under C{sdp} whoever serves the number, under C{both} the server that TCP reaches.
        """
        self.assertIsNone(self.find("tcp"))
        self.assertEqual(self.asked.mock_calls, [])
        for verdict, call in (("sdp", self.asked.anywhere), ("both", self.asked.here)):
            call.return_value = found = [SimpleNamespace(device="shm0")]
            for blocks in (False, True):
                self.assertIs(self.find(verdict, blocks), found)
            self.assertEqual(call.call_count, 2)
        self.assertEqual(self.checked, ["shm0"] * 4)

    def test_gainless(self) -> None:
        """
        A blocking socket is not offered what it does not gain by, before anybody is searched for; others are.
        """
        nothing = Fallback("one_cpu", "x")
        self.asked.gainless.holds.return_value = nothing
        self.asked.here.return_value = found = [SimpleNamespace(device="shm0")]
        self.assertIs(self.find("both", True), nothing)
        self.assertEqual((self.asked.here.call_count, self.checked), (0, []))
        self.assertIs(self.find("both"), found)

    def test_thread(self) -> None:
        """
        A device of another thread is a reason to go over TCP.
        """

        def refuse(reactor: Any, device: str) -> None:
            raise WrongThreadError(f"{device} is another's")

        self.patch(self.switch, "checkThread", refuse)
        self.asked.here.return_value = [SimpleNamespace(device="shm0")]
        self.assertEqual(self.find("both"), Fallback("thread", "shm0 is another's"))

    def test_seconds(self) -> None:
        """
        SDP may take the whole timeout where there is no TCP; else its own, and a third of a short one.
        """
        most = self.switch.configuration.policy.timeouts.sdp
        for verdict, timeout, seconds in (
            ("sdp", 3.0, None),
            ("both", None, most),
            ("both", most, most / 3),
            ("both", 6 * most, most),
        ):
            self.assertEqual(self.switch.seconds(verdict, timeout), seconds)


class ChannelTests(SynchronousTestCase):
    """
    The channels of a reactor, which may be those of several devices and threads.
    """

    def setUp(self) -> None:
        """
        A switch, and a reactor that has open and closed devices of this thread and of others.
        """
        self.switch = Switch(Configuration({}, "p"))
        self.running: list[Any] = []
        self.devices = [
            SimpleNamespace(name=name, closed=closed, thread=get_ident() + thread, countersBeside=None)
            for name, closed, thread in (
                ("theirs", False, 1),
                ("again", True, 1),
                ("again", False, 0),
                ("gone", True, 1),
            )
        ]
        self.reactor: Any = SimpleNamespace(
            running=False,
            inOtherThread=lambda: False,
            callWhenRunning=lambda *call: self.running.append(call),
        )
        self.patch(module, "channelsOf", lambda _: [SimpleNamespace(device=each) for each in self.devices])

    def test_thread(self) -> None:
        """
        The thread of a device is asked of its open channel; where it has none, of the reactor.
        """
        for name in ("again", "gone", "unknown"):
            self.switch.checkThread(self.reactor, name)
        self.assertRaises(WrongThreadError, self.switch.checkThread, self.reactor, "theirs")
        self.reactor.inOtherThread = lambda: True
        self.switch.checkThread(self.reactor, "again")
        for name in ("theirs", "gone", "unknown"):
            self.assertRaises(WrongThreadError, self.switch.checkThread, self.reactor, name)

    def test_counters(self) -> None:
        """
        Only the device that is used shows the switch's counters, and gets its thread once.
        """
        theirs, *rest = self.devices
        for running in (False, False, True):
            self.reactor.running = running
            self.switch.opened(self.reactor, "theirs")
        self.assertIs(theirs.countersBeside, self.switch.counters)
        self.assertEqual([each.countersBeside for each in rest], [None] * 3)
        self.assertEqual(
            [(call, channel.device) for call, channel in self.running], [(self.switch._adopt, theirs)]
        )
        self.reactor.running = True
        self.switch.opened(self.reactor, "again")
        self.assertIs(rest[1].countersBeside, self.switch.counters)
        self.assertEqual(len(self.running), 1)

    def test_adopted(self) -> None:
        """
        Once the reactor runs the device belongs to its thread; where a fork has closed it the ports of this
        reactor listen on the child's own.
        """
        channel: Any = SimpleNamespace(device=self.devices[0], reactor=self.reactor)
        ports = [Mock(reactor=reactor) for reactor in (self.reactor, Mock())]
        for port in ports:
            self.switch.ports.add(port)
        self.switch._adopt(channel)
        self.assertEqual((channel.device.thread, ports[0].method_calls), (get_ident(), []))
        channel.device = self.devices[3]
        self.switch._adopt(channel)
        told = [[(name, *arguments) for name, arguments, _ in port.method_calls] for port in ports]
        self.assertEqual(told, [[("deviceGoing", "gone"), ("deviceAdded", "gone")], []])

    def test_otherThread(self) -> None:
        """
        Ports are told of devices in their reactor's thread.
        """
        reactors = [Mock(inOtherThread=lambda: True), Mock(inOtherThread=lambda: False)]
        ports = [Mock(reactor=reactor) for reactor in reactors]
        for port in ports:
            self.switch.ports.add(port)
        self.switch.deviceAdded("new")
        self.switch.deviceGoing("old")
        for call in "deviceAdded", "deviceGoing":
            self.assertEqual([getattr(each, call).call_count for each in ports], [0, 1])
        self.assertEqual(
            [call.args for call in reactors[0].callFromThread.call_args_list],
            [(ports[0].deviceAdded, "new"), (ports[0].deviceGoing, "old")],
        )
        self.assertFalse(reactors[1].callFromThread.called)
