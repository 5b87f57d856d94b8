"""
Unreliable connections and datagrams between HCAs: tests to mix into a
L{HCATestCase<tests.hca.hcas.HCATestCase>}, beside L{tests.contracts.groups}.
"""

from __future__ import annotations

from typing import Any

from tests.contracts.groups import KEY, DatagramSide
from tests.hca.hcas import settle
from tests.hca.queues.keyed_pair import ALL, DeviceSide, piece
from twisted_ib import limits
from twisted_ib.errors import ResourceLimitError, SharedGIDError
from twisted_ib.hca.base.states import QPState, QPType
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.requests import Destination, SendFlags, SendOpcode
from twisted_ib.hca.services import unreliable
from twisted_ib.hca.services.address import AddressVector
from twisted_ib.hca.services.operations.send import PostedSend
from twisted_ib.hca.services.operations.write import PostedWrite
from twisted_ib.hca.wire.grh import GRH_BYTES, guidGID, route

SEND, WRITE, WRITE_IMM = SendOpcode.SEND, SendOpcode.RDMA_WRITE, SendOpcode.RDMA_WRITE_WITH_IMM
OK = WCStatus.SUCCESS


class UnreliableSide(DeviceSide):
    """
    A queue pair of an unreliable connection.
    """

    def __init__(self, device: Device) -> None:
        """
        In INIT, so that receives can be posted.
        """
        super().__init__(device, None)
        self.qp.close()
        self.qp = device.createQueuePair(self.consumer, QPType.UC)
        self.equip(512)
        self.qp.modify(QPState.INIT, pkey_index=0, port_num=1, qp_access_flags=int(ALL))

    def resolvePath(self, other: UnreliableSide) -> None:
        """
        Connect by the other's GID and number.
        """
        vector = AddressVector(guidGID(other.device.guid))
        self.qp.modify(QPState.RTR, ah_attr=vector, path_mtu=5, dest_qp_num=other.qp.number, rq_psn=0)
        self.qp.modify(QPState.RTS, sq_psn=0)


