"""
Tests for L{twisted_ib.hca.queues.queuepair}: states, and the stream path.
"""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.queues.keyed_pair import RTR, RTS, Fabric, MemoryPath
from tests.support.calls import called
from tests.support.counting import CopyCountingMap, CopyCountingSegment
from twisted_ib import limits
from twisted_ib.errors import PathLostError, QueuePairError, ResourceLimitError
from twisted_ib.hca.base.states import QPState, QPType
from twisted_ib.hca.fabric.base.path import Refusing
from twisted_ib.hca.fabric.shm.ring import RingPath, segmentSize
from twisted_ib.hca.queues.queuepair import QueuePair
from twisted_ib.hca.queues.requests import SendFlags
from twisted_ib.hca.wire import headers, opcodes
from twisted_ib.hca.wire.headers import RETH

STATES = (QPState.RESET, QPState.INIT, QPState.RTR, QPState.RTS, QPState.SQD, QPState.ERR)
RECEIVING = (QPState.RTR, QPState.RTS, QPState.SQD)
CALLED = (QPState.RTR, QPState.RTS, QPState.SQD, QPState.SQE)


class FlagTests(SynchronousTestCase):
    """
    The values that programs and captures know.
    """

    def test_send(self) -> None:
        """
        C{enum ibv_send_flags} of C{infiniband/verbs.h}.
        """
        expected = {"FENCE": 1, "SIGNALED": 2, "SOLICITED": 4, "INLINE": 8, "IP_CSUM": 16}
        self.assertEqual({flag.name: flag.value for flag in SendFlags}, expected)


class Consumer:
    """
    Takes a stream's messages.

    @ivar messages: what came.
    """

    def __init__(self) -> None:
        """
        Nothing has come.
        """
        self.messages: list[bytes] = []
        self.failures: list[Exception] = []
        self.resumed = 0

    def received(self, buffer: Any, start: int, stop: int) -> None:
        """
        A message.
        """
        self.messages.append(buffer[start:stop])

    def resume(self) -> None:
        """
        There is room.
        """
        self.resumed += 1

    def failed(self, reason: Exception) -> None:
        """
        The queue pair is in ERR.
        """
        self.failures.append(reason)


class QueuePairTestCase(SynchronousTestCase):
    """
    Two stream queue pairs on a medium in memory.
    """

    def setUp(self) -> None:
        """
        In RESET.
        """
        self.pathA, self.pathB = MemoryPath(Fabric(), 1000), MemoryPath(Fabric(), 1000)
        self.pathA.other, self.pathB.other = self.pathB, self.pathA
        self.a, self.b = QueuePair(17, Consumer()), QueuePair(18, Consumer())

    def connect(self) -> None:
        """
        To RTS, with 5 receives.
        """
        self.a.connect(self.pathA, 18)
        self.b.connect(self.pathB, 17)
        self.b.postReceives(5)

    def climb(self, queuePair: QueuePair, state: QPState, path: Any, remote: int) -> None:
        """
        To a state, by each transition.
        """
        steps: list[tuple[QPState, dict[str, Any]]] = [
            (QPState.INIT, {"pkey_index": 0, "port_num": 1, "qp_access_flags": 0}),
            (QPState.RTR, {"ah_attr": path, "dest_qp_num": remote, **RTR}),
            (QPState.RTS, dict(RTS)),
            (QPState.SQD, {}),
        ]
        if state == QPState.ERR:
            steps = [(QPState.ERR, {})]
        for step, attributes in steps:
            if queuePair.state == state:
                return
            queuePair.modify(step, **attributes)

    def flow(self) -> None:
        """
        Until nothing moves.
        """
        while self.pathA.progress() + self.pathB.progress():
            pass


