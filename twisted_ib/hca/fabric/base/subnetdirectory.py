"""
The directory of a subnet, as a device asks its fabric, and the device, as that sees it.
"""

from __future__ import annotations

from typing import Any

from zope.interface import Attribute

from twisted_ib.hca.base.interfaces import IFabricOwner, IHostDirectory
from twisted_ib.hca.base.port import KeyViolation, Port, PortChange
from twisted_ib.hca.base.timers import Timers


class ISubnetDirectory(IHostDirectory):
    """
    The directory of a subnet: a peer is a port, named by a LID, of an HCA with a GUID (L{Peers.SUBNET
    <twisted_ib.hca.base.traits.Peers>}).  The members of a multicast group are those of its LID.
    """

    generation: Any = Attribute("A number that is another one when LIDs may lead elsewhere than before.")

    def route(lid: int) -> int:
        """
        @param lid: a unicast LID.
        @return: the GUID of the port that packets to it arrive at now; 0 if they are lost.
        """

    def has(guid: int) -> bool:
        """
        @return: whether the port with a GUID is that of an HCA.
        """

    def named(description: str) -> int:
        """
        @return: the GUID of the HCA whose node has a description; 0 if there is none.
        """

    def lidOf(guid: int) -> int:
        """
        @return: the first LID of the port with a GUID, this HCA's or another's; 0 if it has none.
        """

    def violated(violation: KeyViolation) -> None:
        """
        A packet was dropped for its key: the port counts it, and tells its subnet manager.
        """

    def setSM(isSM: bool) -> None:
        """
        A program is the subnet manager of the port from now on, or no longer: its agents get what is for one.

        @raise DeviceError: the subnet's host does not read.
        """

    def settings() -> PortChange:
        """
        @return: the settings of the port, a L{PortChange<twisted_ib.hca.base.port.PortChange>}.
        """

    # IBTA vol. 1 13.5.1: queue pairs 0 and 1.  A subnet's managers are programs without an HCA.
    def managementPath(lid: int) -> Any:
        """
        @return: the way of MADs to the queue pairs 0 and 1 of a LID, an object with C{send} and C{respond};
            what they do not reach is lost.
        """


class ISubnetOwner(IFabricOwner):
    """
    The device, as the fabric of a subnet sees it.
    """

    port: Port = Attribute("Its L{Port<twisted_ib.hca.base.port.Port>}.")
    capture: Any = Attribute("Where its packets are written, or L{None}.")
    timers: Timers = Attribute("Its L{Timers<twisted_ib.hca.base.timers.Timers>}.")
    sa: Any = Attribute("Its L{SAClient<twisted_ib.hca.mad.sa.client.SAClient>}.")

    def changePort(change: PortChange) -> None:
        """
        Change the port, with the events of that.
        """

    def markDirty(owner: Any) -> None:
        """
        Have C{owner.endOfBatch()} called in the device's turn.
        """
