"""
OpenSM as the peer of the client of subnet administration.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.hcas import settle
from tests.hca.mad.sa.contract import AdministrationContract
from tests.opensm.lab import Lab, lab
from tests.opensm.master import active
from tests.opensm.topologies import TOPOLOGIES, without
from twisted_ib.hca.base.port import PortState
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.fabric.base.neighbours import Neighbours
from twisted_ib.hca.fabric.loopback.loopback import LoopbackFabric
from twisted_ib.subnet.network.topology import parse
from twisted_ib.subnet.port.fabric import SubnetFabric

TOPOLOGY = TOPOLOGIES["trunks"]
GONE = "Hca4"


def openDevice(made: Lab, node: str, clock: Callable[[], float], neighbours: Neighbours) -> Device:
    """
    @return: a device at an adapter of a lab's subnet.
    """

    def fabric(owner: Any, guid: int, clock: Callable[[], float]) -> SubnetFabric:
        return SubnetFabric(
            *(owner, guid, clock),
            lambda device, guid: made.subnet.attach(device, guid, node),
            lambda *arguments: LoopbackFabric(*arguments, neighbours),
        )

    return Device(node, clock, fabric)


class AdministrationTests(AdministrationContract, SynchronousTestCase):
    """
    OpenSM on one node, devices on two others of two switches.
    """

    def setUp(self) -> None:
        """
        Bring the subnet up.
        """
        stack = ExitStack()
        self.addCleanup(stack.close)
        self.made = made = stack.enter_context(lab(TOPOLOGY, Path(self.mktemp()).resolve()))
        neighbours = Neighbours()
        clock = made.subnet._clock.seconds
        self.one, self.other = (openDevice(made, name, clock, neighbours) for name in ("Hca2", "Hca3"))
        for device in (self.one, self.other):
            stack.callback(device.close)
        self.start()

    def start(self) -> None:
        """
        Start OpenSM, and wait until it answers.
        """
        listed = self.made.directory / "opensm-subnet.lst"
        listed.unlink(missing_ok=True)
        self.opensm = self.made.opensm()
        ports = self.one.port, self.other.port
        self.until(lambda: active(self.made) and all(each.state is PortState.ACTIVE for each in ports))
        self.until(listed.exists)

    @property
    def ends(self) -> dict[int, int]:  # type: ignore[override]
        ports = [port for port in self.made.subnet.graph.ports() if port.peer and port.node.switch is None]
        return {port.settings().gids[0]: port.lid for port in ports}

    def until(self, holds: Callable[[], object]) -> None:
        """
        Serve the subnet and its devices until something holds.
        """

        def now() -> object:
            for device in (self.one, self.other):
                device.tick(device.clock())
            settle(self.one, self.other)
            return holds()

        self.made.until(now)

    def remove(self) -> None:
        """
        A node goes.
        """
        self.made.subnet.load(without(parse(TOPOLOGY, "without"), GONE))

    def restore(self) -> None:
        """
        It comes back.
        """
        self.made.subnet.load(parse(TOPOLOGY, "whole"))

    def restart(self) -> None:
        """
        OpenSM ends without a word, and another one takes its place.
        """
        self.opensm.kill()
        self.until(lambda: not self.made.sockets.server.clients)
        self.start()
