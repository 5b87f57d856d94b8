"""
Tests for L{twisted_ib.hca.core.completion}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib import limits
from twisted_ib.errors import ResourceBusyError, ResourceLimitError
from twisted_ib.hca.core.completion import (
    CompletionQueue,
    WCFlags,
    WCOpcode,
    WCStatus,
    WorkCompletion,
)


def completion(number: int, queuePair: int = 17) -> WorkCompletion:
    """
    A completed send.
    """
    return WorkCompletion(number, WCStatus.SUCCESS, WCOpcode.SEND, queuePair)


class NumbersTests(SynchronousTestCase):
    """
    The numbers are those of verbs.
    """

    def test_statuses(self) -> None:
        """
        Statuses count from 0 to 21; those that peers see are compared one by one.
        """
        self.assertEqual([int(status) for status in WCStatus], list(range(22)))
        self.assertEqual(WCStatus.LOC_PROT_ERR, 4)
        self.assertEqual(WCStatus.WR_FLUSH_ERR, 5)
        self.assertEqual(WCStatus.REM_INV_REQ_ERR, 9)
        self.assertEqual(WCStatus.REM_ACCESS_ERR, 10)
        self.assertEqual(WCStatus.REM_OP_ERR, 11)
        self.assertEqual(WCStatus.RETRY_EXC_ERR, 12)
        self.assertEqual(WCStatus.RNR_RETRY_EXC_ERR, 13)

    def test_opcodes(self) -> None:
        """
        What is sent counts from 0, what is received from 128.
        """
        self.assertEqual([int(opcode) for opcode in WCOpcode], [*range(10), 0x80, 0x81])

    def test_flags(self) -> None:
        """
        Flags are bits.
        """
        self.assertEqual([int(flag) for flag in WCFlags], [1, 2, 4])


class CompletionQueueTests(SynchronousTestCase):
    """
    L{CompletionQueue}.
    """

    def test_order(self) -> None:
        """
        Completions come out in the order they came in, as many as asked for.
        """
        queue = CompletionQueue(10)
        for number in range(5):
            self.assertTrue(queue.push(completion(number)))
        self.assertEqual([c.workRequestID for c in queue.poll()], [0])
        self.assertEqual([c.workRequestID for c in queue.poll(3)], [1, 2, 3])
        self.assertEqual(len(queue), 1)
        self.assertEqual([c.workRequestID for c in queue.poll(3)], [4])
        self.assertEqual(queue.poll(3), [])

    def test_overflow(self) -> None:
        """
        A completion too many is lost, and the queue says so; those before it stay.
        """
        queue = CompletionQueue(2)
        self.assertTrue(queue.push(completion(1)))
        self.assertTrue(queue.push(completion(2)))
        self.assertFalse(queue.overflowed)
        self.assertFalse(queue.push(completion(3)))
        self.assertTrue(queue.overflowed)
        self.assertEqual([c.workRequestID for c in queue.poll(9)], [1, 2])
        self.assertTrue(queue.push(completion(4)))
        self.assertTrue(queue.overflowed)

    def test_depth(self) -> None:
        """
        The depth is bounded.
        """
        CompletionQueue(limits.COMPLETION_QUEUE_DEPTH)
        for depth in (-1, 0, limits.COMPLETION_QUEUE_DEPTH + 1):
            self.assertRaises(ResourceLimitError, CompletionQueue, depth)

    def test_busy(self) -> None:
        """
        A queue that work queues use does not close.
        """
        queue = CompletionQueue(9)
        queue.hold("work queues")
        queue.hold("work queues")
        error = self.assertRaises(ResourceBusyError, queue.close)
        self.assertIn("2 work queues", str(error))
        queue.release("work queues")
        queue.release("work queues")
        queue.close()

    def test_repr(self) -> None:
        """
        A completion's text names the request, kind, status and queue pair.
        """
        self.assertEqual(repr(completion(7)), "<WorkCompletion 7 SEND SUCCESS of queue pair 17>")
