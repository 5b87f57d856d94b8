"""
The subnet manager of this package as the peer of the client of subnet administration.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.hca.hcas import settle
from tests.hca.mad.sa.contract import AdministrationContract
from tests.subnet.port.subnets import LEAVES, SubnetTestCase
from twisted_ib.hca.base.port import PortState
from twisted_ib.subnet.network.topology import parse
from twisted_ib.subnet.sm.manager import Options

#: L{LEAVES} without one of its adapters.
LESS = LEAVES.replace('[2] "d"[1]\n', "").split('Ca 1 "d"')[0]


class OwnTests(AdministrationContract, SubnetTestCase):
    """
    Devices at the port of the manager and at another one.
    """

    topology = LEAVES
    isManaged = False
    #: The adapters that they are at.
    nodes = ("a", "c")

    def setUp(self) -> None:
        """
        Bring the subnet up.
        """
        super().setUp()
        self.one, self.other = self.at(*self.nodes)
        self.subnet.manage(Options())
        self.addCleanup(self.subnet.close)
        ports = self.one.port, self.other.port
        self.until(lambda: all(each.state is PortState.ACTIVE for each in ports))

    @property
    def ends(self) -> dict[int, int]:  # type: ignore[override]
        ports = [port for port in self.subnet.graph.ports() if port.peer and port.node.switch is None]
        return {port.settings().gids[0]: port.lid for port in ports}

    def until(self, holds: Callable[[], object]) -> None:
        """
        Let time pass until something holds.
        """
        for _ in range(10000):
            settle(self.one, self.other)
            if holds():
                return
            self.clock.advance(0.01)
            for device in (self.one, self.other):
                if not device.closed:
                    device.tick(self.clock.seconds())
        self.fail("it does not happen")

    def remove(self) -> None:
        """
        A node goes.
        """
        self.subnet.load(parse(LESS, "without"))

    def restore(self) -> None:
        """
        It comes back.
        """
        self.subnet.load(parse(LEAVES, "whole"))

    def restart(self) -> None:
        """
        Another manager begins.
        """
        manager: Any = self.subnet.manager
        manager.close()
        self.subnet.manage(Options())


class OtherTests(OwnTests):
    """
    Devices at two ports that the manager is not at.
    """

    nodes = ("b", "c")
