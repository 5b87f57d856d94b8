"""
Paths in CM messages, and LAP and APR, which give an open connection an alternate path (IBTA vol. 1 12.8).
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from struct import error as structError
from typing import TYPE_CHECKING, ClassVar

import attrs

from twisted_ib import limits
from twisted_ib.hca.connection.path import ANY_PATH, GID_BYTES, PathRecord
from twisted_ib.hca.wire.cm.layout import Buffer, CMMessage, fits, infoFits, reservedMask

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


PATH_BYTES = 44
NO_PATH = bytes(PATH_BYTES)


_PATH: Packed[tuple[int, int, bytes, bytes, int, int, int, int, int]] = Struct(">HH16s16sIBBBB")
# Connections between the same two ports share one path, so the latest are cached, packed and parsed.
_remember = lru_cache(maxsize=limits.ADDRESSES_REMEMBERED)


@_remember
def packPath(path: PathRecord) -> bytes:
    """
    @return: the 44 octets of a L{REQ}.
    @raise ValueError: a field does not fit.
    """
    _check(path)
    try:
        return _PATH.pack(
            path.localLID,
            path.remoteLID,
            path.localGID,
            path.remoteGID,
            path.flowLabel << 12 | path.packetRate,
            path.trafficClass,
            path.hopLimit,
            path.serviceLevel << 4 | path.subnetLocal << 3,
            path.localACKTimeout << 3,
        )
    except structError as error:
        raise ValueError(f"Path: {error}") from None


def _check(path: PathRecord) -> None:
    fits(20, path.flowLabel)
    fits(8, path.trafficClass)
    fits(6, path.packetRate)
    fits(4, path.serviceLevel)
    fits(5, path.localACKTimeout)
    if len(path.localGID) != GID_BYTES or len(path.remoteGID) != GID_BYTES:
        raise ValueError(f"a GID has {GID_BYTES} octets")


@_remember
def parsePath(octets: bytes) -> PathRecord:
    """
    Parse the 44 octets of a L{REQ}.
    """
    llid, rlid, lgid, rgid, flow, traffic, hops, level, timeout = _PATH.unpack(octets)
    return PathRecord(
        llid,
        rlid,
        lgid,
        rgid,
        flow >> 12,
        flow & 0x3F,
        traffic,
        hops,
        level >> 4,
        bool(level & 8),
        timeout >> 3,
    )


@attrs.define
class LAP(CMMessage):
    """
    Load alternate path, for an open connection (IBTA vol. 1 12.8).

    @ivar remoteQPN: the queue pair of the I{receiver} of this message.
    """

    # Linux ibta_vol1_c12.h, table 115. The order differs from the path in a REQ: the traffic class follows
    # the flow label at octet 59.
    attribute: ClassVar[int] = 0x0019
    privateDataBytes: ClassVar[int] = 168
    _layout: ClassVar[
        Packed[tuple[int, int, int, int, int, int, int, bytes, bytes, int, int, int, int, int, bytes]]
    ] = Struct(">IIIIIHH16s16sIBBBB168s")
    _fixedBytes: ClassVar[int] = 64
    _reservedMask: ClassVar[int] = reservedMask(
        *((octet, 0xFF) for octet in (8, 9, 10, 11, 16, 17, 18, 19)),
        *((15, 0x07), (58, 0x0F), (61, 0xC0), (62, 0x07), (63, 0x07)),
        (64, 0),
    )

    localCommunicationID: int = 0
    remoteCommunicationID: int = 0
    remoteQPN: int = 0
    remoteCMResponseTimeout: int = 0
    path: PathRecord = ANY_PATH
    privateData: bytes = b""
    reserved: int = 0

    def pack(self) -> bytes:
        """
        See L{CMMessage.pack}.
        """
        fits(5, self.remoteCMResponseTimeout)
        path = self.path
        _check(path)
        return self.packFields(
            self.privateData,
            self.reserved,
            self.localCommunicationID,
            self.remoteCommunicationID,
            0,
            self.remoteQPN << 8 | self.remoteCMResponseTimeout << 3,
            0,
            path.localLID,
            path.remoteLID,
            path.localGID,
            path.remoteGID,
            path.flowLabel << 12 | path.trafficClass,
            path.hopLimit,
            path.packetRate,
            path.serviceLevel << 4 | path.subnetLocal << 3,
            path.localACKTimeout << 3,
        )

    @classmethod
    def parse(cls, buffer: Buffer, start: int, stop: int) -> LAP:
        """
        See L{CMMessage.parse}.
        """
        reserved, fields = cls.unpackFields(buffer, start, stop)
        local, remote, _, qpn, _, llid, rlid, lgid, rgid, flow = fields[:10]
        hops, rate, level, timeout, private = fields[10:]
        path = PathRecord(
            llid,
            rlid,
            lgid,
            rgid,
            flow >> 12,
            rate & 0x3F,
            flow & 0xFF,
            hops,
            level >> 4,
            bool(level & 8),
            timeout >> 3,
        )
        return cls(local, remote, qpn >> 8, qpn >> 3 & 0x1F, path, private, reserved)


@attrs.define
class APR(CMMessage):
    """
    Alternate path response, the answer to a LAP.

    @ivar status: an L{APRStatus}, or an unnamed number.
    @ivar additionalInfo: the whole area of 72 octets.
    """

    # Linux ibta_vol1_c12.h, table 116.
    attribute: ClassVar[int] = 0x001A
    privateDataBytes: ClassVar[int] = 148
    _layout: ClassVar[Packed[tuple[int, int, int, int, int, bytes, bytes]]] = Struct(">IIBBH72s148s")
    _fixedBytes: ClassVar[int] = 12
    _reservedMask: ClassVar[int] = reservedMask((10, 0xFF), (11, 0xFF), (12, 0))

    localCommunicationID: int = 0
    remoteCommunicationID: int = 0
    additionalInfoLength: int = 0
    status: int = 0
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
            self.additionalInfoLength,
            self.status,
            0,
            self.additionalInfo,
        )

    @classmethod
    def parse(cls, buffer: Buffer, start: int, stop: int) -> APR:
        """
        See L{CMMessage.parse}.
        """
        reserved, fields = cls.unpackFields(buffer, start, stop)
        local, remote, length, status, _, info, private = fields
        return cls(local, remote, length, status, info, private, reserved)
