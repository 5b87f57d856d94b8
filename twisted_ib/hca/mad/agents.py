"""
The agents that every device begins with, and the device, as they see it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from twisted_ib.hca.base.interfaces import IDevice
from twisted_ib.hca.base.operation import GSI_QPN
from twisted_ib.hca.mad.gsi import CMAgent
from twisted_ib.hca.mad.pma import PerformanceAgent
from twisted_ib.hca.mad.vendor import PingAgent

#: Queue pair, and what is called with the device and registers with its C{mads}.
AGENTS: tuple[tuple[int, Callable[[Any], object]], ...] = (
    (GSI_QPN, CMAgent),
    (GSI_QPN, PerformanceAgent),
    (GSI_QPN, PingAgent),
)


class IManagedDevice(IDevice, Protocol):
    """
    A device with agents, a connection manager and address resolution, which are of the layers above.
    """

    @property
    def mads(self) -> Any:
        """
        Its agents.
        """

    @property
    def cm(self) -> Any:
        """
        Its connection manager.
        """

    def managementReceived(self, path: Any, attribute: int, buffer: Any, start: int, stop: int) -> None:
        """
        See L{IFabricOwner<twisted_ib.hca.base.interfaces.IFabricOwner>}.
        """


def openAgents(device: IManagedDevice) -> None:
    """
    Make the agents of a device, of those queue pairs that it has.
    """
    for number, agent in AGENTS:
        if device.mads.has(number):
            agent(device)
