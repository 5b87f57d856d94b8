"""
Tests of L{twisted_ib.hca.capture.flow}: operations as packets.
"""

from __future__ import annotations

from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.support.generated import given
from tests.support.packets import fits
from twisted_ib.hca.base.operation import ABSENT, LATER
from twisted_ib.hca.capture.flow import Flow
from twisted_ib.hca.wire.headers import ACK, NAK_REMOTE_ACCESS, RNR
from twisted_ib.hca.wire.opcodes import OPCODES, UNRELIABLE
from twisted_ib.hca.wire.packet import Packet

MTU = 256
START = 0xFFFFFE
SEND_FIRST, SEND_MIDDLE, SEND_LAST, SEND_ONLY, SEND_ONLY_IMMEDIATE = 0, 1, 2, 4, 5
WRITE_FIRST, WRITE_LAST, WRITE_ONLY, WRITE_ONLY_IMMEDIATE, READ = 6, 8, 10, 11, 12
RESPONSE_FIRST, RESPONSE_MIDDLE, RESPONSE_LAST, RESPONSE_ONLY = 13, 14, 15, 16
ATOMIC_ACKNOWLEDGE, COMPARE_SWAP, ATOMIC_WRITE = 18, 19, 29


class FlowTestCase(SynchronousTestCase):
    """
    One flow.

    @ivar shown: names and sequence numbers of its packets; of answers also the AETH.
    """

    def setUp(self) -> None:
        """
        It begins shortly before the sequence numbers wrap.
        """
        self.packets: list[tuple[bool, Packet]] = []
        self.flow = Flow(lambda answer, packet: self.packets.append((answer, packet)), START, MTU)
        self.position = 0

    def post(self, code: int, data: bytes = b"", *numbers: int) -> int:
        """
        @return: the position after the record.
        """
        self.position += 64
        self.flow.request(OPCODES[code], numbers, data, False, self.position)
        return self.position

    def answer(self, code: int, data: bytes = b"") -> None:
        """
        A record of an answer.
        """
        self.flow.respond(OPCODES[code], data)

    def shown(self) -> list[tuple[str | int, ...]]:
        """
        @return: the packets shown since the last call.
        """
        packets, self.packets = self.packets, []
        found: list[tuple[str | int, ...]] = []
        for answer, packet in packets:
            self.assertTrue(fits(packet.row, len(packet.payload), MTU), packet)
            name = packet.row.name.partition(" ")[2]
            heads = ()
            if answer and packet.row.headers:
                heads = (packet["acknowledge"] >> 24, packet["acknowledge"] & 0xFFFFFF)
            found.append((name, packet.bth.psn - START & 0xFFFFFF, *heads))
        return found


