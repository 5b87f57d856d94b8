"""
Work requests over iWARP: memory by keys, and how a wrong one ends the connection.
"""

from __future__ import annotations

import random
import socket
from typing import Any

from tests.hca.fabric.iwarp.ends import ONE, SPACE, TWO, End, IWARPTestCase
from tests.hca.queues.keyed_pair import DeviceSide, piece
from twisted_ib.errors import QueuePairError
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.connection import ConnectReply, ConnectRequest
from twisted_ib.hca.device.device import Device
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
        """
        Connect.
        """
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
        reply = ConnectReply(localQPN=queuePair.number, responderResources=4, initiatorDepth=4)
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

    def test_everySize(self) -> None:
        """
        WRITE, SEND and READ of all sizes: each byte arrives, and no other is touched.
        """
        one, two = self.keyed()
        maker = random.Random(1)
        for size in (0, 1, 63, 1000, 65517, 65518, 65536, 65537, 300000):
            data = maker.randbytes(size)
            source, target = one.register(data), two.register(size + 20)
            inbox, back = two.register(size), one.register(size)
            two.receive(5, piece(inbox))
            names = {"remoteAddress": target.address + 7, "remoteKey": target.remoteKey}
            one.send(1, WRITE, piece(source), **names)
            one.send(2, SEND, piece(source))
            one.send(3, READ, piece(back), **names)
            found: list[Any] = []
            self.until(lambda: found.extend(one.statuses()) or len(found) == 3)  # noqa: B023
            self.assertEqual(found, [(1, OK), (2, OK), (3, OK)])
            self.assertEqual([each.byteLength for each in two.received()], [size])
            self.assertEqual(bytes(target.view), bytes(7) + data + bytes(13))
            self.assertEqual((bytes(inbox.view), bytes(back.view)), (data, data))

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
        self.assertEqual(len(end.device.cm), 0)
