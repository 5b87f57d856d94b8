"""
Class headers of MADs, between the common header and the attribute (IBTA vol. 1 13.4, 13.6, 14.2, 15.2, 16).

Each is a value that preserves all octets, reserved ones included. A class without a header here, or an
unknown one, has all 232 octets for its attribute.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


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

#: RMPP version, type, response time and flags, status, segment number, payload length or new window last.
_TRANSFER: Final[Packed[tuple[int, int, int, int, int, int]]] = Struct(">BBBBII")


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

    version: int = 0
    type: int = 0
    responseTime: int = 0
    flags: int = 0
    status: int = 0
    segment: int = 0
    length: int = 0

    def pack(self) -> bytes:
        """
        @return: 12 octets.
        @raise struct.error: a field does not fit.
        @raise ValueError: likewise.
        """
        if self.flags >> 3 or self.responseTime >> 5:
            raise ValueError("a field of RMPP does not fit")
        third = self.responseTime << 3 | self.flags
        return _TRANSFER.pack(self.version, self.type, third, self.status, self.segment, self.length)

    @classmethod
    def parse(cls, octets: bytes) -> RMPPHeader:
        """
        @param octets: begin with the header.
        """
        version, kind, third, status, segment, length = _TRANSFER.unpack_from(octets)
        return cls(version, kind, third >> 3, third & 7, status, segment, length)


class SubnetHeader(NamedTuple):
    """
    LID-routed SMP (IBTA vol. 1 14.2).

    @ivar key: the M_Key.
    @ivar reserved: 32 octets in front of the attribute.
    @ivar behind: 128 reserved octets behind it.
    """

    key: int = 0
    reserved: bytes = bytes(32)
    behind: bytes = bytes(128)

    def around(self) -> tuple[bytes, bytes]:
        """
        @return: the octets in front of the attribute, and those behind it.
        """
        return _SUBNET.pack(self.key, _sized(self.reserved, 32)), _sized(self.behind, 128)

    @classmethod
    def parse(cls, before: bytes, behind: bytes) -> SubnetHeader:
        """
        Parse the octets in front of the attribute and those behind it.
        """
        key, reserved = _SUBNET.unpack(before)
        return cls(key, reserved, behind)


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

    key: int = 0
    sourceLID: int = 0xFFFF
    destinationLID: int = 0xFFFF
    reserved: bytes = bytes(28)
    initialPath: bytes = bytes(64)
    returnPath: bytes = bytes(64)

    def around(self) -> tuple[bytes, bytes]:
        """
        @return: the octets in front of the attribute, and those behind it.
        """
        reserved = _sized(self.reserved, 28)
        before = _DIRECTED.pack(self.key, self.sourceLID, self.destinationLID, reserved)
        return before, _sized(self.initialPath, 64) + _sized(self.returnPath, 64)

    @classmethod
    def parse(cls, before: bytes, behind: bytes) -> DirectedHeader:
        """
        Parse the octets in front of the attribute and those behind it.
        """
        key, source, destination, reserved = _DIRECTED.unpack(before)
        return cls(key, source, destination, reserved, behind[:64], behind[64:])


class AdministrationHeader(NamedTuple):
    """
    Subnet administration MAD (IBTA vol. 1 15.2).

    @ivar transfer: the RMPP header.
    @ivar key: the SM_Key.
    @ivar attributeOffset: distance of the records of a table, in units of 8 octets.
    @ivar reserved: 16 bits.
    @ivar componentMask: the components of the record that a query compares.
    """

    transfer: RMPPHeader = RMPPHeader()
    key: int = 0
    attributeOffset: int = 0
    reserved: int = 0
    componentMask: int = 0

    def around(self) -> tuple[bytes, bytes]:
        """
        @return: the octets in front of the attribute, and those behind it.
        """
        rest = _ADMINISTRATION.pack(self.key, self.attributeOffset, self.reserved, self.componentMask)
        return self.transfer.pack() + rest, b""

    @classmethod
    def parse(cls, before: bytes, behind: bytes) -> AdministrationHeader:
        """
        Parse the octets in front of the attribute and those behind it.
        """
        return cls(RMPPHeader.parse(before), *_ADMINISTRATION.unpack_from(before, _TRANSFER.size))


class OrganizationHeader(NamedTuple):
    """
    Vendor class of range 2.

    @ivar transfer: the RMPP header.
    @ivar organization: the OUI, 24 bits.
    @ivar reserved: the octet in front of the OUI.
    """

    transfer: RMPPHeader = RMPPHeader()
    organization: int = 0
    reserved: int = 0

    def around(self) -> tuple[bytes, bytes]:
        """
        @return: the octets in front of the attribute, and those behind it.
        """
        if self.organization >> 24:
            raise ValueError("an organization's number has 24 bits")
        return self.transfer.pack() + (self.reserved << 24 | self.organization).to_bytes(4, "big"), b""

    @classmethod
    def parse(cls, before: bytes, behind: bytes) -> OrganizationHeader:
        """
        Parse the octets in front of the attribute and those behind it.
        """
        word = int.from_bytes(before[_TRANSFER.size :], "big")
        return cls(RMPPHeader.parse(before), word & 0xFFFFFF, word >> 24)


class SegmentedHeader(NamedTuple):
    """
    Other classes with RMPP.

    @ivar transfer: the RMPP header.
    """

    transfer: RMPPHeader = RMPPHeader()

    def around(self) -> tuple[bytes, bytes]:
        """
        @return: the octets in front of the attribute, and those behind it.
        """
        return self.transfer.pack(), b""

    @classmethod
    def parse(cls, before: bytes, behind: bytes) -> SegmentedHeader:
        """
        Parse the octets in front of the attribute and those behind it.
        """
        return cls(RMPPHeader.parse(before))


class KeyedHeader(NamedTuple):
    """
    Other classes of general services (IBTA vol. 1 16).

    @ivar key: the B_Key or CC_Key of a class that has one, else reserved.
    @ivar reserved: 32 octets.
    """

    key: int = 0
    reserved: bytes = bytes(32)

    def around(self) -> tuple[bytes, bytes]:
        """
        @return: the octets in front of the attribute, and those behind it.
        """
        return _KEYED.pack(self.key, _sized(self.reserved, 32)), b""

    @classmethod
    def parse(cls, before: bytes, behind: bytes) -> KeyedHeader:
        """
        Parse the octets in front of the attribute and those behind it.
        """
        return cls(*_KEYED.unpack(before))


_SUBNET: Final[Packed[tuple[int, bytes]]] = Struct(">Q32s")
_DIRECTED: Final[Packed[tuple[int, int, int, bytes]]] = Struct(">QHH28s")
_ADMINISTRATION: Final[Packed[tuple[int, int, int, int]]] = Struct(">QHHQ")
_KEYED: Final[Packed[tuple[int, bytes]]] = Struct(">Q32s")

ClassHeader = (
    SubnetHeader | DirectedHeader | AdministrationHeader | OrganizationHeader | SegmentedHeader | KeyedHeader
)

#: Headers that begin with that of RMPP, which is C{transfer}.
TRANSFER_HEADERS: Final = (AdministrationHeader, OrganizationHeader, SegmentedHeader)

#: Header class, octets between the common header and the attribute, octets of the attribute.
_Row = tuple["type[ClassHeader]", int, int]
_ORGANIZATION: Final[_Row] = (OrganizationHeader, 16, 216)
_CLASSES: Final[dict[int, _Row]] = {
    # Attribute offsets in the MAD: SMP 64, SA 56, PMA and the like 64, RMPP 36, vendor range 2 40 (Linux
    # ib_mad.h).
    SUBNET: (SubnetHeader, 40, 64),
    SUBNET_DIRECTED: (DirectedHeader, 40, 64),
    SUBNET_ADMINISTRATION: (AdministrationHeader, 32, 200),
    PERFORMANCE: (KeyedHeader, 40, 192),
    BASEBOARD: (KeyedHeader, 40, 192),
    DEVICE_MANAGEMENT: (KeyedHeader, 40, 192),
    DEVICE_ADMINISTRATION: (SegmentedHeader, 12, 220),
    BOOT_INFORMATION: (SegmentedHeader, 12, 220),
    CONGESTION_CONTROL: (KeyedHeader, 40, 192),
    **dict.fromkeys(ORGANIZATION_CLASSES, _ORGANIZATION),
}


def classHeader(managementClass: int) -> _Row | None:
    """
    The header of a management class.

    @return: the header class, its octets in front of the attribute, and those of the attribute; L{None} for
        a class without one.
    """
    return _CLASSES.get(managementClass)


def _sized(octets: bytes, size: int) -> bytes:
    # Checked here: struct would cut a longer value silently.
    if len(octets) > size:
        raise ValueError(f"{len(octets)} octets are more than {size}")
    return octets.ljust(size, b"\0")
