"""
Reliable and unreliable connections by LID, and what cuts them: forwarding tables, port states, P_Keys.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import Any
from unittest import skipIf

from tests.contracts.unreliable import UnreliableSide
from tests.hca.hcas import LISTENER, SDP, Taker, User, settle
from tests.hca.queues.keyed_pair import DeviceSide, piece
from tests.subnet.port.subnets import LEAVES, OnSubnetRings, SubnetTestCase
from twisted_ib import limits
from twisted_ib.errors import NoRouteError
from twisted_ib.hca.base.attributes import ACK_DELAY_CODE
from twisted_ib.hca.base.operation import RESUME
from twisted_ib.hca.base.port import PortState
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.host import libc
from twisted_ib.hca.mad.attributes.notice import BadKeyDetails
from twisted_ib.hca.mad.sa.client import SAClient
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.hca.services.address import AddressVector
from twisted_ib.subnet.network.switch import NO_PORT

MISSING = libc.available()
SEND, READ = SendOpcode.SEND, SendOpcode.RDMA_READ
OK, RETRIES = WCStatus.SUCCESS, WCStatus.RETRY_EXC_ERR
#: P_Keys: limited and full members of one partition, full members of another.
LIMITED, FULL, OTHER = 0x0123, 0x8123, 0x8456
#: The least timeout, 134 ms; with one repetition a request fails soon, and has failed then.
SOON = {"timeout": ACK_DELAY_CODE, "retry_cnt": 1}
SOON_SECONDS = 0.3
#: What an answer of subnet administration takes.
ANSWER_SECONDS = 0.01


class LIDSide(DeviceSide):
    """
    A queue pair that is told its peer's LID.
    """

    def __init__(self, device: Device, lid: int) -> None:
        """
        @param lid: the peer's.
        """
        super().__init__(device, AddressVector(0, lid=lid, isGlobal=False))

    def say(self, id: int, data: bytes) -> None:
        """
        Post a send.
        """
        self.send(id, SEND, piece(self.register(data)))


class CutContract:
    """
    Between adapters at two switches.
    """

    topology = LEAVES

    def setUp(self: Any) -> None:
        """
        Open C{a} and C{c}.
        """
        super().setUp()  # type: ignore[misc]
        self.a, self.c = self.at("a", "c")

    def sides(self: Any, **changes: int) -> tuple[LIDSide, LIDSide]:
        """
        @return: two connected queue pairs.
        """
        one, two = LIDSide(self.a, self.c.port.lid), LIDSide(self.c, self.a.port.lid)
        one.to(QPState.RTS, two.qp.number, **{**SOON, **changes})
        two.to(QPState.RTS, one.qp.number, **{**SOON, **changes})
        settle(self.a, self.c)
        return one, two

    def said(self: Any, one: LIDSide, two: LIDSide) -> list[tuple[int, WCStatus]]:
        """
        Let one say something, with patience.

        @return: the completions of its sends.
        """
        two.receive(1, piece(two.register(8)))
        one.say(2, b"said")
        self.run_(SOON_SECONDS, self.a, self.c)
        statuses: list[tuple[int, WCStatus]] = one.statuses()
        return statuses

    def assertTalk(self: Any, one: LIDSide, two: LIDSide) -> None:
        """
        Both ways.
        """
        for each, other in ((one, two), (two, one)):
            self.assertEqual(self.said(each, other), [(2, OK)])
            self.assertEqual(len(other.received()), 1)

    def test_lids(self: Any) -> None:
        """
        Queue pairs that know LIDs and numbers connect, whichever GUID is lower.
        """
        one, two = self.sides()
        self.assertTalk(one, two)
        path = one.qp.path
        self.assertEqual((path.peer.lid, path.peer.guid), (self.c.port.lid, self.c.guid))

    def test_forwarding(self: Any) -> None:
        """
        An entry of one switch that leads nowhere stops a connection, in either direction, and restored it
        lets a new one through; ten times.
        """
        for turn in range(10):
            name, lid = (("t", self.a.port.lid), ("s", self.c.port.lid))[turn % 2]
            switch = self.port(name)
            number = switch.node.switch.linear[lid]
            one, two = self.sides()
            self.assertTalk(one, two)
            self.manager.setRoute(switch, lid, NO_PORT)
            self.assertEqual(self.said(one, two), [(2, RETRIES)])
            self.assertEqual((one.qp.state, two.received()), (QPState.ERR, []))
            self.manager.setRoute(switch, lid, number)
            self.assertTalk(*self.sides())
            one.qp.close()
            two.qp.close()

    def test_shortLoss(self: Any) -> None:
        """
        A way that comes back before the retries are over costs nothing but time.
        """
        one, two = self.sides(timeout=14, retry_cnt=7)
        self.assertTalk(one, two)
        switch, lid = self.port("t"), self.a.port.lid
        self.manager.setRoute(switch, lid, NO_PORT)
        self.assertEqual(self.said(one, two), [])
        one.say(3, b"more")
        two.receive(4, piece(two.register(8)))
        self.manager.setRoute(switch, lid, 3)
        self.run_(0.5, self.a, self.c)
        self.assertEqual(one.statuses(), [(2, OK), (3, OK)])
        self.assertEqual([each.workRequestID for each in two.received()], [1, 4])
        self.assertTalk(one, two)

    def test_read(self: Any) -> None:
        """
        A READ that is refused ends like a send; one that is under way is answered.
        """
        one, two = self.sides()
        source, target = two.register(b"data"), one.register(4)
        fields = {"remoteAddress": source.address, "remoteKey": source.remoteKey}
        one.send(1, READ, piece(target), **fields)
        settle(self.a, self.c)
        self.assertEqual((one.statuses(), bytes(target.view)), ([(1, OK)], b"data"))
        self.manager.setRoute(self.port("s"), self.c.port.lid, NO_PORT)
        one.send(2, READ, piece(target), **fields)
        self.run_(SOON_SECONDS, self.a, self.c)
        self.assertEqual(one.statuses(), [(2, RETRIES)])

    def test_pathLost(self: Any) -> None:
        """
        The end of a peer's process is told to queue pairs that are cut off, too.
        """
        one, two = self.sides()
        self.manager.setRoute(self.port("s"), self.c.port.lid, NO_PORT)
        settle(self.a, self.c)
        self.c.close()
        settle(self.a)
        self.assertIsInstance(one.consumer.failures[-1], Exception)
        self.assertEqual(one.qp.state, QPState.ERR)
        self.assertEqual(two.qp.state, QPState.RESET)


class LoopbackTests(CutContract, SubnetTestCase):
    """
    Records within a thread.
    """

    def test_beforeTheWay(self) -> None:
        """
        Queue pairs whose way is not there yet connect when it is; requests wait as on a wire.
        """
        self.manager.setRoute(self.port("s"), self.c.port.lid, NO_PORT)
        one, two = self.sides(timeout=17, retry_cnt=7)
        failing, _ = self.sides()
        self.assertEqual(self.said(one, two), [])
        failing.say(5, b"in vain")
        self.run_(SOON_SECONDS, self.a, self.c)
        self.assertEqual(failing.statuses(), [(5, RETRIES)])
        self.manager.setRoute(self.port("s"), self.c.port.lid, 3)
        self.run_(1.0, self.a, self.c)
        self.assertEqual((one.statuses(), len(two.received())), ([(2, OK)], 1))
        self.assertTalk(one, two)

    def test_portState(self) -> None:
        """
        A link that a manager takes down stops a connection; the port has an event.
        """
        one, two = self.sides()
        self.assertTalk(one, two)
        self.manager.setPort(self.port("c"), physLinkState=3)
        settle(self.a, self.c)
        self.assertEqual(self.c.port.state, PortState.DOWN)
        self.assertEqual(self.said(one, two), [(2, RETRIES)])

    def test_partitions(self) -> None:
        """
        Limited members of a partition do not reach each other, a limited and a full one do; members of
        different partitions do not.
        """
        cases = (
            (LIMITED, LIMITED, False),
            (LIMITED, FULL, True),
            (FULL, LIMITED, True),
            (FULL, OTHER, False),
        )
        for mine, theirs, reaches in cases:
            for name, key in (("a", mine), ("c", theirs)):
                self.manager.setPartitions(self.port(name), key)
            settle(self.a, self.c)
            one, two = self.sides()
            if reaches:
                self.assertTalk(one, two)
            else:
                self.assertEqual(self.said(one, two), [(2, RETRIES)])
                port = self.port("c")
                self.assertGreater(port.pkeyViolations, 0)
                details = BadKeyDetails.parse(port.notices[-1].details)
                self.assertEqual((details.lid1, details.lid2, details.key), (self.a.port.lid, port.lid, mine))
                self.assertEqual((details.qp1, details.qp2), (one.qp.number, two.qp.number))

    def test_slots(self) -> None:
        """
        Of ports that share two partitions, queue pairs of different ones do not reach each other, whichever
        is ready first; a change of the table lets them.
        """
        for name in "ac":
            self.manager.setPartitions(self.port(name), FULL, OTHER)
        settle(self.a, self.c)
        for first in (0, 1):
            one, two = LIDSide(self.a, self.c.port.lid), LIDSide(self.c, self.a.port.lid)
            pair = ((one, two, 0), (two, one, 1))
            for side, other, slot in (pair[first], pair[1 - first]):
                side.to(QPState.RTS, other.qp.number, pkey_index=slot, timeout=14, retry_cnt=7)
                settle(self.a, self.c)
            self.assertEqual(self.said(one, two), [])
            self.manager.setPartitions(self.port("c"), OTHER, FULL)
            self.run_(0.3, self.a, self.c)
            self.assertEqual((one.statuses(), len(two.received())), ([(2, OK)], 1))
            self.manager.setPartitions(self.port("c"), FULL, OTHER)
            settle(self.a, self.c)

    def test_members(self) -> None:
        """
        A peer may tell the P_Keys of so many queue pairs; what it tells of others is no matter.
        """
        self.patch(limits, "SUBNET_MEMBERS", 3)
        one, two = self.sides()
        path = two.qp.path
        for number in range(100, 110):
            one.qp.path.postReserved(RESUME << 24, Struct("<IH2x").pack(number, FULL), False)
        one.qp.path.postReserved(RESUME << 24, b"other", False)
        settle(self.a, self.c)
        self.assertEqual(list(path.members), [107, 108, 109])
        self.assertTalk(one, two)
        one.qp.close()
        two.qp.close()
        self.assertEqual((path._told, path._numbers), ({}, {}))

    def test_membershipWaits(self) -> None:
        """
        A P_Key for which there is no room on the way is told when there is.
        """
        one, two = self.sides()
        path = one.qp.path
        for size in (1 << 16, 0):
            while path.postReserved(RESUME << 24, bytes(size), False):
                pass
        late = LIDSide(self.a, self.c.port.lid)
        late.to(QPState.RTS, two.qp.number, **SOON)
        settle(self.a)
        self.assertNotIn(late.qp.number, two.qp.path.members)
        settle(self.a, self.c)
        self.assertIn(late.qp.number, two.qp.path.members)

    def test_partitionTaken(self) -> None:
        """
        A connection ends when a manager takes its peer out of the partition.
        """
        for name in "ac":
            self.manager.setPartitions(self.port(name), FULL, OTHER)
        settle(self.a, self.c)
        one, two = self.sides(pkey_index=1)
        self.assertTalk(one, two)
        other, another = self.sides(pkey_index=0)
        self.manager.setPartitions(self.port("c"), FULL)
        settle(self.a, self.c)
        self.assertEqual(two.qp.state, QPState.ERR)
        self.assertEqual(self.said(one, two), [(2, RETRIES)])
        self.assertTalk(other, another)

    def test_itself(self) -> None:
        """
        A port reaches its own queue pairs by its LID, also one that is connected to itself.
        """
        own = self.a.port.lid
        one, two = LIDSide(self.a, own), LIDSide(self.a, own)
        one.to(QPState.RTS, two.qp.number, **SOON)
        two.to(QPState.RTS, one.qp.number, **SOON)
        settle(self.a)
        self.assertTalk(one, two)
        self.assertTalk(two, one)
        alone = LIDSide(self.a, own)
        alone.to(QPState.RTS, alone.qp.number, **SOON)
        settle(self.a)
        self.assertEqual(self.said(alone, alone), [(2, OK)])

    def test_noGroup(self) -> None:
        """
        A connection has no multicast LID.
        """
        side = LIDSide(self.a, 0xC000)
        self.assertRaises(NoRouteError, side.to, QPState.RTS, 5)

    def test_moved(self) -> None:
        """
        A LID that a manager gives to another port leads there.
        """
        (b,) = self.at("b")
        lid = self.c.port.lid
        self.manager.setPort(self.port("c"), lid=40)
        self.manager.setPort(self.port("b"), lid=lid)
        self.manager.setRoute(self.port("s"), lid, 2)
        settle(self.a, b, self.c)
        one, two = LIDSide(self.a, lid), LIDSide(b, self.a.port.lid)
        one.to(QPState.RTS, two.qp.number, **SOON)
        two.to(QPState.RTS, one.qp.number, **SOON)
        settle(self.a, b)
        two.receive(1, piece(two.register(8)))
        one.say(2, b"said")
        settle(self.a, b)
        self.assertEqual((one.statuses(), b.port.lid), ([(2, OK)], lid))

    def test_unreliable(self) -> None:
        """
        Messages of an unreliable connection to where nothing leads are lost; later ones arrive.
        """
        one, two = UnreliableSide(self.a), UnreliableSide(self.c)
        for side, other in ((one, two), (two, one)):
            vector = AddressVector(0, lid=other.device.port.lid, isGlobal=False)
            side.qp.modify(QPState.RTR, ah_attr=vector, path_mtu=5, dest_qp_num=other.qp.number, rq_psn=0)
            side.qp.modify(QPState.RTS, sq_psn=0)
        settle(self.a, self.c)
        for number in (3, NO_PORT, 3):
            self.manager.setRoute(self.port("s"), self.c.port.lid, number)
            two.receive(number, piece(two.register(8)))
            one.send(number, SEND, inline=b"said")
            settle(self.a, self.c)
        self.assertEqual([status for _, status in one.statuses()], [OK] * 3)
        self.assertEqual(len(two.received()), 2)

    def test_stream(self) -> None:
        """
        A stream, which keeps nothing of what it sent, ends.
        """
        self.c.listen(SDP, "127.0.0.1", 7001, LISTENER)
        path = self.pathTo(self.a, self.c)
        taker = Taker(path, 20, 21)
        (other,) = [each for each in self.c.fabric.paths() if each.peer.guid == self.a.guid]
        target = Taker(other, 21, 20)
        taker.post(b"first")
        settle(self.a, self.c)
        self.manager.setRoute(self.port("t"), self.a.port.lid, NO_PORT)
        settle(self.a, self.c)
        taker.post(b"second")
        settle(self.a, self.c)
        self.assertEqual((target.records, len(taker.said("refused"))), ([b"first"], 1))
        self.answer(True)
        user = User()
        self.a.connect(SDP, "127.0.0.1", 7001, user)
        patience = limits.SUBNET_ROUTE_LOOKS * limits.SUBNET_ROUTE_SECONDS
        self.run_(patience - 0.01, self.a, self.c)
        self.assertIsNone(user.error)
        self.run_(limits.SUBNET_ROUTE_SECONDS + ANSWER_SECONDS, self.a, self.c)
        self.assertIsInstance(user.error, NoRouteError)

    def answer(self, *said: bool) -> list[bool]:
        """
        Subnet administration answers, or does not; the last time for ever.

        @return: whether it has answered, each time.
        """
        asked: list[bool] = []

        def silent(client: SAClient, told: Callable[[bool], object]) -> Any:
            isSilent = not said[min(len(asked), len(said) - 1)]
            asked.append(not isSilent)
            seconds = limits.SA_SILENT_SECONDS if isSilent else ANSWER_SECONDS
            return self.a.timers.start(seconds, partial(told, isSilent))

        self.patch(SAClient, "silent", silent)
        return asked

    def test_silentHost(self) -> None:
        """
        While the host of the subnet is stopped nobody learns of an HCA that has come, so that a connect waits
        as long as its user does; when it is back, it has a moment to tell.
        """
        asked = self.answer(*[False] * 50, True)
        users = gone, cancelled = User(), User()
        searches = [self.a.connect(SDP, "fe80::77", 7001, user) for user in users]
        self.run_(20, self.a, self.c)
        self.assertEqual((gone.error, cancelled.error), (None, None))
        searches[1].cancel()
        self.run_(10, self.a, self.c)
        self.assertIsNone(gone.error)
        while not gone.error and len(asked) < 100:
            self.run_(0.1, self.a, self.c)
        self.assertIsInstance(gone.error, NoRouteError)
        # When it is back it is asked once more.
        self.assertEqual(sum(asked), 2)
        self.assertEqual((cancelled.path, cancelled.error), (None, None))

    def test_lateRoute(self) -> None:
        """
        A route that is not made yet when somebody connects is waited for, unless the connect is cancelled.
        """
        self.c.listen(SDP, "127.0.0.1", 7001, LISTENER)
        number = self.port("t").node.switch.linear[self.a.port.lid]
        self.manager.setRoute(self.port("t"), self.a.port.lid, NO_PORT)
        user, cancelled = User(), User()
        self.a.connect(SDP, "127.0.0.1", 7001, user)
        search = self.a.connect(SDP, "127.0.0.1", 7001, cancelled)
        self.run_(0.5, self.a, self.c)
        self.assertEqual((user.path, user.error), (None, None))
        search.cancel()
        self.manager.setRoute(self.port("t"), self.a.port.lid, number)
        self.run_(limits.SUBNET_ROUTE_SECONDS + 0.01, self.a, self.c)
        self.assertEqual((user.path.peer.guid, user.error), (self.c.guid, None))
        self.run_(2, self.a, self.c)
        self.assertEqual((cancelled.path, cancelled.error), (None, None))

    def test_lateHCA(self) -> None:
        """
        So is an HCA of which the port has not been told yet; one that does not come is an error in the end.
        """
        self.c.listen(SDP, "127.0.0.1", 7001, LISTENER)
        self.answer(True)
        known = set[int]()
        kind = type(self.a.fabric.port)
        has = kind.has
        self.patch(kind, "has", lambda port, guid: guid in known and has(port, guid))
        gid = self.c.gids()[0]
        users = User(), User(), User()
        for user in users[:2]:
            search = self.a.connect(SDP, gid, 7001, user)
        search.cancel()
        self.a.connect(SDP, "fe80::77", 7001, users[2])
        self.run_(0.5, self.a, self.c)
        known.add(self.c.guid)
        self.run_(limits.SUBNET_ROUTE_SECONDS + 0.01, self.a, self.c)
        self.assertEqual((users[0].path.peer.guid, users[0].error), (self.c.guid, None))
        self.run_(1 + ANSWER_SECONDS, self.a, self.c)
        self.assertEqual((users[1].path, users[1].error), (None, None))
        self.assertIsInstance(users[2].error, NoRouteError)

    def test_turns(self) -> None:
        """
        A turn looks at so many queue pairs; under steady changes all have theirs.
        """
        self.patch(limits, "SUBNET_CHECKS", 3)
        pairs = [self.sides() for _ in range(5)]
        number = self.port("s").node.switch.linear[self.c.port.lid]
        for _ in range(4):
            self.manager.setRoute(self.port("s"), self.c.port.lid, number)
        self.manager.setRoute(self.port("s"), self.c.port.lid, NO_PORT)
        for _ in range(6):
            self.subnet.forwarding.changed()
            self.a.fabric.rerouted()
            self.c.fabric.rerouted()
            for device in (self.a, self.c):
                device.progress()
        for one, two in pairs:
            self.assertEqual(self.said(one, two), [(2, RETRIES)])


@skipIf(bool(MISSING), f"missing: {MISSING}")
class RingTests(OnSubnetRings, CutContract, SubnetTestCase):
    """
    Records on rings.
    """
