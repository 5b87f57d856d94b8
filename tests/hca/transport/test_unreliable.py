"""
Tests for L{twisted_ib.hca.transport.unreliable}.
"""

from __future__ import annotations

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from tests.hca.transport.pair import TERMS, End, Pair
from twisted_ib import limits
from twisted_ib.hca.base.operation import SOLICITED
from twisted_ib.hca.transport import unreliable
from twisted_ib.hca.transport.parameters import ConnectionParameters, Packet
from twisted_ib.hca.transport.unreliable import UnreliableConnection
from twisted_ib.hca.wire.headers import RETH
from twisted_ib.hca.wire.opcodes import SEND_ONLY, UNRELIABLE, WRITE_ONLY_IMMEDIATE, Kind

A, B, C, D = 0xFFFFFE, 0xFFFFFF, 0x000000, 0x000001


class SendingTests(SynchronousTestCase):
    """
    A record is done when it is sent.
    """

    def setUp(self) -> None:
        self.connect(TERMS)

    def connect(self, parameters: ConnectionParameters) -> None:
        """
        Begin anew.
        """
        self.end = End()
        self.connection = UnreliableConnection(parameters, 18, self.end)

    def sent(self, budget: int = 100) -> list[Packet]:
        """
        The packets it sends now.
        """
        out = self.connection.outputs(budget, 0.0)
        return [(code, flags, psn, header, bytes(body)) for code, flags, psn, header, body in out]

    def test_cut(self) -> None:
        """
        Packets have the codes of the service and ask for nothing.
        """
        self.connection.post(SEND_ONLY | UNRELIABLE | SOLICITED, b"", bytes(513), 513, 1, 0.0)
        self.connection.post(WRITE_ONLY_IMMEDIATE | UNRELIABLE, RETH.pack(1, 2, 0) + b"immd", b"", 0, 2, 0.0)
        self.assertTrue(self.connection.pending())
        self.assertEqual(
            self.sent(),
            [
                (0x20, 0, A, b"", bytes(256)),
                (0x21, 0, B, b"", bytes(256)),
                (0x22, 0x80, C, b"", b"\0"),
                (0x2B, 0, D, RETH.pack(1, 2, 0) + b"immd", b""),
            ],
        )
        self.assertEqual(self.end.done, [2])
        self.assertFalse(self.connection.pending())

    def test_budget(self) -> None:
        """
        A record is done when all of it is sent.
        """
        self.connection.post(SEND_ONLY | UNRELIABLE, b"", bytes(1024), 1024, 1, 0.0)
        self.assertEqual(len(self.sent(3)), 3)
        self.assertEqual(self.end.done, [])
        self.assertEqual(len(self.sent(3)), 1)
        self.assertEqual(self.end.done, [1])

    def test_room(self) -> None:
        """
        So many records wait, and so many bytes.
        """
        for count, data in ((limits.TRANSPORT_RECORDS, b""), (16, bytes(65536))):
            self.connect(evolve(TERMS, mtu=4096))
            posted = 0
            while self.connection.post(SEND_ONLY | UNRELIABLE, b"", data, len(data), posted + 1, 0.0):
                posted += 1
            self.assertEqual(posted, count)
            while self.connection.pending():
                self.sent()
            self.assertEqual(self.end.resumptions, 1)

    def test_time(self) -> None:
        """
        Nothing is waited for; what was not sent when the queue pair goes is not.
        """
        self.connection.post(SEND_ONLY | UNRELIABLE, b"", b"", 0, 1, 0.0)
        self.connection.tick(1e9)
        self.assertIsNone(self.connection.deadline())
        self.connection.close()
        self.assertEqual(self.sent(), [])

    def test_modify(self) -> None:
        """
        The first PSN may be said later.
        """
        self.connection.modify(evolve(TERMS, firstPSN=7))
        self.connection.post(SEND_ONLY | UNRELIABLE, b"", b"", 0, 1, 0.0)
        self.connection.modify(evolve(TERMS, firstPSN=9))
        self.assertEqual(self.sent()[0][2], 7)


