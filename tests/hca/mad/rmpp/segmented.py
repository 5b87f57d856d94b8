"""
Segments for tests, of a table of subnet administration.
"""

from __future__ import annotations

from typing import Any

from twisted_ib.hca.mad.rmpp.segments import control, headerOf, segment
from twisted_ib.hca.wire.mad.classes import (
    ACTIVE,
    DATA,
    RMPP_VERSION,
    SUBNET_ADMINISTRATION,
    AdministrationHeader,
    RMPPHeader,
)
from twisted_ib.hca.wire.mad.mad import Mad

#: GetTableResp.
METHOD = 0x92
#: The offset of records, and how many octets of them a segment has.
AT, SIZE = 56, 200
HEAD = Mad(
    *(SUBNET_ADMINISTRATION, 2, METHOD, 0x1122334455667788, 0x11),
    header=AdministrationHeader(attributeOffset=14),
).pack()[:AT]


def data(number: int, flags: int = 0, length: int = 0, payload: bytes = b"", **changes: Any) -> bytes:
    """
    @return: a DATA segment.
    """
    header = RMPPHeader(RMPP_VERSION, DATA, 0x1F, flags | ACTIVE, 0, number, length)._replace(**changes)
    return segment((HEAD + payload).ljust(256, b"\0"), header)


def answer(kind: int, status: int = 0, number: int = 0, window: int = 0, **changes: Any) -> bytes:
    """
    @return: an ACK, STOP or ABORT of the receiver.
    """
    mad = control(data(1), AT, kind, status, number, window)
    return segment(mad, headerOf(mad)._replace(**changes))


def seen(mads: list[bytes]) -> list[tuple[int, ...]]:
    """
    @return: type, status, segment number and length of each.
    """
    return [(each.type, each.status, each.segment, each.length) for each in map(headerOf, mads)]
