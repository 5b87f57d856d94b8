"""
Tests for L{twisted_ib.hca.transport.responder}: what it does with requests, and its responses.
"""

from __future__ import annotations

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from tests.hca.transport.pair import TERMS, End
from twisted_ib.hca.base.operation import ABSENT, LATER, SOLICITED
from twisted_ib.hca.transport import responder
from twisted_ib.hca.transport.parameters import ConnectionParameters, Packet
from twisted_ib.hca.transport.reliable import ReliableConnection
from twisted_ib.hca.transport.responder import INVALID, TRANSPORT_DEFERRED
from twisted_ib.hca.wire.headers import ATOMIC, NAK_REMOTE_ACCESS, RETH
from twisted_ib.hca.wire.opcodes import OPCODES, Kind

#: The first numbers that are expected in these tests: the third wraps.
A, B, C, D = 0xFFFFFE, 0xFFFFFF, 0x000000, 0x000001


def acknowledge(syndrome: int, psn: int, msn: int) -> Packet:
    """
    An acknowledgement as a packet.
    """
    return 0x11, 0, psn, bytes([syndrome, 0, 0, msn]), b""


class ResponderCase(SynchronousTestCase):
    """
    A responder that expects 2^24 - 2, of path MTU 256, and its literal packets.
    """

    parameters = evolve(TERMS, peerReads=2)

    def setUp(self) -> None:
        self.connect(self.parameters)

    def connect(self, parameters: ConnectionParameters) -> None:
        """
        Begin anew.
        """
        self.end = End()
        self.connection = self.end.connection = ReliableConnection(parameters, 18, self.end)

    def request(self, code: int, psn: int, data: bytes = b"", ask: bool = True) -> None:
        """
        A request comes.
        """
        self.connection.receive(code, psn & 0xFFFFFF, ask, data, 0, len(data), 0.0)

    def read(self, psn: int, length: int, address: int = 0x1000, key: int = 7) -> None:
        """
        A READ comes.
        """
        self.request(0x0C, psn, RETH.pack(address, key, length))

    def add(self, psn: int, operand: int = 1) -> None:
        """
        A fetch-and-add of the bytes at 8 comes.
        """
        self.request(0x14, psn, ATOMIC.pack(8, 7, operand, 0))

    def sent(self, budget: int = 1000) -> list[Packet]:
        """
        The packets it sends now.
        """
        out = self.connection.outputs(budget, 0.0)
        return [(code, flags, psn, header, bytes(body)) for code, flags, psn, header, body in out]

    def memory(self, start: int, length: int) -> bytes:
        """
        The bytes that READs find.
        """
        return bytes(self.end.memory[start : start + length])


