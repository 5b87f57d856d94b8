"""
The device, as the agents of its management datagrams see it.
"""

from __future__ import annotations

from typing import Any, Protocol

from twisted_ib.hca.base.interfaces import IDevice


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
