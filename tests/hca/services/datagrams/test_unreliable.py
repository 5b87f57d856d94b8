"""
Tests for L{twisted_ib.hca.services.unreliable}: sending, and the states.
"""

from __future__ import annotations

from tests.hca.queues.keyed_cases import bound
from tests.hca.queues.keyed_pair import piece
from tests.hca.services.datagrams.unreliable_pair import UnreliablePair, UnreliableTestCase
from twisted_ib.errors import PathLostError, QueuePairError
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.receives import SGE
from twisted_ib.hca.queues.requests import SendFlags, SendOpcode
from twisted_ib.hca.services import unreliable
from twisted_ib.hca.services.address import AddressVector
from twisted_ib.hca.services.operations.send import PostedSend

SEND, SEND_IMM = SendOpcode.SEND, SendOpcode.SEND_WITH_IMM
WRITE, WRITE_IMM = SendOpcode.RDMA_WRITE, SendOpcode.RDMA_WRITE_WITH_IMM
OK, FLUSH = WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR
REFERENCE = 0x40


class SendTests(UnreliableTestCase):
    """
    The send queue.
    """

    def test_codes(self) -> None:
        """
        Those of reliable connections with the bit of this service.
        """
        flags = int(SendFlags.SIGNALED | SendFlags.SOLICITED)
        for opcode in (SEND, SEND_IMM, WRITE, WRITE_IMM):
            self.post(1, opcode)
        self.post(2, SEND, flags=flags)
        self.assertEqual(self.wire(), [0x24, 0x25, 0x2A, 0x2B, 0xA4])
        self.connect()
        for opcode in (SEND, SEND_IMM, WRITE, WRITE_IMM):
            self.post(1, opcode, 65536 * 2 + 1)
        expected = [0x20, 0x21, 0x22, 0x20, 0x21, 0x23, 0x26, 0x27, 0x28, 0x26, 0x27, 0x29]
        self.p.flow()
        self.connect(capacity=1 << 20)
        for opcode in (SEND, SEND_IMM, WRITE, WRITE_IMM):
            self.post(1, opcode, 65536 * 2 + 1)
        self.assertEqual(self.wire(), expected)

    def test_references(self) -> None:
        """
        Memory that the peer can map is referred to; the request is done when the peer has
        taken it.
        """
        self.a.path.offering = True
        self.b.receive(7, piece(self.target))
        self.post(1, SEND, 100000)
        self.post(2, WRITE, 100000)
        self.assertEqual(self.wire(), [0x24 | REFERENCE, 0x2A | REFERENCE])
        self.assertEqual(self.a.statuses(), [])
        self.p.flow()
        self.assertEqual(self.a.statuses(), [(1, OK), (2, OK)])
        self.assertEqual(self.got(), [(7, OK, 100000, 0, 0)])
        self.assertEqual(self.target.view[:100000], self.source.view[:100000])

    def test_unused(self) -> None:
        """
        Requests that the peer cannot use are done all the same, and in order.
        """
        self.post(1, SEND)
        self.post(2, WRITE, remoteKey=1)
        self.post(3, WRITE)
        self.p.flow()
        self.assertEqual(self.a.statuses(), [(1, OK), (2, OK), (3, OK)])
        self.assertEqual((self.dropped, self.target.view[99]), (2, 99))
        self.assertEqual((self.a.qp.state, self.b.qp.state), (QPState.RTS, QPState.RTS))

    def test_absent(self) -> None:
        """
        A peer that is not there (yet) is not noticed.
        """
        self.b.qp.modify(QPState.RESET)
        self.b.path.unknown = lambda word, buffer, start, stop: 0
        self.post(1, SEND)
        self.p.flow()
        self.assertEqual(self.a.statuses(), [(1, OK)])

    def test_inline(self) -> None:
        """
        Bytes in the request, or taken when it is posted.
        """
        self.b.receive(7, piece(self.target, 0, 10))
        self.b.receive(8, piece(self.target, 10, 10))
        self.a.send(1, SEND, inline=b"abc")
        self.post(2, SEND, 4, flags=int(SendFlags.INLINE))
        self.source.view[:4] = b"XXXX"
        self.p.flow()
        self.assertEqual(self.target.view[:14].tobytes(), b"abc" + bytes(7) + b"\0\1\2\3")
        self.assertEqual(self.a.statuses(), [(1, OK)])

    def test_signalled(self) -> None:
        """
        Unsignaled requests complete silently, unless all are signaled.
        """
        for signalAll in (False, True):
            self.connect(signalAll=signalAll)
            self.post(1, WRITE, flags=0)
            self.p.flow()
            self.assertEqual(self.a.statuses(), [(1, OK)] * signalAll)

    def test_refused(self) -> None:
        """
        Requests that need a response, or that the service has no opcode for, are refused.
        """
        for opcode in (
            SendOpcode.RDMA_READ,
            SendOpcode.ATOMIC_CMP_AND_SWP,
            SendOpcode.ATOMIC_FETCH_AND_ADD,
            SendOpcode.SEND_WITH_INV,
        ):
            self.assertRaises(QueuePairError, self.post, 1, opcode)
        self.assertEqual((self.wire(), self.a.statuses()), ([], []))

    def test_fullMedium(self) -> None:
        """
        Records that find no room wait for it; nothing is lost.
        """
        self.connect(capacity=300)
        for id in range(20):
            self.b.receive(id, piece(self.target))
            self.post(id, SEND)
        self.p.flow()
        self.assertEqual([c[0] for c in self.got()], list(range(20)))
        self.assertEqual(self.a.statuses(), [(id, OK) for id in range(20)])

    def test_badMemory(self) -> None:
        """
        A send error brings the queue pair to SQE, after what was posted before is done;
        what is behind it is flushed, receives go on, RTS revives it.
        """
        self.post(1, WRITE)
        self.a.send(2, SEND, SGE(self.source.address, 1, 0xBAD), flags=0)
        self.post(3, WRITE, flags=0)
        self.p.flow()
        expected = [(1, OK), (2, WCStatus.LOC_PROT_ERR), (3, FLUSH)]
        self.assertEqual((self.a.statuses(), self.a.qp.state), (expected, QPState.SQE))
        self.post(4, SEND)
        self.assertEqual(self.a.statuses(), [(4, FLUSH)])
        self.a.receive(5, piece(self.a.register(100)))
        self.b.send(6, SEND, inline=b"x")
        self.p.flow()
        self.assertEqual([c.workRequestID for c in self.a.received()], [5])
        self.assertEqual(self.a.consumer.failures, [])
        self.a.qp.modify(QPState.RTS)
        self.b.receive(7, piece(self.target))
        self.post(8, SEND)
        self.p.flow()
        self.assertEqual((self.a.statuses(), len(self.got())), ([(8, OK)], 1))

    def test_brokenMessage(self) -> None:
        """
        A message whose memory goes while it is sent ends with SQE; the peer drops its
        beginning when the next comes.
        """
        self.connect(capacity=66000)
        self.b.receive(7, piece(self.target))
        region = self.a.register(200000)
        self.a.send(1, SEND, piece(region))
        self.a.memory.deregister(region)
        self.p.flow()
        self.assertEqual(self.a.statuses(), [(1, WCStatus.LOC_PROT_ERR)])
        self.assertEqual((self.a.qp.state, self.got()), (QPState.SQE, []))
        self.a.qp.modify(QPState.RTS)
        self.post(2, SEND, 10)
        self.p.flow()
        self.assertEqual(self.got(), [(7, OK, 10, 0, 0)])
        self.assertEqual(self.dropped, 1)

    def test_answers(self) -> None:
        """
        A record with a response's opcode changes nothing.
        """
        self.post(1, WRITE)
        for opcode in (0x0D, 0x0E, 0x0F, 0x10, 0x11, 0x12, 0x4D):
            data = b"\x61" + bytes(7) + (1).to_bytes(8, "little")
            self.b.path.post(opcode << 24 | 17, b"", data, len(data))
        self.p.flow()
        self.assertEqual((self.a.qp.state, self.a.statuses()), (QPState.RTS, [(1, OK)]))


