"""
Tests for L{twisted_ib.hca.core.datagram}.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.datagram_pair import GROUP, KEY, DatagramPair, DatagramSide
from tests.keyed_pair import piece
from twisted_ib import limits
from twisted_ib.errors import QueuePairError, ResourceLimitError
from twisted_ib.hca.core.completion import WCFlags, WCOpcode, WCStatus
from twisted_ib.hca.core.memory import Memory
from twisted_ib.hca.core.requests import SGE, Destination, ReceiveRequest, SendFlags, SendOpcode
from twisted_ib.hca.core.states import QPState
from twisted_ib.hca.wire.grh import GRH, guidGID

SEND, SEND_IMM = SendOpcode.SEND, SendOpcode.SEND_WITH_IMM
OK, FLUSH = WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR
GRH_FLAG, IMM_FLAG = int(WCFlags.GRH), int(WCFlags.WITH_IMM)

#: From queue pair 17 of HCA 0xA1 to HCA 0xB1: GRH as L{DatagramSide.datagram} has it.
HEAD = "6a512345 {:04x} 1b 3f fe80000000000000 00000000000000a1 fe80000000000000 00000000000000b1"


def record(behind: str, size: int, deth: str = "11111111 00000011") -> bytes:
    """
    The octets of a datagram.

    @param behind: what follows the DETH, hexadecimal.
    @param size: what the GRH gives as the length.
    """
    return bytes.fromhex(HEAD.format(size) + deth + behind)


class DatagramTestCase(SynchronousTestCase):
    """
    Two datagram queue pairs, a source and a target.
    """

    def connect(self, **arguments: Any) -> None:
        """
        Make the pair C{self.p}: see L{DatagramPair}.
        """
        self.p = DatagramPair(**arguments)
        self.a, self.b = self.p.a, self.p.b
        self.source = self.a.register(bytes(range(256)) * 20)
        self.target = self.b.register(10240)

    def setUp(self) -> None:
        """
        In RTS.
        """
        self.connect()

    def wire(self) -> list[tuple[int, bytes]]:
        """
        What is in the medium: words and bytes.
        """
        return [(word, data) for _, word, data in self.p.ends[0].records]

    def put(self, data: bytes, opcode: int = 0x64, number: int = 18) -> dict[str, int]:
        """
        Let a record arrive at C{b}.

        @return: what was counted.
        """
        self.b.hca.counters.clear()
        before = self.target.view.tobytes()
        self.p.ends[0].post(opcode << 24 | number, b"", data, len(data))
        self.p.flow()
        if self.b.hca.counters:
            self.assertEqual(self.target.view.tobytes(), before, "what is dropped leaves no trace")
        return dict(self.b.hca.counters)

    def got(self, side: DatagramSide | None = None) -> list[tuple[Any, ...]]:
        """
        Completions of receives at C{b}: number, status, length, flags, immediate, sender.
        """
        return [
            (c.workRequestID, c.status, c.byteLength, c.flags, c.immediate, c.sourceQueuePair)
            for c in (side or self.b).received()
        ]


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
        What is not signalled completes silently, unless all are.
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

    def test_nobodyThere(self) -> None:
        """
        What is sent to nobody is done, and counted.
        """
        self.a.datagram(7, self.a.handle(guidGID(0xC1)), number=18)
        self.assertEqual(self.a.statuses(), [(7, OK)])
        self.assertEqual(self.a.hca.counters, {"datagrams_lost": 1})

    def test_stalledReceiver(self) -> None:
        """
        One who takes nothing keeps the queue from nobody else; what waits comes in order.
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
        self.a.qp.modify(QPState.RTS)
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


