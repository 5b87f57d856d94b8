"""
Tests for L{twisted_ib.hca.transport.requester}: what it sends, and what it does with responses.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from tests.hca.transport.pair import TERMS, End
from twisted_ib import limits
from twisted_ib.hca.base.operation import BAD_RESPONSE, RNR_EXHAUSTED, SILENT, SOLICITED
from twisted_ib.hca.transport import requester, sendwindow
from twisted_ib.hca.transport.parameters import ConnectionParameters, Packet
from twisted_ib.hca.transport.reliable import ReliableConnection
from twisted_ib.hca.wire.headers import (
    ATOMIC,
    NAK_INVALID_REQUEST,
    NAK_REMOTE_ACCESS,
    NAK_REMOTE_OPERATIONAL,
    RETH,
)
from twisted_ib.hca.wire.opcodes import (
    ATOMIC_ACKNOWLEDGE,
    FETCH_ADD,
    SEND_FIRST,
    SEND_LAST,
    SEND_MIDDLE,
    SEND_ONLY,
    SEND_ONLY_IMMEDIATE,
    SEND_ONLY_INVALIDATE,
    WRITE_ONLY,
    WRITE_ONLY_IMMEDIATE,
)

ASK, SOLICIT = 0x01, 0x80
ACK, RNR, SEQUENCE = 0x1F, 0x20, 0x60
#: The first numbers of a requester in these tests: the third wraps.
A, B, C, D = 0xFFFFFE, 0xFFFFFF, 0x000000, 0x000001


class RequesterCase(SynchronousTestCase):
    """
    A requester whose first PSN is 2^24 - 2, of path MTU 256, and its literal packets.
    """

    parameters = evolve(TERMS, reads=2)

    def setUp(self) -> None:
        self.connect(self.parameters)

    def connect(self, parameters: ConnectionParameters) -> None:
        """
        Begin anew.
        """
        self.now = 50.0
        self.end = End()
        self.connection = self.end.connection = ReliableConnection(parameters, 18, self.end)
        self.position = 0

    def post(self, opcode: int, payload: Any = b"", header: bytes = b"") -> int:
        """
        Post a record.

        @return: its position.
        """
        self.position += 1
        length = sum(map(len, payload)) if payload.__class__ is list else len(payload)
        self.assertTrue(self.connection.post(opcode, header, payload, length, self.position, self.now))
        return self.position

    def read(self, length: int) -> int:
        """
        Post a READ of address 0x1000.
        """
        self.position += 1
        self.assertTrue(self.end.read(0x1000, length, self.position))
        return self.position

    def sent(self, budget: int = 1000) -> list[Packet]:
        """
        The packets it sends now, payloads as bytes.
        """
        out = self.connection.outputs(budget, self.now)
        return [(code, flags, psn, header, bytes(body)) for code, flags, psn, header, body in out]

    def brief(self) -> list[tuple[int, int]]:
        """
        The packets it sends now: opcodes and PSNs.
        """
        return [packet[0:3:2] for packet in self.sent()]

    def acknowledge(self, syndrome: int, psn: int) -> None:
        """
        The peer answers without data.
        """
        self.respond(0x11, psn, bytes([syndrome, 0, 0, 1]))

    def respond(self, code: int, psn: int, data: bytes) -> None:
        """
        The peer answers.
        """
        self.connection.receive(code, psn, False, data, 0, len(data), self.now)

    def later(self, seconds: float) -> None:
        """
        Time passes; whatever is due on the way is done when it is.
        """
        until = self.now + seconds
        while (at := self.connection.deadline()) is not None and at <= until:
            self.now = max(self.now, at)
            self.connection.tick(self.now)
            self.connection.outputs(1000, self.now)
        self.now = until


class SendingTests(RequesterCase):
    """
    Records become packets.
    """

    def test_only(self) -> None:
        """
        A short SEND is one packet; no bytes are one, too.  The last of those that leave together asks for
        an acknowledgement.
        """
        self.post(SEND_ONLY, b"hello")
        self.post(SEND_ONLY | SOLICITED, b"")
        self.assertEqual(self.sent(), [(0x04, 0, A, b"", b"hello"), (0x04, ASK | SOLICIT, B, b"", b"")])
        self.assertFalse(self.connection.pending())

    def test_cut(self) -> None:
        """
        A long one is First, Middle and Last; the last is asked to be acknowledged, and has the
        solicited event.  PSNs wrap.
        """
        data = bytes(range(256)) * 2 + b"end"
        self.post(SEND_ONLY | SOLICITED, data)
        self.assertEqual(
            self.sent(),
            [
                (0x00, 0, A, b"", data[:256]),
                (0x01, 0, B, b"", data[256:512]),
                (0x02, ASK | SOLICIT, C, b"", b"end"),
            ],
        )

    def test_whole(self) -> None:
        """
        Two times the path MTU are two packets.
        """
        self.post(SEND_ONLY, bytes(512))
        self.assertEqual(self.brief(), [(0x00, A), (0x02, B)])

    def test_immediate(self) -> None:
        """
        The RETH goes with the first packet of a WRITE, and the immediate with the last.
        """
        reth = RETH.pack(0x1000, 7, 300)
        self.post(WRITE_ONLY_IMMEDIATE, bytes(300), reth + b"immd")
        self.post(WRITE_ONLY_IMMEDIATE, b"", reth + b"immd")
        self.post(SEND_ONLY_IMMEDIATE, bytes(300), b"immd")
        self.post(SEND_ONLY_INVALIDATE, bytes(257), b"rkey")
        self.assertEqual(
            [(code, header, len(body)) for code, _, _, header, body in self.sent()],
            [
                (0x06, reth, 256),
                (0x09, b"immd", 44),
                (0x0B, reth + b"immd", 0),
                (0x00, b"", 256),
                (0x03, b"immd", 44),
                (0x00, b"", 256),
                (0x16, b"rkey", 1),
            ],
        )

    def test_records(self) -> None:
        """
        The records of a long message follow each other as one message.
        """
        for code, size in ((SEND_FIRST, 512), (SEND_MIDDLE, 512), (SEND_LAST, 257)):
            self.post(code, bytes(size))
        self.assertEqual([code for code, _ in self.brief()], [0, 1, 1, 1, 1, 2])

    def test_streamHeader(self) -> None:
        """
        The header that a stream puts before its data counts as payload, however long it is.
        """
        data = bytes(range(250)) * 2
        for header in (b"h" * 16, b"h" * 5, b"h" * 300):
            self.connect(self.parameters)
            self.post(SEND_ONLY, [data[:100], memoryview(data)[100:]], header)
            sent = self.sent()
            self.assertEqual(b"".join(header + body for _, _, _, header, body in sent), header + data)
            self.assertEqual({len(header) + len(body) for _, _, _, header, body in sent[:-1]}, {256})

    def test_copied(self) -> None:
        """
        A payload that can change is copied.
        """
        data = bytearray(b"before")
        self.post(SEND_ONLY, data)
        data[:] = b"after!"
        self.assertEqual(self.sent()[0][4], b"before")

    def test_acknowledgeRequests(self) -> None:
        """
        A long message asks every 64 packets of those that leave together, and with the last packet that
        goes for now.
        """
        self.connect(evolve(self.parameters, firstPSN=0))
        self.post(SEND_FIRST, bytes(256 * 250))
        asks = []
        for _ in range(4):
            packets = self.sent()
            asks.append([psn for _, flags, psn, _, _ in packets if flags & ASK])
            self.acknowledge(ACK, packets[-1][2])
        self.assertEqual(asks, [[31], [95], [159, 223], [249]])
        self.assertEqual(requester.TRANSPORT_ACKNOWLEDGE, 64)

    def test_postNow(self) -> None:
        """
        A small message that may leave at once is its packet at once; it is numbered, kept, acknowledged and
        timed as others are.
        """
        connection = self.connection
        found = connection.requester.postNow(SEND_ONLY, b"head", b"data", 1)
        connection.requester.sent(self.now)
        self.assertEqual(found, (0x04, ASK, A, b"head", b"data"))
        self.assertFalse(connection.pending())
        self.assertIsNotNone(connection.deadline())
        self.now += 0.25
        self.acknowledge(ACK, A)
        self.assertEqual(self.end.done, [1])
        self.assertEqual(connection.requester.pacing.roundTrip(), 0.25)
        self.assertIsNone(connection.requester.postNow(SEND_ONLY, b"", bytes(257), 2))
        self.position = 1
        self.post(SEND_ONLY, b"first")
        self.assertIsNone(connection.requester.postNow(SEND_ONLY, b"", b"second", 3))
        self.assertEqual(self.brief(), [(4, B)])
        connection.close()
        self.assertIsNone(connection.requester.postNow(SEND_ONLY, b"", b"", 3))

    def test_halves(self) -> None:
        """
        While something is on the way, there is to be room for half of the window, or for all that waits; a
        message that will have room as a whole does not leave in parts.
        """
        self.connect(evolve(self.parameters, firstPSN=0))
        for _ in range(6):
            self.post(SEND_ONLY, bytes(256 * 12))
        self.assertEqual([packet[2] for packet in self.sent()], list(range(24)))
        self.assertFalse(self.connection.pending())
        self.acknowledge(ACK, 11)  # A window of 44, 12 of it in use.
        self.assertEqual([packet[2] for packet in self.sent()], list(range(24, 48)))
        self.assertFalse(self.connection.pending())
        self.assertEqual(self.sent(), [])
        self.acknowledge(ACK, 23)  # One of 56, 24 in use: room for all.
        self.assertEqual([packet[2] for packet in self.sent()], list(range(48, 72)))

    def test_question(self) -> None:
        """
        A READ takes as many numbers as its answer has packets; an atomic takes one.
        """
        self.read(513)
        self.end.atomic(8, 1, 2)
        self.assertEqual(
            self.sent(),
            [
                (0x0C, ASK, A, RETH.pack(0x1000, 7, 513), b""),
                (0x14, ASK, D, ATOMIC.pack(8, 7, 1, 0), b""),
            ],
        )

    def test_reads(self) -> None:
        """
        No more READs are on the way than were agreed on.
        """
        for _ in range(3):
            self.read(1)
        self.assertEqual(self.brief(), [(0x0C, A), (0x0C, B)])
        self.assertFalse(self.connection.pending())
        self.respond(0x10, A, b"\x1f\0\0\1x")
        self.assertEqual(self.brief(), [(0x0C, C)])

    def test_long(self) -> None:
        """
        A READ of more packets than L{limits.TRANSPORT_READ} is asked for in parts.
        """
        part = limits.TRANSPORT_READ * 256
        self.read(2 * part + 1)
        self.assertEqual(
            self.sent(), [(0x0C, ASK, A, RETH.pack(0x1000, 7, part), b"")]
        )  # The window is open for no more.
        for i in range(limits.TRANSPORT_READ):
            code = 0x0D if not i else 0x0F if i == limits.TRANSPORT_READ - 1 else 0x0E
            self.respond(code, A + i & 0xFFFFFF, (b"" if code == 0x0E else b"\x1f\0\0\1") + bytes(256))
        self.assertEqual(
            self.sent(),
            [
                (0x0C, ASK, A + 64 & 0xFFFFFF, RETH.pack(0x1000 + part, 7, part), b""),
                (0x0C, ASK, A + 128 & 0xFFFFFF, RETH.pack(0x1000 + 2 * part, 7, 1), b""),
            ],
        )
        self.assertEqual(self.end.done, [])

    def test_longPackets(self) -> None:
        """
        As many bytes of long packets leave as may be on their way, whatever is behind them: a READ has many
        numbers and no bytes, and small messages make a mean of nothing.
        """
        for read, small in ((0, 0), (64 << 20, 0), (0, 100)):
            self.connect(evolve(self.parameters, mtu=61440, firstPSN=0))
            for _ in range(16):
                self.post(SEND_ONLY, bytes(61440))
            if read:
                self.read(read)
            for _ in range(small):
                self.post(SEND_ONLY, b"x")
            sent = self.sent()
            self.assertEqual([len(packet[4]) for packet in sent], [61440] * 8, (read, small))
            self.assertFalse(self.connection.pending())
            self.acknowledge(ACK, 3)
            self.assertEqual([packet[2] for packet in self.sent()], [8, 9, 10, 11], (read, small))

    def test_longParts(self) -> None:
        """
        So it is with a message of many packets, of which some were acknowledged, and if it is sent again.
        """
        self.connect(evolve(self.parameters, mtu=61440, firstPSN=0))
        for _ in range(2):
            self.post(SEND_ONLY, bytes(61440 * 16))
        self.assertEqual([packet[2] for packet in self.sent()], [*range(8)])
        self.acknowledge(ACK, 7)
        self.assertEqual([packet[2] for packet in self.sent()], [*range(8, 16)])
        self.acknowledge(0x60, 11)
        last, most = 0, 0
        while numbers := [packet[2] for packet in self.sent()]:
            last, most = numbers[-1], max(most, len(numbers))
            self.acknowledge(ACK, last)
        self.assertEqual(last, 31)
        self.assertLessEqual(most, 8)
        self.assertEqual(self.connection.requester._held, 0)

    def test_longReads(self) -> None:
        """
        Of long responses so many bytes are asked for as may be on their way; of short ones, and of atomics,
        as many as with shorter packets.
        """
        terms = evolve(self.parameters, mtu=61440, firstPSN=0, reads=16)
        self.connect(terms)
        for _ in range(20):
            self.read(64)
        self.assertEqual([packet[2] for packet in self.sent()], list(range(16)))
        self.connect(terms)
        for _ in range(20):
            self.post(FETCH_ADD, b"", ATOMIC.pack(8, 7, 1, 0))
        self.assertEqual(len(self.sent()), 16)
        self.connect(terms)
        for size in (61440 * 12, 64, 61440 * 2):
            self.read(size)
        asked = {}
        for psn, code in enumerate((0x0D, 0x0E, 0x0E, 0x0F) * 2):
            asked[psn] = [(packet[2], RETH.unpack(packet[3])[2]) for packet in self.sent()]
            self.assertFalse(self.connection.pending())
            self.respond(code, psn, bytes([ACK, 0, 0, 0])[: 4 * (code != 0x0E)] + bytes(61440))
        part = 61440 * 4
        self.assertEqual(
            {psn: each for psn, each in asked.items() if each},
            {0: [(0, part), (4, part)], 4: [(8, part)], 5: [(12, 64)], 7: [(13, 61440 * 2)]},
        )

    def test_longBoth(self) -> None:
        """
        Messages and responses go different ways: each has its bound.
        """
        self.connect(evolve(self.parameters, mtu=61440, firstPSN=0, reads=16))
        for _ in range(8):
            self.post(SEND_ONLY, bytes(61440))
        self.read(61440 * 8)
        self.read(61440)
        self.post(SEND_ONLY, bytes(61440))
        sent = self.sent()
        self.assertEqual([packet[2] for packet in sent], [*range(9), 12])
        self.acknowledge(ACK, 7)
        self.assertEqual(self.sent(), [])

    def test_longSmall(self) -> None:
        """
        Of small messages as many leave as with shorter packets, though long ones wait behind them.
        """
        self.connect(evolve(self.parameters, mtu=61440, firstPSN=0))
        for size in [100] * 20 + [61440] * 16:
            self.post(SEND_ONLY, bytes(size))
        self.assertEqual([len(packet[4]) for packet in self.sent()], [100] * 20 + [61440] * 7)

    def test_window(self) -> None:
        """
        At first so many packets go, later up to L{limits.TRANSPORT_WINDOW}.
        """
        for _ in range(16):
            self.post(SEND_FIRST, bytes(65536))
        sent = len(self.brief())
        self.assertEqual(sent, sendwindow.TRANSPORT_WINDOW_FIRST)
        for _ in range(10):
            self.acknowledge(ACK, A + sent - 1 & 0xFFFFFF)
            new = len(self.brief())
            sent += new
        self.assertEqual(new, limits.TRANSPORT_WINDOW)

    def test_windowOfOne(self) -> None:
        """
        Everything works with one packet on the way.
        """
        self.patch(limits, "TRANSPORT_WINDOW", 1)
        self.connect(self.parameters)
        self.post(SEND_ONLY, bytes(300))
        self.read(300)
        for packets in ([(0x00, A)], [(0x02, B)]):
            self.assertEqual(self.brief(), packets)
            self.acknowledge(ACK, packets[0][1])
        self.assertEqual(self.brief(), [(0x0C, C)])

    def test_room(self) -> None:
        """
        So many records are kept, and so many bytes; then the user waits until half is gone.
        """
        for count, data in ((limits.TRANSPORT_RECORDS, b""), (16, bytes(65536))):
            self.connect(evolve(self.parameters, mtu=4096))
            posted = 0
            while self.connection.post(SEND_ONLY, b"", data, len(data), posted + 1, self.now):
                posted += 1
            self.assertEqual(posted, count)
            psn = 0xFFFFFE
            while not self.end.resumptions:
                sent = self.brief()
                psn = sent[-1][1]
                self.acknowledge(ACK, psn)
            self.assertLessEqual(posted - self.end.done[-1], count // 2)
            self.assertTrue(self.connection.post(SEND_ONLY, b"", data, len(data), posted + 1, self.now))
            self.acknowledge(ACK, self.brief()[-1][1])
            self.assertEqual(self.end.resumptions, 1)

    def test_modifyRetries(self) -> None:
        """
        How often it is tried can be said later, too.
        """
        self.post(SEND_ONLY)
        self.brief()
        self.connection.modify(evolve(self.parameters, retries=0))
        self.acknowledge(SEQUENCE, A)
        self.assertEqual(self.end.refusals, [(1, SILENT)])

    def test_modify(self) -> None:
        """
        The first PSN may be said later, until something is posted.
        """
        self.connection.modify(evolve(self.parameters, firstPSN=7))
        self.post(SEND_ONLY)
        self.assertEqual(self.brief(), [(4, 7)])
        self.connection.modify(evolve(self.parameters, firstPSN=9))
        self.post(SEND_ONLY)
        self.assertEqual(self.brief(), [(4, 8)])


class AcknowledgementTests(RequesterCase):
    """
    The effects of acknowledgements.
    """

    def test_cumulative(self) -> None:
        """
        An acknowledgement is one of all before it, too; a message is done with its last packet.
        """
        self.post(SEND_ONLY)
        self.post(SEND_ONLY, bytes(512))
        self.post(WRITE_ONLY, b"", RETH.pack(0, 0, 0))
        self.brief()
        self.acknowledge(ACK, B)
        self.assertEqual(self.end.done, [1])
        self.acknowledge(ACK, D)
        self.assertEqual(self.end.done, [1, 3])
        self.assertIsNone(self.connection.deadline())

    def test_old(self) -> None:
        """
        One that says nothing new, or is of what was never sent, changes nothing.
        """
        self.post(SEND_ONLY)
        self.brief()
        deadline = self.connection.deadline()
        for psn in (A - 1, B, C, A ^ 0x800000, 0):
            for syndrome in (ACK, RNR, SEQUENCE, NAK_REMOTE_ACCESS):
                self.acknowledge(syndrome, psn)
        self.assertEqual((self.end.done, self.end.refusals, self.brief()), ([], [], []))
        self.assertEqual(self.connection.deadline(), deadline)

    def test_neverSent(self) -> None:
        """
        A request that is posted and was not sent is not acknowledged.
        """
        self.post(SEND_ONLY)
        self.brief()
        self.post(SEND_ONLY)
        self.acknowledge(ACK, B)
        self.assertEqual(self.end.done, [])
        self.acknowledge(ACK, A)
        self.assertEqual((self.end.done, self.brief()), ([1], [(4, B)]))

    def test_credits(self) -> None:
        """
        An acknowledgement is one with any credit count.
        """
        for code in range(32):
            self.connect(self.parameters)
            self.post(SEND_ONLY)
            self.brief()
            self.acknowledge(code, A)
            self.assertEqual(self.end.done, [1])

    def test_reserved(self) -> None:
        """
        A reserved kind of syndrome is counted, and else nothing.
        """
        self.post(SEND_ONLY)
        self.brief()
        for syndrome in (0x40, 0x5F, 0x80, 0xFF):
            self.acknowledge(syndrome, A)
        self.respond(0x11, A, b"")
        self.respond(0x11, A, bytes(5))
        self.assertEqual(self.end.counts["responses_malformed"], 6)
        self.assertEqual((self.end.done, self.end.refusals), ([], []))

    def test_sequence(self) -> None:
        """
        A NAK of the sequence acknowledges what is before it; what is not is sent again.
        """
        for _ in range(4):
            self.post(SEND_ONLY)
        self.brief()
        self.acknowledge(SEQUENCE, B)
        self.assertEqual(self.end.done, [1])
        self.assertEqual(self.brief()[0], (4, B))
        self.assertEqual(self.end.counts["rcvd_seq_err"], 1)

    def test_sequenceTwice(self) -> None:
        """
        Packets on their way again are not sent again for a second NAK within a round trip; for one
        after that they are.
        """
        self.connect(evolve(self.parameters, roundTrip=0.1))
        self.post(SEND_ONLY)
        self.post(SEND_ONLY)
        self.brief()
        for later, packets in ((0.0, 2), (0.09, 0), (0.02, 2)):
            self.now += later
            self.acknowledge(SEQUENCE, A)
            self.assertEqual(len(self.brief()), packets)

    def test_withinMessage(self) -> None:
        """
        The NAK may be of the middle of a message.
        """
        self.post(SEND_ONLY, bytes(1000))
        self.brief()
        self.acknowledge(SEQUENCE, C)
        self.assertEqual(self.brief(), [(1, C), (2, D)])

    def test_noRetries(self) -> None:
        """
        With C{retry_cnt} 0 a loss is the end.
        """
        self.connect(evolve(self.parameters, retries=0))
        self.post(SEND_ONLY)
        self.post(SEND_ONLY)
        self.brief()
        self.acknowledge(SEQUENCE, B)
        self.assertEqual((self.end.done, self.end.refusals), ([1], [(2, SILENT)]))
        self.assertEqual((self.brief(), self.connection.deadline()), ([], None))

    def test_retriesWithoutTimeout(self) -> None:
        """
        Without a timeout it is NAKs that retries are counted by.
        """
        self.connect(evolve(self.parameters, retries=2, timeout=None))
        self.post(SEND_ONLY)
        for _ in range(3):
            self.assertEqual(self.end.refusals, [])
            self.brief()
            self.now += 1
            self.acknowledge(SEQUENCE, A)
        self.assertEqual(self.end.refusals, [(1, SILENT)])

    def test_fatal(self) -> None:
        """
        The other NAKs end it: what is before is done.
        """
        for syndrome, said in (
            (0x61, NAK_INVALID_REQUEST),
            (0x62, NAK_REMOTE_ACCESS),
            (0x63, NAK_REMOTE_OPERATIONAL),
            (0x64, NAK_REMOTE_OPERATIONAL),
            (0x7F, NAK_REMOTE_OPERATIONAL),
        ):
            self.connect(self.parameters)
            self.post(SEND_ONLY)
            self.post(SEND_ONLY, bytes(1000))
            self.brief()
            self.acknowledge(syndrome, C)
            self.assertEqual((self.end.done, self.end.refusals), ([1], [(2, said)]))
            self.assertIsNone(self.connection.deadline())
            self.acknowledge(ACK, C)
            self.assertEqual(self.end.done, [1])
            self.assertTrue(self.connection.post(SEND_ONLY, b"", b"", 0, 3, self.now))
            self.assertFalse(self.connection.pending())


class ReceiverNotReadyTests(RequesterCase):
    """
    The peer has no receive.
    """

    def test_wait(self) -> None:
        """
        It waits for as long as the code says (12: 0.64 ms), whatever comes, and sends that packet
        and what is behind it again.
        """
        for _ in range(3):
            self.post(SEND_ONLY)
        self.brief()
        self.acknowledge(RNR | 12, B)
        self.assertEqual(self.end.done, [1])
        self.assertFalse(self.connection.pending())
        deadline = self.connection.deadline()
        assert deadline is not None
        self.assertAlmostEqual(deadline, self.now + 0.00064)
        self.acknowledge(SEQUENCE, B)  # As rxe's peer hears, for the rest of the burst.
        self.acknowledge(RNR | 12, B)
        self.connection.tick(self.now)
        self.assertEqual(self.brief(), [])
        self.now += 0.00065
        self.connection.tick(self.now)
        self.assertEqual(self.brief(), [(4, B), (4, C)])
        self.assertEqual(self.end.counts["rcvd_rnr_err"], 2)

    def _refuse(self, times: int) -> None:
        """
        Send, and be refused, so many times.
        """
        for _ in range(times):
            self.assertEqual(self.brief(), [(4, A)])
            self.acknowledge(RNR | 1, A)
            self.now += 0.001
            self.connection.tick(self.now)

    def test_exhausted(self) -> None:
        """
        C{rnr_retry} times it is sent again.
        """
        for retries in (0, 1, 6):
            self.connect(evolve(self.parameters, rnrRetries=retries))
            self.post(SEND_ONLY)
            self._refuse(retries)
            self.assertEqual(self.end.refusals, [])
            self._refuse(1)
            self.assertEqual(self.end.refusals, [(1, RNR_EXHAUSTED)])
            self.assertIsNone(self.connection.deadline())

    def test_forEver(self) -> None:
        """
        Seven is for ever.
        """
        self.post(SEND_ONLY)
        self._refuse(100)
        self.assertEqual(self.end.refusals, [])

    def test_progress(self) -> None:
        """
        A request that is done gives the next one all its retries.
        """
        self.connect(evolve(self.parameters, rnrRetries=1))
        self.post(SEND_ONLY)
        self.post(SEND_ONLY)
        self.brief()
        for psn in (A, B):
            self.acknowledge(RNR | 1, psn)
            self.now += 0.001
            self.connection.tick(self.now)
            self.brief()
        self.assertEqual(self.end.refusals, [])

    def test_lateAcknowledgement(self) -> None:
        """
        If it was taken after all, nothing is waited for.
        """
        self.post(SEND_ONLY)
        self.brief()
        self.acknowledge(RNR | 1, A)
        self.acknowledge(ACK, A)
        self.assertEqual((self.end.done, self.connection.deadline()), ([1], None))


class SilenceTests(RequesterCase):
    """
    The peer does not answer.
    """

    def test_probes(self) -> None:
        """
        The oldest packet is sent again, at growing intervals, and asks to be acknowledged.
        """
        self.connect(evolve(self.parameters, roundTrip=0.001, timeout=1.0))
        self.post(SEND_ONLY, bytes(1000))
        self.assertEqual(len(self.brief()), 4)
        times = []
        for _ in range(5):
            deadline = self.connection.deadline()
            assert deadline is not None
            times.append(deadline - self.now)
            self.now = deadline
            self.connection.tick(self.now)
            self.assertEqual([packet[:3] for packet in self.sent()], [(0, ASK, A)])
        for found, wanted in zip(times, (0.01, 0.01, 0.012, 0.024, 0.048), strict=True):
            self.assertAlmostEqual(found, wanted)

    def test_exhausted(self) -> None:
        """
        After eight timeouts, with C{retry_cnt} 7, it is over; not before.
        """
        self.post(SEND_ONLY)
        self.brief()
        self.later(8 * 0.5 - 0.001)
        self.assertEqual(self.end.refusals, [])
        self.later(0.002)
        self.assertEqual(self.end.refusals, [(1, SILENT)])
        self.assertIsNone(self.connection.deadline())

    def test_noRetries(self) -> None:
        """
        With C{retry_cnt} 0 nothing is sent again, and one timeout is all.
        """
        self.connect(evolve(self.parameters, retries=0))
        self.post(SEND_ONLY)
        self.brief()
        self.assertEqual(self.connection.deadline(), self.now + 0.5)
        self.later(0.5)
        self.assertEqual(self.end.refusals, [(1, SILENT)])

    def test_slept(self) -> None:
        """
        A process that was stopped for an hour does not blame its peer.
        """
        self.post(SEND_ONLY)
        self.brief()
        self.later(1.0)
        self.now += 3600
        self.connection.tick(self.now)
        self.assertEqual(self.brief(), [(4, A)])
        self.later(2.0)
        self.assertEqual(self.end.refusals, [])
        self.later(2.0)
        self.assertEqual(self.end.refusals, [(1, SILENT)])

    def test_gone(self) -> None:
        """
        Of a peer that is gone the second timeout without progress is the last: at the first its answer may
        wait to be read.  One that comes late, as after a stall, does not count.
        """
        self.connect(evolve(self.parameters, roundTrip=0.01, timeout=1.0))

        def tick(late: float = 0.0) -> list[tuple[int, int]]:
            deadline = self.connection.deadline()
            assert deadline is not None
            self.now = deadline + late
            self.connection.tick(self.now, True)
            return self.brief()

        self.post(SEND_ONLY)
        self.post(SEND_ONLY)
        self.brief()
        self.assertEqual(tick(), [(4, A)])
        self.assertEqual(tick(5.0), [(4, A)])
        self.now += 0.001
        self.acknowledge(ACK, A)
        self.assertEqual(self.brief(), [(4, B)])
        self.assertEqual(tick(), [(4, B)])
        self.assertEqual((self.end.done, self.end.refusals), ([1], []))
        self.assertEqual((tick(), self.end.refusals), ([], [(2, SILENT)]))

    def test_pushedBack(self) -> None:
        """
        The time to send again counts from what was acknowledged last.
        """
        self.connect(evolve(self.parameters, roundTrip=0.01, timeout=1.0))  # 30 ms
        for _ in range(3):
            self.post(SEND_ONLY)
        self.brief()
        begun = self.now
        for psn in (A, B):
            self.later(0.02)
            self.acknowledge(ACK, psn)
        deadline = self.connection.deadline()
        assert deadline is not None
        self.assertLess(deadline, begun + 0.1)
        self.later(0.02)
        self.assertEqual(self.end.counts["completer_retry_err"], 0)
        self.later(0.1)
        self.assertGreater(self.end.counts["completer_retry_err"], 0)

    def test_never(self) -> None:
        """
        Without a timeout it never is, but it is sent again.
        """
        self.connect(evolve(self.parameters, timeout=None))
        self.post(SEND_ONLY)
        self.brief()
        self.later(100000.0)
        self.assertEqual(self.end.refusals, [])
        self.assertGreater(self.end.counts["completer_retry_err"], 1000)

    def test_progress(self) -> None:
        """
        An acknowledgement of anything new begins the time anew; one of nothing new does not.
        """
        for _ in range(3):
            self.post(SEND_ONLY)
        self.brief()
        for psn in (A, B):
            self.later(3.9)
            self.acknowledge(ACK, psn)
            self.brief()
        self.later(3.9)
        self.acknowledge(ACK, B)
        self.assertEqual(self.end.refusals, [])
        self.later(0.2)
        self.assertEqual(self.end.refusals, [(3, SILENT)])

    def test_shortest(self) -> None:
        """
        A timeout of microseconds counts as L{limits.TRANSPORT_RESEND_LEAST}.
        """
        self.connect(evolve(self.parameters, timeout=8.192e-6, retries=1))
        self.post(SEND_ONLY)
        self.brief()
        self.later(2 * limits.TRANSPORT_RESEND_LEAST - 0.001)
        self.assertEqual(self.end.refusals, [])
        self.later(0.002)
        self.assertEqual(self.end.refusals, [(1, SILENT)])

    def test_longest(self) -> None:
        """
        The pause between two attempts has a bound, if the round trip is not longer.
        """
        for roundTrip, most in ((0.001, sendwindow.TRANSPORT_RESEND_MOST), (4.0, 12.0)):
            self.connect(evolve(self.parameters, roundTrip=roundTrip, timeout=1000.0))
            self.post(SEND_ONLY)
            self.brief()
            self.later(500.0)
            deadline = self.connection.deadline()
            assert deadline is not None
            self.assertLessEqual(deadline - self.now, most)

    def test_drained(self) -> None:
        """
        When all is done nothing is waited for.
        """
        self.post(SEND_ONLY)
        self.assertIsNone(self.connection.deadline())
        self.brief()
        self.assertIsNotNone(self.connection.deadline())
        self.acknowledge(ACK, A)
        self.assertIsNone(self.connection.deadline())
        self.assertFalse(self.connection.pending())


class AnswerTests(RequesterCase):
    """
    Answers to READs and atomics.
    """

    def test_read(self) -> None:
        """
        Three packets are an answer; SENDs before it are done by its first one.
        """
        self.post(SEND_ONLY)
        self.read(513)
        self.brief()
        self.respond(0x0D, B, b"\x1f\0\0\2" + b"a" * 256)
        self.assertEqual(self.end.done, [1])
        self.respond(0x0E, C, b"b" * 256)
        self.respond(0x0F, D, b"\x1f\0\0\2c")
        self.assertEqual(self.end.done, [1, 2])
        self.assertEqual(self.end.answers, {2: b"a" * 256 + b"b" * 256 + b"c"})

    def test_empty(self) -> None:
        """
        A READ of nothing has an answer of one packet.
        """
        self.read(0)
        self.brief()
        self.respond(0x10, A, b"\x1f\0\0\1")
        self.assertEqual(self.end.answers, {1: b""})

    def test_atomic(self) -> None:
        """
        An atomic's answer is what was there.
        """
        self.end.atomic(8, 1, 1)
        self.brief()
        self.respond(ATOMIC_ACKNOWLEDGE, A, b"\x1f\0\0\1" + b"previous")
        self.assertEqual((self.end.answers, self.end.done), ({1: b"previous"}, [1]))

    def test_atomicWrite(self) -> None:
        """
        An ATOMIC WRITE is one packet with its value, and is answered by a READ response of no bytes.
        """
        self.end.atomicWrite(0x1000, b"8 octets", 1)
        header = bytes.fromhex("0000000000001000 00000007 00000008") + b"8 octets"
        self.assertEqual(self.sent(), [(0x1D, ASK, A, header, b"")])
        self.respond(0x10, A, b"\x1f\0\0\1")
        self.assertEqual((self.end.answers, self.end.done), ({1: b""}, [1]))
        for code, data in ((0x10, bytes(8)), (0x0D, b""), (ATOMIC_ACKNOWLEDGE, bytes(8)), (0x0E, b"")):
            self.connect(self.parameters)
            self.end.atomicWrite(0x1000, b"8 octets", 1)
            self.brief()
            self.respond(code, A, (b"" if code == 0x0E else b"\x1f\0\0\1") + data)
            self.assertEqual(self.end.refusals, [(1, BAD_RESPONSE)], hex(code))

    def test_missing(self) -> None:
        """
        When a part is missing, the rest is read again, from there, once.
        """
        self.read(1000)
        self.brief()
        self.respond(0x0D, A, b"\x1f\0\0\1" + bytes(256))
        self.respond(0x0E, C, bytes(256))
        self.assertEqual(self.sent(), [(0x0C, ASK, B, RETH.pack(0x1100, 7, 744), b"")])
        self.respond(0x0F, D, b"\x1f\0\0\1" + bytes(232))
        self.assertEqual(self.sent(), [])
        self.respond(0x0D, B, b"\x1f\0\0\1" + bytes(256))
        self.respond(0x0E, C, bytes(256))
        self.respond(0x0F, D, b"\x1f\0\0\1" + bytes(232))
        self.assertEqual((self.end.done, self.end.refusals), ([1], []))

    def test_missingCame(self) -> None:
        """
        A missing part comes before it is asked for: the part that is still missing is asked for.
        """
        self.read(1000)
        self.brief()
        self.respond(0x0D, A, b"\x1f\0\0\1" + bytes(256))
        self.respond(0x0E, C, bytes(256))
        self.respond(0x0E, B, bytes(256))
        self.assertEqual(self.sent(), [(0x0C, ASK, C, RETH.pack(0x1200, 7, 488), b"")])

    def test_implied(self) -> None:
        """
        An acknowledgement of what is behind a READ says that its answer was lost (IBTA vol. 1
        9.7.5.1.2): it does not complete it.
        """
        self.read(10)
        self.post(SEND_ONLY)
        self.brief()
        self.acknowledge(ACK, B)
        self.assertEqual(self.end.done, [])
        self.assertEqual(self.brief(), [(0x0C, A), (0x04, B)])

    def test_repeated(self) -> None:
        """
        An answer that comes twice is taken once.
        """
        self.read(300)
        self.brief()
        for _ in range(2):
            self.respond(0x0D, A, b"\x1f\0\0\1" + b"a" * 256)
        for _ in range(2):
            self.respond(0x0F, B, b"\x1f\0\0\1" + b"b" * 44)
        self.assertEqual(self.end.answers, {1: b"a" * 256 + b"b" * 44})

    def test_bad(self) -> None:
        """
        A packet that does not belong where its number is ends it.
        """
        aeth = b"\x1f\0\0\1"
        for psn, code, data in (
            (A, 0x0D, aeth + bytes(255)),
            (A, 0x0D, aeth + bytes(257)),
            (A, 0x0D, b"\x61\0\0\1" + bytes(256)),
            (A, 0x0D, b""),
            (A, 0x0E, bytes(256)),
            (A, 0x0F, aeth + bytes(256)),
            (A, 0x10, aeth + bytes(256)),
            (A, ATOMIC_ACKNOWLEDGE, aeth + bytes(8)),
            (B, 0x0D, aeth + bytes(256)),
            (B, 0x0F, aeth + bytes(256)),
            (B, 0x0E, bytes(255)),
            (B, 0x0E, bytes(257)),
            (C, 0x0E, bytes(1)),
            (C, 0x0F, aeth),
            (C, 0x0F, aeth + bytes(2)),
            (D, 0x10, aeth + bytes(8)),
            (D, ATOMIC_ACKNOWLEDGE, aeth + bytes(7)),
            (D, ATOMIC_ACKNOWLEDGE, b"\x21\0\0\1" + bytes(8)),
        ):
            self.connect(self.parameters)
            self.read(513)
            self.end.atomic(8, 1, 2)
            self.brief()
            if psn != A:
                self.respond(0x0D, A, aeth + bytes(256))
            if psn in (C, D):
                self.respond(0x0E, B, bytes(256))
            if psn == D:
                self.respond(0x0F, C, aeth + bytes(1))
            self.respond(code, psn, data)
            self.assertEqual(
                self.end.refusals, [(2 if psn == D else 1, BAD_RESPONSE)], (hex(psn), hex(code), data)
            )

    def test_notAsked(self) -> None:
        """
        An answer to a SEND is bad, too; to nothing it is nothing.
        """
        self.respond(0x10, A, b"\x1f\0\0\1")
        self.post(SEND_ONLY)
        self.respond(0x10, A, b"\x1f\0\0\1")
        self.assertEqual(self.end.refusals, [])
        self.brief()
        self.respond(0x10, A, b"\x1f\0\0\1")
        self.assertEqual(self.end.refusals, [(1, BAD_RESPONSE)])
