"""
Tests for L{twisted_ib.hca.services.responder}: every violation, every wrong sequence.
"""

from __future__ import annotations

from itertools import product

from tests.hca.queues.keyed_cases import ResponderTestCase
from tests.hca.queues.keyed_pair import ALL, piece
from twisted_ib.hca.base import operation
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.memory.access import Access
from twisted_ib.hca.memory.memory import MemoryRegion
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.requests import SendFlags, SendOpcode
from twisted_ib.hca.wire.headers import ATOMIC, IMMEDIATE, INVALIDATE, REFERENCE, RETH

SEND, SEND_IMM = SendOpcode.SEND, SendOpcode.SEND_WITH_IMM
WRITE, WRITE_IMM = SendOpcode.RDMA_WRITE, SendOpcode.RDMA_WRITE_WITH_IMM
READ = SendOpcode.RDMA_READ
OK, FLUSH = WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR
INVALID, ACCESS, OPERATIONAL = 0x61, 0x62, 0x63


class LaterTests(ResponderTestCase):
    """
    A request that is refused for good while READs are being answered comes again.
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
            """
            A header that names the first bytes of a region.
            """
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
        An operation that the queue pair does not permit is an invalid request, not an access error
        (C{check_op_valid} in Linux's rxe_resp.c), whatever the region grants, and also with no
        bytes.
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
            None: {0x00, 0x04, 0x05, 0x06, 0x0A, 0x0B, 0x0C, 0x13, 0x14, 0x15, 0x17},
            0x00: {0x01, 0x02, 0x03, 0x15, 0x16},
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
                elif code in (0x13, 0x14):
                    data = ATOMIC.pack(self.target.address, self.target.remoteKey, 1, 1)
                elif code in (0x16, 0x17):
                    data = INVALIDATE.pack(self.window()) + b"12345"
                elif code in (0x03, 0x05, 0x09):
                    data = IMMEDIATE.pack(1) + b"12345"
                elif code == 0x07:
                    data = b"1"
                expected = 0 if code in good else INVALID
                self.assertEqual(self.put(code, data), expected, (begun, code))
                self.assertEqual(self.b.qp.state, QPState.RTS if code in good else QPState.ERR)

    def test_otherTransports(self) -> None:
        """
        Codes of unreliable services are dropped without a word, also in the middle of a
        message.
        """
        for code in (0x20, 0x24, 0x2A, 0x60, 0x64, 0xE5):
            self.connect()
            self.b.receive(1, piece(self.target))
            self.assertEqual(self.put(0x00, b"12345"), 0)
            self.assertEqual(self.put(code, b"12345"), 0, code)
            self.assertEqual(self.put(0x02, b"678"), 0)
            self.assertEqual(bytes(self.target.view[:9]), b"12345678\0")

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
        for pieces, flags in ((), SendFlags.SOLICITED), ([piece(self.source, 0, 10)], SendFlags(0)):
            self.connect(depth=1)
            for id in range(3):
                self.b.receive(id, piece(self.target))
            for id in range(3):
                self.a.send(id, SEND, *pieces, flags=int(flags))
            self.p.settle()
            self.assertEqual([c.workRequestID for c in self.b.received()], [0])
            self.assertEqual(self.b.qp.state, QPState.ERR)
            self.assertEqual(len(self.b.consumer.failures), 1)
