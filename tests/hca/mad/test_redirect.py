"""
Redirection of a class to another queue pair, both sides.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve

from tests.hca.hcas import settle
from tests.hca.mad.cases import MADTestCase, OnPackets, OnRings
from tests.hca.mad.toys.table import TableAgent
from twisted_ib.hca.base.operation import GSI_QPN
from twisted_ib.hca.base.states import QPState, QPType
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.mad import requests
from twisted_ib.hca.mad.attributes.notice import ClassPortInfo
from twisted_ib.hca.mad.attributes.performance import PortCounters
from twisted_ib.hca.mad.requests import ReceivedMAD, Redirection, Redirections
from twisted_ib.hca.services.address import AddressHandle
from twisted_ib.hca.services.datagramconsumer import InlineDatagrams
from twisted_ib.hca.wire.headers import QUEUE_KEY
from twisted_ib.hca.wire.mad.classes import PERFORMANCE, SUBNET
from twisted_ib.hca.wire.mad.mad import CLASS_PORT_INFO, GET, GET_RESPONSE, SET, TRAP, Mad, decodeMAD

#: A queue pair cannot send another Q_Key with the high bit than its own (IBTA vol. 1 10.2.5), so that one
#: which answers to queue pair 1 has that Q_Key.
KEY = QUEUE_KEY


class Server:
    """
    Serves a class from a queue pair of its own.
    """

    def __init__(self, device: Device) -> None:
        """
        Open the queue pair.
        """
        self.device = device
        self.queuePair = device.createQueuePair(self, QPType.UD)
        self._datagrams = InlineDatagrams(self.queuePair)
        self.queuePair.modify(QPState.INIT, pkey_index=0, port_num=1, qkey=KEY)
        self.queuePair.modify(QPState.RTR)
        self.queuePair.modify(QPState.RTS, sq_psn=0)
        self.came: list[Mad] = []
        self.answer: dict[str, Any] = {"data": b"served"}

    def datagramReceived(self, source: Any, buffer: bytes, start: int, stop: int) -> None:
        """
        A peer asks.
        """
        mad = decodeMAD(buffer[start:stop])
        self.came.append(mad)
        handle = AddressHandle(self.device.memory.allocateDomain(), source.vector, self.device)
        answer = evolve(mad, method=GET_RESPONSE, **self.answer)
        self._datagrams.post(handle, source.number, QUEUE_KEY, answer.pack())
        handle.close()

    def failed(self, reason: Exception) -> None:
        """
        The queue pair is in ERR.
        """


class RedirectionContract:
    """
    C{a} asks, C{b} redirects.
    """

    toys = ((GSI_QPN, TableAgent),)

    def setUp(self: Any) -> None:
        """
        C{b} serves performance management from another queue pair.
        """
        super().setUp()  # type: ignore[misc]
        self.server = Server(self.b)
        self.serving = self.b.mads._classes[PERFORMANCE][1][GET]
        self.asking = self.a.mads.register(PERFORMANCE, 1, (TRAP,), print)
        self.responses: list[ReceivedMAD | None] = []

    def get(self: Any, attribute: int = PortCounters.ID, target: Any = None, **changes: Any) -> Any:
        """
        @return: the response.
        """
        mad = Mad(PERFORMANCE, 1, GET, 0, attribute, b"asked")
        self.asking.send(self.address(target or self.b), mad, self.responses.append, **changes)
        self.settle()
        return self.responses.pop() if self.responses else None

    def test_followed(self: Any) -> None:
        """
        A request is repeated where the class is served, once; those that follow go there at once, and no
        longer when it is served on queue pair 1 again.
        """
        self.serving.redirectTo(self.server.queuePair, 0x1200)
        for _ in range(10):
            response = self.get()
            self.assertEqual((response.mad.status, response.mad.data[:6]), (0, b"served"))
            self.assertEqual(response.source, self.server.queuePair.number)
        self.assertEqual([bytes(mad.data)[:5] for mad in self.server.came], [b"asked"] * 10)
        self.assertEqual((len(self.a.mads.redirections), len(self.a.addressPaths)), (1, 0))
        self.serving.redirectTo(None)
        # A peer that knows the queue pair goes there until nobody answers.
        self.server.queuePair.modify(QPState.RESET)
        self.assertIsNone(self.get(retries=0))
        self.wait(1.0)
        self.assertEqual((self.responses.pop(), len(self.a.mads.redirections)), (None, 0))
        self.assertEqual(self.get().mad.status, 0x1C)

    def test_answer(self: Any) -> None:
        """
        The answer has status 2 and ClassPortInfo, whatever was asked; only what has no response is served.
        """
        traps: list[ReceivedMAD] = []
        agent = self.b.mads.register(PERFORMANCE, 1, (TRAP,), traps.append)
        for each in (agent, self.serving):
            each.redirectTo(self.server.queuePair, 0x1200)
        self.patch(requests, "MAD_REDIRECTIONS_FOLLOWED", 0)
        mad = self.get().mad
        self.assertEqual((mad.method, mad.status, mad.attribute), (GET_RESPONSE, 2, PortCounters.ID))
        info = ClassPortInfo.parse(mad.data)
        expected = ClassPortInfo(
            classVersion=1,
            capabilityMask=0x1200,
            respTimeVal=0x12,
            redirectGID=self.b.gid,
            redirectPKey=0xFFFF,
            redirectQP=self.server.queuePair.number,
            redirectQKey=KEY,
        )
        self.assertEqual(info, expected)
        self.a.mads.redirections.forget((self.b.gid, PERFORMANCE))
        self.asking.send(self.address(self.b), Mad(PERFORMANCE, 1, TRAP, 0, 2))
        self.settle()
        self.assertEqual((len(traps), self.server.came), (1, []))

    def test_table(self: Any) -> None:
        """
        A request of many MADs is not repeated: its response is the redirection, and the next one follows it.
        """
        asking, serving = (self.of(TableAgent, each) for each in (self.a, self.b))
        serving.agent.redirectTo(self.server.queuePair)
        asking.agent.send(self.address(self.b), asking.exchange(bytes(3000)), self.responses.append)
        self.settle()
        self.assertEqual(self.responses.pop().mad.status, 2)
        self.assertEqual((len(self.a.mads.transfers), len(self.b.mads.transfers)), (0, 0))
        asking.agent.send(self.address(self.b), asking.question(1), self.responses.append)
        self.settle()
        self.assertEqual(self.responses.pop().mad.data[:6], b"served")

    def test_information(self: Any) -> None:
        """
        ClassPortInfo that was asked for and has another queue pair redirects what follows.
        """
        info = ClassPortInfo(redirectQP=self.server.queuePair.number, redirectQKey=KEY).pack()
        self.serving.received = lambda request: self.serving.reply(request, evolve(request.mad, data=info))
        response = self.get(CLASS_PORT_INFO)
        self.assertEqual((response.mad.data[:72], self.server.came), (info, []))
        self.assertEqual(self.get().mad.data[:6], b"served")

    def test_nowhere(self: Any) -> None:
        """
        A redirection to queue pair 0 or 1 is none, and one in a circle is followed a few times.
        """
        came: list[ReceivedMAD] = []

        def answer(number: int) -> Any:
            def received(request: ReceivedMAD) -> None:
                came.append(request)
                info = ClassPortInfo(redirectQP=number, redirectQKey=QUEUE_KEY)
                self.serving.reply(request, evolve(request.mad, status=2, data=info.pack()))

            return received

        for number in (0, 1):
            self.serving.received = answer(number)
            self.assertEqual(self.get().mad.status, 2)
        self.assertEqual((len(came), len(self.a.mads.redirections)), (2, 0))
        info = ClassPortInfo(redirectQP=self.server.queuePair.number, redirectQKey=KEY)
        self.serving.redirectTo(self.server.queuePair)
        self.server.answer = {"status": 2, "data": info.pack()}
        self.assertEqual(self.get().mad.status, 2)
        self.assertEqual(len(self.server.came), requests.MAD_REDIRECTIONS_FOLLOWED)

    def test_elsewhere(self: Any) -> None:
        """
        Another port may serve it; its responses are those of the request then, and no others.
        """
        other = self.device()
        server = Server(other)
        info = ClassPortInfo(redirectGID=other.gid, redirectQP=server.queuePair.number, redirectQKey=KEY)
        requests: list[ReceivedMAD] = []
        self.serving.received = requests.append
        self.assertIsNone(self.get())
        (request,) = requests
        for _ in range(2):
            self.serving.reply(request, evolve(request.mad, status=2, data=info.pack()))
        settle(self.a, self.b, other)
        (response,) = self.responses
        assert response is not None
        self.assertEqual((response.mad.data[:6], response.path.peer.gid), (b"served", other.gid))
        self.assertEqual(self.a.mads.redirections.find((self.b.gid, PERFORMANCE)).key, other.gid)
        self.assertEqual(self.a.counters["management_unmatched"], 1)


class LoopbackTests(RedirectionContract, MADTestCase):
    """
    C{lo0}.
    """

    def test_subnetManagement(self) -> None:
        """
        SMPs are not redirected: they go to queue pair 0.
        """
        agent = self.b.mads.register(SUBNET, 1, (SET,), print)
        self.assertRaises(ValueError, agent.redirectTo, self.server.queuePair)


class RingTests(OnRings, RedirectionContract, MADTestCase):
    """
    C{shm0}.
    """


class PacketTests(OnPackets, RedirectionContract, MADTestCase):
    """
    C{roce0}.
    """

    def test_bound(self) -> None:
        """
        So many are remembered, those that were used last.
        """
        self.patch(requests, "MAD_REDIRECTIONS", 2)
        found = Redirections()
        for key in (1, 2):
            found.learn((key, 4), Redirection(key, 5, 6))
        self.assertEqual(found.find((1, 4)), Redirection(1, 5, 6))
        found.learn((3, 4), Redirection(3, 5, 6))
        self.assertEqual([found.find((key, 4)) is None for key in (1, 2, 3)], [False, True, False])

    def test_group(self) -> None:
        """
        Nobody is sent to a multicast group.
        """
        cases = (
            (False, {"redirectGID": 0xFF12 << 112}, None),
            (False, {"redirectGID": 7, "redirectLID": 8}, Redirection(7, 5, 0)),
            (True, {"redirectLID": 0xC000}, None),
            (True, {"redirectGID": 7, "redirectLID": 8}, Redirection(8, 5, 0)),
            (True, {"redirectGID": 7}, Redirection(9, 5, 0)),
        )
        for hasLIDs, fields, expected in cases:
            info = ClassPortInfo(redirectQP=5, **fields)
            mad = Mad(PERFORMANCE, 1, GET_RESPONSE, 0, 1, info.pack(), status=2)
            self.assertEqual(requests.redirectionOf(mad, 9, hasLIDs), expected)

    def test_short(self) -> None:
        """
        A class whose data is shorter than ClassPortInfo is not redirected.
        """
        mad = Mad(1, 1, GET_RESPONSE, 0, 1, bytes(64), status=2)
        self.assertIsNone(requests.redirectionOf(mad, 5, False))

    def test_target(self) -> None:
        """
        Octets of GRH and DETH: traffic class, flow label and Q_Key are those of the redirection.
        """
        target = self.a.mads._target(1, Redirection(self.b.gid, 0x123456, 0x22222222, 9, 0x12345))
        self.assertEqual((target.key, target.word & 0xFFFFFF), (self.b.gid, 0x123456))
        self.assertEqual(target.header[:4].hex(), "60912345")
        self.assertEqual(target.header[40:].hex(), "2222222200000001")
