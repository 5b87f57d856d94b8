"""
The agents that every device begins with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted_ib.hca.base.operation import GSI_QPN
from twisted_ib.hca.mad.gsi import CMAgent
from twisted_ib.hca.mad.pma import PerformanceAgent
from twisted_ib.hca.mad.vendor import PingAgent

if TYPE_CHECKING:
    from twisted_ib.hca.mad.device import IManagedDevice

#: Queue pair, and what is called with the device and registers with its C{mads}.
AGENTS: tuple[tuple[int, Callable[[Any], object]], ...] = (
    (GSI_QPN, CMAgent),
    (GSI_QPN, PerformanceAgent),
    (GSI_QPN, PingAgent),
)


def openAgents(device: IManagedDevice) -> None:
    """
    Make the agents of a device, of those queue pairs that it has.
    """
    for number, agent in AGENTS:
        if device.mads.has(number):
            agent(device)