class GoneTests(UnreliableTestCase):
    """
    A peer that is gone, or not found.
    """

    def test_dies(self) -> None:
        """
        An unreliable connection does not learn that its peer is gone: requests before and after
        that are done.
        """
        self.post(1, WRITE)
        self.p.die(self.b)
        self.post(2, SEND)
        self.post(3, SEND, flags=0)
        self.assertEqual(self.a.statuses(), [(1, OK), (2, OK)])
        self.assertEqual((self.a.qp.state, self.a.consumer.failures), (QPState.RTS, []))
        self.a.qp.modify(QPState.ERR)

    def test_diesFull(self) -> None:
        """
        The same for what waited for room.
        """
        self.connect(capacity=150)
        for id in range(4):
            self.post(id, WRITE)
        self.a.path.lost(self.lost())
        self.assertEqual(self.a.statuses(), [(id, OK) for id in range(4)])
        self.assertTrue(self.a.work.requester.drained())

    def test_alone(self) -> None:
        """
        One that a program posts alone, behind the loss, completes as those that it posts together.
        """
        self.a.path.lost(self.lost())
        for each in ([7], [8, 9]):
            self.a.qp.work.requester.enqueueSends([PostedSend(id, 2, 0, 3, 0, b"abc") for id in each])
            self.p.settle()
        self.assertEqual(self.a.statuses(), [(7, OK), (8, OK), (9, OK)])

    @staticmethod
    def lost() -> Exception:
        """
        Why a path ends.
        """
        return PathLostError("the peer's process died")

    def test_drains(self) -> None:
        """
        A queue that was draining has drained then.
        """
        events: list[str] = []
        self.a.qp.onEvent = lambda kind, element: events.append(kind.name)
        self.post(1, WRITE)
        self.a.qp.modify(QPState.SQD, en_sqd_async_notify=1)
        self.post(2, WRITE)
        self.assertEqual(events, [])
        self.a.path.lost(self.lost())
        self.assertEqual((events, self.a.statuses()), (["SQ_DRAINED"], [(1, OK)]))
        self.a.qp.modify(QPState.RTS)
        self.assertEqual(self.a.statuses(), [(2, OK)])

    def unconnected(self) -> None:
        """
        C{a} is in RTS without a path.
        """
        self.connect(state=QPState.RESET)
        path, self.a.path = self.a.path, AddressVector(1)
        self.a.to(QPState.RTS, 18)
        self.a.path = path
        self.b.to(QPState.RTS, 17)

    def test_found(self) -> None:
        """
        Requests posted before the path is found wait for it.
        """
        self.unconnected()
        self.post(1, WRITE)
        self.a.qp.pathFailed(self.lost())
        self.assertEqual(self.a.statuses(), [])
        self.a.qp.pathFound(self.a.path)
        self.p.flow()
        self.assertEqual((self.a.statuses(), self.target.view[99]), ([(1, OK)], 99))
        self.assertIsNone(self.a.timers.deadline())

    def test_notFound(self) -> None:
        """
        But not for ever; found later, it is used.
        """
        self.unconnected()
        self.post(1, WRITE)
        self.p.clock.advance(unreliable.UNRELIABLE_WAIT_SECONDS - 0.01)
        self.a.timers.tick(self.p.clock.seconds())
        self.assertEqual(self.a.statuses(), [])
        self.p.clock.advance(0.02)
        self.a.timers.tick(self.p.clock.seconds())
        self.post(2, WRITE)
        self.assertEqual(self.a.statuses(), [(1, OK), (2, OK)])
        self.a.qp.pathFound(self.a.path)
        self.post(3, WRITE)
        self.assertEqual(self.a.statuses(), [])
        self.p.flow()
        self.assertEqual((self.a.statuses(), self.target.view[99]), ([(3, OK)], 99))

    def test_foundAgain(self) -> None:
        """
        Positions of another path are other positions: nothing is done too early.
        """
        self.unconnected()
        self.a.qp.pathFound(self.a.path)
        self.post(1, WRITE, 1000)
        self.p.flow()
        self.a.path.lost(self.lost())
        fresh = UnreliablePair()
        self.a.path = fresh.a.path
        self.a.qp.pathFound(fresh.a.path)
        self.a.statuses()
        self.post(2, WRITE)
        self.post(3, WRITE)
        fresh.b.path.progress(1)
        for _ in range(3):
            self.a.path.progress()
        self.assertEqual(self.a.statuses(), [(2, OK)])

    def test_specialQueuePairs(self) -> None:
        """
        Messages to queue pairs 0 and 1 are lost as well.
        """
        for number in (0, 1):
            self.connect(state=QPState.RESET)
            self.a.to(QPState.RTS, number)
            self.post(1, SEND)
            self.p.flow()
            self.assertEqual(self.a.statuses(), [(1, OK)])

    def test_invalidateBehind(self) -> None:
        """
        LOCAL_INV behind what is lost goes on.
        """
        self.a.qp.modify(QPState.SQD)
        self.post(1, SEND)
        self.a.send(2, SendOpcode.LOCAL_INV, invalidateKey=bound(self.a, self.source).key)
        self.post(3, SEND)
        self.a.qp.pathLost(PathLostError("it is gone"))
        self.a.qp.modify(QPState.RTS)
        self.assertEqual(self.a.statuses(), [(1, OK), (2, OK), (3, OK)])


