"""
The fabric of a device, as the device and its resolution ask it, and the device, as that sees it.
"""

from __future__ import annotations

from typing import Protocol

from twisted_ib.hca.base.interfaces import IDevice, IPacketFabric
from twisted_ib.hca.fabric.base.streams import IStreamFabric
from twisted_ib.hca.fabric.base.subnetdirectory import ISubnetDirectory
from twisted_ib.hca.host.socketpage.page import IListed


class IDeviceFabric(IPacketFabric, IStreamFabric, ISubnetDirectory, IListed):
    """
    All that a device asks of fabrics: each of them has the part that its traits say.
    """


class IResolvingDevice(IDevice, Protocol):
    """
    A device, as its resolution sees it.
    """

    @property
    def fabric(self) -> IDeviceFabric:
        """
        See L{IDeviceFabric}.
        """

    def isLocal(self, address: str) -> bool:
        """
        @return: whether an address is of this host.
        """


__all__ = ["IDeviceFabric", "IResolvingDevice"]
