"""
Requests and their answers, as the users of connections give and get them.

A request that is to be sent belongs to its device from then on, and one that was received to its listener.
Depths are READs and atomics at a time; timeouts are codes, see
L{timeoutSeconds<twisted_ib.hca.base.timers.timeoutSeconds>}.  The fields of each class that come last are for
verbs, or filled in by a path whose transport needs them (L{ConnectRequest.startingPSN} and those after it),
or the communication manager's, whose message is the same object
(L{REQ<twisted_ib.hca.wire.cm.messages.REQ>}): other users leave them alone.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from typing import Any

import attrs

from twisted_ib.layouts import Record, Shown
from twisted_ib.records import define

GID_BYTES = 16
#: Kinds of requests and replies whose common fields are remembered.
ALIKE = 64
ZERO_GID = bytes(GID_BYTES)

# Not frozen: attrs sets the fields of frozen classes by a call each, and every connect makes four objects.
# Messages of the communication manager are subclasses with the same fields: one that is received is the
# request or reply itself, and one that is sent is it under another class.  Without slots, since what differs
# little from one before is made of that one's dictionary.


@attrs.frozen(cache_hash=True, repr=False)
class PathRecord(Shown):
    """
    A path between two ports, as a connect request names it (IBTA vol. 1 12.6.5).

    @ivar localLID: 0xFFFF where LIDs have no meaning (RoCE).
    @ivar localGID: 16 octets, of the request's sender; C{remoteGID} likewise of its receiver.
    @ivar localACKTimeout: a timeout code, see L{timeoutSeconds<twisted_ib.hca.base.timers.timeoutSeconds>}.
    """

    # Linux cm.c cm_format_req writes the permissive LID if the hop limit is over 1, as it is for RoCEv2.
    localLID: int = 0xFFFF
    remoteLID: int = 0xFFFF
    localGID: bytes = ZERO_GID
    remoteGID: bytes = ZERO_GID
    flowLabel: int = 0
    packetRate: int = 0
    trafficClass: int = 0
    hopLimit: int = 0
    serviceLevel: int = 0
    subnetLocal: bool = False
    localACKTimeout: int = 0


#: The path of a request that was given none.
ANY_PATH = PathRecord()


class RejectReason(IntEnum):
    """
    Reason of a REJ (IBTA vol. 1 12.6.7.2).
    """

    NO_QP = 1
    NO_EEC = 2
    NO_RESOURCES = 3
    # The additional information is the sender's CA GUID, by which the receiver finds the connection.
    TIMEOUT = 4
    UNSUPPORTED_REQUEST = 5
    INVALID_COMMUNICATION_ID = 6
    INVALID_COMMUNICATION_INSTANCE = 7
    # Nobody listens on the service id; applications see "connection refused".
    INVALID_SERVICE_ID = 8
    INVALID_TRANSPORT_TYPE = 9
    # The receiver's queue pair is known from another connection: the peer has restarted (Linux cm.c
    # cm_match_req).
    STALE_CONNECTION = 10
    RDC_DOES_NOT_EXIST = 11
    PRIMARY_GID = 12
    PRIMARY_LID = 13
    PRIMARY_SERVICE_LEVEL = 14
    PRIMARY_TRAFFIC_CLASS = 15
    PRIMARY_HOP_LIMIT = 16
    PRIMARY_PACKET_RATE = 17
    ALTERNATE_GID = 18
    ALTERNATE_LID = 19
    ALTERNATE_SERVICE_LEVEL = 20
    ALTERNATE_TRAFFIC_CLASS = 21
    ALTERNATE_HOP_LIMIT = 22
    ALTERNATE_PACKET_RATE = 23
    PORT_AND_CM_REDIRECT = 24
    PORT_REDIRECT = 25
    INVALID_MTU = 26
    INSUFFICIENT_RESPONDER_RESOURCES = 27
    # rdma_reject: the private data is the application's (librdmacm/cma.c, Linux cma.c rdma_reject).
    CONSUMER_DEFINED = 28
    INVALID_RNR_RETRY = 29
    DUPLICATE_LOCAL_COMMUNICATION_ID = 30
    INVALID_CLASS_VERSION = 31
    INVALID_FLOW_LABEL = 32
    INVALID_ALTERNATE_FLOW_LABEL = 33
    VENDOR_OPTION_NOT_SUPPORTED = 35


class SIDRStatus(IntEnum):
    """
    Status of a SIDR_REP (Linux ib_cm.h enum ib_cm_sidr_status).
    """

    VALID = 0
    SERVICE_ID_UNSUPPORTED = 1
    REJECTED = 2
    NO_QP = 3
    REDIRECT = 4
    VERSION_UNSUPPORTED = 5


@define(slots=False, eq=False, repr=False)
class ConnectRequest(Record):
    """
    A request for a reliable connection: C{struct rdma_conn_param} of the active side, and the service.

    @ivar serviceID: 64 bits, the port space above the port (see L{twisted_ib.hca.connection.rdmacm}).
    @ivar privateData: for the listener; a received one may have zeros behind it, where the transport gives
        private data no length (IBTA vol. 1 12.6.5).
    @ivar localQPN: the sender's queue pair.
    @ivar responderResources: the depth that the sender serves.
    @ivar initiatorDepth: the depth that the sender wants to have outstanding.
    @ivar retryCount: of data, 0 to 7.
    @ivar rnrRetryCount: of data that found no receive, 0 to 7; 7 is without limit.
    @ivar responseTimeout: the wait until the request is repeated.
    @ivar requestRetries: how often the request itself is repeated, 0 to 15.
    @ivar startingPSN: the PSN of the first packet of the I{receiver} of this request.
    @ivar pathMTU: a code, see L{MTU_CODES<twisted_ib.hca.base.attributes.MTU_CODES>}.
    @ivar primaryPath: between the two ports; with none the device gives the path that the request takes.
    @ivar unsupported: of a received one: why it cannot be accepted, whatever its user wants.
    @ivar vendorID: whose additions the sender knows: Enhanced Connection Establishment, an OUI or 0; a fabric
        of other vendors' HCAs leaves it out.
    @ivar localEECN: where IBTA has the EE context of reliable datagrams, which nobody has: the UDP source
        port of all packets of the sender's queue pair; 0 if it says none, as Linux.
    @ivar localQKey: where IBTA has the Q_Key of datagrams, which no connection has: the code of a path MTU
        above IBTA's largest; 0 if the sender has none, as Linux.
    @ivar communicationID: of one that goes on asking after the repeats of an earlier one: the
        C{communicationID} of that one's connection; 0 for a new one.
    """

    serviceID: int = 0
    privateData: bytes = b""
    localQPN: int = 0
    responderResources: int = 0
    initiatorDepth: int = 0
    retryCount: int = 0
    rnrRetryCount: int = 0
    responseTimeout: int = 0
    requestRetries: int = 0
    endToEndFlowControl: bool = False
    sharedReceiveQueue: bool = False
    startingPSN: int = 0
    pathMTU: int = 0
    primaryPath: PathRecord = ANY_PATH
    vendorID: int = 0
    localEECN: int = 0
    unsupported: RejectReason | None = None
    communicationID: int = 0
    localCommunicationID: int = 0
    localCAGUID: int = 0
    localQKey: int = 0
    remoteEECN: int = 0
    transportServiceType: int = 0
    localCMResponseTimeout: int = 0
    partitionKey: int = 0xFFFF
    rdcExists: bool = False
    extendedTransportType: int = 0
    alternatePath: PathRecord | None = None
    reserved: int = 0


@define(slots=False, eq=False, repr=False)
class ConnectReply(Record):
    """
    The acceptance of a L{ConnectRequest}; fields of the same name mean the same, of the passive side.

    @ivar targetACKDelay: the passive side's delay of acknowledgements.
    """

    privateData: bytes = b""
    localQPN: int = 0
    responderResources: int = 0
    initiatorDepth: int = 0
    rnrRetryCount: int = 0
    endToEndFlowControl: bool = False
    sharedReceiveQueue: bool = False
    startingPSN: int = 0
    targetACKDelay: int = 0
    vendorID: int = 0
    localEECN: int = 0
    localCommunicationID: int = 0
    remoteCommunicationID: int = 0
    localQKey: int = 0
    failoverAccepted: int = 0
    localCAGUID: int = 0
    reserved: int = 0


@lru_cache(ALIKE)
def _fieldsOf(serviceID: int, rest: tuple[Any, ...]) -> dict[str, Any]:
    return dict(vars(ConnectRequest(serviceID, b"", 0, *rest)))


def requestLike(serviceID: int, privateData: bytes, localQPN: int, rest: tuple[Any, ...]) -> ConnectRequest:
    """
    Make a request that differs little from others.

    @param rest: the fields behind these, in their order.
    """
    # Not by its class: the fields of an object that changes its class afterwards, as this one does, are
    # found slowly.
    request = ConnectRequest.__new__(ConnectRequest)
    request.__dict__ = _fieldsOf(serviceID, rest).copy()
    request.privateData, request.localQPN = privateData, localQPN
    return request


@lru_cache(ALIKE)
def _fieldsOfReply(rest: tuple[Any, ...]) -> dict[str, Any]:
    return dict(vars(ConnectReply(b"", 0, *rest)))


def replyLike(privateData: bytes, localQPN: int, rest: tuple[Any, ...]) -> ConnectReply:
    """
    The same of a reply.
    """
    reply = ConnectReply.__new__(ConnectReply)
    reply.__dict__ = _fieldsOfReply(rest).copy()
    reply.privateData, reply.localQPN = privateData, localQPN
    return reply


@define(eq=False, repr=False)
class Rejection(Record):
    """
    The refusal of a request or of a reply.

    @ivar reason: a L{RejectReason}, or an unnamed number.
    """

    reason: int
    privateData: bytes = b""


@define(eq=False, repr=False)
class LookupRequest(Record):
    """
    Asks for the queue pair of a datagram service (IBTA vol. 1 12.11).

    @ivar responseTimeout: as in L{ConnectRequest}; C{requestRetries} likewise.
    """

    serviceID: int = 0
    privateData: bytes = b""
    responseTimeout: int = 0
    requestRetries: int = 0


@define(eq=False, repr=False)
class LookupReply(Record):
    """
    The answer to a L{LookupRequest}.

    @ivar status: a L{SIDRStatus}, or an unnamed number.
    """

    status: int = SIDRStatus.VALID
    privateData: bytes = b""
    queuePairNumber: int = 0
    qKey: int = 0
