"""
Numbers of the communication manager: reasons, statuses, timeout codes.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache


class RejectReason(IntEnum):
    """
    Why a REJ was sent (IBTA vol. 1 12.6.7.2).
    """

    NO_QP = 1
    NO_EEC = 2
    NO_RESOURCES = 3
    TIMEOUT = 4
    UNSUPPORTED_REQUEST = 5
    INVALID_COMMUNICATION_ID = 6
    INVALID_COMMUNICATION_INSTANCE = 7
    INVALID_SERVICE_ID = 8
    INVALID_TRANSPORT_TYPE = 9
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
    CONSUMER_DEFINED = 28
    INVALID_RNR_RETRY = 29
    DUPLICATE_LOCAL_COMMUNICATION_ID = 30
    INVALID_CLASS_VERSION = 31
    INVALID_FLOW_LABEL = 32
    INVALID_ALTERNATE_FLOW_LABEL = 33
    VENDOR_OPTION_NOT_SUPPORTED = 35


class MessageKind(IntEnum):
    """
    The message that an MRA or a REJ is about.  2 is LAP in an MRA and "no
    message" in a REJ.
    """

    REQ = 0
    REP = 1
    OTHER = 2


class APRStatus(IntEnum):
    """
    The answer to a LAP.
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
    The answer to a SIDR_REQ.
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
    What a 5-bit timeout code means.

    The standard says C{4.096 us * 2**code}; this is Linux's approximation in
    whole milliseconds (C{cm_convert_to_ms}), so that both ends of a connection
    with Linux wait equally long.
    """
    return (1 << max(code - 8, 0)) / 1000
