"""
The fabric of a device, as the device and its resolution ask it, and the device, as that sees it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from twisted_ib.hca.base.interfaces import IDevice, IPacketFabric
from twisted_ib.hca.fabric.base.streams import IStreamFabric
from twisted_ib.hca.fabric.base.subnetdirectory import ISubnetDirectory
from twisted_ib.hca.host.socketpage.page import IListed

if TYPE_CHECKING:
    from twisted_ib.hca.connection.interfaces import IAddressResolver


class IDeviceFabric(IPacketFabric, IStreamFabric, ISubnetDirectory, IListed):
    """
    All that a device asks of fabrics: each of them has the part that its traits say.
    """


class IResolvingDevice(IDevice, Protocol):
    """
    A device, as its resolution sees it.

    @ivar resolver: finds the HCAs of addresses that no directory of the fabric has.
    """

    resolver: IAddressResolver | None

    @property
    def fabric(self) -> IDeviceFabric:
        """
        See L{IDeviceFabric}.
        """
