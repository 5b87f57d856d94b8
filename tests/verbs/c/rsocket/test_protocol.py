"""
Tests of L{twisted_ib.verbs.c.rsocket.protocol}: two streams, whose writes are carried out between them.
"""

from __future__ import annotations

from random import Random
from struct import pack

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.verbs.c.rsocket.protocol import (
    CONTROL_REQUESTS,
    GREETING_BYTES,
    MAP_BYTES,
    TARGET_BYTES,
    TARGETS,
    Control,
    Operation,
    Region,
    RSocketError,
    Stream,
    Way,
    Write,
)

BUFFER = 1 << 13
DEPTH = 16


def message(operation: Operation, data: int) -> int:
    """
    The immediate data of a message.
    """
    return operation << 29 | data


class Side:
    """
    A stream with its memory.
    """

    def __init__(self, base: int, buffer: int = BUFFER, depth: int = DEPTH, maps: int = 0) -> None:
        self.base = base
        self.sending = bytearray(buffer)
        self.memory = bytearray(buffer + TARGETS * TARGET_BYTES + maps * MAP_BYTES)
        self.targets = memoryview(self.memory)[buffer:]
        self.stream = Stream(
            Region(base, base + 1, buffer),
            Region(base + buffer, base + 1, len(self.targets)),
            buffer,
            depth,
            maps,
        )

    def carry(self, write: Write, peer: Side) -> None:
        """
        Carry out a write, and complete it.
        """
        assert all(at + length <= len(self.sending) for at, length in write.pieces), write
        data = write.content or b"".join(self.sending[at : at + length] for at, length in write.pieces)
        if data:
            assert write.key == peer.base + 1, write
            at = write.address - peer.base
            assert 0 <= at <= len(peer.memory) - len(data), write
            peer.memory[at : at + len(data)] = data
        if not write.isDirect:
            peer.stream.received(write.message)
        self.stream.completed(write.message, True)

    def send(self, data: bytes, peer: Side) -> int:
        """
        Send as much as there is room for.
        """
        count = min(len(data), self.stream.room())
        if count:
            write = self.stream.write(count)
            done = 0
            for at, length in write.pieces:
                self.sending[at : at + length] = data[done : done + length]
                done += length
            self.carry(write, peer)
        return count

    def receive(self, most: int, peer: Side) -> bytes:
        """
        Read, and let the peer send more.
        """
        data = b"".join(self.memory[at : at + length] for at, length in self.stream.read(most))
        for update in self.stream.updates():
            self.carry(update, peer)
        return bytes(data)


def pair(maps: int = 0) -> tuple[Side, Side]:
    """
    Two connected sides.
    """
    one, other = Side(0x10000, maps=maps), Side(0x40000, maps=maps)
    one.stream.connect(other.stream.greeting(), one.targets)
    other.stream.connect(one.stream.greeting(), other.targets)
    return one, other


