"""
Tests for L{twisted_ib.hca.base.events}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.hca.base.events import EventType


class EventsTests(SynchronousTestCase):
    """
    L{EventType}.
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
