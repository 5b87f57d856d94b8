"""
The messages that open and close a connection (IBTA vol. 1 12.6): see L{twisted_ib.hca.wire.cm}.
"""

from __future__ import annotations

from struct import Struct
from struct import error as structError
from typing import TYPE_CHECKING, ClassVar

import attrs

from twisted_ib.hca.connection.path import ANY_PATH, PathRecord
from twisted_ib.hca.wire.cm.answers import MRA, REJ
from twisted_ib.hca.wire.cm.layout import BODY_BYTES, Buffer, CMMessage, fits, notWhole, reservedMask
from twisted_ib.hca.wire.cm.path import APR, LAP, NO_PATH, packPath, parsePath
from twisted_ib.hca.wire.cm.sidr import SIDR_REP, SIDR_REQ

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


@attrs.define
class REQ(CMMessage):
    """
    Request for communication, from the active side (IBTA vol. 1 12.6.5).

    @ivar startingPSN: the PSN of the first packet of the I{receiver} of this message.
    @ivar responderResources: READs and atomics that the sender serves at a time.
    @ivar initiatorDepth: READs and atomics that the sender wants to have outstanding.
    @ivar alternatePath: L{None} for 44 zero octets.
    """

    # Linux ibta_vol1_c12.h, table 106.
    attribute: ClassVar[int] = 0x0010
    privateDataBytes: ClassVar[int] = 92
    _layout: ClassVar[
        Packed[tuple[int, int, int, int, int, int, int, int, int, int, int, int, int, bytes, bytes, bytes]]
    ] = Struct(">IIQQIIIIIIHBB44s44s92s")
    _fixedBytes: ClassVar[int] = 140
    _reservedMask: ClassVar[int] = reservedMask(
        *((4, 0xFF), (24, 0xFF), (25, 0xFF), (26, 0xFF), (27, 0xFF)),
        *((90, 0x0F), (91, 0xC0), (94, 0x07), (95, 0x07)),
        *((134, 0x0F), (135, 0xC0), (138, 0x07), (139, 0x07)),
        (140, 0),
    )

    localCommunicationID: int = 0
    vendorID: int = 0
    serviceID: int = 0
    localCAGUID: int = 0
    localQKey: int = 0
    localQPN: int = 0
    responderResources: int = 0
    localEECN: int = 0
    initiatorDepth: int = 0
    remoteEECN: int = 0
    remoteCMResponseTimeout: int = 0
    transportServiceType: int = 0
    endToEndFlowControl: bool = False
    startingPSN: int = 0
    localCMResponseTimeout: int = 0
    retryCount: int = 0
    partitionKey: int = 0xFFFF
    pathMTU: int = 0
    rdcExists: bool = False
    rnrRetryCount: int = 0
    maxCMRetries: int = 0
    sharedReceiveQueue: bool = False
    extendedTransportType: int = 0
    primaryPath: PathRecord = ANY_PATH
    alternatePath: PathRecord | None = None
    privateData: bytes = b""
    reserved: int = 0

    def pack(self) -> bytes:
        """
        See L{CMMessage.pack}.
        """
        vendor, qpn, psn, remoteTimeout = (
            self.vendorID,
            self.localQPN,
            self.startingPSN,
            self.remoteCMResponseTimeout,
        )
        resources, depth, timeout, retries = (
            self.responderResources,
            self.initiatorDepth,
            self.localCMResponseTimeout,
            self.maxCMRetries,
        )
        # Fields of equal width are tested together, for speed; _check finds and names the one that does not
        # fit.
        if (
            (vendor | qpn | self.localEECN | self.remoteEECN | psn) >> 24
            or (resources | depth) >> 8
            or (remoteTimeout | timeout) >> 5
            or (self.pathMTU | retries) >> 4
            or (self.retryCount | self.rnrRetryCount | self.extendedTransportType) >> 3
            or self.transportServiceType >> 2
        ):
            self._check()
        primary, alternate, private = self.primaryPath, self.alternatePath, self.privateData
        if len(private) > 92:
            raise ValueError("more than 92 octets of private data")
        try:
            body = _packREQ(
                self.localCommunicationID,
                vendor,
                self.serviceID,
                self.localCAGUID,
                0,
                self.localQKey,
                qpn << 8 | resources,
                self.localEECN << 8 | depth,
                self.remoteEECN << 8
                | remoteTimeout << 3
                | self.transportServiceType << 1
                | self.endToEndFlowControl,
                psn << 8 | timeout << 3 | self.retryCount,
                self.partitionKey,
                self.pathMTU << 4 | self.rdcExists << 3 | self.rnrRetryCount,
                retries << 4 | self.sharedReceiveQueue << 3 | self.extendedTransportType,
                _ANY_PATH if primary is ANY_PATH else packPath(primary),
                NO_PATH if alternate is None else packPath(alternate),
                private,
            )
        except structError as error:
            raise ValueError(f"REQ: {error}") from None
        return self.withReserved(body, self.reserved) if self.reserved else body

    def _check(self) -> None:
        fits(24, self.vendorID, self.localQPN, self.localEECN, self.remoteEECN, self.startingPSN)
        fits(8, self.responderResources, self.initiatorDepth)
        fits(5, self.remoteCMResponseTimeout, self.localCMResponseTimeout)
        fits(4, self.pathMTU, self.maxCMRetries)
        fits(3, self.retryCount, self.rnrRetryCount, self.extendedTransportType)
        fits(2, self.transportServiceType)

    @classmethod
    def parse(cls, buffer: Buffer, start: int, stop: int) -> REQ:
        """
        See L{CMMessage.parse}.
        """
        if stop - start != BODY_BYTES or start < 0 or stop > len(buffer):
            raise notWhole(start, stop)
        # fmt: off
        (
            local, vendor, service, guid, _, qkey, qpn, eecn, remoteEECN, psn, pkey, mtu, retries,
            primary, alternate, private,
        ) = _unpackREQ(buffer, start)
        # fmt: on
        # Kept even where newer releases assign a bit: a message that is parsed must pack to the same octets.
        reserved = int.from_bytes(buffer[start : start + 140], "big") & _REQ_RESERVED
        return cls(
            local,
            vendor & 0xFFFFFF,
            service,
            guid,
            qkey,
            qpn >> 8,
            qpn & 0xFF,
            eecn >> 8,
            eecn & 0xFF,
            remoteEECN >> 8,
            remoteEECN >> 3 & 0x1F,
            remoteEECN >> 1 & 3,
            bool(remoteEECN & 1),
            psn >> 8,
            psn >> 3 & 0x1F,
            psn & 7,
            pkey,
            mtu >> 4,
            bool(mtu & 8),
            mtu & 7,
            retries >> 4,
            bool(retries & 8),
            retries & 7,
            parsePath(primary),
            None if alternate == NO_PATH else parsePath(alternate),
            private,
            reserved,
        )


