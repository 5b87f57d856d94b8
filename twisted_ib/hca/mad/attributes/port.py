"""
Subnet management attributes of a port (IBTA vol. 1 14.2.5.5 to 14.2.5.9), and the rates of
paths, multicast groups and links (15.2.5.16, 14.2.5.6).
"""

from __future__ import annotations

from enum import IntFlag
from typing import ClassVar, Final

from attrs import frozen

from twisted_ib.hca.base.port import linkGigabits
from twisted_ib.hca.mad.attributes.layouts import Attribute, bits, table

# From code 2 on (Linux ib_verbs.h enum ib_rate).
_RATES: Final = (
    *(2.5, 10, 30, 5, 20, 40, 60, 80, 120, 14, 56, 112),
    *(168, 25, 100, 200, 300, 28, 50, 400, 600, 800, 1200),
)
#: Gb/s of each code of a rate; a greater code is not always faster.
GIGABITS: Final[dict[int, float]] = dict(enumerate(_RATES, 2))
_CODES: Final = {gigabits: code for code, gigabits in GIGABITS.items()}
_SLOWEST: Final = 2

#: Entries of one block of GUIDInfo and of P_KeyTable.
GUIDS_PER_BLOCK = 8
PARTITIONS_PER_BLOCK = 32
#: Entries of one block of VLArbitrationTable.
ARBITRATION_PER_BLOCK = 32
#: The bit of PortInfo's attribute modifier with which a subnet manager says that it knows extended speeds.
EXTENDED_SPEEDS = 1 << 31


def linkRate(width: int, speed: int, extendedSpeed: int) -> int:
    """
    @param width: PortInfo's LinkWidthActive; C{speed} and C{extendedSpeed} likewise, the latter 0 for none.
    @return: the code of a link's rate; the slowest for what has none.
    """
    # The extended speeds follow the others (libibverbs/verbs.h, ibv_port_attr.active_speed).
    return _CODES.get(linkGigabits(width, extendedSpeed << 4 or speed), _SLOWEST)


class Capability(IntFlag):
    """
    Bits of PortInfo's CapabilityMask (Linux C{enum ib_port_capability_mask_bits}).
    """

    SM = 1 << 1
    NOTICE = 1 << 2
    TRAP = 1 << 3
    OPTIONAL_IPD = 1 << 4
    AUTOMATIC_MIGRATION = 1 << 5
    SL_MAPPING = 1 << 6
    MKEY_NVRAM = 1 << 7
    PKEY_NVRAM = 1 << 8
    LED_INFO = 1 << 9
    SM_DISABLED = 1 << 10
    SYSTEM_IMAGE_GUID = 1 << 11
    PKEY_SWITCH_EXTERNAL_PORT_TRAP = 1 << 12
    EXTENDED_SPEEDS = 1 << 14
    CAPABILITY_MASK_2 = 1 << 15
    COMMUNICATION_MANAGEMENT = 1 << 16
    SNMP_TUNNEL = 1 << 17
    REINIT = 1 << 18
    DEVICE_MANAGEMENT = 1 << 19
    VENDOR_CLASS = 1 << 20
    DIRECTED_ROUTE_NOTICE = 1 << 21
    CAPABILITY_MASK_NOTICE = 1 << 22
    BOOT_MANAGEMENT = 1 << 23
    LINK_LATENCY = 1 << 24
    CLIENT_REREGISTRATION = 1 << 25
    OTHER_LOCAL_CHANGES_NOTICE = 1 << 26
    LINK_SPEED_WIDTH_PAIRS_TABLE = 1 << 27
    VENDOR_SPECIFIC_MADS_TABLE = 1 << 28
    MULTICAST_PKEY_TRAP_SUPPRESSION = 1 << 29
    MULTICAST_FDB_TOP = 1 << 30
    HIERARCHY_INFO = 1 << 31


class Capability2(IntFlag):
    """
    Bits of PortInfo's CapabilityMask2 (Linux C{enum ib_port_capability_mask2_bits}).
    """

    SET_NODE_DESCRIPTION = 1 << 0
    PORT_INFO_EXTENDED = 1 << 1
    VIRTUALIZATION = 1 << 2
    SWITCH_PORT_STATE_TABLE = 1 << 3
    LINK_WIDTH_2X = 1 << 4
    LINK_SPEED_HDR = 1 << 5
    LINK_SPEED_NDR = 1 << 10
    EXTENDED_SPEEDS_2 = 1 << 11
    LINK_SPEED_XDR = 1 << 12


