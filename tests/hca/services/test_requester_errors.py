"""
Tests for L{twisted_ib.hca.services.requester}: refusals, death, local rights, hostile answers.
"""

from __future__ import annotations

from tests.hca.queues.keyed_cases import RequesterTestCase
from tests.hca.queues.keyed_pair import piece
from twisted_ib import limits
from twisted_ib.errors import PathLostError
from twisted_ib.hca.base import operation
from twisted_ib.hca.base.attributes import ACK_DELAY_CODE
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.base.timers import timeoutSeconds
from twisted_ib.hca.memory.access import Access
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.receives import SGE
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.hca.wire import headers, opcodes
from twisted_ib.hca.wire.headers import REFERENCE

SEND, SEND_IMM = SendOpcode.SEND, SendOpcode.SEND_WITH_IMM
WRITE, WRITE_IMM = SendOpcode.RDMA_WRITE, SendOpcode.RDMA_WRITE_WITH_IMM
READ = SendOpcode.RDMA_READ
OK, FLUSH = WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR


class RefusalTests(RequesterTestCase):
    """
    Refusals: RNR, absence, NAKs.
    """

    def test_rnrRetries(self) -> None:
        """
        A request that finds no receive is repeated rnr_retry times, each after the peer's
        timer; then it ends with RNR_RETRY_EXC_ERR.
        """
        for retries in range(7):
            self.connect(rnr_retry=retries, min_rnr_timer=18)
            self.post(1, SEND)
            self.post(2, SEND)
            self.p.settle()
            self.assertEqual(self.a.statuses(), [(1, WCStatus.RNR_RETRY_EXC_ERR), (2, FLUSH)])
            self.assertAlmostEqual(self.p.clock.seconds(), 0.00512 * retries)
            self.assertEqual(self.b.qp.state, QPState.RTS)

    def test_rnrForEver(self) -> None:
        """
        With rnr_retry 7 it is repeated until there is a receive.
        """
        self.post(1, SEND)
        self.assertFalse(self.a.work.refused())
        self.assertRaises(AssertionError, self.p.settle)
        self.assertTrue(self.a.work.refused())
        self.receives()
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, OK)])
        self.assertFalse(self.a.work.refused())

    def test_later(self) -> None:
        """
        A READ for which the peer has no responder resources yet is repeated every 0.1 ms, until it has.
        """
        self.connect(max_dest_rd_atomic=1)
        self.b.path.capacity = 0
        for id in (1, 2):
            self.post(id, READ)
        self.p.flow()
        for repeats in range(1, 20):
            self.assertAlmostEqual(self.a.timers.deadline(), repeats * 0.0001)
            self.p.pass_(0.0001)
        self.b.path.capacity = 1 << 18
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, OK), (2, OK)])

    def test_rnrOrder(self) -> None:
        """
        Requests behind a refused one are not done before it, although they need no receive; nothing
        is done twice.
        """
        self.target.view[:] = bytes(10240)
        mine = self.a.register(4)
        self.post(1, WRITE, 1)
        self.post(2, SEND, 200)
        self.post(3, WRITE, 200, remoteAddress=self.target.address + 50)
        remote = {"remoteAddress": self.target.address + 50, "remoteKey": self.target.remoteKey}
        self.a.send(4, READ, piece(mine), **remote)
        self.p.flow()
        self.assertEqual(self.a.statuses(), [(1, OK)])
        self.assertEqual(bytes(self.target.view[:300]), bytes(300))
        self.b.receive(9, piece(self.target, 1000))
        self.b.receive(10, piece(self.target, 2000))
        self.p.flow()
        self.assertEqual(self.a.statuses(), [])
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(2, OK), (3, OK), (4, OK)])
        self.assertEqual([c.workRequestID for c in self.b.received()], [9])
        self.assertEqual(bytes(mine.view), b"\0\1\2\3")
        self.a.send(5, READ, piece(mine), **remote)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(5, OK)])

    def test_rnrInTheMiddle(self) -> None:
        """
        A WRITE with immediate is refused at its end for want of a receive, and repeated as
        a whole; so is a SEND whose later records were already on their way.
        """
        self.patch(limits, "INLINE_MESSAGE", 1000)
        self.connect(capacity=3000)
        self.target.view[:] = bytes(10240)
        for verb in (WRITE_IMM, SEND):
            self.post(1, verb, 5000)
            self.p.flow()
            self.assertEqual(self.a.statuses(), [])
            self.b.receive(9, piece(self.target))
            self.p.settle()
            self.assertEqual(self.a.statuses(), [(1, OK)])
            self.assertEqual([c.byteLength for c in self.b.received()], [5000])
            self.assertEqual(bytes(self.target.view[:5000]), bytes(self.source.view[:5000]))

    def test_rnrAnew(self) -> None:
        """
        Each request has its own count.
        """
        self.connect(rnr_retry=2)
        for id in range(3):
            self.post(id, SEND)
        for _ in range(3):
            self.p.flow()
            self.p.pass_(0.00064)
            self.receives()
            self.p.pass_(0.00064)
        self.assertEqual(self.a.statuses(), [(id, OK) for id in range(3)])

    def test_lateQueuePair(self) -> None:
        """
        A peer that comes to RTR in time gets everything, once, in order, even what was
        sent while it came.
        """
        self.connect(connect=False)
        self.a.to(QPState.RTS, 18)
        for id in range(4):
            self.post(id, SEND)
        self.b.path.progress(2)
        self.b.to(QPState.INIT, 17)
        for id in range(4):
            self.b.receive(id, piece(self.target, id * 100, 100))
        self.b.qp.modify(
            QPState.RTR,
            ah_attr=self.b.path,
            dest_qp_num=17,
            path_mtu=5,
            rq_psn=0,
            max_dest_rd_atomic=1,
            min_rnr_timer=1,
        )
        self.p.flow()
        self.assertEqual(self.b.received(), [])
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(id, OK) for id in range(4)])
        self.assertEqual([c.workRequestID for c in self.b.received()], list(range(4)))

    def test_absentForMore(self) -> None:
        """
        A peer that is not there is not there for a first message that does not fit into the
        medium at once either.
        """
        self.patch(limits, "INLINE_MESSAGE", 100)
        self.connect(connect=False, capacity=300)
        self.a.to(QPState.RTS, 18)
        self.post(1, WRITE, 2000)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, WCStatus.RETRY_EXC_ERR)])

    def test_timeoutZero(self) -> None:
        """
        With timeout 0 an absent peer is waited for until its process ends.
        """
        self.connect(connect=False)
        self.a.to(QPState.RTS, 18, timeout=0)
        self.post(1, SEND)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [])
        self.p.die(self.b)
        self.assertEqual(self.a.statuses(), [(1, WCStatus.RETRY_EXC_ERR)])

    def test_everySyndrome(self) -> None:
        """
        Fatal syndromes and the statuses they mean.
        """
        for syndrome, status in (
            (0x61, WCStatus.REM_INV_REQ_ERR),
            (0x62, WCStatus.REM_ACCESS_ERR),
            (0x63, WCStatus.REM_OP_ERR),
            (0x60, WCStatus.REM_OP_ERR),
            (0x64, WCStatus.REM_OP_ERR),
            (0x00, WCStatus.REM_OP_ERR),
            (0xFF, WCStatus.REM_OP_ERR),
        ):
            self.connect()
            for id in range(3):
                self.post(id, SEND)
            position = self.a.path.records[1][0]
            self.a.path.other.records.clear()
            self.refuse(syndrome, position)
            self.assertEqual(self.a.statuses(), [(0, OK), (1, status), (2, FLUSH)])
            self.assertEqual(self.a.qp.state, QPState.ERR)
            self.assertEqual(len(self.a.consumer.failures), 1)

    def refuse(self, syndrome: int, position: int) -> None:
        """
        Have the other end publish a refusal, and take it.
        """
        body = operation.REFUSAL.pack(syndrome, 18, position)
        self.b.path.post(opcodes.ACKNOWLEDGE << 24 | 17, b"", body, len(body))
        self.a.path.progress()

    def test_refusalsOfNothing(self) -> None:
        """
        Refusals of what is done, was never sent or is no refusal at all do nothing.
        """
        self.receives(1)
        self.post(1, SEND)
        self.p.flow()
        self.assertEqual(self.a.statuses(), [(1, OK)])
        for syndrome in (headers.RNR, operation.ABSENT, 0x61, 0x62):
            for position in (0, 1, self.a.path.tail, self.a.path.tail + 1, (1 << 64) - 1):
                self.refuse(syndrome, position)
        for body in (b"", b"\x62", bytes(15), bytes(17)):
            self.b.path.post(opcodes.ACKNOWLEDGE << 24 | 17, b"", body, len(body))
        self.p.settle()
        self.assertEqual(self.a.qp.state, QPState.RTS)
        self.assertEqual(self.a.statuses(), [])

    def test_refusalsOfTaken(self) -> None:
        """
        So do those of a READ that was taken and not answered, and of records that come
        after all that is published.
        """
        self.b.path.capacity = 0
        self.post(1, READ)
        self.p.flow()
        taken = self.a.path.tail
        self.a.path.capacity = 200
        self.post(2, WRITE, 150)
        self.post(3, WRITE, 150)
        self.b.path.capacity = 1 << 18
        self.refuse(0x62, taken)
        self.refuse(0x62, self.a.path.tail + 1)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, OK), (2, OK), (3, OK)])

    def test_answersFirst(self) -> None:
        """
        A request that is refused for good while READs before it are being answered waits
        for their answers, whatever rnr_retry is.
        """
        self.connect(rnr_retry=0)
        self.b.path.capacity = 0
        for id in range(2):
            self.post(id, READ)
        self.post(2, WRITE)
        self.post(3, WRITE, remoteKey=1)
        self.post(4, WRITE)
        self.p.pass_(0.01)
        self.p.pass_(0.01)
        self.assertEqual(self.a.statuses(), [])
        self.b.path.capacity = 1 << 18
        self.p.settle()
        self.assertEqual(
            self.a.statuses(), [(0, OK), (1, OK), (2, OK), (3, WCStatus.REM_ACCESS_ERR), (4, FLUSH)]
        )

    def test_answersBeforeReceives(self) -> None:
        """
        So does one that finds no receive and may not be repeated.
        """
        self.connect(rnr_retry=0)
        self.b.path.capacity = 0
        self.post(1, READ)
        self.post(2, SEND)
        self.p.pass_(0.01)
        self.assertEqual(self.a.statuses(), [])
        self.b.path.capacity = 1 << 18
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, OK), (2, WCStatus.RNR_RETRY_EXC_ERR)])

    def test_answersBehind(self) -> None:
        """
        A READ behind it does not keep it alive.
        """
        self.connect(rnr_retry=1)
        self.post(1, SEND)
        self.post(2, READ)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, WCStatus.RNR_RETRY_EXC_ERR), (2, FLUSH)])
        self.assertAlmostEqual(self.p.clock.seconds(), 0.00064)

    def test_lostAnswer(self) -> None:
        """
        When the peer's queue pair goes while it answers, the READ is what fails, and all
        behind it is flushed, although the peer had taken some.
        """
        for syndrome in (None, 0x62):
            self.connect()
            self.b.path.capacity = 0
            for id in range(2):
                self.post(id, READ)
            self.post(2, WRITE)
            self.p.flow()
            self.b.path.capacity = 1 << 18
            self.post(3, WRITE)
            if syndrome is None:
                self.b.qp.modify(QPState.ERR)
            else:
                self.a.path.records.clear()
                self.a.path.used = 0
                self.b.path.waiting.clear()
                self.refuse(syndrome, self.a.path.tail)
            self.p.settle()
            self.assertEqual(
                self.a.statuses(), [(0, WCStatus.RETRY_EXC_ERR), (1, FLUSH), (2, FLUSH), (3, FLUSH)]
            )

    def test_refusalFindsQueueFull(self) -> None:
        """
        When completions are lost before the refused one, everything ends, and only once.
        """
        self.connect(depth=2)
        for id in range(4):
            self.post(id, WRITE)
        self.post(4, WRITE, remoteKey=1)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(0, OK), (1, OK)])
        self.assertEqual(len(self.a.consumer.failures), 1)
        self.assertIn("found its queue full", str(self.a.consumer.failures[0]))


