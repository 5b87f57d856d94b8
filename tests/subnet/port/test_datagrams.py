"""
Datagrams by LID, with and without a GRH, and to groups by multicast LID.
"""

from __future__ import annotations

from typing import Any
from unittest import skipIf

from attrs import evolve

from tests.contracts.groups import DatagramSide
from tests.hca.hcas import settle
from tests.hca.services.datagrams.test_datagramconsumer import KEY, Taker, raised
from tests.subnet.port.subnets import LEAVES, OnSubnetRings, SubnetTestCase
from twisted_ib import limits
from twisted_ib.errors import NoRouteError
from twisted_ib.hca.base.operation import MULTICAST_QPN
from twisted_ib.hca.base.states import QPState, QPType
from twisted_ib.hca.host import libc
from twisted_ib.hca.mad.attributes.notice import BadKeyDetails, NoticeType, Trap
from twisted_ib.hca.queues.completion import WCFlags
from twisted_ib.hca.services.address import AddressVector
from twisted_ib.hca.wire.grh import GRH_BYTES
from twisted_ib.subnet.network.switch import NO_PORT

MISSING = libc.available()
MLID, MGID = 0xC005, 0xFF12A01B << 96 | 5
#: A P_Key of full members, and one of limited ones.
FULL, LIMITED = 0x8123, 0x0123


class LIDDatagrams(DatagramSide):
    """
    A datagram queue pair whose address handles have LIDs.
    """

    def by(self, **vector: Any) -> Any:
        """
        @return: an address handle.
        """
        gid = vector.pop("gid", 0)
        address = AddressVector(gid, isGlobal=bool(gid), **vector)
        return self.device.objects.createAddressHandle(self.pd, address)


