"""
What the classes of management have between the common header and the attribute (IBTA vol. 1
13.4, 13.6, 14.2, 15.2, 16).

Each is a value that keeps all of its octets, reserved ones too.  L{classHeader} says which one a
class has; one that has none here, or is not known, has all 232 octets for its attribute.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

# Management classes
SUBNET: Final = 0x01
SUBNET_DIRECTED: Final = 0x81
SUBNET_ADMINISTRATION: Final = 0x03
PERFORMANCE: Final = 0x04
BASEBOARD: Final = 0x05
DEVICE_MANAGEMENT: Final = 0x06
COMMUNICATION: Final = 0x07
SNMP: Final = 0x08
DEVICE_ADMINISTRATION: Final = 0x10
BOOT_INFORMATION: Final = 0x12
CONGESTION_CONTROL: Final = 0x21
#: Classes of vendors: without and with an organization's number.
VENDOR_CLASSES: Final = range(0x09, 0x10)
ORGANIZATION_CLASSES: Final = range(0x30, 0x50)

#: Version, type, response time and flags, status, segment number, length or window.
_TRANSFER: Final = Struct(">BBBBII")


class TransferHeader(NamedTuple):
    """
    RMPP: the header of transfers that take several MADs (IBTA vol. 1 13.6.2.1).

    @ivar version: 1, or 0 without such a transfer.
    @ivar type: 1 data, 2 ACK, 3 STOP, 4 ABORT.
    @ivar responseTime: a code of 5 bits.
    @ivar flags: active 1, first 2, last 4.
    @ivar status: why a transfer stops.
    @ivar segment: the number of a data segment, or the last one that came in order.
    @ivar length: bytes of data, or the end of the window.
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
    def parse(cls, octets: bytes) -> TransferHeader:
        """
        @param octets: what begins with it.
        """
        version, kind, third, status, segment, length = _TRANSFER.unpack_from(octets)
        return cls(version, kind, third >> 3, third & 7, status, segment, length)


class SubnetHeader(NamedTuple):
    """
    What subnet management by LID has around its attribute.

    @ivar key: the M_Key.
    @ivar reserved: 32 octets in front of the attribute.
    @ivar behind: 128 reserved octets behind it.
    """

    key: int = 0
    reserved: bytes = bytes(32)
    behind: bytes = bytes(128)

    def around(self) -> tuple[bytes, bytes]:
        """
        @return: what is in front of the attribute, and what is behind it.
        """
        return _SUBNET.pack(self.key, _sized(self.reserved, 32)), _sized(self.behind, 128)

    @classmethod
    def parse(cls, before: bytes, behind: bytes) -> SubnetHeader:
        """
        @param before: what is in front of the attribute.
        @param behind: what is behind it.
        """
        key, reserved = _SUBNET.unpack(before)
        return cls(key, reserved, behind)


class DirectedHeader(NamedTuple):
    """
    What subnet management by a directed route has around its attribute.

    @ivar key: the M_Key.
    @ivar sourceLID: where the route begins, C{0xFFFF} at the sender.
    @ivar destinationLID: where LIDs take over from the route, C{0xFFFF} nowhere.
    @ivar reserved: 28 octets.
    @ivar initialPath: 64 octets, the port to leave by at each hop from the first on.
    @ivar returnPath: 64 octets, the ports by which it came.
    """

    key: int = 0
    sourceLID: int = 0xFFFF
    destinationLID: int = 0xFFFF
    reserved: bytes = bytes(28)
    initialPath: bytes = bytes(64)
    returnPath: bytes = bytes(64)

    def around(self) -> tuple[bytes, bytes]:
        """
        @return: what is in front of the attribute, and what is behind it.
        """
        reserved = _sized(self.reserved, 28)
        before = _DIRECTED.pack(self.key, self.sourceLID, self.destinationLID, reserved)
        return before, _sized(self.initialPath, 64) + _sized(self.returnPath, 64)

    @classmethod
    def parse(cls, before: bytes, behind: bytes) -> DirectedHeader:
        """
        @param before: what is in front of the attribute.
        @param behind: what is behind it.
        """
        key, source, destination, reserved = _DIRECTED.unpack(before)
        return cls(key, source, destination, reserved, behind[:64], behind[64:])


