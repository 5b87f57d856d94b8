"""
A device of each kind of fabric: for tests of what the kinds have in common and where they differ.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.hca.addressed import onWire
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.device.registry import addDevice

ADDRESS, OTHER = "127.0.0.1", "127.0.0.2"
#: By the kind of their fabric: processes of one thread, of one host, and hosts.
NAMES = ("lo0", "shm0", "packets0")


class EveryKindTestCase(SynchronousTestCase):
    """
    Base of tests with a device of each kind.

    @ivar devices: by name.
    """

    def setUp(self) -> None:
        """
        One of each, with packets on a wire in memory.
        """
        self.wire = onWire(self)
        addDevice("packets0", "roce", ADDRESS)
        addDevice("packets1", "roce", OTHER)
        self.clock = Clock()
        self.devices: dict[str, Any] = {name: self.open(name) for name in NAMES}

    def open(self, name: str) -> Device:
        """
        @return: a device, closed after the test.
        """
        device = Device(name, self.clock.seconds)
        self.addCleanup(device.close)
        return device

    def each(self, fact: Any) -> list[Any]:
        """
        @return: what a function gives for the devices of C{lo0}, C{shm0} and packets.
        """
        return [fact(device) for device in self.devices.values()]

    def pairs(self) -> list[tuple[Any, Any]]:
        """
        @return: of each kind a device and another, which reach each other.
        """
        others = {"packets0": "packets1"}
        return [(device, self.open(others.get(name, name))) for name, device in self.devices.items()]
