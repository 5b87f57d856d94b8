"""
The MADs of an RMPP transfer: DATA, ACK, STOP and ABORT (IBTA vol. 1 13.6.2).

Each DATA segment repeats the headers of the first, the class header included, and has a part of the data
behind them.  Lengths count from the end of the RMPP header, so with the class header of each segment.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from twisted_ib.hca.wire.headers import MAD_BYTES
from twisted_ib.hca.wire.mad.classes import (
    ABORT,
    ACK,
    ACTIVE,
    DATA,
    RMPP,
    RMPP_VERSION,
    STOP,
    TRANSFER_HEADERS,
    RMPPHeader,
    classHeader,
)
from twisted_ib.hca.wire.mad.mad import HEADER_BYTES, METHOD_AT, RESPONSE

#: The response time code that says nothing (Linux ib_mad.h IB_MGMT_RMPP_NO_RESPTIME).
NO_RESPONSE_TIME: Final = 0x1F
#: The RMPP header of a MAD whose data is to be sent as a transfer, however long it is.
TABLE: Final = RMPPHeader(RMPP_VERSION, DATA, flags=ACTIVE)

#: Octets behind the RMPP header: what lengths count.
SEGMENT_BYTES: Final = 220
#: Octets in front of that.
BODY_AT: Final = MAD_BYTES - SEGMENT_BYTES

#: A transfer without progress ends after this time (Linux mad_rmpp.c start_rmpp), and any at this age: its
#: peer may be slow on purpose.
RMPP_IDLE_SECONDS = 40.0
RMPP_SECONDS = 600.0


class TransferStatus(IntEnum):
    """
    The end of a transfer (IBTA vol. 1 13.6.2.4, Linux ib_mad.h IB_MGMT_RMPP_STATUS_*).
    """

    SUCCESS = 0
    #: Of a STOP.  All others are of ABORTs.
    RESOURCES_EXHAUSTED = 1
    TIME_TOO_LONG = 118
    #: LAST, and a payload length that does not fit it.
    INCONSISTENT_LAST = 119
    #: FIRST in another segment than 1, or segment 1 without it.
    INCONSISTENT_FIRST = 120
    BAD_TYPE = 121
    #: An ACK's window ends before the segment that it acknowledges.
    WINDOW_TOO_SMALL = 122
    #: An ACK of a segment that was not sent.
    SEGMENT_TOO_BIG = 123
    ILLEGAL_STATUS = 124
    UNSUPPORTED_VERSION = 125
    TOO_MANY_RETRIES = 126
    UNSPECIFIED = 127


_ABORTS: Final = range(TransferStatus.TIME_TOO_LONG, TransferStatus.UNSPECIFIED + 1)


def headerOf(mad: bytes) -> RMPPHeader:
    """
    @return: the RMPP header of a MAD of 256 octets.
    """
    return RMPP.parse(mad[HEADER_BYTES:BODY_AT])


def isSegment(mad: bytes) -> bool:
    """
    @return: whether a MAD of a class with an RMPP header is of a transfer; if not it is a plain one.
    """
    return bool(mad[HEADER_BYTES + 2] & ACTIVE)


def dataAt(managementClass: int) -> int | None:
    """
    @return: the offset of the data in MADs of a class; L{None} if the class has no RMPP header.
    """
    row = classHeader(managementClass)
    return HEADER_BYTES + row[1] if row is not None and row[0] in TRANSFER_HEADERS else None


def segment(mad: bytes, header: RMPPHeader) -> bytes:
    """
    @return: a MAD with another RMPP header.
    """
    return mad[:HEADER_BYTES] + RMPP.pack(header) + mad[BODY_AT:]


def control(
    mad: bytes,
    at: int,
    kind: int,
    status: int = 0,
    number: int = 0,
    window: int = 0,
    *,
    responds: bool = True,
) -> bytes:
    """
    Make an ACK, STOP or ABORT of the transfer that a MAD is of.

    @param at: the offset of the data in MADs of this class.
    @param responds: whether it goes to the sender of C{mad}, whose method's response bit is turned
        round, or where that goes.
    @return: 256 octets.
    """
    header = RMPPHeader(RMPP_VERSION, kind, NO_RESPONSE_TIME, ACTIVE, status, number, window)
    method = mad[METHOD_AT] ^ RESPONSE if responds else mad[METHOD_AT]
    common = mad[:METHOD_AT] + bytes((method,)) + mad[METHOD_AT + 1 : HEADER_BYTES]
    return (common + RMPP.pack(header) + mad[BODY_AT:at]).ljust(MAD_BYTES, b"\0")


def fault(header: RMPPHeader) -> TransferStatus | None:
    """
    @return: the fault of a segment, whatever transfer it is of, or L{None}.
    """
    if header.version != RMPP_VERSION:
        return TransferStatus.UNSUPPORTED_VERSION
    if header.type not in (DATA, ACK, STOP, ABORT):
        return TransferStatus.BAD_TYPE
    if header.type in (DATA, ACK):
        return TransferStatus.ILLEGAL_STATUS if header.status else None
    expected = (TransferStatus.RESOURCES_EXHAUSTED,) if header.type == STOP else _ABORTS
    return None if header.status in expected else TransferStatus.ILLEGAL_STATUS
