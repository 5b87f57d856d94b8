"""
Tests of processes that are killed at random moments: a short form of C{tests.soak.killed.test_queues}.
"""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from tests.queues.killing import story

#: Moments.
SHORT = 16


class KilledTests(SynchronousTestCase):
    """
    Nobody waits for ever, what arrives is whole, and nothing is left.
    """

    def test_moments(self) -> None:
        """
        An end of a connection, a producer or a consumer of a queue, and a writer or a reader of a broadcast.
        """
        self.assertEqual(story(random.randrange(1 << 30), SHORT), [])
