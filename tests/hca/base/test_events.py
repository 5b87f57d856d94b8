"""
Tests for L{twisted_ib.hca.base.events}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib import limits
from twisted_ib.hca.base.events import AsyncEvents, EventType


class EventsTests(SynchronousTestCase):
    """
    L{AsyncEvents}.
    """

    def test_numbers(self) -> None:
        """
        The numbers are those of verbs.
        """
        self.assertEqual([int(kind) for kind in EventType], list(range(20)))
        self.assertEqual(EventType.CQ_ERR, 0)
        self.assertEqual(EventType.COMM_EST, 4)
        self.assertEqual(EventType.SQ_DRAINED, 5)
        self.assertEqual(EventType.DEVICE_FATAL, 8)
        self.assertEqual(EventType.SRQ_LIMIT_REACHED, 15)
        self.assertEqual(EventType.QP_LAST_WQE_REACHED, 16)

    def test_order(self) -> None:
        """
        Events come out in the order they came in, with their objects.
        """
        events = AsyncEvents()
        self.assertIsNone(events.take())
        events.add(EventType.COMM_EST, "a")
        events.add(EventType.CQ_ERR, "b")
        self.assertEqual(len(events), 2)
        self.assertEqual(events.take(), (EventType.COMM_EST, "a"))
        self.assertEqual(events.take(), (EventType.CQ_ERR, "b"))
        self.assertIsNone(events.take())

    def test_bound(self) -> None:
        """
        Too many events are counted, and the oldest stay.
        """
        events = AsyncEvents()
        for number in range(limits.ASYNC_EVENTS + 3):
            events.add(EventType.COMM_EST, number)
        self.assertEqual((len(events), events.lost), (limits.ASYNC_EVENTS, 3))
        self.assertEqual(events.take(), (EventType.COMM_EST, 0))
        events.add(EventType.COMM_EST, "late")
        self.assertEqual(events.lost, 3)

    def test_forget(self) -> None:
        """
        The events of an object go with it: of that object, not of one that is equal.
        """
        events = AsyncEvents()
        one: list[int] = []
        two: list[int] = []
        for element in (one, two, one):
            events.add(EventType.QP_FATAL, element)
        events.forget(one)
        self.assertEqual(len(events), 1)
        found = events.take()
        assert found is not None
        self.assertIs(found[1], two)
