"""
Tests of L{twisted_ib.hca.mad.sa.client}: paths, queries and events.
"""

from __future__ import annotations

import random
from typing import Any

from attrs import evolve

from tests.hca.hcas import settle
from tests.hca.mad.cases import OnRings
from tests.hca.mad.sa.cases import SATestCase, answer, tableOf
from twisted_ib import limits
from twisted_ib.errors import (
    DeviceClosedError,
    DeviceError,
    HCAError,
    NoRecordsError,
    NoSubnetManagerError,
    ResourceLimitError,
    SAResponseError,
    SAStatusError,
    SATimeoutError,
)
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.port import PortChange, PortState
from twisted_ib.hca.mad.attributes.administration import MCMemberRecord, NodeRecord, PathRecord
from twisted_ib.hca.mad.attributes.node import NodeInfo
from twisted_ib.hca.mad.attributes.notice import GIDDetails, Notice, Trap
from twisted_ib.hca.mad.sa.queries import Patience
from twisted_ib.hca.services.address import AddressVector
from twisted_ib.hca.wire.mad.administration import BUSY, GET_TABLE
from twisted_ib.hca.wire.mad.mad import Mad

GID = 9 << 64 | 1


def nothing(outcome: object) -> None:
    """
    Ignore it.
    """


def noManager() -> AddressVector:
    """
    A port has no subnet manager.
    """
    raise NoSubnetManagerError("none")


