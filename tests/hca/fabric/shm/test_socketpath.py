"""
Tests for L{twisted_ib.hca.fabric.shm.socketpath}: what is special to sockets; the rest
is in L{tests.contracts}.
"""

from __future__ import annotations

import os
import random
import socket
from functools import partial
from typing import Any

from tests.hca.hcas import SDP, HCATestCase, Taker, User, readable, settle, turn
from tests.support.descriptors import descriptors, descriptorsBefore
from twisted_ib import limits
from twisted_ib.errors import HandshakeError, PathLostError
from twisted_ib.hca.base.operation import MANAGEMENT, MANAGEMENT_HEADER, word
from twisted_ib.hca.fabric.shm import socketpath
from twisted_ib.hca.fabric.shm.shm import SharedMemoryFabric
from twisted_ib.hca.fabric.shm.socketpath import ASK, HEADER, NEWS, SocketPath
from twisted_ib.hca.host.fdpassing import sendWithDescriptors
from twisted_ib.hca.wire.headers import RNR
from twisted_ib.hca.wire.opcodes import SEND_ONLY


class CarrierTestCase(HCATestCase):
    """
    Two HCAs with a socket between them.
    """

    fabric = partial(SharedMemoryFabric, rings=False)

    def setUp(self) -> None:
        """
        Join them.
        """
        super().setUp()
        self.a, self.b, self.one, self.two = self.takers()
        self.path, self.other = self.one.path, self.two.path
        self.assertIsInstance(self.path, SocketPath)

    def packets(self, taker: Taker) -> list[tuple[int, int, int, int]]:
        """
        @return: a list that gets the header of each packet that is sent.
        """
        found: list[tuple[int, int, int, int]] = []
        send: Any = taker.path._send

        def spy(pieces: list[Any], *arguments: Any) -> Any:
            """
            Send, and remember.
            """
            result = send(pieces, *arguments)
            found.append(HEADER.unpack(pieces[0]))
            return result

        taker.path._send = spy
        return found