class StateTests(UnreliableTestCase):
    """
    Every state with every verb.
    """

    def test_send(self) -> None:
        """
        Refused before RTS, waiting in SQD, flushed in ERR.
        """
        for state in (QPState.RESET, QPState.INIT, QPState.RTR):
            self.connect(state=state)
            self.assertRaises(QueuePairError, self.post, 7, WRITE)
        for state, statuses in ((QPState.RTS, [(7, OK)]), (QPState.SQD, []), (QPState.ERR, [(7, FLUSH)])):
            self.connect(state=state)
            self.post(7, WRITE)
            self.p.flow()
            self.assertEqual(self.a.statuses(), statuses)

    def test_receive(self) -> None:
        """
        Refused in RESET, flushed in ERR.
        """
        for state in (QPState.RESET, QPState.INIT, QPState.RTR, QPState.RTS, QPState.SQD, QPState.ERR):
            self.connect(state=state)
            if state == QPState.RESET:
                self.assertRaises(QueuePairError, self.b.receive, 7)
                continue
            self.b.receive(7)
            self.assertEqual([c[:2] for c in self.got()], [(7, FLUSH)] if state == QPState.ERR else [])

    def test_stopped(self) -> None:
        """
        From SQE only RTS, RESET and ERR can be reached.
        """
        for state in QPState:
            self.connect()
            self.a.send(1, SEND, SGE(0, 1, 0))
            self.assertEqual(self.a.qp.state, QPState.SQE)
            if state in (QPState.RTS, QPState.RESET, QPState.ERR):
                self.a.qp.modify(state)
                self.assertEqual(self.a.qp.state, state)
            else:
                self.assertRaises(QueuePairError, self.a.qp.modify, state)

    def test_draining(self) -> None:
        """
        SQD finishes what was begun, tells of it, and sends nothing else.
        """
        events: list[str] = []
        self.a.qp.onEvent = lambda kind, element: events.append(kind.name)
        self.post(1, WRITE)
        self.a.qp.modify(QPState.SQD, en_sqd_async_notify=1)
        self.post(2, WRITE)
        self.assertRaises(QueuePairError, self.a.qp.modify, QPState.RTS)
        self.p.flow()
        self.assertEqual((events, self.a.statuses()), (["SQ_DRAINED"], [(1, OK)]))
        self.a.qp.modify(QPState.RTS)
        self.p.flow()
        self.assertEqual(self.a.statuses(), [(2, OK)])

    def test_error(self) -> None:
        """
        ERR flushes both queues; the first message in use too.
        """
        self.b.receive(7, piece(self.target))
        self.b.receive(8)
        self.put(0x00, b"begun")
        self.b.qp.modify(QPState.ERR)
        self.assertEqual([c[:2] for c in self.got()], [(7, FLUSH), (8, FLUSH)])
        self.post(1, WRITE)
        self.a.qp.modify(QPState.ERR)
        self.assertEqual(self.a.statuses(), [(1, FLUSH)])

    def test_reset(self) -> None:
        """
        RESET forgets; it can climb again.
        """
        self.b.receive(7, piece(self.target))
        self.put(0x00, b"begun")
        self.b.qp.modify(QPState.RESET)
        self.b.to(QPState.RTS, 17)
        self.b.receive(8, piece(self.target))
        self.put(0x04, b"whole")
        self.assertEqual([c[:2] for c in self.got()], [(8, OK)])

    def test_established(self) -> None:
        """
        The first message before RTS is an event.
        """
        events: list[str] = []
        self.connect(state=QPState.RTR)
        self.b.qp.onEvent = lambda kind, element: events.append(kind.name)
        self.a.qp.modify(QPState.RTS, sq_psn=0)
        self.post(1, WRITE)
        self.post(1, WRITE)
        self.p.flow()
        self.assertEqual(events, ["COMM_EST"])