class PathTests(SATestCase):
    """
    L{SAClient.path}.
    """

    def test_asked(self) -> None:
        """
        A path is asked for once, and reported again at once.
        """
        self.assertIsNotNone(self.path())
        (asked,) = self.sa.take()
        query = PathRecord.parse(asked.data)  # type: ignore[arg-type]
        self.assertEqual(query, PathRecord(dgid=GID, sgid=self.a.gid, reversible=1, numbPath=1))
        self.assertEqual((asked.method, asked.header.componentMask), (0x01, 0x180C))  # type: ignore[union-attr]
        (record,) = self.taken()
        self.assertEqual((record.dgid, record.dlid, record.mtu), (GID, 5, 4))
        self.assertIsNone(self.path())
        self.assertEqual((self.sa.take(), self.taken()), ([], [record]))

    def test_values(self) -> None:
        """
        A partition and a source GID, with paths of their own.
        """
        self.path()
        self.path(pKey=0x8001, sgid=7)
        query = PathRecord.parse(self.sa.take()[1].data)  # type: ignore[arg-type]
        self.assertEqual((query.pKey, query.sgid), (0x8001, 7))
        self.assertEqual(len(self.client.paths), 2)

    def test_together(self) -> None:
        """
        Users that ask at the same time share a request; one that is cancelled hears nothing.
        """
        waiters = [self.client.path(GID, self.said.append) for _ in range(3)]
        waiters[1].cancel()  # type: ignore[union-attr]
        waiters[1].cancel()  # type: ignore[union-attr]
        self.settle()
        self.assertEqual((len(self.sa.take()), len(self.taken()), self.client.waiting), (1, 2, 0))

    def test_cancelled(self) -> None:
        """
        The request of the last user is not repeated, and its answer is nobody's.
        """
        self.sa.silence()
        self.path().cancel()
        self.assertEqual(len(self.sa.take()), 1)
        for _ in range(5):
            self.wait(1.0)
        self.assertEqual((self.sa.take(), self.taken(), self.client.waiting), ([], [], 0))
        self.sa.answer = answer
        waiter: Any = self.client.path(GID, self.said.append)
        waiter.cancel()
        self.settle()
        self.assertEqual((self.taken(), self.a.counters["management_unmatched"]), ([], 1))

    def test_timeout(self) -> None:
        """
        A request is repeated, and then reported as unanswered.
        """
        self.sa.silence()
        self.path(patience=Patience(2.0, 1))
        self.wait(1.9)
        self.assertEqual(len(self.sa.take()), 1)
        self.wait(0.2)
        self.assertEqual((len(self.sa.take()), self.taken()), (1, []))
        self.wait(2.0)
        (error,) = self.taken()
        self.assertIsInstance(error, SATimeoutError)
        self.assertIn("not answered in 4 s: check that the subnet manager runs", str(error))

    def test_patience(self) -> None:
        """
        Times that are out of range are refused, and nothing waits.
        """
        for patience in (Patience(0.0), Patience(1.0, -1), Patience(61.0), Patience(1.0, 16)):
            self.assertRaises(ValueError, self.client.path, GID, print, patience=patience)
        self.assertEqual((self.client.waiting, self.client._queries), (0, {}))

    def test_refused(self) -> None:
        """
        A status is an error, and not remembered.
        """
        for status, kind in ((0x0300, NoRecordsError), (0x0500, SAStatusError), (0x000C, SAStatusError)):
            self.sa.refuse(status)
            self.path()
            (error,) = self.taken()
            self.assertEqual((type(error), error.status), (kind, status))
        self.assertEqual(len(self.sa.take()), 3)

    def test_busy(self) -> None:
        """
        A request that is answered with BUSY is repeated as often as one without an answer.
        """
        self.sa.refuse(BUSY)
        self.path(patience=Patience(1.0, 2))
        self.wait(1.0)
        self.sa.answer = answer
        self.assertEqual((len(self.sa.take()), self.taken()), (2, []))
        self.wait(1.0)
        self.assertIsInstance(self.taken()[0], PathRecord)
        self.sa.refuse(BUSY)
        self.path(5, patience=Patience(1.0, 1))
        self.wait(1.0)
        self.assertEqual([each.statusName for each in self.taken()], ["BUSY"])

    def test_busyCancelled(self) -> None:
        """
        One that waits to be repeated is cancelled.
        """
        self.sa.refuse(BUSY)
        waiter = self.path()
        self.sa.take()
        waiter.cancel()
        self.wait(1.0)
        self.assertEqual((self.sa.take(), self.taken()), ([], []))

    def test_busyUnsent(self) -> None:
        """
        One that cannot be repeated is reported.
        """
        self.sa.refuse(BUSY)
        self.path()
        self.manager = AddressVector(self.b.gid)
        self.patch(self.client._agent, "_agents", self.a.mads)
        self.patch(self.a.mads, "_draw", lambda agent: self.fail("not reached"))

        def refused(*arguments: Any) -> None:
            raise ResourceLimitError("full")

        self.patch(self.a.mads, "send", refused)
        self.wait(1.0)
        self.assertIsInstance(self.taken()[0], ResourceLimitError)

    def test_wrongPath(self) -> None:
        """
        A path to another port, one without a LID, and an answer to another question.
        """
        for changed in (
            {"data": PathRecord(dgid=5, dlid=5).pack()},
            {"data": PathRecord(dgid=GID).pack()},
            {"attribute": 0x38},
        ):
            self.sa.answer = lambda mad, changed=changed: evolve(mad, **changed)
            self.path()
            self.assertIsInstance(self.taken()[0], SAResponseError)
        self.assertEqual((len(self.client.paths), self.client.waiting), (0, 0))

    def test_stranger(self) -> None:
        """
        An answer of somebody else is dropped, with the transaction that was asked.
        """
        other = self.device()
        stranger = other.mads.register(0x03, 2, (GET_TABLE,), print, 1)
        self.sa.silence()
        self.client.path(GID, self.said.append)
        self.settle()
        (asked,) = self.sa.requests
        path = PathRecord(dgid=GID, dlid=6).pack()
        self.patch(other, "randomBits", lambda count: asked.transaction)
        mad = evolve(asked.mad, method=0x81, data=path)
        stranger.send(AddressVector(self.a.gid), mad)
        settle(self.a, self.b, other)
        self.assertEqual((self.taken(), self.a.counters["management_unmatched"]), ([], 1))

    def test_changed(self) -> None:
        """
        Each event of the port after which paths may be others; the answer to a request of before is reported,
        but not remembered.
        """
        forgets = {
            *(EventType.PORT_ERR, EventType.LID_CHANGE, EventType.SM_CHANGE, EventType.GID_CHANGE),
            *(EventType.PKEY_CHANGE, EventType.CLIENT_REREGISTER),
        }
        for kind in EventType:
            self.path()
            self.assertEqual(len(self.client.paths), 1)
            self.client.event(kind)
            self.assertEqual(len(self.client.paths), 0 if kind in forgets else 1, kind)
        self.client.paths.clear()
        self.taken()
        self.client.path(GID, self.said.append)
        self.client.event(EventType.SM_CHANGE)
        self.settle()
        self.assertEqual((len(self.taken()), len(self.client.paths)), (1, 0))

    def test_bound(self) -> None:
        """
        So many users wait at a time, of one path or of many.
        """
        self.patch(limits, "SA_WAITING", 2)
        waiters = [self.client.path(gid, nothing) for gid in (GID, GID)]
        for gid in (GID, 5):
            self.assertRaises(ResourceLimitError, self.client.path, gid, print)
        self.assertRaises(ResourceLimitError, self.client.query, NodeRecord, print)
        waiters[0].cancel()  # type: ignore[union-attr]
        self.client.path(5, nothing)

    def test_raising(self) -> None:
        """
        An exception of one user keeps no other from its answer.
        """

        def raising(record: Any) -> None:
            self.said.append("raised")
            raise ZeroDivisionError

        self.client.path(GID, raising)
        self.client.path(GID, self.said.append)
        self.assertRaises(ZeroDivisionError, self.settle)
        self.assertEqual((len(self.taken()), self.client.waiting), (2, 0))

    def test_noManager(self) -> None:
        """
        A port that has no subnet manager waits for it as long as for an answer, and then says so.
        """
        has = self.client._exchanges.address
        self.client._exchanges.address = noManager
        for end in (True, False):
            self.path(patience=Patience(1.0, 1))
            self.wait(1.9)
            self.assertEqual((self.sa.take(), self.taken()), ([], []))
            if end:
                self.wait(0.1)
                self.assertIsInstance(self.taken()[0], NoSubnetManagerError)
        self.client._exchanges.address = has
        self.sa.silence()
        # Once, whatever happens to the port while it is asked.
        for count in (1, 0):
            self.client.event(EventType.SM_CHANGE)
            self.wait(0.0)
            self.assertEqual((len(self.sa.take()), self.taken()), (count, []))
        self.sa.answer = answer
        self.wait(1.0)
        self.assertEqual((len(self.sa.take()), self.taken()[0].dlid), (1, 5))
        self.wait(5.0)
        self.assertEqual((self.sa.take(), self.taken(), self.client._exchanges.unaddressed), ([], [], {}))

    def test_noManagerCancelled(self) -> None:
        """
        One that waits is cancelled, and ends with the device.
        """
        self.client._exchanges.address = noManager
        self.path().cancel()
        self.assertEqual(self.client._exchanges.unaddressed, {})
        self.assertRaises(ValueError, self.client.path, GID, nothing, patience=Patience(0.0))
        self.a._sa = self.client
        self.path()
        self.a.close()
        self.assertEqual([type(each) for each in self.taken()], [DeviceClosedError])

    def test_closed(self) -> None:
        """
        When the device closes all are told.
        """
        self.sa.silence()
        self.path()
        self.a.close()
        self.assertIsInstance(self.taken()[0], DeviceClosedError)


