"""
Connections and queues whose processes are killed, at many moments.
"""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from tests.queues.killing import story

MOMENTS = 1000


class KilledTests(SynchronousTestCase):
    """
    The long form of L{tests.queues.test_killed}.
    """

    def test_moments(self) -> None:
        """
        The others get the data or the end within a second, what arrives is whole, and nothing is left.
        """
        self.assertEqual(story(random.randrange(1 << 30), MOMENTS), [])
