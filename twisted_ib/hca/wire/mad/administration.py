"""
Subnet administration, class 0x03: its version, its own methods, and the statuses of its responses (IBTA
vol. 1 15.2, 15.4).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from twisted_ib.hca.wire.mad.mad import (
    BAD_VERSION,
    INVALID_ATTRIBUTE_VALUE,
    REDIRECTED,
    UNSUPPORTED_METHOD,
    UNSUPPORTED_METHOD_ATTRIBUTE,
)

#: Class version (Linux ib_mad.h IB_SA_CLASS_VERSION).
SA_VERSION: Final = 2
# Methods besides those of all classes (IBTA vol. 1 15.2.2); that of a response has the response bit.
GET_TABLE: Final = 0x12
GET_TRACE_TABLE: Final = 0x13
GET_MULTI: Final = 0x14
DELETE: Final = 0x15

#: The status of a response, of any class: the request was dropped, and may be repeated (IBTA vol. 1 13.4.7).
BUSY: Final = 0x01


class SAStatus(IntEnum):
    """
    The statuses of a response of subnet administration (IBTA vol. 1 15.2.3, Linux ib_sa.h
    IB_SA_RESP_STATUS_*), and those of all classes (IBTA vol. 1 13.4.7).
    """

    SUCCESS = 0x0000
    BUSY = BUSY
    REDIRECTED = REDIRECTED
    BAD_VERSION = BAD_VERSION
    UNSUPPORTED_METHOD = UNSUPPORTED_METHOD
    UNSUPPORTED_METHOD_ATTRIBUTE = UNSUPPORTED_METHOD_ATTRIBUTE
    INVALID_ATTRIBUTE_VALUE = INVALID_ATTRIBUTE_VALUE
    NO_RESOURCES = 0x0100
    REQUEST_INVALID = 0x0200
    NO_RECORDS = 0x0300
    TOO_MANY_RECORDS = 0x0400
    INVALID_GID = 0x0500
    INSUFFICIENT_COMPONENTS = 0x0600
    REQUEST_DENIED = 0x0700
    PRIORITY_SUGGESTED = 0x0800


def statusName(status: int) -> str:
    """
    @return: the name of a response's status; its number if it has none.
    """
    try:
        return SAStatus(status).name
    except ValueError:
        return f"{status:#06x}"
