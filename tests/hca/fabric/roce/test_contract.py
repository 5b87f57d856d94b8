"""
Work requests, datagrams and unreliable connections on a fabric of packets:
L{tests.contracts.workrequests} as it is, and what the others say, by IP addresses.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.contracts.groups import KEY, DatagramSide
from tests.contracts.unreliable import UnreliableSide
from tests.contracts.workrequests import WorkRequestContract
from tests.hca.hcas import settle
from tests.hca.memorylink import Wire, deviceOn
from tests.hca.queues.keyed_pair import DeviceSide, piece
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.memory.memory import MemoryRegion
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.hca.services.address import AddressVector

WRITE = SendOpcode.RDMA_WRITE
OK = WCStatus.SUCCESS


class PacketContractCase(SynchronousTestCase):
    """
    The counterpart of L{HCATestCase<tests.hca.hcas.HCATestCase>} for fabrics of packets.
    """

    a: Device
    b: Device

    def setUp(self) -> None:
        """
        An empty wire.
        """
        super().setUp()
        self.clock = Clock()
        self.wire = Wire()
        self._count = 0

    def device(self) -> Device:
        """
        @return: A new HCA, closed after the test.
        """
        self._count += 1
        device = deviceOn(self.wire, f"192.0.2.{self._count}", self.clock.seconds, 4096)
        self.addCleanup(device.close)
        return device

    def joined(self) -> tuple[Device, Device, Any, Any]:
        """
        @return: Two HCAs, and each one's path to the other.
        """
        a, b = self.device(), self.device()
        return a, b, a.fabric.pathTo(b.fabric.address), b.fabric.pathTo(a.fabric.address)

    def settled(self) -> None:
        """
        Serve both devices until nothing moves and nothing waits for a time.
        """
        for _ in range(200):
            if not self.settledOnce():
                return
        raise AssertionError("timers never end")

    def settledOnce(self) -> bool:
        """
        Let the next timer run.

        @return: Whether there was one.
        """
        settle(self.a, self.b)
        due = [when for device in (self.a, self.b) if (when := device.deadline()) is not None]
        if due:
            self.clock.advance(max(0.0, min(due) - self.clock.seconds()))
        for device in (self.a, self.b):
            device.tick(self.clock.seconds())
        settle(self.a, self.b)
        return bool(due)


class KeyedTests(PacketContractCase, WorkRequestContract):
    """
    Work requests.
    """

    def test_itself(self) -> None:
        """
        Two queue pairs of one HCA, and one that is connected to itself.
        """
        self.a = self.b = device = self.device()
        path = device.fabric.pathTo(device.fabric.address)
        self.one, self.two, alone = (DeviceSide(device, path) for _ in range(3))
        for side, other in ((self.one, self.two), (self.two, self.one), (alone, alone)):
            side.to(QPState.RTS, other.qp.number)
        for side, other in ((self.one, self.two), (alone, alone)):
            source, target = side.allocate(b"self" * 20000), other.allocate(80000)
            side.send(1, WRITE, piece(source), **self.remote(target))
            self.settled()
            self.assertEqual(side.statuses(), [(1, OK)])
            self.assertEqual(target.view, source.view)

    def test_nothingLeft(self) -> None:
        """
        After its queue pairs and regions are closed a device holds nothing, and nothing waits.
        """
        super().test_nothingLeft()
        for device in (self.a, self.b):
            fabric: Any = device.fabric
            self.assertEqual((fabric.paths(), fabric.sessions.byNumber, fabric.deadline()), ([], {}, None))


class UnreliableTests(PacketContractCase):
    """
    Unreliable connections.
    """

    def sides(self) -> tuple[UnreliableSide, UnreliableSide]:
        """
        @return: Two connected queue pairs.
        """
        self.a, self.b = self.device(), self.device()
        one, two = UnreliableSide(self.a), UnreliableSide(self.b)
        for side, other in ((one, two), (two, one)):
            vector = AddressVector(other.device.fabric.gid)
            side.qp.modify(QPState.RTR, ah_attr=vector, path_mtu=3, dest_qp_num=other.qp.number, rq_psn=5)
            side.qp.modify(QPState.RTS, sq_psn=5)
        return one, two

    def test_messages(self) -> None:
        """
        SEND and WRITE, with immediate or without, of many packets.
        """
        one, two = self.sides()
        data = bytes(range(256)) * 500
        source, target = one.register(data), two.register(len(data))
        for opcode in (SendOpcode.SEND, WRITE, SendOpcode.RDMA_WRITE_WITH_IMM):
            target.view[:] = bytes(len(data))
            if opcode != WRITE:
                two.receive(1, piece(target))
            one.send(2, opcode, piece(source), **self.remote(target))
            self.settled()
            self.assertEqual((one.statuses(), len(two.received())), ([(2, OK)], opcode != WRITE))
            self.assertEqual(bytes(target.view), data)

    def test_lost(self) -> None:
        """
        Of a message with a packet lost nothing arrives, and the next one does; the sender is content.
        """
        one, two = self.sides()
        inbox = two.register(4000)
        two.receive(7, piece(inbox))
        lost = iter([False, True])
        self.wire.pass_ = lambda datagram: () if next(lost, False) else (datagram,)
        one.send(1, SendOpcode.SEND, piece(one.register(3000)))
        one.send(2, SendOpcode.SEND, piece(one.register(b"next")))
        self.settled()
        self.assertEqual(one.statuses(), [(1, OK), (2, OK)])
        (received,) = two.received()
        self.assertEqual((received.workRequestID, received.byteLength), (7, 4))

    def remote(self, region: MemoryRegion) -> dict[str, int]:
        """
        @return: Fields that name remote memory.
        """
        return {"remoteAddress": region.address, "remoteKey": region.remoteKey}


class DatagramTests(PacketContractCase):
    """
    Datagrams and multicast groups.
    """

    GROUP = 0xFFFF << 32 | 0xEF010203

    def test_unicast(self) -> None:
        """
        A datagram finds the queue pair of its number, at its own HCA too; in front of it is the header
        that it came with.
        """
        a, b = self.device(), self.device()
        one, two = DatagramSide(a), DatagramSide(b)
        for target in (two, one):
            handle = one.handle(target.device.fabric.gid)
            one.tell(handle, target.qp.number, b"hello")
            settle(a, b)
            self.assertEqual(target.heard(), [(one.qp.number, b"hello")])
            head = bytes(target.inboxes[0].view[:40])
            self.assertEqual(head[:22], bytes(20) + b"\x45\0")
            self.assertEqual(head[32:], bytes([192, 0, 2, 1, 192, 0, 2, 1 if target is one else 2]))
            # BTH, DETH, five bytes and three of pad, the invariant CRC.
            self.assertEqual(head[22:24], (20 + 8 + 12 + 8 + 8 + 4).to_bytes(2, "big"))
        one.tell(one.handle(b.fabric.gid), 0x123456, b"nobody")
        settle(a, b)
        self.assertEqual(b.counters["datagrams_unclaimed"], 1)
        self.assertEqual(one.statuses(), [(1, OK)] * 3)

    def test_key(self) -> None:
        """
        A wrong Q_Key is counted.
        """
        a, b = self.device(), self.device()
        one, two = DatagramSide(a), DatagramSide(b)
        two.qp.modify(QPState.RTS, qkey=KEY + 1)
        one.tell(one.handle(b.fabric.gid), two.qp.number, b"hello")
        settle(a, b)
        self.assertEqual((two.heard(), b.counters["qkey_violations"]), ([], 1))

    def test_group(self) -> None:
        """
        A multicast datagram reaches the attached queue pairs, and no others.
        """
        a, b, c = self.device(), self.device(), self.device()
        one, two, three = DatagramSide(a), DatagramSide(b), DatagramSide(c)
        b.paths.attach(two.qp, self.GROUP)
        group = one.handle(self.GROUP)
        one.tell(group, 0xFFFFFF, b"all")
        settle(a, b, c)
        self.assertEqual((two.heard(), three.heard()), ([(one.qp.number, b"all")], []))
        b.paths.detach(two.qp, self.GROUP)
        one.tell(group, 0xFFFFFF, b"again")
        settle(a, b, c)
        self.assertEqual((two.heard(), one.statuses()), ([], [(1, OK)] * 2))