class DeathTests(RequesterTestCase):
    """
    The peer's process dies.
    """

    def test_flush(self) -> None:
        """
        Requests that the peer consumed are done; the first other one ends with RETRY_EXC_ERR, the
        rest, sent or not, is flushed, and so are the receives.
        """
        self.connect(capacity=1000)
        self.a.receive(50)
        self.receives(1)
        for id in range(20):
            self.post(id, WRITE)
        self.b.path.progress(2)
        self.p.die(self.b)
        statuses = self.a.statuses()
        self.assertEqual(statuses[:4], [(0, OK), (1, OK), (2, WCStatus.RETRY_EXC_ERR), (3, FLUSH)])
        self.assertEqual([status for _, status in statuses[3:]], [FLUSH] * 17)
        self.assertEqual([(c.workRequestID, c.status) for c in self.a.received()], [(50, FLUSH)])
        self.assertIsInstance(self.a.consumer.failures[0], PathLostError)

    def test_waiting(self) -> None:
        """
        A request that waits for its RNR timer ends at once; the timer is gone.
        """
        self.post(1, SEND)
        self.p.flow()
        self.p.die(self.b)
        self.assertEqual(self.a.statuses(), [(1, WCStatus.RETRY_EXC_ERR)])
        self.assertIsNone(self.a.timers.deadline())

    def test_lastWords(self) -> None:
        """
        Records that the peer published before it died count: a READ response, a refusal.
        """
        self.post(1, READ)
        self.post(2, WRITE, remoteKey=3)
        self.b.path.progress()
        self.p.die(self.b)
        self.assertEqual(self.a.statuses(), [(1, OK), (2, WCStatus.REM_ACCESS_ERR)])

    def test_idle(self) -> None:
        """
        With nothing posted there is no completion.
        """
        self.p.die(self.b)
        self.assertEqual((self.a.statuses(), self.a.received()), ([], []))
        self.assertEqual(self.a.qp.state, QPState.ERR)


