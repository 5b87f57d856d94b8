"""
Subnet management attributes of switches only (IBTA vol. 1 14.2.5.4, 14.2.5.10 to 14.2.5.12).
"""

from __future__ import annotations

from typing import ClassVar

from attrs import frozen

from twisted_ib.hca.mad.attributes.layouts import Attribute, bits, table

#: LIDs of one block of LinearForwardingTable, and multicast LIDs of one of MulticastForwardingTable.
LIDS_PER_BLOCK = 64
MULTICAST_LIDS_PER_BLOCK = 32
#: Ports of one block of MulticastForwardingTable.
PORTS_PER_MASK = 16


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