_ANY_PATH = packPath(ANY_PATH)
_packREQ = REQ._layout.pack
_unpackREQ = REQ._layout.unpack_from
_REQ_RESERVED = REQ._reservedMask


@attrs.define
class REP(CMMessage):
    """
    Reply to a REQ, from the passive side (IBTA vol. 1 12.6.8).

    @ivar startingPSN: the PSN of the first packet of the I{receiver} of this message.
    @ivar localEECN: for XRC the queue pair number.
    """

    # Linux ibta_vol1_c12.h, table 110.
    attribute: ClassVar[int] = 0x0013
    privateDataBytes: ClassVar[int] = 196
    _layout: ClassVar[Packed[tuple[int, int, int, int, int, int, int, int, int, int, int, bytes]]] = Struct(
        ">IIIIIIBBBBQ196s"
    )
    _fixedBytes: ClassVar[int] = 28
    _reservedMask: ClassVar[int] = reservedMask((27, 0x0F), (28, 0))

    localCommunicationID: int = 0
    remoteCommunicationID: int = 0
    localQKey: int = 0
    localQPN: int = 0
    vendorID: int = 0
    localEECN: int = 0
    startingPSN: int = 0
    responderResources: int = 0
    initiatorDepth: int = 0
    targetACKDelay: int = 0
    failoverAccepted: int = 0
    endToEndFlowControl: bool = False
    rnrRetryCount: int = 0
    sharedReceiveQueue: bool = False
    localCAGUID: int = 0
    privateData: bytes = b""
    reserved: int = 0

    def pack(self) -> bytes:
        """
        See L{CMMessage.pack}.
        """
        qpn, vendor, eecn, psn = self.localQPN, self.vendorID, self.localEECN, self.startingPSN
        delay, rnr, failover = self.targetACKDelay, self.rnrRetryCount, self.failoverAccepted
        if (qpn | vendor | eecn | psn) >> 24 or delay >> 5 or rnr >> 3 or failover >> 2:
            self._check()
        private = self.privateData
        if len(private) > 196:
            raise ValueError("more than 196 octets of private data")
        try:
            body = _packREP(
                self.localCommunicationID,
                self.remoteCommunicationID,
                self.localQKey,
                # The vendor id (ECE) is split into the spare octets behind QPN, EE context and PSN.
                qpn << 8 | vendor >> 16,
                eecn << 8 | vendor >> 8 & 0xFF,
                psn << 8 | vendor & 0xFF,
                self.responderResources,
                self.initiatorDepth,
                delay << 3 | failover << 1 | self.endToEndFlowControl,
                rnr << 5 | self.sharedReceiveQueue << 4,
                self.localCAGUID,
                private,
            )
        except structError as error:
            raise ValueError(f"REP: {error}") from None
        return self.withReserved(body, self.reserved) if self.reserved else body

    def _check(self) -> None:
        fits(24, self.localQPN, self.vendorID, self.localEECN, self.startingPSN)
        fits(5, self.targetACKDelay)
        fits(3, self.rnrRetryCount)
        fits(2, self.failoverAccepted)

    @classmethod
    def parse(cls, buffer: Buffer, start: int, stop: int) -> REP:
        """
        See L{CMMessage.parse}.
        """
        if stop - start != BODY_BYTES or start < 0 or stop > len(buffer):
            raise notWhole(start, stop)
        local, remote, qkey, qpn, eecn, psn, resources, depth, delay, rnr, guid, private = _unpackREP(
            buffer, start
        )
        return cls(
            local,
            remote,
            qkey,
            qpn >> 8,
            (qpn & 0xFF) << 16 | (eecn & 0xFF) << 8 | psn & 0xFF,
            eecn >> 8,
            psn >> 8,
            resources,
            depth,
            delay >> 3,
            delay >> 1 & 3,
            bool(delay & 1),
            rnr >> 5,
            bool(rnr & 0x10),
            guid,
            private,
            rnr & 0x0F,
        )


