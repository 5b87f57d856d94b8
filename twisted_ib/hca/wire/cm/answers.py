"""
MRA and REJ, which may answer a REQ, REP or LAP.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, ClassVar

import attrs

from twisted_ib.hca.wire.cm.layout import Buffer, CMMessage, infoFits, reservedMask

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


@attrs.define
class MRA(CMMessage):
    """
    Message receipt acknowledgement: the answer to a REQ, REP or LAP will be late (IBTA vol. 1 12.6.6).

    @ivar messageMRAed: a L{MessageKind<twisted_ib.hca.wire.cm.codes.MessageKind>}.
    @ivar serviceTimeout: a timeout code.
    """

    # Linux ibta_vol1_c12.h, table 107.
    attribute: ClassVar[int] = 0x0011
    privateDataBytes: ClassVar[int] = 222
    _layout: ClassVar[Packed[tuple[int, int, int, int, bytes]]] = Struct(">IIBB222s")
    _fixedBytes: ClassVar[int] = 10
    _reservedMask: ClassVar[int] = reservedMask((8, 0x3F), (9, 0x07), (10, 0))

    localCommunicationID: int = 0
    remoteCommunicationID: int = 0
    messageMRAed: int = 0
    serviceTimeout: int = 0
    privateData: bytes = b""
    reserved: int = 0

    def pack(self) -> bytes:
        """
        See L{CMMessage.pack}.
        """
        return self.packFields(
            self.privateData,
            self.reserved,
            self.localCommunicationID,
            self.remoteCommunicationID,
            self.messageMRAed << 6,
            self.serviceTimeout << 3,
        )

    @classmethod
    def parse(cls, buffer: Buffer, start: int, stop: int) -> MRA:
        """
        See L{CMMessage.parse}.
        """
        reserved, (local, remote, kind, timeout, private) = cls.unpackFields(buffer, start, stop)
        return cls(local, remote, kind >> 6, timeout >> 3, private, reserved)


@attrs.define
class REJ(CMMessage):
    """
    A connection is refused or given up (IBTA vol. 1 12.6.7).

    @ivar localCommunicationID: 0 if the sender never chose one.
    @ivar messageRejected: a L{MessageKind<twisted_ib.hca.wire.cm.codes.MessageKind>}.
    @ivar reason: a L{RejectReason<twisted_ib.hca.connection.codes.RejectReason>}, or an unnamed number.
    @ivar additionalInfo: the whole area of 72 octets, of which C{additionalInfoLength} are valid.
    """

    # Linux ibta_vol1_c12.h, table 108.
    attribute: ClassVar[int] = 0x0012
    privateDataBytes: ClassVar[int] = 148
    _layout: ClassVar[Packed[tuple[int, int, int, int, int, bytes, bytes]]] = Struct(">IIBBH72s148s")
    _fixedBytes: ClassVar[int] = 10
    _reservedMask: ClassVar[int] = reservedMask((8, 0x3F), (9, 0x01), (10, 0))

    localCommunicationID: int = 0
    remoteCommunicationID: int = 0
    messageRejected: int = 0
    additionalInfoLength: int = 0
    reason: int = 0
    additionalInfo: bytes = b""
    privateData: bytes = b""
    reserved: int = 0

    def pack(self) -> bytes:
        """
        See L{CMMessage.pack}.
        """
        infoFits(self.additionalInfo)
        return self.packFields(
            self.privateData,
            self.reserved,
            self.localCommunicationID,
            self.remoteCommunicationID,
            self.messageRejected << 6,
            self.additionalInfoLength << 1,
            self.reason,
            self.additionalInfo,
        )

    @classmethod
    def parse(cls, buffer: Buffer, start: int, stop: int) -> REJ:
        """
        See L{CMMessage.parse}.
        """
        reserved, fields = cls.unpackFields(buffer, start, stop)
        local, remote, kind, length, reason, info, private = fields
        return cls(local, remote, kind >> 6, length >> 1, reason, info, private, reserved)