class AdministrationHeader(NamedTuple):
    """
    What subnet administration has in front of its attribute.

    @ivar transfer: its RMPP header.
    @ivar key: the SM_Key.
    @ivar attributeOffset: from one record of a table to the next, in 8 octets.
    @ivar reserved: 16 bits.
    @ivar componentMask: which components of the record are asked for.
    """

    transfer: TransferHeader = TransferHeader()
    key: int = 0
    attributeOffset: int = 0
    reserved: int = 0
    componentMask: int = 0

    def around(self) -> tuple[bytes, bytes]:
        """
        @return: what is in front of the attribute, and nothing.
        """
        rest = _ADMINISTRATION.pack(self.key, self.attributeOffset, self.reserved, self.componentMask)
        return self.transfer.pack() + rest, b""

    @classmethod
    def parse(cls, before: bytes, behind: bytes) -> AdministrationHeader:
        """
        @param before: what is in front of the attribute.
        @param behind: nothing.
        """
        return cls(TransferHeader.parse(before), *_ADMINISTRATION.unpack_from(before, _TRANSFER.size))


class OrganizationHeader(NamedTuple):
    """
    What a vendor's class with an organization's number has in front of its attribute.

    @ivar transfer: its RMPP header.
    @ivar organization: the OUI, 24 bits.
    @ivar reserved: the octet in front of the OUI.
    """

    transfer: TransferHeader = TransferHeader()
    organization: int = 0
    reserved: int = 0

    def around(self) -> tuple[bytes, bytes]:
        """
        @return: what is in front of the attribute, and nothing.
        """
        if self.organization >> 24:
            raise ValueError("an organization's number has 24 bits")
        return self.transfer.pack() + (self.reserved << 24 | self.organization).to_bytes(4, "big"), b""

    @classmethod
    def parse(cls, before: bytes, behind: bytes) -> OrganizationHeader:
        """
        @param before: what is in front of the attribute.
        @param behind: nothing.
        """
        word = int.from_bytes(before[_TRANSFER.size :], "big")
        return cls(TransferHeader.parse(before), word & 0xFFFFFF, word >> 24)


class SegmentedHeader(NamedTuple):
    """
    What other classes with RMPP have in front of their attributes.

    @ivar transfer: the RMPP header.
    """

    transfer: TransferHeader = TransferHeader()

    def around(self) -> tuple[bytes, bytes]:
        """
        @return: what is in front of the attribute, and nothing.
        """
        return self.transfer.pack(), b""

    @classmethod
    def parse(cls, before: bytes, behind: bytes) -> SegmentedHeader:
        """
        @param before: what is in front of the attribute.
        @param behind: nothing.
        """
        return cls(TransferHeader.parse(before))


class KeyedHeader(NamedTuple):
    """
    What the other classes of general services have in front of their attributes.

    @ivar key: the B_Key or CC_Key of a class that has one, else reserved.
    @ivar reserved: 32 octets.
    """

    key: int = 0
    reserved: bytes = bytes(32)

    def around(self) -> tuple[bytes, bytes]:
        """
        @return: what is in front of the attribute, and nothing.
        """
        return _KEYED.pack(self.key, _sized(self.reserved, 32)), b""

    @classmethod
    def parse(cls, before: bytes, behind: bytes) -> KeyedHeader:
        """
        @param before: what is in front of the attribute.
        @param behind: nothing.
        """
        return cls(*_KEYED.unpack(before))


_SUBNET: Final = Struct(">Q32s")
_DIRECTED: Final = Struct(">QHH28s")
_ADMINISTRATION: Final = Struct(">QHHQ")
_KEYED: Final = Struct(">Q32s")

ClassHeader = (
    SubnetHeader | DirectedHeader | AdministrationHeader | OrganizationHeader | SegmentedHeader | KeyedHeader
)

#: Which header, octets in front of the attribute (from the end of the common header), and octets
#: of the attribute.
_Row = tuple["type[ClassHeader]", int, int]
_ORGANIZATION: Final[_Row] = (OrganizationHeader, 16, 216)
_CLASSES: Final[dict[int, _Row]] = {
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
    What a class has in front of its attribute.

    @return: the kind of header, its octets in front of the attribute, and those of the attribute;
        L{None} for a class without one.
    """
    return _CLASSES.get(managementClass)


def _sized(octets: bytes, size: int) -> bytes:
    """
    @return: the octets, zeros behind them.
    @raise ValueError: there are too many.
    """
    if len(octets) > size:
        raise ValueError(f"{len(octets)} octets are more than {size}")
    return octets.ljust(size, b"\0")
