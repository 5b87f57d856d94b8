"""
Numbers of the communication manager: REJ reasons, statuses, timeout codes.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache


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


@cache  # There are 32.
def timeoutSeconds(code: int) -> float:
    """
    Seconds of a 5-bit timeout code.
    """
    # IBTA vol. 1 12.7: 4.096 us * 2**code. This is the approximation of Linux cm.c cm_convert_to_ms in whole
    # milliseconds, so that both ends of a connection with Linux wait equally long.
    return (1 << max(code - 8, 0)) / 1000
