"""
Tests for L{twisted_ib.hca.transport} between real queue pairs: what completes, and how.
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.hca.queues.keyed_pair import End, Fabric, piece
from tests.hca.queues.test_queuepair import Consumer as Stream
from twisted_ib.errors import QueuePairError
from twisted_ib.hca.base.operation import ABSENT, REFUSAL, RESUME, SILENT
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.fabric.base.path import RecordPath
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.queuepair import QueuePair
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.hca.transport.parameters import (
    ACKNOWLEDGE_REQUEST,
    SOLICITED_EVENT,
    ConnectionParameters,
    Packet,
)
from twisted_ib.hca.transport.reliable import ReliableConnection
from twisted_ib.hca.wire.opcodes import ACKNOWLEDGE

OK, FLUSH = WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR
SEND, WRITE, READ = SendOpcode.SEND, SendOpcode.RDMA_WRITE, SendOpcode.RDMA_READ
WRITE_IMM, ADD = SendOpcode.RDMA_WRITE_WITH_IMM, SendOpcode.ATOMIC_FETCH_AND_ADD


class PacketPath(RecordPath):
    """
    The way of one queue pair, over packets.

    @ivar other: the other end.
    @ivar lose: called with each packet that it sends: whether it is lost.
    @ivar room: how many responses the connection takes now.
    """

    other: PacketPath
    inPackets = True
    inSegments = False
    recordBytes = 65536

    def __init__(self, clock: Clock, parameters: ConnectionParameters, remote: int) -> None:
        super().__init__(Fabric(), None)
        self.clock = clock
        self.connection = ReliableConnection(parameters, remote, self)
        self.queuePair: Any = None
        self.records = 0
        self.lose: Any = lambda packet: False
        self.sent: list[Packet] = []
        self.isFull = False

    def bind(self, queuePair: Any, message: Any = None) -> RecordPath:
        self.queuePair = queuePair
        return self

    def unbind(self, queuePair: Any) -> None:
        self.queuePair = None
        self.connection.close()

    def post(self, word: int, header: bytes, payload: Any, length: int) -> bool:
        if word >> 24 in (ACKNOWLEDGE, RESUME):
            return self.postReserved(word, payload, True)
        if self.isFull or not self.connection.post(
            word >> 24, header, payload, length, self.records + 1, self.clock.seconds()
        ):
            return False
        self.records += 1
        return True

    def postReserved(self, word: int, body: Any, refusal: bool) -> bool:
        if word >> 24 == ACKNOWLEDGE and (syndrome := REFUSAL.unpack(body)[0]) != ABSENT:
            self.connection.responder.refuse(syndrome)
        return True

    def position(self) -> int:
        return self.records

    def delivered(self, opcode: int, buffer: Any, start: int, stop: int) -> int:
        """
        A record came.
        """
        if self.queuePair is None:
            return ABSENT
        syndrome: int = self.queuePair.delivered(opcode, buffer, start, stop)
        return syndrome

    def acknowledged(self, position: int) -> None:
        """
        The peer did what was before a position.
        """
        self.completeTo(position)

    def refused(self, position: int, syndrome: int) -> None:
        """
        It did not.
        """
        if self.queuePair is not None:
            body = REFUSAL.pack(syndrome, self.queuePair.number, position)
            self.queuePair.delivered(ACKNOWLEDGE, body, 0, len(body))

    def resumed(self) -> None:
        """
        There is room.
        """
        self.resumeWaiting()

    def count(self, name: str) -> None:
        """
        Something is counted.
        """
        self.fabric.count(name)

    def flush(self) -> bool:
        """
        Send what there is.

        @return: whether there was anything.
        """
        packets = deque(self.connection.outputs(64, self.clock.seconds()))
        for packet in packets:
            self.sent.append(packet)
            if self.lose(packet):
                continue
            code, flags, psn, header, body = packet
            data = header + bytes(body)
            self.other.connection.receive(
                code | flags & SOLICITED_EVENT,
                psn,
                bool(flags & ACKNOWLEDGE_REQUEST),
                data,
                0,
                len(data),
                self.clock.seconds(),
            )
        return bool(packets)


class QueuePairsTestCase(SynchronousTestCase):
    """
    Two reliable queue pairs with work queues, of path MTU 256.
    """

    def setUp(self) -> None:
        self.connect()

    def connect(self, **changes: int) -> None:
        """
        Begin anew.
        """
        self.clock = Clock()
        self.a, self.b = End(17, self.clock, 0, 1), End(18, self.clock, 0, 2)
        parameters = ConnectionParameters(
            256, 0xFFFFFE, 0xFFFFFE, 3, changes.get("rnr_retry", 7), 0.067, reads=4, peerReads=4
        )
        for end, number in ((self.a, 18), (self.b, 17)):
            end.path = PacketPath(self.clock, parameters, number)  # type: ignore[assignment]
        self.a.path.other, self.b.path.other = self.b.path, self.a.path
        self.a.to(QPState.RTS, 18, **changes)
        self.b.to(QPState.RTS, 17, **changes)
        self.mine = self.a.register(bytes(range(250)) * 4)
        self.target = self.b.register(4096)

    def remote(self, offset: int = 0) -> dict[str, int]:
        """
        Where the target is.
        """
        return {"remoteAddress": self.target.address + offset, "remoteKey": self.target.remoteKey}

    def settle(self, seconds: float = 10.0) -> None:
        """
        Go on until nothing happens.
        """
        paths: Any = (self.a.path, self.b.path)
        while True:
            while any([path.flush() for path in paths]):
                pass
            times = [at for path in paths if (at := path.connection.deadline()) is not None]
            if not times or min(times) > seconds:
                return
            self.clock.advance(max(0.0, min(times) - self.clock.seconds()))
            for path in paths:
                path.connection.tick(self.clock.seconds())


class CompletionTests(QueuePairsTestCase):
    """
    The completion status of each end of a request.
    """

    def test_everything(self) -> None:
        """
        A SEND, a WRITE, a READ, an atomic and an ATOMIC WRITE complete in order, with every fifth packet
        lost.
        """
        self.b.receive(9, piece(self.target, 2048))
        random = Random(7)
        for end in (self.a, self.b):
            end.path.lose = lambda packet: random.random() < 0.2
        self.a.send(1, SEND, piece(self.mine))
        self.a.send(2, WRITE, piece(self.mine), **self.remote())
        read = self.a.register(1000)
        self.a.send(3, READ, piece(read), **self.remote())
        old = self.a.register(8)
        self.a.send(4, ADD, piece(old), compare=1, **self.remote(3072))
        self.a.send(5, SendOpcode.ATOMIC_WRITE, inline=b"8 octets", **self.remote(3080))
        self.settle()
        self.assertEqual(self.a.statuses(), [(1, OK), (2, OK), (3, OK), (4, OK), (5, OK)])
        self.assertEqual(bytes(self.target.view[3072:3088]), (1).to_bytes(8, "little") + b"8 octets")
        data = bytes(self.mine.view)
        self.assertEqual(bytes(read.view), data)
        self.assertEqual(bytes(self.target.view[2048:3048]), data)
        self.assertEqual([c.byteLength for c in self.b.received()], [1000])

    def test_immediateNotReady(self) -> None:
        """
        A long WRITE with immediate finds no receive at its last packet: only that one comes
        again, and its length is that of all.
        """
        self.a.send(1, WRITE_IMM, piece(self.mine), immediate=7, **self.remote())
        for _ in range(3):
            while any([end.path.flush() for end in (self.a, self.b)]):
                pass
        self.b.receive(9)
        self.settle()
        self.assertEqual(self.a.statuses(), [(1, OK)])
        (completion,) = self.b.received()
        self.assertEqual((completion.byteLength, completion.immediate), (1000, 7))
        self.assertEqual(bytes(self.target.view[:1000]), bytes(self.mine.view))
        self.assertEqual([packet[0] for packet in self.a.path.sent], [0x06, 0x07, 0x07, 0x09, 0x09])

    def test_receiverNotReady(self) -> None:
        """
        Receives never come: RNR_RETRY_EXC_ERR.
        """
        self.connect(rnr_retry=2)
        self.a.send(1, SEND, piece(self.mine))
        self.a.send(2, SEND, piece(self.mine))
        self.settle()
        self.assertEqual(self.a.statuses(), [(1, WCStatus.RNR_RETRY_EXC_ERR), (2, FLUSH)])

    def test_silent(self) -> None:
        """
        Nothing arrives: RETRY_EXC_ERR.
        """
        self.a.path.lose = lambda packet: True
        self.a.send(1, SEND, piece(self.mine))
        self.settle()
        self.assertEqual(self.a.statuses(), [(1, WCStatus.RETRY_EXC_ERR)])
        self.assertAlmostEqual(self.clock.seconds(), 4 * 0.067)

    def test_badResponse(self) -> None:
        """
        The wrong answer: BAD_RESP_ERR.
        """
        read = self.a.register(1000)
        self.a.send(1, READ, piece(read), **self.remote())
        self.a.path.lose = lambda packet: True
        self.a.path.flush()
        self.a.path.connection.receive(0x10, 0xFFFFFE, False, b"\x1f\0\0\1x", 0, 5, 0.0)
        self.assertEqual(self.a.statuses(), [(1, WCStatus.BAD_RESP_ERR)])

    def test_refused(self) -> None:
        """
        A key that opens nothing: REM_ACCESS_ERR, and the peer's queue pair is in ERR.
        """
        self.a.send(1, READ, piece(self.a.register(300)), **self.remote())
        self.a.send(2, WRITE, piece(self.mine), remoteAddress=0, remoteKey=1)
        self.settle()
        self.assertEqual(self.a.statuses(), [(1, OK), (2, WCStatus.REM_ACCESS_ERR)])
        self.assertEqual(self.b.qp.state, QPState.ERR)

    def test_refusedBehind(self) -> None:
        """
        The same while the answer to the READ before it has no room: that comes first.
        """
        read = self.a.register(300)
        self.b.path.isFull = True
        self.a.send(1, READ, piece(read), **self.remote())
        self.a.send(2, WRITE, piece(self.mine), remoteAddress=0, remoteKey=1)
        while any([end.path.flush() for end in (self.a, self.b)]):
            pass
        self.assertEqual((self.a.statuses(), self.b.qp.state), ([], QPState.RTS))
        self.b.path.isFull = False
        self.b.path.resumed()
        self.settle()
        self.assertEqual(self.a.statuses(), [(1, OK), (2, WCStatus.REM_ACCESS_ERR)])

    def test_memoryGone(self) -> None:
        """
        The memory that is read goes before the answer is made: REM_ACCESS_ERR.
        """
        self.b.path.isFull = True
        self.a.send(1, READ, piece(self.a.register(300)), **self.remote())
        while any([end.path.flush() for end in (self.a, self.b)]):
            pass
        self.b.memory.deregister(self.target)
        self.b.path.isFull = False
        self.b.path.resumed()
        self.settle()
        self.assertEqual(self.a.statuses(), [(1, WCStatus.REM_ACCESS_ERR)])

    def test_readWithinMessage(self) -> None:
        """
        The answer to a READ is lost, and asked for again amidst the WRITE behind it.
        """
        read = self.a.register(10)
        lost = iter((True,))
        self.b.path.lose = lambda packet: packet[0] == 0x10 and next(lost, False)
        self.a.path.lose = lambda packet: packet[0] == 0x08 and len(self.a.path.sent) < 8
        self.a.send(1, READ, piece(read), **self.remote())
        self.a.send(2, WRITE, piece(self.mine), **self.remote(1000))
        self.settle()
        self.assertEqual(self.a.statuses(), [(1, OK), (2, OK)])
        self.assertEqual(bytes(self.target.view[1000:2000]), bytes(self.mine.view))

    def test_drain(self) -> None:
        """
        SQD: what has begun is done, and the rest waits.
        """
        self.b.receive(9, piece(self.target))
        self.a.send(1, SEND, piece(self.mine))
        self.a.qp.modify(QPState.SQD, en_sqd_async_notify=1)
        self.a.send(2, WRITE, piece(self.mine), **self.remote())
        self.settle()
        self.assertEqual(self.a.statuses(), [(1, OK)])
        self.assertEqual([kind.name for kind in self.a.events], ["SQ_DRAINED"])
        self.a.qp.modify(QPState.RTS)
        self.settle()
        self.assertEqual(self.a.statuses(), [(2, OK)])


class StreamTests(SynchronousTestCase):
    """
    A queue pair without work queues.
    """

    def test_silent(self) -> None:
        """
        It fails, and says that the peer does not answer.
        """
        queuePair = QueuePair(17, Stream())
        path = PacketPath(Clock(), ConnectionParameters(256, 0, 0), 18)
        queuePair.connect(path, 18)
        body = REFUSAL.pack(SILENT, 17, 1)
        self.assertEqual(queuePair.delivered(ACKNOWLEDGE, body, 0, len(body)), 0)
        (failure,) = queuePair.consumer.failures
        self.assertIsInstance(failure, QueuePairError)
        self.assertIn("the peer of queue pair 17 does not answer", str(failure))
