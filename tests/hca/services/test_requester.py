"""
Tests for L{twisted_ib.hca.services.requester}, L{twisted_ib.hca.services.operations} and the send half of
L{twisted_ib.hca.services.work}.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

from tests.hca.queues.keyed_cases import RequesterTestCase
from tests.hca.queues.keyed_pair import Pair, piece
from twisted_ib import limits
from twisted_ib.errors import QueuePairError, ResourceLimitError
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.fabric.base.path import RecordPath
from twisted_ib.hca.queues.completion import WCOpcode, WCStatus
from twisted_ib.hca.queues.receives import SGE
from twisted_ib.hca.queues.requests import Capabilities, SendFlags, SendOpcode, SendRequest
from twisted_ib.hca.services.operations import message
from twisted_ib.hca.services.operations.rows import OPERATIONS
from twisted_ib.hca.services.operations.send import PostedSend
from twisted_ib.hca.wire.headers import IMMEDIATE, INVALIDATE, REFERENCE, RETH

SEND, SEND_IMM, SEND_INV = SendOpcode.SEND, SendOpcode.SEND_WITH_IMM, SendOpcode.SEND_WITH_INV
WRITE, WRITE_IMM = SendOpcode.RDMA_WRITE, SendOpcode.RDMA_WRITE_WITH_IMM
READ = SendOpcode.RDMA_READ
VERBS = sorted(each.opcode for each in OPERATIONS)
LOCAL = (SendOpcode.LOCAL_INV, SendOpcode.BIND_MW)
OK, FLUSH = WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR
QUIET = 0


class StateTests(RequesterTestCase):
    """
    Every verb in every state.
    """

    def test_everyVerbInEveryState(self) -> None:
        """
        Below RTS a send is an error; in RTS it is done; in SQD it waits for RTS; in ERR it
        is flushed at once.
        """
        for state in (QPState.RESET, QPState.INIT, QPState.RTR, QPState.RTS, QPState.SQD, QPState.ERR):
            for verb in VERBS:
                self.connect(connect=False)
                self.a.to(state, 18)
                self.b.to(QPState.RTS, 17)
                self.receives()
                if state < QPState.RTS:
                    error = self.assertRaises(QueuePairError, self.post, 1, verb)
                    self.assertIn(state.name, str(error))
                    expected = []
                else:
                    self.post(1, verb)
                    expected = {QPState.RTS: [(1, OK)], QPState.ERR: [(1, FLUSH)]}.get(state, [])
                self.p.settle()
                self.assertEqual(self.a.statuses(), expected, (state, verb))
                if state == QPState.SQD:
                    self.a.qp.modify(QPState.RTS)
                    self.p.settle()
                    self.assertEqual(self.a.statuses(), [(1, OK)])

    def test_everyVerbToEveryState(self) -> None:
        """
        A peer that can receive takes it; one that cannot is absent: after retry_cnt
        tries the request ends with RETRY_EXC_ERR.
        """
        for state in (QPState.RESET, QPState.INIT, QPState.RTR, QPState.RTS, QPState.SQD, QPState.ERR):
            for verb in VERBS:
                self.connect(connect=False)
                self.a.to(QPState.RTS, 18)
                self.b.to(state, 17)
                if state not in (QPState.RESET, QPState.ERR):
                    self.receives()
                self.post(1, verb)
                self.p.settle()
                taken = state in (QPState.RTR, QPState.RTS, QPState.SQD) or verb in LOCAL
                expected = OK if taken else WCStatus.RETRY_EXC_ERR
                self.assertEqual(self.a.statuses(), [(1, expected)], (state, verb))
                self.assertEqual(self.a.qp.state, QPState.RTS if taken else QPState.ERR)
                if not taken:
                    self.assertAlmostEqual(self.p.clock.seconds(), 3 * 4.096e-6 * 2**15)

    def test_specialQueuePairs(self) -> None:
        """
        Queue pairs 0 and 1 take no requests of this service, and say nothing: the request
        ends when all retries are used up, and connection management is not bothered.
        """
        for number in (0, 1):
            self.connect(connect=False)
            self.a.to(QPState.RTS, number)
            self.post(1, WRITE)
            self.assertEqual(self.wire(), [])
            self.p.settle()
            self.assertEqual(self.a.statuses(), [(1, WCStatus.RETRY_EXC_ERR)])
            self.assertAlmostEqual(self.p.clock.seconds(), 4 * 4.096e-6 * 2**15)

    def test_reset(self) -> None:
        """
        Going to RESET forgets what is posted, without completions, also what is on its
        way; afterwards the queue pair can be used again.
        """
        self.post(1, SEND)
        self.p.flow()
        self.post(2, SEND)
        self.a.qp.modify(QPState.RESET)
        self.b.qp.modify(QPState.RESET)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [])
        self.a.to(QPState.RTS, 18)
        self.b.to(QPState.RTS, 17)
        self.receives()
        self.post(3, SEND)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(3, OK)])

    def test_overtaken(self) -> None:
        """
        A post that a RESET or the end of the queue pair has overtaken is refused.
        """
        for end in (lambda: self.a.qp.modify(QPState.RESET), self.a.qp.close):
            enqueue = self.a.work.requester.enqueue
            end()
            self.assertRaises(QueuePairError, enqueue, SendRequest(1, SEND), True)
        self.assertEqual(self.a.statuses(), [])

    def test_error(self) -> None:
        """
        Going to ERR flushes what is posted, in order, and the consumer is not notified: it did it
        itself.
        """
        for id in range(3):
            self.post(id, SEND, flags=QUIET if id == 1 else SendFlags.SIGNALED)
        self.a.qp.modify(QPState.ERR)
        self.assertEqual(self.a.statuses(), [(0, FLUSH), (1, FLUSH), (2, FLUSH)])
        self.assertEqual(self.a.consumer.failures, [])

    def test_drain(self) -> None:
        """
        In SQD what was started is finished and nothing new is sent; until then only ERR
        and RESET may follow.
        """
        self.connect(capacity=8192)
        self.target = self.b.register(10240)
        self.post(1, WRITE, 5000)
        self.post(2, WRITE, 5000)
        self.post(3, SEND, 10)
        self.assertEqual(len(self.wire()), 1)
        self.a.qp.modify(QPState.SQD)
        error = self.assertRaises(QueuePairError, self.a.qp.modify, QPState.RTS)
        self.assertIn("has not drained", str(error))
        self.assertRaises(QueuePairError, self.a.qp.modify, QPState.SQD, timeout=3)
        self.receives()
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, OK)])
        self.a.qp.modify(QPState.SQD, timeout=3)
        self.assertEqual(self.a.work.attributes.timeout, 3)
        self.a.qp.modify(QPState.RTS)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(2, OK), (3, OK)])

    def test_drainRepeats(self) -> None:
        """
        A request that was started and refused counts as started.
        """
        self.post(1, SEND)
        self.p.flow()
        self.a.qp.modify(QPState.SQD)
        self.assertRaises(QueuePairError, self.a.qp.modify, QPState.RTS)
        self.receives()
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, OK)])
        self.a.qp.modify(QPState.RTS)

    def test_attributeRanges(self) -> None:
        """
        Attributes that do not fit are refused, and nothing changes.
        """
        for name, value in (("rnr_retry", 8), ("retry_cnt", 8), ("timeout", 32), ("max_rd_atomic", 129)):
            pair = Pair(connect=False)
            error = self.assertRaises(QueuePairError, pair.a.to, QPState.RTS, 18, **{name: value})
            self.assertIn(name, str(error))
            self.assertEqual(pair.a.qp.state, QPState.RTR)

    def test_close(self) -> None:
        """
        A closed queue pair lets its domain and completion queues go.
        """
        self.post(1, SEND)
        self.a.qp.close()
        self.a.qp.close()
        self.p.settle()
        self.assertEqual(self.a.statuses(), [])
        self.assertEqual((self.a.sends.users, self.a.receives.users), ({}, {}))
        self.assertNotIn("queue pairs", self.a.pd.users)


class PostTests(RequesterTestCase):
    """
    The checks on posting.
    """

    def test_full(self) -> None:
        """
        The queue takes as many requests as it has places; one that is done frees its own.
        """
        for id in range(128):
            self.post(id, SEND)
        self.assertRaises(ResourceLimitError, self.post, 128, SEND)
        self.receives()
        self.p.flow()
        self.post(128, SEND)
        self.assertRaises(ResourceLimitError, self.post, 129, SEND)

    def test_capabilities(self) -> None:
        """
        Depths and list lengths are bounded.
        """
        Capabilities(limits.WORK_QUEUE_DEPTH, limits.WORK_QUEUE_DEPTH, 32, 32)
        for index in range(4):
            for value in (-1, (limits.WORK_QUEUE_DEPTH + 1) if index < 2 else 33):
                sizes = [1, 1, 1, 1]
                sizes[index] = value
                self.assertRaises(ResourceLimitError, Capabilities, *sizes)
        Capabilities(inline=limits.INLINE_DATA)
        for value in (-1, limits.INLINE_DATA + 1):
            self.assertRaises(ResourceLimitError, Capabilities, inline=value)

    def test_impossible(self) -> None:
        """
        A request that cannot be on the wire is refused when it is posted.
        """
        whole = piece(self.source)
        for request in (
            SendRequest(1, SEND, [whole] * 5),
            SendRequest(1, SEND, [SGE(0, -1, 0)]),
            SendRequest(1, SEND, [SGE(0, 1 << 32, 0)]),
            SendRequest(1, SEND_IMM, immediate=1 << 32),
            SendRequest(1, SEND_IMM, immediate=-1),
            SendRequest(1, WRITE, remoteAddress=1 << 64),
            SendRequest(1, WRITE, remoteAddress=-1),
            SendRequest(1, WRITE, remoteKey=1 << 32),
            SendRequest(1, WRITE, invalidateKey=1 << 32),
            SendRequest(1, WRITE, compare=1 << 64),
            SendRequest(1, WRITE, swap=-1),
            SendRequest(1, SendOpcode.BIND_MW),
        ):
            self.assertRaises(QueuePairError, self.a.work.postSend, request)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [])

    def test_noReads(self) -> None:
        """
        With max_rd_atomic 0 there are no READs.
        """
        self.connect(max_rd_atomic=0)
        error = self.assertRaises(QueuePairError, self.post, 1, READ)
        self.assertIn("READ", str(error))

    def test_tooLong(self) -> None:
        """
        A message longer than 2^31 bytes ends with LOC_LEN_ERR.
        """
        self.patch(limits, "MESSAGE_BYTES", 1000)
        self.receives()
        self.post(1, SEND, 1000)
        self.post(2, SEND, 1001)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, OK), (2, WCStatus.LOC_LEN_ERR)])

    def test_muchTooLong(self) -> None:
        """
        The limit is the standard's.
        """
        part = SGE(0, 1 << 30, 1)
        self.a.send(1, SEND, part, part, SGE(0, 1, 1))
        self.assertEqual(self.a.statuses(), [(1, WCStatus.LOC_LEN_ERR)])
        self.assertEqual(self.a.qp.state, QPState.ERR)


class WireTests(RequesterTestCase):
    """
    Literally what is published.
    """

    def test_only(self) -> None:
        """
        Each kind of request in one record.
        """
        at = {"remoteAddress": 0x1122334455667788, "remoteKey": 0xAABBCCDD}
        reth = bytes.fromhex("1122334455667788aabbccdd00000003")
        for verb, fields, code, data in (
            (SEND, {}, 0x04, b"\0\1\2"),
            (SEND, {"flags": SendFlags.SOLICITED}, 0x84, b"\0\1\2"),
            (SEND_IMM, {"immediate": 0x01020304}, 0x05, b"\1\2\3\4\0\1\2"),
            (WRITE, at, 0x0A, reth + b"\0\1\2"),
            (WRITE_IMM, {**at, "immediate": 9}, 0x0B, reth + b"\0\0\0\x09\0\1\2"),
            (READ, at, 0x0C, reth),
        ):
            self.connect()
            self.post(1, verb, 3, **fields)
            self.assertEqual(self.wire(), [(code, data)])
            self.assertEqual(self.a.path.records[0][1] & 0xFFFFFF, 18)

    def test_empty(self) -> None:
        """
        Messages of nothing, with and without a list, are one record.
        """
        for verb in (SEND, WRITE, READ):
            self.connect()
            self.a.send(1, verb)
            self.post(2, verb, 0)
            sizes = [len(data) for _, data in self.wire()]
            self.assertEqual(sizes, [0, 0] if verb == SEND else [16, 16])

    def test_segments(self) -> None:
        """
        A long message is cut at the medium's largest record: First, Middle, Last; what
        the first or last record has besides is there only.
        """
        self.patch(limits, "INLINE_MESSAGE", 1000)
        reth = RETH.pack(self.target.address, self.target.remoteKey, 2500)
        immediate = IMMEDIATE.pack(5)
        for verb, codes, first, last in (
            (SEND, [0, 1, 2], b"", b""),
            (SEND_IMM, [0, 1, 3], b"", immediate),
            (WRITE, [6, 7, 8], reth, b""),
            (WRITE_IMM, [6, 7, 9], reth, immediate),
        ):
            self.connect()
            reth = RETH.pack(self.target.address, self.target.remoteKey, 2500)
            self.post(1, verb, 2500, immediate=5, flags=SendFlags.SOLICITED)
            wire = self.wire()
            codes[-1] |= 0x80
            self.assertEqual([code for code, _ in wire], codes)
            data = bytes(self.source.view)
            if first:
                first = reth
            self.assertEqual(
                [body for _, body in wire], [first + data[:1000], data[1000:2000], last + data[2000:2500]]
            )

    def test_announced(self) -> None:
        """
        Over DDP each record of a SEND says how the message ends; a WRITE has no end that a peer sees.
        """
        self.patch(limits, "INLINE_MESSAGE", 1000)
        self.patch(RecordPath, "inSegments", True)
        key, data = INVALIDATE.pack(0x11223344), bytes(self.source.view)
        for verb, fields, codes, header in (
            (SEND, {}, [0x00, 0x01, 0x02], b""),
            (SEND, {"flags": SendFlags.SOLICITED}, [0x80, 0x81, 0x82], b""),
            (SEND_INV, {"invalidateKey": 0x11223344}, [0x00, 0x01, 0x16], key),
            (SEND_INV, {"invalidateKey": 0x11223344, "flags": SendFlags.SOLICITED}, [0x80, 0x81, 0x96], key),
            (WRITE, {}, [0x06, 0x07, 0x08], b""),
        ):
            self.connect()
            self.post(1, verb, 2500, **fields)
            wire = self.wire()
            self.assertEqual([code for code, _ in wire], codes)
            if verb != WRITE:
                self.assertEqual(
                    [body for _, body in wire],
                    [header + data[:1000], header + data[1000:2000], header + data[2000:2500]],
                )

    def test_exactly(self) -> None:
        """
        As many bytes as a record takes are one record, one more are two.
        """
        self.patch(limits, "INLINE_MESSAGE", 1000)
        self.post(1, SEND, 1000)
        self.post(2, SEND, 1001)
        self.post(3, SEND, 2000)
        self.assertEqual(
            [(code, len(d)) for code, d in self.wire()], [(4, 1000), (0, 1000), (2, 1), (0, 1000), (2, 1000)]
        )

    def test_gather(self) -> None:
        """
        The pieces of a list follow each other, empty ones do nothing, and a record may
        end within any of them.
        """
        self.patch(limits, "INLINE_MESSAGE", 5)
        other = self.a.register(b"abcdefgh")
        self.a.send(
            1, SEND, piece(other, 1, 3), piece(other, 0, 0), piece(self.source, 0, 4), piece(other, 5)
        )
        self.assertEqual([data for _, data in self.wire()], [b"bcd\0\1", b"\2\3fgh"])

    def test_reference(self) -> None:
        """
        Of memory that the peer can map, long parts are referred to, short ones and those
        of other memory are copied; a reference is bounded.
        """
        self.patch(message, "PULL_LEAST", 100)
        self.patch(limits, "PULL_MOST", 300)
        self.a.path.offering = True
        shared = self.a.register(1000, segment=True)
        self.a.send(1, WRITE, piece(shared, 7, 650), piece(self.source, 0, 200), remoteAddress=5, remoteKey=6)
        reth = RETH.pack(5, 6, 850)
        self.assertEqual(
            self.wire(),
            [
                (0x46, reth + REFERENCE.pack(1, 300, 7)),
                (0x47, REFERENCE.pack(1, 300, 307)),
                (0x08, bytes(50) + bytes(self.source.view[:200])),
            ],
        )
        self.assertEqual(self.a.path.copied, 250 + 32)


class CompletionTests(RequesterTestCase):
    """
    When each request completes.
    """

    def test_fields(self) -> None:
        """
        A completion has number, kind and length.
        """
        self.receives(2)
        kinds = [1, 1, 0, 0, 2, 3, 4, 6, 5, 0, 9]
        sizes = [100, 100, 100, 100, 100, 8, 8, 0, 0, 100, 8]
        for id, verb in enumerate(VERBS):
            self.post(id, verb)
        self.receives(2)
        self.p.settle()
        self.assertEqual(
            [(c.workRequestID, c.opcode, c.byteLength, c.queuePairNumber) for c in self.a.sends.poll(19)],
            [(id, WCOpcode(kind), sizes[id], 17) for id, kind in enumerate(kinds)],
        )

    def test_head(self) -> None:
        """
        A request is done when the peer has taken its last record and what the peer had
        published until then was looked at, not before.
        """
        self.receives(2)
        self.post(1, SEND)
        self.post(2, SEND)
        for _ in range(3):
            self.a.path.progress()
        self.assertEqual(self.a.statuses(), [])
        self.b.path.progress(1)
        for _ in range(3):
            self.a.path.progress()
        self.assertEqual(self.a.statuses(), [(1, OK)])
        self.p.flow()
        self.assertEqual(self.a.statuses(), [(2, OK)])

    def test_unsignalled(self) -> None:
        """
        A request that is not signalled completes only if it ends badly.
        """
        self.receives(1)
        self.post(1, SEND, flags=QUIET)
        self.post(2, WRITE, flags=QUIET)
        self.post(3, WRITE, flags=QUIET, remoteKey=1)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(3, WCStatus.REM_ACCESS_ERR)])

    def test_order(self) -> None:
        """
        A READ whose answer takes long holds back what was posted behind it.
        """
        self.receives(1)
        self.post(1, READ, 10000)
        self.post(2, SEND)
        self.post(3, WRITE)
        self.b.path.capacity = 0
        self.p.flow()
        self.assertEqual(self.a.statuses(), [])
        self.assertEqual(len(self.b.received()), 1)
        self.b.path.capacity = 1 << 18
        self.p.flow()
        self.assertEqual(self.a.statuses(), [(1, OK), (2, OK), (3, OK)])

    def test_manyReads(self) -> None:
        """
        At most max_rd_atomic READs are on the way; the queue goes on as they end.
        """
        self.connect(max_rd_atomic=2, max_dest_rd_atomic=2)
        for id in range(7):
            self.post(id, READ)
        self.post(7, WRITE)
        self.assertEqual([code for code, _ in self.wire()], [0x0C] * 2)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(id, OK) for id in range(8)])

    def test_narrow(self) -> None:
        """
        Long messages pass a medium that holds hardly more than one record.
        """
        self.patch(limits, "INLINE_MESSAGE", 700)
        self.connect(capacity=800)
        self.target.view[:] = bytes(10240)
        self.b.receive(5, piece(self.target, 5000))
        mine = self.a.register(5000)
        self.post(1, WRITE, 5000)
        self.post(2, SEND, 5000)
        self.a.send(3, READ, piece(mine), remoteAddress=self.target.address, remoteKey=self.target.remoteKey)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, OK), (2, OK), (3, OK)])
        self.assertEqual(bytes(mine.view), bytes(self.source.view[:5000]))
        self.assertEqual(bytes(self.target.view[5000:10000]), bytes(self.source.view[:5000]))

    def test_waitsOnce(self) -> None:
        """
        However much is posted, the queue waits for room in one place.
        """
        self.connect(capacity=1000)
        for id in range(50):
            self.post(id, WRITE)
        self.assertEqual(len(self.a.path.waiting), 1)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(id, OK) for id in range(50)])

    def test_interrupted(self) -> None:
        """
        What a signal's handler interrupts once it is in the medium is done before what is posted next: it is
        sent twice rather than never.
        """
        self.receives(4)

        def post(id: int) -> None:
            content = bytes((id,))
            self.a.work.requester.enqueueSends((PostedSend(id, int(SendFlags.SIGNALED), 0, 1, 0, content),))

        post(1)
        self.p.settle()
        path = self.a.path
        former = path.post

        def interrupted(*arguments: Any) -> bool:
            former(*arguments)
            raise KeyboardInterrupt

        with mock.patch.object(path, "post", interrupted):
            self.assertRaises(KeyboardInterrupt, post, 2)
        post(3)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(id, OK) for id in (1, 2, 3)])
        self.assertEqual((len(self.b.received()), bytes(self.target.view[:1])), (4, bytes((3,))))

    def test_fullCompletionQueue(self) -> None:
        """
        A completion that finds no room is fatal for its queue pair, and ends there.
        """
        self.connect(depth=2)
        for id in range(5):
            self.post(id, WRITE)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(0, OK), (1, OK)])
        self.assertTrue(self.a.sends.overflowed)
        self.assertEqual(self.a.qp.state, QPState.ERR)
        self.assertIn("found its queue full", str(self.a.consumer.failures[0]))
        self.assertEqual(len(self.a.consumer.failures), 1)
