"""
Tests for L{twisted_ib.hca.services.datagram}: sending, and the states.
"""

from __future__ import annotations

from typing import Any

from tests.hca.queues.keyed_pair import piece
from tests.hca.services.datagrams.cases import DatagramTestCase, record
from tests.hca.services.datagrams.datagram_pair import KEY
from twisted_ib import limits
from twisted_ib.errors import QueuePairError, ResourceLimitError
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.memory.memory import Memory
from twisted_ib.hca.queues.completion import WCOpcode, WCStatus
from twisted_ib.hca.queues.receives import SGE
from twisted_ib.hca.queues.requests import Destination, SendFlags, SendOpcode
from twisted_ib.hca.wire.grh import guidGID

SEND, SEND_IMM = SendOpcode.SEND, SendOpcode.SEND_WITH_IMM
OK, FLUSH = WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR


class SendTests(DatagramTestCase):
    """
    Sending.
    """

    def test_send(self) -> None:
        """
        GRH, DETH and payload; done at once.
        """
        self.a.datagram(7, self.b, piece(self.source, 1, 5))
        self.assertEqual(self.a.statuses(), [(7, OK)])
        self.assertEqual(self.wire(), [(0x64000012, record("0102030405", 16 + 8 + 8))])

    def test_immediate(self) -> None:
        """
        The immediate is between DETH and payload.
        """
        self.a.datagram(7, self.b, piece(self.source, 1, 4), opcode=SEND_IMM, immediate=0xDEADBEEF)
        self.assertEqual(self.wire(), [(0x65000012, record("deadbeef 01020304", 16 + 8 + 8))])

    def test_plainNumbers(self) -> None:
        """
        Codes and flags may be plain integers.
        """
        opcode: Any = 3
        self.a.datagram(7, self.b, opcode=opcode, immediate=1, flags=6)
        self.assertEqual(self.wire(), [(0xE5000012, record("00000001", 28))])
        self.assertEqual(self.a.statuses(), [(7, OK)])

    def test_solicited(self) -> None:
        """
        The bit is in the code.
        """
        flags = int(SendFlags.SOLICITED | SendFlags.SIGNALED)
        self.a.datagram(7, self.b, flags=flags)
        self.a.datagram(8, self.b, flags=flags, opcode=SEND_IMM)
        self.assertEqual([word >> 24 for word, _ in self.wire()], [0xE4, 0xE5])

    def test_nothing(self) -> None:
        """
        A datagram may be empty.
        """
        self.a.datagram(7, self.b)
        self.assertEqual(self.wire(), [(0x64000012, record("", 24))])

    def test_pieces(self) -> None:
        """
        The payload is gathered.
        """
        pieces = [piece(self.source, start, length) for start, length in ((1, 2), (9, 1), (5, 1))]
        self.a.datagram(7, self.b, *pieces)
        self.assertEqual(self.wire(), [(0x64000012, record("01020905", 28))])

    def test_inline(self) -> None:
        """
        The bytes may be in the request, or taken when it is posted.
        """
        self.a.datagram(7, self.b, inline=b"\1\2")
        self.a.datagram(8, self.b, piece(self.source, 1, 2), flags=int(SendFlags.INLINE))
        self.assertEqual(self.wire(), [(0x64000012, record("0102", 28))] * 2)
        self.assertEqual(self.a.statuses(), [(7, OK)])

    def test_unsignalled(self) -> None:
        """
        Unsignaled requests complete silently, unless all are signaled.
        """
        self.a.datagram(7, self.b, flags=0)
        self.a.work.signalAll = True
        self.a.datagram(8, self.b, flags=0)
        self.assertEqual(self.a.statuses(), [(8, OK)])
        self.assertEqual(len(self.wire()), 2)

    def test_completion(self) -> None:
        """
        The fields of a completion.
        """
        self.a.datagram(7, self.b, piece(self.source, 0, 100))
        (c,) = self.a.sends.poll(2)
        self.assertEqual(
            (c.workRequestID, c.status, c.opcode, c.queuePairNumber, c.byteLength, c.flags),
            (7, OK, WCOpcode.SEND, 17, 100, 0),
        )

    def test_ownKey(self) -> None:
        """
        A Q_Key with the high bit stands for the sender's own (IBTA vol. 1 10.2.5).
        """
        self.a.qp.modify(QPState.RTS, qkey=0x22)
        for key, sent in ((0x7FFFFFFF, "7fffffff"), (0x80000000, "00000022"), (0xFFFFFFFF, "00000022")):
            self.a.datagram(7, self.b, key=key)
            self.assertEqual(self.wire()[-1][1][40:44].hex(), sent)

    def test_longest(self) -> None:
        """
        As long as the path MTU and no longer, in memory or in pieces: LOC_LEN_ERR, SQE.
        """
        most = limits.DATAGRAM_BYTES
        self.a.datagram(7, self.b, piece(self.source, 0, most))
        self.a.datagram(8, self.b, piece(self.source, 0, most), piece(self.source, 0, 1), flags=0)
        self.assertEqual(self.a.statuses(), [(7, OK), (8, WCStatus.LOC_LEN_ERR)])
        self.assertEqual(self.a.qp.state, QPState.SQE)
        self.assertEqual(len(self.wire()), 1)

    def test_badMemory(self) -> None:
        """
        A key that opens nothing, or not all: LOC_PROT_ERR, SQE, nothing is sent.
        """
        for bad in (
            SGE(self.source.address, 1, 0xBAD),
            SGE(self.source.address - 1, 4, self.source.localKey),
            SGE(self.source.address + 5119, 2, self.source.localKey),
        ):
            self.a.datagram(7, self.b, piece(self.source, 0, 4), bad)
            self.assertEqual(self.a.statuses(), [(7, WCStatus.LOC_PROT_ERR)])
            self.assertEqual((self.a.qp.state, self.wire()), (QPState.SQE, []))
            self.a.qp.modify(QPState.RTS)

    def test_otherOpcodes(self) -> None:
        """
        Datagrams do nothing but SEND.
        """
        for opcode in set(SendOpcode) - {SEND, SEND_IMM, SendOpcode.BIND_MW, SendOpcode.ATOMIC_CMP_AND_SWP}:
            with self.assertRaises(QueuePairError):
                self.a.datagram(7, self.b, piece(self.source, 0, 8), opcode=opcode)
        self.assertEqual((self.a.statuses(), self.wire()), ([], []))

    def test_badDestination(self) -> None:
        """
        A destination must be there, and usable, and fit.
        """
        handle = self.a.handle(guidGID(0xB1))
        other = Memory(lambda bits: 1).allocateDomain()
        closed = self.a.handle(guidGID(0xB1))
        closed.close()
        foreign = self.a.handle(guidGID(0xB1))
        foreign.pd = other
        self.assertRaises(QueuePairError, self.a.send, 7, SEND)
        for destination in (
            Destination(closed, 18, KEY),
            Destination(foreign, 18, KEY),
            Destination(handle, 1 << 24, KEY),
            Destination(handle, -1, KEY),
            Destination(handle, 18, 1 << 32),
            Destination(handle, 18, -1),
        ):
            self.assertRaises(QueuePairError, self.a.send, 7, SEND, destination=destination)
        self.assertEqual((self.a.statuses(), self.wire()), ([], []))

    def test_anyDestination(self) -> None:
        """
        Every number of 24 bits and every Q_Key of 32 is one.
        """
        handle = self.a.handle(guidGID(0xB1))
        for id, (number, key) in enumerate(((0, KEY), ((1 << 24) - 1, KEY), (18, 0), (18, (1 << 32) - 1))):
            self.a.send(id, SEND, destination=Destination(handle, number, key))
        self.assertEqual(self.a.statuses(), [(id, OK) for id in range(4)])

    def test_nobodyThere(self) -> None:
        """
        A datagram to an unreachable address is done, and counted.
        """
        self.a.datagram(7, self.a.handle(guidGID(0xC1)), number=18)
        self.assertEqual(self.a.statuses(), [(7, OK)])
        self.assertEqual(self.a.hca.counters, {"datagrams_lost": 1})

    def test_stalledReceiver(self) -> None:
        """
        A stalled receiver does not block the queue for others; what waits arrives in order.
        """
        self.connect(capacity=200)
        for id in range(5):
            self.b.receive(id, piece(self.target, 100 * id, 100))
            self.a.datagram(id, self.b, piece(self.source, id, 50))
        self.assertEqual(self.a.statuses(), [(id, OK) for id in range(5)])
        self.p.flow()
        self.assertEqual([c[0] for c in self.got()], list(range(5)))
        self.assertEqual([self.target.view[100 * id + 40] for id in range(5)], list(range(5)))

    def test_full(self) -> None:
        """
        The queue has as many places as it has: in SQD they fill up.
        """
        self.a.qp.modify(QPState.SQD)
        for id in range(128):
            self.assertTrue(self.a.work.canPost())
            self.a.datagram(id, self.b)
        self.assertFalse(self.a.work.canPost())
        self.assertRaises(ResourceLimitError, self.a.datagram, 128, self.b)
        self.assertFalse(self.a.work.idle())
        self.assertEqual(self.a.work.requester.room(), 0)
        resumed: list[int] = []
        self.a.consumer.resume = lambda: resumed.append(self.a.work.requester.room())
        self.a.qp.modify(QPState.RTS)
        self.assertEqual(resumed, [128])
        self.assertTrue(self.a.work.idle())
        self.assertEqual(self.a.statuses(), [(id, OK) for id in range(128)])

    def test_overflow(self) -> None:
        """
        A completion for which there is no room brings the queue pair to ERR; what is
        behind it is not sent.
        """
        self.connect(depth=2)
        self.a.qp.modify(QPState.SQD)
        for id in range(5):
            self.a.datagram(id, self.b)
        self.a.qp.modify(QPState.RTS)
        self.assertEqual(self.a.statuses(), [(0, OK), (1, OK)])
        self.assertEqual((self.a.qp.state, len(self.wire())), (QPState.ERR, 3))

    def test_handleGone(self) -> None:
        """
        Without its address handle a request that waits cannot be done (LOC_QP_OP_ERR).
        """
        self.a.qp.modify(QPState.SQD)
        handle = self.a.handle(guidGID(0xB1))
        self.a.datagram(1, handle, number=18)
        handle.close()
        self.a.qp.modify(QPState.RTS)
        self.assertEqual(self.a.statuses(), [(1, WCStatus.LOC_QP_OP_ERR)])
        self.assertEqual((self.a.qp.state, self.wire()), (QPState.SQE, []))

    def test_withoutRequest(self) -> None:
        """
        The stream path has no destination.
        """
        self.assertRaises(QueuePairError, self.a.work.postInline, b"x", 1)


