"""
How datagrams reach the queue pairs of other HCAs and of groups: tests to mix into a
L{HCATestCase<tests.hca.hcas.HCATestCase>}, beside L{tests.contracts.pathresolution}.
"""

from __future__ import annotations

from typing import Any

from tests.hca.hcas import Taker, settle
from tests.hca.queues.keyed_pair import Consumer, Side, piece
from twisted_ib import limits
from twisted_ib.errors import QueuePairError, ResourceLimitError
from twisted_ib.hca.base.states import QPState, QPType
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.requests import Destination, SendOpcode
from twisted_ib.hca.services.address import AddressHandle, AddressVector
from twisted_ib.hca.wire.grh import GRH_BYTES, guidGID
from twisted_ib.hca.wire.opcodes import UD_SEND_ONLY, UD_SEND_ONLY_IMMEDIATE

KEY = 0x11111111
EVERYBODY = 0xFFFFFF
GROUP, ANOTHER = 0xFF12 << 112 | 0xABCD, 0xFF12 << 112 | 0xABCE
OK = WCStatus.SUCCESS


class DatagramSide(Side):
    """
    A datagram queue pair of a device, in RTS, with receives.
    """

    path = None

    def __init__(self, device: Device, receives: int = 8, partition: int = 0) -> None:
        """
        @param receives: How many are posted.
        @param partition: The slot of its P_Key.
        """
        self.device = device
        self.memory, self.timers = device.memory, device.timers
        self.pd = self.memory.allocateDomain()
        self.consumer = Consumer()
        self.qp = device.createQueuePair(self.consumer, QPType.UD)
        self.equip(512)
        self.qp.modify(QPState.INIT, pkey_index=partition, port_num=1, qkey=KEY)
        self.inboxes = [self.register(GRH_BYTES + 64) for _ in range(receives)]
        for id, inbox in enumerate(self.inboxes):
            self.receive(id, piece(inbox))
        self.qp.modify(QPState.RTR)
        self.qp.modify(QPState.RTS, sq_psn=0)

    def handle(self, gid: int) -> AddressHandle:
        """
        @return: An address handle of this side's domain.
        """
        return self.device.objects.createAddressHandle(self.pd, AddressVector(gid))

    def tell(self, handle: AddressHandle, number: int, data: bytes) -> None:
        """
        Send a datagram.
        """
        destination = Destination(handle, number, KEY)
        self.send(1, SendOpcode.SEND, piece(self.register(data)), destination=destination)

    def heard(self) -> list[tuple[int, bytes]]:
        """
        Take what has come.

        @return: Pairs of the sender's number and the bytes.
        """
        return [
            (c.sourceQueuePair, bytes(self.inboxes[c.workRequestID].view[GRH_BYTES : c.byteLength]))
            for c in self.received()
        ]