class StateTests(QueuePairTestCase):
    """
    States, and who is in the path's table.
    """

    def test_table(self) -> None:
        """
        A queue pair is in its path's table exactly while it can receive.
        """
        for state in STATES:
            self.setUp()
            self.climb(self.a, state, self.pathA, 18)
            self.assertEqual(self.a.state, state)
            self.assertEqual(self.pathA.table.get(17) is self.a, state in RECEIVING)
            self.assertEqual(self.a.path is self.pathA, state in RECEIVING)

    def test_everyMove(self) -> None:
        """
        From every state to every state: what the table of transitions forbids changes
        nothing.
        """
        attributes: dict[QPState, dict[str, Any]] = {
            QPState.INIT: {"pkey_index": 0, "port_num": 1, "qp_access_flags": 0},
            QPState.RTR: {"ah_attr": self.pathA, "dest_qp_num": 18, **RTR},
            QPState.RTS: dict(RTS),
        }
        allowed = {(new, new) for new in (QPState.RESET, QPState.ERR, QPState.SQD, QPState.INIT)}
        allowed |= {(old, new) for old in STATES for new in (QPState.RESET, QPState.ERR)}
        allowed |= {(STATES[n], STATES[n + 1]) for n in range(4)}
        for old in STATES:
            for new in QPState:
                self.setUp()
                attributes[QPState.RTR]["ah_attr"] = self.pathA
                self.climb(self.a, old, self.pathA, 18)
                if (old, new) in allowed:
                    self.a.modify(new, **attributes.get(new, {}))
                    self.assertEqual(self.a.state, new)
                    self.assertEqual(17 in self.pathA.table, new in CALLED)
                else:
                    self.assertRaises(QueuePairError, self.a.modify, new, **attributes.get(new, {}))
                    self.assertEqual(self.a.state, old)
                    self.assertEqual(17 in self.pathA.table, old in CALLED)

    def test_badAttributes(self) -> None:
        """
        Attributes that cannot be are refused, and nothing changes.
        """
        self.climb(self.a, QPState.INIT, self.pathA, 18)
        good = {"ah_attr": self.pathA, "dest_qp_num": 18, **RTR}
        for bad in ({"dest_qp_num": 1 << 24}, {"dest_qp_num": -1}, {"ah_attr": None}):
            self.assertRaises(QueuePairError, self.a.modify, QPState.RTR, **{**good, **bad})
            self.assertEqual((self.a.state, self.a.path, self.a.remote), (QPState.INIT, None, 0))
        self.climb(self.a, QPState.SQD, self.pathA, 18)
        self.a.modify(QPState.SQD, ah_attr=self.pathA)
        self.assertRaises(QueuePairError, self.a.modify, QPState.SQD, ah_attr=self.pathB)

    def test_datagram(self) -> None:
        """
        A datagram queue pair has no path of its own.
        """
        queuePair = QueuePair(5, Consumer(), type=QPType.UD)
        queuePair.modify(QPState.INIT, pkey_index=0, port_num=1, qkey=1)
        queuePair.modify(QPState.RTR)
        queuePair.modify(QPState.RTS, sq_psn=0)
        self.assertEqual((queuePair.state, queuePair.path), (QPState.RTS, None))

    def test_connect(self) -> None:
        """
        C{connect} goes to RTS from RESET or INIT only.
        """
        for state in STATES:
            self.setUp()
            self.climb(self.a, state, self.pathA, 18)
            if state in (QPState.RESET, QPState.INIT):
                self.a.connect(self.pathA, 18)
                self.assertEqual(self.a.state, QPState.RTS)
                self.assertIs(self.pathA.table[17], self.a)
            else:
                error = self.assertRaises(QueuePairError, self.a.connect, self.pathA, 18)
                self.assertIn(state.name, str(error))

    def test_connectAfterLoss(self) -> None:
        """
        A stream whose first message came before it was there takes what comes
        next, so that its consumer sees the gap: the requester never resumes.
        """
        self.a.connect(self.pathA, 18)
        self.a.postInline(b"", b"too early", 9)
        self.flow()
        self.assertEqual(list(self.pathB.absent), [18])
        self.b.connect(self.pathB, 17)
        self.b.postReceives(5)
        self.a.postInline(b"", b"next", 4)
        self.flow()
        self.assertEqual((self.b.consumer.messages, len(self.pathB.absent)), ([b"next"], 0))

    def test_initKeepsReceives(self) -> None:
        """
        Receives that were promised in INIT stay through RTR; RESET and ERR forget them.
        """
        for last in (QPState.RESET, QPState.ERR):
            self.setUp()
            self.climb(self.a, QPState.INIT, self.pathA, 18)
            self.a.postReceives(3)
            self.a.modify(QPState.INIT, port_num=1)
            self.climb(self.a, QPState.RTS, self.pathA, 18)
            self.assertEqual(self.a.posted, 3)
            self.a.modify(last)
            self.assertEqual(self.a.posted, 0)

    def test_fail(self) -> None:
        """
        A failure tells the consumer once, in whatever state; in RESET and ERR it does
        nothing.
        """
        for state in STATES:
            self.setUp()
            self.climb(self.a, state, self.pathA, 18)
            for _ in range(2):
                self.a.fail(PathLostError("gone"))
            told = state not in (QPState.RESET, QPState.ERR)
            self.assertEqual(len(self.a.consumer.failures), int(told))
            self.assertEqual(self.a.state, QPState.RESET if state == QPState.RESET else QPState.ERR)
            self.assertNotIn(17, self.pathA.table)

    def test_close(self) -> None:
        """
        A closed queue pair is out of the table and its device's list, once, and what the
        medium still says to it does nothing.
        """
        closed: list[QueuePair] = []

        class Device:
            """
            Keeps what was closed.
            """

            def queuePairClosed(self, queuePair: QueuePair) -> None:
                """
                A queue pair was destroyed.
                """
                closed.append(queuePair)

        self.a.device = Device()
        self.connect()
        for _ in range(20):
            if self.a.canPost():
                self.a.postInline(b"", bytes(200), 200)
        self.a.close()
        self.a.close()
        self.assertEqual(closed, [self.a])
        self.assertNotIn(17, self.pathA.table)
        self.flow()
        self.assertEqual((self.a.consumer.resumed, self.a.consumer.failures), (0, []))


