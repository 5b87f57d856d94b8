"""
Tests of L{twisted_ib.hca.services.operations.atomics}.
"""

from __future__ import annotations

from typing import Any

import attrs

from tests.hca.queues.keyed_cases import RequesterTestCase, ResponderTestCase
from tests.hca.queues.keyed_pair import piece
from twisted_ib import limits
from twisted_ib.errors import QueuePairError
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.memory.access import Access
from twisted_ib.hca.queues.completion import WCOpcode, WCStatus
from twisted_ib.hca.queues.requests import SendOpcode

ATOMIC_WRITE, READ = SendOpcode.ATOMIC_WRITE, SendOpcode.RDMA_READ
WRITE, SEND = SendOpcode.RDMA_WRITE, SendOpcode.SEND
OK, FLUSH = WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR
INVALID, ACCESS = 0x61, 0x62
VALUE = b"\1\2\3\4\5\6\7\x08"


class RequesterTests(RequesterTestCase):
    """
    From the request to the memory and back.
    """

    def write(self, id: int, value: bytes = VALUE, offset: int = 0, **fields: Any) -> None:
        """
        Post an ATOMIC WRITE.
        """
        fields.setdefault("remoteAddress", self.target.address + offset)
        fields.setdefault("remoteKey", self.target.remoteKey)
        self.a.send(id, ATOMIC_WRITE, inline=value, **fields)

    def test_written(self) -> None:
        """
        8 bytes are there as they were here, and nothing beside them; the completion says what it was.
        """
        self.target.view[:24] = b"#" * 24
        self.write(1, offset=8)
        self.p.settle()
        (completion,) = self.a.sends.poll(2)
        self.assertEqual((completion.status, completion.opcode), (OK, WCOpcode.ATOMIC_WRITE))
        self.assertEqual((completion.workRequestID, completion.byteLength), (1, 8))
        self.assertEqual(bytes(self.target.view[:24]), b"#" * 8 + VALUE + b"#" * 8)

    def test_list(self) -> None:
        """
        They may be in memory, in pieces.
        """
        there = {"remoteAddress": self.target.address, "remoteKey": self.target.remoteKey}
        self.a.send(1, ATOMIC_WRITE, piece(self.source, 3, 5), piece(self.source, 100, 3), **there)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, OK)])
        self.assertEqual(bytes(self.target.view[:8]), b"\3\4\5\6\7def")

    def test_wire(self) -> None:
        """
        Opcode 0x1D, RETH and the bytes; the answer is a READ Response Only without any.
        """
        self.write(1, remoteAddress=0x1122334455667788, remoteKey=0xAABBCCDD)
        record = bytes.fromhex("1122334455667788 aabbccdd 00000008 0102030405060708")
        self.assertEqual(self.wire(), [(0x1D, record)])
        self.connect()
        self.write(1)
        self.b.path.progress()
        self.assertEqual([(word >> 24, data) for _, word, data in self.b.path.records], [(0x10, b"")])

    def test_lengths(self) -> None:
        """
        It has 8 bytes, whatever the queue pair's limit of inline data is; all else is refused when it is
        posted.
        """
        self.a.work.capabilities = attrs.evolve(self.a.work.capabilities, inline=0)
        for length in (0, 7, 9):
            self.assertRaises(QueuePairError, self.write, 1, bytes(length))
            self.assertRaises(QueuePairError, self.a.send, 1, ATOMIC_WRITE, piece(self.source, 0, length))
        self.assertEqual(self.wire(), [])
        self.write(2)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(2, OK)])

    def test_localViolation(self) -> None:
        """
        Bytes that cannot be read here end it before the peer is asked.
        """
        there = {"remoteAddress": self.target.address, "remoteKey": self.target.remoteKey}
        self.a.send(1, ATOMIC_WRITE, piece(self.b.register(8)), **there)
        self.assertEqual(self.a.statuses(), [(1, WCStatus.LOC_PROT_ERR)])
        self.assertEqual(self.wire(), [])

    def test_badAnswers(self) -> None:
        """
        An answer of another kind, or with bytes, is none.
        """
        for opcode, data in ((0x10, b"1"), (0x12, bytes(8)), (0x0D, b""), (0x0F, b""), (0x50, bytes(16))):
            self.connect()
            self.write(1)
            self.a.work.delivered(opcode, data, 0, len(data))
            self.assertEqual(self.a.statuses(), [(1, WCStatus.BAD_RESP_ERR)], opcode)

    def test_bound(self) -> None:
        """
        It uses a READ's resource: no more than max_rd_atomic are on the way, and with 0 none is.
        """
        self.connect(max_rd_atomic=2)
        for id in range(3):
            self.write(id, offset=8 * id)
        self.assertEqual([code for code, _ in self.wire()], [0x1D, 0x1D])
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(0, OK), (1, OK), (2, OK)])
        self.connect(max_rd_atomic=0)
        self.assertRaises(QueuePairError, self.write, 1)
        self.connect(max_dest_rd_atomic=0)
        self.write(1)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, WCStatus.REM_INV_REQ_ERR)])

    def test_access(self) -> None:
        """
        It needs the right to write, not the one to atomics.
        """
        self.target = self.b.register(8, int(Access.LOCAL_WRITE | Access.REMOTE_WRITE))
        self.write(1)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, OK)])
        self.target = self.b.register(8, int(Access.LOCAL_WRITE | Access.REMOTE_ATOMIC | Access.REMOTE_READ))
        self.write(2)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(2, WCStatus.REM_ACCESS_ERR)])
        self.assertEqual(bytes(self.target.view), bytes(8))

    def test_once(self) -> None:
        """
        One that was executed while its response finds no room is not executed again: what was written since
        stays.
        """
        self.b.path.capacity = 0
        self.write(1)
        self.p.flow()
        self.assertEqual(bytes(self.target.view[:8]), VALUE)
        self.target.view[:8] = b"since it"
        self.b.path.resumeWaiting()
        self.b.path.capacity = 1 << 18
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, OK)])
        self.assertEqual(bytes(self.target.view[:8]), b"since it")

    def test_order(self) -> None:
        """
        A READ before it does not see it, however long that takes; a WRITE or SEND behind it comes after it,
        though the READ still waits for room.
        """
        self.patch(limits, "INLINE_MESSAGE", 100)
        self.connect(capacity=300)
        memory = self.a.register(5000)
        there = {"remoteAddress": self.target.address, "remoteKey": self.target.remoteKey}
        self.a.send(1, READ, piece(memory), **there)
        self.write(2, offset=4992)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, OK), (2, OK)])
        self.assertEqual((bytes(memory.view), bytes(self.target.view[4992:5000])), (bytes(5000), VALUE))
        for opcode in (WRITE, SEND):
            self.connect(capacity=300)
            memory, new = self.a.register(5000), self.a.register(b"new data")
            there = {"remoteAddress": self.target.address, "remoteKey": self.target.remoteKey}
            self.b.receive(9, piece(self.target, 4992, 8))
            self.a.send(1, READ, piece(memory), **there)
            self.write(2, offset=4992)
            there["remoteAddress"] += 4992
            self.a.send(3, opcode, piece(new), **there)
            self.p.settle()
            self.assertEqual(self.a.statuses(), [(1, OK), (2, OK), (3, OK)])
            self.assertEqual(bytes(self.target.view[4992:5000]), b"new data")

    def test_gone(self) -> None:
        """
        If its memory goes before its turn, nothing is written.
        """
        self.patch(limits, "INLINE_MESSAGE", 100)
        self.connect(capacity=300)
        memory, other = self.a.register(5000), self.b.register(8)
        self.a.send(1, READ, piece(memory), remoteAddress=self.target.address, remoteKey=self.target.key)
        self.write(2, remoteAddress=other.address, remoteKey=other.key)
        self.b.path.progress()
        self.b.memory.deregister(other)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, OK), (2, WCStatus.REM_ACCESS_ERR)])


