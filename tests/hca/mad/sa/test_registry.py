"""
Tests of L{twisted_ib.hca.mad.sa.registry}: groups, services and subscriptions of a client.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve

from tests.hca.mad.sa.cases import MLID, NEW_GROUP, SATestCase, answer
from tests.hca.mad.sa.contract import isRenewing
from tests.hca.mad.sa.test_client import noManager, nothing
from twisted_ib import limits
from twisted_ib.errors import (
    DeviceClosedError,
    HeaderError,
    ResourceLimitError,
    SAResponseError,
    SATimeoutError,
)
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.port import PortState
from twisted_ib.hca.mad.attributes.administration import (
    InformInfo,
    JoinState,
    MCMemberRecord,
    ServiceRecord,
)
from twisted_ib.hca.wire.mad.administration import BUSY

MGID = 0xFF12401BFFFF << 80 | 0xFFFFFFFF
SET, DELETE = 0x02, 0x15


class RegistryTestCase(SATestCase):
    """
    C{a} registers with C{b}.
    """

    def join(self, mgid: int = MGID, **values: Any) -> Any:
        """
        Join a group, and let it be answered.
        """
        handle = self.client.join(mgid, self.said.append, self.said.append, **values)
        self.settle()
        return handle

    def asked(self) -> list[tuple[int, int]]:
        """
        @return: method, and MGID, service id or trap number, of what was asked since.
        """
        kinds: dict[int, tuple[type[Any], str]] = {
            MCMemberRecord.ID: (MCMemberRecord, "mgid"),
            ServiceRecord.ID: (ServiceRecord, "serviceID"),
            InformInfo.ID: (InformInfo, "trapNumber"),
        }
        found = []
        for mad in self.sa.take():
            kind, name = kinds[mad.attribute]
            found.append((mad.method, getattr(kind.parse(mad.data), name)))
        return found

    def end(self) -> None:
        """
        Let all attempts time out.
        """
        for _ in range(4):
            self.wait(1.0)

    def reregister(self, kind: EventType = EventType.CLIENT_REREGISTER) -> None:
        """
        A subnet manager asks the port to register again.
        """
        self.client.event(kind)
        self.wait(0.0)


class RegistrationsTests(RegistryTestCase):
    """
    Users of registrations.
    """

    def test_group(self) -> None:
        """
        A group is joined and left.
        """
        handle = self.join()
        (record,) = self.taken()
        self.assertEqual((record.mlid, record.portGID, handle.record), (MLID, self.a.gid, record))
        handle.close(self.said.append)
        self.settle()
        self.assertEqual((self.asked(), self.taken()), ([(SET, MGID), (DELETE, MGID)], [None]))
        handle.close(self.said.append)
        handle.close()
        self.assertEqual((self.taken(), handle.record, len(self.client.registrations)), ([None], None, 0))

    def test_users(self) -> None:
        """
        A group is joined for the first user and left after the last; each hears of it.
        """
        first = self.client.join(MGID, self.said.append)
        second = self.client.join(MGID, self.said.append)
        self.settle()
        third = self.join(qKey=0xB1B)
        self.assertEqual([each.mlid for each in self.taken()], [MLID] * 3)
        for handle in (first, third):
            handle.close(self.said.append)
        self.settle()
        self.assertEqual((self.taken(), self.asked()), ([None, None], [(SET, MGID)]))
        second.close()
        self.settle()
        self.assertEqual(self.asked(), [(DELETE, MGID)])

    def test_joinStates(self) -> None:
        """
        Memberships of one group with other JoinStates are others.
        """
        handles = [self.join(joinState=state) for state in JoinState]
        self.assertEqual(len(self.asked()), 4)
        handles[2].close()
        self.settle()
        (left,) = self.sa.take()
        self.assertEqual(MCMemberRecord.parse(left.data).joinState, 4)  # type: ignore[arg-type]
        self.assertRaises(ValueError, self.client.join, MGID, nothing, joinState=3)

    def test_others(self) -> None:
        """
        A second user with other values is refused, and is no user.
        """
        self.join()
        error = self.assertRaises(ValueError, self.client.join, MGID, nothing, qKey=1)
        self.assertIn("it has qKey 2843 already, not 1: close that first", str(error))
        for values in ({"qKey": 1 << 32}, {"scopes": 1}):
            self.assertRaises((HeaderError, ValueError), self.client.join, 5, nothing, **values)
        self.assertEqual((len(self.client.registrations), self.client.registrations._users), (1, 1))

    def test_newGroups(self) -> None:
        """
        Each group without a GID is a new one, which is left and renewed by the GID that it got.
        """
        first = self.join(0)
        self.assertEqual(first.record.mgid, NEW_GROUP)
        self.sa.answer = lambda mad: evolve(mad, data=MCMemberRecord(mgid=5, mlid=MLID).pack())
        self.join(0)
        self.assertEqual(len(self.client.registrations), 2)
        self.asked()
        self.sa.answer = answer
        # By its GID it is the same group.
        again = self.join(NEW_GROUP)
        self.assertEqual((again.record, self.asked()), (first.record, []))
        again.close()
        self.reregister()
        self.assertEqual(self.asked(), [(SET, NEW_GROUP), (SET, 5)])
        first.close()
        self.settle()
        self.assertEqual((self.asked(), len(self.client.registrations)), ([(DELETE, NEW_GROUP)], 1))

    def test_newGroupClosed(self) -> None:
        """
        One that is given up before it has a GID is not left, as nobody could say which it is; the request is
        not repeated.
        """
        self.sa.silence()
        handle = self.join(0)
        self.asked()
        handle.close(self.said.append)
        self.end()
        self.assertEqual((self.asked(), self.taken(), len(self.client.registrations)), ([], [None], 0))

    def test_refused(self) -> None:
        """
        All users are told, and may try again.
        """
        self.sa.refuse(0x0600)
        handles = [self.client.join(MGID, self.said.append) for _ in range(2)]
        self.settle()
        errors = self.taken()
        self.assertEqual([each.statusName for each in errors], ["INSUFFICIENT_COMPONENTS"] * 2)
        self.assertIn("to make one give qKey, pKey", str(errors[0]))
        for handle in handles:
            self.assertIsNone(handle.record)
            handle.close()
        self.assertEqual((len(self.client.registrations), self.client.registrations._users), (0, 0))
        self.sa.answer = answer
        self.join()
        self.assertEqual(self.taken()[0].mlid, MLID)

    def test_timeout(self) -> None:
        """
        A request to register that nobody answers.
        """
        self.sa.silence()
        self.join()
        self.end()
        self.assertIsInstance(self.taken()[0], SATimeoutError)
        self.assertEqual((len(self.asked()), len(self.client.registrations)), (4, 0))

    def test_malformed(self) -> None:
        """
        An answer with another group.
        """
        self.sa.answer = lambda mad: evolve(mad, data=MCMemberRecord(mgid=5, mlid=MLID).pack())
        self.join()
        self.assertIsInstance(self.taken()[0], SAResponseError)
        self.assertEqual(self.a.counters["sa_malformed"], 1)

    def test_cancelled(self) -> None:
        """
        A request that is under way is not repeated, and the group is left, as it may have been joined; that
        is repeated until it is answered.
        """
        self.sa.silence()
        handle = self.join()
        handle.close(self.said.append)
        self.settle()
        self.assertEqual(self.asked(), [(SET, MGID), (DELETE, MGID)])
        self.wait(1.0)
        self.assertEqual((self.asked(), self.taken()), ([(DELETE, MGID)], []))
        self.sa.answer = answer
        self.wait(1.0)
        self.assertEqual((self.asked(), self.taken()), ([(DELETE, MGID)], [None]))
        self.end()
        self.assertEqual((self.asked(), len(self.client.registrations)), ([], 0))

    def test_unanswered(self) -> None:
        """
        A user that leaves is told that it was not answered, or was refused; it has left.
        """
        for silence in (True, False):
            self.sa.answer = answer
            handle = self.join()
            self.taken()
            if silence:
                self.sa.silence()
            else:
                self.sa.refuse(0x0200)
            handle.close(self.said.append)
            self.end()
            self.assertIsInstance(self.taken()[0], SATimeoutError if silence else Exception)
            self.assertEqual(len(self.client.registrations), 0)

    def test_again(self) -> None:
        """
        A user that comes while the group is left waits for that; one that goes again changes nothing.
        """
        handle = self.join()
        self.taken()
        self.sa.silence()
        handle.close(self.said.append)
        self.client.join(MGID, self.said.append).close(self.said.append)
        self.client.join(MGID, self.said.append)
        self.assertEqual(self.taken(), [])
        self.sa.answer = answer
        self.wait(1.0)
        found = self.taken()
        self.assertEqual((found[:2], found[2].mlid), ([None, None], MLID))
        self.assertEqual(self.asked(), [(SET, MGID), (DELETE, MGID), (DELETE, MGID), (SET, MGID)])
        self.assertEqual(self.client.registrations._users, 1)

    def test_sameGID(self) -> None:
        """
        A new group that gets the GID of one that there is already is none.
        """
        first = self.join(NEW_GROUP)
        self.taken()
        self.join(0)
        self.assertIsInstance(self.taken()[0], SAResponseError)
        self.assertEqual((len(self.client.registrations), first.record.mgid), (1, NEW_GROUP))

    def test_closedWithin(self) -> None:
        """
        A user who is told may close any handle: those that are closed hear nothing more.
        """
        handles: list[Any] = []

        def close(outcome: Any) -> None:
            self.said.append(outcome)
            for handle in handles:
                handle.close()

        for _ in range(3):
            handles.append(self.client.join(MGID, close, close))
        self.settle()
        self.assertEqual((len(self.taken()), self.asked()), (1, [(SET, MGID), (DELETE, MGID)]))
        self.assertEqual(len(self.client.registrations), 0)

    def test_closedAgainWithin(self) -> None:
        """
        Also a user who is told that it has left, of a group that is wanted again.
        """
        handle = self.join()
        self.sa.silence()
        handles: list[Any] = []
        handle.close(lambda error: handles[0].close())
        handles.append(self.client.join(MGID, nothing))
        self.sa.answer = answer
        self.wait(1.0)
        self.settle()
        self.assertEqual([method for method, _ in self.asked()], [SET, DELETE, DELETE, SET, DELETE])
        self.assertEqual(len(self.client.registrations), 0)

    def test_bound(self) -> None:
        """
        So many users.
        """
        self.patch(limits, "SA_REGISTRATIONS", 2)
        first = self.join()
        self.join()
        error = self.assertRaises(ResourceLimitError, self.client.join, MGID, nothing)
        self.assertIn("2 users of registrations: close some", str(error))
        first.close()
        self.join()

    def test_unsent(self) -> None:
        """
        A group that cannot be left, as there is no room for the request, is left all the same.
        """
        handle = self.join()
        self.taken()

        def refused(*arguments: Any) -> None:
            raise ResourceLimitError("full")

        self.patch(self.a.mads, "send", refused)
        handle.close(self.said.append)
        self.assertIsInstance(self.taken()[0], ResourceLimitError)
        self.assertEqual(len(self.client.registrations), 0)

    def test_raising(self) -> None:
        """
        An exception of one user keeps no other from its answer.
        """

        def raising(record: Any) -> None:
            raise ZeroDivisionError

        self.client.join(MGID, raising)
        self.client.join(MGID, self.said.append)
        self.assertRaises(ZeroDivisionError, self.settle)
        self.assertEqual(len(self.taken()), 1)

    def test_closed(self) -> None:
        """
        When the device closes all are told: those that wait, and those that leave.
        """
        self.join()
        leaving = self.join(5)
        self.sa.silence()
        leaving.close(self.said.append)
        self.client.join(5, self.said.append)
        self.client.join(6, self.said.append)
        self.taken()
        self.a.close()
        self.assertEqual([type(each) for each in self.taken()], [DeviceClosedError] * 3)


class CloseTests(RegistryTestCase):
    """
    A device that closes gives up what it has registered.
    """

    def setUp(self) -> None:
        """
        Register.
        """
        super().setUp()
        self.a._sa = self.client
        self.join()
        self.client.service(5, nothing)
        self.sa.silence()
        self.join(0)
        self.settle()
        self.asked()

    def test_left(self) -> None:
        """
        A group whose name is known is given up, without an answer.
        """
        sent: list[Any] = []
        self.patch(self.client._agent.__class__, "send", lambda agent, address, mad: sent.append(mad))
        self.a.close()
        self.assertEqual([(mad.method, mad.attribute) for mad in sent], [(DELETE, 0x38), (DELETE, 0x31)])

    def test_noManager(self) -> None:
        """
        Without a subnet manager it closes too.
        """
        self.client._exchanges.address = noManager
        self.a.close()
        self.assertEqual(self.a.counters["sa_not_left"], 1)


class ServicesTests(RegistryTestCase):
    """
    Services and subscriptions.
    """

    def test_service(self) -> None:
        """
        A service is registered with its values, and withdrawn.
        """
        handle = self.client.service(5, self.said.append, serviceName=b"x", serviceData8=tuple(range(16)))
        self.settle()
        (record,) = self.taken()
        self.assertEqual(
            (record.serviceGID, record.servicePKey, record.serviceLease), (self.a.gid, 0xFFFF, 0xFFFFFFFF)
        )
        self.assertEqual((record.serviceName[:2], record.serviceData8[15]), (b"x\0", 15))
        handle.close()
        self.settle()
        self.assertEqual(self.asked(), [(SET, 5), (DELETE, 5)])
        for lease in (0, -1):
            self.assertRaises(ValueError, self.client.service, 5, nothing, lease=lease)

    def test_lease(self) -> None:
        """
        A lease is renewed in its middle, as often as it takes; not after the service is withdrawn.
        """
        handle = self.client.service(5, self.said.append, lease=20)
        self.settle()
        self.asked()
        for _ in range(3):
            self.wait(9.9)
            self.assertEqual(self.asked(), [])
            self.wait(0.1)
            self.assertEqual(self.asked(), [(SET, 5)])
        self.assertEqual(len(self.taken()), 1)
        handle.close()
        self.settle()
        self.asked()
        self.wait(60.0)
        self.assertEqual(self.asked(), [])

    def test_leaseUnanswered(self) -> None:
        """
        A renewal that is not answered is tried again.
        """
        self.client.service(5, self.said.append, lease=20)
        self.settle()
        self.sa.silence()
        self.wait(10.0)
        self.end()
        self.asked()
        self.sa.answer = answer
        self.wait(1.0)
        self.assertEqual(self.asked(), [(SET, 5)])
        self.wait(10.0)
        self.assertEqual(self.asked(), [(SET, 5)])

    def test_subscription(self) -> None:
        """
        Two subscribers of one event share a subscription.
        """
        handles = [self.client.subscribe(64, print, self.said.append) for _ in range(2)]
        self.client.subscribe(65, print, self.said.append)
        self.settle()
        self.assertEqual((self.asked(), len(self.taken())), ([(SET, 64), (SET, 65)], 3))
        for handle in handles:
            handle.close()
        self.settle()
        (mad,) = self.sa.take()
        info = InformInfo.parse(mad.data)  # type: ignore[arg-type]
        self.assertEqual((mad.method, info.trapNumber, info.subscribe, info.qpn), (SET, 64, 0, 1))
        self.assertRaises(TypeError, self.client.subscribe, 64, print, nothing, mgid=1)


class RenewalTests(RegistryTestCase):
    """
    A subnet manager that has forgotten the port.
    """

    def test_events(self) -> None:
        """
        Each event of the port after which all is registered again.
        """
        renews = {
            *(EventType.PORT_ACTIVE, EventType.LID_CHANGE, EventType.SM_CHANGE, EventType.GID_CHANGE),
            EventType.CLIENT_REREGISTER,
        }
        self.join()
        self.client.service(5, nothing)
        self.client.subscribe(64, print, nothing)
        self.settle()
        every = self.asked()
        for kind in EventType:
            self.reregister(kind)
            self.assertEqual(self.asked(), every if kind in renews else [], kind)
        self.assertEqual(len(self.taken()), 1)

    def test_together(self) -> None:
        """
        One Set of a subnet manager is several events and one renewal, when the port is Active.
        """
        self.join()
        self.asked()
        self.a.port.state = PortState.INIT
        for kind in (EventType.LID_CHANGE, EventType.SM_CHANGE, EventType.CLIENT_REREGISTER):
            self.reregister(kind)
        self.assertEqual(self.asked(), [])
        self.a.port.state = PortState.ACTIVE
        for kind in (EventType.PORT_ACTIVE, EventType.SM_CHANGE):
            self.client.event(kind)
        self.wait(0.0)
        self.assertEqual(self.asked(), [(SET, MGID)])

    def test_values(self) -> None:
        """
        A group is joined again with what it is made of, and the port's GID of now.
        """
        self.join()
        self.sa.take()
        self.patch(self.client.registrations, "_gid", lambda: 77)
        self.reregister()
        (mad,) = self.sa.take()
        record = MCMemberRecord.parse(mad.data)  # type: ignore[arg-type]
        self.assertEqual((record.qKey, record.mtuSelector, record.mtu, record.portGID), (0xB1B, 2, 4, 77))

    def test_changed(self) -> None:
        """
        Users are told when the record is another.
        """
        handle = self.join()
        self.client.join(MGID, self.said.append)
        self.taken()
        self.sa.answer = lambda mad: evolve(mad, data=evolve(handle.record, mlid=0xC009).pack())
        self.reregister()
        self.assertEqual([each.mlid for each in self.taken()], [0xC009])
        self.assertEqual(handle.record.mlid, 0xC009)

    def test_lost(self) -> None:
        """
        Users are told when it is refused, and it is gone.
        """
        handle = self.join()
        self.taken()
        self.sa.refuse(0x0700)
        self.reregister()
        self.assertEqual([each.statusName for each in self.taken()], ["REQUEST_DENIED"])
        self.assertEqual((handle.record, len(self.client.registrations)), (None, 0))

    def test_retried(self) -> None:
        """
        A renewal is tried again, after waits that double up to their limit, until it is answered.
        """
        self.join()
        self.taken()
        self.asked()
        self.sa.silence()
        self.reregister()
        waits = [1.0, 2.0, 4.0, 8.0, 16.0, 16.0]
        for wait in waits:
            self.end()
            self.assertEqual(len(self.asked()), 4)
            self.wait(wait - 0.1)
            self.assertEqual(self.asked(), [])
            self.wait(0.1)
        self.sa.answer = answer
        self.wait(1.0)
        self.asked()
        self.wait(60.0)
        self.assertEqual((self.asked(), self.taken(), self.client.registrations._wait), ([], [], 1.0))

    def test_retriedAnew(self) -> None:
        """
        Another event tries at once, and the waits begin anew.
        """
        self.join()
        self.sa.silence()
        self.reregister()
        for wait in (1.0, 2.0):
            self.end()
            self.wait(wait)
        self.asked()
        self.reregister()
        self.assertEqual(self.asked(), [(SET, MGID)])
        self.end()
        self.asked()
        self.wait(1.0)
        self.assertEqual(self.asked(), [(SET, MGID)])
        # Also those that wait to be tried again.
        self.end()
        self.sa.answer = answer
        self.reregister()
        self.assertFalse(isRenewing(self.client.registrations))

    def test_passing(self) -> None:
        """
        A subnet manager that is busy or has no room is asked again too.
        """
        for status in (BUSY, 0x0100):
            handle = self.join()
            self.taken()
            self.sa.refuse(status)
            self.reregister()
            while not self.client.registrations._late:
                self.wait(1.0)
            self.sa.answer = answer
            self.asked()
            self.wait(1.0)
            self.assertEqual((self.asked(), self.taken()), ([(SET, MGID)], []))
            handle.close()
            self.settle()

    def test_closedMeanwhile(self) -> None:
        """
        A registration that is given up while it waits to be tried again is not tried.
        """
        handle = self.join()
        self.sa.silence()
        self.reregister()
        self.end()
        self.sa.answer = answer
        self.asked()
        handle.close()
        self.settle()
        self.assertFalse(isRenewing(self.client.registrations))
        self.wait(20.0)
        self.assertEqual(self.asked(), [(DELETE, MGID)])

    def test_noManager(self) -> None:
        """
        A port that has lost its subnet manager waits for the next one.
        """
        self.join()
        self.taken()
        self.asked()
        has = self.client._exchanges.address
        self.client._exchanges.address = noManager
        self.reregister(EventType.SM_CHANGE)
        self.wait(60.0)
        self.assertEqual((self.asked(), self.taken(), self.a.timers.deadline()), ([], [], None))
        self.client._exchanges.address = has
        self.reregister(EventType.SM_CHANGE)
        self.assertEqual((self.asked(), self.taken()), ([(SET, MGID)], []))

    def test_unsent(self) -> None:
        """
        Those whose request cannot be sent make room, and are tried again.
        """
        self.patch(limits, "SA_RENEWALS", 1)
        for mgid in (1, 2):
            self.join(mgid)
        self.asked()

        def refused(*arguments: Any) -> None:
            raise ResourceLimitError("full")

        patch = self.patch(self.a.mads, "send", refused)
        self.reregister()
        self.assertTrue(isRenewing(self.client.registrations))
        patch.restore()
        self.wait(1.0)
        self.assertEqual((self.asked(), isRenewing(self.client.registrations)), ([(SET, 1), (SET, 2)], False))

    def test_registering(self) -> None:
        """
        A first request that is under way is sent to the new subnet manager; that of one that leaves is left
        alone.
        """
        self.sa.silence()
        self.join()
        self.join(5).close()
        self.settle()
        self.asked()
        self.sa.answer = answer
        self.reregister()
        self.assertEqual((self.asked(), len(self.taken())), ([(SET, MGID)], 1))

    def test_paced(self) -> None:
        """
        So many are renewed at a time, the others after them, in order.
        """
        self.patch(limits, "SA_RENEWALS", 2)
        for mgid in range(1, 6):
            self.join(mgid)
        self.asked()
        self.sa.silence()
        self.reregister()
        self.assertEqual(self.asked(), [(SET, 1), (SET, 2)])
        self.sa.answer = answer
        self.wait(1.0)
        self.assertEqual(self.asked(), [(SET, number) for number in range(1, 6)])

    def test_pacedClosed(self) -> None:
        """
        One that is given up meanwhile makes room at once.
        """
        self.patch(limits, "SA_RENEWALS", 1)
        first = self.join(1)
        self.join(2)
        self.asked()
        self.sa.silence()
        self.reregister()
        first.close()
        self.settle()
        self.assertEqual(self.asked(), [(SET, 1), (DELETE, 1), (SET, 2)])

    def test_pacedAgain(self) -> None:
        """
        Another event meanwhile begins anew, and those that have been refused make room.
        """
        self.patch(limits, "SA_RENEWALS", 1)
        for mgid in range(1, 4):
            self.join(mgid)
        self.asked()
        self.sa.silence()
        self.reregister()
        self.reregister()
        self.assertEqual(self.asked(), [(SET, 1), (SET, 1)])
        self.sa.refuse(0x0200)
        self.wait(1.0)
        self.assertEqual(self.asked(), [(SET, 1), (SET, 2), (SET, 3)])
        self.assertEqual(len(self.client.registrations), 0)
