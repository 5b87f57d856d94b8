"""
Tests of peers that want more memory or time than others get.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

from tests.hca.hostile import HostileTestCase, Target
from tests.hca.queues.keyed_cases import RequesterTestCase, ResponderTestCase
from tests.hca.queues.keyed_pair import piece
from twisted_ib import limits
from twisted_ib.errors import ResourceLimitError
from twisted_ib.hca.base import operation
from twisted_ib.hca.base.states import QPState, QPType
from twisted_ib.hca.fabric.shm.ring import RingPath
from twisted_ib.hca.fabric.shm.shm import SharedMemoryFabric
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.hca.wire import headers, opcodes
from twisted_ib.hca.wire.headers import REFERENCE, RETH


class LongReferenceTests(ResponderTestCase):
    """
    A record of a few bytes that stands for many.
    """

    def setUp(self) -> None:
        """
        The peer offers a segment that is longer than what one record may move.
        """
        super().setUp()
        self.patch(limits, "PULL_MOST", 1000)
        self.a.path.offering = True
        self.number = self.a.path.offer(bytearray(b"!" * 5000))

    def test_requests(self) -> None:
        """
        A request's record moves no more than one turn's bytes.
        """
        code = opcodes.WRITE_ONLY | operation.REFERENCE
        most = self.reth(1000) + REFERENCE.pack(self.number, 1000, 4000)
        self.assertEqual(self.put(code, most), 0)
        more = self.reth(1001, 1000) + REFERENCE.pack(self.number, 1001, 0)
        self.assertEqual(self.put(code, more), headers.NAK_REMOTE_OPERATIONAL)
        self.assertEqual(self.target.view.tobytes().count(b"!"), 1000)
        self.assertEqual(self.b.qp.state, QPState.ERR)

    def test_answers(self) -> None:
        """
        An answer's record neither.
        """
        for count, state, written in ((1000, QPState.RTS, 1000), (1001, QPState.ERR, 0)):
            self.connect()
            self.a.path.offering = True
            number = self.a.path.offer(bytearray(b"!" * 5000))
            self.b.send(1, SendOpcode.RDMA_READ, piece(self.target, 0, count))
            self.put(opcodes.READ_RESPONSE_ONLY | operation.REFERENCE, REFERENCE.pack(number, count, 0))
            self.assertEqual(self.target.view.tobytes().count(b"!"), written)
            self.assertEqual(self.b.qp.state, state)


class UnfinishedTests(HostileTestCase):
    """
    Long messages that never end, to consumers that have promised to take them.
    """

    fabric = SharedMemoryFabric

    def setUp(self) -> None:
        """
        Little memory.
        """
        super().setUp()
        self.patch(limits, "HELD_BYTES", 10000)

    def target(self) -> Target:
        """
        @return: a queue pair whose consumer takes messages.
        """
        found = Target(self.device_, QPType.RC, self.other, 99)
        found.qp.postReceives(8)
        found.qp.maxMessage = 6000
        return found

    def test_bounded(self) -> None:
        """
        The parts received so far count as held: beyond the bound the queue pair that holds most ends,
        and the others go on.
        """
        one, two, three = (self.target() for _ in range(3))
        for target, size in ((one, 4000), (two, 5000), (three, 900)):
            self.write(opcodes.SEND_FIRST, target.qp.number, bytes(size))
        self.rest()
        self.assertEqual(
            (self.device_.receiveBudget.heldBytes, len(self.device_.receiveBudget.holders)), (9900, 3)
        )
        self.write(opcodes.SEND_MIDDLE, three.qp.number, bytes(200))
        self.rest()
        states = [target.qp.state for target in (one, two, three)]
        self.assertEqual(states, [QPState.RTS, QPState.ERR, QPState.RTS])
        self.assertEqual(
            (self.device_.receiveBudget.heldBytes, len(self.device_.receiveBudget.holders)), (5100, 2)
        )
        (failure,) = two.consumer.failures
        self.assertIsInstance(failure, ResourceLimitError)
        self.write(opcodes.SEND_LAST, three.qp.number, bytes(3))
        self.write(opcodes.SEND_LAST, one.qp.number, bytes(1))
        self.rest()
        self.assertEqual([len(data) for data, _ in one.consumer.got + three.consumer.got], [4001, 1103])
        budget = self.device_.receiveBudget
        self.assertEqual((budget.heldBytes, budget.holders), (0, {}))

    def test_self(self) -> None:
        """
        The queue pair that holds most may be the one that is receiving.
        """
        for opcode in (opcodes.SEND_MIDDLE, opcodes.SEND_LAST):
            others = [self.target() for _ in range(3)]
            for target in others:
                self.write(opcodes.SEND_FIRST, target.qp.number, bytes(3000))
            self.write(opcode, others[0].qp.number, bytes(2000))
            self.rest()
            states = [target.qp.state for target in others]
            self.assertEqual(states, [QPState.ERR, QPState.RTS, QPState.RTS])
            self.assertEqual(self.device_.receiveBudget.heldBytes, 6000)
            for target in others:
                target.qp.close()
            self.assertEqual(
                (self.device_.receiveBudget.heldBytes, self.device_.receiveBudget.holders), (0, {})
            )

    def test_ends(self) -> None:
        """
        However a message ends, what was held of it is not any more.
        """
        target = self.target()
        ends: list[Any] = [
            lambda: self.write(operation.RESUME, target.qp.number, b""),
            lambda: self.write(opcodes.WRITE_ONLY, target.qp.number, b""),
            lambda: target.qp.modify(QPState.ERR),
            lambda: target.qp.modify(QPState.RESET),
            lambda: target.qp.close(),
            lambda: self.liar.close(),
        ]
        left = [3000, 0, 0, 0, 0, 0]
        for end, expected in zip(ends, left, strict=True):
            target = self.target()
            self.write(opcodes.SEND_FIRST, target.qp.number, bytes(3000))
            self.rest()
            self.assertEqual(self.device_.receiveBudget.heldBytes, 3000)
            end()
            self.device_.fabric.attend()
            self.device_.progress()
            self.assertEqual(self.device_.receiveBudget.heldBytes, expected)
            target.qp.close()
            self.assertEqual(
                (self.device_.receiveBudget.heldBytes, self.device_.receiveBudget.holders), (0, {})
            )


class ManyReadsTests(HostileTestCase):
    """
    A peer with many queue pairs that read, and that makes room as fast as it is answered.
    """

    fabric = SharedMemoryFabric

    def setUp(self) -> None:
        """
        A medium that is never full, and counts the answers of each queue pair of the peer.
        """
        super().setUp()
        self.patch(limits, "INLINE_MESSAGE", 10)
        self.patch(limits, "RECORDS_PER_TURN", 8)
        self.answers: Counter[int] = Counter()
        post = RingPath.post

        def counting(path: Any, word: int, header: bytes, payload: Any, length: int) -> bool:
            """
            Count what is published.
            """
            if path.fabric is not self.device_.fabric:
                return post(path, word, header, payload, length)
            self.answers[word & headers.QPN_MASK] += 1
            return True

        self.patch(RingPath, "post", counting)

    def read(self, number: int, length: int) -> None:
        """
        Ask a new queue pair for so many bytes.
        """
        target = Target(self.device_, QPType.RC, self.other, number)
        region = target.register(length)
        self.write(
            opcodes.READ_REQUEST, target.qp.number, RETH.pack(region.address, region.remoteKey, length)
        )

    def turns(self) -> list[int]:
        """
        @return: how many answers each turn gave, until there are no more.
        """
        found = []
        while True:
            before = self.answers.total()
            self.device_.progress()
            if self.answers.total() == before:
                return found
            found.append(self.answers.total() - before)

    def test_path(self) -> None:
        """
        A turn answers so many records to one peer, however many queue pairs it has; all are
        answered, and none waits for another to end.
        """
        for number in range(5):
            self.read(number, 100)
        turns = self.turns()
        self.assertEqual((max(turns), sum(turns)), (8, 50))
        self.assertEqual(set(self.answers.values()), {10})

    def test_paths(self) -> None:
        """
        The READs of one peer take nothing from another.
        """
        path, other = self.path, self.other
        self.call()
        self.read(7, 100)
        self.path, self.other = path, other
        for number in range(5):
            self.read(number, 100)
        turns = self.turns()
        self.assertEqual((turns[:2], sum(turns)), ([16, 10], 60))

    def test_alternately(self) -> None:
        """
        Of one peer's queue pairs each has its turn.
        """
        for number in range(3):
            self.read(number, 1000)
        for _ in range(10):
            self.device_.progress()
        self.assertEqual(sorted(self.answers.values()), [24, 24, 32])
        for target in list(self.device_.queuePairs.values()):
            target.close()
        self.assertEqual(self.turns(), [])
        self.assertFalse(self.device_.busy())


class Unread(deque[Any]):
    """
    A queue that nobody may go through.
    """

    def __iter__(self) -> Any:
        """
        @raise AssertionError: always.
        """
        raise AssertionError("somebody looks at all of it")


class WildRefusalTests(RequesterTestCase):
    """
    Refusals of what was never sent.
    """

    def test_position(self) -> None:
        """
        A position that the medium has not reached costs no look at each request.
        """
        requester = self.a.work.requester
        for id in range(3):
            self.post(id, SendOpcode.SEND)
        queue, requester.onTheWay = requester.onTheWay, Unread(requester.onTheWay)
        for position in (self.a.path.position() + 1, (1 << 64) - 1):
            body = operation.REFUSAL.pack(headers.NAK_INVALID_REQUEST, 18, position)
            self.a.work.delivered(opcodes.ACKNOWLEDGE, body, 0, len(body))
        requester.onTheWay = queue
        self.assertEqual((self.a.qp.state, len(queue), self.a.statuses()), (QPState.RTS, 3, []))
        body = operation.REFUSAL.pack(headers.NAK_INVALID_REQUEST, 18, self.a.path.position())
        self.a.work.delivered(opcodes.ACKNOWLEDGE, body, 0, len(body))
        self.assertEqual(self.a.qp.state, QPState.ERR)
