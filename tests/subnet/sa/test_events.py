"""
Tests of L{twisted_ib.subnet.sa.events}.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve

from tests.subnet.sa.cases import FULL, KEY, LIMITED, AdministrationTestCase, gidOf, star
from tests.subnet.sa.test_groups import CREATE, MGID, RECORD
from twisted_ib import limits
from twisted_ib.hca.mad.attributes.administration import (
    ALL_LIDS,
    ALL_TRAPS,
    ALL_TYPES,
    ANY_PRODUCER,
    InformInfo,
    InformInfoRecord,
    MCMemberRecord,
)
from twisted_ib.hca.mad.attributes.notice import GIDDetails, LinkStateDetails, Notice, NoticeType, Trap
from twisted_ib.hca.wire.mad.administration import DELETE, SA_VERSION, SAStatus
from twisted_ib.hca.wire.mad.classes import SUBNET_ADMINISTRATION
from twisted_ib.hca.wire.mad.mad import REPORT, RESPONSE, SET, Mad, decodeMAD
from twisted_ib.subnet.network.smi import Packet
from twisted_ib.subnet.sa.events import LEAST_SECONDS, MOST_SECONDS, RETRIES

ALL = InformInfo(
    lidRangeBegin=ALL_LIDS,
    isGeneric=1,
    subscribe=1,
    noticeType=ALL_TYPES,
    trapNumber=ALL_TRAPS,
    producerType=ANY_PRODUCER,
)


class EventsTestCase(AdministrationTestCase):
    """
    Requests without Reports in between.
    """

    def setUp(self) -> None:
        """
        Keep what is told of.
        """
        super().setUp()
        self.events = self.administration.events

    def subscribe(self, info: InformInfo = ALL, lid: int = 2) -> None:
        """
        A port subscribes.
        """
        self.assertEqual(self.set(info, lid=lid), info)

    def reports(self) -> list[Packet]:
        """
        @return: those that were sent.
        """
        found, self.manager.sent[:] = list(self.manager.sent), []
        for packet in found:
            mad = decodeMAD(bytes(packet.octets))
            fields = mad.managementClass, mad.classVersion, mad.method, mad.attribute
            self.assertEqual(fields, (SUBNET_ADMINISTRATION, SA_VERSION, REPORT, Notice.ID))
        return found

    def notices(self) -> list[tuple[int, int]]:
        """
        @return: LID and trap number of each Report that was sent.
        """
        found = []
        for packet in self.reports():
            found.append((packet.dlid, Notice.parse(bytes(packet.octets)[56:]).noticeTrapNumber))
        return found

    def answer(self, report: Packet, lid: int = 2) -> None:
        """
        A port answers a Report.
        """
        mad = decodeMAD(bytes(report.octets))
        self.give(lid, evolve(mad, method=REPORT | RESPONSE).pack())

    def create(self, mgid: int = MGID, lid: int = 1) -> None:
        """
        A group is created; the response is taken.
        """
        record = evolve(RECORD, mgid=mgid, portGID=gidOf(lid))
        self.give(lid, self.request(SET, record, *CREATE))
        self.assertEqual(decodeMAD(bytes(self.manager.sent.pop().octets)).status, 0)


class SubscriptionTests(EventsTestCase):
    """
    Set of InformInfo.
    """

    def test_records(self) -> None:
        """
        Each subscription of a port has a number.
        """
        self.subscribe()
        self.subscribe()
        self.subscribe(evolve(ALL, trapNumber=64))
        self.subscribe(lid=3)
        found = self.table(InformInfoRecord(subscriberGID=gidOf(2)), "subscriberGID")
        self.assertEqual(
            [(each.enum, each.informInfo.trapNumber) for each in found], [(0, ALL_TRAPS), (1, 64)]
        )
        self.assertEqual({each.informInfo.qpn for each in found}, {1})
        (one,) = self.table(InformInfoRecord(subscriberGID=gidOf(2), enum=1), "subscriberGID", "enum")
        self.assertEqual(one, found[1])
        self.port(3).keys = (0x8001,)
        self.assertEqual(self.table(InformInfoRecord(subscriberGID=gidOf(3)), "subscriberGID"), [])

    def test_ended(self) -> None:
        """
        A subscription ends with the same fields and its queue pair; its number is given again.
        """
        self.subscribe()
        self.subscribe(evolve(ALL, trapNumber=64))
        gone = evolve(ALL, subscribe=0, respTimeVal=9)
        for info in (evolve(gone, trapNumber=65), evolve(gone, qpn=2)):
            self.assertEqual(self.status(SET, info), SAStatus.REQUEST_INVALID)
        self.assertEqual(self.status(SET, gone, lid=3), SAStatus.REQUEST_INVALID)
        self.assertEqual(self.set(evolve(gone, qpn=1)).subscribe, 0)
        self.assertEqual(self.status(SET, gone), SAStatus.REQUEST_INVALID)
        self.subscribe(evolve(ALL, trapNumber=65))
        found = self.table(InformInfoRecord())
        self.assertEqual({each.enum: each.informInfo.trapNumber for each in found}, {0: 65, 1: 64})

    def test_refused(self) -> None:
        """
        Reserved values.
        """
        for info in (evolve(ALL, subscribe=2), evolve(ALL, isGeneric=2)):
            self.assertEqual(self.status(SET, info), SAStatus.REQUEST_INVALID)

    def test_bounds(self) -> None:
        """
        A port has so many subscriptions, and so have all.
        """
        self.patch(limits, "SA_PORT_SUBSCRIPTIONS", 2)
        self.patch(limits, "SA_SUBSCRIPTIONS", 3)
        for number in range(2):
            self.subscribe(evolve(ALL, trapNumber=number))
        self.assertEqual(self.status(SET, ALL), SAStatus.NO_RESOURCES)
        self.subscribe(lid=3)
        self.assertEqual(self.status(SET, evolve(ALL, trapNumber=9), lid=3), SAStatus.NO_RESOURCES)

    def test_gone(self) -> None:
        """
        A port that is gone, and comes back, has no subscriptions.
        """
        self.subscribe(lid=3)
        self.create()
        self.sweep(star(2))
        self.assertEqual((len(self.events), self.events.waiting), (0, 0))
        self.assertEqual((self.events._owned, self.events._waiting), ({}, {}))
        self.assertIsNone(self.administration.deadline())


class ReportTests(EventsTestCase):
    """
    Reports.
    """

    def test_report(self) -> None:
        """
        A Report has the notice and its issuer, and goes to the queue pair that has subscribed.
        """
        self.give(2, self.request(SET, ALL), source=0x77)
        self.manager.sent.clear()
        self.create()
        (packet,) = self.reports()
        self.assertEqual((packet.dlid, packet.source, packet.destination), (2, 1, 0x77))
        octets = bytes(packet.octets)
        expected = Notice(
            noticeType=NoticeType.SUBNET_MANAGEMENT,
            noticeProducerType=4,
            noticeTrapNumber=Trap.GROUP_CREATED,
            noticeIssuerLID=1,
            details=GIDDetails(gid=MGID).pack(),
        )
        self.assertEqual(Notice.parse(octets[56:]), expected)
        self.assertEqual(octets[120:136], gidOf(1).to_bytes(16, "big"))

    def test_traps(self) -> None:
        """
        Ports in and out of service, groups created and deleted: traps 64 to 67.
        """
        self.subscribe()
        self.sweep(star(2))
        self.assertEqual(self.notices(), [(2, 65)])
        self.sweep(star(3))
        self.assertEqual(self.notices(), [(2, 64)])
        self.create()
        self.assertEqual(self.notices(), [(2, 66)])
        record = MCMemberRecord(mgid=MGID, portGID=gidOf(1), joinState=1)
        self.give(1, self.request(DELETE, record, "mgid", "portGID", "joinState"))
        self.manager.sent.pop()
        self.assertEqual(self.notices(), [(2, 67)])

    def test_selected(self) -> None:
        """
        A subscriber to something else is not told.
        """
        for info, isTold in (
            (evolve(ALL, trapNumber=66), True),
            (evolve(ALL, trapNumber=67), False),
            (evolve(ALL, noticeType=NoticeType.SUBNET_MANAGEMENT), True),
            (evolve(ALL, noticeType=NoticeType.URGENT), False),
            (evolve(ALL, producerType=4), True),
            (evolve(ALL, producerType=2), False),
            (evolve(ALL, isGeneric=0), False),
            (evolve(ALL, gid=MGID), True),
            (evolve(ALL, gid=MGID + 1), False),
            (evolve(ALL, lidRangeBegin=1, lidRangeEnd=0), True),
            (evolve(ALL, lidRangeBegin=2, lidRangeEnd=9), False),
            (evolve(ALL, lidRangeBegin=0, lidRangeEnd=1), True),
        ):
            with self.subTest(info=info):
                self.administration.reset()
                self.administration.swept(self.now)
                self.subscribe(info)
                self.create()
                self.assertEqual(self.notices(), [(2, 66)] if isTold else [])

    def test_partitions(self) -> None:
        """
        Ports that are not in the group's partition, or share none with the port that came or went, are not
        told.
        """
        for lid in (2, 3):
            self.subscribe(lid=lid)
        self.port(3).keys = (0x8001,)
        self.create()
        self.assertEqual(self.notices(), [(2, 66)])
        nodes = star(4)
        nodes[self.port(3).guid - 1].ports[1].keys = (LIMITED,)
        nodes[self.port(3).guid + 0xF].ports[1].keys = (LIMITED,)
        self.sweep(nodes)
        self.assertEqual(self.notices(), [(2, 64)])
        self.assertEqual(self.port(2).keys, (FULL, 0))

    def test_notified(self) -> None:
        """
        Traps of ports are reported to those that have asked for them.
        """
        self.subscribe(evolve(ALL, trapNumber=Trap.LINK_STATE_CHANGED))
        notice = Notice(
            noticeType=NoticeType.URGENT,
            noticeProducerType=2,
            noticeTrapNumber=Trap.LINK_STATE_CHANGED,
            noticeIssuerLID=3,
            details=LinkStateDetails(lid=3).pack(),
        )
        self.administration.notify(notice, gidOf(3), self.now)
        self.administration.notify(evolve(notice, noticeTrapNumber=144), gidOf(3), self.now)
        # Gone meanwhile.
        self.administration.notify(notice, gidOf(9), self.now)
        (packet,) = self.reports()
        octets = bytes(packet.octets)
        self.assertEqual((Notice.parse(octets[56:]), octets[120:136]), (notice, gidOf(3).to_bytes(16, "big")))

    def test_forged(self) -> None:
        """
        Ports and groups come and go when subnet administration says so, and no port.
        """
        self.subscribe()
        for trap in GIDDetails.TRAPS:
            details = GIDDetails(gid=gidOf(1)).pack()
            notice = Notice(noticeType=NoticeType.SUBNET_MANAGEMENT, noticeTrapNumber=trap, details=details)
            self.administration.notify(evolve(notice, noticeProducerType=4), gidOf(3), self.now)
        self.assertEqual((self.notices(), self.lost), ([], {"sa_forged": len(GIDDetails.TRAPS)}))

    def test_security(self) -> None:
        """
        Traps of security, whose details have M_Keys, are for who has the SM_Key.
        """
        self.subscribe()
        self.assertEqual(self.set(ALL, lid=3, key=KEY), ALL)
        notice = Notice(
            noticeType=NoticeType.SECURITY,
            noticeProducerType=1,
            noticeTrapNumber=Trap.BAD_MKEY,
            noticeIssuerLID=1,
        )
        self.administration.notify(notice, gidOf(1), self.now)
        self.assertEqual(self.notices(), [(3, Trap.BAD_MKEY)])
        self.assertEqual(self.set(ALL, key=KEY), ALL)
        self.administration.notify(notice, gidOf(1), self.now)
        self.assertEqual(self.notices(), [(2, Trap.BAD_MKEY), (3, Trap.BAD_MKEY)])

    def test_answered(self) -> None:
        """
        A Report is repeated until the subscriber answers it; what comes later, or from others, is counted.
        """
        self.subscribe()
        self.create()
        (first,) = self.reports()
        self.wait(LEAST_SECONDS)
        (second,) = self.reports()
        self.assertEqual(second, first)
        self.answer(first, lid=3)
        self.assertEqual(self.lost, {"sa_unexpected": 1})
        self.answer(first)
        self.assertEqual((self.events.waiting, self.administration.deadline()), (0, None))
        self.answer(first)
        self.assertEqual(self.lost, {"sa_unexpected": 2})

    def test_unanswered(self) -> None:
        """
        Not for ever; the subscription stays.
        """
        for time, seconds in ((0, LEAST_SECONDS), (19, 2.15), (31, MOST_SECONDS)):
            with self.subTest(time=time):
                self.administration.reset()
                self.administration.swept(self.now)
                self.lost.clear()
                self.subscribe(evolve(ALL, respTimeVal=time))
                self.create()
                self.wait(RETRIES * seconds + seconds * 0.99)
                self.assertEqual(len(self.notices()), 1 + RETRIES)
                self.wait(seconds * 0.02)
                self.assertEqual((self.lost, self.notices()), ({"sa_report_unanswered": 1}, []))
                events: Any = self.administration.events
                self.assertEqual((events.waiting, len(events), events._waiting), (0, 1, {}))

    def test_bounds(self) -> None:
        """
        So many Reports wait for one port, and for all.
        """
        self.patch(limits, "SA_PORT_REPORTS", 2)
        self.patch(limits, "SA_REPORTS", 3)
        for lid in (2, 3):
            self.subscribe(lid=lid)
        for number in range(3):
            self.create(MGID + number)
        self.assertEqual(self.notices(), [(2, 66), (3, 66), (2, 66)])
        self.assertEqual(self.lost, {"sa_report_dropped": 3})
        self.wait(LEAST_SECONDS * (RETRIES + 1))
        self.assertEqual((self.events.waiting, len(self.notices())), (0, 3 * RETRIES))

    def test_shares(self) -> None:
        """
        The traps of one port leave room for those of others, and for what subnet administration tells.
        """
        self.patch(limits, "SA_TRAP_REPORTS", 2)
        self.patch(limits, "SA_PORT_REPORTS", 4)
        self.subscribe()
        notice = Notice(
            noticeType=NoticeType.URGENT,
            noticeProducerType=2,
            noticeTrapNumber=Trap.LINK_STATE_CHANGED,
            noticeIssuerLID=3,
            details=LinkStateDetails(lid=3).pack(),
        )
        for lid, expected in ((3, [128]), (3, [128]), (3, []), (1, [128])):
            self.administration.notify(notice, gidOf(lid), self.now)
            self.assertEqual([number for _, number in self.notices()], expected)
        self.create()
        self.assertEqual((self.notices(), self.lost), ([(2, 66)], {"sa_report_dropped": 1}))
        self.wait(LEAST_SECONDS * (RETRIES + 1))
        self.assertEqual((self.events.waiting, self.events._shares), (0, {}))
        self.notices()
        self.administration.notify(notice, gidOf(3), self.now)
        self.assertEqual(self.notices(), [(2, 128)])

    def test_transactions(self) -> None:
        """
        No two Reports that wait have one transaction id.
        """
        numbers = iter((5, 5, 6))
        self.events._randomBits = lambda bits: next(numbers)
        for lid in (2, 3):
            self.subscribe(lid=lid)
        self.create()
        self.assertEqual([decodeMAD(bytes(each.octets)).transaction for each in self.reports()], [5, 6])

    def test_response(self) -> None:
        """
        A response of another method is not one.
        """
        self.give(2, Mad(SUBNET_ADMINISTRATION, SA_VERSION, 0x81, 0x7000, Notice.ID))
        self.assertEqual(self.lost, {"sa_unexpected": 1})
