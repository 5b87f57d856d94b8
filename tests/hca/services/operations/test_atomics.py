"""
Tests of atomic operations, from the request to the memory and back.
"""

from __future__ import annotations

from sys import byteorder
from typing import Any

from tests.hca.queues.keyed_cases import RequesterTestCase, ResponderTestCase, bound
from tests.hca.queues.keyed_pair import ALL, piece
from twisted_ib import limits
from twisted_ib.errors import QueuePairError
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.receives import SGE
from twisted_ib.hca.queues.requests import SendFlags, SendOpcode
from twisted_ib.hca.wire import opcodes
from twisted_ib.hca.wire.headers import ATOMIC, ATOMIC_RESULT

SEND, WRITE, READ = SendOpcode.SEND, SendOpcode.RDMA_WRITE, SendOpcode.RDMA_READ
SWAP, ADD = SendOpcode.ATOMIC_CMP_AND_SWP, SendOpcode.ATOMIC_FETCH_AND_ADD
OK, FLUSH = WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR
INVALID, ACCESS = 0x61, 0x62


class AtomicTestCase(RequesterTestCase):
    """
    A counter there, and a place for results here.
    """

    def connect(self, **arguments: Any) -> None:
        """
        Make the pair.
        """
        super().connect(**arguments)
        self.result = self.a.register(16)

    def atomic(self, id: int, opcode: SendOpcode, offset: int = 0, **fields: Any) -> None:
        """
        Post an atomic.
        """
        fields.setdefault("remoteAddress", self.target.address + offset)
        fields.setdefault("remoteKey", self.target.remoteKey)
        self.a.send(id, opcode, piece(self.result, 0, 8), **fields)

    def put(self, value: int, offset: int = 0) -> None:
        """
        Set the counter.
        """
        self.target.view[offset : offset + 8] = value.to_bytes(8, byteorder)

    def counter(self, offset: int = 0) -> int:
        """
        The counter.
        """
        return int.from_bytes(self.target.view[offset : offset + 8], byteorder)

    def old(self) -> int:
        """
        The latest result.
        """
        return int.from_bytes(self.result.view[:8], byteorder)


