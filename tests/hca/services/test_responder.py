"""
Tests for L{twisted_ib.hca.services.responder}, L{twisted_ib.hca.services.responder} and the receive half
of L{twisted_ib.hca.services.work}.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.queues.keyed_cases import ResponderTestCase, bound
from tests.hca.queues.keyed_pair import piece
from twisted_ib import limits
from twisted_ib.errors import QueuePairError, ResourceLimitError
from twisted_ib.hca.base import operation
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.fabric.base.path import RecordPath
from twisted_ib.hca.memory.access import Access
from twisted_ib.hca.queues.completion import WCFlags, WCOpcode, WCStatus
from twisted_ib.hca.queues.receives import SGE
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.hca.services.operations import message
from twisted_ib.hca.services.responder import ResponseScheduler
from twisted_ib.hca.wire.headers import IMMEDIATE, REFERENCE, RETH

SEND, SEND_IMM = SendOpcode.SEND, SendOpcode.SEND_WITH_IMM
WRITE, WRITE_IMM = SendOpcode.RDMA_WRITE, SendOpcode.RDMA_WRITE_WITH_IMM
READ = SendOpcode.RDMA_READ
OK, FLUSH = WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR
RNR = 0x20 | 12
INVALID, ACCESS, OPERATIONAL = 0x61, 0x62, 0x63


class Turns:
    """
    Stands for a device.
    """

    def __init__(self, turns: int) -> None:
        self.turns = turns


class SchedulerTests(SynchronousTestCase):
    """
    L{ResponseScheduler}.
    """

    def test_left(self) -> None:
        """
        A peer gets the same number of response records in each turn of the device, the first included.
        """
        for turns in (0, 1):
            device = Turns(turns)
            scheduler = ResponseScheduler(device)
            for _ in range(2):
                self.assertEqual(scheduler.left(), limits.RECORDS_PER_TURN)
                scheduler.used += limits.RECORDS_PER_TURN - 1
                self.assertEqual(scheduler.left(), 1)
                scheduler.used += 2
                self.assertEqual(scheduler.left(), 0)
                device.turns += 1


class PostTests(ResponderTestCase):
    """
    Posting receives.
    """

    def test_everyState(self) -> None:
        """
        A receive can be posted from INIT on; in ERR it is flushed at once.
        """
        for state in (QPState.RESET, QPState.INIT, QPState.RTR, QPState.RTS, QPState.SQD, QPState.ERR):
            self.connect(connect=False)
            self.b.to(state, 17)
            if state == QPState.RESET:
                self.assertRaises(QueuePairError, self.b.receive, 1)
                continue
            self.b.receive(1)
            expected = [(1, FLUSH)] if state == QPState.ERR else []
            self.assertEqual([(c.workRequestID, c.status) for c in self.b.received()], expected)

    def test_full(self) -> None:
        """
        The queue has as many places as it has.
        """
        for id in range(128):
            self.b.receive(id)
        self.assertRaises(ResourceLimitError, self.b.receive, 128)
        self.assertEqual(self.put(0x04), 0)
        self.b.receive(128)

    def test_pieces(self) -> None:
        """
        A list is bounded, and its pieces have a possible length.
        """
        part = piece(self.target, 0, 1)
        self.assertRaises(QueuePairError, self.b.receive, 1, part, part, part, part, part)
        self.assertRaises(QueuePairError, self.b.receive, 1, SGE(0, -1, 0))

    def test_flush(self) -> None:
        """
        Receives are flushed in order, the one in use first.
        """
        for id in range(3):
            self.b.receive(id, piece(self.target))
        self.assertEqual(self.put(0x00, b"begun"), 0)
        self.b.qp.modify(QPState.ERR)
        self.assertEqual(
            [(c.workRequestID, c.status) for c in self.b.received()], [(i, FLUSH) for i in range(3)]
        )

    def test_reset(self) -> None:
        """
        RESET forgets receives and the message that had begun.
        """
        self.b.receive(1, piece(self.target))
        self.put(0x00, b"begun")
        self.b.qp.modify(QPState.RESET)
        self.b.to(QPState.RTS, 17)
        self.assertEqual(self.b.received(), [])
        self.assertEqual(self.put(0x04), RNR)


class SendTests(ResponderTestCase):
    """
    SENDs arrive.
    """

    def test_completion(self) -> None:
        """
        The receive's completion says how many bytes came, and the immediate.
        """
        self.b.receive(1, piece(self.target))
        self.b.receive(2, piece(self.target, 100))
        self.assertEqual(self.put(0x04, b"hello"), 0)
        self.assertEqual(self.put(0x05, IMMEDIATE.pack(0xFFFFFFFF) + b"hi"), 0)
        first, second = self.b.received()
        self.assertEqual((first.workRequestID, first.opcode, first.byteLength), (1, WCOpcode.RECV, 5))
        self.assertEqual((first.flags, first.queuePairNumber), (0, 18))
        self.assertEqual(
            (second.byteLength, second.flags, second.immediate), (2, WCFlags.WITH_IMM, 0xFFFFFFFF)
        )
        self.assertEqual(bytes(self.target.view[:6]), b"hello\0")
        self.assertEqual(bytes(self.target.view[100:103]), b"hi\0")

    def test_solicited(self) -> None:
        """
        The solicited bit of the last record reaches the completion queue.
        """
        seen = []
        self.patch(
            self.b.receives.__class__,
            "push",
            lambda queue, c, solicited=False: seen.append(solicited) or True,
        )
        for id in range(3):
            self.b.receive(id, piece(self.target))
        self.put(0x04, b"1")
        self.put(0x84, b"1")
        self.put(0x00, b"1")
        self.put(0x82, b"1")
        self.assertEqual(seen, [False, True, True])

    def test_within(self) -> None:
        """
        Over DDP, and there alone, a WRITE may come between the records of a SEND; not in parts, and no other
        message.  A refused one leaves the SEND as it was.
        """
        for inSegments in (False, True):
            self.connect()
            self.patch(RecordPath, "inSegments", inSegments)
            self.patch(RecordPath, "inPackets", True)
            self.b.receive(1, piece(self.target))
            self.assertEqual(self.put(0x00, b"he"), 0)
            self.assertEqual(self.put(0x0A, self.reth(2, 500) + b"by"), 0 if inSegments else INVALID)
            if inSegments:
                self.assertEqual(self.put(0x02, b"llo"), 0)
                self.assertEqual(bytes(self.target.view[:5]), b"hello")
                self.assertEqual(bytes(self.target.view[500:502]), b"by")
                self.assertEqual([c.byteLength for c in self.b.received()], [5])
        for code, data in ((0x06, self.reth(2) + b"a"), (0x04, b"a"), (0x0A, self.reth(2, key=0) + b"by")):
            self.connect()
            self.b.receive(1, piece(self.target))
            self.put(0x00, b"he")
            self.assertIn(self.put(code, data), (INVALID, ACCESS))
            self.assertEqual([(c.workRequestID, c.status) for c in self.b.received()], [(1, FLUSH)])

    def test_scatter(self) -> None:
        """
        A message fills the pieces of a receive in order, over its records.
        """
        self.b.receive(
            1,
            piece(self.target, 10, 3),
            piece(self.target, 0, 0),
            piece(self.target, 20, 4),
            piece(self.target, 30, 9),
        )
        for opcode, data in ((0x00, b"ab"), (0x01, b"cdefgh"), (0x02, b"ij")):
            self.assertEqual(self.put(opcode, data), 0)
        self.assertEqual(self.b.received()[0].byteLength, 10)
        expected = bytearray(10000)
        expected[10:13], expected[20:24], expected[30:33] = b"abc", b"defg", b"hij"
        self.assertEqual(self.target.view, expected)

    def test_exactly(self) -> None:
        """
        A message as long as the receive fits; one byte more does not.
        """
        self.b.receive(1, piece(self.target, 5, 10))
        self.assertEqual(self.put(0x04, bytes(10)), 0)
        self.b.receive(2, piece(self.target, 5, 10))
        self.b.receive(3, piece(self.target, 5, 10))
        self.b.received()
        self.assertEqual(self.put(0x04, b"x" * 11), INVALID)
        self.assertEqual(
            [(c.workRequestID, c.status) for c in self.b.received()], [(2, WCStatus.LOC_LEN_ERR), (3, FLUSH)]
        )
        self.assertEqual(self.b.qp.state, QPState.ERR)
        self.assertTrue(self.clean())

    def test_small(self) -> None:
        """
        A small message goes to the first elements of a receive, whose memory is in the domain of a shared
        queue; none of them have room for none.
        """
        self.connect(shared=4)
        other = self.b.memory.allocateDomain()
        region = self.b.memory.register(bytearray(100), Access.LOCAL_WRITE, other)
        self.b.shared.pd = other
        for first in (10, 3):
            self.b.receive(first, piece(region, 0, first), piece(region, 50, 30))
            self.assertEqual(self.put(0x04, b"0123456789"), 0)
        self.assertEqual(bytes(region.view[:10]), b"0123456789")
        self.assertEqual(bytes(region.view[50:57]), b"3456789")
        self.b.receive(1)
        self.assertEqual(self.put(0x04, b""), 0)
        self.b.receive(2)
        self.assertEqual(self.put(0x04, b"0"), INVALID)
        self.assertEqual(
            [(c.workRequestID, c.status, c.byteLength) for c in self.b.received()][:3],
            [(10, OK, 10), (3, OK, 10), (1, OK, 0)],
        )

    def test_limit(self) -> None:
        """
        A message that is not small takes one receive of a shared queue, whose limit a handler may set again.
        """
        self.connect(shared=8)
        for id in range(4):
            self.b.receive(id, piece(self.target, 0, 200))
        events: list[int] = []

        def event(kind: object, queue: Any) -> None:
            events.append(len(queue))
            queue.modify(limit=4)

        self.b.shared.onEvent = event
        self.b.shared.modify(limit=4)
        self.assertEqual(self.put(0x04, bytes(100)), 0)
        self.assertEqual(events, [3])

    def test_tooLongLater(self) -> None:
        """
        So is one that gets too long in its second record; the sender learns it.
        """
        self.patch(limits, "INLINE_MESSAGE", 100)
        self.b.receive(2, piece(self.target, 5, 150))
        self.a.send(1, SEND, piece(self.source, 0, 200))
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, WCStatus.REM_INV_REQ_ERR)])
        self.assertEqual([c.status for c in self.b.received()], [WCStatus.LOC_LEN_ERR])

    def test_localViolations(self) -> None:
        """
        A receive whose memory may not be written ends with LOC_PROT_ERR, the sender's
        request with REM_OP_ERR.
        """
        for number in range(6):
            self.connect()
            readOnly = self.b.register(100, Access.REMOTE_READ)
            gone = self.b.register(100)
            self.b.memory.deregister(gone)
            foreign = self.b.memory.register(bytearray(100), 1, self.b.memory.allocateDomain())
            key = self.target.localKey
            bad = [
                piece(readOnly),
                SGE(gone.address, 100, gone.key),
                piece(foreign),
                SGE(self.target.address - 1, 100, key),
                SGE(self.target.address + 9950, 51, key),
                SGE(self.target.address, 100, key ^ 0x100),
            ][number]
            self.b.receive(1, bad)
            self.b.receive(2)
            self.a.send(1, SEND, piece(self.source, 0, 51))
            self.p.settle()
            self.assertEqual(self.a.statuses(), [(1, WCStatus.REM_OP_ERR)])
            self.assertEqual([c.status for c in self.b.received()], [WCStatus.LOC_PROT_ERR, FLUSH])
            self.assertEqual((self.a.qp.state, self.b.qp.state), (QPState.ERR, QPState.ERR))
            self.assertTrue(self.clean())

    def test_rnr(self) -> None:
        """
        Without a receive there is a refusal with the timer's code, and nothing else.
        """
        for opcode in (0x00, 0x04, 0x05):
            self.assertEqual(self.put(opcode, b"data"), RNR)
        self.assertEqual(self.b.qp.state, QPState.RTS)
        self.b.receive(1, piece(self.target))
        self.assertEqual(self.put(0x04, b"data"), 0)


class WriteTests(ResponderTestCase):
    """
    WRITEs arrive.
    """

    def test_write(self) -> None:
        """
        The bytes land where they should; no notification comes and no receive is used.
        """
        self.b.receive(1)
        self.assertEqual(self.put(0x0A, self.reth(5, 7) + b"hello"), 0)
        self.assertEqual(bytes(self.target.view[:14]), b"\0\0\0\0\0\0\0hello\0\0")
        self.assertEqual(self.b.received(), [])

    def test_records(self) -> None:
        """
        A WRITE of three records; with immediate a receive completes at its end.
        """
        self.b.receive(1)
        for last, data in ((0x08, b"ij"), (0x09, IMMEDIATE.pack(3) + b"ij")):
            self.assertEqual(self.put(0x06, self.reth(10, 1) + b"abc"), 0)
            self.assertEqual(self.put(0x07, b"defgh"), 0)
            self.assertEqual(self.put(last, data), 0)
            self.assertEqual(bytes(self.target.view[:12]), b"\0abcdefghij\0")
            self.target.view[:12] = bytes(12)
        (completion,) = self.b.received()
        self.assertEqual(
            (completion.opcode, completion.byteLength, completion.immediate, completion.flags),
            (WCOpcode.RECV_RDMA_WITH_IMM, 10, 3, WCFlags.WITH_IMM),
        )

    def test_asked(self) -> None:
        """
        Whether the memory is there is asked once for each record, for the first one with the rights to the
        whole.
        """
        asked: list[tuple[int, int]] = []

        def present(offset: int, length: int, writes: bool) -> bool:
            asked.append((offset, length))
            return writes

        self.target.setPresent(present)
        self.assertEqual(self.put(0x0A, self.reth(5, 7) + b"hello"), 0)
        self.assertEqual(asked, [(7, 5)])
        del asked[:]
        for opcode, data in ((0x06, self.reth(10, 1) + b"abc"), (0x07, b"defgh"), (0x08, b"ij")):
            self.assertEqual(self.put(opcode, data), 0)
        self.assertEqual(asked, [(1, 10), (4, 5), (9, 2)])
        self.assertEqual(bytes(self.target.view[:12]), b"\0abcdefghijo")

    def test_keepAlive(self) -> None:
        """
        A WRITE of nothing is taken, whatever key and address it names (OFED's SDP and
        rsockets send it); so is a READ of nothing.
        """
        garbage = RETH.pack((1 << 64) - 1, 0xDEADBEEF, 0)
        self.assertEqual(self.put(0x0A, garbage), 0)
        self.assertEqual(self.put(0x0C, garbage), 0)
        self.assertEqual(self.b.qp.state, QPState.RTS)
        self.b.receive(4)
        self.assertEqual(self.put(0x0B, garbage + IMMEDIATE.pack(1)), 0)
        self.assertEqual(self.b.received()[0].byteLength, 0)

    def test_rnr(self) -> None:
        """
        A WRITE with immediate needs a receive at its end only, and then begins anew.
        """
        whole = self.reth(5) + IMMEDIATE.pack(9) + b"hello"
        self.assertEqual(self.put(0x0B, whole), RNR)
        self.assertTrue(self.clean())
        self.assertEqual(self.put(0x06, self.reth(5) + b"hel"), 0)
        self.assertEqual(self.put(0x09, IMMEDIATE.pack(9) + b"lo"), RNR)
        self.b.receive(1)
        self.assertEqual(self.put(0x0B, whole), 0)
        self.assertEqual(len(self.b.received()), 1)

    def test_reference(self) -> None:
        """
        Bytes that the peer offered are copied from its memory, within its bounds.
        """
        self.a.path.offers[1] = b"0123456789"
        self.assertEqual(self.put(0x4A, self.reth(4, 2) + REFERENCE.pack(1, 4, 6)), 0)
        self.assertEqual(bytes(self.target.view[:7]), b"\0\0006789\0")
        self.b.receive(1, piece(self.target, 50, 4))
        self.assertEqual(self.put(0x44, REFERENCE.pack(1, 3, 0)), 0)
        self.assertEqual(bytes(self.target.view[50:54]), b"012\0")
        self.b.receive(1, piece(self.target, 50, 4))
        self.assertEqual(self.put(0x44, REFERENCE.pack(1, 3, 0) + b"x"), OPERATIONAL)
        for number, count, offset in ((1, 4, 7), (1, 11, 0), (2, 4, 0), (1, 4, (1 << 64) - 1)):
            self.connect()
            self.a.path.offers[1] = b"0123456789"
            self.assertEqual(
                self.put(0x4A, self.reth(4, 2) + REFERENCE.pack(number, count, offset)), OPERATIONAL
            )
            self.assertTrue(self.clean())

    def test_referenceTooLong(self) -> None:
        """
        A reference to more than the WRITE has is refused like any payload too long.
        """
        self.a.path.offers[1] = b"0123456789"
        self.assertEqual(self.put(0x4A, self.reth(4, 2) + REFERENCE.pack(1, 5, 0)), INVALID)
        self.assertTrue(self.clean())


class ReadTests(ResponderTestCase):
    """
    READs arrive.
    """

    def answers(self) -> list[tuple[int, bytes]]:
        """
        The records that C{b} published: opcodes and bytes.
        """
        return [(word >> 24, data) for _, word, data in self.b.path.records]

    def fill(self) -> None:
        """
        Something to read.
        """
        self.target.view[:2000] = bytes(range(250)) * 8

    def test_shapes(self) -> None:
        """
        Only, or First, Middle, Last.
        """
        self.patch(limits, "INLINE_MESSAGE", 1000)
        self.fill()
        data = bytes(self.target.view)
        for length, codes in (
            (0, [0x10]),
            (5, [0x10]),
            (1000, [0x10]),
            (1001, [0x0D, 0x0F]),
            (2500, [0x0D, 0x0E, 0x0F]),
        ):
            self.assertEqual(self.put(0x0C, self.reth(length, 3)), 0)
            self.assertEqual([code for code, _ in self.answers()], codes)
            self.assertEqual(b"".join(part for _, part in self.answers()), data[3 : 3 + length])
            self.b.path.records.clear()

    def test_reference(self) -> None:
        """
        From memory that the peer can map a reference is the answer.
        """
        self.patch(message, "PULL_LEAST", 100)
        self.b.path.offering = True
        shared = self.b.register(1000, segment=True)
        self.put(0x0C, RETH.pack(shared.address + 10, shared.remoteKey, 900))
        self.put(0x0C, RETH.pack(shared.address + 10, shared.remoteKey, 99))
        self.assertEqual(self.answers(), [(0x50, REFERENCE.pack(1, 900, 10)), (0x10, bytes(99))])

    def test_windowsConfine(self) -> None:
        """
        A READ through a window gets its bytes, and not the region's memory to map: that
        would stay readable, all of it, after the window is revoked.
        """
        self.patch(message, "PULL_LEAST", 100)
        self.b.path.offering = True
        shared = self.b.register(bytes(range(250)) * 4, segment=True)
        window = bound(self.b, shared, 10, 900)
        self.put(0x0C, RETH.pack(shared.address + 10, window.key, 900))
        self.assertEqual(self.answers(), [(0x10, bytes(shared.view[10:910]))])
        self.assertEqual(self.b.path.offers, {})

    def test_order(self) -> None:
        """
        A READ sees the WRITEs before it.
        """
        self.put(0x0A, self.reth(3) + b"new")
        self.put(0x0C, self.reth(3))
        self.assertEqual(self.answers(), [(0x10, b"new")])

    def test_many(self) -> None:
        """
        More READs that wait for their answer than max_dest_rd_atomic have to come later;
        with 0 there are none.
        """
        self.b.path.capacity = 0
        for _ in range(4):
            self.assertEqual(self.put(0x0C, self.reth(3)), 0)
        self.assertEqual(len(self.b.path.waiting), 1)
        self.assertEqual(self.put(0x0C, self.reth(3)), operation.LATER)
        self.b.path.capacity = 1000
        self.p.flow()
        self.assertEqual(self.put(0x0C, self.reth(3)), 0)
        self.connect(max_dest_rd_atomic=0)
        self.assertEqual(self.put(0x0C, self.reth(3)), INVALID)

    def test_turns(self) -> None:
        """
        A medium that is never full, for the peer chases what is published, gets
        no more than a turn's records at once, of one READ or of many.
        """
        self.patch(limits, "INLINE_MESSAGE", 10)
        self.patch(limits, "RECORDS_PER_TURN", 8)
        self.fill()
        for lengths in ((200,), (50, 10, 10, 130)):
            self.b.path.records.clear()
            self.b.path.capacity = 0
            for length in lengths:
                self.assertEqual(self.put(0x0C, self.reth(length)), 0)
            self.b.path.capacity = 1 << 30
            for count in (8, 16, 20):
                self.b.path.resumeWaiting()
                self.assertEqual(len(self.answers()), count)
            self.assertEqual(len(self.b.path.waiting), 0)
            data = b"".join(part for _, part in self.answers())
            self.assertEqual(data, b"".join(bytes(self.target.view[:length]) for length in lengths))

    def test_turnsOfDevice(self) -> None:
        """
        With a device a response goes on in its next batch, and not at all when the queue pair has
        ended: then the peer is notified.
        """
        self.patch(limits, "INLINE_MESSAGE", 10)
        self.patch(limits, "RECORDS_PER_TURN", 8)
        dirty: list[Any] = []

        class Batches:
            """
            The batches of a device.
            """

            markDirty = dirty.append
            turns = 0

            def next(self) -> None:
                """
                The next turn.
                """
                self.turns += 1
                dirty.pop().endOfBatch()

            def communicationEstablished(self, number: int) -> None:
                """
                Nobody connects.
                """

        self.b.path.capacity = 1 << 30
        self.b.qp.device = batches = Batches()
        self.put(0x0C, self.reth(200))
        for count in (8, 16):
            self.assertEqual((len(self.answers()), len(dirty), len(self.b.path.waiting)), (count, 1, 0))
            batches.next()
        self.assertEqual((len(self.answers()), dirty), (20, []))
        batches.turns += 1
        self.put(0x0C, self.reth(200))
        self.b.qp.modify(QPState.ERR)
        batches.next()
        self.assertEqual((len(self.answers()), dirty), (29, []))
        self.assertEqual(self.answers()[28], (0x11, operation.REFUSAL.pack(operation.ABSENT, 18, 0)))

    def test_waiterLeaves(self) -> None:
        """
        In ERR and RESET neither the answers nor the requests of a queue pair
        are kept among those who wait for room.
        """
        for state in (QPState.ERR, QPState.RESET):
            self.connect()
            self.b.path.capacity = 0
            self.assertEqual(self.put(0x0C, self.reth(3)), 0)
            self.b.send(1, SEND, piece(self.target))
            self.assertEqual(len(self.b.path.waiting), 2)
            self.b.qp.modify(state)
            self.assertEqual(len(self.b.path.waiting), 0)

    def test_deregistered(self) -> None:
        """
        When the region goes while its bytes wait for the medium, no more are read; the
        reader gets REM_ACCESS_ERR.
        """
        self.patch(limits, "INLINE_MESSAGE", 100)
        for room in (300, 30):
            self.connect()
            mine = self.a.register(1000)
            self.fill()
            self.b.path.capacity = room
            self.a.send(
                1, READ, piece(mine), remoteAddress=self.target.address, remoteKey=self.target.remoteKey
            )
            self.a.send(
                2, READ, piece(mine), remoteAddress=self.target.address, remoteKey=self.target.remoteKey
            )
            self.b.path.progress()
            self.b.memory.deregister(self.target)
            self.p.settle()
            self.assertEqual(self.a.statuses(), [(1, WCStatus.REM_ACCESS_ERR), (2, FLUSH)])
            self.assertEqual(self.b.qp.state, QPState.ERR)
            self.assertEqual(bytes(mine.view[200:]), bytes(800))