class RequestTests(FlowTestCase):
    """
    Requests.
    """

    def test_short(self) -> None:
        """
        A record that fits is a packet; sequence numbers wrap.
        """
        for _ in range(3):
            self.post(SEND_ONLY, bytes(MTU))
        self.assertEqual(self.shown(), [("SEND Only", n) for n in range(3)])
        self.assertEqual(self.flow.psn, 1)

    def test_long(self) -> None:
        """
        A longer one is cut; the last packet is never empty, and asks for an acknowledgement.
        """
        self.post(SEND_ONLY, bytes(2 * MTU))
        self.assertEqual([packet.bth.acknowledge for _, packet in self.packets], [False, True])
        self.assertEqual(self.shown(), [("SEND First", 0), ("SEND Last", 1)])
        self.post(SEND_ONLY, bytes(2 * MTU + 1))
        self.assertEqual([len(packet.payload) for _, packet in self.packets], [MTU, MTU, 1])
        self.assertEqual(self.shown(), [("SEND First", 2), ("SEND Middle", 3), ("SEND Last", 4)])

    def test_records(self) -> None:
        """
        Records of other lengths than a packet's: what is left goes with the next one.  The
        address is in the first packet, the immediate in the last.
        """
        data = bytes(range(250)) * 4
        self.post(WRITE_FIRST, data[:100], 7, 8, 1000)
        self.assertEqual(self.shown(), [])
        self.post(7, data[100:800])
        self.post(9, data[800:], 5)
        packets = [packet for _, packet in self.packets]
        self.assertEqual(b"".join(bytes(packet.payload) for packet in packets), data)
        self.assertEqual([packet.headers for packet in packets], [((7, 8, 1000),), (), (), ((5,),)])
        names = ["WRITE First", "WRITE Middle", "WRITE Middle", "WRITE Last Immediate"]
        self.assertEqual(self.shown(), [(name, n) for n, name in enumerate(names)])

    def test_joined(self) -> None:
        """
        Two records may be one packet.
        """
        self.post(WRITE_FIRST, b"one", 7, 8, 6)
        self.post(WRITE_LAST, b"two")
        ((_, packet),) = self.packets
        self.assertEqual((packet.row.name, packet.headers), ("RC WRITE Only", ((7, 8, 6),)))
        self.assertEqual(bytes(packet.payload), b"onetwo")

    def test_nothing(self) -> None:
        """
        A message of nothing is a packet too.
        """
        self.post(SEND_ONLY)
        self.post(WRITE_ONLY_IMMEDIATE, b"", 0, 0, 0, 9)
        self.assertEqual(self.shown(), [("SEND Only", 0), ("WRITE Only Immediate", 1)])

    def test_disorder(self) -> None:
        """
        The middle of nothing is not shown.
        """
        self.post(SEND_MIDDLE, bytes(MTU))
        self.post(WRITE_FIRST, bytes(MTU), 1, 2, 3)
        self.post(SEND_LAST, b"x")
        self.assertEqual(self.shown(), [("WRITE First", 0)])

    def test_unreliable(self) -> None:
        """
        Unreliable connections have codes of their own, and no acknowledgements.
        """
        flow = Flow(lambda answer, packet: self.packets.append((answer, packet)), START, MTU, False)
        flow.request(OPCODES[UNRELIABLE | SEND_ONLY], (), bytes(MTU + 1), True, 64)
        self.assertEqual([packet.row.name for _, packet in self.packets], ["UC SEND First", "UC SEND Last"])
        self.assertEqual([packet.bth.solicited for _, packet in self.packets], [False, True])
        self.assertEqual([packet.bth.acknowledge for _, packet in self.packets], [False, False])
        flow.taken(64)
        self.assertEqual(len(self.packets), 2)

    @given(
        st.lists(st.integers(1, 3 * MTU), min_size=1, max_size=6),
        st.sampled_from([(SEND_FIRST, 1, SEND_LAST, SEND_ONLY), (WRITE_FIRST, 7, WRITE_LAST, WRITE_ONLY)]),
    )
    def test_anyRecords(self, lengths: list[int], codes: tuple[int, ...]) -> None:
        """
        However a message comes, its packets are legal and have its bytes.
        """
        self.setUp()
        first, middle, last, only = codes
        numbers = (1, 2, sum(lengths)) if first == WRITE_FIRST else ()
        data = b""
        for n, length in enumerate(lengths):
            part = bytes([n]) * length
            data += part
            isFirst, isLast = n == 0, n == len(lengths) - 1
            code = (only if isLast else first) if isFirst else (last if isLast else middle)
            self.post(code, part, *(numbers if isFirst else ()))
        packets = [packet for _, packet in self.packets]
        self.assertEqual(b"".join(bytes(packet.payload) for packet in packets), data)
        self.assertEqual(len(packets), -(-len(data) // MTU))
        self.assertEqual([packet.row.begins for packet in packets], [True] + [False] * (len(packets) - 1))
        self.assertEqual([packet.row.ends for packet in packets], [False] * (len(packets) - 1) + [True])
        self.assertEqual([psn for _, psn, *_ in self.shown()], list(range(len(packets))))


class AnswerTests(FlowTestCase):
    """
    Answers.
    """

    def test_acknowledged(self) -> None:
        """
        Each message is acknowledged by its last sequence number, and counted.
        """
        ends = [self.post(SEND_ONLY, bytes(size)) for size in (1, 3 * MTU, 2)]
        self.shown()
        self.flow.taken(ends[0])
        self.assertEqual(self.shown(), [("Acknowledge", 0, ACK, 1)])
        self.flow.taken(ends[2])
        self.assertEqual(self.shown(), [("Acknowledge", 3, ACK, 2), ("Acknowledge", 4, ACK, 3)])
        self.flow.taken(ends[2])
        self.assertEqual(self.shown(), [])

    def test_unfinished(self) -> None:
        """
        A message whose end was not sent is not acknowledged.
        """
        self.flow.taken(self.post(SEND_FIRST, bytes(MTU)))
        self.assertEqual(self.shown(), [("SEND First", 0)])

    def test_read(self) -> None:
        """
        A READ takes as many sequence numbers as its response has packets, in however many
        records that comes.
        """
        self.post(READ, b"", 1, 2, 1000)
        self.post(SEND_ONLY, b"next")
        self.assertEqual(self.shown(), [("READ Request", 0), ("SEND Only", 4)])
        self.answer(RESPONSE_FIRST, bytes(300))
        self.assertEqual(self.shown(), [("READ Response First", 0, ACK, 1)])
        self.answer(RESPONSE_MIDDLE, bytes(600))
        self.assertEqual(self.shown(), [("READ Response Middle", 1), ("READ Response Middle", 2)])
        self.answer(RESPONSE_LAST, bytes(100))
        self.assertEqual(self.shown(), [("READ Response Last", 3, ACK, 1)])

    def test_emptyRead(self) -> None:
        """
        A READ of nothing takes one.
        """
        self.post(READ, b"", 1, 2, 0)
        self.answer(RESPONSE_ONLY)
        self.post(SEND_ONLY)
        self.assertEqual(
            self.shown(), [("READ Request", 0), ("READ Response Only", 0, ACK, 1), ("SEND Only", 1)]
        )

    def test_order(self) -> None:
        """
        A request that was executed behind a READ is acknowledged behind its response, which acknowledges all
        before it.
        """
        self.post(SEND_ONLY)
        self.post(READ, b"", 1, 2, MTU)
        self.post(COMPARE_SWAP, b"", 1, 2, 3, 4)
        end = self.post(SEND_ONLY)
        self.shown()
        self.answer(RESPONSE_ONLY, bytes(MTU))
        self.assertEqual(self.shown(), [("Acknowledge", 0, ACK, 1), ("READ Response Only", 1, ACK, 2)])
        self.flow.taken(end)
        self.assertEqual(self.shown(), [])
        self.answer(ATOMIC_ACKNOWLEDGE, bytes(7) + b"\x05")
        self.assertEqual(self.packets[0][1]["original"], 5)
        self.assertEqual(self.shown(), [("Atomic Acknowledge", 2, ACK, 3), ("Acknowledge", 3, ACK, 4)])

    def test_atomicWrite(self) -> None:
        """
        An ATOMIC WRITE is shown with its bytes, and its response of none; a response of others is not.
        """
        self.post(ATOMIC_WRITE, b"8 octets", 1, 2, 8)
        self.assertEqual(self.packets[0][1].payload, b"8 octets")
        self.shown()
        for code, data in ((RESPONSE_ONLY, b"x"), (RESPONSE_FIRST, b""), (ATOMIC_ACKNOWLEDGE, bytes(8))):
            self.answer(code, data)
        self.assertEqual(self.shown(), [])
        self.answer(RESPONSE_ONLY, b"")
        self.assertEqual(self.shown(), [("READ Response Only", 0, ACK, 1)])

    def test_unasked(self) -> None:
        """
        Responses without a request, of another kind or too long, are not shown.
        """
        self.answer(RESPONSE_ONLY, b"x")
        self.post(COMPARE_SWAP, b"", 1, 2, 3, 4)
        self.shown()
        self.answer(RESPONSE_ONLY, b"x")
        self.assertEqual(self.shown(), [])
        self.answer(ATOMIC_ACKNOWLEDGE, bytes(8))
        self.post(READ, b"", 1, 2, MTU)
        self.shown()
        self.answer(ATOMIC_ACKNOWLEDGE, bytes(8))
        self.answer(RESPONSE_FIRST, bytes(3 * MTU))
        self.assertEqual(self.shown(), [("READ Response First", 1, ACK, 2)])


class RefusalTests(FlowTestCase):
    """
    Refusals.
    """

    def test_again(self) -> None:
        """
        A request that was refused by an RNR NAK is retried with the same sequence numbers, and so are those
        behind it.
        """
        first = self.post(SEND_ONLY)
        second = self.post(SEND_ONLY, bytes(2 * MTU))
        third = self.post(SEND_ONLY)
        self.shown()
        self.flow.refused(RNR | 1, second)
        self.assertEqual(self.shown(), [("Acknowledge", 0, ACK, 1), ("Acknowledge", 1, RNR | 1, 1)])
        self.flow.taken(third)
        self.post(SEND_ONLY)
        self.assertEqual(self.shown(), [("SEND Only", 4)])
        self.flow.resume()
        end = self.post(SEND_ONLY, bytes(2 * MTU))
        self.assertEqual(self.shown(), [("SEND First", 1), ("SEND Last", 2)])
        self.flow.taken(end)
        self.assertEqual(self.shown(), [("Acknowledge", 2, ACK, 2)])
        self.assertEqual(first, 64)

    def test_late(self) -> None:
        """
        A WRITE with immediate is refused by its last packet.
        """
        end = self.post(WRITE_ONLY_IMMEDIATE, bytes(3 * MTU), 1, 2, 3 * MTU, 4)
        self.shown()
        self.flow.refused(RNR, end)
        self.assertEqual(self.shown(), [("Acknowledge", 2, RNR, 0)])
        self.flow.resume()
        self.assertEqual(self.flow.psn, START)

    def test_silent(self) -> None:
        """
        The syndromes "absent" and "later" are no packets; then it comes again.
        """
        for syndrome in (ABSENT, LATER):
            position = self.post(SEND_ONLY)
            self.assertEqual(self.shown(), [("SEND Only", 0)])
            self.flow.refused(syndrome, position)
            self.assertEqual(self.shown(), [])
            self.flow.resume()

    def test_behindRead(self) -> None:
        """
        A refusal waits for the response to a READ before it.
        """
        self.post(READ, b"", 1, 2, 2 * MTU)
        position = self.post(SEND_ONLY)
        self.shown()
        self.flow.refused(RNR, position)
        self.assertEqual(self.shown(), [])
        self.answer(RESPONSE_ONLY, bytes(2 * MTU))
        self.assertEqual(
            self.shown(),
            [
                ("READ Response First", 0, ACK, 1),
                ("READ Response Last", 1, ACK, 1),
                ("Acknowledge", 2, RNR, 1),
            ],
        )

    def test_broken(self) -> None:
        """
        A response that breaks off: the refusal has the sequence number that is missing.
        """
        self.post(READ, b"", 1, 2, 3 * MTU)
        self.answer(RESPONSE_FIRST, bytes(MTU))
        self.shown()
        self.flow.refused(NAK_REMOTE_ACCESS, 0)
        self.assertEqual(self.shown(), [("Acknowledge", 1, NAK_REMOTE_ACCESS, 1)])

    def test_latest(self) -> None:
        """
        A refusal without a position is about the latest record.
        """
        self.flow.taken(self.post(SEND_ONLY))
        self.post(WRITE_ONLY, b"data", 1, 2, 4)
        self.shown()
        self.flow.refused(NAK_REMOTE_ACCESS, None)
        self.assertEqual(self.shown(), [("Acknowledge", 1, NAK_REMOTE_ACCESS, 1)])

    def test_unknown(self) -> None:
        """
        A refusal of nothing, and resuming without one, are nothing; what a peer sends behind a
        refusal is not kept.
        """
        self.flow.refused(RNR, None)
        self.flow.refused(RNR, 0)
        self.flow.refused(RNR, 64)
        self.flow.resume()
        self.assertEqual(self.shown(), [])
        self.post(SEND_ONLY)
        self.flow.refused(RNR, None)
        for _ in range(100):
            self.post(READ, b"", 1, 2, 3)
        self.assertEqual(len(self.flow._requests), 1)