class RequestTests(ResponderCase):
    """
    SENDs and WRITEs.
    """

    def test_send(self) -> None:
        """
        A SEND is delivered and acknowledged; the MSN counts messages.
        """
        self.request(0x04 | SOLICITED, A, b"hello")
        self.assertEqual(self.end.records, [(0x04 | SOLICITED, b"hello")])
        self.assertEqual(self.sent(), [acknowledge(0x1F, A, 1)])
        self.assertFalse(self.connection.pending())

    def test_merged(self) -> None:
        """
        One acknowledgement is for all that has come.
        """
        self.request(0x04, A)
        self.request(0x00, B, bytes(256), False)
        self.request(0x02, C, b"x")
        self.request(0x00, D, bytes(256), False)
        self.assertEqual(self.sent(), [acknowledge(0x1F, D, 2)])

    def test_deferred(self) -> None:
        """
        A patient caller gets no acknowledgement before so many packets have come; any other at once.
        """
        for psn in range(A, A + TRANSPORT_DEFERRED):
            self.assertEqual(self.connection.outputs(1000, 0.0, True), [], psn)
            self.request(0x04, psn)
        (found,) = self.connection.outputs(1000, 0.0, True)
        self.assertEqual(found, acknowledge(0x1F, 13, 16))
        self.request(0x04, A + TRANSPORT_DEFERRED)
        self.assertEqual(self.connection.outputs(1000, 0.0, True), [])
        self.assertEqual(self.sent(), [acknowledge(0x1F, 14, 17)])

    def test_deferredLong(self) -> None:
        """
        A long packet's is not deferred, even where an acknowledgement is owed, for few make a window; nor
        does it go before the response to a READ.
        """
        self.connect(evolve(self.parameters, mtu=61440))
        self.request(0x04, A, b"x")
        self.assertEqual(self.connection.outputs(1000, 0.0, True), [])
        self.request(0x04, B, bytes(61440))
        self.assertEqual(self.connection.outputs(1000, 0.0, True), [acknowledge(0x1F, B, 2)])
        self.request(0x04, C, b"x")
        self.assertEqual(self.connection.outputs(1000, 0.0, True), [])
        self.connect(evolve(self.parameters, mtu=61440))
        self.end.isHolding = True
        self.read(A, 100)
        self.request(0x04, B, bytes(61440))
        self.assertFalse(self.connection.pending())
        self.assertEqual(self.connection.outputs(1000, 0.0, True), [])

    def test_notAsked(self) -> None:
        """
        A request without AckReq gets no acknowledgement.
        """
        self.request(0x04, A, b"", False)
        self.assertEqual((self.sent(), len(self.end.messages)), ([], 1))

    def test_early(self) -> None:
        """
        An early packet is refused once, until the expected one comes.
        """
        self.request(0x04, B)
        self.request(0x04, C)
        self.assertEqual(self.sent(), [acknowledge(0x60, A, 0)])
        self.request(0x04, D)
        self.assertEqual((self.sent(), self.end.records), ([], []))
        self.assertEqual(self.end.counts["out_of_seq_request"], 3)
        self.request(0x04, A)
        self.request(0x04, C)
        self.assertEqual(self.sent(), [acknowledge(0x60, B, 1)])

    def test_overtaken(self) -> None:
        """
        If the expected one comes before the refusal goes, none goes.
        """
        self.request(0x04, B)
        self.request(0x04, A)
        self.assertEqual(self.sent(), [acknowledge(0x1F, A, 1)])

    def test_overtakenAmidst(self) -> None:
        """
        Nor does one if Middle packets, which come together, were the expected ones.
        """
        self.request(0x00, A, bytes(256), False)
        self.request(0x01, C, bytes(256), False)
        self.assertTrue(self.connection.responder.continued(0x01, B, False, [bytes(256)] * 2))
        self.assertEqual(self.sent(), [])
        self.request(0x02, D, b"x")
        self.assertEqual(self.sent(), [acknowledge(0x1F, D, 1)])

    def test_duplicate(self) -> None:
        """
        A duplicate is acknowledged again, though it does not ask, and not executed.
        """
        self.request(0x04, A)
        self.request(0x04, B)
        self.sent()
        self.request(0x04, A, b"", False)
        self.assertEqual(self.sent(), [acknowledge(0x1F, B, 2)])
        self.assertEqual(len(self.end.messages), 2)
        self.assertEqual(self.end.counts["duplicate_request"], 1)

    def test_farAway(self) -> None:
        """
        Half of all numbers are before the expected one, and half behind it.
        """
        self.request(0x04, A + 0x7FFFFF)
        self.assertEqual(self.end.counts["out_of_seq_request"], 1)
        self.request(0x04, A - 0x800000)
        self.assertEqual(self.end.counts["duplicate_request"], 1)

    def test_sequences(self) -> None:
        """
        Each code after each beginning: what may follow is delivered, what may not is refused as
        an invalid request (IBTA vol. 1 9.7.4.1.3).
        """
        reth = RETH.pack(8, 7, 1 << 20)
        headers = {0x06: reth, 0x0A: reth, 0x0B: reth + bytes(4), 0x0C: RETH.pack(8, 7, 1)}
        for before in (None, 0x00, 0x06):
            for code, row in OPCODES.items():
                if code >= 0x20 or not row.isRequest or row.kind is Kind.FLUSH:
                    continue
                self.connect(self.parameters)
                inside = None
                if before is not None:
                    self.request(before, A, headers.get(before, b"") + bytes(256))
                    inside = OPCODES[before].kind
                    self.sent()
                psn = B if before is not None else A
                header = headers.get(code, bytes(row.layout.size))
                self.request(code, psn, header + bytes(256 if row.most is None else row.most))
                follows = row.begins if inside is None else not row.begins and row.kind is inside
                sent = self.sent()
                if follows:
                    self.assertNotEqual(self.end.records[-1][0], INVALID)
                    self.assertNotEqual(sent[0][3][0], 0x61)
                else:
                    self.assertEqual(self.end.records[-1], (INVALID, b""))
                    self.assertEqual(sent, [acknowledge(0x61, psn, 0)])

    def test_lengths(self) -> None:
        """
        First and Middle are of the path MTU; Last has at least a byte; none is longer.
        """
        for code, length, isRight in (
            (0x00, 255, False),
            (0x00, 257, False),
            (0x04, 0, True),
            (0x04, 256, True),
            (0x04, 257, False),
            (0x05, 3 - 4, False),
            (0x0C, 1, False),
            (0x0C, -1, False),
            (0x13, 1, False),
            (0x14, -28, False),
            (0x1D, 0, False),
            (0x1D, 7, False),
            (0x1D, 8, True),
            (0x1D, 9, False),
        ):
            self.connect(self.parameters)
            self.request(code, A, bytes(OPCODES[code].layout.size + length))
            self.assertEqual(self.end.records[-1][0] != INVALID, isRight, (code, length))
        for code, length, isRight in ((1, 255, False), (1, 256, True), (2, 0, False), (2, 257, False)):
            self.connect(self.parameters)
            self.request(0x00, A, bytes(256))
            self.request(code, B, bytes(length))
            self.assertEqual(self.end.records[-1][0] != INVALID, isRight, (code, length))

    def test_unknown(self) -> None:
        """
        Unassigned opcodes, those of other services and those that only fabrics of operations have
        are dropped.
        """
        for code in range(256):
            row = OPCODES.get(code & 0x7F)
            if row is None or code & 0x7F >= 0x20:
                self.request(code, A, bytes(16))
        self.assertEqual((self.end.records, self.sent()), ([], []))
        self.assertGreater(self.end.counts["opcode_unknown"], 190)

    def test_notDone(self) -> None:
        """
        What the user does not do is an invalid request, as FLUSH is.
        """
        self.request(0x1C, A, bytes(20))
        self.assertEqual(self.sent(), [acknowledge(0x61, A, 0)])


