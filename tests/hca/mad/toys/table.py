"""
A class with RMPP on queue pair 1: it makes tables, and gives back those that it gets.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve

from twisted_ib.hca.mad.requests import ReceivedMAD
from twisted_ib.hca.mad.rmpp.segments import TABLE
from twisted_ib.hca.wire.mad.classes import SUBNET_ADMINISTRATION, AdministrationHeader
from twisted_ib.hca.wire.mad.mad import Mad

CLASS = SUBNET_ADMINISTRATION
VERSION = 2
GET_TABLE, GET_MULTI = 0x12, 0x14
RECORD_BYTES = 112
MOST = 5000
_HEADER = AdministrationHeader(TABLE, attributeOffset=RECORD_BYTES // 8)


def table(count: int) -> bytes:
    """
    @return: so many records.
    """
    return b"".join(number.to_bytes(RECORD_BYTES, "big") for number in range(count))


class TableAgent:
    """
    Answers GetTable with the number of records that the modifier has, and GetMulti with what came.
    """

    def __init__(self, device: Any) -> None:
        """
        Serve a device.
        """
        self.agent = device.mads.register(CLASS, VERSION, (GET_TABLE, GET_MULTI), self.received, 1)
        self.requests: list[ReceivedMAD] = []

    def received(self, request: ReceivedMAD) -> None:
        """
        A peer asks.
        """
        self.requests.append(request)
        mad = request.mad
        data = table(min(mad.modifier, MOST)) if request.table is None else request.table
        self.agent.reply(request, evolve(mad, header=_HEADER, data=data))

    def question(self, count: int) -> Mad:
        """
        @return: the request for so many records.
        """
        return Mad(CLASS, VERSION, GET_TABLE, 0, 0x11, modifier=count)

    def exchange(self, data: bytes) -> Mad:
        """
        @return: the request that gets its own data back.
        """
        return Mad(CLASS, VERSION, GET_MULTI, 0, 0x11, data, header=_HEADER)
