"""
The messages (IBTA vol. 1 chapter 12), see L{twisted_ib.hca.wire.cm}: those that open and close a connection
(12.6), LAP and APR, which give an open connection an alternate path (12.8), and service id resolution for
datagram services (12.11).
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from typing import ClassVar

from twisted_ib import limits
from twisted_ib.hca.connection.request import (
    ANY_PATH,
    GID_BYTES,
    ConnectReply,
    ConnectRequest,
    PathRecord,
    RejectReason,
)
from twisted_ib.hca.wire.cm.layout import CMMessage, infoAt, lastOctets
from twisted_ib.layouts import Codec, bits, flag, octets, placed, scattered, split, within
from twisted_ib.records import define


class MessageKind(IntEnum):
    """
    The message that an MRA or REJ answers.
    """

    REQ = 0
    REP = 1
    # LAP in an MRA, "no message" in a REJ (Linux cm_msgs.h CM_MSG_RESPONSE_OTHER).
    OTHER = 2


class APRStatus(IntEnum):
    """
    Status of an APR (Linux ib_cm.h enum ib_cm_apr_status).
    """

    OK = 0
    INVALID_COMMUNICATION_ID = 1
    UNSUPPORTED = 2
    REJECTED = 3
    REDIRECT = 4
    IS_CURRENT_PATH = 5
    QPN_MISMATCH = 6
    LID = 7
    GID = 8
    FLOW_LABEL = 9
    TRAFFIC_CLASS = 10
    HOP_LIMIT = 11
    PACKET_RATE = 12
    SERVICE_LEVEL = 13


@cache  # There are 32.
def timeoutSeconds(code: int) -> float:
    """
    Seconds of a 5-bit timeout code.
    """
    # IBTA vol. 1 12.7: 4.096 us * 2**code. This is the approximation of Linux cm.c cm_convert_to_ms in whole
    # milliseconds, so that both ends of a connection with Linux wait equally long.
    return (1 << max(code - 8, 0)) / 1000


#: A path in a REQ. Connections between the same two ports share one, so the latest are cached.
PATH = Codec(
    PathRecord,
    44,
    placed(
        localLID=bits(0, 16),
        remoteLID=bits(2, 16),
        localGID=octets(4, GID_BYTES, exact=True),
        remoteGID=octets(20, GID_BYTES, exact=True),
        flowLabel=bits(36, 20),
        packetRate=bits(39, 6, 5),
        trafficClass=bits(40, 8),
        hopLimit=bits(41, 8),
        serviceLevel=bits(42, 4),
        subnetLocal=flag(42, 3),
        localACKTimeout=bits(43, 5),
    ),
    limits.ADDRESSES_REMEMBERED,
)


@define(slots=False, eq=False, repr=False)
class REQ(ConnectRequest, CMMessage):
    """
    Request for communication, from the active side (IBTA vol. 1 12.6.5).

    @ivar responseTimeout: Remote CM Response Timeout; C{requestRetries}: Max CM Retries.
    @ivar alternatePath: L{None} for 44 zero octets.
    """

    # Linux ibta_vol1_c12.h, table 106. Bits that newer releases assign are reserved here: a message that is
    # parsed packs to the same octets.
    attribute: ClassVar[int] = 0x0010
    privateDataBytes: ClassVar[int] = 92
    own: ClassVar[tuple[str, ...]] = ("localCommunicationID", "localQPN", "privateData")

    localCommunicationID: int = bits(0, 32)
    vendorID: int = bits(5, 24)
    serviceID: int = bits(8, 64)
    localCAGUID: int = bits(16, 64)
    localQKey: int = bits(28, 32)
    localQPN: int = bits(32, 24)
    responderResources: int = bits(35, 8)
    localEECN: int = bits(36, 24)
    initiatorDepth: int = bits(39, 8)
    remoteEECN: int = bits(40, 24)
    responseTimeout: int = bits(43, 5)
    transportServiceType: int = bits(43, 2, 2)
    endToEndFlowControl: bool = flag(43, 0)
    startingPSN: int = bits(44, 24)
    localCMResponseTimeout: int = bits(47, 5)
    retryCount: int = bits(47, 3, 2)
    partitionKey: int = bits(48, 16, default=0xFFFF)
    pathMTU: int = bits(50, 4)
    rdcExists: bool = flag(50, 3)
    rnrRetryCount: int = bits(50, 3, 2)
    requestRetries: int = bits(51, 4)
    sharedReceiveQueue: bool = flag(51, 3)
    extendedTransportType: int = bits(51, 3, 2)
    primaryPath: PathRecord = within(52, PATH, ANY_PATH)
    alternatePath: PathRecord | None = within(96, PATH, None)
    privateData: bytes = lastOctets(privateDataBytes)
    reserved: int = 0
    # Of no message, so behind its fields.
    unsupported: RejectReason | None = None
    communicationID: int = 0


@define(eq=False, repr=False)
class MRA(CMMessage):
    """
    Message receipt acknowledgement: the answer to a REQ, REP or LAP will be late (IBTA vol. 1 12.6.6).

    @ivar messageMRAed: a L{MessageKind}.
    @ivar serviceTimeout: a timeout code.
    """

    # Linux ibta_vol1_c12.h, table 107.
    attribute: ClassVar[int] = 0x0011
    privateDataBytes: ClassVar[int] = 222

    localCommunicationID: int = bits(0, 32)
    remoteCommunicationID: int = bits(4, 32)
    messageMRAed: int = bits(8, 2)
    serviceTimeout: int = bits(9, 5)
    privateData: bytes = lastOctets(privateDataBytes)
    reserved: int = 0


@define(eq=False, repr=False)
class REJ(CMMessage):
    """
    A connection is refused or given up (IBTA vol. 1 12.6.7).

    @ivar localCommunicationID: 0 if the sender never chose one.
    @ivar messageRejected: a L{MessageKind}.
    @ivar reason: a L{RejectReason<twisted_ib.hca.connection.request.RejectReason>}, or an unnamed number.
    @ivar additionalInfo: the whole area of 72 octets, of which C{additionalInfoLength} are valid.
    """

    # Linux ibta_vol1_c12.h, table 108.
    attribute: ClassVar[int] = 0x0012
    privateDataBytes: ClassVar[int] = 148

    localCommunicationID: int = bits(0, 32)
    remoteCommunicationID: int = bits(4, 32)
    messageRejected: int = bits(8, 2)
    additionalInfoLength: int = bits(9, 7)
    reason: int = bits(10, 16)
    additionalInfo: bytes = infoAt(12)
    privateData: bytes = lastOctets(privateDataBytes)
    reserved: int = 0


@define(slots=False, eq=False, repr=False)
class REP(ConnectReply, CMMessage):
    """
    Reply to a REQ, from the passive side (IBTA vol. 1 12.6.8).

    @ivar localEECN: for XRC the queue pair number.
    """

    # Linux ibta_vol1_c12.h, table 110.
    attribute: ClassVar[int] = 0x0013
    privateDataBytes: ClassVar[int] = 196
    own: ClassVar[tuple[str, ...]] = (*REQ.own, "remoteCommunicationID")

    localCommunicationID: int = bits(0, 32)
    remoteCommunicationID: int = bits(4, 32)
    localQKey: int = bits(8, 32)
    localQPN: int = bits(12, 24)
    # ECE: in the spare octets behind QPN, EE context and PSN.
    vendorID: int = split((15, 8), (19, 8), (23, 8))
    localEECN: int = bits(16, 24)
    startingPSN: int = bits(20, 24)
    responderResources: int = bits(24, 8)
    initiatorDepth: int = bits(25, 8)
    targetACKDelay: int = bits(26, 5)
    failoverAccepted: int = bits(26, 2, 2)
    endToEndFlowControl: bool = flag(26, 0)
    rnrRetryCount: int = bits(27, 3)
    sharedReceiveQueue: bool = flag(27, 4)
    localCAGUID: int = bits(28, 64)
    privateData: bytes = lastOctets(privateDataBytes)
    reserved: int = 0


@define(eq=False, repr=False)
class RTU(CMMessage):
    """
    Ready to use: the third message of opening, from the active side (IBTA vol. 1 12.6.9).
    """

    # Linux ibta_vol1_c12.h, table 111.
    attribute: ClassVar[int] = 0x0014
    privateDataBytes: ClassVar[int] = 224

    localCommunicationID: int = bits(0, 32)
    remoteCommunicationID: int = bits(4, 32)
    privateData: bytes = lastOctets(privateDataBytes)


@define(eq=False, repr=False)
class DREQ(CMMessage):
    """
    Disconnect request, from either side (IBTA vol. 1 12.6.10).

    @ivar remoteQPN: the queue pair of the I{receiver} of this message.
    """

    # Linux ibta_vol1_c12.h, table 112.
    attribute: ClassVar[int] = 0x0015
    privateDataBytes: ClassVar[int] = 220

    localCommunicationID: int = bits(0, 32)
    remoteCommunicationID: int = bits(4, 32)
    remoteQPN: int = bits(8, 24)
    privateData: bytes = lastOctets(privateDataBytes)
    reserved: int = 0


class DREP(RTU):
    """
    The answer to a DREQ, laid out as an RTU (IBTA vol. 1 12.6.11).
    """

    __slots__ = ()

    # Linux ibta_vol1_c12.h, table 113.
    attribute: ClassVar[int] = 0x0016


@define(eq=False, repr=False)
class SIDR_REQ(CMMessage):
    """
    Asks for the queue pair of a datagram service.
    """

    # Linux ibta_vol1_c12.h, table 119.
    attribute: ClassVar[int] = 0x0017
    privateDataBytes: ClassVar[int] = 216

    requestID: int = bits(0, 32)
    partitionKey: int = bits(4, 16, default=0xFFFF)
    serviceID: int = bits(8, 64)
    privateData: bytes = lastOctets(privateDataBytes)
    reserved: int = 0


@define(eq=False, repr=False)
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

    requestID: int = bits(0, 32)
    status: int = bits(4, 8)
    additionalInfoLength: int = bits(5, 8)
    vendorID: int = split((6, 16), (11, 8))
    queuePairNumber: int = bits(8, 24)
    serviceID: int = bits(12, 64)
    qKey: int = bits(20, 32)
    additionalInfo: bytes = infoAt(24)
    privateData: bytes = lastOctets(privateDataBytes)


@define(eq=False, repr=False)
class LAP(CMMessage):
    """
    Load alternate path, for an open connection (IBTA vol. 1 12.8).

    @ivar remoteQPN: the queue pair of the I{receiver} of this message.
    """

    # Linux ibta_vol1_c12.h, table 115. The order differs from the path in a REQ: the traffic class follows
    # the flow label at octet 59.
    attribute: ClassVar[int] = 0x0019
    privateDataBytes: ClassVar[int] = 168

    localCommunicationID: int = bits(0, 32)
    remoteCommunicationID: int = bits(4, 32)
    remoteQPN: int = bits(12, 24)
    remoteCMResponseTimeout: int = bits(15, 5)
    path: PathRecord = scattered(
        PathRecord,
        ANY_PATH,
        placed(
            localLID=bits(20, 16),
            remoteLID=bits(22, 16),
            localGID=octets(24, GID_BYTES, exact=True),
            remoteGID=octets(40, GID_BYTES, exact=True),
            flowLabel=bits(56, 20),
            packetRate=bits(61, 6, 5),
            trafficClass=bits(59, 8),
            hopLimit=bits(60, 8),
            serviceLevel=bits(62, 4),
            subnetLocal=flag(62, 3),
            localACKTimeout=bits(63, 5),
        ),
    )
    privateData: bytes = lastOctets(privateDataBytes)
    reserved: int = 0


@define(eq=False, repr=False)
class APR(CMMessage):
    """
    Alternate path response, the answer to a LAP.

    @ivar status: an L{APRStatus}, or an unnamed number.
    @ivar additionalInfo: the whole area of 72 octets.
    """

    # Linux ibta_vol1_c12.h, table 116.
    attribute: ClassVar[int] = 0x001A
    privateDataBytes: ClassVar[int] = 148

    localCommunicationID: int = bits(0, 32)
    remoteCommunicationID: int = bits(4, 32)
    additionalInfoLength: int = bits(8, 8)
    status: int = bits(9, 8)
    additionalInfo: bytes = infoAt(12)
    privateData: bytes = lastOctets(privateDataBytes)
    reserved: int = 0


AnyMessage = REQ | MRA | REJ | REP | RTU | DREQ | DREP | SIDR_REQ | SIDR_REP | LAP | APR
MESSAGES: tuple[type[AnyMessage], ...] = (
    *(REQ, MRA, REJ, REP, RTU, DREQ, DREP),
    *(SIDR_REQ, SIDR_REP, LAP, APR),
)
byAttribute: dict[int, type[AnyMessage]] = {message.attribute: message for message in MESSAGES}
