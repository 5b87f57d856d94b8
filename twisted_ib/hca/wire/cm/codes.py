"""
Numbers of the communication manager: statuses, timeout codes.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache


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
