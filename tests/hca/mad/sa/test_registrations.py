"""
Tests of L{twisted_ib.hca.mad.sa.registrations}.
"""

from __future__ import annotations

from typing import Any, ClassVar

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from tests.hca.base.machines import MachineTestsMixin
from twisted_ib.errors import SAResponseError
from twisted_ib.hca.mad.attributes.administration import (
    ALL_LIDS,
    ALL_TRAPS,
    ALL_TYPES,
    ANY_PRODUCER,
    NO_LEASE_END,
    InformInfo,
    MCMemberRecord,
    ServiceRecord,
)
from twisted_ib.hca.mad.attributes.notice import Notice
from twisted_ib.hca.mad.sa.registrations import (
    TRANSITIONS,
    Action,
    EventRegistration,
    GroupRegistration,
    Input,
    Registration,
    ServiceRegistration,
    State,
)

#: The letters of L{MACHINE}: accepted, refused, unanswered, wanted, released, renewed.
INPUTS = (Input.ACCEPTED, Input.REFUSED, Input.UNANSWERED, Input.WANTED, Input.RELEASED, Input.RENEW)
#: For each state and input the next state and what is done; an empty one changes nothing.
MACHINE = """\
REGISTERING REGISTERED:GRANT GONE:FAIL GONE:FAIL . UNREGISTERING:UNREGISTER REGISTERING:REGISTER
REGISTERED . . . . UNREGISTERING:UNREGISTER RENEWING:REGISTER
RENEWING REGISTERED:GRANT GONE:FAIL RENEWING:RETRY . UNREGISTERING:UNREGISTER RENEWING:REGISTER
UNREGISTERING GONE:FORGET GONE:FORGET GONE:FORGET WANTED_AGAIN:NOTHING . .
WANTED_AGAIN REGISTERING:REGISTER REGISTERING:REGISTER REGISTERING:REGISTER . UNREGISTERING:NOTHING .
GONE . . . . . .
"""
GROUP = {"mgid": 7, "joinState": 1}
SERVICE: dict[str, Any] = {"serviceID": 5, "servicePKey": 0xFFFF, "serviceLease": 10}
EVENT = {
    "trapNumber": 64,
    "isGeneric": 1,
    "noticeType": ALL_TYPES,
    "producerType": ANY_PRODUCER,
    "lidRangeBegin": ALL_LIDS,
    "subscribe": 1,
    "qpn": 1,
}


class MachineTests(MachineTestsMixin, SynchronousTestCase):
    """
    The state machine of a registration.
    """

    machine = TRANSITIONS
    stateType, inputType, actionType = State, Input, Action
    rows: ClassVar = {line.split()[0]: line.split()[1:] for line in MACHINE.splitlines()}

    def check(self, state: State, given: Input) -> None:
        """
        A registration has the state and does what is above.
        """
        registration = Registration((1,), {})
        registration.state = state
        action = registration.step(given)
        expected = self.rows[state.name][INPUTS.index(given)]
        self.assertEqual((state, given) in TRANSITIONS, expected != ".", (state, given))
        if expected == ".":
            expected = f"{state.name}:NOTHING"
        self.assertEqual(f"{registration.state.name}:{action.name}", expected, (state, given))