class ReceivingTests(SynchronousTestCase):
    """
    A lost packet takes its message with it.
    """

    def setUp(self) -> None:
        self.end = End()
        self.connection = UnreliableConnection(TERMS, 18, self.end)

    def come(self, *packets: tuple[int, int, bytes]) -> list[int]:
        """
        Packets come: codes, PSNs and bytes.

        @return: the codes of those that were delivered.
        """
        for code, psn, data in packets:
            self.connection.receive(code, psn & 0xFFFFFF, True, data, 0, len(data), 0.0)
        self.assertFalse(self.connection.pending())
        return [code for code, _ in self.end.records]

    def test_message(self) -> None:
        """
        A message of three packets arrives; nothing is answered.
        """
        full = bytes(256)
        self.assertEqual(self.come((0x20, A, full), (0x21, B, full), (0x22, C, b"end")), [0x20, 0x21, 0x22])
        self.assertEqual(self.end.messages, [(Kind.SEND, full + full + b"end", b"")])

    def test_gap(self) -> None:
        """
        After a gap the rest of the message is dropped, and the next one is taken.
        """
        full = bytes(256)
        self.assertEqual(
            self.come((0x20, A, full), (0x22, C, b"end"), (0x21, D, full), (0x24, 9, b"next")), [0x20, 0x24]
        )
        self.assertEqual(self.end.counts["out_of_seq_request"], 2)

    def test_gapAtBeginning(self) -> None:
        """
        A message may begin with any number.
        """
        self.assertEqual(self.come((0x24, 0x700000, b"")), [0x24])
        self.assertEqual(self.come((0x24, 0x700001, b"")), [0x24, 0x24])

    def test_expected(self) -> None:
        """
        Only the next packet is the expected one.
        """
        for ahead, isExpected in ((-1, False), (0, True), (1, False), (1 << 23, False)):
            self.assertIs(self.connection.isExpected(0x24, A + ahead & 0xFFFFFF), isExpected, ahead)

    def test_copies(self) -> None:
        """
        A packet that comes again, or late, is dropped.
        """
        self.assertEqual(self.come((0x24, A, b""), (0x24, A, b""), (0x24, B, b"")), [0x24, 0x24])
        self.come((0x24, 0x10, b""), (0x24, C, b""))
        self.assertEqual(len(self.end.records), 3)
        self.come((0x24, 0x11 - unreliable.TRANSPORT_BEHIND, b""))
        self.assertEqual(len(self.end.records), 3)
        self.assertEqual(self.end.counts["duplicate_request"], 3)
        self.come((0x24, 0x10 - unreliable.TRANSPORT_BEHIND, b""))
        self.assertEqual(len(self.end.records), 4)

    def test_lengths(self) -> None:
        """
        A packet that is too long or too short is dropped, with the rest of its message.
        """
        for code, length in ((0x20, 255), (0x20, 257), (0x24, 257), (0x25, 3), (0x2A, 15)):
            self.assertEqual(self.come((code, A, bytes(length)), (0x22, B, b"x")), [])
            self.setUp()

    def test_sequence(self) -> None:
        """
        A Middle or Last needs a First of its kind.
        """
        full = bytes(256)
        for code in (0x21, 0x22, 0x23, 0x27, 0x28, 0x29):
            self.assertEqual(self.come((code, A, full)), [])
            self.setUp()
        self.assertEqual(self.come((0x20, A, full), (0x28, B, b"x")), [0x20])

    def test_others(self) -> None:
        """
        Codes of other services, and those that this one lacks, are dropped.
        """
        for code in range(256):
            if not 0x20 <= code & 0x7F <= 0x2B:
                self.assertEqual(self.come((code, A, bytes(28))), [])

    def test_wire(self) -> None:
        """
        Of a hundred messages, those arrive whole whose packets all do.
        """
        pair = Pair(unreliable=True)
        pair.fault = lambda sender, index, packet: [] if index % 17 == 5 else [(0.0, packet)]
        for i in range(100):
            data = bytes([i]) * (i * 9)
            pair.connections[0].post(SEND_ONLY | UNRELIABLE, b"", data, len(data), i + 1, pair.now)
        # The core drops what has begun when another message begins; so does this one.
        pair.run()
        self.assertEqual(pair.ends[0].done[-1], 100)
        found = [data for _, data, _ in pair.ends[1].messages]
        self.assertGreater(len(found), 75)
        for data in found:
            self.assertEqual(data, data[:1] * (data[0] * 9 if data else 0))