class QueryTests(SATestCase):
    """
    L{SAClient.query}.
    """

    def ask(self, **values: Any) -> Any:
        """
        @return: the outcome that is reported.
        """
        self.client.query(NodeRecord, self.said.append, values)
        for _ in range(200):
            self.settle()
            if self.said:
                break
        (found,) = self.taken()
        return found

    def test_tables(self) -> None:
        """
        Tables of no, one, two and many records.
        """
        for count in (0, 1, 2, 300):
            expected = [NodeRecord(lid=lid, nodeInfo=NodeInfo(guid=lid)) for lid in range(1, count + 1)]
            self.sa.answer = lambda mad, found=expected: tableOf(mad, found)
            self.assertEqual(self.ask(), expected)

    def test_values(self) -> None:
        """
        The query has what was asked for.
        """
        self.sa.answer = lambda mad: tableOf(mad, [])
        self.ask(lid=3, guid=5)
        (asked,) = self.sa.take()
        self.assertEqual((asked.method, asked.header.componentMask), (0x12, 0x81))  # type: ignore[union-attr]
        self.assertRaises(ValueError, self.client.query, NodeRecord, print, {"mgid": 1})

    def test_silent(self) -> None:
        """
        One that answers anything is there, one that does not within half a second may be stopped; nobody to
        ask is an answer too.
        """
        for found in ([], [NodeRecord(lid=1)]):
            self.sa.answer = lambda mad, found=found: tableOf(mad, found)
            self.client.silent(self.said.append)
            self.settle()
            self.assertEqual(self.taken(), [False])
        self.sa.silence()
        self.client.silent(self.said.append)
        self.wait(limits.SA_SILENT_SECONDS - 0.1)
        self.assertEqual(self.taken(), [])
        self.wait(0.2)
        self.assertEqual(self.taken(), [True])
        self.client._exchanges.address = noManager
        self.client.silent(self.said.append)
        self.wait(limits.SA_SILENT_SECONDS)
        self.assertEqual(self.taken(), [False])

    def test_malformed(self) -> None:
        """
        A table with records of another size is counted.
        """
        self.sa.answer = lambda mad: tableOf(mad, [PathRecord(dlid=1)])
        self.assertIsInstance(self.ask(), SAResponseError)
        self.assertEqual(self.a.counters["sa_malformed"], 1)

    def test_refused(self) -> None:
        """
        A table can be refused by a plain MAD.
        """
        self.sa.refuse(0x0200)
        self.assertEqual(self.ask().statusName, "REQUEST_INVALID")

    def test_cancelled(self) -> None:
        """
        A query that is cancelled hears nothing.
        """
        self.client.query(NodeRecord, self.said.append).cancel()
        self.settle()
        self.assertEqual((self.taken(), self.client.waiting), ([], 0))