class SendTests(QueuePairTestCase):
    """
    L{QueuePair.postInline} and what waits.
    """

    def test_everyState(self) -> None:
        """
        Only in RTS can be sent; elsewhere the error names the state.
        """
        for state in STATES:
            self.setUp()
            self.climb(self.a, state, self.pathA, 18)
            if state == QPState.RTS:
                self.a.postInline(b"head", b"body", 4)
                self.assertEqual(self.pathA.records[0][1:], (0x04000012, b"headbody"))
            else:
                error = self.assertRaises(QueuePairError, self.a.postInline, b"head", b"body", 4)
                self.assertIn(state.name, str(error))
                self.assertEqual(len(self.pathA.records), 0)

    def test_length(self) -> None:
        """
        A message of the largest length goes, one byte more does not.
        """
        self.connect()
        self.a.maxMessage = 10
        self.a.postInline(b"head", bytes(10), 10)
        self.assertRaises(QueuePairError, self.a.postInline, b"head", bytes(11), 11)

    def test_waiting(self) -> None:
        """
        Messages that the medium has no room for wait in order, bounded, in one place of its queue;
        a small message does not overtake; then the consumer is resumed, once.
        """
        self.connect()
        self.b.postReceives(100)
        sent = []
        for number in range(3):
            sent.append(b"%d" % number * 300)
            self.a.postInline(b"", sent[-1], 300)
        for number in range(limits.INLINE_SENDS):
            self.assertTrue(self.a.canPost())
            sent.append(b"small%d" % number)
            self.a.postInline(b"", sent[-1], 6)
            if number == 0:
                self.a.postInline(b"", b"x" * 500, 500)
                sent.append(b"x" * 500)
            if not self.a.canPost():
                break
        self.assertRaises(ResourceLimitError, self.a.postInline, b"", b"late", 4)
        self.assertEqual(len(self.pathA.waiting), 1)
        self.flow()
        self.assertEqual(self.b.consumer.messages, sent)
        self.assertEqual((self.a.consumer.resumed, self.a.pending), (1, None))

    def test_viewThatWaits(self) -> None:
        """
        Memory that was lent for the call may change at once, also if there was no room.
        """
        self.connect()
        self.b.postReceives(100)
        lent = bytearray(b"a" * 300)
        while self.a.pending is None:
            self.a.postInline(b"", memoryview(lent), 300)
        lent[:] = b"b" * 300
        self.flow()
        self.assertEqual(set(self.b.consumer.messages), {b"a" * 300})

    def test_refusedAgain(self) -> None:
        """
        When the room is for some only, the rest waits on.
        """
        self.connect()
        self.b.postReceives(100)
        for _ in range(6):
            self.a.postInline(b"", bytes(400), 400)
        self.flow()
        self.assertEqual(len(self.b.consumer.messages), 6)
        self.assertEqual(self.a.consumer.resumed, 1)

    def test_forgotten(self) -> None:
        """
        In ERR and RESET what waits is forgotten.
        """
        for state in (QPState.ERR, QPState.RESET):
            self.setUp()
            self.connect()
            for _ in range(6):
                self.a.postInline(b"", bytes(400), 400)
            self.a.modify(state)
            self.assertIsNone(self.a.pending)
            self.flow()
            self.assertEqual(len(self.b.consumer.messages), 2)


