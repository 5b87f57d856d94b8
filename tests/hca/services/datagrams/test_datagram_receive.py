"""
Tests for L{twisted_ib.hca.services.datagram}: receiving.
"""

from __future__ import annotations

from typing import Any

from tests.hca.queues.keyed_pair import piece
from tests.hca.services.datagrams.cases import HEAD, DatagramTestCase, record
from tests.hca.services.datagrams.datagram_pair import GROUP
from twisted_ib import limits
from twisted_ib.errors import QueuePairError, ResourceLimitError
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.queues.completion import WCFlags, WCOpcode, WCStatus
from twisted_ib.hca.queues.receives import SGE, ReceiveRequest
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.hca.wire.grh import destination, guidGID, route

SEND_IMM = SendOpcode.SEND_WITH_IMM
OK, FLUSH = WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR
GRH_FLAG, IMM_FLAG = int(WCFlags.GRH), int(WCFlags.WITH_IMM)


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
        self.assertEqual(route(self.target.view)[:2], (guidGID(0xA1), guidGID(0xB1)))

    def test_together(self) -> None:
        """
        Receives that are posted together, as a list of a C program: all, or none where they have not room.
        """
        several = [ReceiveRequest(each, [piece(self.target)]) for each in range(3)]
        self.b.work.postReceives(several)
        for _ in several:
            self.put(record("01020304", 28))
        self.assertEqual([found[0] for found in self.got()], [0, 1, 2])
        room = self.b.work.responder.room()
        self.assertRaises(ResourceLimitError, self.b.work.postReceives, several * room)
        self.assertEqual(self.b.work.responder.room(), room)

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
        A queue armed for solicited completions is notified of those only.
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
        A datagram with another source GID than that of the HCA at the path's end is dropped.
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
        A datagram for another HCA is dropped.
        """
        self.b.receive(7, piece(self.target))
        data = bytearray(record("01020304", 28))
        data[39] ^= 1
        self.assertEqual(self.put(bytes(data)), {"datagrams_misaddressed": 1})

    def test_group(self) -> None:
        """
        A datagram to a group comes to each queue pair in it, with the group in the GRH.
        """
        self.b.hca.attached[GROUP] = [self.b.qp]
        self.a.hca.paths[GROUP] = self.p.ends[0]
        self.b.receive(7, piece(self.target))
        self.a.datagram(1, self.a.handle(GROUP), piece(self.source, 1, 4))
        self.assertEqual(self.wire()[0][0], 0x64FFFFFF)
        self.p.flow()
        self.assertEqual(self.got(), [(7, OK, 44, GRH_FLAG, 0, 17)])
        self.assertEqual(destination(self.target.view), GROUP)

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


class TrafficTests(DatagramTestCase):
    """
    The traffic counters of queue pairs.
    """

    def test_traffic(self) -> None:
        """
        Records and messages: what is dropped is a record only.
        """
        self.b.receive(7, piece(self.target))
        self.a.datagram(1, self.b)
        self.a.datagram(2, self.b)
        self.a.datagram(3, self.b, SGE(0, 1, 0))
        self.p.flow()
        self.assertEqual(self.a.work.traffic(), (2, 0, 2, 0))
        self.assertEqual(self.b.work.traffic(), (0, 2, 0, 1))


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

    def test_domain(self) -> None:
        """
        Its memory is of its own protection domain.
        """
        pd = self.b.memory.allocateDomain()
        memory = self.b.memory.register(bytearray(100), 1, pd)
        self.shared.post(ReceiveRequest(7, (piece(memory),)))
        self.assertEqual(self.put(record("01020304", 28)), {})
        self.assertEqual([c[:2] for c in self.got()], [(7, WCStatus.LOC_PROT_ERR)])
        self.connect()
        pd = self.b.memory.allocateDomain()
        memory = self.b.memory.register(bytearray(100), 1, pd)
        shared = self.b.share(pd=pd)
        shared.post(ReceiveRequest(7, (piece(memory),)))
        self.assertEqual(self.put(record("01020304", 28)), {})
        self.assertEqual([c[:2] for c in self.got()], [(7, OK)])

    def test_posting(self) -> None:
        """
        Its receives are not posted to the queue pair.
        """
        self.assertRaises(QueuePairError, self.b.receive, 1)
