"""
Tests for L{twisted_ib.hca.core.responder}, L{twisted_ib.hca.core.answers} and the receive half
of L{twisted_ib.hca.core.work}.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.keyed_pair import ALL, Pair, piece
from twisted_ib import limits
from twisted_ib.errors import QueuePairError, ResourceLimitError
from twisted_ib.hca import operation
from twisted_ib.hca.core.completion import WCFlags, WCOpcode, WCStatus
from twisted_ib.hca.core.memory import Access, MemoryRegion
from twisted_ib.hca.core.requests import SGE, SendFlags, SendOpcode
from twisted_ib.hca.core.states import QPState
from twisted_ib.hca.wire.headers import IMMEDIATE, REFERENCE, RETH

SEND, SEND_IMM = SendOpcode.SEND, SendOpcode.SEND_WITH_IMM
WRITE, WRITE_IMM = SendOpcode.RDMA_WRITE, SendOpcode.RDMA_WRITE_WITH_IMM
READ = SendOpcode.RDMA_READ
OK, FLUSH = WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR
RNR = 0x20 | 12
INVALID, ACCESS, OPERATIONAL = 0x61, 0x62, 0x63


class ResponderTestCase(SynchronousTestCase):
    """
    A connected pair; what is looked at is the end C{b}.
    """

    def connect(self, **arguments: Any) -> None:
        """
        Make the pair C{self.p}: see L{Pair}.
        """
        self.p = Pair(**arguments)
        self.a, self.b = self.p.a, self.p.b
        self.source = self.a.register(bytes(range(1, 201)) * 50)
        self.target = self.b.register(10000)

    def setUp(self) -> None:
        """
        Connect with the default attributes.
        """
        self.connect()

    def put(self, opcode: int, data: bytes = b"") -> int:
        """
        Deliver one record to C{b}, as a hostile peer would.

        @return: the syndrome of its refusal, or 0.
        """
        answer: int = self.b.work.delivered(opcode, b"<<<" + data + b">>>", 3, 3 + len(data))
        return answer

    def reth(self, length: int, address: int = 0, key: int | None = None) -> bytes:
        """
        A header that names the target's bytes from C{address} on.
        """
        return RETH.pack(self.target.address + address, self.target.remoteKey if key is None else key, length)

    def clean(self) -> bool:
        """
        Whether nothing was written to the target.
        """
        return bytes(self.target.view) == bytes(10000)


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
        The bytes land where they should; nobody is told and no receive is used.
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
        What C{b} published: codes and bytes.
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
        self.patch(limits, "PULL_LEAST", 100)
        self.b.path.offering = True
        shared = self.b.register(1000, segment=True)
        self.put(0x0C, RETH.pack(shared.address + 10, shared.remoteKey, 900))
        self.put(0x0C, RETH.pack(shared.address + 10, shared.remoteKey, 99))
        self.assertEqual(self.answers(), [(0x50, REFERENCE.pack(1, 900, 10)), (0x10, bytes(99))])

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


class LaterTests(ResponderTestCase):
    """
    What is refused for good while READs are being answered comes again.
    """

    def test_later(self) -> None:
        """
        Nothing is changed by a request that has to come later: the receive that its
        message used is the next one's again.
        """
        self.b.receive(1, piece(self.target, 0, 10))
        self.b.receive(2, piece(self.target, 10, 100))
        self.b.path.capacity = 0
        self.assertEqual(self.put(0x0C, self.reth(3)), 0)
        self.assertEqual(self.put(0x00, b"12345"), 0)
        self.assertEqual(self.put(0x02, b"678901"), operation.LATER)
        self.assertEqual(self.put(0x1A, b""), operation.LATER)
        self.assertEqual((self.b.qp.state, self.b.received()), (QPState.RTS, []))
        self.b.path.capacity = 1 << 18
        self.p.flow()
        self.assertEqual(self.put(0x00, b"12345"), 0)
        self.assertEqual(self.put(0x02, b"678901"), INVALID)
        done = [(c.workRequestID, c.status) for c in self.b.received()]
        self.assertEqual(done, [(1, WCStatus.LOC_LEN_ERR), (2, FLUSH)])


class ViolationTests(ResponderTestCase):
    """
    Every way to touch what is not granted.
    """

    def violations(self) -> list[tuple[str, bytes, int]]:
        """
        Names, headers that name 10 bytes, and rights that the region has.
        """
        b, key = self.b, self.target.remoteKey
        foreign = b.memory.register(bytearray(100), ALL, b.memory.allocateDomain())
        gone = b.register(100)
        b.memory.deregister(gone)
        none = b.register(100, 0)
        local = b.register(100, Access.LOCAL_WRITE)
        at = self.target.address

        def of(region: MemoryRegion) -> bytes:
            return RETH.pack(region.address, region.key, 10)

        return [
            ("another key", RETH.pack(at, key ^ 1, 10), 0),
            ("another index", RETH.pack(at, key ^ 0x100, 10), 0),
            ("key 0", RETH.pack(at, 0, 10), 0),
            ("before", RETH.pack(at - 1, key, 10), 0),
            ("behind", RETH.pack(at + 9991, key, 10), 0),
            ("far behind", RETH.pack(at + 10000, key, 10), 0),
            ("address 0", RETH.pack(0, key, 10), 0),
            ("around the end", RETH.pack((1 << 64) - 5, key, 10), 0),
            ("foreign domain", of(foreign), 0),
            ("deregistered", RETH.pack(gone.address, gone.key, 10), 0),
            ("no right", of(none), 0),
            ("local right", of(local), 0),
        ]

    def test_keys(self) -> None:
        """
        READ and WRITE, in one record or several, with immediate or not: a remote access
        error, and not a byte changes.
        """
        ten = b"0123456789"
        for number in range(12):
            for opcode, data in (
                (0x0A, ten),
                (0x0B, IMMEDIATE.pack(1) + ten),
                (0x06, ten[:5]),
                (0x0C, b""),
                (0x4A, REFERENCE.pack(1, 10, 0)),
            ):
                self.connect()
                self.a.path.offers[1] = ten
                self.b.receive(1)
                name, header, _ = self.violations()[number]
                self.assertEqual(self.put(opcode, header + data), ACCESS, name)
                self.assertEqual(self.b.qp.state, QPState.ERR)
                self.assertEqual([c.status for c in self.b.received()], [FLUSH])
                for region in self.b.memory.regions.values():
                    self.assertEqual(bytes(region.view), bytes(region.length), name)
                self.assertEqual(len(self.b.path.records), 0)

    def test_rights(self) -> None:
        """
        A region lets a peer do what it grants and nothing else.
        """
        for access in (0, 1, 1 | 2, 4, 1 | 8, 1 | 2 | 4):
            for opcode, right in ((0x0A, 2), (0x0C, 4)):
                self.connect()
                region = self.b.register(10, access)
                data = RETH.pack(region.address, region.key, 10) + (b"0123456789" if opcode == 0x0A else b"")
                self.assertEqual(self.put(opcode, data), 0 if access & right else ACCESS, (access, opcode))

    def test_queuePairRights(self) -> None:
        """
        What the queue pair does not permit is an invalid request, not an access error
        (roce.md 13.3), whatever the region grants, and also with no bytes.
        """
        for access in (0, 1, 1 | 2, 4, 1 | 8, 15):
            for opcode, right, length in product((0x0A, 0x0C), (2, 4), (0, 10)):
                if (opcode == 0x0A) != (right == 2):
                    continue
                self.connect(connect=False)
                self.b.to(QPState.RTS, 17, access=access)
                data = self.reth(length) + (bytes(length) if opcode == 0x0A else b"")
                self.assertEqual(self.put(opcode, data), 0 if access & right else INVALID)

    def test_requesterLearns(self) -> None:
        """
        The requester's status for each kind of violation.
        """
        for verb, access, key, status in (
            (WRITE, 1, 0, WCStatus.REM_INV_REQ_ERR),
            (READ, 3, 0, WCStatus.REM_INV_REQ_ERR),
            (WRITE, 15, 1, WCStatus.REM_ACCESS_ERR),
            (WRITE_IMM, 15, 1, WCStatus.REM_ACCESS_ERR),
            (READ, 15, 1, WCStatus.REM_ACCESS_ERR),
        ):
            self.connect(connect=False)
            self.a.to(QPState.RTS, 18)
            self.b.to(QPState.RTS, 17, access=access)
            self.b.receive(1)
            remote = {"remoteAddress": self.target.address, "remoteKey": self.target.remoteKey ^ key}
            self.a.send(1, verb, piece(self.source, 0, 10), **remote)
            self.a.send(2, SEND, flags=0)
            self.p.settle()
            self.assertEqual(self.a.statuses(), [(1, status), (2, FLUSH)])
            self.assertEqual((self.a.qp.state, self.b.qp.state), (QPState.ERR, QPState.ERR))
            self.assertEqual((len(self.a.consumer.failures), len(self.b.consumer.failures)), (1, 1))

    def test_goneMeanwhile(self) -> None:
        """
        A region that goes between the records of a WRITE takes no more.
        """
        self.assertEqual(self.put(0x06, self.reth(10) + b"01234"), 0)
        buffer = self.target.view
        self.b.memory.deregister(self.target)
        self.assertEqual(self.put(0x08, b"56789"), ACCESS)
        self.assertEqual(bytes(buffer[:10]), b"01234\0\0\0\0\0")


class SequenceTests(ResponderTestCase):
    """
    Every code in every state of a message, and records that are cut short.
    """

    def test_everyCode(self) -> None:
        """
        With no message, in a SEND and in a WRITE: the codes that may come next are those
        of the standard; all others are invalid requests.
        """
        fits = {
            None: {0x00, 0x04, 0x05, 0x06, 0x0A, 0x0B, 0x0C, 0x15},
            0x00: {0x01, 0x02, 0x03, 0x15},
            0x06: {0x07, 0x08, 0x09, 0x15},
        }
        for begun, good in fits.items():
            for code in range(32):
                if code in operation.RESPONSES:
                    continue
                self.connect()
                self.b.receive(1, piece(self.target))
                self.b.receive(2, piece(self.target))
                if begun is not None:
                    self.put(begun, b"xxx" if begun == 0x00 else self.reth(8) + b"xxx")
                data = b"12345"
                if code in (0x06, 0x0A, 0x0B):
                    data = self.reth(6 if code == 0x06 else 5)
                    data += IMMEDIATE.pack(1) if code == 0x0B else b""
                    data += b"12345"
                elif code == 0x0C:
                    data = self.reth(5)
                elif code in (0x03, 0x05, 0x09):
                    data = IMMEDIATE.pack(1) + b"12345"
                elif code == 0x07:
                    data = b"1"
                expected = 0 if code in good else INVALID
                self.assertEqual(self.put(code, data), expected, (begun, code))
                self.assertEqual(self.b.qp.state, QPState.RTS if code in good else QPState.ERR)

    def test_otherTransports(self) -> None:
        """
        Codes of other transports are no answer to anything here.
        """
        for code in (0x20, 0x24, 0x2A, 0x60, 0x64):
            self.connect()
            self.b.receive(1, piece(self.target))
            self.assertEqual(self.put(code, b"12345"), INVALID, code)

    def test_cutShort(self) -> None:
        """
        Each header one byte short, and all shorter ones.
        """
        for code, header in (
            (0x05, IMMEDIATE.pack(1)),
            (0x06, self.reth(5)),
            (0x0A, self.reth(0)),
            (0x0B, self.reth(0) + IMMEDIATE.pack(1)),
            (0x0C, self.reth(5)),
            (0x44, REFERENCE.pack(1, 1, 1)),
        ):
            for size in range(len(header)):
                self.connect()
                self.b.receive(1, piece(self.target))
                self.assertNotEqual(self.put(code, header[:size]), 0, (code, size))
                self.assertEqual(self.b.qp.state, QPState.ERR)

    def test_lengths(self) -> None:
        """
        A WRITE's records have together as many bytes as it says, and none of them is
        empty, but the one of an empty WRITE.
        """
        for records in (
            [(0x0A, self.reth(5) + b"1234")],
            [(0x0A, self.reth(5) + b"123456")],
            [(0x0A, self.reth(0) + b"1")],
            [(0x0A, self.reth((1 << 31) + 1) + b"1")],
            [(0x06, self.reth(5) + b"")],
            [(0x06, self.reth(5) + b"12345")],
            [(0x06, self.reth(5) + b"123456")],
            [(0x06, self.reth(5) + b"123"), (0x07, b"")],
            [(0x06, self.reth(5) + b"123"), (0x07, b"45")],
            [(0x06, self.reth(5) + b"123"), (0x07, b"456")],
            [(0x06, self.reth(5) + b"123"), (0x08, b"")],
            [(0x06, self.reth(5) + b"123"), (0x08, b"4")],
            [(0x06, self.reth(5) + b"123"), (0x08, b"456")],
            [(0x00, b"")],
            [(0x00, b"1"), (0x01, b"")],
            [(0x00, b"1"), (0x02, b"")],
            [(0x0C, self.reth((1 << 31) + 1))],
            [(0x0C, self.reth(1) + b"1")],
        ):
            self.connect()
            self.b.receive(1, piece(self.target))
            fixed = [
                (code, self.reth(RETH.unpack_from(data)[2]) + data[16:])
                if code in (0x06, 0x0A, 0x0C)
                else (code, data)
                for code, data in records
            ]
            *before, last = [self.put(code, data) for code, data in fixed]
            self.assertEqual((before, last), ([0] * len(before), INVALID), records)
            self.assertEqual(bytes(self.target.view[5:10]), bytes(5))

    def test_fullCompletionQueue(self) -> None:
        """
        A receive's completion that finds no room is fatal, once.
        """
        self.connect(depth=1)
        for id in range(3):
            self.b.receive(id, piece(self.target))
        for id in range(3):
            self.a.send(id, SEND, flags=int(SendFlags.SOLICITED))
        self.p.settle()
        self.assertEqual([c.workRequestID for c in self.b.received()], [0])
        self.assertEqual(self.b.qp.state, QPState.ERR)
        self.assertEqual(len(self.b.consumer.failures), 1)