class RefusalTests(ResponderCase):
    """
    The user does not take a request.
    """

    def test_notReady(self) -> None:
        """
        Without a receive there is an RNR NAK; what follows is dropped in silence until the
        request comes again.
        """
        self.end.receives = 0
        self.request(0x04, A)
        self.request(0x04, B)
        self.assertEqual(self.sent(), [acknowledge(0x21, A, 0)])
        self.request(0x04, B)
        self.assertEqual(self.sent(), [])
        self.end.receives = 2
        self.request(0x04, A)
        self.request(0x04, B)
        self.assertEqual(self.sent(), [acknowledge(0x1F, B, 2)])

    def test_absent(self) -> None:
        """
        A queue pair that does not exist yet is silent.
        """
        self.end.syndrome = ABSENT
        self.request(0x04, A)
        self.assertEqual(self.sent(), [])
        self.end.syndrome = 0
        self.request(0x04, A)
        self.assertEqual(self.sent(), [acknowledge(0x1F, A, 1)])

    def test_fatal(self) -> None:
        """
        A refusal for good is said once, with the number of the request; then there is silence.
        """
        for syndrome, said in ((0x61, 0x61), (0x62, 0x62), (0x63, 0x63), (0x7E, 0x63), (0x99, 0x63)):
            self.connect(self.parameters)
            self.request(0x04, A)
            self.end.syndrome = syndrome
            self.request(0x04, B)
            self.request(0x04, B)
            self.request(0x04, A)
            self.request(0x04, D)
            self.assertEqual(self.sent(), [acknowledge(said, B, 1)])
            self.request(0x04, B)
            self.assertFalse(self.connection.pending())

    def test_laterAlone(self) -> None:
        """
        The same where nothing comes behind it.
        """
        self.end.isHolding = True
        self.read(A, 1)
        self.end.syndrome = LATER
        self.request(0x04, B)
        self.end.answer()
        self.assertEqual([packet[:3] for packet in self.sent()], [(0x10, 0, A), (0x11, 0, B)])
        self.assertFalse(self.connection.pending())

    def test_question(self) -> None:
        """
        The same with READs; one that was refused for a time is not remembered, and may come
        again as often as it likes.
        """
        for syndrome in (ABSENT, ABSENT, 0x2C, LATER, ABSENT):
            self.end.syndrome = syndrome
            self.read(A, 1)
            self.sent()
        self.end.syndrome = 0
        self.read(A, 1)
        self.assertEqual([packet[:3] for packet in self.sent()], [(0x10, 0, A)])
        self.request(0x04, B)
        self.assertEqual(self.sent(), [acknowledge(0x1F, B, 2)])
        self.end.syndrome = 0x62
        self.read(C, 1)
        self.assertEqual(self.sent(), [acknowledge(0x62, C, 2)])

    def test_closed(self) -> None:
        """
        Acknowledgements owed when the queue pair goes are still sent.
        """
        self.end.syndrome = 0x62
        self.request(0x04, A)
        self.connection.close()
        self.assertEqual(self.sent(), [acknowledge(0x62, A, 0)])
        self.request(0x04, A)
        self.assertEqual(len(self.end.records), 1)

    def test_later(self) -> None:
        """
        A refusal that waits for answers: when those are out, the request is asked for again.
        """
        self.end.isHolding = True
        self.read(A, 1)
        self.end.syndrome = LATER
        self.request(0x04, B)
        self.request(0x04, C)
        self.assertEqual(self.sent(), [])
        self.end.answer()
        self.assertEqual(
            self.sent(), [(0x10, 0, A, b"\x1f\0\0\1", self.memory(0x1000, 1)), acknowledge(0x60, B, 1)]
        )
        self.end.syndrome = 0x62
        self.request(0x04, B)
        self.assertEqual(self.sent(), [acknowledge(0x62, B, 1)])

    def test_laterDecided(self) -> None:
        """
        The request comes again by itself before the answers are out: then it is refused behind them, for
        what it is.
        """
        for said in (0x62, 0x2C):
            self.connect(self.parameters)
            self.end.isHolding = True
            self.read(A, 1)
            self.end.syndrome = LATER
            self.request(0x04, B)
            self.end.answer()
            self.end.syndrome = said
            self.request(0x04, B)
            self.assertEqual(self.sent()[1:], [acknowledge(said, B, 1)])