class MutatedTests(SATestCase):
    """
    Answers that are almost right.
    """

    #: How many, and the seed.
    count = 100
    seed = 19

    def mutated(self, mad: Mad) -> Mad:
        """
        @return: an answer with a wrong octet, and perhaps more that is wrong.
        """
        chance = self.chance
        known = [NodeRecord(lid=1, nodeInfo=NodeInfo(guid=3))]
        good = tableOf(mad, known * chance.randrange(4)) if mad.method == GET_TABLE else answer(mad)
        data = bytearray(bytes(good.data).ljust(200, b"\0"))  # type: ignore[arg-type]
        data[chance.randrange(len(data))] = chance.randrange(256)
        header: Any = good.header
        header = header._replace(attributeOffset=chance.choice((0, 1, 13, 14, 15, 0xFFFF)))
        changes: dict[str, Any] = chance.choice(
            ({}, {"attribute": 0x38}, {"status": chance.choice((1, 2, 4, 0x100, 0x300, 0x900, 0xFFFF))})
        )
        return evolve(good, data=bytes(data), header=header, **changes)

    def test_mutated(self) -> None:
        """
        Each request ends in a record, a list or an error, and nothing stays of it.
        """
        self.chance = random.Random(self.seed)
        self.sa.answer = self.mutated
        for _ in range(self.count):
            self.client.path(GID, self.said.append)
            self.client.query(NodeRecord, self.said.append)
            handle = self.client.join(self.chance.choice((0, 7)), self.said.append)
            for _ in range(5):
                self.wait(1.0)
            found = self.taken()
            self.assertEqual(len(found), 3)
            for each in found:
                self.assertIsInstance(each, (HCAError, list, PathRecord, MCMemberRecord))
            handle.close()
            for _ in range(5):
                self.wait(1.0)
            self.client.paths.clear()
        # Transfers that are complete still acknowledge what is repeated.
        self.wait(60.0)
        left = (len(self.client.registrations), self.client.waiting, len(self.a.mads._requests))
        self.assertEqual((*left, self.a.timers.deadline()), (0, 0, 0, None))