class UnreliableContract:
    """
    Unreliable services on real devices.
    """

    def sides(self: Any) -> tuple[UnreliableSide, UnreliableSide]:
        """
        @return: two connected queue pairs.
        """
        one, two = UnreliableSide(self.device()), UnreliableSide(self.device())
        one.resolvePath(two)
        two.resolvePath(one)
        settle(one.device, two.device)
        return one, two

    def test_atOnce(self: Any) -> None:
        """
        Messages sent before the path is found arrive, whichever GUID is lower, if the peer was ready.
        """
        for _ in range(6):
            one, two = UnreliableSide(self.device()), UnreliableSide(self.device())
            inboxes = [side.register(10) for side in (one, two)]
            for side, inbox in zip((one, two), inboxes, strict=True):
                side.receive(1, piece(inbox))
            one.resolvePath(two)
            two.resolvePath(one)
            one.send(2, SEND, inline=b"one")
            two.send(2, SEND, inline=b"two")
            settle(one.device, two.device)
            self.assertEqual((one.statuses(), two.statuses()), ([(2, OK)], [(2, OK)]))
            self.assertEqual([bytes(inbox.view[:3]) for inbox in inboxes], [b"two", b"one"])

    def test_within(self: Any) -> None:
        """
        Two queue pairs of one HCA, and one that is connected to itself.
        """
        device = self.device()
        one, two, alone = (UnreliableSide(device) for _ in range(3))
        for side, other in ((one, two), (two, one), (alone, alone)):
            side.resolvePath(other)
        settle(device)
        for side, other in ((one, two), (two, one), (alone, alone)):
            inbox = other.register(10)
            other.receive(1, piece(inbox))
            side.send(2, SEND, inline=b"hello")
            settle(device)
            self.assertEqual((side.statuses(), len(other.received())), ([(2, OK)], 1))
            self.assertEqual(bytes(inbox.view[:5]), b"hello")

    def test_long(self: Any) -> None:
        """
        Messages of many records, of memory that the peer may map and of other.
        """
        one, two = self.sides()
        data = bytes(range(256)) * 12289
        target = two.allocate(len(data))
        for source in (one.allocate(data), one.register(data)):
            for opcode in (SEND, WRITE, WRITE_IMM):
                target.view[:] = bytes(len(data))
                if opcode != WRITE:
                    two.receive(1, piece(target))
                one.send(2, opcode, piece(source), remoteAddress=target.address, remoteKey=target.remoteKey)
                settle(one.device, two.device)
                self.assertEqual(one.statuses(), [(2, OK)])
                self.assertEqual(len(two.received()), opcode != WRITE)
                self.assertEqual(bytes(target.view), data)

    def test_refusedByNobody(self: Any) -> None:
        """
        A dropped message leaves both ends as they were.
        """
        one, two = self.sides()
        target = two.register(10)
        one.send(1, SEND, inline=b"no receive")
        one.send(2, WRITE, inline=b"no key", remoteAddress=target.address, remoteKey=target.key ^ 1)
        one.send(3, WRITE, inline=b"good", remoteAddress=target.address, remoteKey=target.key)
        settle(one.device, two.device)
        self.assertEqual(one.statuses(), [(1, OK), (2, OK), (3, OK)])
        self.assertEqual((two.device.counters["messages_dropped"], bytes(target.view[:4])), (2, b"good"))

    def test_peerDies(self: Any) -> None:
        """
        A peer that is gone is not noticed.
        """
        one, two = self.sides()
        two.device.close()
        settle(one.device)
        one.send(1, SEND, inline=b"anybody?")
        settle(one.device)
        self.assertEqual((one.statuses(), one.qp.state), ([(1, OK)], QPState.RTS))
        self.assertEqual(one.device.counters["messages_lost"], 1)

    def test_plainPeerDies(self: Any) -> None:
        """
        Nor is it by a SEND and a WRITE that are posted without a request, though one has arrived before.
        """
        one, two = self.sides()
        two.receive(1, piece(two.register(10)))
        requester, signaled = one.qp.work.requester, int(SendFlags.SIGNALED)
        requester.enqueueSends((PostedSend(1, signaled, 0, 3, 0, b"one"),))
        settle(one.device, two.device)
        two.device.close()
        settle(one.device)
        requester.enqueueSends((PostedSend(2, signaled, 0, 3, 0, b"two"),))
        requester.enqueueSends((PostedWrite(3, signaled, 0, 3, 0, b"two", (1, 2)),))
        settle(one.device)
        self.assertEqual((one.statuses(), one.qp.state), ([(1, OK), (2, OK), (3, OK)], QPState.RTS))
        self.assertEqual(one.device.counters["messages_lost"], 2)

    def test_notFound(self: Any) -> None:
        """
        A peer that is never found neither; what was sent is lost after a time.
        """
        one = UnreliableSide(self.device())
        two = UnreliableSide(self.device())
        one.resolvePath(two)
        two.device.close()
        one.send(1, SEND, inline=b"anybody?")
        settle(one.device)
        self.clock.advance(unreliable.UNRELIABLE_WAIT_SECONDS + 1)
        one.device.tick(self.clock.seconds())
        settle(one.device)
        self.assertEqual((one.statuses(), one.qp.state), ([(1, OK)], QPState.RTS))

    def test_answer(self: Any) -> None:
        """
        The GRH of a datagram says where an answer goes; the handle may go at once.
        """
        a, b = self.device(), self.device()
        one, two = DatagramSide(a), DatagramSide(b)
        one.tell(one.handle(guidGID(b.guid)), two.qp.number, b"question")
        settle(a, b)
        (completion,) = two.received()
        inbox = two.inboxes[completion.workRequestID]
        source, target, *_ = route(inbox.view)
        self.assertEqual((source, target), (guidGID(a.guid), guidGID(b.guid)))
        answer = two.handle(source)
        two.tell(answer, completion.sourceQueuePair, b"answer")
        b.objects.destroyAddressHandle(answer)
        settle(a, b)
        self.assertEqual(one.heard(), [(two.qp.number, b"answer")])

    def test_burst(self: Any) -> None:
        """
        More datagrams than may wait for the way arrive in order once it is found; then
        none is lost that the medium has room for.
        """
        a, b = self.device(), self.device()
        one, two = DatagramSide(a), DatagramSide(b, 100)
        there = one.handle(guidGID(b.guid))
        one.tell(there, two.qp.number, b"first")
        settle(a, b)
        for n in range(99):
            one.tell(there, two.qp.number, b"%d" % n)
        settle(a, b)
        heard = [data for _, data in two.heard()]
        self.assertEqual(heard, [b"first", *[b"%d" % n for n in range(99)]])

    def test_stalled(self: Any) -> None:
        """
        Somebody who takes nothing costs a bounded number of datagrams, and no others'.
        """
        self.patch(limits, "DATAGRAMS_QUEUED", 64)
        a, b, c = (self.device() for _ in range(3))
        one, stalled, other = DatagramSide(a), DatagramSide(b, 1), DatagramSide(c, 1)
        there, elsewhere = one.handle(guidGID(b.guid)), one.handle(guidGID(c.guid))
        for handle, side in ((there, stalled), (elsewhere, other)):
            one.tell(handle, side.qp.number, b"first")
        settle(a, b, c)
        other.heard()
        inbox = other.register(GRH_BYTES + 64)
        other.receive(1, piece(inbox))
        data = one.register(4096)
        for _ in range(limits.RING // 4096 + 100):
            one.send(1, SEND, piece(data), flags=0, destination=Destination(there, stalled.qp.number, KEY))
        self.assertEqual(a.addressPaths.waiting, limits.DATAGRAMS_QUEUED)
        self.assertGreater(a.counters["datagrams_lost"], 0)
        one.tell(elsewhere, other.qp.number, b"quick")
        settle(a, c)
        self.assertEqual(len(other.received()), 1)
        settle(a, b, c)
        self.assertEqual(a.addressPaths.waiting, 0)

    def test_stalledDies(self: Any) -> None:
        """
        Messages that waited for a peer which dies wait no more, and later ones are lost.
        """
        a, b = self.device(), self.device()
        one, two = DatagramSide(a), DatagramSide(b)
        there = one.handle(guidGID(b.guid))
        one.tell(there, two.qp.number, b"first")
        settle(a, b)
        data = one.register(4096)
        while not a.addressPaths.waiting:
            one.send(1, SEND, piece(data), flags=0, destination=Destination(there, two.qp.number, KEY))
        b.close()
        settle(a)
        self.assertEqual(a.addressPaths.waiting, 0)
        a.counters.clear()
        one.tell(there, two.qp.number, b"later")
        settle(a)
        self.assertEqual((a.addressPaths.waiting, a.counters["datagrams_lost"]), (0, 1))

    def test_sharedGID(self: Any) -> None:
        """
        An address of the host leads to no HCA in particular: no handle is made of it.
        """
        side = DatagramSide(self.device())
        self.assertRaises(SharedGIDError, side.handle, 0xFFFF7F000001)
        self.assertNotIn("address handles", side.pd.users)
        self.assertEqual(len(side.device.objects.addressHandles), 0)

    def test_handles(self: Any) -> None:
        """
        A device has so many address handles; one that is destroyed makes room.
        """
        self.patch(limits, "ADDRESS_HANDLES", 2)
        side = DatagramSide(self.device())
        handles = [side.handle(guidGID(0x1234)), side.handle(0xFF << 120)]
        self.assertRaises(ResourceLimitError, side.handle, guidGID(0x1234))
        side.device.objects.destroyAddressHandle(handles[0])
        side.handle(guidGID(0x1234))
        self.assertEqual(side.pd.users["address handles"], 2)
