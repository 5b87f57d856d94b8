"""
Tests for L{twisted_ib.hca.services.unreliable}: receiving.
"""

from __future__ import annotations

from typing import Any

from tests.hca.queues.keyed_pair import piece
from tests.hca.services.datagrams.unreliable_pair import UnreliableTestCase
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.memory.access import Access
from twisted_ib.hca.queues.completion import WCFlags, WCOpcode, WCStatus
from twisted_ib.hca.queues.receives import SGE, ReceiveRequest
from twisted_ib.hca.wire.headers import IMMEDIATE, RETH

OK, FLUSH = WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR
REFERENCE, SOLICITED = 0x40, 0x80


class ReceiveTests(UnreliableTestCase):
    """
    The receive queue.
    """

    def test_messages(self) -> None:
        """
        SENDs and WRITEs of one record and of several, with immediate and without.
        """
        for id in range(5):
            self.b.receive(id, piece(self.target, 1000 * id, 1000))
        immediate = IMMEDIATE.pack(0xDEADBEEF)
        self.put(0x04, b"only")
        self.put(0x05, immediate + b"only+")
        for opcode, data in ((0x00, b"first"), (0x01, b"middle"), (0x02, b"last")):
            self.put(opcode, data)
        self.put(0x0A, self.reth(4, 9000) + b"here")
        self.put(0x0B, self.reth(4, 9010) + immediate + b"here")
        self.put(0x06, self.reth(10, 9020) + b"ab")
        self.put(0x07, b"cdefg")
        self.assertEqual(self.put(0x09, immediate + b"hij"), 0)
        with_immediate = (int(WCFlags.WITH_IMM), 0xDEADBEEF)
        self.assertEqual(
            self.got(),
            [
                (0, OK, 4, 0, 0),
                (1, OK, 5, *with_immediate),
                (2, OK, 15, 0, 0),
                (3, OK, 4, *with_immediate),
                (4, OK, 10, *with_immediate),
            ],
        )
        view = self.target.view
        self.assertEqual(view[2000:2015].tobytes(), b"firstmiddlelast")
        self.assertEqual(view[9000:9030].tobytes(), b"here" + bytes(6) + b"here" + bytes(6) + b"abcdefghij")

    def test_endedWhileEstablished(self) -> None:
        """
        A program that ends the queue pair at the COMM_EST event does not get the first message.
        """
        for how in ("ERR", "RESET", "close"):
            self.connect(state=QPState.RTR, shared=4)
            self.b.receive(7, piece(self.target))
            qp = self.b.qp
            qp.onEvent = lambda kind, element, end=how, qp=qp: (  # type: ignore[misc]
                qp.close() if end == "close" else qp.modify(QPState[end])
            )
            self.assertEqual(self.b.work.delivered(0x24, b"first", 0, 5), 0)
            self.assertEqual((self.b.received(), len(self.b.shared or ())), ([], 1))

    def test_completion(self) -> None:
        """
        Which kind of message it was.
        """
        self.b.receive(1, piece(self.target))
        self.b.receive(2, piece(self.target))
        self.put(0x04)
        self.put(0x0B, self.reth(0) + IMMEDIATE.pack(1))
        self.assertEqual([c.opcode for c in self.b.received()], [WCOpcode.RECV, WCOpcode.RECV_RDMA_WITH_IMM])

    def test_solicited(self) -> None:
        """
        A queue armed for solicited completions is notified of those only.
        """
        calls: list[Any] = []
        self.b.receives.onCompletion = calls.append
        self.b.receives.arm(True)
        for opcode, count in ((0x04, 0), (0x04 | SOLICITED, 1)):
            self.b.receive(7, piece(self.target))
            self.put(opcode, b"x")
            self.assertEqual(len(calls), count)

    def test_noReceive(self) -> None:
        """
        A message without a receive is dropped whole, also if one is posted before its end.
        """
        self.assertEqual(self.put(0x00, b"first"), 1)
        self.b.receive(7, piece(self.target))
        self.assertEqual(self.put(0x01, b"middle"), 1)
        self.assertEqual(self.put(0x02, b"last"), 1)
        self.assertEqual(self.target.view[:10].tobytes(), bytes(10))
        self.assertEqual(self.put(0x04, b"next"), 1)
        self.assertEqual(self.got(), [(7, OK, 4, 0, 0)])

    def test_noReceiveForImmediate(self) -> None:
        """
        A WRITE with immediate needs one at its end.
        """
        self.put(0x06, self.reth(4) + b"ab")
        self.assertEqual(self.put(0x09, IMMEDIATE.pack(1) + b"cd"), 1)
        self.assertEqual(self.put(0x0B, self.reth(2) + IMMEDIATE.pack(1) + b"xy"), 2)
        self.assertEqual(self.target.view[:4].tobytes(), b"ab\0\0")

    def test_tooLong(self) -> None:
        """
        A message longer than its receive is dropped, and the receive is there for the next.
        """
        self.b.receive(7, piece(self.target, 0, 8))
        self.put(0x00, b"fits")
        self.assertEqual(self.put(0x02, b"doesn't"), 1)
        self.assertEqual(self.put(0x04, b"123456789"), 2)
        self.put(0x04, b"12345678")
        self.assertEqual(self.got(), [(7, OK, 8, 0, 0)])
        self.assertEqual(self.target.view[:9].tobytes(), b"12345678\0")

    def test_sequence(self) -> None:
        """
        Every record after every beginning: what does not follow is dropped, what begins a
        message begins one.
        """
        whole = {0x04: b"x", 0x05: IMMEDIATE.pack(1) + b"x", 0x0A: self.reth(1) + b"x"}
        whole[0x0B] = self.reth(1) + IMMEDIATE.pack(1) + b"x"
        begins = {0x00: b"x", 0x06: self.reth(9) + b"x"}
        follows = {0x01: b"x", 0x02: b"x", 0x03: IMMEDIATE.pack(1) + b"x"}
        follows.update({0x07: b"x", 0x08: b"x" * 8, 0x09: IMMEDIATE.pack(1) + b"x" * 8})
        good = {0x00: (0x01, 0x02, 0x03), 0x06: (0x07, 0x08, 0x09)}
        for first in (None, *begins):
            for opcode, data in {**whole, **begins, **follows}.items():
                self.connect()
                for id in range(4):
                    self.b.receive(id, piece(self.target, 100, 100))
                if first is not None:
                    self.put(first, begins[first])
                fine = opcode in good[first] if first is not None else opcode not in follows
                self.assertEqual(self.put(opcode, data), not fine, (first, opcode))
                # Then a message of its own is taken, with the first receive that is free.
                self.put(0x04, b"next")
                self.assertEqual(self.got()[-1][2], 4)

    def test_nextAfterDropped(self) -> None:
        """
        After a message that is dropped comes one of several records.
        """
        self.put(0x01, b"x")
        self.b.receive(7, piece(self.target))
        for opcode, data in ((0x00, b"a"), (0x01, b"b"), (0x02, b"c")):
            self.assertEqual(self.put(opcode, data), 1)
        self.assertEqual((self.got(), self.target.view[:3].tobytes()), ([(7, OK, 3, 0, 0)], b"abc"))

    def test_dropsOnce(self) -> None:
        """
        The rest of a message that is dropped is not counted again.
        """
        for opcode in (0x01, 0x01, 0x02, 0x01):
            self.assertEqual(self.put(opcode, b"x"), 1)

    def test_badKeys(self) -> None:
        """
        A key that does not open what a WRITE names: nothing is written.
        """
        read = self.b.register(100, int(Access.REMOTE_READ))
        for header in (
            self.reth(4, key=1),
            self.reth(4, -1),
            self.reth(4, self.target.length - 3),
            RETH.pack(read.address, read.remoteKey, 4),
        ):
            before = self.dropped
            self.assertEqual(self.put(0x0A, header + b"abcd"), before + 1)
        self.assertEqual(self.target.view.tobytes(), bytes(self.target.length))

    def test_keyGoes(self) -> None:
        """
        A key that ends within a message ends the message.
        """
        self.put(0x06, self.reth(4) + b"ab")
        view = self.target.view
        self.b.memory.deregister(self.target)
        self.assertEqual(self.put(0x08, b"cd"), 1)
        self.assertEqual(bytes(view[:4]), b"ab\0\0")

    def test_notPermitted(self) -> None:
        """
        The queue pair must permit WRITEs.
        """
        self.b.qp.modify(QPState.RTS, qp_access_flags=0)
        self.assertEqual(self.put(0x0A, self.reth(4) + b"abcd"), 1)
        self.assertEqual(self.target.view[:4].tobytes(), bytes(4))

    def test_lengths(self) -> None:
        """
        Headers that are cut off, WRITEs that are longer or shorter than they said, empty
        records within a message.
        """
        self.b.receive(7, piece(self.target, 100, 100))
        for opcode, data in (
            (0x05, b"\0\0\0"),
            (0x0A, self.reth(0)[:15]),
            (0x0B, self.reth(0) + b"\0\0\0"),
            (0x0A, self.reth(3) + b"abcd"),
            (0x0A, self.reth(5) + b"abcd"),
            (0x06, self.reth(4) + b"abcd"),
            (0x00, b""),
            (0x0A, self.reth((1 << 31) + 1)),
        ):
            before = self.dropped
            self.assertEqual(self.put(opcode, data), before + 1, hex(opcode))
        self.assertEqual((self.got(), self.target.view[:100].tobytes()), ([], bytes(100)))

    def test_otherCodes(self) -> None:
        """
        Codes that the service has not are dropped.
        """
        for code in set(range(0x20)) - set(range(0x0C)):
            for bits in (0, REFERENCE, SOLICITED):
                self.connect()
                self.b.receive(7, piece(self.target))
                self.assertEqual(self.put(code | bits, self.reth(0)), 1)
                self.assertEqual((self.got(), self.target.view[:16].tobytes()), ([], bytes(16)))
                self.put(0x04, b"x")
                self.assertEqual(len(self.got()), 1)

    def test_badReferences(self) -> None:
        """
        References that lead nowhere.
        """
        self.b.receive(7, piece(self.target))
        before = self.dropped
        self.put(0x04 | REFERENCE, bytes(16))
        self.put(0x04 | REFERENCE, bytes(15))
        self.assertEqual((self.dropped, self.got()), (before + 2, []))

    def test_reliable(self) -> None:
        """
        A reliable requester is refused as if there were no queue pair.
        """
        self.assertEqual(self.b.qp.delivered(0x04, b"x", 0, 1), 0x40)
        self.assertEqual(self.b.qp.delivered(0x0C, bytes(16), 0, 16), 0x40)
        self.assertEqual(self.b.qp.delivered(0x15, b"", 0, 0), 0)
        self.assertEqual(self.b.qp.state, QPState.RTS)

    def test_badReceive(self) -> None:
        """
        A receive that names what it may not ends with LOC_PROT_ERR: the program's error.
        """
        self.b.receive(7, SGE(self.target.address, 100, 0xBAD))
        self.b.receive(8)
        self.a.path.post(0x24 << 24 | 18, b"", b"x", 1)
        self.p.flow()
        self.assertEqual([c[:2] for c in self.got()], [(7, WCStatus.LOC_PROT_ERR), (8, FLUSH)])
        self.assertEqual((self.b.qp.state, list(self.b.path.records)), (QPState.ERR, []))

    def test_shared(self) -> None:
        """
        Receives of a shared queue: one that a broken message had begun to fill goes back.
        """
        self.connect(shared=16)
        shared = self.b.shared
        assert shared is not None
        shared.post(ReceiveRequest(7, (piece(self.target, 0, 100),)))
        self.put(0x00, b"first")
        self.assertEqual(len(shared), 0)
        self.assertEqual(self.put(0x08, b"x"), 1)
        self.assertEqual(len(shared), 1)
        self.put(0x04, b"whole")
        self.assertEqual(self.got(), [(7, OK, 5, 0, 0)])