class AtomicTests(AtomicTestCase):
    """
    Compare-and-swap and fetch-and-add: effect and result.
    """

    def test_swap(self) -> None:
        """
        Compare-and-swap puts a value there if it finds what it expects; the result is
        what was there, in host byte order; what is beside it stays.
        """
        for before, compare, after in ((5, 5, 1 << 63 | 7), (5, 6, 5), (2**64 - 1, 2**64 - 1, 1 << 63 | 7)):
            self.connect()
            self.target.view[:24] = b"#" * 24
            self.put(before, 8)
            self.atomic(1, SWAP, 8, compare=compare, swap=1 << 63 | 7)
            self.p.settle()
            self.assertEqual(self.a.statuses(), [(1, OK)])
            self.assertEqual((self.old(), self.counter(8)), (before, after))
            self.assertEqual(bytes(self.target.view[:8]) + bytes(self.target.view[16:24]), b"#" * 16)
            self.assertEqual(bytes(self.result.view[8:]), bytes(8))

    def test_add(self) -> None:
        """
        Fetch-and-add adds, without a carry out of the 64 bits.
        """
        for before, add, after in ((5, 3, 8), (2**64 - 1, 1, 0), (2**64 - 1, 2**64 - 1, 2**64 - 2)):
            self.put(before)
            self.atomic(1, ADD, compare=add, swap=77)
            self.p.settle()
            self.assertEqual(self.a.statuses(), [(1, OK)])
            self.assertEqual((self.old(), self.counter()), (before, after))
        self.assertEqual(bytes(self.target.view[8:32]), bytes(24))

    def test_wire(self) -> None:
        """
        AtomicETH has what to put there, or to add, before what to compare with; the answer
        is eight bytes, big endian.
        """
        self.put(0x0102030405060708)
        self.atomic(1, SWAP, remoteAddress=0x1122334455667788, remoteKey=0xAABBCCDD, compare=3, swap=9)
        self.assertEqual(
            self.wire(),
            [(0x13, bytes.fromhex("1122334455667788 aabbccdd 0000000000000009 0000000000000003"))],
        )
        self.connect()
        self.put(0x0102030405060708)
        self.atomic(1, ADD, compare=9, swap=3)
        ((code, data),) = self.wire()
        self.assertEqual((code, data[12:]), (0x14, bytes.fromhex("0000000000000009 0000000000000000")))
        self.b.path.progress()
        self.assertEqual(
            [(word >> 24, data) for _, word, data in self.b.path.records],
            [(0x12, bytes.fromhex("0102030405060708"))],
        )

    def test_list(self) -> None:
        """
        The result may be scattered.
        """
        self.put(0x0102030405060708)
        remote = {"remoteAddress": self.target.address, "remoteKey": self.target.remoteKey}
        self.a.send(1, ADD, piece(self.result, 12, 3), piece(self.result, 1, 5), **remote)
        self.p.settle()
        whole = bytes(self.result.view[12:15]) + bytes(self.result.view[1:6])
        self.assertEqual(int.from_bytes(whole, byteorder), 0x0102030405060708)
        beside = bytes(self.result.view[:1]) + bytes(self.result.view[6:12]) + bytes(self.result.view[15:])
        self.assertEqual(beside, bytes(8))

    def test_impossible(self) -> None:
        """
        No room for the result, operands beyond 64 bits, no atomics permitted: refused
        when it is posted.
        """
        send, key = self.a.send, self.result.key
        self.assertRaises(QueuePairError, send, 1, ADD, SGE(self.result.address, 7, key))
        self.assertRaises(QueuePairError, self.atomic, 1, ADD, compare=1 << 64)
        self.assertRaises(QueuePairError, self.atomic, 1, SWAP, swap=-1)
        self.connect(max_rd_atomic=0)
        error = self.assertRaises(QueuePairError, self.atomic, 1, ADD)
        self.assertIn("atomics", str(error))

    def test_resultViolation(self) -> None:
        """
        Where the result goes must be writable here, when it is sent and when it comes.
        """
        readOnly = self.a.register(8, 0)
        remote = {"remoteAddress": self.target.address, "remoteKey": self.target.remoteKey}
        self.a.send(1, ADD, piece(readOnly), compare=1, **remote)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, WCStatus.LOC_PROT_ERR)])
        self.assertEqual(self.counter(), 0)
        self.connect()
        self.atomic(1, ADD, compare=1)
        self.b.path.progress()
        self.a.memory.deregister(self.result)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, WCStatus.LOC_PROT_ERR)])
        self.assertEqual(self.counter(), 1)

    def test_badAnswers(self) -> None:
        """
        An answer of another kind or length is none.
        """
        for opcode, data in (
            (0x12, b"1234567"),
            (0x12, b"123456789"),
            (0x10, b"12345678"),
            (0x50, b"12345678"),
        ):
            self.connect()
            self.atomic(1, ADD)
            self.a.work.delivered(opcode, data, 0, len(data))
            self.assertEqual(self.a.statuses(), [(1, WCStatus.BAD_RESP_ERR)], opcode)
            self.assertEqual(self.old(), 0)
        self.connect()
        self.post(1, READ)
        self.a.work.requester.delivered(0x12, b"12345678", 0, 8)
        self.assertEqual(self.a.statuses(), [(1, WCStatus.BAD_RESP_ERR)])

    def test_unasked(self) -> None:
        """
        An answer to nothing is nothing.
        """
        self.a.work.delivered(0x12, b"12345678", 0, 8)
        self.assertEqual(self.a.qp.state, QPState.RTS)