@frozen(kw_only=True)
class PortInfo(Attribute):
    """
    The state and the abilities of a port.
    """

    ID: ClassVar[int] = 0x0015
    OCTETS: ClassVar[int] = 64

    mkey: int = bits(0, 64)
    gidPrefix: int = bits(8, 64)
    lid: int = bits(16, 16)
    smLID: int = bits(18, 16)
    capMask: int = bits(20, 32)
    diagCode: int = bits(24, 16)
    mkeyLeasePeriod: int = bits(26, 16)
    localPort: int = bits(28, 8)
    linkWidthEnabled: int = bits(29, 8)
    linkWidthSupported: int = bits(30, 8)
    linkWidthActive: int = bits(31, 8)
    linkSpeedSupported: int = bits(32, 4)
    linkState: int = bits(32, 4, 3)
    physLinkState: int = bits(33, 4)
    linkDownDefState: int = bits(33, 4, 3)
    protectBits: int = bits(34, 2)
    lmc: int = bits(34, 3, 2, skip=1)
    linkSpeedActive: int = bits(35, 4)
    linkSpeedEnabled: int = bits(35, 4, 3)
    neighborMTU: int = bits(36, 4)
    smSL: int = bits(36, 4, 3)
    vlCap: int = bits(37, 4)
    initType: int = bits(37, 4, 3)
    vlHighLimit: int = bits(38, 8)
    vlArbHighCap: int = bits(39, 8)
    vlArbLowCap: int = bits(40, 8)
    initReply: int = bits(41, 4)
    mtuCap: int = bits(41, 4, 3)
    vlStallCount: int = bits(42, 3)
    hoqLife: int = bits(42, 5, 4)
    operVLs: int = bits(43, 4)
    partEnforceInb: int = bits(43, 1, 3)
    partEnforceOutb: int = bits(43, 1, 2)
    filterRawInb: int = bits(43, 1, 1)
    filterRawOutb: int = bits(43, 1, 0)
    mkeyViolations: int = bits(44, 16)
    pkeyViolations: int = bits(46, 16)
    qkeyViolations: int = bits(48, 16)
    guidCap: int = bits(50, 8)
    clientReregister: int = bits(51, 1)
    # IBTA vol. 1 14.2.5.6: these two were reserved once, and the record's component is still one.
    mcastPkeyTrapSuppressionEnabled: int = bits(51, 2, 6)
    subnetTimeout: int = bits(51, 5, 4)
    respTimeVal: int = bits(52, 5, 4, skip=1)
    localPhysErr: int = bits(53, 4)
    overrunErr: int = bits(53, 4, 3)
    maxCreditHint: int = bits(54, 16)
    roundTrip: int = bits(57, 24, skip=1)
    capabilityMask2: int = bits(60, 16)
    linkSpeedExtActive: int = bits(62, 4)
    linkSpeedExtSupported: int = bits(62, 4, 3)
    linkSpeedExtEnabled: int = bits(63, 5, 4, skip=1)


@frozen(kw_only=True)
class GUIDInfo(Attribute):
    """
    A block of a port's GUIDs; the first of block 0 is the port's own and cannot be changed.
    """

    ID: ClassVar[int] = 0x0014
    OCTETS: ClassVar[int] = 64

    guids: tuple[int, ...] = table(0, GUIDS_PER_BLOCK, 64)


@frozen(kw_only=True)
class PKeyTable(Attribute):
    """
    A block of a port's P_Keys.
    """

    ID: ClassVar[int] = 0x0016
    OCTETS: ClassVar[int] = 64

    keys: tuple[int, ...] = table(0, PARTITIONS_PER_BLOCK, 16)


@frozen(kw_only=True)
class SLtoVLMappingTable(Attribute):
    """
    @ivar vls: the virtual lane of each service level.
    """

    ID: ClassVar[int] = 0x0017
    OCTETS: ClassVar[int] = 8

    vls: tuple[int, ...] = table(0, 16, 4)


@frozen(kw_only=True)
class VLArbitrationTable(Attribute):
    """
    A block of an arbitration table: the virtual lane and the weight of each entry.
    """

    ID: ClassVar[int] = 0x0018
    OCTETS: ClassVar[int] = 64

    vls: tuple[int, ...] = table(0, ARBITRATION_PER_BLOCK, 4, 3, stride=16)
    weights: tuple[int, ...] = table(1, ARBITRATION_PER_BLOCK, 8, stride=16)


@frozen(kw_only=True)
class LedInfo(Attribute):
    """
    @ivar ledMask: whether the port's LED is on.
    """

    ID: ClassVar[int] = 0x0031
    OCTETS: ClassVar[int] = 4

    ledMask: int = bits(0, 1)