class ReceiveTests(DatagramTestCase):
    """
    Receiving.
    """

    def test_receive(self) -> None:
        """
        The GRH, then the payload; the completion says who sent it.
        """
        self.b.receive(7, piece(self.target))
        self.a.datagram(1, self.b, piece(self.source, 1, 5))
        self.p.flow()
        self.assertEqual(self.got(), [(7, OK, 45, GRH_FLAG, 0, 17)])
        self.assertEqual(self.target.view[:46].tobytes(), bytes.fromhex(HEAD.format(32) + "0102030405 00"))
        grh = GRH.parse(self.target.view, 0, 40)
        self.assertEqual((grh.source, grh.destination), (guidGID(0xA1), guidGID(0xB1)))

    def test_immediate(self) -> None:
        """
        The immediate is in the completion.
        """
        self.b.receive(7, piece(self.target))
        self.a.datagram(1, self.b, piece(self.source, 1, 4), opcode=SEND_IMM, immediate=0xDEADBEEF)
        self.p.flow()
        self.assertEqual(self.got(), [(7, OK, 44, GRH_FLAG | IMM_FLAG, 0xDEADBEEF, 17)])
        self.assertEqual(self.target.view[40:45].tobytes(), b"\1\2\3\4\0")

    def test_completion(self) -> None:
        """
        The other fields of the completion.
        """
        self.b.receive(7, piece(self.target))
        self.put(record("01020304", 28))
        (c,) = self.b.received()
        self.assertEqual((c.opcode, c.queuePairNumber), (WCOpcode.RECV, 18))

    def test_solicited(self) -> None:
        """
        A queue that waits for solicited completions hears of those only.
        """
        calls: list[Any] = []
        self.b.receives.onCompletion = calls.append
        self.b.receives.arm(True)
        for opcode, count in ((0x64, 0), (0xE4, 1)):
            self.b.receive(7, piece(self.target))
            self.put(record("01020304", 28), opcode)
            self.assertEqual(len(calls), count)

    def test_scattered(self) -> None:
        """
        Pieces may end anywhere, also within the GRH.
        """
        pieces = [piece(self.target, 1000 * i, size) for i, size in enumerate((13, 0, 28, 4))]
        self.b.receive(7, *pieces)
        self.a.datagram(1, self.b, piece(self.source, 1, 5))
        self.p.flow()
        found = b"".join(self.target.view[1000 * i : 1000 * i + p.length] for i, p in enumerate(pieces))
        self.assertEqual(found, bytes.fromhex(HEAD.format(32) + "0102030405"))

    def test_exactRoom(self) -> None:
        """
        A receive must have room for both; a datagram that is too long for it is dropped,
        and the receive is there for the next.
        """
        self.b.receive(7, piece(self.target, 0, 44))
        self.assertEqual(self.put(record("0102030405", 32)), {"datagrams_too_long": 1})
        self.assertEqual(self.got(), [])
        self.assertEqual(self.put(record("01020304", 28)), {})
        self.assertEqual(self.got(), [(7, OK, 44, GRH_FLAG, 0, 17)])

    def test_roomForGRH(self) -> None:
        """
        40 bytes are the least, even for nothing.
        """
        self.b.receive(7, piece(self.target, 0, 39))
        self.assertEqual(self.put(record("", 24)), {"datagrams_too_long": 1})
        self.connect()
        self.b.receive(7, piece(self.target, 0, 40))
        self.assertEqual(self.put(record("", 24)), {})
        self.assertEqual(self.got(), [(7, OK, 40, GRH_FLAG, 0, 17)])

    def test_noReceive(self) -> None:
        """
        Without a receive a datagram is dropped.
        """
        self.assertEqual(self.put(record("01020304", 28)), {"datagrams_without_receive": 1})
        self.b.receive(7, piece(self.target))
        self.p.flow()
        self.assertEqual(self.got(), [])

    def test_queueKey(self) -> None:
        """
        Only with the queue pair's Q_Key, which can change.
        """
        self.b.receive(7, piece(self.target))
        for deth in ("11111110 00000011", "91111111 00000011", "00000000 00000011"):
            self.assertEqual(self.put(record("01020304", 28, deth)), {"qkey_violations": 1})
        self.b.qp.modify(QPState.RTS, qkey=0x22)
        self.assertEqual(self.put(record("01020304", 28)), {"qkey_violations": 1})
        self.assertEqual(self.put(record("01020304", 28, "00000022 00000011")), {})
        self.assertEqual(len(self.got()), 1)

    def test_malformed(self) -> None:
        """
        Short ones, those whose length is not what the GRH says, other versions and codes.
        """
        self.b.receive(7, piece(self.target))
        whole = record("01020304", 28)
        wrong = [whole[:size] for size in range(49)]
        wrong += [whole + b"\0", whole + bytes(4), record("01020304", 29), record("01020304", 0)]
        wrong += [b"\x4a" + whole[1:], whole[:6] + b"\x3a" + whole[7:]]
        size = limits.DATAGRAM_BYTES + 4
        wrong.append(record("00" * size, 24 + size))
        for data in wrong:
            self.assertEqual(self.put(data), {"datagrams_malformed": 1}, len(data))
        for opcode in set(range(256)) - {0x64, 0x65, 0xE4, 0xE5}:
            self.assertEqual(self.put(whole, opcode), {"datagrams_malformed": 1})
        for short in range(4):
            data = record("ff" * short, 24 + (short + 3 & ~3))
            self.assertEqual(self.put(data, 0x65), {"datagrams_malformed": 1})
        self.assertEqual(self.got(), [])
        self.assertEqual((self.b.qp.state, self.put(whole)), (QPState.RTS, {}))

    def test_longest(self) -> None:
        """
        As long as the path MTU is not too long.
        """
        size = limits.DATAGRAM_BYTES
        self.b.receive(7, piece(self.target))
        self.assertEqual(self.put(record("00" * size, 24 + size)), {})
        self.assertEqual([c[2] for c in self.got()], [40 + size])

    def test_padding(self) -> None:
        """
        The GRH's length counts the pad, so one length stands for four; what arrives is as
        long as the record.
        """
        self.b.receive(7, piece(self.target))
        self.b.receive(8, piece(self.target))
        self.put(record("01", 28))
        self.put(record("010203", 28))
        self.assertEqual([c[2] for c in self.got()], [41, 43])

    def test_otherSource(self) -> None:
        """
        Who claims to be another HCA than the one at the path's end is not heard.
        """
        self.b.receive(7, piece(self.target))
        data = bytearray(record("01020304", 28))
        for at in (8, 15, 23):
            data[at] ^= 1
            self.assertEqual(self.put(bytes(data)), {"datagrams_misaddressed": 1})
            data[at] ^= 1
        self.assertEqual(self.put(bytes(data)), {})

    def test_otherDestination(self) -> None:
        """
        What is for another HCA is not taken.
        """
        self.b.receive(7, piece(self.target))
        data = bytearray(record("01020304", 28))
        data[39] ^= 1
        self.assertEqual(self.put(bytes(data)), {"datagrams_misaddressed": 1})

    def test_group(self) -> None:
        """
        What is sent to a group comes to each queue pair in it, with the group in the GRH.
        """
        self.b.hca.attached[GROUP] = [self.b.qp]
        self.a.hca.paths[GROUP] = self.p.ends[0]
        self.b.receive(7, piece(self.target))
        self.a.datagram(1, self.a.handle(GROUP), piece(self.source, 1, 4))
        self.assertEqual(self.wire()[0][0], 0x64FFFFFF)
        self.p.flow()
        self.assertEqual(self.got(), [(7, OK, 44, GRH_FLAG, 0, 17)])
        self.assertEqual(GRH.parse(self.target.view, 0, 40).destination, GROUP)

    def test_full(self) -> None:
        """
        The queue has as many places as it has.
        """
        for id in range(128):
            self.b.receive(id)
        self.assertRaises(ResourceLimitError, self.b.receive, 128)

    def test_badMemory(self) -> None:
        """
        A receive that names what it may not ends with LOC_PROT_ERR, and the queue pair is
        in ERR: the program's error.  Nothing is written.
        """
        for bad in (
            SGE(self.target.address, 100, 0xBAD),
            SGE(self.target.address - 1, 100, self.target.localKey),
        ):
            self.connect()
            self.b.receive(7, piece(self.target, 0, 42), bad)
            self.b.receive(8)
            self.put(record("01020304", 28))
            self.assertEqual([c[:2] for c in self.got()], [(7, WCStatus.LOC_PROT_ERR), (8, FLUSH)])
            self.assertEqual((self.b.qp.state, len(self.b.consumer.failures)), (QPState.ERR, 1))
            self.assertEqual(self.target.view.tobytes(), bytes(10240))

    def test_readOnly(self) -> None:
        """
        Memory without local write access takes nothing.
        """
        memory = self.b.register(200, 0)
        self.b.receive(7, piece(memory))
        self.put(record("01020304", 28))
        self.assertEqual([c[:2] for c in self.got()], [(7, WCStatus.LOC_PROT_ERR)])

    def test_overflow(self) -> None:
        """
        A completion for which there is no room brings the queue pair to ERR.
        """
        self.connect(depth=1)
        for id in range(3):
            self.b.receive(id, piece(self.target))
        self.put(record("01020304", 28))
        self.put(record("01020304", 28))
        self.assertEqual([c[:2] for c in self.got()], [(0, OK)])
        self.assertEqual(self.b.qp.state, QPState.ERR)

    def test_answersAreNothing(self) -> None:
        """
        Nothing answers a datagram, whoever claims to.
        """
        self.assertEqual(self.b.qp.delivered(0x11, b"\x61" + bytes(15), 0, 16), 0)
        self.assertEqual(self.b.qp.delivered(0x04, b"x", 0, 1), 0)
        self.assertEqual(self.b.qp.state, QPState.RTS)


