"""
Tests for L{twisted_ib.hca.queues.receives}.
"""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib import limits
from twisted_ib.errors import QueuePairError, ResourceBusyError, ResourceLimitError
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.memory.memory import Memory
from twisted_ib.hca.queues.receives import SGE, ReceiveRequest, SharedReceiveQueue


class SharedReceiveQueueTests(SynchronousTestCase):
    """
    L{SharedReceiveQueue}.
    """

    def setUp(self) -> None:
        """
        A queue of ten requests of two pieces.
        """
        self.memory = Memory(random.Random(1).getrandbits)
        self.pd = self.memory.allocateDomain()
        self.queue = SharedReceiveQueue(self.pd, 10, 2)
        self.events: list[tuple[EventType, object, int]] = []
        self.queue.onEvent = lambda kind, element: self.events.append((kind, element, len(self.queue)))

    def fill(self, count: int) -> None:
        """
        Post requests with the numbers from 0 on.
        """
        for number in range(count):
            self.queue.post(ReceiveRequest(number))

    def take(self, count: int) -> list[int]:
        """
        Take requests, and give their numbers.
        """
        taken = [self.queue.take() for _ in range(count)]
        return [request.id for request in taken if request is not None]

    def test_order(self) -> None:
        """
        Requests are taken in the order they were posted; then there is none.
        """
        self.fill(3)
        self.assertEqual(len(self.queue), 3)
        self.assertEqual(self.take(4), [0, 1, 2])
        self.assertIsNone(self.queue.take())

    def test_giveBack(self) -> None:
        """
        A request that was not used is the next one again, even if its place is taken.
        """
        self.fill(10)
        first = self.queue.take()
        second = self.queue.take()
        assert first is not None and second is not None
        self.queue.post(ReceiveRequest(10))
        self.queue.post(ReceiveRequest(11))
        self.queue.putBack(second)
        self.queue.putBack(first)
        self.assertEqual(len(self.queue), 12)
        self.assertRaises(ResourceLimitError, self.queue.post, ReceiveRequest(12))
        self.assertEqual(self.take(12), list(range(12)))

    def test_promised(self) -> None:
        """
        A request that was promised its place has one, even if one was given back meanwhile; a closed queue
        has none.
        """
        self.fill(10)
        taken = self.queue.take()
        assert taken is not None
        self.queue.putBack(taken)
        self.queue.postPromised([ReceiveRequest(10)])
        self.assertEqual(self.take(12), list(range(11)))
        self.queue.close()
        self.assertRaises(QueuePairError, self.queue.postPromised, [ReceiveRequest(11)])

    def test_full(self) -> None:
        """
        There are as many places as were asked for.
        """
        self.fill(10)
        self.assertRaises(ResourceLimitError, self.queue.post, ReceiveRequest(10))
        self.take(1)
        self.queue.post(ReceiveRequest(10))
        self.assertEqual(self.take(20), list(range(1, 11)))

    def test_pieces(self) -> None:
        """
        A request has as many pieces as were asked for, and possible ones.
        """
        piece = SGE(0, 4, 1)
        for pieces in ([], [piece], [piece, piece]):
            self.queue.post(ReceiveRequest(0, pieces))
        for pieces in ([piece] * 3, [SGE(0, -1, 1)], [SGE(0, 1 << 32, 1)]):
            self.assertRaises(QueuePairError, self.queue.post, ReceiveRequest(1, pieces))
        self.assertEqual(len(self.queue), 3)

    def test_bounds(self) -> None:
        """
        Depth and pieces are bounded; what is refused holds nothing.
        """
        for depth, pieces in (
            (0, 1),
            (-1, 1),
            (limits.SHARED_RECEIVE_DEPTH + 1, 1),
            (1, -1),
            (1, limits.SCATTER_GATHER_ELEMENTS + 1),
        ):
            self.assertRaises(ResourceLimitError, SharedReceiveQueue, self.pd, depth, pieces)
        self.assertEqual(self.pd.users, {"shared receive queues": 1})
        for depth in (1, limits.SHARED_RECEIVE_DEPTH):
            SharedReceiveQueue(self.pd, depth, limits.SCATTER_GATHER_ELEMENTS)
        deepest = SharedReceiveQueue(self.pd, limits.SHARED_RECEIVE_DEPTH, 0)
        for number in range(limits.SHARED_RECEIVE_DEPTH):
            deepest.post(ReceiveRequest(number))
        self.assertRaises(ResourceLimitError, deepest.post, ReceiveRequest(0))

    def test_noLimit(self) -> None:
        """
        Without a limit there is no event, not even when the last request goes.
        """
        self.fill(10)
        self.take(11)
        self.assertEqual(self.events, [])

    def test_limit(self) -> None:
        """
        The event comes when fewer than the limit are left, once; then the limit is 0.
        """
        for limit in range(1, 11):
            self.fill(10 - len(self.queue))
            self.events.clear()
            self.queue.modify(limit=limit)
            self.take(10 - limit)
            self.assertEqual((self.events, self.queue.limit), ([], limit))
            self.take(limit + 1)
            self.assertEqual(self.events, [(EventType.SRQ_LIMIT_REACHED, self.queue, limit - 1)])
            self.assertEqual(self.queue.limit, 0)

    def test_oneShot(self) -> None:
        """
        The limit is set anew by the program only.
        """
        self.fill(10)
        self.queue.modify(limit=9)
        self.take(2)
        self.fill(2)
        self.take(5)
        self.assertEqual(len(self.events), 1)
        self.queue.modify(limit=3)
        self.take(3)
        self.assertEqual([left for _, _, left in self.events], [8, 2])

    def test_below(self) -> None:
        """
        A limit above what is there is reached by the next request that is taken, and not
        before; taking from an empty queue does not reach it.
        """
        self.fill(1)
        self.queue.modify(limit=5)
        self.assertEqual(self.events, [])
        self.take(1)
        self.assertEqual(len(self.events), 1)
        self.queue.modify(limit=5)
        self.take(1)
        self.assertEqual((len(self.events), self.queue.limit), (1, 5))

    def test_again(self) -> None:
        """
        The limit can be set, and requests posted, in the event.
        """
        limits_: list[int] = []

        def refill(kind: EventType, element: object) -> None:
            limits_.append(len(self.queue))
            self.fill(2)
            self.queue.modify(limit=2)

        self.queue.onEvent = refill
        self.fill(2)
        self.queue.modify(limit=2)
        self.assertEqual(self.take(4), [0, 1, 0, 1])
        self.assertEqual(limits_, [1, 1])

    def test_noListener(self) -> None:
        """
        A limit without an event handler is reached all the same.
        """
        self.queue.onEvent = None
        self.fill(2)
        self.queue.modify(limit=2)
        self.take(1)
        self.assertEqual(self.queue.limit, 0)

    def test_modify(self) -> None:
        """
        Depth and limit change together or not at all.
        """
        self.fill(4)
        self.queue.modify(limit=2, depth=4)
        self.assertEqual((self.queue.limit, self.queue.depth), (2, 4))
        self.assertRaises(ResourceLimitError, self.queue.post, ReceiveRequest(9))
        self.queue.modify()
        for limit, depth in (
            (5, None),
            (-1, None),
            (1, 3),
            (None, 3),
            (None, 0),
            (9, 8),
            (1, limits.SHARED_RECEIVE_DEPTH + 1),
        ):
            self.assertRaises(ResourceLimitError, self.queue.modify, limit, depth)
            self.assertEqual((self.queue.limit, self.queue.depth), (2, 4))
        self.take(4)
        self.queue.modify(limit=2)
        self.assertRaises(ResourceLimitError, self.queue.modify, None, 1)
        self.queue.modify(limit=0, depth=limits.SHARED_RECEIVE_DEPTH)
        self.assertEqual((self.queue.limit, self.queue.depth), (0, limits.SHARED_RECEIVE_DEPTH))

    def test_close(self) -> None:
        """
        It closes when no queue pair takes from it, and takes nothing any more; its domain
        is busy until then.
        """
        self.queue.hold("queue pairs")
        self.fill(3)
        taken = self.queue.take()
        assert taken is not None
        error = self.assertRaises(ResourceBusyError, self.queue.close)
        self.assertEqual(str(error), "the shared receive queue is still used by 1 queue pairs")
        error = self.assertRaises(ResourceBusyError, self.memory.deallocateDomain, self.pd)
        self.assertIn("1 shared receive queues", str(error))
        self.assertEqual((len(self.queue), self.queue.closed), (2, False))
        self.queue.release("queue pairs")
        self.queue.close()
        self.queue.close()
        self.assertTrue(self.queue.closed)
        self.assertRaises(QueuePairError, self.queue.post, ReceiveRequest(0))
        self.queue.putBack(taken)
        self.assertIsNone(self.queue.take())
        self.memory.deallocateDomain(self.pd)