class AnswerTests(ResponderCase):
    """
    READs and atomics.
    """

    def test_read(self) -> None:
        """
        First, Middle and Last; the AETH says that the READ counts as done.
        """
        self.request(0x04, A)
        self.read(B, 513)
        self.assertEqual(
            self.sent(),
            [
                (0x0D, 0, B, b"\x1f\0\0\2", self.memory(0x1000, 256)),
                (0x0E, 0, C, b"", self.memory(0x1100, 256)),
                (0x0F, 0, D, b"\x1f\0\0\2", self.memory(0x1200, 1)),
                acknowledge(0x1F, D, 2),
            ],
        )

    def test_empty(self) -> None:
        """
        A READ of nothing is answered by one packet.
        """
        self.read(A, 0)
        self.assertEqual(self.sent(), [(0x10, 0, A, b"\x1f\0\0\1", b"")])

    def test_next(self) -> None:
        """
        The next request is the one behind the answer's numbers.
        """
        self.read(A, 512)
        self.sent()
        self.request(0x04, C)
        self.assertEqual(self.sent(), [acknowledge(0x1F, C, 2)])

    def test_sharedBudget(self) -> None:
        """
        Requests and responses share the budget, and go first in turn; one packet is left for responses.
        """
        for position in range(1, 6):
            self.connection.post(0x04, b"", b"x", 1, position, 0.0)
        self.read(A, 1024)
        for codes in ([0x04, 0x04, 0x0D], [0x0E, 0x0E, 0x0F], [0x04, 0x04]):
            self.assertEqual([code for code, *_ in self.sent(3)], codes)

    def test_budget(self) -> None:
        """
        A long answer goes as far as it may, and on.
        """
        self.read(A, 70000)
        sent: list[Packet] = []
        while self.connection.pending():
            out = self.sent(7)
            self.assertLessEqual(len(out), 7)
            sent += out
        self.assertEqual(len(sent), 274)
        self.assertEqual([packet[2] for packet in sent], [A + i & 0xFFFFFF for i in range(274)])
        self.assertEqual(b"".join(packet[4] for packet in sent), self.memory(0x1000, 70000))
        self.assertEqual({packet[0] for packet in sent[1:-1]}, {0x0E})
        self.assertEqual((sent[0][0], sent[-1][0]), (0x0D, 0x0F))

    def test_room(self) -> None:
        """
        No more than L{responder.TRANSPORT_ANSWERS} bytes wait.
        """
        self.patch(responder, "TRANSPORT_ANSWERS", 100000)
        self.read(A, 400000)
        waiting = 0
        while (out := self.sent(100)) and self.connection.pending():
            waiting += sum(len(packet[4]) for packet in out)
            if not self.end.resumptions:
                self.assertLess(waiting, 3 * 65536)
        self.assertGreater(self.end.resumptions, 2)
        before = self.end.resumptions
        self.sent()
        self.assertEqual(self.end.resumptions, before)

    def test_behind(self) -> None:
        """
        An acknowledgement does not overtake an answer; one of what is before it does not wait.
        """
        self.end.isHolding = True
        self.request(0x04, A)
        self.read(B, 1)
        self.request(0x04, C)
        self.assertEqual(self.sent(), [acknowledge(0x1F, A, 1)])
        self.assertFalse(self.connection.pending())
        self.end.answer()
        self.assertEqual([packet[:3] for packet in self.sent()], [(0x10, 0, B), (0x11, 0, C)])

    def test_nothingBefore(self) -> None:
        """
        If nothing before it waits for an acknowledgement, none goes.
        """
        self.end.isHolding = True
        self.request(0x04, A, b"", False)
        self.read(B, 1)
        self.request(0x04, C)
        self.assertEqual(self.sent(), [])

    def test_overtaken(self) -> None:
        """
        A READ that comes before the refusal of what is behind it goes: none goes.
        """
        self.request(0x04, B)
        self.read(A, 1)
        self.assertEqual([packet[:3] for packet in self.sent()], [(0x10, 0, A)])
        self.request(0x04, C)
        self.assertEqual([packet[:3] for packet in self.sent()], [(0x11, 0, B)])

    def test_modify(self) -> None:
        """
        How many are remembered can change.
        """
        self.connection.modify(evolve(self.parameters, peerReads=4))
        self.end.isHolding = True
        for psn in (A, B, C, D):
            self.add(psn)
        self.assertEqual(len(self.end.records), 4)
        self.end.answer()
        self.assertEqual(len(self.sent()), 4)

    def test_refusalBehind(self) -> None:
        """
        Nor does a refusal.
        """
        self.end.isHolding = True
        self.read(A, 1)
        self.request(0x04, C)
        self.assertEqual(self.sent(), [])
        self.end.answer()
        self.assertEqual([packet[:3] for packet in self.sent()], [(0x10, 0, A), (0x11, 0, B)])

    def test_gone(self) -> None:
        """
        The memory goes before the answer is out: that is a NAK behind what was sent.
        """
        self.end.isHolding = True
        self.read(A, 1)
        self.connection.responder.refuse(NAK_REMOTE_ACCESS)
        self.assertEqual(self.sent(), [acknowledge(0x62, A, 1)])
        self.connection.responder.refuse(NAK_REMOTE_ACCESS)
        self.assertEqual(self.sent(), [])

    def test_atomic(self) -> None:
        """
        An atomic that comes again is not executed again: the same answer goes.
        """
        before = self.memory(8, 8)
        self.add(A)
        first = self.sent()
        self.assertEqual(first, [(0x12, 0, A, b"\x1f\0\0\1" + before, b"")])
        self.add(B)
        self.sent()
        self.add(A)
        self.assertEqual(self.sent(), first)
        self.assertEqual(self.end.atomics, 2)

    def test_atomicWrite(self) -> None:
        """
        An ATOMIC WRITE that comes again is answered again and not executed again; if it has become another
        one or is cut short it is dropped.
        """
        header = RETH.pack(8, 7, 8)
        self.request(0x1D, A, header + b"8 octets")
        first = self.sent()
        self.assertEqual(first, [(0x10, 0, A, b"\x1f\0\0\1", b"")])
        self.request(0x1D, B, header + b"the next")
        self.sent()
        self.request(0x1D, A, header + b"8 octets")
        self.assertEqual((self.sent(), self.memory(8, 8), self.end.atomics), (first, b"the next", 2))
        self.request(0x1D, A, header + b"8 octet")
        self.request(0x14, A, ATOMIC.pack(8, 7, 1, 0))
        self.assertEqual((self.sent(), self.end.atomics), ([], 2))

    def test_forgotten(self) -> None:
        """
        Of READs and atomics as many are remembered as may be on the way; others are dropped.
        """
        for psn in (A, B, C):
            self.add(psn)
            self.sent()
        self.add(A)
        self.assertEqual((self.sent(), self.end.atomics), ([], 3))

    def test_tooMany(self) -> None:
        """
        More at a time than may be are an invalid request.
        """
        self.end.isHolding = True
        for psn in (A, B, C):
            self.add(psn)
        self.assertEqual(self.end.records[-1], (INVALID, b""))
        self.assertEqual(self.sent(), [acknowledge(0x61, C, 2)])

    def test_forgottenAgain(self) -> None:
        """
        A response that is repeated and not sent yet is forgotten, too, when the peer has so many
        new requests that it must have had the response.
        """
        self.read(A, 1)
        self.add(B)
        self.sent()
        self.read(A, 1)
        self.add(B)
        self.end.isHolding = True
        self.read(A, 1)
        for psn in (C, D):
            self.add(psn)
        self.end.answer()
        self.assertEqual([packet[0::2][:2] for packet in self.sent()], [(0x12, C), (0x12, D)])

    def test_busyAgain(self) -> None:
        """
        While as many are made again as may be, a new one is dropped: it comes again.
        """
        for psn in (A, B):
            self.read(psn, 1)
        self.sent()
        self.end.isHolding = True
        for psn in (A, B):
            self.read(psn, 1)
        self.sent()
        self.add(C)
        self.assertEqual(self.sent(), [])
        self.end.answer()
        self.sent()
        self.add(C)
        self.end.answer()
        self.assertEqual([packet[0] for packet in self.sent()], [0x12])

    def test_again(self) -> None:
        """
        A READ that comes again is read again, or the part of it that is asked for.
        """
        self.read(A, 1000)
        self.sent()
        self.end.memory[0x1100] ^= 0xFF
        self.read(B, 744, 0x1100)
        self.assertEqual(
            self.sent(),
            [
                (0x0D, 0, B, b"\x1f\0\0\1", self.memory(0x1100, 256)),
                (0x0E, 0, C, b"", self.memory(0x1200, 256)),
                (0x0F, 0, D, b"\x1f\0\0\1", self.memory(0x1300, 232)),
            ],
        )
        self.read(B, 256, 0x1100)
        self.assertEqual([packet[:3] for packet in self.sent()], [(0x10, 0, B)])

    def test_another(self) -> None:
        """
        With another key, from elsewhere or longer it is not the same READ, and is dropped.
        """
        self.read(A, 1000)
        self.sent()
        records = len(self.end.records)
        self.read(A, 1000, key=8)
        self.read(A, 1000, 0x1001)
        self.read(B, 1000, 0x1100)
        self.read(A, 1001)
        self.read(A - 1, 1000)
        self.add(A)
        self.request(0x0C, A, bytes(15))
        self.assertEqual((len(self.end.records), self.sent()), (records, []))

    def test_againAtOnce(self) -> None:
        """
        A part that has gone is asked for while the rest is still made: the rest is dropped, and
        what is asked for comes.
        """
        self.patch(responder, "TRANSPORT_ANSWERS", 65536)
        self.read(A, 200000)
        first = self.sent(10)
        self.assertEqual(len(first), 10)
        self.read(A + 2, 200000 - 512, 0x1200)
        self.assertEqual(sum(code == 0x0C for code, _ in self.end.records), 1)
        rest: list[Packet] = []
        while self.connection.pending():
            rest += self.sent(50)
        self.assertEqual(rest[0][:3], (0x0D, 0, C))
        self.assertEqual(b"".join(packet[4] for packet in rest), self.memory(0x1200, 200000 - 512))

    def test_stillToCome(self) -> None:
        """
        A response that has not gone yet need not be made again.
        """
        self.read(A, 1000)
        self.sent(2)
        self.read(C, 488, 0x1200)
        self.assertEqual([packet[2] for packet in self.sent()], [C, D])
        self.assertEqual(len(self.end.records), 1)

    def test_stillToBeMade(self) -> None:
        """
        Nor one of which the user has not made all yet, though what it has made has gone.
        """
        self.patch(responder, "TRANSPORT_ANSWERS", 65536)
        self.read(A, 200000)
        sent = self.sent()
        self.assertLess(len(sent), 600)
        self.read(A + 700, 200000 - 700 * 256, 0x1000 + 700 * 256)
        while self.connection.pending():
            sent += self.sent()
        self.assertEqual(sum(code == 0x0C for code, _ in self.end.records), 1)
        self.assertEqual(b"".join(packet[4] for packet in sent), self.memory(0x1000, 200000))

    def test_manyTimes(self) -> None:
        """
        However often it comes while its user does nothing, nothing grows.
        """
        self.end.isHolding = True
        self.read(A, 1000)
        self.end.answer()
        self.sent(1)
        for _ in range(1000):
            self.read(A, 1000)
            self.sent()
        self.assertEqual(len(self.end.records), 2)
        self.end.answer()
        self.assertEqual(len(self.sent()), 4)

    def test_withinMessage(self) -> None:
        """
        It may come again amidst a message that was behind it.
        """
        self.read(A, 1)
        self.request(0x00, B, bytes(256), False)
        self.sent()
        self.read(A, 1)
        self.request(0x02, C, b"x")
        self.assertEqual([packet[:3] for packet in self.sent()], [(0x10, 0, A), (0x11, 0, C)])
        self.assertEqual(self.end.messages[0][1], bytes(256) + b"x")

    def test_noLonger(self) -> None:
        """
        If it may not be read any more when it comes again, that ends it.
        """
        self.read(A, 1)
        self.sent()
        self.end.syndrome = NAK_REMOTE_ACCESS
        self.read(A, 1)
        self.assertEqual(self.sent(), [acknowledge(0x62, A, 1)])