class DatagramContract:
    """
    Between adapters at two switches.
    """

    topology = LEAVES

    def setUp(self: Any) -> None:
        """
        Open C{a}, C{b} and C{c}, with a queue pair each.
        """
        super().setUp()  # type: ignore[misc]
        self.devices = self.a, self.b, self.c = self.at("a", "b", "c")
        settle(*self.devices)
        self.sides = self.one, self.two, self.three = [LIDDatagrams(each) for each in self.devices]

    def tell(self: Any, side: LIDDatagrams, handle: Any, number: int, data: bytes) -> None:
        """
        Send a datagram.
        """
        side.tell(handle, number, data)
        settle(*self.devices)
        side.statuses()

    def test_unicast(self: Any) -> None:
        """
        With and without a GRH; the receiver knows the sender's LID and service level.
        """
        for gid in (0, self.c.gid):
            handle = self.one.by(lid=self.c.port.lid, serviceLevel=3, gid=gid)
            self.tell(self.one, handle, self.three.qp.number, b"there")
            (completion,) = self.three.received()
            self.assertEqual(
                (completion.sourceLID, completion.serviceLevel, bool(completion.flags & WCFlags.GRH)),
                (self.a.port.lid, 3, bool(gid)),
            )
            inbox = self.three.inboxes[completion.workRequestID]
            self.assertEqual(bytes(inbox.view[GRH_BYTES : completion.byteLength]), b"there")

    def test_group(self: Any) -> None:
        """
        A datagram to a multicast LID comes to the members that the switches' tables have, and to queue pairs
        of the sender's own port; each takes the groups that it is attached to.
        """
        for side in self.sides:
            side.device.paths.attach(side.qp, MGID)
        handle = self.one.by(lid=MLID, gid=MGID)
        masks = (((), ()), ((2,), ()), ((1, 2, 3), (1, 3)))
        for ours, theirs in masks:
            self.manager.setGroup(self.port("s"), MLID, *ours)
            self.manager.setGroup(self.port("t"), MLID, *theirs)
            self.tell(self.one, handle, MULTICAST_QPN, b"all")
        self.assertEqual([len(side.heard()) for side in self.sides], [3, 2, 1])
        other = self.one.by(lid=MLID, gid=MGID + 1)
        self.tell(self.one, other, MULTICAST_QPN, b"others")
        self.three.device.paths.detach(self.three.qp, MGID)
        self.tell(self.one, handle, MULTICAST_QPN, b"all")
        self.assertEqual([len(side.heard()) for side in self.sides], [1, 1, 0])

    def test_full(self: Any) -> None:
        """
        Datagrams wait for room on the way, and are lost with it.
        """
        handle = self.one.by(lid=self.c.port.lid)
        self.tell(self.one, handle, self.three.qp.number, b"first")
        region = self.one.register(limits.DATAGRAM_BYTES)
        for _ in range(limits.RING // limits.DATAGRAM_BYTES):
            self.one.tell(handle, self.three.qp.number, bytes(region.view))
            self.one.statuses()
        self.assertGreater(self.a.addressPaths.waiting, 0)
        self.c.close()
        settle(self.a, self.b)
        self.assertEqual(self.a.addressPaths.waiting, 0)
        self.assertEqual(self.a.paths._lidPaths, {})


class LoopbackTests(DatagramContract, SubnetTestCase):
    """
    Records within a thread.
    """

    def test_reply(self) -> None:
        """
        A consumer without work requests replies to the address that it is given.
        """
        taker, echo = Taker(), Taker()
        target = raised(self.b.createQueuePair(taker, QPType.UD))
        source = raised(self.a.createQueuePair(echo, QPType.UD))
        pds = [device.memory.allocateDomain() for device in (self.a, self.b)]
        vector = AddressVector(0, lid=self.b.port.lid, serviceLevel=3, isGlobal=False)
        handle = self.a.objects.createAddressHandle(pds[0], vector)
        source.post(handle, target.queuePair.number, KEY, b"there")
        settle(*self.devices)
        ((sender, payload),) = taker.got
        self.assertEqual((sender.vector, payload), (evolve(vector, lid=self.a.port.lid), b"there"))
        back = self.b.objects.createAddressHandle(pds[1], sender.vector)
        target.post(back, sender.number, KEY, b"back")
        settle(*self.devices)
        self.assertEqual([each[1] for each in echo.got], [b"back"])

    def test_nowhere(self) -> None:
        """
        A LID that nothing leads to is an address; datagrams to it are lost.
        """
        for lid in (40, 0xBFFF, self.subnet.find("s").lid):
            self.tell(self.one, self.one.by(lid=lid), 5, b"lost")
        self.assertEqual(self.a.counters["datagrams_lost"], 3)
        # Of an address whose path was there before, too.
        handle = self.one.by(lid=self.c.port.lid)
        for number, data in ((3, b"1"), (NO_PORT, b"2"), (3, b"3")):
            self.manager.setRoute(self.port("s"), self.c.port.lid, number)
            self.tell(self.one, handle, self.three.qp.number, data)
        self.assertEqual([data for _, data in self.three.heard()], [b"1", b"3"])
        self.assertEqual(self.a.counters["datagrams_lost"], 4)

    def test_later(self) -> None:
        """
        Datagrams to an adapter without a device are lost until it has one.
        """
        handle = self.one.by(lid=self.port("d").lid)
        self.tell(self.one, handle, 5, b"lost")
        self.assertEqual(self.a.counters["datagrams_lost"], 1)
        (device,) = self.at("d")
        self.devices = *self.devices, device
        settle(*self.devices)
        side = LIDDatagrams(device)
        for data in (b"finds out", b"1", b"2"):
            self.tell(self.one, handle, side.qp.number, data)
        self.assertEqual([data for _, data in side.heard()], [b"1", b"2"])

    def test_oneWay(self) -> None:
        """
        Datagrams need no way back.
        """
        self.manager.setRoute(self.port("t"), self.a.port.lid, NO_PORT)
        self.tell(self.one, self.one.by(lid=self.c.port.lid), self.three.qp.number, b"there")
        self.tell(self.three, self.three.by(lid=self.a.port.lid), self.one.qp.number, b"back")
        self.assertEqual([data for _, data in self.three.heard()], [b"there"])
        self.assertEqual(self.one.heard(), [])

    def test_moved(self) -> None:
        """
        Datagrams follow a LID to another port.
        """
        lid = self.c.port.lid
        handle = self.one.by(lid=lid)
        self.tell(self.one, handle, self.three.qp.number, b"1")
        self.manager.setPort(self.port("c"), lid=40)
        self.manager.setPort(self.port("b"), lid=lid)
        self.manager.setRoute(self.port("s"), lid, 2)
        settle(*self.devices)
        for data in (b"2", b"3", b"4"):
            self.tell(self.one, handle, self.two.qp.number, data)
        self.assertEqual([data for _, data in self.three.heard()], [b"1"])
        # The first finds out, and is lost like one on its way.
        self.assertEqual([data for _, data in self.two.heard()], [b"3", b"4"])

    def test_partitions(self) -> None:
        """
        A datagram is taken by a queue pair of its partition, if one of the two is a full member.
        """
        for name in "ab":
            self.manager.setPartitions(self.port(name), LIMITED, FULL)
        settle(*self.devices)
        sides = [LIDDatagrams(device, partition=slot) for device in (self.a, self.b) for slot in (0, 1)]
        heard = []
        for sender in sides[:2]:
            for receiver in sides[2:]:
                self.tell(sender, sender.by(lid=self.b.port.lid), receiver.qp.number, b"said")
                heard.append(len(receiver.heard()))
        self.assertEqual(heard, [0, 1, 1, 1])
        self.assertEqual(self.b.counters["packets_bad_pkey"], 1)
        port, details = self.port("b"), self.trapped("b", Trap.BAD_PKEY)
        self.assertEqual((port.pkeyViolations, port.qkeyViolations), (1, 0))
        self.assertEqual((details.lid1, details.lid2, details.key), (*self.lids(), LIMITED))
        self.assertEqual((details.qp1, details.qp2), (sides[0].qp.number, sides[2].qp.number))

    def lids(self) -> tuple[int, int]:
        """
        @return: those of C{a} and C{b}.
        """
        return self.a.port.lid, self.b.port.lid

    def trapped(self, name: str, trap: Trap) -> BadKeyDetails:
        """
        @return: the details of the latest notice of a port, which is of a trap.
        """
        found = self.port(name).notices[-1]
        self.assertEqual((found.noticeTrapNumber, found.noticeType), (trap, NoticeType.SECURITY))
        return BadKeyDetails.parse(found.details)

    def test_queueKey(self) -> None:
        """
        Datagrams with a wrong Q_Key are counted by the port, which has sent one trap for those of a turn.
        """
        self.two.qp.modify(QPState.RTS, qkey=7)
        handle = self.one.by(lid=self.b.port.lid, gid=self.b.gid, serviceLevel=2)
        before = len(self.port("b").notices)
        for _ in range(3):
            self.one.tell(handle, self.two.qp.number, b"said")
        settle(*self.devices)
        port, details = self.port("b"), self.trapped("b", Trap.BAD_QKEY)
        self.assertEqual((port.pkeyViolations, port.qkeyViolations), (0, 3))
        self.assertEqual(len(port.notices), before + 1)
        self.assertEqual((details.lid1, details.lid2, details.key, details.sl), (*self.lids(), KEY, 2))
        self.assertEqual((details.gid1, details.gid2), (self.a.gid, self.b.gid))
        self.assertEqual(self.two.heard(), [])

    def test_groupWithoutMembers(self) -> None:
        """
        A sender that is no member need not be one.
        """
        self.manager.setGroup(self.port("s"), MLID, 2)
        self.two.device.paths.attach(self.two.qp, MGID)
        self.tell(self.one, self.one.by(lid=MLID, gid=MGID), MULTICAST_QPN, b"all")
        self.assertEqual([len(side.heard()) for side in self.sides], [0, 1, 0])
        self.assertEqual(self.a.counters["datagrams_unclaimed"], 0)

    def test_noPort(self) -> None:
        """
        A multicast LID is the address of no port.
        """
        self.assertRaises(NoRouteError, self.a.paths.check, MLID)


@skipIf(bool(MISSING), f"missing: {MISSING}")
class RingTests(OnSubnetRings, DatagramContract, SubnetTestCase):
    """
    Records on rings.
    """