class SilenceTests(RequesterTestCase):
    """
    The peer's process dies, and the queue pair is one of verbs: an adapter would not notice.
    """

    def connect(self, **changes: int) -> None:
        """
        Connect queue pairs whose consumers are not told.
        """
        super().connect(**{"timeout": 16, "retry_cnt": 3, **changes})
        self.a.qp.failsWithPath = False

    def failure(self, code: int = 16) -> list[tuple[int, WCStatus]]:
        """
        @param code: the timeout's.
        @return: The completions when the retries are over, and none before.
        """
        wait = timeoutSeconds(code) or 0.0
        self.p.pass_(4 * wait - 0.0001)
        self.assertEqual((self.a.statuses(), self.a.received()), ([], []))
        self.p.pass_(0.0002)
        return self.a.statuses()

    def test_idle(self) -> None:
        """
        With nothing posted nothing happens: it stays in RTS and keeps its receives, however long it takes.
        """
        self.a.receive(50)
        self.post(1, WRITE)
        self.p.flow()
        self.assertEqual(self.a.statuses(), [(1, OK)])
        self.p.die(self.b)
        self.p.pass_(1000)
        self.assertEqual((self.a.statuses(), self.a.received()), ([], []))
        self.assertEqual((self.a.qp.state, self.a.consumer.failures), (QPState.RTS, []))
        self.assertIsNone(self.a.timers.deadline())

    def test_post(self) -> None:
        """
        What is posted then fails when its retries are over, and the receives are flushed.
        """
        self.a.receive(50)
        self.p.die(self.b)
        self.post(1, WRITE)
        self.post(2, SEND)
        self.assertEqual(self.failure(), [(1, WCStatus.RETRY_EXC_ERR), (2, FLUSH)])
        self.assertEqual([(c.workRequestID, c.status) for c in self.a.received()], [(50, FLUSH)])
        self.assertEqual(self.a.qp.state, QPState.ERR)

    def test_shortTimeout(self) -> None:
        """
        A timeout below our own ACK delay counts as that: a peer that waits for a processor is not dead.
        """
        self.connect(timeout=4)
        self.p.die(self.b)
        self.post(1, WRITE)
        self.assertEqual(self.failure(ACK_DELAY_CODE), [(1, WCStatus.RETRY_EXC_ERR)])

    def test_outstanding(self) -> None:
        """
        What waits for the peer fails when its retries are over: on its way, refused, a READ, or waiting
        for room.
        """
        for kinds, done in (((WRITE, WRITE), 0), ((READ, WRITE), 0), ((SEND, SEND), 1), ((WRITE,) * 20, 0)):
            self.connect(capacity=1000)
            for id, kind in enumerate(kinds):
                self.post(id, kind)
            for _ in range(done):
                self.b.path.progress(1)
            self.a.path.progress()
            self.p.die(self.b)
            expected = [(0, WCStatus.RETRY_EXC_ERR), *((id, FLUSH) for id in range(1, len(kinds)))]
            self.assertEqual(self.failure(), expected, kinds)
            self.assertIsNone(self.a.timers.deadline())

    def test_draining(self) -> None:
        """
        SQD waits for what was sent, which fails there; what was not sent stays.
        """
        self.post(1, WRITE)
        self.a.qp.modify(QPState.SQD)
        self.p.die(self.b)
        self.assertTrue(self.a.qp.query()["sq_draining"])
        self.assertEqual(self.failure(), [(1, WCStatus.RETRY_EXC_ERR)])
        self.connect()
        self.a.qp.modify(QPState.SQD)
        self.post(1, WRITE)
        self.p.die(self.b)
        self.p.pass_(1000)
        self.assertEqual((self.a.statuses(), self.a.qp.query()["sq_draining"]), ([], False))
        self.a.qp.modify(QPState.RTS)
        self.assertEqual(self.failure(), [(1, WCStatus.RETRY_EXC_ERR)])

    def test_timeoutNever(self) -> None:
        """
        With timeout 0 it never fails (IBTA vol. 1 9.7.6.1.3); the program ends it.
        """
        self.connect(timeout=0)
        self.post(1, WRITE)
        self.p.die(self.b)
        self.p.pass_(1000)
        self.assertEqual(self.a.statuses(), [])
        self.a.qp.modify(QPState.ERR)
        self.assertEqual(self.a.statuses(), [(1, FLUSH)])


