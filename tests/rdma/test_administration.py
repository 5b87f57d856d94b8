"""
Tests of L{twisted_ib.rdma.administration}.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from attrs import evolve
from twisted.internet.defer import CancelledError

from tests.hca.mad.sa.cases import MLID, SATestCase, answer, tableOf
from twisted_ib import limits
from twisted_ib.errors import NoRecordsError, ResourceLimitError, SAStatusError, SATimeoutError
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.mad.attributes.administration import NodeRecord, PathRecord
from twisted_ib.hca.mad.attributes.notice import Notice
from twisted_ib.rdma import SubnetAdministration, administration

MGID = 0xFF12401BFFFF << 80 | 0xFFFFFFFF
GID = 9 << 64 | 1


class AdministrationTests(SATestCase):
    """
    Deferreds of a client.
    """

    def setUp(self) -> None:
        """
        Make the adapter, in a channel that tells who uses it.
        """
        super().setUp()
        self.used: list[Any] = []
        channel = SimpleNamespace(
            device=SimpleNamespace(sa=self.client, gid=GID),
            acquire=self.used.append,
            release=self.used.remove,
        )
        self.patch(administration, "channelFor", lambda reactor, name: channel)
        self.adapter = SubnetAdministration(None)

    def fired(self, deferred: Any) -> Any:
        """
        @return: the result.
        """
        self.settle()
        return self.successResultOf(deferred)

    def failed(self, deferred: Any, kind: type[Exception]) -> Any:
        """
        @return: the error.
        """
        self.settle()
        return self.failureResultOf(deferred, kind).value

    def test_path(self) -> None:
        """
        A path, when it comes and at once; the device is served while a request is under way.  By default it
        is from the device's own GID, and in any partition.
        """
        deferred = self.adapter.path(self.adapter.gid)
        self.assertEqual(self.used, [self.adapter])
        self.assertEqual(self.fired(deferred).dlid, 5)
        self.assertEqual(self.successResultOf(self.adapter.path(GID)).dlid, 5)
        [asked] = [PathRecord.parse(mad.data) for mad in self.sa.take()]
        self.assertEqual((asked.sgid, asked.pKey, self.used), (self.a.gid, 0, []))
        self.fired(self.adapter.path(GID, 0x8001, 7))
        [asked] = [PathRecord.parse(mad.data) for mad in self.sa.take()]
        self.assertEqual((asked.sgid, asked.pKey), (7, 0x8001))

    def test_pathFails(self) -> None:
        """
        A status, no answer, and no room.
        """
        self.sa.refuse(0x0300)
        self.failed(self.adapter.path(GID), NoRecordsError)
        self.sa.silence()
        deferred = self.adapter.path(GID, timeout=2.0, retries=0)
        self.settle()
        self.wait(2.0)
        self.failed(deferred, SATimeoutError)
        self.patch(limits, "SA_WAITING", 0)
        self.failureResultOf(self.adapter.path(GID), ResourceLimitError)
        self.assertEqual(self.used, [])

    def test_pathCancelled(self) -> None:
        """
        A request that is cancelled is not repeated.
        """
        self.sa.silence()
        deferred = self.adapter.path(GID)
        self.settle()
        deferred.cancel()
        self.failureResultOf(deferred, CancelledError)
        self.wait(5.0)
        self.assertEqual((len(self.sa.take()), self.used), (1, []))

    def test_query(self) -> None:
        """
        The records of a table.
        """
        self.sa.answer = lambda mad: tableOf(mad, [NodeRecord(lid=3)])
        self.assertEqual(self.fired(self.adapter.query(NodeRecord, lid=3)), [NodeRecord(lid=3)])
        self.failureResultOf(self.adapter.query(NodeRecord, mgid=3), ValueError)

    def test_join(self) -> None:
        """
        A membership, which lasts until it is closed.
        """
        group = self.fired(self.adapter.join(MGID))
        again = self.successResultOf(self.adapter.join(MGID))
        self.assertEqual((group.record.mlid, again.record.mlid), (MLID, MLID))
        self.assertIsNone(self.successResultOf(again.close()))
        self.assertEqual(self.used, [self.adapter])
        self.sa.take()
        closed = group.close()
        self.assertNoResult(closed)
        self.assertIsNone(self.fired(closed))
        self.assertIsNone(self.successResultOf(group.close()))
        self.assertEqual(([mad.method for mad in self.sa.take()], self.used), ([0x15], []))

    def test_joinFails(self) -> None:
        """
        A group that is refused, and values that it has not.
        """
        self.sa.refuse(0x0600)
        self.failed(self.adapter.join(MGID), SAStatusError)
        self.failureResultOf(self.adapter.join(MGID, scopes=1), ValueError)
        self.assertEqual(self.used, [])

    def test_joinCancelled(self) -> None:
        """
        A group whose joining is cancelled is left; the device is served until it is.
        """
        deferred = self.adapter.join(MGID)
        deferred.cancel()
        self.failureResultOf(deferred, CancelledError)
        self.assertEqual(self.used, [self.adapter])
        self.settle()
        self.assertEqual(([mad.method for mad in self.sa.take()], self.used), ([0x02, 0x15], []))

    def test_leaveFails(self) -> None:
        """
        An error of leaving; who does not wait for it does not hear of it.
        """
        for cancels in (False, True):
            self.sa.answer = answer
            group = self.fired(self.adapter.join(MGID))
            self.sa.refuse(0x0200)
            deferred = group.close()
            if cancels:
                deferred.cancel()
            self.failed(deferred, CancelledError if cancels else SAStatusError)
        self.assertEqual(self.used, [])

    def test_changed(self) -> None:
        """
        A record that changes, and a membership that is lost.
        """
        group = self.fired(self.adapter.join(MGID, self.said.append))
        silent = self.fired(self.adapter.join(MGID))
        changed = evolve(group.record, mlid=0xC009)
        self.sa.answer = lambda mad: evolve(mad, data=changed.pack())
        self.client.event(EventType.SM_CHANGE)
        self.wait(0.0)
        self.assertEqual(([each.mlid for each in self.taken()], self.used), ([0xC009], [self.adapter]))
        self.sa.refuse(0x0700)
        self.client.event(EventType.SM_CHANGE)
        self.wait(0.0)
        self.assertEqual([each.statusName for each in self.taken()], ["REQUEST_DENIED"])
        self.assertEqual((group.record, silent.record, self.used), (None, None, []))
        self.assertIsNone(self.successResultOf(group.close()))

    def test_service(self) -> None:
        """
        A service.
        """
        service = self.fired(self.adapter.service(5, serviceName=b"x"))
        self.assertEqual(service.record.serviceID, 5)
        self.fired(service.close())
        self.assertEqual(self.used, [])

    def test_subscribe(self) -> None:
        """
        A subscription, and an event.
        """
        self.fired(self.adapter.subscribe(64, lambda *event: self.said.append(event)))
        notice = Notice(noticeTrapNumber=64)
        self.report(notice)
        self.assertEqual((self.taken(), self.used), ([(notice, 3)], [self.adapter]))
        self.adapter.connectionLost(None)  # type: ignore[arg-type]