class StreamTests(SynchronousTestCase):
    """
    L{Stream}.
    """

    def test_greeting(self) -> None:
        """
        The private data of rsockets: version, flags, credits, target list, the first half of the buffer.
        """
        greeting = Side(0x10000).stream.greeting()
        self.assertEqual(len(greeting), GREETING_BYTES)
        expected = pack(">BBH4s", 1, 2, DEPTH, b"") + pack(">QII", 0x10000 + BUFFER, 0x10001, TARGETS)
        self.assertEqual(greeting, expected + pack(">QII", 0x10000, 0x10001, BUFFER // 2))

    def test_defaults(self) -> None:
        """
        The queues and buffers have librdmacm's sizes; four requests are for control messages alone.
        """
        one = Stream(Region(0x1000, 1, 1 << 17), Region(0x30000, 1, 32))
        self.assertEqual(one.greeting()[:4], b"\1\2" + (384).to_bytes(2, "big"))
        self.assertEqual(one.greeting()[20:24], (2).to_bytes(4, "big"))
        one.connect(Side(0x40000, 1 << 20, 1000).stream.greeting(), memoryview(bytearray(32)))
        self.assertEqual(one.room(), 1 << 17)
        for _ in range(384 - 4):
            one.write(1)
        self.assertEqual(one.room(), 0)

    def test_requests(self) -> None:
        """
        Of a queue whose requests are pairs there are half as many, and all that were made complete it.
        """
        one = Stream(Region(0x1000, 1, 1 << 17), Region(0x30000, 1, 32), requests=192)
        self.assertEqual(one.greeting()[2:4], (384).to_bytes(2, "big"))
        one.connect(Side(0x40000, 1 << 20, 1000).stream.greeting(), memoryview(bytearray(32)))
        writes = [one.write(1) for _ in range(192 - 4)]
        self.assertEqual((one.room(), one.isFlushed), (0, False))
        for each in writes:
            one.completed(each.message, True)
        self.assertTrue(one.room() and one.isFlushed)

    def test_messages(self) -> None:
        """
        The messages' numbers (rsocket.c, C{RS_OP_DATA} to C{RS_OP_CTRL}, C{RS_CTRL_DISCONNECT} and its kin):
        what a peer sends, and what it is sent.  To keep the connection alive says nothing.
        """
        one, other = pair(1)
        one.stream.untold[0] = 7, Region(0x10000, 0x10001, 1)
        sent = [one.stream.write(5), *one.stream.updates()]
        sent += [*one.stream.shutdown(Way.WRITE), *one.stream.shutdown(Way.READ)]
        self.assertEqual(
            [f"{each.message:08x}" for each in sent], "00000005 80000010 c0000000 e0000002 e0000000".split()
        )
        states = []
        for received in (0x00000003, 0x80000011, 0xC0000000, 0xE0000001, 0xE0000002, 0xE0000000):
            other.stream.received(received)
            states.append((other.stream.waiting, other.stream.open, other.stream.isOver))
        both = Way.READ | Way.WRITE
        self.assertEqual(states, [(3, both, False)] * 4 + [(3, Way.WRITE, False), (3, Way.WRITE, True)])

    def test_wraps(self) -> None:
        """
        What goes over the end of the send buffer has two pieces, what ends there and what follows one.
        """
        other = Side(0x40000, 6 * BUFFER)
        one = Side(0x10000)
        one.stream.connect(other.stream.greeting(), one.targets)
        pieces = []
        for count in (BUFFER - 100, 150, BUFFER - 50, 10):
            write = one.stream.write(count)
            one.stream.completed(write.message, True)
            pieces.append(write.pieces)
        over = (BUFFER - 100, 100), (0, 50)
        self.assertEqual(pieces, [((0, BUFFER - 100),), over, ((50, BUFFER - 50),), ((0, 10),)])

    def test_badGreetings(self) -> None:
        """
        One that is short, of another version, or without targets.
        """
        one, other = Side(0x10000), Side(0x40000)
        good = other.stream.greeting()
        for bad in (good[:-1], b"\x02" + good[1:], good[:20] + bytes(4) + good[24:]):
            self.assertRaises(RSocketError, one.stream.connect, bad, one.targets)

    def test_bothWays(self) -> None:
        """
        Octets in any pieces both ways, many times the buffers and queues.
        """
        random = Random(23)
        sides = pair()
        data = [random.randbytes(40 * BUFFER) for _ in sides]
        sent, received = [0, 0], [bytearray(), bytearray()]
        while any(len(each) < len(data[0]) for each in received):
            for i, side in enumerate(sides):
                peer = sides[1 - i]
                piece = data[i][sent[i] : sent[i] + random.randrange(1, 3000)]
                sent[i] += side.send(piece, peer)
                received[i] += side.receive(random.randrange(3000), peer)
        self.assertEqual(received, [data[1], data[0]])

    def test_credits(self) -> None:
        """
        Each message takes a receive of the peer's: without credits there is no room, whatever is free.
        """
        one, other = pair()
        for _ in range(DEPTH - CONTROL_REQUESTS):
            self.assertEqual(one.send(b"x", other), 1)
        while one.send(b"x", other):
            pass
        self.assertEqual(other.stream.waiting, DEPTH)
        self.assertEqual(one.stream.room(), 0)
        other.receive(DEPTH // 2, one)
        self.assertGreater(one.stream.room(), 0)

    def test_space(self) -> None:
        """
        No more is sent than both halves of the peer's buffer take; a half that was read is shown again.
        """
        one, other = pair()
        self.assertEqual(one.send(bytes(BUFFER), other), BUFFER // 2)
        # The second half is shown with the first update, before anything was read.
        self.assertEqual(other.receive(0, one), b"")
        self.assertEqual(one.send(bytes(BUFFER), other), BUFFER // 2)
        self.assertEqual(one.send(b"x", other), 0)
        other.receive(BUFFER // 2 - 1, one)
        self.assertEqual(one.send(b"x", other), 0)
        other.receive(1, one)
        self.assertEqual(one.send(bytes(BUFFER), other), BUFFER // 2)

    def test_leastRoom(self) -> None:
        """
        Nothing is written while less than 2,048 octets of the own buffer are free, unless it has no more.
        """
        other = Side(0x40000, 4 * BUFFER)
        one, small = Side(0x10000), Side(0x80000, 1024)
        for each in one, small:
            each.stream.connect(other.stream.greeting(), each.targets)
        write = one.stream.write(BUFFER - 2048)
        self.assertEqual((one.stream.room(), small.stream.room()), (2048, 1024))
        one.stream.write(1)
        self.assertEqual(one.stream.room(), 0)
        one.stream.completed(write.message, True)
        self.assertEqual(one.stream.room(), BUFFER - 1)

    def test_excess(self) -> None:
        """
        A peer that sends more than it may, more messages than credits, or messages that there are not.
        """
        one, _ = pair()
        self.assertRaises(RSocketError, one.stream.received, message(Operation.DATA, BUFFER + 1))
        for _ in range(DEPTH):
            one.stream.received(message(Operation.DATA, 1))
        self.assertRaises(RSocketError, one.stream.received, message(Operation.DATA, 1))
        for operation in (1, 2, 3, 5):
            self.assertRaises(RSocketError, one.stream.received, operation << 29)

    def test_addresses(self) -> None:
        """
        Addresses of the peer at the end of 64 bits: they wrap, for its key to refuse.
        """
        one, other = Side(0x10000), Side(0x40000)
        last = (1 << 64) - 1
        greeting = other.stream.greeting()
        greeting = greeting[:8] + pack(">Q", last) + greeting[16:24] + pack(">Q", last) + greeting[32:]
        one.stream.connect(greeting, one.targets)
        self.assertEqual([one.stream.write(2).address, one.stream.write(2).address], [last, 1])
        one.stream.received(message(Operation.DATA, BUFFER // 2))
        one.stream.read(BUFFER // 2)
        self.assertEqual([each.address for each in one.stream.updates()], [TARGET_BYTES - 1, last])

    def test_noGreeting(self) -> None:
        """
        Credits before a greeting: nothing can be written.
        """
        side = Side(0x10000)
        side.stream.received(message(Operation.CREDITS, 1))
        self.assertEqual((side.stream.isConnected, side.stream.room()), (False, 0))

    def test_maps(self) -> None:
        """
        Memory that a side shows is written by its offset, as far as it goes, and the peer hears nothing.
        """
        one, other = pair(2)
        self.assertEqual((one.stream.greeting()[7], one.stream.peerMaps), (2, 2))
        self.assertIsNone(one.stream.direct(0, 1))
        other.stream.untold.update(
            {1: (500, Region(0x40020, 0x40001, 16)), 0: ((1 << 64) - 8, Region(0x40100, 0x40001, 8))}
        )
        other.receive(0, one)
        self.assertEqual(other.stream.untold, {})
        one.sending[:30] = bytes(range(1, 31))
        for offset, at, expected in ((500, 0x20, 9), (515, 0x2F, 1), ((1 << 64) - 3, 0x105, 3)):
            before = one.stream.directRoom()
            write = one.stream.direct(offset, 9)
            assert write is not None
            self.assertEqual((write.address, write.isDirect), (other.base + at, True))
            self.assertEqual((sum(length for _, length in write.pieces), write.key), (expected, 0x40001))
            self.assertEqual(one.stream.directRoom(), before - expected)
            one.carry(write, other)
            self.assertEqual(one.stream.directRoom(), before)
        self.assertEqual(other.memory[0x20:0x30], bytes(range(1, 10)) + bytes(6) + bytes([10]))
        self.assertEqual([one.stream.direct(each, 1) for each in (499, 516, 0)], [None] * 3)
        self.assertEqual(other.stream.waiting, 0)

    def test_mapCredits(self) -> None:
        """
        Each entry takes a receive of the peer's, which gives it back, and waits for one.
        """
        one, other = pair(1)
        for n in range(4 * DEPTH):
            one.stream.untold[0] = n, Region(0x10000, 0x10001, 1)
            one.receive(0, other)
            self.assertEqual(one.stream.untold, {})
            other.receive(0, one)
        while one.send(b"x", other):
            pass
        one.stream.untold[0] = 7, Region(0x10000, 0x10001, 1)
        one.receive(0, other)
        self.assertIsNone(other.stream.direct(7, 1))
        other.receive(DEPTH, one)
        one.receive(0, other)
        self.assertIsNotNone(other.stream.direct(7, 1))

    def test_mapsFirst(self) -> None:
        """
        Nothing is written while entries wait for requests that complete.
        """
        one, _ = pair(CONTROL_REQUESTS + 1)
        for index in range(CONTROL_REQUESTS + 1):
            one.stream.untold[index] = index, Region(0x10000, 0x10001, 1)
        writes = one.stream.updates()
        self.assertEqual((len(writes), one.stream.room()), (CONTROL_REQUESTS, 0))
        one.stream.completed(writes[0].message, True)
        self.assertGreater(one.stream.room(), 0)

    def test_mapsOfOthers(self) -> None:
        """
        A peer without maps, one with more than this side has, and one with the other order of octets.
        """
        one, other = pair(1)
        greeting = other.stream.greeting()
        for flags, maps, expected in ((0, 5, 0), (2, 128, 128), (2, 130, 512), (3, 1, 1)):
            told = greeting[:1] + bytes([flags]) + greeting[2:7] + bytes([maps]) + greeting[8:]
            one.stream.connect(told, one.targets)
            self.assertEqual(one.stream.peerMaps, expected)
        one.stream.untold[0] = 7, Region(0x10000, 0x10001, 9)
        write = one.stream.updates()[-1]
        self.assertEqual(write.address, other.base + BUFFER + TARGETS * TARGET_BYTES)
        self.assertEqual(write.content, pack(">QQII", 7, 0x10000, 0x10001, 9))

    def test_peek(self) -> None:
        """
        Bytes that are only looked at stay.
        """
        one, other = pair()
        one.send(b"abc", other)
        self.assertEqual(other.stream.read(2, peek=True), [(0, 2)])
        self.assertEqual(other.receive(9, one), b"abc")

    def test_shutdown(self) -> None:
        """
        One direction after the other, or both: the peer is told once.
        """
        one, other = pair()
        (write,) = one.stream.shutdown(Way.WRITE)
        self.assertEqual(write.message, message(Operation.CONTROL, Control.SHUTDOWN))
        one.carry(write, other)
        self.assertEqual((other.stream.open, other.stream.isOver), (Way.WRITE, False))
        (write,) = other.stream.shutdown(Way.READ | Way.WRITE)
        self.assertEqual(write.message, message(Operation.CONTROL, Control.DISCONNECT))
        other.carry(write, one)
        self.assertTrue(one.stream.isOver)
        self.assertEqual(one.stream.shutdown(Way.READ), [])
        self.assertEqual(other.stream.shutdown(Way.READ | Way.WRITE), [])

    def test_shutdownReading(self) -> None:
        """
        The peer is not told that nothing is read any more, but of the end that follows.
        """
        one, _ = pair()
        self.assertEqual(one.stream.shutdown(Way.READ), [])
        self.assertEqual((one.stream.open, one.stream.isFlushed), (Way.WRITE, True))
        (write,) = one.stream.shutdown(Way.WRITE)
        self.assertEqual(write.message, message(Operation.CONTROL, Control.DISCONNECT))

    def test_failed(self) -> None:
        """
        A write that fails ends the stream.
        """
        one, _ = pair()
        write = one.stream.write(1)
        self.assertFalse(one.stream.isFlushed)
        one.stream.completed(write.message, False)
        self.assertTrue(one.stream.isFlushed)
        self.assertTrue(one.stream.isOver)