class PacketTests(CarrierTestCase):
    """
    Sent packets.
    """

    def test_literal(self) -> None:
        """
        A packet is length, word, flags and count, little endian, then the
        record.
        """
        self.two.post(b"x")
        settle(self.a)
        self.one.post(b"abc")
        found = self.other._socket.recv(100)
        self.assertEqual(found.hex(), "0300000015000004000000000100000000000000616263")

    def test_nobodyAsks(self) -> None:
        """
        Where nobody keeps what it sent there are no packets but records.
        """
        back = self.packets(self.two)
        for n in range(500):
            self.one.post(b"%d" % n)
            turn(self.a)
            turn(self.b)
        settle(self.a, self.b)
        self.assertEqual((len(self.two.records), back), (500, []))

    def test_news(self) -> None:
        """
        A side that asks for an acknowledgement gets one, at the end of the peer's batch.
        """
        there, back = self.packets(self.one), self.packets(self.two)
        for n in range(10):
            self.one.postKept(b"%d" % n)
        settle(self.a, self.b)
        self.assertEqual(there[10:], [(0, 0, ASK | NEWS, 0)])
        self.assertEqual(back, [(0, 0, NEWS, 10)])
        self.assertEqual(len(self.one.said("acknowledged")), 10)

    def test_asking(self) -> None:
        """
        Where requesters are known to keep what they sent, records ask
        themselves.
        """
        self.path.requesters[21] = self.one
        there, back = self.packets(self.one), self.packets(self.two)
        for n in range(10):
            self.one.postKept(b"%d" % n)
        settle(self.a, self.b)
        self.assertEqual([flags for _, _, flags, _ in there], [ASK] * 10)
        self.assertEqual(back, [(0, 0, NEWS, 10)])
        self.assertEqual(len(self.one.said("acknowledged")), 10)

    def test_rides(self) -> None:
        """
        An answer carries the acknowledgement of what came before its cause.
        """
        self.two.upcall = lambda data: self.two.post(b"re")
        back = self.packets(self.two)
        for n in range(5):
            self.one.post(b"%d" % n)
            settle(self.a, self.b)
        self.assertEqual([taken for _, _, _, taken in back], [0, 1, 2, 3, 4])

    def test_reserves(self) -> None:
        """
        Each kind of record stops where it should, and refusals at the end.
        """
        size = self.path._size
        while self.one.post(b"x"):
            pass
        self.assertTrue(size // 2 < self.path._used <= size // 2 + 2048)
        while self.path.postReserved(word(SEND_ONLY, 21), b"x", False):
            pass
        self.assertTrue(size // 4 * 3 < self.path._used <= size // 4 * 3 + 2048)
        n = 0
        while self.path.postReserved(word(SEND_ONLY, 21), b"x", True):
            n += 1
        self.assertTrue(n * 1024 >= size // 8)
        self.assertFalse(self.path.postReserved(word(SEND_ONLY, 21), b"x", True))
        settle(self.a, self.b)
        self.assertEqual(len(self.two.records), self.path.position())

    def test_owed(self) -> None:
        """
        A refusal for which the kernel has no room is sent later; until then
        nothing is read, and the descriptor does not call for it.
        """
        while self.path.postReserved(word(SEND_ONLY, 21), b"x" * 1000, True):
            pass
        self.one.answers.append(RNR)
        position = self.two.postKept(b"refuse me")
        self.two.post(b"later")
        self.b.fabric.ringBells()
        for _ in range(5):
            turn(self.a)
        self.assertEqual((self.one.records, self.path._taken), ([b"refuse me"], 0))
        self.assertFalse(self.path.pending())
        settle(self.a, self.b)
        self.assertEqual(self.two.said("refused"), [(RNR, 20, position)])
        self.assertEqual(self.two.said("acknowledged"), [position])

    def test_lateNews(self) -> None:
        """
        News for which there is no room are sent when there is some.
        """
        while self.path.postReserved(word(SEND_ONLY, 21), b"x" * 1000, True):
            pass
        self.two.postKept(b"kept")
        self.b.fabric.ringBells()
        for _ in range(5):
            turn(self.a)
        self.assertEqual((self.one.records, self.path._told), ([b"kept"], 0))
        self.assertTrue(self.a.arm())
        self.assertFalse(readable(self.a))
        while not readable(self.a):
            self.assertTrue(turn(self.b))
        settle(self.a, self.b)
        self.assertEqual(len(self.two.said("acknowledged")), 1)

    def test_noMemory(self) -> None:
        """
        Where the kernel has no memory for a packet it is not lost.
        """
        real: Any = self.path._send

        def send(*arguments: Any) -> Any:
            """
            Fail once.
            """
            self.path._send = real
            raise OSError(105, "no buffer space")

        self.path._send = send
        self.assertFalse(self.one.post(b"x"))
        self.path.wantSpace(self.one)
        settle(self.a, self.b)
        self.assertEqual(self.one.said("resume"), [None])

    def test_reset(self) -> None:
        """
        Records that a peer sent before it closed are delivered, although it left others unread.
        """
        for n in range(10):
            self.one.post(b"never read")
            self.two.post(b"%d" % n)
        undrained = self.patch(SocketPath, "drain", lambda path: None)
        self.b.close()
        undrained.restore()
        self.assertEqual(self.path.progress(64), 10)
        settle(self.a)
        self.assertEqual(self.one.records, [b"%d" % n for n in range(10)])
        self.assertEqual(len(self.one.said("failed")), 1)

    def test_smallBuffers(self) -> None:
        """
        A host whose sockets cannot hold a record is refused by name.
        """
        self.patch(socketpath, "CARRIER_BUFFER", 4096)
        c = self.device()
        user = User()
        c.connect(SDP, "127.0.0.1", 7001, user)
        settle(c, self.b)
        self.assertIsInstance(user.error, HandshakeError)
        self.assertIn("wmem_max", str(user.error))


class HostileTests(CarrierTestCase):
    """
    The peer b sends what it likes.
    """

    peers = 25

    def setUp(self) -> None:
        """
        A third HCA, whose connection to a must go on.
        """
        super().setUp()
        self.c, self.three, self.four = self.bystander(self.a)
        self.raw: socket.socket = self.other._socket

    def survived(self, errors: int = 1) -> None:
        """
        Only the path to b broke, by name and counted once; nothing after the
        bad packet was taken.
        """
        self.two.post(b"after it")
        for _ in range(3):
            turn(self.a)
        (reason,) = self.one.said("failed")
        self.assertIsInstance(reason, PathLostError)
        self.assertEqual((self.a.counters["ring_errors"], self.one.records), (errors, []))
        self.three.post(b"still here")
        settle(self.a, self.c)
        self.assertEqual(self.four.records, [b"still here"])
        self.assertEqual(len(self.a.fabric.paths()), 1)

    def test_packets(self) -> None:
        """
        Cut off, too long, of another length than they say, with unknown
        flags, or acknowledging what was never sent.
        """
        target = word(SEND_ONLY, 20)
        packets = (
            b"x",
            HEADER.pack(0, target, 0, 0)[:-1],
            HEADER.pack(5, target, 0, 0) + b"four",
            HEADER.pack(3, target, 0, 0) + b"four",
            HEADER.pack(0xFFFFFFFF, target, 0, 0),
            HEADER.pack(limits.INLINE_RECORD + 1, target, 0, 0) + bytes(limits.INLINE_RECORD + 1),
            HEADER.pack(0, target, 4, 0),
            HEADER.pack(0, target, 1 << 31, 0),
            HEADER.pack(1, target, NEWS, 0) + b"x",
            HEADER.pack(0, target, 0, 1),
            HEADER.pack(0, target, NEWS, (1 << 64) - 1),
        )
        for n, packet in enumerate(packets):
            if n:
                self.setUp()
            self.raw.send(packet)
            self.survived()

    def test_empty(self) -> None:
        """
        An empty packet is the end.
        """
        self.raw.send(b"")
        self.survived(0)

    def test_afterEmpty(self) -> None:
        """
        Packets after an empty one keep neither the path alive nor the descriptor readable.
        """
        self.raw.send(b"")
        self.raw.send(HEADER.pack(0, word(SEND_ONLY, 20), 0, 0))
        self.path.progress(64)
        self.survived(0)
        self.assertFalse(readable(self.a))

    def test_takenGoesBack(self) -> None:
        """
        An acknowledgement before an earlier one.
        """
        self.one.post(b"1")
        self.one.post(b"2")
        self.raw.send(HEADER.pack(0, 0, NEWS, 2))
        turn(self.a)
        self.raw.send(HEADER.pack(0, 0, NEWS, 1))
        self.survived()

    def test_descriptors(self) -> None:
        """
        A packet with descriptors is refused, and none of them stays open.
        """
        ends = os.pipe()
        before = descriptorsBefore()
        sendWithDescriptors(self.raw, HEADER.pack(0, word(SEND_ONLY, 20), 0, 0), ends)
        turn(self.a)
        self.assertLessEqual(descriptors(), before)
        self.survived()
        for fd in ends:
            os.close(fd)

    def test_flood(self) -> None:
        """
        Packets that bring nothing use up the turn's budget as records do, and
        are not answered.
        """
        self.raw.setblocking(False)
        back = self.packets(self.one)
        try:
            while True:
                self.raw.send(HEADER.pack(0, 0, NEWS | ASK, 0))
        except BlockingIOError:
            pass
        self.a.fabric.look()
        self.assertEqual(self.path.progress(10), 10)
        settle(self.a)
        self.assertEqual((self.one.log, back), ([], []))

    def test_silence(self) -> None:
        """
        A peer that reads nothing, and asks for answers, loses its path: what waits for it is bounded.
        """
        while self.one.post(bytes(8000)):
            pass
        self.patch(limits, "MANAGEMENT_ANSWERS", 100)
        while self.path.unsent() < 100:
            self.path.sendManagement(0x10, bytes(232))
        self.assertTrue(self.path.alive)
        body = MANAGEMENT_HEADER.pack(0x10, 0) + bytes(232)
        self.raw.send(HEADER.pack(len(body), MANAGEMENT, 0, 0) + body)
        self.a.fabric.look()
        self.a.progress()
        self.assertFalse(self.path.alive)
        self.assertEqual(self.a.counters["ring_errors"], 1)

    def test_rubbish(self) -> None:
        """
        Random packets: no exception leaves the device.  Seed 6.
        """
        source = random.Random(6)
        for n in range(self.peers):
            if n:
                self.setUp()
            self.one.answers.extend(source.choice((0, 0, 0x20, 0x61)) for _ in range(100))
            for _ in range(10):
                length = source.choice((0, 1, 16, 100))
                number = source.choice((0, 1, 2, 20, source.getrandbits(32)))
                flags = source.choice((0, 0, 1, 2))
                head = HEADER.pack(length, source.getrandbits(8) << 24 ^ number, flags, 0)
                self.raw.send(head + source.randbytes(length + source.choice((0, 0, 0, 1))))
            settle(self.a)
            self.three.post(b"still here")
            settle(self.a, self.c)
            self.assertEqual(self.four.records, [b"still here"])
            self.b.close()
            settle(self.a)
            self.a.close()
