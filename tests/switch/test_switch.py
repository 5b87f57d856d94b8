"""
Tests for L{twisted_ib.switch.switch}, without a reactor.
"""

from __future__ import annotations

from typing import Any

from twisted.logger import Logger, formatEvent
from twisted.trial.unittest import SynchronousTestCase

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
