"""
Class headers of MADs, between the common header and the attribute (IBTA vol. 1 13.4, 13.6, 14.2, 15.2, 16).

Each is a value that preserves all octets, reserved ones included. A class without a header here, or an
unknown one, has all 232 octets for its attribute.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from twisted_ib.layouts import Codec, bits, octets, ofTuple, within

# Management classes (Linux ib_mad.h IB_MGMT_CLASS_*)
SUBNET: Final = 0x01
SUBNET_DIRECTED: Final = 0x81
#: Both are subnet management, which is on queue pair 0; all others are on queue pair 1 (IBTA vol. 1 13.5.1).
SUBNET_CLASSES: Final = frozenset((SUBNET, SUBNET_DIRECTED))
SUBNET_ADMINISTRATION: Final = 0x03
PERFORMANCE: Final = 0x04
BASEBOARD: Final = 0x05
DEVICE_MANAGEMENT: Final = 0x06
COMMUNICATION: Final = 0x07
SNMP: Final = 0x08
DEVICE_ADMINISTRATION: Final = 0x10
BOOT_INFORMATION: Final = 0x12
CONGESTION_CONTROL: Final = 0x21
#: Vendor classes: range 1 has no OUI, range 2 has RMPP and an OUI (Linux ib_mad.h struct ib_vendor_mad).
VENDOR_CLASSES: Final = range(0x09, 0x10)
ORGANIZATION_CLASSES: Final = range(0x30, 0x50)

#: M_Key and attribute of an SMP of either class.
SMP_KEY: Final = slice(24, 32)
SMP_ATTRIBUTE: Final = slice(64, 128)

RMPP_VERSION: Final = 1
# Types of the MADs of an RMPP transfer, and their flags (IBTA vol. 1 13.6.2.1).
DATA: Final = 1
ACK: Final = 2
STOP: Final = 3
ABORT: Final = 4
ACTIVE: Final = 1
FIRST: Final = 2
LAST: Final = 4


class RMPPHeader(NamedTuple):
    """
    RMPP header, for transfers of several MADs (IBTA vol. 1 13.6.2.1).

    @ivar version: L{RMPP_VERSION}, or 0 if this is no RMPP transfer.
    @ivar type: L{DATA}, L{ACK}, L{STOP} or L{ABORT}.
    @ivar responseTime: a timeout code of 5 bits.
    @ivar flags: L{ACTIVE}, L{FIRST} and L{LAST}.
    @ivar status: reason of a STOP or ABORT.
    @ivar segment: of DATA; in an ACK the last one received in order.
    @ivar length: payload length; in an ACK the new window last.
    """

    version: int = bits(0, 8)
    type: int = bits(1, 8)
    responseTime: int = bits(2, 5)
    flags: int = bits(2, 3, 2)
    status: int = bits(3, 8)
    segment: int = bits(4, 32)
    length: int = bits(8, 32)


RMPP: Final = ofTuple(RMPPHeader, 12)
_NONE: Final = RMPPHeader()


class SubnetHeader(NamedTuple):
    """
    LID-routed SMP (IBTA vol. 1 14.2).

    @ivar key: the M_Key.
    @ivar reserved: 32 octets in front of the attribute.
    @ivar behind: 128 reserved octets behind it.
    """

    key: int = bits(0, 64)
    reserved: bytes = octets(8, 32)
    behind: bytes = octets(104, 128)


class DirectedHeader(NamedTuple):
    """
    Directed-route SMP (IBTA vol. 1 14.2).

    @ivar key: the M_Key.
    @ivar sourceLID: DrSLID, C{0xFFFF} if the route begins at the sender.
    @ivar destinationLID: DrDLID, C{0xFFFF} if the route ends at the receiver.
    @ivar reserved: 28 octets.
    @ivar initialPath: 64 octets, the egress port of each hop, from octet 1.
    @ivar returnPath: 64 octets, the ingress port of each hop.
    """

    key: int = bits(0, 64)
    sourceLID: int = bits(8, 16, default=0xFFFF)
    destinationLID: int = bits(10, 16, default=0xFFFF)
    reserved: bytes = octets(12, 28)
    initialPath: bytes = octets(104, 64)
    returnPath: bytes = octets(168, 64)


class AdministrationHeader(NamedTuple):
    """
    Subnet administration MAD (IBTA vol. 1 15.2).

    @ivar transfer: the RMPP header.
    @ivar key: the SM_Key.
    @ivar attributeOffset: distance of the records of a table, in units of 8 octets.
    @ivar reserved: 16 bits.
    @ivar componentMask: the components of the record that a query compares.
    """

    transfer: RMPPHeader = within(0, RMPP, _NONE)
    key: int = bits(12, 64)
    attributeOffset: int = bits(20, 16)
    reserved: int = bits(22, 16)
    componentMask: int = bits(24, 64)


class OrganizationHeader(NamedTuple):
    """
    Vendor class of range 2.

    @ivar transfer: the RMPP header.
    @ivar organization: the OUI, 24 bits.
    @ivar reserved: the octet in front of the OUI.
    """

    transfer: RMPPHeader = within(0, RMPP, _NONE)
    organization: int = bits(13, 24)
    reserved: int = bits(12, 8)


class SegmentedHeader(NamedTuple):
    """
    Other classes with RMPP.

    @ivar transfer: the RMPP header.
    """

    transfer: RMPPHeader = within(0, RMPP, _NONE)


class KeyedHeader(NamedTuple):
    """
    Other classes of general services (IBTA vol. 1 16).

    @ivar key: the B_Key or CC_Key of a class that has one, else reserved.
    @ivar reserved: 32 octets.
    """

    key: int = bits(0, 64)
    reserved: bytes = octets(8, 32)


ClassHeader = (
    SubnetHeader | DirectedHeader | AdministrationHeader | OrganizationHeader | SegmentedHeader | KeyedHeader
)

#: Headers that begin with that of RMPP, which is C{transfer}.
TRANSFER_HEADERS: Final = (AdministrationHeader, OrganizationHeader, SegmentedHeader)

#: Header class, octets between the common header and the attribute, octets of the attribute, and the codec of
#: the header, with zeros for an attribute that octets follow.
_Row = tuple["type[ClassHeader]", int, int, Codec[Any]]


def _row(kind: type[ClassHeader], front: int, size: int, isAround: bool = False) -> _Row:
    return kind, front, size, ofTuple(kind, 232 if isAround else front)


_SEGMENTED: Final = _row(SegmentedHeader, 12, 220)
_KEYED: Final = _row(KeyedHeader, 40, 192)
_CLASSES: Final[dict[int, _Row]] = {
    # Attribute offsets in the MAD: SMP 64, SA 56, PMA and the like 64, RMPP 36, vendor range 2 40 (Linux
    # ib_mad.h).
    SUBNET: _row(SubnetHeader, 40, 64, True),
    SUBNET_DIRECTED: _row(DirectedHeader, 40, 64, True),
    SUBNET_ADMINISTRATION: _row(AdministrationHeader, 32, 200),
    **dict.fromkeys((PERFORMANCE, BASEBOARD, DEVICE_MANAGEMENT, CONGESTION_CONTROL), _KEYED),
    **dict.fromkeys((DEVICE_ADMINISTRATION, BOOT_INFORMATION), _SEGMENTED),
    **dict.fromkeys(ORGANIZATION_CLASSES, _row(OrganizationHeader, 16, 216)),
}


def classHeader(managementClass: int) -> _Row | None:
    """
    The header of a management class.

    @return: the header class, its octets in front of the attribute, those of the attribute, and the header's
        codec; L{None} for a class without one.
    """
    return _CLASSES.get(managementClass)
