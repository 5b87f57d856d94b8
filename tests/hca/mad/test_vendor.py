"""
OpenIB's ping.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve

from tests.hca.mad.cases import MADTestCase, OnPackets
from twisted_ib.hca.mad.vendor import OPENIB, PING, respond
from twisted_ib.hca.wire.mad.classes import OrganizationHeader
from twisted_ib.hca.wire.mad.mad import GET, GET_RESPONSE, SET, Mad

QUESTION = Mad(PING, 1, GET, 7, 0, header=OrganizationHeader(organization=OPENIB))


class PingTests(OnPackets, MADTestCase):
    """
    The agent of each device, and the function for nodes without one.
    """

    toys = ()

    def ask(self, mad: Mad) -> Any:  # type: ignore[override]
        """
        @return: the MAD that answers.
        """
        responses: list[Any] = []
        agent = self.a.mads.register(PING, 1, (SET,), print)
        agent.send(self.address(self.b), mad, responses.append)
        agent.close()
        self.settle()
        return responses[0].mad

    def test_ping(self) -> None:
        """
        The answer has the device's name.
        """
        mad = self.ask(QUESTION)
        self.assertEqual(
            (mad.status, mad.data, mad.header.organization), (0, b"test".ljust(216, b"\0"), OPENIB)
        )

    def test_others(self) -> None:
        """
        Another organization's class of this number, or another attribute, is not known.
        """
        for mad in (
            evolve(QUESTION, attribute=1),
            evolve(QUESTION, header=OrganizationHeader(organization=5)),
        ):
            self.assertEqual(self.ask(mad).status, 0x0C)

    def test_octets(self) -> None:
        """
        Literal octets, as C{ibping -S} answers; what is not asked is not answered.
        """
        common = "01 32 01 %s 0000 0000 0000000000000007 0000 0000 00000000"
        rest = bytes(12) + bytes.fromhex("00 001405")
        octets = bytes.fromhex(common % "01") + rest + bytes(216)
        self.assertEqual(QUESTION.pack(), octets)
        expected = bytes.fromhex(common % "81") + rest + b"host.example".ljust(216, b"\0")
        self.assertEqual(respond(octets, b"host.example"), expected)
        self.assertEqual(respond(octets, b"x" * 300), expected[:40] + b"x" * 216)
        for changes in (
            {"method": GET_RESPONSE},
            {"method": SET},
            {"classVersion": 2},
            {"managementClass": 0x33},
        ):
            self.assertIsNone(respond(evolve(QUESTION, **changes).pack(), b""))
        self.assertIsNone(respond(octets[:-1], b""))
