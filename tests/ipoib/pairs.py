"""
Two devices that reach each other, of each kind: for tests of IPoIB.
"""

from __future__ import annotations

from typing import ClassVar

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.hca.addressed import onWire
from tests.hca.hcas import serve
from tests.subnet.port.subnets import LEAVES, SubnetTestCase
from tests.support.rundirectory import ownRunDirectory
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.device.registry import addDevice
from twisted_ib.subnet.sm.manager import Options

PKEY = 0xFFFF
BROADCAST = 0xFF12401BFFFF << 80 | 0xFFFFFFFF


class OnLoopback(SynchronousTestCase):
    """
    HCAs of one thread.

    @ivar one: a device, and C{two} another.
    """

    names: ClassVar = ("lo0", "lo0")
    one: Device
    two: Device

    def setUp(self) -> None:
        """
        Open two.
        """
        ownRunDirectory(self)
        self.clock = Clock()
        self.one, self.two = (Device(name, self.clock.seconds) for name in self.names)
        for device in (self.one, self.two):
            self.addCleanup(device.close)

    def settle(self, seconds: float = 0.01, *devices: Device) -> None:
        """
        Let time pass.

        @param devices: those that do not stand still, if not both.
        """
        serve(self.clock, seconds, *(devices or (self.one, self.two)))


class OnSharedMemory(OnLoopback):
    """
    HCAs of one host.
    """

    names = ("shm0", "shm0")


class OnPackets(OnLoopback):
    """
    Hosts with IPv6.
    """

    names = ("packets0", "packets1")

    def setUp(self) -> None:
        """
        On a wire in memory.
        """
        onWire(self)
        for number, name in enumerate(self.names, 1):
            addDevice(name, "roce", f"fd00::{number}")
        super().setUp()


class OnSubnet(SubnetTestCase):
    """
    Ports of a subnet with a manager.
    """

    topology = LEAVES
    isManaged = False
    one: Device
    two: Device

    def setUp(self) -> None:
        """
        Let it sweep.
        """
        super().setUp()
        self.one, self.two = self.at("a", "c")
        self.subnet.manage(Options())
        self.settle()

    def settle(self, seconds: float = 0.1, *devices: Device) -> None:
        """
        Let time pass.

        @param devices: those that do not stand still, if not both.
        """
        self.run_(seconds, *(devices or (self.one, self.two)))
