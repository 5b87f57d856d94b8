"""
Subnet management attributes of a node (IBTA vol. 1 14.2.5.2, 14.2.5.3), of switches only (14.2.5.4, 14.2.5.10
to 14.2.5.12), and SMInfo, by which subnet managers find each other (14.2.5.13).
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar

from attrs import frozen

from twisted_ib.hca.mad.attributes.layouts import Attribute, bits, octets, table

#: LIDs of one block of LinearForwardingTable, and multicast LIDs of one of MulticastForwardingTable.
LIDS_PER_BLOCK = 64
MULTICAST_LIDS_PER_BLOCK = 32
#: Ports of one block of MulticastForwardingTable.
PORTS_PER_MASK = 16


class SMState(IntEnum):
    """
    SMInfo's SMState.
    """

    NOT_ACTIVE = 0
    DISCOVERING = 1
    STANDBY = 2
    MASTER = 3


@frozen(kw_only=True)
class SMInfo(Attribute):
    """
    A subnet manager.  The highest priority wins, of two with the same the lower GUID.
    """

    ID: ClassVar[int] = 0x0020
    OCTETS: ClassVar[int] = 21

    smInfoGuid: int = bits(0, 64)
    smInfoKey: int = bits(8, 64)
    smActivity: int = bits(16, 32)
    smPriority: int = bits(20, 4)
    smState: int = bits(20, 4, 3)


@frozen(kw_only=True)
class NodeInfo(Attribute):
    """
    The kind of a node, its GUIDs, and the port that the request arrived at.

    @ivar portGuid: of the port of arrival; of a switch its node GUID, which is that of port 0.
    @ivar partCap: entries of the P_Key table of a CA's port, or of port 0 of a switch.
    @ivar localPort: the port of arrival.
    """

    ID: ClassVar[int] = 0x0011
    OCTETS: ClassVar[int] = 40

    baseVers: int = bits(0, 8, default=1)
    classVers: int = bits(1, 8, default=1)
    nodeType: int = bits(2, 8)
    numPorts: int = bits(3, 8)
    systemGuid: int = bits(4, 64)
    guid: int = bits(12, 64)
    portGuid: int = bits(20, 64)
    partCap: int = bits(28, 16)
    devId: int = bits(30, 16)
    revision: int = bits(32, 32)
    localPort: int = bits(36, 8)
    vendorId: int = bits(37, 24)


@frozen(kw_only=True)
class NodeDescription(Attribute):
    """
    @ivar description: text, padded with zeros.
    """

    ID: ClassVar[int] = 0x0010
    OCTETS: ClassVar[int] = 64

    description: bytes = octets(0, 64)

    @property
    def text(self) -> str:
        """
        The text, as ibnetdiscover prints it.
        """
        return self.description.split(b"\0", 1)[0].decode("utf-8", "replace")


@frozen(kw_only=True)
class VendorDiag(Attribute):
    """
    Diagnostics of a vendor.

    @ivar nextIndex: the modifier that asks for more of them; 0 if these are the last.
    """

    ID: ClassVar[int] = 0x0030
    OCTETS: ClassVar[int] = 64

    nextIndex: int = bits(0, 16)
    diagData: bytes = octets(2, 62)


@frozen(kw_only=True)
class SwitchInfo(Attribute):
    """
    The tables of a switch, and whether one of its ports changed its state.
    """

    ID: ClassVar[int] = 0x0012
    OCTETS: ClassVar[int] = 20

    linearFdbCap: int = bits(0, 16)
    randomFdbCap: int = bits(2, 16)
    mcastFdbCap: int = bits(4, 16)
    linearFdbTop: int = bits(6, 16)
    defPort: int = bits(8, 8)
    defMcastPrimPort: int = bits(9, 8)
    defMcastNotPrimPort: int = bits(10, 8)
    lifeTime: int = bits(11, 5)
    stateChange: int = bits(11, 1, 2)
    optSLtoVLMapping: int = bits(11, 2, 1)
    lidsPerPort: int = bits(12, 16)
    partEnforceCap: int = bits(14, 16)
    inboundPartEnf: int = bits(16, 1)
    outboundPartEnf: int = bits(16, 1, 6)
    filterRawInbound: int = bits(16, 1, 5)
    filterRawOutbound: int = bits(16, 1, 4)
    enhancedPort0: int = bits(16, 1, 3)
    multicastFDBTop: int = bits(18, 16, skip=1)


@frozen(kw_only=True)
class LinearForwardingTable(Attribute):
    """
    A block of the port of each LID: 0 is the switch itself, and
    L{NO_PORT<twisted_ib.subnet.network.switch.NO_PORT>} drops.
    """

    ID: ClassVar[int] = 0x0019
    OCTETS: ClassVar[int] = 64

    ports: tuple[int, ...] = table(0, LIDS_PER_BLOCK, 8)


@frozen(kw_only=True)
class MulticastForwardingTable(Attribute):
    """
    A block of the ports of each multicast LID, L{PORTS_PER_MASK} ports in a mask.
    """

    ID: ClassVar[int] = 0x001B
    OCTETS: ClassVar[int] = 64

    masks: tuple[int, ...] = table(0, MULTICAST_LIDS_PER_BLOCK, 16)
