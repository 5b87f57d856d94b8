"""
Stories of C{tests/verbs/c/polling/polling.c}, for longer.
"""

from __future__ import annotations

import time

from tests.verbs.c.polling.test_polling import PollingTestCase

FIRE_SECONDS = 300
#: Rounds of a story, and how much of it each has.
CHANGES, KILLED = (10, 100), (50, 4)


class PollingSoakTests(PollingTestCase):
    """
    Order under fire.
    """

    def test_fire(self) -> None:
        """
        Eight threads poll eight queues for five minutes: each message comes once, with its octets, in order.
        """
        end = time.monotonic() + FIRE_SECONDS
        while time.monotonic() < end:
            self.story("fire", 500, 8, 8)

    def test_changes(self) -> None:
        """
        Queue pairs are destroyed and the queue is resized amid polling.
        """
        rounds, much = CHANGES
        for _ in range(rounds):
            self.story("changes", much)

    def test_killed(self) -> None:
        """
        Peers are killed amid polling.
        """
        rounds, much = KILLED
        for _ in range(rounds):
            self.story("killed", much)