class OnceTests(AtomicTestCase):
    """
    Executed once, in order.
    """

    def test_behindRNR(self) -> None:
        """
        An atomic behind a message that is refused and repeated is executed once; so is one
        before it.
        """
        self.connect(rnr_retry=7)
        self.atomic(1, ADD, compare=1)
        self.post(2, SEND)
        self.atomic(3, ADD, compare=10)
        for _ in range(5):
            self.p.flow()
            self.p.pass_(0.01)
        self.assertEqual(self.counter(), 1)
        self.b.receive(1, piece(self.target, 1000))
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, OK), (2, OK), (3, OK)])
        self.assertEqual((self.counter(), self.old()), (11, 1))

    def test_absent(self) -> None:
        """
        The same where the peer is not there yet.
        """
        self.connect(connect=False)
        self.a.to(QPState.RTS, 18)
        for id in range(3):
            self.atomic(id, ADD, compare=1)
        self.p.flow()
        self.p.pass_(0.07)
        self.b.to(QPState.RTR, 17)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(0, OK), (1, OK), (2, OK)])
        self.assertEqual((self.counter(), self.old()), (3, 2))

    def test_fullMedium(self) -> None:
        """
        An atomic that was executed while its response finds no room is not executed again.
        """
        self.b.path.capacity = 0
        for id in range(3):
            self.atomic(id, ADD, compare=1)
        self.p.flow()
        self.assertEqual(self.counter(), 1)
        self.b.path.resumeWaiting()
        self.b.path.resumeWaiting()
        self.assertEqual(self.counter(), 1)
        self.b.path.capacity = 1 << 18
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(0, OK), (1, OK), (2, OK)])
        self.assertEqual((self.counter(), self.old()), (3, 2))

    def test_order(self) -> None:
        """
        READs and atomics are done in order: a READ before an atomic does not see what it
        did, one behind it does, however long the first takes.
        """
        self.patch(limits, "INLINE_MESSAGE", 100)
        self.connect(capacity=300)
        first, second = self.a.register(5000), self.a.register(8)
        remote = {"remoteAddress": self.target.address, "remoteKey": self.target.remoteKey}
        self.a.send(1, READ, piece(first), **remote)
        self.atomic(2, ADD, 4992, compare=1)
        remote["remoteAddress"] += 4992
        self.a.send(3, READ, piece(second), **remote)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, OK), (2, OK), (3, OK)])
        self.assertEqual(bytes(first.view), bytes(5000))
        self.assertEqual(int.from_bytes(second.view, byteorder), 1)

    def test_orderWithMessages(self) -> None:
        """
        A WRITE or SEND behind an atomic comes after it, though a READ before both still waits for
        room (IBTA vol. 1 C9-28).
        """
        self.patch(limits, "INLINE_MESSAGE", 100)
        for opcode, promised in ((WRITE, 0), (SEND, 0), (SEND, 1)):
            self.connect(capacity=300)
            memory, new = self.a.register(5000), self.a.register((100).to_bytes(8, byteorder))
            remote = {"remoteAddress": self.target.address, "remoteKey": self.target.remoteKey}
            self.b.qp.posted = promised
            self.b.consumer.received = lambda *message: self.put(100, 4992)  # type: ignore[method-assign]
            self.b.receive(9, piece(self.target, 4992, 8))
            self.a.send(1, READ, piece(memory), **remote)
            remote["remoteAddress"] += 4992
            self.atomic(2, ADD, 4992, compare=1)
            self.a.send(3, opcode, piece(new), **remote)
            self.p.settle()
            self.assertEqual(self.a.statuses(), [(1, OK), (2, OK), (3, OK)])
            self.assertEqual((self.old(), self.counter(4992)), (0, 100))

    def test_orderAfterRefusal(self) -> None:
        """
        If its memory goes before its turn nothing behind it is done.
        """
        self.patch(limits, "INLINE_MESSAGE", 100)
        self.connect(capacity=300)
        memory, other = self.a.register(5000), self.b.register(8)
        self.a.send(1, READ, piece(memory), remoteAddress=self.target.address, remoteKey=self.target.key)
        self.atomic(2, ADD, remoteAddress=other.address, remoteKey=other.key)
        self.b.path.progress()
        self.b.memory.deregister(other)
        self.post(3, WRITE, 8)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, OK), (2, WCStatus.REM_ACCESS_ERR), (3, FLUSH)])
        self.assertEqual(self.counter(), 0)

    def test_bound(self) -> None:
        """
        READs and atomics together are bounded by max_rd_atomic, on both sides; what is too
        much there is executed later.
        """
        self.connect(max_rd_atomic=2, max_dest_rd_atomic=2)
        self.post(1, READ)
        for id in (2, 3, 4):
            self.atomic(id, ADD, compare=1)
        self.assertEqual([code for code, _ in self.wire()], [0x0C, 0x14])
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, OK), (2, OK), (3, OK), (4, OK)])
        self.assertEqual(self.counter(), 3)
        self.connect(max_rd_atomic=4, max_dest_rd_atomic=2)
        self.b.path.capacity = 0
        for id in range(4):
            self.atomic(id, ADD, compare=1)
        self.b.path.progress()
        self.assertEqual(len(self.b.work.responder._answers.owed), 2)
        self.b.path.capacity = 1 << 18
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(0, OK), (1, OK), (2, OK), (3, OK)])
        self.assertEqual(self.counter(), 4)

    def test_unsignalled(self) -> None:
        """
        Unsignalled, its result comes all the same.
        """
        self.put(4)
        self.atomic(1, ADD, compare=1, flags=0)
        self.p.settle()
        self.assertEqual((self.a.statuses(), self.old(), self.counter()), ([], 4, 5))

    def test_afterWrite(self) -> None:
        """
        It sees what was written before it.
        """
        self.post(1, WRITE, 8)
        self.atomic(2, ADD)
        self.p.settle()
        self.assertEqual(bytes(self.result.view[:8]), bytes(range(8)))