class KindsTests(SynchronousTestCase):
    """
    The requests of each kind.
    """

    def assertAsks(self, mad: Any, method: int, attribute: int, mask: int, record: Any) -> None:
        """
        Check a request.
        """
        self.assertEqual((mad.method, mad.attribute), (method, attribute))
        self.assertEqual(hex(mad.header.componentMask), hex(mask))
        self.assertEqual(type(record).parse(mad.data), record)

    def test_group(self) -> None:
        """
        A group is joined with what its user gives; again with what it is made of.
        """
        group = GroupRegistration(dict(GROUP))
        asked = MCMemberRecord(mgid=7, portGID=9, joinState=1)
        self.assertAsks(group.register(9), 0x02, 0x38, 0x10003, asked)
        self.assertAsks(group.unregister(), 0x15, 0x38, 0x10003, asked)
        found = evolve(asked, mlid=0xC001, qKey=3, pKey=0x8001, mtu=4, rate=6, sl=2, tClass=8, flowLabel=5)
        group.accepted(found.pack())
        again = evolve(found, portGID=10, mlid=0, mtuSelector=2, rateSelector=2)
        self.assertAsks(group.register(10), 0x02, 0x38, 0x133F7, again)
        self.assertAsks(group.unregister(), 0x15, 0x38, 0x10003, evolve(asked, portGID=10))

    def test_newGroup(self) -> None:
        """
        A group without a GID gets one with the answer; before that nobody could leave it.
        """
        one, other = (GroupRegistration({"mgid": 0, "joinState": 1}) for _ in range(2))
        self.assertNotEqual(one.key, other.key)
        mad = one.register(9)
        self.assertEqual(mad.header.componentMask, 0x10003)  # type: ignore[union-attr]
        self.assertIsNone(one.unregister())
        one.accepted(MCMemberRecord(mgid=8, mlid=0xC001).pack())
        self.assertEqual((one.key, one.values["mgid"]), ((MCMemberRecord, 8, 1), 8))
        self.assertIsNotNone(one.unregister())

    def test_wrongGroup(self) -> None:
        """
        An answer with another group, or without an MLID.
        """
        for given, record in (
            (7, MCMemberRecord(mgid=8, mlid=0xC001)),
            (7, MCMemberRecord(mgid=7, mlid=0xBFFF)),
            (0, MCMemberRecord(mgid=0, mlid=0xC001)),
        ):
            group = GroupRegistration({"mgid": given, "joinState": 1})
            self.assertRaises(SAResponseError, group.accepted, record.pack())
            self.assertIsNone(group.record)
        self.assertRaises(SAResponseError, GroupRegistration(dict(GROUP)).accepted, bytes(51))

    def test_service(self) -> None:
        """
        A service is withdrawn by what identifies it.
        """
        service = ServiceRegistration({**SERVICE, "serviceName": b"x"})
        asked = ServiceRecord(
            serviceID=5, serviceGID=9, servicePKey=0xFFFF, serviceLease=10, serviceName=b"x".ljust(64, b"\0")
        )
        self.assertAsks(service.register(9), 0x02, 0x31, 0x57, asked)
        self.assertAsks(
            service.unregister(), 0x15, 0x31, 7, ServiceRecord(serviceID=5, serviceGID=9, servicePKey=0xFFFF)
        )
        service.accepted(asked.pack())
        self.assertEqual((service.record, service.lasts()), (asked, 10.0))
        self.assertIsNone(ServiceRegistration({**SERVICE, "serviceLease": NO_LEASE_END}).lasts())
        self.assertRaises(SAResponseError, service.accepted, evolve(asked, serviceID=6).pack())

    def test_event(self) -> None:
        """
        A subscription ends by the same record.
        """
        event = EventRegistration(dict(EVENT))
        asked = InformInfo(**EVENT)
        self.assertAsks(event.register(9), 0x02, 0x03, 0, asked)
        self.assertAsks(event.unregister(), 0x02, 0x03, 0, evolve(asked, subscribe=0))
        event.accepted(asked.pack())
        self.assertEqual((event.record, event.lasts()), (asked, None))

    def test_matches(self) -> None:
        """
        Each value of a subscription, with an event that it is for and one that it is not for.
        """
        notice = Notice(noticeTrapNumber=64, noticeType=3, noticeProducerType=4, noticeIssuerLID=5)
        self.assertTrue(EventRegistration(dict(EVENT)).matches(notice))
        for name, good, bad in (
            ("trapNumber", ALL_TRAPS, 65),
            ("noticeType", 3, 4),
            ("producerType", 4, 2),
            ("lidRangeBegin", 5, 4),
            ("isGeneric", 1, 0),
        ):
            for value, expected in ((good, True), (bad, False)):
                event = EventRegistration({**EVENT, name: value})
                self.assertIs(event.matches(notice), expected, (name, value))
        for first, last, expected in ((4, 6, True), (5, 0, True), (6, 9, False), (1, 4, False)):
            event = EventRegistration({**EVENT, "lidRangeBegin": first, "lidRangeEnd": last})
            self.assertIs(event.matches(notice), expected, (first, last))

    def test_shared(self) -> None:
        """
        Another user must want the same; what one of them does not say does not matter.
        """
        group = GroupRegistration({**GROUP, "qKey": 3})
        group.join({**GROUP, "qKey": 3, "sl": 1, "mtu": 4})
        group.join(dict(GROUP))
        self.assertIn("qKey", str(self.assertRaises(ValueError, group.join, {"qKey": 4})))
        service = ServiceRegistration({**SERVICE, "serviceName": b"x"})
        self.assertRaises(ValueError, service.join, {"serviceName": b"y"})
        self.assertRaises(ValueError, service.join, {"serviceLease": 11})
