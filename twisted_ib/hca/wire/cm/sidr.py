"""
SIDR_REQ and SIDR_REP: service id resolution for datagram services (IBTA vol. 1 12.11).
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, ClassVar

import attrs

from twisted_ib.hca.wire.cm.layout import Buffer, CMMessage, fits, infoFits, reservedMask

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


@attrs.define
class SIDR_REQ(CMMessage):
    """
    Asks for the queue pair of a datagram service.
    """

    # Linux ibta_vol1_c12.h, table 119.
    attribute: ClassVar[int] = 0x0017
    privateDataBytes: ClassVar[int] = 216
    _layout: ClassVar[Packed[tuple[int, int, int, int, bytes]]] = Struct(">IHHQ216s")
    _fixedBytes: ClassVar[int] = 8
    _reservedMask: ClassVar[int] = reservedMask((6, 0xFF), (7, 0xFF), (8, 0))

    requestID: int = 0
    partitionKey: int = 0xFFFF
    serviceID: int = 0
    privateData: bytes = b""
    reserved: int = 0

    def pack(self) -> bytes:
        """
        See L{CMMessage.pack}.
        """
        return self.packFields(
            self.privateData, self.reserved, self.requestID, self.partitionKey, 0, self.serviceID
        )

    @classmethod
    def parse(cls, buffer: Buffer, start: int, stop: int) -> SIDR_REQ:
        """
        See L{CMMessage.parse}.
        """
        reserved, (request, pkey, _, service, private) = cls.unpackFields(buffer, start, stop)
        return cls(request, pkey, service, private, reserved)


@attrs.define
class SIDR_REP(CMMessage):
    """
    The answer to a SIDR_REQ.

    @ivar status: a L{SIDRStatus}, or an unnamed number.
    @ivar additionalInfo: the whole area of 72 octets.
    """

    # Linux ibta_vol1_c12.h, table 120; the vendor id is split around the QPN (ECE), which that header leaves
    # out.
    attribute: ClassVar[int] = 0x0018
    privateDataBytes: ClassVar[int] = 136
    _layout: ClassVar[Packed[tuple[int, int, int, int, int, int, int, bytes, bytes]]] = Struct(
        ">IBBHIQI72s136s"
    )

    requestID: int = 0
    status: int = 0
    additionalInfoLength: int = 0
    vendorID: int = 0
    queuePairNumber: int = 0
    serviceID: int = 0
    qKey: int = 0
    additionalInfo: bytes = b""
    privateData: bytes = b""

    def pack(self) -> bytes:
        """
        See L{CMMessage.pack}.
        """
        fits(24, self.vendorID, self.queuePairNumber)
        infoFits(self.additionalInfo)
        return self.packFields(
            self.privateData,
            0,
            self.requestID,
            self.status,
            self.additionalInfoLength,
            self.vendorID >> 8,
            self.queuePairNumber << 8 | self.vendorID & 0xFF,
            self.serviceID,
            self.qKey,
            self.additionalInfo,
        )

    @classmethod
    def parse(cls, buffer: Buffer, start: int, stop: int) -> SIDR_REP:
        """
        See L{CMMessage.parse}.
        """
        fields = cls.unpackFields(buffer, start, stop)[1]
        request, status, length, vendor, qpn, service, qkey, info, private = fields
        vendor = vendor << 8 | qpn & 0xFF
        return cls(request, status, length, vendor, qpn >> 8, service, qkey, info, private)
