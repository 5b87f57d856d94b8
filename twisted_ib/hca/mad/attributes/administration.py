"""
Records of subnet administration (IBTA vol. 1 15.2.5).

A record begins with the components that select it.  A table has its records at multiples of 8 octets:
AttributeOffset is L{stride} in units of them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar, Final

from attrs import frozen

from twisted_ib.hca.mad.attributes.layouts import Attribute, bits, nested, octets, table
from twisted_ib.hca.mad.attributes.node import (
    LinearForwardingTable,
    MulticastForwardingTable,
    NodeDescription,
    NodeInfo,
    SMInfo,
    SwitchInfo,
)
from twisted_ib.hca.mad.attributes.port import (
    GUIDInfo,
    PKeyTable,
    PortInfo,
    SLtoVLMappingTable,
    VLArbitrationTable,
)

#: LID range and trap number of an InformInfo for all of them, and producer for any.
ALL_LIDS: Final = 0xFFFF
ALL_TRAPS: Final = 0xFFFF
ANY_PRODUCER: Final = 0xFFFFFF
#: C{noticeType} of an InformInfo for all types.
ALL_TYPES: Final = 0xFFFF
#: ServiceLease of a service that stays until it is deleted.
NO_LEASE_END: Final = 0xFFFFFFFF
_UNIT: Final = 8


class JoinState(IntEnum):
    """
    Bits of MCMemberRecord's JoinState (IBTA vol. 1 15.2.5.17).
    """

    FULL_MEMBER = 1
    NON_MEMBER = 2
    SEND_ONLY_NON_MEMBER = 4
    SEND_ONLY_FULL_MEMBER = 8


class Selector(IntEnum):
    """
    How a query means an MTU, a rate or a packet lifetime (IBTA vol. 1 15.2.5.16).
    """

    GREATER = 0
    LESS = 1
    EXACTLY = 2
    BEST = 3


@frozen(kw_only=True)
class NodeRecord(Attribute):
    """
    A port with a LID, and its node.
    """

    ID: ClassVar[int] = 0x0011
    OCTETS: ClassVar[int] = 108

    lid: int = bits(0, 16)
    nodeInfo: NodeInfo = nested(4, NodeInfo, skip=1)
    nodeDescription: NodeDescription = nested(44, NodeDescription)


@frozen(kw_only=True)
class PortInfoRecord(Attribute):
    """
    A port.

    @ivar endportLID: of a switch's external port that of port 0.
    """

    ID: ClassVar[int] = 0x0012
    OCTETS: ClassVar[int] = 68

    endportLID: int = bits(0, 16)
    portNum: int = bits(2, 8)
    options: int = bits(3, 8)
    portInfo: PortInfo = nested(4, PortInfo)


@frozen(kw_only=True)
class SLtoVLMappingTableRecord(Attribute):
    """
    The table of a CA's port, or of a switch's pair of ports.
    """

    ID: ClassVar[int] = 0x0013
    OCTETS: ClassVar[int] = 16

    lid: int = bits(0, 16)
    inputPort: int = bits(2, 8)
    outputPort: int = bits(3, 8)
    mapping: SLtoVLMappingTable = nested(8, SLtoVLMappingTable, skip=1)


@frozen(kw_only=True)
class SwitchInfoRecord(Attribute):
    """
    A switch.
    """

    ID: ClassVar[int] = 0x0014
    OCTETS: ClassVar[int] = 24

    lid: int = bits(0, 16)
    switchInfo: SwitchInfo = nested(4, SwitchInfo, skip=1)


@frozen(kw_only=True)
class LinearForwardingTableRecord(Attribute):
    """
    A block of a switch's table.
    """

    ID: ClassVar[int] = 0x0015
    OCTETS: ClassVar[int] = 72

    lid: int = bits(0, 16)
    blockNum: int = bits(2, 16)
    block: LinearForwardingTable = nested(8, LinearForwardingTable, skip=1)


@frozen(kw_only=True)
class MulticastForwardingTableRecord(Attribute):
    """
    A block of a switch's table.

    @ivar position: which 16 ports.
    """

    ID: ClassVar[int] = 0x0017
    OCTETS: ClassVar[int] = 72

    lid: int = bits(0, 16)
    position: int = bits(2, 4)
    blockNum: int = bits(2, 9, 0, skip=1)
    block: MulticastForwardingTable = nested(8, MulticastForwardingTable, skip=1)


@frozen(kw_only=True)
class SMInfoRecord(Attribute):
    """
    A subnet manager.
    """

    ID: ClassVar[int] = 0x0018
    OCTETS: ClassVar[int] = 25

    lid: int = bits(0, 16)
    smInfo: SMInfo = nested(4, SMInfo, skip=1)


@frozen(kw_only=True)
class LinkRecord(Attribute):
    """
    A link in one direction.
    """

    ID: ClassVar[int] = 0x0020
    OCTETS: ClassVar[int] = 6

    fromLID: int = bits(0, 16)
    fromPort: int = bits(2, 8)
    toPort: int = bits(3, 8)
    toLID: int = bits(4, 16)


@frozen(kw_only=True)
class GUIDInfoRecord(Attribute):
    """
    A block of a port's GUIDs.
    """

    ID: ClassVar[int] = 0x0030
    OCTETS: ClassVar[int] = 72

    lid: int = bits(0, 16)
    blockNum: int = bits(2, 8)
    guidInfo: GUIDInfo = nested(8, GUIDInfo, skip=2)


@frozen(kw_only=True)
class ServiceRecord(Attribute):
    """
    A service that a port offers.

    @ivar serviceLease: seconds, or L{NO_LEASE_END}.
    """

    ID: ClassVar[int] = 0x0031
    OCTETS: ClassVar[int] = 176

    serviceID: int = bits(0, 64)
    serviceGID: int = bits(8, 128)
    servicePKey: int = bits(24, 16)
    serviceLease: int = bits(28, 32, skip=1)
    serviceKey: bytes = octets(32, 16)
    serviceName: bytes = octets(48, 64)
    serviceData8: tuple[int, ...] = table(112, 16, 8)
    serviceData16: tuple[int, ...] = table(128, 8, 16)
    serviceData32: tuple[int, ...] = table(144, 4, 32)
    serviceData64: tuple[int, ...] = table(160, 2, 64)


@frozen(kw_only=True)
class PKeyTableRecord(Attribute):
    """
    A block of a port's P_Keys.
    """

    ID: ClassVar[int] = 0x0033
    OCTETS: ClassVar[int] = 72

    lid: int = bits(0, 16)
    blockNum: int = bits(2, 16)
    portNum: int = bits(4, 8)
    block: PKeyTable = nested(8, PKeyTable, skip=1)


@frozen(kw_only=True)
class PathRecord(Attribute):
    """
    A path from one port to another.

    In a query a L{Selector} says how a value is meant.
    """

    ID: ClassVar[int] = 0x0035
    OCTETS: ClassVar[int] = 64

    serviceID: int = bits(0, 64, components=2)
    dgid: int = bits(8, 128)
    sgid: int = bits(24, 128)
    dlid: int = bits(40, 16)
    slid: int = bits(42, 16)
    rawTraffic: int = bits(44, 1)
    flowLabel: int = bits(44, 20, 3, skip=1)
    hopLimit: int = bits(47, 8)
    tClass: int = bits(48, 8)
    reversible: int = bits(49, 1)
    numbPath: int = bits(49, 7, 6)
    pKey: int = bits(50, 16)
    qosClass: int = bits(52, 12)
    sl: int = bits(53, 4, 3)
    mtuSelector: int = bits(54, 2)
    mtu: int = bits(54, 6, 5)
    rateSelector: int = bits(55, 2)
    rate: int = bits(55, 6, 5)
    packetLifeTimeSelector: int = bits(56, 2)
    packetLifeTime: int = bits(56, 6, 5)
    preference: int = bits(57, 8)


@frozen(kw_only=True)
class VLArbitrationTableRecord(Attribute):
    """
    A block of a port's tables.
    """

    ID: ClassVar[int] = 0x0036
    OCTETS: ClassVar[int] = 72

    lid: int = bits(0, 16)
    outputPort: int = bits(2, 8)
    blockNum: int = bits(3, 8)
    block: VLArbitrationTable = nested(8, VLArbitrationTable, skip=1)


@frozen(kw_only=True)
class MCMemberRecord(Attribute):
    """
    A multicast group, and a port's membership in it.

    @ivar joinState: bits of L{JoinState}.
    """

    ID: ClassVar[int] = 0x0038
    OCTETS: ClassVar[int] = 52

    mgid: int = bits(0, 128)
    portGID: int = bits(16, 128)
    qKey: int = bits(32, 32)
    mlid: int = bits(36, 16)
    mtuSelector: int = bits(38, 2)
    mtu: int = bits(38, 6, 5)
    tClass: int = bits(39, 8)
    pKey: int = bits(40, 16)
    rateSelector: int = bits(42, 2)
    rate: int = bits(42, 6, 5)
    packetLifeTimeSelector: int = bits(43, 2)
    packetLifeTime: int = bits(43, 6, 5)
    sl: int = bits(44, 4)
    flowLabel: int = bits(44, 20, 3)
    hopLimit: int = bits(47, 8)
    scope: int = bits(48, 4)
    joinState: int = bits(48, 4, 3)
    proxyJoin: int = bits(49, 1)


@frozen(kw_only=True)
class InformInfo(Attribute):
    """
    The events of a subscription.

    @ivar lidRangeBegin: L{ALL_LIDS} for all.
    @ivar trapNumber: L{ALL_TRAPS} for all.
    @ivar noticeType: L{ALL_TYPES} for all.
    @ivar qpn: where Reports go.
    @ivar producerType: L{ANY_PRODUCER} for any.
    """

    ID: ClassVar[int] = 0x0003
    OCTETS: ClassVar[int] = 36

    gid: int = bits(0, 128)
    lidRangeBegin: int = bits(16, 16)
    lidRangeEnd: int = bits(18, 16)
    isGeneric: int = bits(22, 8, skip=1)
    subscribe: int = bits(23, 8)
    noticeType: int = bits(24, 16)
    trapNumber: int = bits(26, 16)
    qpn: int = bits(28, 24)
    respTimeVal: int = bits(31, 5, 4, skip=1)
    producerType: int = bits(33, 24, skip=1)


@frozen(kw_only=True)
class InformInfoRecord(Attribute):
    """
    A subscription of a port.
    """

    ID: ClassVar[int] = 0x00F3
    OCTETS: ClassVar[int] = 60

    subscriberGID: int = bits(0, 128)
    enum: int = bits(16, 16)
    informInfo: InformInfo = nested(24, InformInfo, skip=1)


def stride(kind: type[Attribute]) -> int:
    """
    @return: AttributeOffset of a table of records: the octets of each, in units of 8.
    """
    return -(-kind.OCTETS // _UNIT)
