"""
Tests of L{twisted_ib.verbs.core.readable}, and of the events that it tells.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from unittest.mock import Mock

from twisted.trial.unittest import SynchronousTestCase

from tests.support.descriptors import runForked
from twisted_ib.hca.base.events import EventType
from twisted_ib.verbs.core.readable import Readable
from twisted_ib.verbs.pyverbs import enums
from twisted_ib.verbs.pyverbs.cm.event import CMEventQueue, CMEventRecord
from twisted_ib.verbs.pyverbs.objects.cq import _CQEvents
from twisted_ib.verbs.pyverbs.objects.device import AsyncEvents


class ReadableTests(SynchronousTestCase):
    """
    L{Readable}, by epoll(7) with EPOLLET: a program may take one event for each edge that it hears of.
    """

    def setUp(self) -> None:
        """
        Something to watch.
        """
        self.readable = Readable()
        self.addCleanup(self.readable.close)

    def watched(self, fd: int) -> Callable[[], bool]:
        """
        @return: says whether there was an edge since it was asked last.
        """
        poller = select.epoll()
        self.addCleanup(poller.close)
        poller.register(fd, select.EPOLLIN | select.EPOLLET)
        return lambda: bool(poller.poll(0))

    def edges(self, fd: int, add: Callable[[], object], take: Callable[[], object]) -> None:
        """
        Assert that each event is an edge, also one that comes before another was taken, and nothing else is.
        """
        hears = self.watched(fd)
        self.assertFalse(hears())
        for _ in range(3):
            add()
            self.assertTrue(hears())
            self.assertFalse(hears())
        for left in (2, 1, 0):
            take()
            self.assertFalse(hears())
            self.assertEqual(bool(select.select([fd], [], [], 0)[0]), left > 0)
        add()
        self.assertTrue(hears())

    def test_edges(self) -> None:
        """
        Each event that is told is an edge; a condition that holds already is none.
        """
        hears = self.watched(self.readable.fd)
        for expected, call in (
            (True, self.readable.set),
            (False, self.readable.set),
            (True, self.readable.tell),
            (True, self.readable.tell),
            (False, self.readable.clear),
            (False, self.readable.clear),
            (True, self.readable.tell),
        ):
            call()
            self.assertEqual(hears(), expected)

    def test_closed(self) -> None:
        """
        One that is closed is told nothing.
        """
        self.readable.set()
        for call in (self.readable.close, self.readable.tell, self.readable.set, self.readable.clear):
            call()

    def test_clearedInChild(self) -> None:
        """
        A forked child shares the descriptor, and may have made it unreadable: an event is taken all the same.
        """
        events = AsyncEvents()
        events.readable = self.readable
        events.add(EventType.PORT_ACTIVE, None)
        self.assertEqual(runForked(self.readable.clear), 0)
        self.assertIsNotNone(events.take())
        self.edges(self.readable.fd, lambda: events.add(EventType.PORT_ACTIVE, None), events.take)

    def test_completions(self) -> None:
        """
        Events of completion queues.
        """
        events = _CQEvents()
        self.addCleanup(events.close)
        self.edges(events.readable.fd, lambda: events.add(Mock()), events.take)

    def test_asynchronous(self) -> None:
        """
        Asynchronous events.
        """
        events = AsyncEvents()
        events.readable = self.readable
        self.edges(self.readable.fd, lambda: events.add(EventType.PORT_ACTIVE, None), events.take)

    def test_manager(self) -> None:
        """
        Events of the communication manager.
        """
        events = CMEventQueue()
        events.attach(self.readable)
        self.edges(self.readable.fd, lambda: events.add(CMEventRecord(0, Mock())), events.take)

    def test_left(self) -> None:
        """
        The end of a connection is left to the program's next call, once, and is told of anew; no other event.
        """
        events, kinds = CMEventQueue(), enums.rdma_cm_event_type
        events.attach(self.readable)
        self.assertFalse(events.leave())
        end = CMEventRecord(int(kinds.RDMA_CM_EVENT_DISCONNECTED), Mock())
        events.add(end)
        with select.epoll() as poll:
            poll.register(self.readable.fd, select.EPOLLIN | select.EPOLLET)
            self.assertEqual(len(poll.poll(0)), 1)
            self.assertTrue(events.leave())
            self.assertEqual(len(poll.poll(0)), 1)
            self.assertFalse(events.leave())
            self.assertEqual(poll.poll(0), [])
        self.assertIs(events.take(), end)
        events.add(CMEventRecord(int(kinds.RDMA_CM_EVENT_CONNECT_REQUEST), Mock()))
        self.assertFalse(events.leave())