class LocalAccessTests(RequesterTestCase):
    """
    Accesses to local memory that a request may not do.
    """

    def violations(self, access: int) -> list[SGE]:
        """
        Pieces that a request may not use so.
        """
        region = self.a.register(100, access)
        gone = self.a.register(100)
        foreign = self.a.memory.register(bytearray(100), Access.LOCAL_WRITE, self.a.memory.allocateDomain())
        self.a.memory.deregister(gone)
        key = region.localKey
        return [
            SGE(region.address, 10, key ^ 1),
            SGE(region.address - 1, 10, key),
            SGE(region.address + 91, 10, key),
            SGE(region.address + 100, 1, key),
            SGE((1 << 64) - 1, 10, key),
            SGE(region.address, 10, gone.localKey or 0),
            piece(foreign, 0, 10),
        ]

    def test_source(self) -> None:
        """
        A SEND or WRITE from memory that it may not read ends with LOC_PROT_ERR, when what
        was posted before is done; nothing of it is sent.
        """
        for number in range(7):
            for verb in (SEND, WRITE):
                self.connect()
                self.receives(1)
                self.post(1, SEND)
                bad = self.violations(0)[number]
                self.a.send(2, verb, piece(self.source, 0, 5), bad, remoteKey=self.target.remoteKey)
                self.post(3, SEND)
                self.assertEqual(self.a.statuses(), [])
                self.assertEqual(len(self.wire()), 1)
                self.p.settle()
                self.assertEqual(self.a.statuses(), [(1, OK), (2, WCStatus.LOC_PROT_ERR), (3, FLUSH)])

    def test_readTarget(self) -> None:
        """
        So does a READ into memory that it may not write.
        """
        read = {"remoteAddress": self.target.address, "remoteKey": self.target.remoteKey}
        for number in range(8):
            self.connect()
            bad = [*self.violations(1), piece(self.a.register(10, Access.REMOTE_READ))][number]
            self.a.send(1, READ, bad, **read)
            self.assertEqual(self.a.statuses(), [(1, WCStatus.LOC_PROT_ERR)])
            self.assertEqual(self.wire(), [])

    def test_goneMeanwhile(self) -> None:
        """
        A READ whose target goes while it is on the way ends with LOC_PROT_ERR.
        """
        mine = self.a.register(100)
        self.a.send(1, READ, piece(mine), remoteAddress=self.target.address, remoteKey=self.target.remoteKey)
        self.a.memory.deregister(mine)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, WCStatus.LOC_PROT_ERR)])

    def test_sourceGoneMeanwhile(self) -> None:
        """
        So does a WRITE whose source goes before all is published.
        """
        self.patch(limits, "INLINE_MESSAGE", 100)
        self.connect(capacity=300)
        mine = self.a.register(1000)
        self.a.send(1, WRITE, piece(mine), remoteAddress=self.target.address, remoteKey=self.target.remoteKey)
        self.a.memory.deregister(mine)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, WCStatus.LOC_PROT_ERR)])