class ResponderTests(ResponderTestCase):
    """
    What a peer may not.
    """

    def test_refused(self) -> None:
        """
        Another length than 8, an odd address, no right; the key comes before length and address.
        """
        good, wrong = self.target.remoteKey, self.target.remoteKey ^ 0x100
        for address, key, length, count, syndrome in (
            (0, good, 8, 8, 0),
            (0, good, 8, 7, INVALID),
            (0, good, 8, 9, INVALID),
            (0, good, 8, 0, INVALID),
            (0, good, 7, 8, INVALID),
            (0, good, 9, 8, INVALID),
            (0, good, 0, 8, INVALID),
            (0, good, (1 << 31) + 1, 8, INVALID),
            (4, good, 8, 8, INVALID),
            (1, good, 8, 8, INVALID),
            (0, wrong, 8, 8, ACCESS),
            (4, wrong, 7, 8, ACCESS),
            (-8, good, 8, 8, ACCESS),
            (10000, good, 8, 8, ACCESS),
        ):
            self.connect()
            key = key if key == wrong else self.target.remoteKey
            case = (address, key == wrong, length, count)
            self.assertEqual(self.put(0x1D, self.reth(length, address, key) + b"*" * count), syndrome, case)
            self.assertEqual(self.clean(), bool(syndrome), case)
            self.assertEqual(self.b.qp.state, QPState.ERR if syndrome else QPState.RTS)
        self.connect()
        self.assertEqual(self.put(0x1D, self.reth(8)[:15]), INVALID)

    def test_notGranted(self) -> None:
        """
        What the queue pair does not grant is an invalid request, whatever the key.
        """
        self.connect()
        attributes = self.b.work.attributes
        access = attributes.access & ~int(Access.REMOTE_WRITE)
        self.b.work.attributes = attrs.evolve(attributes, access=access)
        self.assertEqual(self.put(0x1D, self.reth(8) + VALUE), INVALID)
        self.assertTrue(self.clean())

    def test_inside(self) -> None:
        """
        Inside of a message it is out of sequence.
        """
        self.b.receive(1, piece(self.target))
        self.assertEqual(self.put(0x00, b"x"), 0)
        self.assertEqual(self.put(0x1D, self.reth(8, 8) + VALUE), INVALID)