_packREP = REP._layout.pack
_unpackREP = REP._layout.unpack_from


@attrs.define
class RTU(CMMessage):
    """
    Ready to use: the third message of opening, from the active side (IBTA vol. 1 12.6.9).
    """

    # Linux ibta_vol1_c12.h, table 111.
    attribute: ClassVar[int] = 0x0014
    privateDataBytes: ClassVar[int] = 224
    _layout: ClassVar[Packed[tuple[int, int, bytes]]] = Struct(">II224s")

    localCommunicationID: int = 0
    remoteCommunicationID: int = 0
    privateData: bytes = b""

    def pack(self) -> bytes:
        """
        See L{CMMessage.pack}.
        """
        private = self.privateData
        if len(private) > 224:
            raise ValueError("more than 224 octets of private data")
        try:
            return _packRTU(self.localCommunicationID, self.remoteCommunicationID, private)
        except structError as error:
            raise ValueError(f"{type(self).__name__}: {error}") from None

    @classmethod
    def parse(cls, buffer: Buffer, start: int, stop: int) -> RTU:
        """
        See L{CMMessage.parse}.
        """
        if stop - start != BODY_BYTES or start < 0 or stop > len(buffer):
            raise notWhole(start, stop)
        local, remote, private = _unpackRTU(buffer, start)
        return cls(local, remote, private)


_packRTU = RTU._layout.pack
_unpackRTU = RTU._layout.unpack_from


@attrs.define
class DREQ(CMMessage):
    """
    Disconnect request, from either side (IBTA vol. 1 12.6.10).

    @ivar remoteQPN: the queue pair of the I{receiver} of this message.
    """

    # Linux ibta_vol1_c12.h, table 112.
    attribute: ClassVar[int] = 0x0015
    privateDataBytes: ClassVar[int] = 220
    _layout: ClassVar[Packed[tuple[int, int, int, bytes]]] = Struct(">III220s")
    _fixedBytes: ClassVar[int] = 12
    _reservedMask: ClassVar[int] = reservedMask((11, 0xFF), (12, 0))

    localCommunicationID: int = 0
    remoteCommunicationID: int = 0
    remoteQPN: int = 0
    privateData: bytes = b""
    reserved: int = 0

    def pack(self) -> bytes:
        """
        See L{CMMessage.pack}.
        """
        private = self.privateData
        if len(private) > 220:
            raise ValueError("more than 220 octets of private data")
        try:
            body = _packDREQ(
                self.localCommunicationID, self.remoteCommunicationID, self.remoteQPN << 8, private
            )
        except structError as error:
            raise ValueError(f"DREQ: {error}") from None
        return self.withReserved(body, self.reserved) if self.reserved else body

    @classmethod
    def parse(cls, buffer: Buffer, start: int, stop: int) -> DREQ:
        """
        See L{CMMessage.parse}.
        """
        if stop - start != BODY_BYTES or start < 0 or stop > len(buffer):
            raise notWhole(start, stop)
        local, remote, qpn, private = _unpackDREQ(buffer, start)
        return cls(local, remote, qpn >> 8, private, qpn & 0xFF)


_packDREQ = DREQ._layout.pack
_unpackDREQ = DREQ._layout.unpack_from


@attrs.define
class DREP(RTU):
    """
    The answer to a DREQ, laid out as an RTU (IBTA vol. 1 12.6.11).
    """

    # Linux ibta_vol1_c12.h, table 113.
    attribute: ClassVar[int] = 0x0016

    @classmethod
    def parse(cls, buffer: Buffer, start: int, stop: int) -> DREP:
        """
        See L{CMMessage.parse}.
        """
        if stop - start != BODY_BYTES or start < 0 or stop > len(buffer):
            raise notWhole(start, stop)
        local, remote, private = _unpackRTU(buffer, start)
        return cls(local, remote, private)


AnyMessage = REQ | MRA | REJ | REP | RTU | DREQ | DREP | SIDR_REQ | SIDR_REP | LAP | APR
MESSAGES: tuple[type[AnyMessage], ...] = (
    *(REQ, MRA, REJ, REP, RTU, DREQ, DREP),
    *(SIDR_REQ, SIDR_REP, LAP, APR),
)
byAttribute: dict[int, type[AnyMessage]] = {message.attribute: message for message in MESSAGES}
