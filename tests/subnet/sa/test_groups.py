"""
Tests of L{twisted_ib.subnet.sa.groups}.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from tests.subnet.sa.cases import (
    FULL,
    KEY,
    LIMITED,
    SWITCH,
    SWITCH_LID,
    AdministrationTestCase,
    gidOf,
    guidOf,
    star,
)
from twisted_ib import limits
from twisted_ib.hca.base.port import DEFAULT_PREFIX
from twisted_ib.hca.mad.attributes.administration import JoinState, MCMemberRecord, Selector
from twisted_ib.hca.mad.attributes.notice import Trap
from twisted_ib.hca.wire.mad.administration import DELETE, GET_TABLE, SAStatus
from twisted_ib.hca.wire.mad.mad import GET, SET
from twisted_ib.subnet.sa.groups import isValidMGID
from twisted_ib.subnet.sm.partitions import DEFAULT, Group, Partition

BROADCAST = 0xFF12_401B_FFFF << 80 | 0xFFFF_FFFF
MGID = 0xFF12_A01C_FE80 << 80 | 0x12345678
JOIN = "mgid", "portGID", "joinState"
CREATE = *JOIN, "qKey", "pKey", "tClass", "sl", "flowLabel"
RATE, MTU = ("rateSelector", "rate"), ("mtuSelector", "mtu")
FULL_MEMBER, NON_MEMBER, SEND_ONLY, SEND_ONLY_FULL = (int(each) for each in JoinState)
RECORD = MCMemberRecord(mgid=MGID, portGID=gidOf(2), qKey=0x1234, pKey=FULL, scope=2, joinState=FULL_MEMBER)
INVALID, INSUFFICIENT = SAStatus.REQUEST_INVALID, SAStatus.INSUFFICIENT_COMPONENTS


def selecting(field: str, selector: int, value: int) -> dict[str, int]:
    """
    @return: changes of a record.
    """
    return {f"{field}Selector": selector, field: value}


class MGIDTests(SynchronousTestCase):
    """
    L{isValidMGID}.
    """

    def test_valid(self) -> None:
        """
        Reserved flags, a GID of no group, and one that subnet administration makes itself are not valid.
        """
        for head, expected in (
            (0xFF12A01C, True),
            (0xFF1FA01C, True),
            (0xFF020000, True),
            (0xFF15A01B, True),
            (0xFF12401B, True),
            (0xFF32601B, True),
            (0xFF12A01B, False),
            (0xFF22A01C, False),
            (0xFA12A01C, False),
            (0xFE800000, False),
            (0, False),
        ):
            with self.subTest(head=hex(head)):
                self.assertIs(isValidMGID(head << 96 | 1), expected)


class GroupsTestCase(AdministrationTestCase):
    """
    With C{happened}, a list of the traps of groups.
    """

    def setUp(self) -> None:
        super().setUp()
        self.groups = self.administration.groups
        self.happened: list[tuple[Trap, int, int]] = []
        self.groups._happened = lambda *event: self.happened.append(event)

    def join(self, *names: str, lid: int = 2, **changes: Any) -> MCMemberRecord:
        """
        @return: the record that a port gets as it joins, by the components that creation needs.
        """
        changes = {"portGID": gidOf(lid), **changes}
        found: MCMemberRecord = self.set(evolve(RECORD, **changes), *(names or CREATE), lid=lid)
        return found

    def leave(self, lid: int = 2, **changes: Any) -> MCMemberRecord:
        """
        @return: the record that a port gets as it leaves.
        """
        record = evolve(RECORD, **{"portGID": gidOf(lid), **changes})
        mad = self.ask(DELETE, record, *JOIN, lid=lid)
        self.assertEqual(SAStatus(mad.status), SAStatus.SUCCESS)
        return MCMemberRecord.parse(mad.data)

    def refused(self, method: int, names: Any, lid: int = 2, **changes: Any) -> SAStatus:
        """
        @return: the status of a request.
        """
        return self.status(method, evolve(RECORD, **changes), *names, lid=lid)


class JoinTests(GroupsTestCase):
    """
    Set.
    """

    def test_broadcast(self) -> None:
        """
        IPoIB's broadcast group is there from the start, and without members.
        """
        found = self.get(MCMemberRecord(mgid=BROADCAST), "mgid")
        self.assertEqual(
            (found.mlid, found.qKey, found.pKey, found.mtu, found.rate, found.scope),
            (0xC000, 0xB1B, FULL, 4, 3, 2),
        )
        self.assertEqual((found.mtuSelector, found.rateSelector), (Selector.EXACTLY, Selector.EXACTLY))
        joined = self.join(*JOIN, mgid=BROADCAST)
        self.assertEqual(joined, evolve(found, portGID=gidOf(2), joinState=FULL_MEMBER))
        self.assertEqual(self.manager.groups, {0xC000: {guidOf(2)}})
        # With what it got, it joins again.
        self.assertEqual(
            self.join(*JOIN, *RATE, *MTU, mgid=BROADCAST, mtu=4, rate=3, mtuSelector=2, rateSelector=2),
            joined,
        )
        self.leave(mgid=BROADCAST)
        self.assertEqual((len(self.groups), self.manager.groups, self.happened), (1, {}, []))

    def test_create(self) -> None:
        """
        The first full member makes the group, with the MTU and the rate of its port, and is told of its LID.
        """
        found = self.join()
        expected = evolve(
            *(RECORD,),
            mlid=0xC001,
            mtuSelector=Selector.EXACTLY,
            mtu=4,
            rateSelector=Selector.EXACTLY,
            rate=3,
            packetLifeTimeSelector=Selector.EXACTLY,
            packetLifeTime=18,
        )
        self.assertEqual(found, expected)
        self.assertEqual(self.happened, [(Trap.GROUP_CREATED, MGID, FULL)])
        self.assertEqual(self.join(*JOIN, lid=3).mlid, 0xC001)
        self.assertEqual(self.manager.groups, {0xC001: {guidOf(2), guidOf(3)}})
        self.assertEqual(len(self.happened), 1)

    def test_made(self) -> None:
        """
        For MGID 0 one is made, with the subnet's prefix, another each time.
        """
        found = [self.join(mgid=0).mgid for _ in range(3)]
        self.assertEqual(len(set(found)), 3)
        self.assertEqual({each >> 32 for each in found}, {0xFF12_A01B << 64 | DEFAULT_PREFIX})
        self.assertEqual(self.join(*CREATE, "scope", mgid=0, scope=5).mgid >> 96, 0xFF15_A01B)
        self.assertEqual(self.join(mgid=0, scope=5).mgid >> 96, 0xFF12_A01B)

    def test_states(self) -> None:
        """
        A join adds to what a member is, a leave takes from it; without a full member there is no group.
        """
        for state, after in (
            (FULL_MEMBER, 1),
            (NON_MEMBER, 3),
            (SEND_ONLY, 7),
            (FULL_MEMBER, 7),
            (SEND_ONLY_FULL, 15),
        ):
            found = self.join(joinState=state)
            self.assertEqual((found.joinState, found.scope), (after, 2))
        for state, after in ((NON_MEMBER, 13), (SEND_ONLY, 9), (FULL_MEMBER, 8)):
            self.assertEqual(self.leave(joinState=state).joinState, after)
        self.join(*JOIN, lid=3, joinState=NON_MEMBER)
        self.assertEqual(self.leave(joinState=SEND_ONLY_FULL).joinState, 0)
        # The non-member goes with the group.
        self.assertEqual((len(self.groups), self.manager.groups), (1, {}))
        self.assertEqual([trap for trap, _, _ in self.happened], [Trap.GROUP_CREATED, Trap.GROUP_DELETED])

    def test_sendOnly(self) -> None:
        """
        Who only sends to a group receives nothing of it, until it joins as more and when it is less again.
        """
        mlid = self.join(joinState=FULL_MEMBER).mlid
        full, other = guidOf(2), guidOf(3)
        for joins, receives in ((SEND_ONLY, False), (SEND_ONLY_FULL, False), (NON_MEMBER, True)):
            self.join(*JOIN, lid=3, joinState=joins)
            members = {full, other} if receives else {full}
            self.assertEqual(self.manager.groups[mlid], members)
            self.assertEqual(self.manager.senders[mlid], {full, other} - members)
        self.leave(lid=3, joinState=NON_MEMBER)
        self.assertEqual((self.manager.groups[mlid], self.manager.senders[mlid]), ({full}, {other}))

    def test_sendOnlyFull(self) -> None:
        """
        A send-only full member makes a group too.
        """
        self.assertEqual(self.join(joinState=SEND_ONLY_FULL).mlid, 0xC001)

    def test_selectors(self) -> None:
        """
        A group has the highest MTU and rate that the selectors leave.
        """
        for names, changes, expected in (
            (RATE, selecting("rate", Selector.LESS, 8), (4, 3)),
            (RATE, selecting("rate", Selector.LESS, 3), (4, 5)),
            (RATE, selecting("rate", Selector.EXACTLY, 2), (4, 2)),
            (MTU, selecting("mtu", Selector.LESS, 5), (4, 3)),
            (MTU, selecting("mtu", Selector.LESS, 4), (3, 3)),
            (MTU, selecting("mtu", Selector.GREATER, 1), (4, 3)),
            (MTU, selecting("mtu", Selector.EXACTLY, 3), (3, 3)),
            (MTU, selecting("mtu", Selector.BEST, 1), (4, 3)),
            (MTU, selecting("mtu", Selector.BEST, 0), (4, 3)),
            (RATE, selecting("rate", Selector.BEST, 0), (4, 3)),
        ):
            with self.subTest(changes=changes):
                found = self.join(*CREATE, *names, mgid=0, **changes)
                self.assertEqual((found.mtu, found.rate), expected)

    def test_insufficient(self) -> None:
        """
        A join names group, port and state; one that creates the group, all that it has.
        """
        for missing in JOIN:
            names = [name for name in CREATE if name != missing]
            self.assertEqual(self.refused(SET, names), INSUFFICIENT)
            self.assertEqual(self.refused(DELETE, names), INSUFFICIENT)
        for missing in set(CREATE) - set(JOIN):
            names = [name for name in CREATE if name != missing]
            for mgid in (0, 1, MGID):
                self.assertEqual(self.refused(SET, names, mgid=mgid), INSUFFICIENT)
        self.assertEqual((len(self.groups), self.manager.groups, self.happened), (1, {}, []))

    def test_refusedCreation(self) -> None:
        """
        A group that cannot be is refused, and leaves nothing.
        """
        for names, changes in (
            (RATE, selecting("rate", Selector.GREATER, 10)),
            (RATE, selecting("rate", Selector.GREATER, 18)),
            (RATE, selecting("rate", Selector.LESS, 2)),
            (RATE, selecting("rate", Selector.EXACTLY, 7)),
            (RATE, selecting("rate", Selector.BEST, 63)),
            (MTU, selecting("mtu", Selector.GREATER, 5)),
            (MTU, selecting("mtu", Selector.LESS, 1)),
            (MTU, selecting("mtu", Selector.EXACTLY, 5)),
            (MTU, selecting("mtu", Selector.GREATER, 6)),
            ((), {"joinState": NON_MEMBER}),
            ((), {"joinState": SEND_ONLY}),
            ((), {"joinState": 0}),
            ((), {"mgid": 0xFA12A01C << 96}),
            ((), {"mgid": 0xFF12A01B << 96}),
            ((), {"pKey": 0x8000}),
            ((), {"pKey": 0x8001}),
            ((), {"portGID": gidOf(9)}),
        ):
            with self.subTest(changes=changes):
                self.assertEqual(self.refused(SET, (*CREATE, *names), **changes), INVALID)
        self.assertEqual(self.refused(SET, CREATE, portGID=gidOf(2) ^ 1 << 64), SAStatus.INVALID_GID)
        self.assertEqual(self.refused(SET, "*"), INVALID)
        self.assertEqual((len(self.groups), self.manager.groups, self.happened), (1, {}, []))

    def test_refusedJoin(self) -> None:
        """
        The values that a join names have to be those of the group, and the port has to be able to be in it.
        """
        self.join()
        for name, changes in (
            ("qKey", {"qKey": 1}),
            ("tClass", {"tClass": 1}),
            ("sl", {"sl": 1}),
            ("flowLabel", {"flowLabel": 1}),
            ("hopLimit", {"hopLimit": 1}),
            ("pKey", {"pKey": 0x8001}),
            ("rate", selecting("rate", Selector.LESS, 2)),
            ("rate", selecting("rate", Selector.GREATER, 3)),
            ("mtu", selecting("mtu", Selector.GREATER, 5)),
            ("mtu", selecting("mtu", Selector.EXACTLY, 3)),
            ("joinState", {"joinState": 0}),
        ):
            names = {*JOIN, name, *(each for each in changes if each != "joinState")}
            with self.subTest(changes=changes):
                self.assertEqual(self.refused(SET, names, lid=3, portGID=gidOf(3), **changes), INVALID)
        port = self.port(3)
        for info in (evolve(port.info, neighborMTU=3), evolve(port.info, linkWidthActive=1)):
            before, port.info = port.info, info
            self.assertEqual(self.refused(SET, JOIN, lid=3, portGID=gidOf(3)), INVALID)
            port.info = before
        port.keys = (0x8001,)
        self.assertEqual(self.refused(SET, JOIN, lid=3, portGID=gidOf(3)), INVALID)
        port.keys = (LIMITED,)
        self.assertEqual(self.refused(SET, JOIN, lid=3, portGID=gidOf(3)), SAStatus.SUCCESS)

    def test_switch(self) -> None:
        """
        Port 0 of a switch, which has no link, may be a member.
        """
        gid = DEFAULT_PREFIX << 64 | SWITCH
        self.assertEqual(self.set(evolve(RECORD, portGID=gid), *CREATE, lid=SWITCH_LID).mtu, 3)


class LeaveTests(GroupsTestCase):
    """
    Delete.
    """

    def test_refused(self) -> None:
        """
        A port that is no member, or not of this kind, is not removed.
        """
        self.join(joinState=FULL_MEMBER | NON_MEMBER)
        for lid, changes in (
            (2, {"joinState": NON_MEMBER | SEND_ONLY}),
            (2, {"joinState": 0}),
            (2, {"mgid": MGID + 1}),
            (3, {"portGID": gidOf(3)}),
            # Another port's membership.
            (3, {}),
        ):
            with self.subTest(lid=lid, changes=changes):
                self.assertEqual(self.refused(DELETE, JOIN, lid=lid, **changes), INVALID)
        self.assertEqual(self.manager.groups, {0xC001: {guidOf(2)}})

    def test_proxy(self) -> None:
        """
        A port makes another one of its partition a member, which any port of the group's partition then
        changes, and no other.
        """
        record = self.set(RECORD, *CREATE, lid=3)
        self.assertEqual((record.portGID, record.proxyJoin), (gidOf(2), 1))
        self.port(3).keys = (0x8001,)
        self.assertEqual(self.refused(DELETE, JOIN, lid=3), INVALID)
        self.assertEqual(self.refused(SET, JOIN, lid=3), INVALID)
        self.assertEqual(self.refused(DELETE, JOIN, lid=1), SAStatus.SUCCESS)
        self.assertEqual(len(self.groups), 1)

    def test_proxyOverridden(self) -> None:
        """
        A member by proxy that joins itself is no longer one by proxy: no other port takes it out, and it
        counts for itself.
        """
        self.set(RECORD, *CREATE, lid=3)
        self.assertEqual(self.refused(SET, JOIN, lid=1), SAStatus.SUCCESS)
        self.assertEqual(self.join(*JOIN).proxyJoin, 0)
        for method in (DELETE, SET):
            self.assertEqual(self.refused(method, JOIN, lid=3), INVALID)
        self.assertEqual(self.groups._owned, {guidOf(2): 1})
        (one,) = self.table(MCMemberRecord(mgid=MGID), "mgid", key=KEY)
        self.assertEqual((one.portGID, one.joinState, one.proxyJoin), (gidOf(2), FULL_MEMBER, 0))
        self.leave()
        self.assertEqual((len(self.groups), self.groups._owned), (1, {}))

    def test_lids(self) -> None:
        """
        The LID of a group that is gone is given to the next.
        """
        for mgid in range(3):
            self.join(mgid=MGID + mgid)
        self.leave(mgid=MGID + 1)
        self.assertEqual(self.join(mgid=MGID + 7).mlid, 0xC002)
        self.assertEqual(self.join(mgid=MGID + 8).mlid, 0xC004)

    def test_nothing(self) -> None:
        """
        A thousand joins and leaves leave nothing.
        """
        for number in range(500):
            lid = 1 + number % 3
            self.join(mgid=MGID + number, lid=lid)
            self.join(*JOIN, mgid=MGID + number, lid=1 + (lid % 3))
            self.leave(mgid=MGID + number, lid=lid)
            self.leave(mgid=MGID + number, lid=1 + (lid % 3))
        groups = self.groups
        self.assertEqual((len(groups), groups._lids, groups._owned), (1, {0xC000}, {}))
        self.assertEqual((groups._lowest, self.manager.groups), (0xC001, {}))
        self.assertEqual(len(self.happened), 1000)


class QueryTests(GroupsTestCase):
    """
    Get and GetTable.
    """

    def test_groups(self) -> None:
        """
        Groups are in the order of their GIDs, without their members: these are for who is trusted, or names
        one.
        """
        self.join(mgid=MGID + 1)
        self.join(mgid=MGID)
        self.join(*JOIN, mgid=MGID, lid=3)
        found = self.table(MCMemberRecord())
        self.assertEqual([each.mgid for each in found], [BROADCAST, MGID, MGID + 1])
        for each in found:
            self.assertEqual((each.portGID, each.joinState, each.proxyJoin), (0, 0, 0))
        found = self.table(MCMemberRecord(), key=KEY)
        self.assertEqual([each.portGID for each in found], [gidOf(2), gidOf(3), gidOf(2)])
        self.assertEqual([each.mgid for each in found], [MGID, MGID, MGID + 1])
        (one,) = self.table(MCMemberRecord(portGID=gidOf(3)), "portGID")
        self.assertEqual((one.mgid, one.portGID), (MGID, 0))

    def test_absent(self) -> None:
        """
        Groups that are not there.
        """
        for record, name in ((MCMemberRecord(), "mlid"), (MCMemberRecord(), "mgid")):
            self.assertEqual(self.status(GET, record, name), SAStatus.NO_RECORDS)

    def test_partitions(self) -> None:
        """
        A group is not told of to ports of other partitions.
        """
        self.port(2).keys = (0x8001,)
        self.assertEqual(self.table(MCMemberRecord()), [])
        self.assertEqual(len(self.table(MCMemberRecord(), lid=1)), 1)


class SweepTests(GroupsTestCase):
    """
    Nodes come and go.
    """

    def test_gone(self) -> None:
        """
        A port that is gone is in no group.
        """
        self.join(lid=3)
        self.join(*JOIN, mgid=BROADCAST, lid=3)
        self.join(*JOIN, mgid=BROADCAST, lid=2)
        self.sweep(star(2))
        self.assertEqual((len(self.groups), self.manager.groups), (1, {0xC000: {guidOf(2)}}))
        self.assertEqual(self.happened[-1], (Trap.GROUP_DELETED, MGID, FULL))

    def test_configured(self) -> None:
        """
        Groups of the configuration come with their partitions, as many as there are LIDs for.
        """
        storage = Partition("storage", 1, groups=(Group(MGID, qKey=5, mtu=5), Group(MGID + 1)))
        self.model.partitions = (*DEFAULT, storage)
        self.patch(limits, "SM_GROUPS", 2)
        self.administration.swept(self.now)
        self.assertEqual([(trap, mgid) for trap, mgid, _ in self.happened], [(Trap.GROUP_CREATED, MGID)])
        (found,) = self.table(MCMemberRecord(mgid=MGID), "mgid", key=KEY) or [None]
        self.assertIsNone(found)
        self.port(2).keys = (0x8001,)
        (found,) = self.table(MCMemberRecord())
        self.assertEqual(
            (found.mgid, found.qKey, found.mtu, found.pKey, found.mlid), (MGID, 5, 5, 0x8001, 0xC001)
        )


class BoundTests(GroupsTestCase):
    """
    The bounds of a port, and of all of them.
    """

    def test_ports(self) -> None:
        """
        A port makes so many memberships, whoever becomes a member.
        """
        self.patch(limits, "SA_PORT_GROUPS", 3)
        for number in range(2):
            self.join(mgid=MGID + number)
        self.set(evolve(RECORD, portGID=gidOf(3), mgid=MGID + 3), *CREATE)
        self.assertEqual(self.refused(SET, CREATE, mgid=MGID + 4), SAStatus.NO_RESOURCES)
        self.assertEqual(self.refused(SET, JOIN, mgid=BROADCAST), SAStatus.NO_RESOURCES)
        self.assertEqual(len(self.groups), 4)
        self.join(lid=3, mgid=MGID + 4)
        self.leave()
        self.join(mgid=MGID + 5)

    def test_proxyOverridden(self) -> None:
        """
        A port that has all that it may have does not get one more by another's proxy.
        """
        self.patch(limits, "SA_PORT_GROUPS", 1)
        self.join()
        self.set(evolve(RECORD, mgid=MGID + 1), *CREATE, lid=3)
        self.assertEqual(self.refused(SET, JOIN, mgid=MGID + 1), SAStatus.NO_RESOURCES)
        self.assertEqual(self.groups._owned, {guidOf(2): 1, guidOf(3): 1})

    def test_others(self) -> None:
        """
        A port that is in as many groups as LIDs are left makes no more: others have room.
        """
        switch = self.model.nodes[SWITCH].switch
        switch.info = evolve(switch.info, mcastFdbCap=8)
        for lid, most in ((2, 4), (3, 2), (1, 1)):
            for _ in range(most):
                self.join(mgid=0, lid=lid)
            refused = {"mgid": 0, "portGID": gidOf(lid)}
            self.assertEqual(self.refused(SET, CREATE, lid=lid, **refused), SAStatus.NO_RESOURCES)
        self.assertEqual(len(self.groups), 8)
        self.join(*JOIN, mgid=BROADCAST)

    def test_lids(self) -> None:
        """
        There are as many groups as the smallest switch has entries for.
        """
        switch = self.model.nodes[SWITCH].switch
        switch.info = evolve(switch.info, mcastFdbCap=3)
        self.join(mgid=MGID)
        self.join(mgid=MGID + 1)
        self.assertEqual(self.refused(SET, CREATE, mgid=MGID + 2), SAStatus.NO_RESOURCES)
        self.leave(mgid=MGID)
        self.join(mgid=MGID + 2)
        self.assertEqual(self.status(GET_TABLE, MCMemberRecord()), SAStatus.SUCCESS)
