"""
Work requests over iWARP: their contract (L{tests.contracts.workrequests}), memory by keys, and how a wrong
one ends the connection.
"""

from __future__ import annotations

import random
import socket
from typing import Any

from tests.contracts.workrequests import WorkRequestContract
from tests.hca.fabric.iwarp.ends import ONE, SPACE, TWO, End, IWARPTestCase
from tests.hca.hcas import HCATestCase
from tests.hca.queues.keyed_pair import DeviceSide, piece
from tests.support.ownaddress import ownAddress
from tests.support.waiting import waitUntil
from twisted_ib.errors import QueuePairError
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.connection import ConnectReply, ConnectRequest
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.fabric.iwarp.iwarp import IWARPFabric
from twisted_ib.hca.fabric.iwarp.protocol.mpa import StartupFrame
from twisted_ib.hca.memory.access import Access
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.requests import SendOpcode

WRITE, SEND, READ = SendOpcode.RDMA_WRITE, SendOpcode.SEND, SendOpcode.RDMA_READ
OK = WCStatus.SUCCESS


class KeyedEnd(End):
    """
    An end whose queue pair has work queues.
    """

    side: Any = None

    def make(self) -> Any:
        """
        @return: a new queue pair.
        """
        self.side = DeviceSide(self.device, None)
        return self.side.qp

    def _to(self, path: Any, remote: int) -> None:
        self.side.path = path
        self.side.to(QPState.RTS, remote)

    def replied(self, connection: Any, reply: ConnectReply) -> None:
        self._to(connection.destination, reply.localQPN)
        connection.ready(self.device.clock())
        self.events.append("replied")

    def accept(self, request: ConnectRequest) -> None:
        """
        Accept a request.
        """
        queuePair = self.make()
        self.connection.user = self
        self._to(self.connection.destination, request.localQPN)
        reply = ConnectReply(
            localQPN=queuePair.number, responderResources=4, initiatorDepth=4, rnrRetryCount=3
        )
        self.connection.accept(reply, self.device.clock())


class KeyedTestCase(IWARPTestCase):
    """
    Two devices.
    """

    def keyed(self, here: Device | None = None, there: Device | None = None) -> tuple[Any, Any]:
        """
        @return: two connected sides.
        """
        one, two = KeyedEnd(here or self.device(ONE)), KeyedEnd(there or self.device(TWO))
        port = two.device.listen(SPACE, TWO, 0, two).port
        one.device.connect(SPACE, TWO, port, one)
        one.call(one.path, b"", SPACE << 16 | port)
        self.until(lambda: "replied" in one.events and "established" in two.events)
        return one.side, two.side


class KeyedTests(KeyedTestCase):
    """
    SEND, WRITE and READ between two devices.
    """

    def test_many(self) -> None:
        """
        More READs than may be outstanding, with WRITEs and SENDs between, both ways at once.
        """
        sides = self.keyed()
        memory = [side.register(bytes(range(256)) * 40) for side in sides]
        for side, other in ((0, 1), (1, 0)):
            names = {"remoteAddress": memory[other].address, "remoteKey": memory[other].remoteKey}
            for number in range(40):
                sides[other].receive(number, piece(memory[other], 0, 8))
                sides[side].send(3 * number, READ, piece(memory[side]), **names)
                sides[side].send(3 * number + 1, WRITE, piece(memory[side]), **names)
                sides[side].send(3 * number + 2, SEND, piece(memory[side], 0, 8))
        for side in sides:
            found: list[Any] = []
            self.until(lambda: found.extend(side.statuses()) or len(found) == 120)  # noqa: B023
            self.assertEqual(found, [(number, OK) for number in range(120)])

    def test_readRefused(self) -> None:
        """
        A READ of memory that is not granted fails by itself, with what the Terminate says.
        """
        one, two = self.keyed()
        mine = one.register(100)
        theirs = two.register(100, int(Access.LOCAL_WRITE))
        one.send(1, READ, piece(mine), remoteAddress=theirs.address, remoteKey=theirs.key)
        found: list[Any] = []
        self.until(lambda: found.extend(one.statuses()) or found)
        self.assertEqual(found, [(1, WCStatus.REM_ACCESS_ERR)])
        self.until(lambda: two.consumer.failures)
        self.assertEqual(two.events[-1], EventType.QP_ACCESS_ERR)

    def test_writeRefused(self) -> None:
        """
        A WRITE outside of what is granted ends the connection; the Terminate says why.
        """
        one, two = self.keyed()
        mine, theirs = one.register(b"evil" * 25), two.register(50)
        one.send(1, WRITE, piece(mine), remoteAddress=theirs.address, remoteKey=theirs.remoteKey)
        failures = one.consumer.failures
        self.until(lambda: failures)
        self.assertIn("outside of the memory's bounds", str(failures[0]))
        self.assertIn(EventType.QP_FATAL, one.events)
        self.assertEqual(bytes(theirs.view), bytes(50))

    def test_unsupported(self) -> None:
        """
        What iWARP has not is refused when it is posted.
        """
        one, _ = self.keyed()
        mine = one.register(8)
        for opcode in (
            SendOpcode.SEND_WITH_IMM,
            SendOpcode.RDMA_WRITE_WITH_IMM,
            SendOpcode.ATOMIC_FETCH_AND_ADD,
            SendOpcode.ATOMIC_WRITE,
        ):
            with self.assertRaises(QueuePairError) as caught:
                one.send(1, opcode, piece(mine), remoteAddress=0, remoteKey=1)
            self.assertIn(opcode.name, str(caught.exception))

    def test_mutated(self) -> None:
        """
        Damaged Writes and Read Requests raise nothing, leave nothing, and touch nothing that is not granted.
        """
        maker = random.Random(21)
        end = KeyedEnd(self.device(TWO))
        where = TWO, end.device.listen(SPACE, TWO, 0, end).port
        canary, granted = bytearray(b"\xa5" * 4096), bytearray(64)
        for _ in range(150):
            made = self.socket(where)
            made.sendall(StartupFrame(False, b"x").pack())
            count = end.events.count("requested")
            self.until(lambda: end.events.count("requested") > count)  # noqa: B023
            side = end.side
            secret = side.memory.register(canary, int(Access.LOCAL_WRITE), side.pd)
            open_ = side.memory.register(granted, int(Access.LOCAL_WRITE | Access.REMOTE_WRITE), side.pd)
            stream = bytearray()
            for region in (open_, open_, maker.choice((open_, secret))):
                where_ = region.key.to_bytes(4, "big") + region.address.to_bytes(8, "big")
                stream += bytes.fromhex("0012c140") + where_ + b"data" + bytes(4)
                request = bytes(12) + (4).to_bytes(4, "big") + where_
                head = bytes.fromhex("002e414100000000000000010000000100000000")
                stream += head + request + bytes(4)
            for _ in range(maker.randrange(0, 6)):
                stream[maker.randrange(len(stream))] = maker.randrange(256)
            made.sendall(stream)
            made.shutdown(socket.SHUT_WR)
            self.until(lambda: self.isOver(made))  # noqa: B023
            made.close()
            side.qp.close()
            for region in (secret, open_):
                side.memory.deregister(region)
            end.connection.abandon(self.clock.seconds())
        self.until(lambda: not end.device.fabric.streams)
        self.assertEqual(canary, b"\xa5" * 4096)
        self.assertEqual(len(end.device.fabric.service.connections), 0)


