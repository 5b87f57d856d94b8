"""
Tests for the work of a L{Hub}: chains of requests, and completions.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib import limits
from twisted_ib.errors import QueuePairError, ResourceLimitError
from twisted_ib.hca.queues.completion import CompletionQueue, WCOpcode, WCStatus, WorkCompletion
from twisted_ib.verbs.core.hub import Hub


class ForeignError(Exception):
    """
    A failure in a skin's own words.
    """


class PostTests(SynchronousTestCase):
    """
    Chains of numbers, each of which is its own request.
    """

    def setUp(self) -> None:
        """
        Nothing is posted yet.
        """
        self.hub = Hub()
        self.accepted: list[int] = []
        self.refused: list[tuple[int, str]] = []
        self.refusal: Exception | None = None
        self.last = 5

    def take(self, link: int) -> int | None:
        """
        Take a request, with the lock held; 3 is one too many.

        @return: the next link.
        """
        self.assertEqual(self.hub._depth, 1)
        if link == 3:
            raise QueuePairError("3")
        self.accepted.append(link)
        return link + 1 if link < self.last else None

    def refuse(self, bad: str, link: int, error: BaseException) -> None:
        """
        Hear of a failure.
        """
        self.assertEqual(bad, "bad")
        self.refused.append((link, str(error)))
        if self.refusal is not None:
            raise self.refusal from error

    def post(self, first: int) -> None:
        """
        Post a chain, after which the lock is free.
        """
        try:
            self.hub.post(self.take, first, self.refuse, "bad")
        finally:
            self.assertTrue(self.hub.enterIfFree())
            self.hub.leave()

    def test_order(self) -> None:
        """
        All requests of a chain are posted, in order, and dropped objects are closed before.
        """
        self.hub.closes.dead.append(lambda: self.accepted.append(0))
        self.post(4)
        self.assertEqual((self.accepted, self.refused), ([0, 4, 5], []))

    def test_refused(self) -> None:
        """
        A chain ends at the first failure, which the program is told of; what is before it stays posted.
        """
        self.assertRaises(QueuePairError, self.post, 1)
        self.assertEqual((self.accepted, self.refused), ([1, 2], [(3, "3")]))

    def test_unreadable(self) -> None:
        """
        So it is with a link of which no request can be made.
        """

        def take(link: int) -> int | None:
            raise QueuePairError("unreadable")

        self.take = take  # type: ignore[method-assign]
        self.assertRaises(QueuePairError, self.post, 1)
        self.assertEqual((self.accepted, self.refused), ([], [(1, "unreadable")]))

    def test_named(self) -> None:
        """
        The program may be told in other words.
        """
        self.refusal = ForeignError()
        self.assertRaises(ForeignError, self.post, 3)
        self.assertEqual(self.refused, [(3, "3")])

    def test_circle(self) -> None:
        """
        A chain that is a circle ends after as many requests as a queue can have.
        """

        def take(link: int) -> int | None:
            self.accepted.append(link)
            return link

        self.take = take  # type: ignore[method-assign]
        self.assertRaises(ResourceLimitError, self.post, 1)
        self.assertEqual(len(self.accepted), limits.WORK_QUEUE_DEPTH)
        self.assertEqual([link for link, _ in self.refused], [1])


class PollTests(SynchronousTestCase):
    """
    Completions of a queue, on a device that has nothing to do.
    """

    def test_count(self) -> None:
        """
        As many are fetched as are asked for, the oldest first, and dropped objects are closed before.
        """
        hub, queue = Hub(), CompletionQueue(8)
        closed: list[int] = []
        hub.closes.dead.append(lambda: closed.append(hub._depth))

        class Open:
            """
            A device.
            """

            closed = False

        device: Any = Open()
        for each in range(3):
            queue.push(WorkCompletion(each, WCStatus.SUCCESS, WCOpcode.SEND, 1))
        found = [[each.workRequestID for each in hub.poll(device, queue, count)] for count in (0, 2, 8, 8)]
        self.assertEqual((found, closed), ([[], [0, 1], [2], []], [1]))
        self.assertTrue(hub.enterIfFree())
        hub.leave()