class AnswerTests(RequesterTestCase):
    """
    Answers to READs, as a hostile peer may give them.
    """

    def answer(self, *records: tuple[int, bytes]) -> list[tuple[int, WCStatus]]:
        """
        Answer a READ of 10 bytes so.
        """
        self.mine = self.a.register(30)
        place = piece(self.mine, 10, 10)
        self.a.send(1, READ, place, remoteAddress=self.target.address, remoteKey=self.target.remoteKey)
        for code, data in records:
            self.b.path.post(code << 24 | 17, b"", data, len(data))
        self.a.path.progress()
        return self.a.statuses()

    def test_good(self) -> None:
        """
        The shapes that an answer may have.
        """
        for records in (
            [(0x10, b"0123456789")],
            [(0x0D, b"01234"), (0x0F, b"56789")],
            [(0x0D, b"0"), (0x0E, b"12345678"), (0x0F, b"9")],
        ):
            self.connect()
            self.assertEqual(self.answer(*records), [(1, OK)])
            self.assertEqual(bytes(self.mine.view), bytes(10) + b"0123456789" + bytes(10))

    def test_bad(self) -> None:
        """
        Any other ends the READ with BAD_RESP_ERR, and no byte lands outside.
        """
        ten = b"0123456789"
        for records in (
            [(0x10, b"")],
            [(0x10, ten[:9])],
            [(0x10, ten + b"x")],
            [(0x0D, ten)],
            [(0x0D, ten + b"x")],
            [(0x0E, b"01234")],
            [(0x0F, ten)],
            [(0x0F, b"")],
            [(0x0D, b"01234"), (0x0D, b"5")],
            [(0x0D, b"01234"), (0x10, b"56789")],
            [(0x0D, b"01234"), (0x0F, b"5678")],
            [(0x0D, b"01234"), (0x0F, b"567890")],
            [(0x0D, b"01234"), (0x0E, b"567890123456789")],
            [(0x12, bytes(8))],
            [(0x50, ten)],
            [(0x50, REFERENCE.pack(1, 10, 0))],
            [(0x50, REFERENCE.pack(0, 10, 0))],
        ):
            self.connect()
            self.assertEqual(self.answer(*records), [(1, WCStatus.BAD_RESP_ERR)], records)
            self.assertEqual(bytes(self.mine.view[:10]) + bytes(self.mine.view[20:]), bytes(20))
            self.assertEqual(self.a.qp.state, QPState.ERR)

    def test_references(self) -> None:
        """
        A reference must lie within what was offered.
        """
        for number, count, offset, good in (
            (1, 10, 0, True),
            (1, 10, 10, True),
            (1, 10, 11, False),
            (1, 10, 1 << 63, False),
            (2, 10, 0, False),
            (1, 0xFFFFFFFF, 0, False),
        ):
            self.connect()
            self.b.path.offers[1] = bytes(range(20))
            status = OK if good else WCStatus.BAD_RESP_ERR
            self.assertEqual(self.answer((0x50, REFERENCE.pack(number, count, offset))), [(1, status)])
            expected = bytes(range(20))[offset : offset + 10] if good else bytes(10)
            self.assertEqual(bytes(self.mine.view[10:20]), expected)

    def test_unasked(self) -> None:
        """
        Answers to nothing do nothing.
        """
        for code in (0x0D, 0x0E, 0x0F, 0x10, 0x12, 0x50):
            self.b.path.post(code << 24 | 17, b"", b"12345", 5)
        self.p.settle()
        self.assertEqual(self.a.qp.state, QPState.RTS)
