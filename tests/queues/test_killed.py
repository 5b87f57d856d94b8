"""
Tests of processes that are killed at random moments: a short form of C{tests.soak.killed.test_queues}.
"""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from tests.queues.killing import KINDS, story

#: Moments: one of each kind.
SHORT = len(KINDS)


class KilledTests(SynchronousTestCase):
    """
    The others get the data or the end within a second, what arrives is whole, and nothing is left.
    """

    def test_moments(self) -> None:
        """
        An end of a connection, a listener or a client, a producer or a consumer of each kind of queue, and
        the writer or a reader of a broadcast.
        """
        self.assertEqual(story(random.randrange(1 << 30), SHORT), [])