class AtomicRefusalTests(ResponderTestCase):
    """
    Every way to do an atomic that is not granted: refused, and not a byte changes.
    """

    def header(self, offset: int = 0, key: int | None = None, region: Any = None) -> bytes:
        """
        An AtomicETH.
        """
        region = region or self.target
        return ATOMIC.pack(region.address + offset, region.key if key is None else key, 1, 0)

    def test_refusals(self) -> None:
        """
        Wrong key, one off at each end, rights, domain, alignment, length of the record.
        """
        for code in (0x13, 0x14):
            for name, refusal in (
                ("key", ACCESS), ("before", ACCESS), ("behind", ACCESS), ("beyond", ACCESS),
                ("right", ACCESS), ("domain", ACCESS), ("gone", ACCESS), ("aligned", INVALID),
                ("short", INVALID), ("long", INVALID), ("queue pair", INVALID), ("none", INVALID),
                ("busy", INVALID),
            ):  # fmt: skip
                self.connect(**({"max_dest_rd_atomic": 0} if name == "none" else {}))
                data, region = self.refused(name)
                self.assertEqual(self.put(code, data), refusal, (code, name))
                self.assertEqual(self.b.qp.state, QPState.ERR)
                event = EventType.QP_ACCESS_ERR if refusal == ACCESS else EventType.QP_REQ_ERR
                self.assertEqual(self.b.events, [event])
                self.assertEqual(bytes(region), b"." * 10000)
                self.assertEqual(len(self.b.path.records), 0)

    def refused(self, name: str) -> tuple[bytes, memoryview]:
        """
        A record that is refused, and the memory that must not change.
        """
        b, target = self.b, self.target
        target.view[:] = b"." * 10000
        region, view = target, target.view
        offset, key = {"before": -8, "behind": 9996, "beyond": 10000, "aligned": 4}.get(name, 0), target.key
        if name == "key":
            key ^= 1
        elif name in ("right", "domain"):
            pd = b.pd if name == "right" else b.memory.allocateDomain()
            region = b.memory.register(target.view, int(ALL) & ~8 if name == "right" else int(ALL), pd)
            key = region.key
        elif name == "gone":
            b.memory.deregister(target)
        elif name == "queue pair":
            b.qp.modify(QPState.RTS, qp_access_flags=int(ALL) & ~8)
        elif name == "busy":
            self.put(0x06, self.reth(3) + b"..")
        data = self.header(offset, key, region)
        if name == "short":
            data = data[:-1]
        elif name == "long":
            data += b"\0"
        return data, view

    def test_window(self) -> None:
        """
        Through a window: its bounds and rights, not the region's.
        """
        for offset, access, refusal in (
            (0, 15, 0),
            (8, 15, 0),
            (-8, 15, ACCESS),
            (16, 15, ACCESS),
            (0, 7, ACCESS),
        ):
            self.connect()
            window = bound(self.b, self.target, 80, 16, access)
            data = ATOMIC.pack(self.target.address + 80 + offset, window.key, 1, 0)
            self.assertEqual(self.put(0x14, data), refusal, (offset, access))
            self.assertEqual(self.clean(), bool(refusal))

    def test_goneBeforeItsTurn(self) -> None:
        """
        Memory that is deregistered before its atomic is executed is not changed; the requester is
        notified, and the responses before it are whole.
        """
        self.b.path.capacity = 0
        other = self.b.register(8)
        self.assertEqual(self.put(0x0C, self.reth(3)), 0)
        view = other.view
        self.assertEqual(self.put(0x14, self.header(0, other.key, other)), 0)
        self.b.memory.deregister(other)
        self.b.path.capacity = 1 << 18
        self.b.path.resumeWaiting()
        codes = [word >> 24 for _, word, _ in self.b.path.records]
        self.assertEqual(codes, [0x10, opcodes.ACKNOWLEDGE])
        self.assertEqual((bytes(view), self.b.events), (bytes(8), [EventType.QP_ACCESS_ERR]))

    def test_requesterLearns(self) -> None:
        """
        The requester's status.
        """
        for shift, key, access, status in (
            (0, 1, 15, WCStatus.REM_ACCESS_ERR),
            (4, 0, 15, WCStatus.REM_INV_REQ_ERR),
            (-8, 0, 15, WCStatus.REM_ACCESS_ERR),
            (0, 0, 7, WCStatus.REM_INV_REQ_ERR),
        ):
            for verb in (SWAP, ADD):
                self.connect(connect=False)
                self.a.to(QPState.RTS, 18)
                self.b.to(QPState.RTS, 17, access=access)
                remote = {"remoteAddress": self.target.address + shift, "remoteKey": self.target.key ^ key}
                self.a.send(1, verb, piece(self.source, 0, 8), flags=0, compare=1, **remote)
                self.a.send(2, SEND, flags=int(SendFlags.SIGNALED))
                self.p.settle()
                self.assertEqual(self.a.statuses(), [(1, status), (2, FLUSH)])
                self.assertTrue(self.clean())

    def test_codec(self) -> None:
        """
        Sizes of the headers (IBTA vol. 1 9.3.1).
        """
        self.assertEqual((ATOMIC.size, ATOMIC_RESULT.size), (28, 8))
