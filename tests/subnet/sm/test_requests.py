"""
Tests of L{twisted_ib.subnet.sm.requests}.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.subnet.sm.subnets import answer
from twisted_ib.hca.mad.attributes.node import NodeInfo
from twisted_ib.hca.mad.attributes.port import PortInfo
from twisted_ib.hca.wire.mad.classes import DirectedHeader
from twisted_ib.limits import SM_RETRIES, SM_TIMEOUT_SECONDS, SM_WINDOW
from twisted_ib.subnet.network.smi import Packet
from twisted_ib.subnet.sm.requests import Request, Requests


class RequestsTests(SynchronousTestCase):
    """
    SMPs of one manager.
    """

    def setUp(self) -> None:
        """
        Begin with transaction id 7.
        """
        self.lost: Counter[str] = Counter()
        self.requests = Requests(7, lambda name: self.lost.update([name]))
        self.answers: list[bytes | None] = []

    def send(self, *requests: Request) -> list[Packet]:
        """
        @return: those that are sent.
        """
        self.requests.add(requests)
        self.requests.fill(0.0)
        return self.requests.outgoing()

    def get(self, route: bytes | None = b"\1\2", **fields: Any) -> Packet:
        """
        @return: a Get of NodeInfo that is sent.
        """
        (packet,) = self.send(Request(route, NodeInfo.ID, 0, self.answers.append, **fields))
        return packet

    def test_octets(self) -> None:
        """
        A Get by a directed route, and a Set to a LID.
        """
        packet = self.get()
        expected = bytearray(256)
        expected[:24] = bytes.fromhex("01810101 0000 00 02 ffff000000000008 0011 0000 00000000")
        expected[32:36] = b"\xff" * 4
        expected[128:131] = b"\0\1\2"
        self.assertEqual(packet, Packet(0xFFFF, 0xFFFF, 0, 0, expected))
        (packet,) = self.send(Request(None, PortInfo.ID, 3, self.answers.append, b"data", 9))
        expected = bytearray(256)
        expected[:24] = bytes.fromhex("01010102 0000 0000 ffff000000000009 0015 0000 00000003")
        expected[64:68] = b"data"
        self.assertEqual(packet, Packet(0, 9, 0, 0, expected))

    def test_answered(self) -> None:
        """
        The attribute of a response is given once; what comes again was not asked.
        """
        packet = self.get()
        self.requests.received(answer(packet, b"info"))
        self.assertEqual(self.answers, [b"info".ljust(64, b"\0")])
        self.assertTrue(self.requests.isIdle)
        self.requests.received(answer(packet, b"info"))
        self.assertEqual((len(self.answers), self.lost), (1, {"sm_unasked": 1}))

    def test_foreign(self) -> None:
        """
        A MAD with another transaction id, by another path or from another LID, or that answers something
        else, is dropped; then the response itself is taken.
        """
        packet = self.get()
        paths = (
            DirectedHeader(initialPath=b"\0\1\3"),
            DirectedHeader(initialPath=b"\0\2\2"),
        )
        wrong: list[dict[str, Any]] = [
            {"transaction": 8},
            {"transaction": 0xFFFF000000000009},
            {"attribute": 0x15},
            {"modifier": 1},
            {"method": 0x82},
            {"classSpecific": 3},
            *({"header": header} for header in paths),
        ]
        for fields in wrong:
            self.requests.received(answer(packet, b"", **fields))
        self.requests.received(answer(packet, b"", managementClass=1, header=None))
        returning = answer(packet, b"")
        returning.octets[4] = 0
        self.requests.received(returning)
        self.assertEqual((self.answers, self.lost), ([], {"sm_unasked": 2, "sm_foreign": 8}))
        self.requests.received(answer(packet, b"info"))
        self.assertEqual(len(self.answers), 1)

    def test_otherLID(self) -> None:
        """
        A LID-routed request is answered by that LID alone.
        """
        packet = self.get(None, lid=5)
        wrong = answer(packet, b"")
        wrong.slid = 6
        self.requests.received(wrong)
        self.assertEqual((self.answers, self.lost), ([], {"sm_foreign": 1}))
        self.requests.received(answer(packet, b""))
        self.assertEqual(len(self.answers), 1)

    def test_malformed(self) -> None:
        """
        Octets that are no MAD, or one of another version, are dropped.
        """
        packet = self.get()
        right = answer(packet, b"")
        short = Packet(0xFFFF, 0xFFFF, 0, 0, right.octets[:255])
        base = Packet(0xFFFF, 0xFFFF, 0, 0, bytearray(b"\2" + right.octets[1:]))
        for each in (short, base, answer(packet, b"", classVersion=2)):
            self.requests.received(each)
        self.assertEqual((self.answers, self.lost), ([], {"sm_malformed": 3}))

    def test_status(self) -> None:
        """
        A refusal is reported; who is busy is asked again.
        """
        packet = self.get()
        self.requests.received(answer(packet, b"", 0x01))
        self.assertEqual((self.answers, self.lost), ([], {"sm_busy": 1}))
        self.requests.received(answer(packet, b"info", 0x1C))
        self.assertEqual((self.answers, self.lost), ([None], {"sm_busy": 1, "sm_refused": 1}))

    def test_repeated(self) -> None:
        """
        A request is sent again with the same transaction id, until its last attempt has not been answered.
        """
        packet = self.get()
        for attempt in range(SM_RETRIES):
            deadline = self.requests.deadline()
            assert deadline is not None
            self.assertAlmostEqual(deadline, (attempt + 1) * SM_TIMEOUT_SECONDS)
            self.requests.expired(deadline - 0.01)
            self.assertEqual(self.requests.outgoing(), [])
            self.requests.expired(deadline)
            self.assertEqual(self.requests.outgoing(), [packet])
        self.requests.expired(1000.0)
        self.assertEqual((self.answers, self.lost), ([None], {"sm_unanswered": 1}))
        self.assertEqual((self.requests.deadline(), self.requests.sent), (None, 1 + SM_RETRIES))

    def test_window(self) -> None:
        """
        So many wait for their responses, and no more are made; each response makes room for one.
        """
        made = iter(range(1000))
        requests = (Request(b"", NodeInfo.ID, each, self.answers.append) for each in made)
        self.requests.add(requests)
        self.requests.fill(0.0)
        sent = self.requests.outgoing()
        self.assertEqual((len(sent), next(made)), (SM_WINDOW, SM_WINDOW))
        self.requests.received(answer(sent[5], b""))
        self.requests.fill(0.0)
        self.assertEqual(len(self.requests.outgoing()), 1)
        self.requests.cancel()
        self.assertTrue(self.requests.isIdle)
        self.requests.received(answer(sent[6], b""))
        self.assertEqual((len(self.answers), self.lost), (1, {"sm_unasked": 1}))

    def test_cancelledMeanwhile(self) -> None:
        """
        When the first of several is given up, that may cancel the others.
        """
        self.send(
            Request(b"\1", NodeInfo.ID, 0, lambda data: self.requests.cancel()),
            Request(b"\2", NodeInfo.ID, 0, self.answers.append),
        )
        for attempt in range(SM_RETRIES + 1):
            self.requests.expired(1.0 + attempt)
        self.assertEqual((self.answers, self.requests.isIdle), ([], True))

    def test_further(self) -> None:
        """
        Requests that an answer adds come behind those that wait.
        """
        later = Request(b"\1", NodeInfo.ID, 0, self.answers.append)
        first = Request(b"\2", NodeInfo.ID, 0, partial(self._then, later))
        (packet,) = self.send(first)
        self.requests.received(answer(packet, b""))
        self.requests.fill(0.0)
        self.assertEqual([each.octets[129] for each in self.requests.outgoing()], [1])

    def _then(self, later: Request, data: bytes | None) -> None:
        self.requests.add([later])