class ReceiveTests(QueuePairTestCase):
    """
    L{QueuePair.delivered} on a stream.
    """

    def put(self, opcode: int, data: bytes) -> int:
        """
        Deliver a record to C{b}.
        """
        return self.b.delivered(opcode, b"<" + data + b">", 1, 1 + len(data))

    def test_credits(self) -> None:
        """
        Each message uses a promise; one too many is the peer's error and ends the
        connection, with an RNR refusal.
        """
        self.connect()
        for number in range(5):
            self.assertEqual(self.put(0x04, b"%d" % number), 0)
        self.assertEqual(self.b.consumer.messages, [b"0", b"1", b"2", b"3", b"4"])
        self.b.modify(QPState.RTS, min_rnr_timer=9)
        self.assertEqual(self.put(0x04, b"5"), headers.RNR | 9)
        self.assertEqual(self.b.state, QPState.ERR)
        self.assertIn("credits", str(self.b.consumer.failures[0]))

    def test_tooLong(self) -> None:
        """
        A message longer than a receive is an invalid request.
        """
        self.connect()
        self.assertEqual(self.put(0x04, bytes(limits.INLINE_RECORD)), 0)
        self.assertEqual(self.put(0x04, bytes(limits.INLINE_RECORD + 1)), headers.NAK_INVALID_REQUEST)
        self.assertEqual(self.b.state, QPState.ERR)
        self.assertIn("too long", str(self.b.consumer.failures[0]))

    def test_refused(self) -> None:
        """
        A stream's message that is refused ends the connection, at both ends.
        """
        self.connect()
        for _ in range(6):
            self.a.postInline(b"", b"x", 1)
        self.flow()
        self.assertEqual((len(self.a.consumer.failures), len(self.b.consumer.failures)), (0, 1))
        self.a.delivered(opcodes.ACKNOWLEDGE, b"\x61", 0, 1)
        self.assertIn("0x61", str(self.a.consumer.failures[0]))

    def test_emptyRefusal(self) -> None:
        """
        So does a refusal without a syndrome.
        """
        self.connect()
        self.assertEqual(self.b.delivered(opcodes.ACKNOWLEDGE, b"", 0, 0), 0)
        self.assertEqual(self.b.state, QPState.ERR)

    def test_waits(self) -> None:
        """
        Where the path's transport repeats a message may wait for a receive.
        """
        self.connect()
        self.b.waits, self.b.posted, self.b.minRNRTimer = True, 0, 9
        self.assertEqual(self.put(0x04, b"x"), headers.RNR | 9)
        self.assertEqual((self.b.state, self.b.consumer.messages), (QPState.RTS, []))
        self.assertEqual(self.put(0x04, bytes(limits.INLINE_RECORD + 1)), headers.RNR | 9)
        self.b.postReceives(2)
        self.assertEqual((self.put(0x04, b"x"), self.b.consumer.messages), (0, [b"x"]))
        self.assertEqual(self.put(0x04, bytes(limits.INLINE_RECORD + 1)), headers.NAK_INVALID_REQUEST)
        self.assertEqual(self.b.state, QPState.ERR)

    def test_streamed(self) -> None:
        """
        With work queues a stream's messages have the same bounds.
        """
        self.put = lambda opcode, data: self.b.streamed(data, 0, len(data))  # type: ignore[method-assign]
        for test in (self.test_credits, self.test_tooLong, self.test_waits):
            self.setUp()
            test()

    def test_partitionsChanged(self) -> None:
        """
        When the port's table changes the path of a queue pair that receives learns its partition anew.
        """
        told: list[Any] = []
        self.patch(MemoryPath, "modified", lambda path, queuePair: told.append((path, queuePair)))
        self.a.partitionsChanged()
        self.connect()
        told.clear()
        self.a.partitionsChanged()
        self.assertEqual(told, [(self.pathA, self.a)])

    def test_onRequest(self) -> None:
        """
        The consumer is asked for work queues when the peer's first request needs them: not for a message,
        nor for an answer.
        """
        self.connect()
        asked: list[None] = []
        self.b.onRequest = lambda: asked.append(None)
        self.assertEqual(self.put(0x04, b"x"), 0)
        self.assertEqual(asked, [])
        # It made none: the request is refused as if there were nobody to ask.
        self.assertEqual(self.put(opcodes.READ_REQUEST, RETH.pack(1, 1, 1)), headers.NAK_INVALID_REQUEST)
        self.assertEqual((len(asked), self.b.state), (1, QPState.ERR))
        self.setUp()
        self.connect()
        self.b.onRequest = lambda: asked.append(None)
        self.b.delivered(opcodes.ACKNOWLEDGE, b"\x61", 0, 1)
        self.assertEqual(len(asked), 1)

    def test_keepAlive(self) -> None:
        """
        A WRITE of nothing is taken, whatever it names, and uses no receive.
        """
        self.connect()
        self.assertEqual(self.put(0x0A, RETH.pack((1 << 64) - 1, 0xDEADBEEF, 0)), 0)
        self.assertEqual((self.b.state, self.b.posted), (QPState.RTS, 5))

    def test_everythingElse(self) -> None:
        """
        No other code is for a stream: an invalid request, and the end.
        """
        for code in range(256):
            if code in (0x04, opcodes.ACKNOWLEDGE):
                continue
            for data in (b"", RETH.pack(1, 1, 1), RETH.pack(1, 1, 0), RETH.pack(1, 1, 0) + b"x"):
                if code == 0x0A and data == RETH.pack(1, 1, 0):
                    continue  # A sign of life.
                self.setUp()
                self.connect()
                self.assertEqual(self.put(code, data), headers.NAK_INVALID_REQUEST)
                self.assertEqual(self.b.state, QPState.ERR)
                self.assertEqual(self.b.consumer.messages, [])

    def test_refusing(self) -> None:
        """
        A queue pair that refuses is bound all the same: it is notified of the path's end.  A change
        of attributes does not end the refusing.
        """
        self.connect()
        self.pathB.table[18] = Refusing(self.pathB, self.b)
        self.b.modify(QPState.RTS, min_rnr_timer=1)
        self.assertIsInstance(self.pathB.table[18], Refusing)
        self.pathB.lost(PathLostError("gone"))
        self.assertEqual(len(self.b.consumer.failures), 1)