class GroupContract:
    """
    Datagrams between HCAs.
    """

    def test_unicast(self: Any) -> None:
        """
        A datagram finds the HCA of its GID, its own HCA too, and there the queue pair of
        its number; the sender is done with it whatever becomes of it.
        """
        a, b = self.device(), self.device()
        one, two, three = DatagramSide(a), DatagramSide(b), DatagramSide(a)
        there, here = one.handle(guidGID(b.guid)), one.handle(guidGID(a.guid))
        for handle, side, word in ((there, two, b"there"), (here, three, b"here"), (here, one, b"me")):
            one.tell(handle, side.qp.number, word)
            settle(a, b)
            self.assertEqual(side.heard(), [(one.qp.number, word)])
        one.tell(there, 0x123456, b"nobody")
        one.tell(one.handle(guidGID(0x4321)), two.qp.number, b"nowhere")
        settle(a, b)
        self.assertEqual(one.statuses(), [(1, OK)] * 5)
        self.assertEqual((b.counters["datagrams_unclaimed"], a.counters["datagrams_lost"]), (1, 1))
        self.assertEqual((one.heard(), two.heard(), three.heard()), ([], [], []))

    def test_states(self: Any) -> None:
        """
        Only a datagram queue pair that can receive gets any: not one that is not ready, nor
        one that is connected, nor one that is bound to nothing.
        """
        a, b = self.device(), self.device()
        one, two = DatagramSide(a), DatagramSide(b)
        there = one.handle(guidGID(b.guid))
        stream = b.createQueuePair(Consumer())
        bare = b.createQueuePair(Consumer(), QPType.UD)
        numbers = [stream.number, bare.number, two.qp.number]
        two.qp.modify(QPState.ERR)
        for number in numbers:
            one.tell(there, number, b"?")
        settle(a, b)
        self.assertEqual(b.counters["datagrams_unclaimed"], 3)

    def test_lostOnPaths(self: Any) -> None:
        """
        Unreliable operations for a number that nobody has are dropped: nobody is told, and
        reliable ones that come to that number later are not affected.
        """
        a, b, path, other = self.joined()
        one = Taker(path, 20, 21)
        path.requesters[21] = one
        for opcode in (0x20, 0x24, 0x2A, 0x60, 0x66, 0xA4, 0xE6):
            self.assertTrue(one.post(bytes(64), opcode))
        for opcode in (UD_SEND_ONLY, UD_SEND_ONLY_IMMEDIATE, UD_SEND_ONLY | 0x80):
            for length in (0, 1, 39, 40, 47):
                self.assertTrue(one.post(b"\xff" * length, opcode))
            self.assertTrue(one.post(bytes(48), opcode))
            self.assertTrue(one.post(b"\xff" * 48, opcode))
        settle(a, b)
        self.assertEqual(one.log, [])
        counters = b.counters
        self.assertEqual(counters["datagrams_malformed"], 15)
        self.assertEqual((counters["datagrams_unclaimed"], counters["absent_queue_pair"]), (6, 7))
        two = Taker(other, 21, 20)
        one.post(b"reliable")
        settle(a, b)
        self.assertEqual(two.records, [b"reliable"])

    def test_group(self: Any) -> None:
        """
        A datagram to a group reaches every attached queue pair once, on every HCA, the sender's and the
        sender too if attached; no other, whatever the number is.
        """
        a, b, c = (self.device() for _ in range(3))
        one, two, three, four, five = (DatagramSide(device) for device in (a, a, b, b, c))
        for side in (two, three, four):
            side.device.paths.attach(side.qp, GROUP)
            side.device.paths.attach(side.qp, GROUP)
        five.device.paths.attach(five.qp, ANOTHER)
        group = one.handle(GROUP)
        for number in (EVERYBODY, five.qp.number, one.qp.number):
            one.tell(group, number, b"all")
        settle(a, b, c)
        self.assertEqual(one.statuses(), [(1, OK)] * 3)
        for side, count in ((one, 0), (two, 3), (three, 3), (four, 3), (five, 0)):
            self.assertEqual(side.heard(), [(one.qp.number, b"all")] * count)
        a.paths.attach(one.qp, GROUP)
        b.paths.detach(three.qp, GROUP)
        one.tell(group, EVERYBODY, b"me")
        settle(a, b, c)
        self.assertEqual([len(side.heard()) for side in (one, two, three, four, five)], [1, 1, 0, 1, 0])

    def test_members(self: Any) -> None:
        """
        A group is the HCAs that have a queue pair in it at the time.
        """
        a, b, c = (self.device() for _ in range(3))
        one, two, three = (DatagramSide(device) for device in (a, b, c))
        group = one.handle(GROUP)
        one.tell(group, EVERYBODY, b"1")
        settle(a, b, c)
        b.paths.attach(two.qp, GROUP)
        one.tell(group, EVERYBODY, b"2")
        settle(a, b, c)
        c.paths.attach(three.qp, GROUP)
        one.tell(group, EVERYBODY, b"3")
        settle(a, b, c)
        b.paths.detach(two.qp, GROUP)
        one.tell(group, EVERYBODY, b"4")
        settle(a, b, c)
        c.close()
        one.tell(group, EVERYBODY, b"5")
        settle(a, b)
        self.assertEqual([data for _, data in two.heard()], [b"2", b"3"])
        self.assertEqual(a.fabric.members(GROUP), ())
        self.assertEqual(one.statuses(), [(1, OK)] * 5)
        self.assertEqual((a.counters["datagrams_unclaimed"], b.counters["datagrams_unclaimed"]), (0, 0))

    def test_membersSame(self: Any) -> None:
        """
        While nothing changes the members are the same object, which costs a sender nothing.
        """
        a, b = self.device(), self.device()
        side = DatagramSide(b)
        b.paths.attach(side.qp, GROUP)
        members = a.fabric.members(GROUP)
        self.assertEqual(members, (b.guid,))
        side = DatagramSide(a)
        a.paths.attach(side.qp, ANOTHER)
        self.assertIs(a.fabric.members(GROUP), members)

    def test_left(self: Any) -> None:
        """
        A queue pair that is destroyed is in no group any more, and an HCA without queue
        pairs in a group is not found in it.
        """
        a, b = self.device(), self.device()
        one, two = DatagramSide(b), DatagramSide(b)
        for side in (one, two):
            for gid in (GROUP, ANOTHER):
                b.paths.attach(side.qp, gid)
        self.assertEqual(b.paths.groupsOf(one.qp), [GROUP, ANOTHER])
        one.qp.close()
        self.assertEqual(a.fabric.members(GROUP), (b.guid,))
        two.qp.close()
        self.assertEqual((a.fabric.members(GROUP), a.fabric.members(ANOTHER)), ((), ()))
        self.assertEqual(b.paths._attached, {})

    def test_attachErrors(self: Any) -> None:
        """
        Only datagram queue pairs join, only groups are joined, and only who has joined
        leaves.
        """
        a = self.device()
        side, stream = DatagramSide(a), a.createQueuePair(Consumer())
        self.assertRaises(QueuePairError, a.paths.attach, stream, GROUP)
        self.assertRaises(QueuePairError, a.paths.attach, side.qp, guidGID(a.guid))
        self.assertRaises(QueuePairError, a.paths.detach, side.qp, GROUP)
        a.paths.attach(side.qp, GROUP)
        self.assertRaises(QueuePairError, a.paths.detach, side.qp, ANOTHER)
        a.paths.detach(side.qp, GROUP)
        self.assertRaises(QueuePairError, a.paths.detach, side.qp, GROUP)

    def test_bounds(self: Any) -> None:
        """
        Groups, queue pairs of a group, and HCAs of a group that are sent to are bounded.
        """
        self.patch(limits, "MULTICAST_GROUPS", 2)
        self.patch(limits, "MULTICAST_QUEUE_PAIRS", 2)
        self.patch(limits, "MULTICAST_MEMBERS", 1)
        a, b = self.device(), self.device()
        sides = [DatagramSide(a) for _ in range(3)]
        attach = a.paths.attach
        for side in sides[:2]:
            attach(side.qp, GROUP)
        self.assertRaises(ResourceLimitError, attach, sides[2].qp, GROUP)
        attach(sides[0].qp, GROUP)
        attach(sides[0].qp, ANOTHER)
        self.assertRaises(ResourceLimitError, attach, sides[0].qp, ANOTHER + 1)
        two = DatagramSide(b)
        b.paths.attach(two.qp, GROUP)
        self.assertEqual(a.fabric.members(GROUP), (min(a.guid, b.guid),))

    def test_manyGroups(self: Any) -> None:
        """
        The ways to groups are bounded too: the oldest is made anew when it is needed.
        """
        self.patch(limits, "MULTICAST_GROUPS", 2)
        a, b = self.device(), self.device()
        one, two = DatagramSide(a), DatagramSide(b)
        b.paths.attach(two.qp, GROUP)
        handles = [one.handle(GROUP + n) for n in range(4)]
        for n, handle in enumerate((*handles, *handles)):
            one.tell(handle, EVERYBODY, b"%d" % n)
        settle(a, b)
        self.assertEqual([data for _, data in two.heard()], [b"0", b"4"])
        self.assertEqual(len(a.paths._groups), 2)
        # Of those no group has the other HCA, so nothing is kept of the way there.
        self.assertNotIn(guidGID(b.guid), a.addressPaths._byKey)

    def test_full(self: Any) -> None:
        """
        A member that takes nothing holds up neither the sender nor the other members.
        """
        self.patch(limits, "DATAGRAMS_QUEUED", 4)
        a, b, c = (self.device() for _ in range(3))
        one = DatagramSide(a)
        two, three = DatagramSide(b), DatagramSide(c, 1)
        for side in (two, three):
            side.device.paths.attach(side.qp, GROUP)
        group = one.handle(GROUP)
        one.tell(group, EVERYBODY, b"0")
        settle(a, b, c)
        self.assertEqual((len(two.heard()), len(three.heard())), (1, 1))
        region, inbox = one.register(4096), three.register(4096 + GRH_BYTES)
        destination = Destination(group, EVERYBODY, KEY)
        for n in range(limits.RING // 4096 + 100):
            three.receive(0, piece(inbox))
            one.send(1, SendOpcode.SEND, piece(region), destination=destination)
            settle(a, c)
            self.assertEqual(len(one.statuses()), 1 + (not n))
            self.assertEqual(len(three.received()), 1)
        self.assertTrue(a.counters["datagrams_lost"] > 50)
