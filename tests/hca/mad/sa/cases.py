"""
A client of subnet administration, and another device that plays it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from attrs import evolve

from tests.hca.hcas import settle
from tests.hca.mad.cases import MADTestCase
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.mad.attributes.administration import MCMemberRecord, PathRecord, stride
from twisted_ib.hca.mad.attributes.layouts import Attribute
from twisted_ib.hca.mad.attributes.notice import Notice
from twisted_ib.hca.mad.requests import ReceivedMAD
from twisted_ib.hca.mad.rmpp.segments import TABLE
from twisted_ib.hca.mad.sa.client import SAClient
from twisted_ib.hca.services.address import AddressVector
from twisted_ib.hca.wire.mad.administration import DELETE, GET_TABLE, SA_VERSION
from twisted_ib.hca.wire.mad.classes import SUBNET_ADMINISTRATION, AdministrationHeader
from twisted_ib.hca.wire.mad.mad import GET, REPORT, SET, Mad

MLID = 0xC003
NEW_GROUP = 0xFF12A01B << 96 | 7


def answer(mad: Mad) -> Mad:
    """
    @return: the answer of a subnet administration that finds everything.
    """
    if mad.attribute == PathRecord.ID and mad.method == GET:
        return evolve(mad, data=evolve(PathRecord.parse(mad.data), dlid=5, slid=4, mtu=4).pack())
    if mad.attribute == MCMemberRecord.ID and mad.method == SET:
        asked = MCMemberRecord.parse(mad.data)
        made = evolve(asked, mgid=asked.mgid or NEW_GROUP, mlid=MLID, qKey=0xB1B, pKey=0xFFFF, mtu=4, rate=3)
        return evolve(mad, data=made.pack())
    return mad


def tableOf(mad: Mad, found: Iterable[Attribute]) -> Mad:
    """
    @return: the answer to a GetTable.
    """
    found = list(found)
    size = stride(type(found[0])) if found else 0
    data = b"".join(each.pack().ljust(8 * size, b"\0") for each in found)
    return evolve(mad, header=AdministrationHeader(TABLE, attributeOffset=size), data=data)


class ScriptedSA:
    """
    Subnet administration that answers what it is told to.
    """

    def __init__(self, device: Device) -> None:
        """
        Serve a device.
        """
        methods = (GET, SET, GET_TABLE, DELETE)
        self.agent = device.mads.register(SUBNET_ADMINISTRATION, SA_VERSION, methods, self.received, 1)
        self.requests: list[ReceivedMAD] = []
        self.answer: Callable[[Mad], Mad | None] = answer

    def received(self, request: ReceivedMAD) -> None:
        """
        A port asks.
        """
        self.requests.append(request)
        answer = self.answer(request.mad)
        if answer is not None:
            self.agent.reply(request, answer)

    def take(self) -> list[Mad]:
        """
        @return: the requests that have come since.
        """
        found, self.requests = [each.mad for each in self.requests], []
        return found

    def refuse(self, status: int) -> None:
        """
        Answer all with a status.
        """
        self.answer = lambda mad: evolve(mad, status=status)

    def silence(self) -> None:
        """
        Answer nothing.
        """
        self.answer = lambda mad: None


class SATestCase(MADTestCase):
    """
    C{a} asks C{b}.
    """

    toys = ()

    def setUp(self) -> None:
        """
        Make both sides.
        """
        super().setUp()
        self.sa = ScriptedSA(self.b)
        self.manager = AddressVector(self.b.gid)
        self.client = SAClient(self.a, lambda: self.manager)
        #: The outcomes that were reported, in order.
        self.said: list[Any] = []

    def path(self, dgid: int = 9 << 64 | 1, **more: Any) -> Any:
        """
        Ask for a path, and let it be answered.
        """
        waiter = self.client.path(dgid, self.said.append, **more)
        self.settle()
        return waiter

    def report(self, notice: Notice, issuer: int = 3, sender: Device | None = None, **changes: Any) -> Any:
        """
        Send the client an event.

        @return: the list that its response comes to.
        """
        responses: list[ReceivedMAD | None] = []
        agent = self.sa.agent
        if sender is not None:
            agent = sender.mads.register(SUBNET_ADMINISTRATION, SA_VERSION, (GET_TABLE,), print, 1)
        data = notice.pack() + issuer.to_bytes(16, "big")
        mad = evolve(Mad(SUBNET_ADMINISTRATION, SA_VERSION, REPORT, 0, Notice.ID, data), **changes)
        agent.send(AddressVector(self.a.gid), mad, responses.append)
        settle(self.a, self.b, *([] if sender is None else [sender]))
        return responses

    def taken(self) -> list[Any]:
        """
        @return: the outcomes that were reported since.
        """
        found, self.said[:] = list(self.said), []
        return found