class RingFabric(Fabric):
    """
    The part of a fabric that a ring path needs.
    """

    def __init__(self) -> None:
        """
        No peer waits for a wake-up.
        """
        super().__init__()
        self.bells: list[Any] = []
        self.owner = SimpleNamespace(wanted=None)

    def ringLater(self, path: Any) -> None:
        """
        Something was published.
        """
        self.bells.append(path)


class Doorbell:
    """
    A doorbell of a peer that never sleeps.
    """

    def ring(self) -> bool:
        return False

    def close(self) -> None:
        """
        Nothing is open.
        """


class CostTests(SynchronousTestCase):
    """
    The cost of a message on the stream path over rings: counted, not timed.
    """

    def setUp(self) -> None:
        """
        Two queue pairs joined by rings in counting memory.
        """
        size = segmentSize(limits.RING)
        mine = [CopyCountingSegment.create(size) for _ in range(2)]
        theirs = [CopyCountingSegment(segment.fd, size, False) for segment in mine]
        self.paths = []
        for n in range(2):
            path = RingPath(RingFabric(), None, mine[n], theirs[1 - n], Doorbell(), limits.RING)
            self.paths.append(path)
            theirs[n].fd = -1  # One descriptor, closed by its creator.
            self.addCleanup(path.close)
        self.a, self.b = QueuePair(17, Consumer()), QueuePair(18, Consumer())
        self.a.connect(self.paths[0], 18)
        self.b.connect(self.paths[1], 17)
        self.b.postReceives(1 << 20)
        CopyCountingMap.copied.clear()

    def exchange(self, count: int, payload: Any, length: int) -> None:
        """
        Send some messages, and take them.
        """
        for _ in range(count):
            self.a.postInline(b"h" * 16, payload, length)
        self.paths[1].progress(count)

    def test_bytesCopied(self) -> None:
        """
        Each byte of a message is copied once into the ring and once out of it.
        """
        for payload, length in ((bytes(64), 64), ([bytes(10)] * 5, 50), (memoryview(bytes(60000)), 60000)):
            CopyCountingMap.copied.clear()
            self.exchange(3, payload, length)
            self.assertEqual(len(self.b.consumer.messages), 3)
            self.assertEqual(CopyCountingMap.copied, {"in": 3 * (length + 16), "out": 3 * (length + 16)})
            self.b.consumer.messages.clear()

    def calls(self, count: int) -> Counter[str]:
        """
        The Python functions that some messages call, and what those make.
        """
        return called(lambda: self.exchange(count, b"x" * 64, 64))

    def test_objectsMade(self) -> None:
        """
        A message makes no object of any class: no initialiser runs.  It calls two
        functions to be posted and two to be delivered, the consumer's own included.
        """
        self.exchange(1, b"warm", 4)
        one, many = self.calls(1), self.calls(101)
        more = many - one
        ours = {name: n for name, n in more.items() if name not in ("__getitem__", "__setitem__")}
        self.assertEqual(ours, {"postInline": 100, "post": 100, "delivered": 100, "received": 100})
        self.assertNotIn("__init__", many)

    def test_nothingKept(self) -> None:
        """
        After a message is taken nothing of it is left in the queue pairs or paths.
        """
        self.exchange(5, b"x" * 64, 64)
        for queuePair, path in ((self.a, self.paths[0]), (self.b, self.paths[1])):
            self.assertIsNone(queuePair.pending)
            self.assertEqual((len(path.waiting), len(path.unacknowledged), len(path.requesters)), (0, 0, 0))
