"""
The contract of connectors (L{tests.hca.connection.contract}) on the communication manager of each kind of
device, on MPA, on an adapter's and on a toy.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.hca.connection.contract import LOCALHOST, ConnectorContract
from tests.hca.device.everykind import EveryKindTestCase
from tests.hca.fabric.hardware.world import Host, Manager
from tests.hca.fabric.iwarp.ends import ONE, TWO, IWARPTestCase
from tests.hca.fabric.toy.toyconnector import ToyFabric
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.fabric.hardware import hardware
from twisted_ib.hca.fabric.hardware.hardware import HardwareFabric


class ThreadTests(ConnectorContract, EveryKindTestCase):
    """
    The communication manager, within a thread.
    """

    kind = 0

    def ends(self) -> tuple[Device, Device, str]:
        here, there = self.pairs()[self.kind]
        return here, there, there.address or LOCALHOST


class ProcessTests(ThreadTests):
    """
    Between processes.
    """

    kind = 1


class PacketTests(ThreadTests):
    """
    By packets.
    """

    kind = 2


class MPATests(ConnectorContract, IWARPTestCase):
    """
    MPA.
    """

    def ends(self) -> tuple[Device, Device, str]:
        return self.device(ONE), self.device(TWO), TWO


class AdapterTests(ConnectorContract, IWARPTestCase):
    """
    An adapter's, in memory.
    """

    def ends(self) -> tuple[Device, Device, str]:
        host = Host()
        self.patch(hardware, "isRNIC", lambda name: False)
        devices: list[Any] = []
        for _ in range(2):
            given: Any = {"address": ONE, "adapter": "rxe0", "verbs": host, "manager": Manager(host)}
            devices.append(Device("hw0", self.clock.seconds, partial(HardwareFabric, **given)))
            self.addCleanup(devices[-1].close)
        return devices[0], devices[1], ONE


class ToyTests(ConnectorContract, IWARPTestCase):
    """
    The toy's.
    """

    def ends(self) -> tuple[Device, Device, str]:
        devices = [Device("toy0", self.clock.seconds, ToyFabric) for _ in range(2)]
        for each in devices:
            self.addCleanup(each.close)
        return devices[0], devices[1], LOCALHOST