class SharedTests(DatagramTestCase):
    """
    Receives of a shared receive queue.
    """

    def setUp(self) -> None:
        """
        C{b} takes from one.
        """
        super().setUp()
        self.shared = self.b.share()

    def test_receive(self) -> None:
        """
        The oldest is used; a datagram that is too long for it leaves it there.
        """
        self.shared.post(ReceiveRequest(7, (piece(self.target, 0, 44),)))
        self.assertEqual(self.put(record("0102030405", 32)), {"datagrams_too_long": 1})
        self.assertEqual(self.put(record("01020304", 28)), {})
        self.assertEqual([c[:3] for c in self.got()], [(7, OK, 44)])
        self.assertEqual(self.put(record("01020304", 28)), {"datagrams_without_receive": 1})

    def test_error(self) -> None:
        """
        Its receives outlive a queue pair's error, which is an event: nothing more is taken.
        """
        events: list[str] = []
        self.b.qp.onEvent = lambda kind, element: events.append(kind.name)
        self.shared.post(ReceiveRequest(7))
        self.b.qp.modify(QPState.ERR)
        self.assertEqual((self.got(), len(self.shared)), ([], 1))
        self.b.qp.modify(QPState.ERR)
        self.assertEqual(events, ["QP_LAST_WQE_REACHED"])

    def test_posting(self) -> None:
        """
        Its receives are not posted to the queue pair.
        """
        self.assertRaises(QueuePairError, self.b.receive, 1)