class ReportTests(SATestCase):
    """
    Events that subnet administration reports.
    """

    notice = Notice(
        noticeType=3,
        noticeProducerType=4,
        noticeTrapNumber=Trap.GID_OUT_OF_SERVICE,
        noticeIssuerLID=1,
        details=GIDDetails(gid=GID).pack(),
    )

    def setUp(self) -> None:
        """
        Subscribe.
        """
        super().setUp()
        self.came: list[Any] = []
        self.handle = self.client.subscribe(
            Trap.GID_OUT_OF_SERVICE, lambda notice, issuer: self.came.append((notice, issuer)), nothing
        )
        self.settle()

    def test_delivered(self) -> None:
        """
        An event comes with the GID of its issuer, and is answered; the path to that port is forgotten.
        """
        self.path()
        (response,) = self.report(self.notice)
        self.assertEqual((response.method, response.mad.status), (0x86, 0))
        self.assertEqual(self.came, [(self.notice, 3)])
        self.assertEqual(len(self.client.paths), 0)

    def test_repeated(self) -> None:
        """
        A Report that is repeated, as its answer was lost, is answered again and delivered once.
        """
        self.patch(self.b, "randomBits", lambda count: 5)
        for _ in range(2):
            self.assertEqual(len(self.report(self.notice)), 1)
        self.assertEqual((len(self.came), self.a.counters["sa_repeated"]), (1, 1))
        # Another event with the same transaction is no repetition.
        self.report(evolve(self.notice, noticeCount=1))
        self.assertEqual(len(self.came), 2)

    def test_bound(self) -> None:
        """
        So many Reports are remembered.
        """
        self.patch(limits, "SA_REPORTS_KNOWN", 3)
        for number in range(5):
            self.report(evolve(self.notice, noticeCount=number))
        self.assertEqual((len(self.client._reports), len(self.came)), (3, 5))

    def test_foreign(self) -> None:
        """
        A Report of somebody else is not answered.
        """
        self.assertEqual(self.report(self.notice, sender=self.device()), [])
        self.assertEqual((self.came, self.a.counters["sa_foreign"]), ([], 1))

    def test_noManager(self) -> None:
        """
        A port without a subnet manager takes no Report.
        """
        self.client._exchanges.address = noManager
        self.assertEqual(self.report(self.notice), [])
        self.assertEqual(self.a.counters["sa_foreign"], 1)

    def test_unclaimed(self) -> None:
        """
        An event that nobody has subscribed to is answered and counted.
        """
        notice = evolve(self.notice, noticeTrapNumber=Trap.GROUP_CREATED)
        self.assertEqual(len(self.report(notice)), 1)
        self.assertEqual((self.came, self.a.counters["sa_unclaimed"]), ([], 1))

    def test_attribute(self) -> None:
        """
        A Report of another attribute is refused.
        """
        (response,) = self.report(self.notice, attribute=0x38)
        self.assertEqual((response.mad.status, self.came), (0x0C, []))

    def test_raising(self) -> None:
        """
        An exception of one subscriber keeps no other from the event.
        """

        def raising(notice: Notice, issuer: int) -> None:
            raise ZeroDivisionError

        self.client.subscribe(Trap.GID_OUT_OF_SERVICE, raising, nothing)
        self.client.subscribe(Trap.GID_OUT_OF_SERVICE, lambda *event: self.said.append(event), nothing)
        self.settle()
        self.assertRaises(ZeroDivisionError, self.report, self.notice)
        self.assertEqual((len(self.came), len(self.taken())), (1, 1))

    def test_closed(self) -> None:
        """
        A subscription that has ended gets nothing.
        """
        self.handle.close()
        self.settle()
        self.report(self.notice)
        self.assertEqual((self.came, self.a.counters["sa_unclaimed"]), ([], 1))


class DeviceTests(SATestCase):
    """
    C{Device.sa}.
    """

    def test_ethernet(self) -> None:
        """
        A port that is not on InfiniBand has none, and is told of no changes.
        """
        error = self.assertRaises(DeviceError, getattr, self.b, "sa")
        self.assertIn("test has no subnet administration", str(error))
        self.b.changePort(PortChange(state=PortState.DOWN))
        self.assertIsNone(self.b._sa)


class RingsTests(OnRings, PathTests):
    """
    Over rings.
    """
