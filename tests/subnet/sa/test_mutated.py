"""
MADs of subnet administration that are almost right.
"""

from __future__ import annotations

import random
from typing import Any

from attrs import evolve

from tests.hca.mad.attributes.records import RECORDS
from tests.subnet.sa.cases import KEY, SWITCH, AdministrationTestCase, gidOf, guidOf, star
from tests.subnet.sa.test_events import ALL
from tests.subnet.sa.test_groups import CREATE, JOIN, MGID, RECORD
from tests.subnet.sa.test_services import NAMES
from tests.subnet.sa.test_services import RECORD as SERVICE
from twisted_ib import limits
from twisted_ib.hca.mad.rmpp.segments import RMPP_SECONDS, segment
from twisted_ib.hca.wire.mad.administration import DELETE, GET_TABLE
from twisted_ib.hca.wire.mad.classes import ABORT, ACK, DATA, STOP, RMPPHeader
from twisted_ib.hca.wire.mad.mad import GET, REPORT, RESPONSE, SET, Mad, decodeMAD

COUNT = 600
ADAPTERS = 3
#: Of what each port may have.
BOUND = 20


class MutatedTests(AdministrationTestCase):
    """
    Requests, acknowledgements and responses with wrong octets, of all ports, while nodes come and go.
    """

    count = COUNT
    adapters = ADAPTERS

    def setUp(self) -> None:
        """
        Bound what there may be.
        """
        super().setUp()
        for name in ("SA_PORT_GROUPS", "SA_PORT_SERVICES", "SA_PORT_SUBSCRIPTIONS", "SA_PORT_REPORTS"):
            self.patch(limits, name, BOUND)
        self.dice = random.Random(19)

    def make(self, seen: list[Any]) -> bytes:
        """
        @param seen: MADs that were sent.
        @return: a MAD.
        """
        dice = self.dice
        gid = gidOf(dice.randrange(1, ADAPTERS + 2))
        mgid = dice.choice((0, MGID, MGID + dice.randrange(40), dice.getrandbits(128)))
        state = dice.choice((1, 1, 1, 2, 4, 8, 15))
        group = evolve(RECORD, mgid=mgid, portGID=gid, joinState=state)
        service = evolve(
            SERVICE,
            serviceGID=gid,
            serviceID=dice.randrange(40),
            serviceLease=dice.choice((0, 1, 30, 0xFFFFFFFF)),
        )
        kind = dice.choice(list(RECORDS.values()))
        key = {"key": dice.choice((0, 0, 0, KEY, 1))}
        made = dice.choice(
            (
                lambda: self.request(SET, group, *CREATE, **key),
                lambda: self.request(dice.choice((SET, DELETE)), group, *JOIN, **key),
                lambda: self.request(dice.choice((SET, DELETE)), service, *NAMES, **key),
                lambda: self.request(SET, evolve(ALL, trapNumber=dice.randrange(64, 70)), **key),
                lambda: self.request(dice.choice((GET, GET_TABLE)), kind(), **key),
                lambda: self.request(GET_TABLE, kind(), **key),
            )
        )()
        octets = bytearray(made.pack())
        if seen and dice.random() < 0.3:
            octets = bytearray(self.answer(dice.choice(seen)))
        for _ in range(dice.choice((0, 0, 1, 1, 2, 4, 16))):
            octets[dice.randrange(dice.choice((4, 56, 120, 256)))] = dice.randrange(256)
        return bytes(octets[: dice.choice((256,) * 30 + (0, 24, 255))])

    def answer(self, octets: bytes) -> bytes:
        """
        @return: an acknowledgement or response to what was sent.
        """
        dice = self.dice
        mad: Mad = decodeMAD(octets)
        if mad.method == REPORT:
            return evolve(mad, method=REPORT | RESPONSE).pack()
        header = RMPPHeader(
            *(1, dice.choice((DATA, ACK, ACK, STOP, ABORT, 0)), 31, dice.choice((1, 3, 7))),
            *(dice.choice((0, 0, 1, 118)), dice.choice((0, 1, 2, 9)), dice.choice((0, 1, 64, 0xFFFFFFFF))),
        )
        return segment(evolve(mad, method=mad.method ^ RESPONSE).pack(), header)

    def test_mutated(self) -> None:
        """
        Nothing is raised, nothing grows beyond its bound, and when all nodes but the manager's have gone and
        time has passed nothing is left.  Seed 19.
        """
        dice, administration = self.dice, self.administration
        answered = 0
        seen: list[bytes] = []
        for number in range(self.count):
            lid = dice.choice((1, 2, 2, 3, 3, 0x40, 9))
            self.give(lid, self.make(seen), dice.choice((1, 1, 2)), dice.choice((0, 0, 224)))
            answered += len(self.manager.sent)
            seen = [*seen, *(bytes(each.octets) for each in self.manager.sent)][-20:]
            self.manager.sent.clear()
            if not number % 20:
                self.wait(dice.choice((0.1, 1.0, 5.0)))
            if not number % 100:
                self.sweep(star(dice.choice((2, 3))))
        bound = BOUND * (ADAPTERS + 1)
        self.assertGreater(answered, self.count // 3)
        self.assertLessEqual(len(administration.groups), 1 + bound)
        self.assertLessEqual(len(administration.services), bound)
        self.assertLessEqual(len(administration.events), bound)
        self.sweep(star(1))
        self.wait(RMPP_SECONDS)
        left = {guid for group in administration.groups._groups.values() for guid in group.members}
        left |= {*administration.services._owned, *administration.events._owned}
        self.assertLessEqual(left, {guidOf(1), SWITCH})
        self.assertEqual((administration.events.waiting, len(administration.transfers)), (0, 0))