class WorkRequestTests(WorkRequestContract, HCATestCase):
    """
    Devices at addresses of this host; the connection manager connects their queue pairs.
    """

    traits = IWARPFabric.traits
    _count = 0

    def device(self) -> Device:
        """
        @return: A new HCA, closed after the test.
        """
        self._count += 1
        address = ownAddress(self._count)
        device = Device(
            "iwarp0",
            self.clock.seconds,
            fabric=lambda owner, guid, clock: IWARPFabric(owner, guid, clock, address),
        )
        self.addCleanup(device.close)
        return device

    def connect(self, **changes: int) -> None:
        """
        Make C{one} and C{two}, which the connection manager connects.
        """
        self.a, self.b = self.device(), self.device()
        self.between()

    def between(self) -> None:
        """
        Connect C{a} and C{b}.
        """
        one, two = KeyedEnd(self.a), KeyedEnd(self.b)
        there = self.b.fabric.address
        port = self.b.listen(SPACE, there, 0, two).port
        self.a.connect(SPACE, there, port, one)
        one.call(one.path, b"", SPACE << 16 | port)

        def turn() -> None:
            self.a.progress()
            self.b.progress()

        waitUntil(lambda: "replied" in one.events and "established" in two.events, turn)
        self.one, self.two = one.side, two.side

    def test_nothingLeft(self) -> None:
        """
        The connection is gone, too.
        """
        super().test_nothingLeft()
        for device in (self.a, self.b):
            self.assertEqual((device.fabric.streams, device.fabric.halfOpen.total()), ({}, 0))

    def test_deathOutstanding(self) -> None:
        """
        When the peer goes, the first READ that it has not answered ends with RETRY_EXC_ERR, the rest is
        flushed, receives too; then nothing is left.
        """
        self.connect()
        source, target = self.one.register(100), self.two.register(100)
        self.one.receive(50)
        for number in range(8):
            self.one.send(number, READ, piece(source), **self.remote(target))
        self.one.send(8, SEND, piece(source))
        self.a.progress()
        self.b.close()
        one: Any = self.one
        waitUntil(lambda: one.consumer.failures, self.a.progress)
        flushes = [(number, WCStatus.WR_FLUSH_ERR) for number in range(1, 9)]
        self.assertEqual(one.statuses(), [(0, WCStatus.RETRY_EXC_ERR), *flushes])
        flushed = [(each.workRequestID, each.status) for each in one.received()]
        self.assertEqual(flushed, [(50, WCStatus.WR_FLUSH_ERR)])
        self.assertEqual((one.qp.state, len(one.consumer.failures)), (QPState.ERR, 1))
        self.assertEqual((self.a.fabric.streams, self.a.deadline()), ({}, None))

    def test_itself(self) -> None:
        """
        Two queue pairs of one HCA.
        """
        self.a = self.b = self.device()
        self.between()
        source, target = self.one.register(b"self" * 20000), self.two.register(80000)
        self.one.send(1, SendOpcode.RDMA_WRITE, piece(source), **self.remote(target))
        self.settled()
        self.assertEqual(self.one.statuses(), [(1, WCStatus.SUCCESS)])
        self.assertEqual(target.view, source.view)