class StateTests(DatagramTestCase):
    """
    Every state with every verb.
    """

    def test_send(self) -> None:
        """
        Refused before RTS, waiting in SQD, flushed in SQE and ERR.
        """
        for state in (QPState.RESET, QPState.INIT, QPState.RTR):
            self.connect(state=state)
            self.assertRaises(QueuePairError, self.a.datagram, 7, self.b)
        for state, statuses, sent in (
            (QPState.RTS, [(7, OK)], 1),
            (QPState.SQD, [], 0),
            (QPState.ERR, [(7, FLUSH)], 0),
        ):
            self.connect(state=state)
            self.a.datagram(7, self.b)
            self.assertEqual((self.a.statuses(), len(self.wire())), (statuses, sent))

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
            expected = [(7, FLUSH)] if state == QPState.ERR else []
            self.assertEqual([c[:2] for c in self.got()], expected)

    def test_arrival(self) -> None:
        """
        Datagrams are taken from RTR on, but not in ERR.
        """
        for state in (QPState.INIT, QPState.RTR, QPState.RTS, QPState.SQD):
            self.connect(state=state)
            self.b.receive(7, piece(self.target))
            self.put(record("01020304", 28))
            self.assertEqual([c[:2] for c in self.got()], [(7, OK)] if state != QPState.INIT else [])

    def stop(self) -> None:
        """
        Bring C{a} to SQE.
        """
        self.a.datagram(1, self.b, SGE(0, 1, 0))
        self.assertEqual((self.a.qp.state, self.a.statuses()), (QPState.SQE, [(1, WCStatus.LOC_PROT_ERR)]))

    def test_stopped(self) -> None:
        """
        SQE: what is posted is flushed, in order and signalled or not; receives go on; RTS
        revives it.
        """
        self.a.qp.modify(QPState.SQD)
        self.a.datagram(1, self.b)
        self.a.datagram(2, self.b, SGE(0, 1, 0), flags=0)
        self.a.datagram(3, self.b, flags=0)
        self.a.datagram(4, self.b)
        self.a.qp.modify(QPState.RTS)
        expected = [(1, OK), (2, WCStatus.LOC_PROT_ERR), (3, FLUSH), (4, FLUSH)]
        self.assertEqual(self.a.statuses(), expected)
        self.assertEqual((self.a.qp.state, len(self.wire())), (QPState.SQE, 1))
        self.a.datagram(5, self.b)
        self.assertEqual(self.a.statuses(), [(5, FLUSH)])
        memory = self.a.register(200)
        self.a.receive(9, piece(memory))
        self.b.datagram(1, self.a)
        self.p.flow()
        self.assertEqual([c[:2] for c in self.got(self.a)], [(9, OK)])
        self.a.qp.modify(QPState.RTS, cur_qp_state=QPState.SQE)
        self.a.datagram(6, self.b)
        self.assertEqual(self.a.statuses(), [(6, OK)])
        self.assertEqual(self.a.consumer.failures, [])

    def test_stoppedTransitions(self) -> None:
        """
        From SQE only RTS, RESET and ERR can be reached.
        """
        for state in (QPState.INIT, QPState.RTR, QPState.SQD, QPState.SQE):
            self.connect()
            self.stop()
            self.assertRaises(QueuePairError, self.a.qp.modify, state)
        for state in (QPState.RTS, QPState.RESET, QPState.ERR):
            self.connect()
            self.stop()
            self.a.qp.modify(state)
            self.assertEqual(self.a.qp.state, state)

    def test_drains(self) -> None:
        """
        A queue of datagrams is always drained, and says so at once.
        """
        events: list[Any] = []
        self.a.qp.onEvent = lambda kind, element: events.append(kind.name)
        self.a.qp.modify(QPState.SQD, en_sqd_async_notify=1)
        self.assertEqual(events, ["SQ_DRAINED"])
        self.a.qp.modify(QPState.SQD, qkey=5)

    def test_error(self) -> None:
        """
        ERR flushes both queues; nothing arrives any more.
        """
        self.b.receive(1, piece(self.target))
        self.b.receive(2, piece(self.target))
        self.b.qp.modify(QPState.SQD)
        self.b.datagram(3, self.a)
        self.b.qp.modify(QPState.ERR)
        self.assertEqual([c[:2] for c in self.got()], [(1, FLUSH), (2, FLUSH)])
        self.assertEqual(self.b.statuses(), [(3, FLUSH)])

    def test_reset(self) -> None:
        """
        RESET forgets everything without completions; it can climb again.
        """
        self.b.receive(1, piece(self.target))
        self.b.qp.modify(QPState.SQD)
        self.b.datagram(3, self.a)
        self.b.qp.modify(QPState.RESET)
        self.b.to(QPState.RTS)
        self.put(record("01020304", 28))
        self.assertEqual((self.got(), self.b.statuses()), ([], []))
        self.assertEqual(self.b.hca.counters, {"datagrams_without_receive": 1})

    def test_close(self) -> None:
        """
        A queue pair that is gone holds nothing.
        """
        self.b.receive(1, piece(self.target))
        work = self.b.work
        self.b.qp.close()
        work.responder.received(self.p.ends[1], 0x64, record("", 24), 0, 48)
        work.requester.pump()
        self.assertNotIn("queue pairs", self.b.pd.users)
        self.assertEqual(self.got(), [])
