"""
Order under fire of C programs that poll, with large numbers.
"""

from __future__ import annotations

import time

from tests.verbs.c.polling.test_polling import PollingTestCase

FIRE_SECONDS = 300.0


class FireTests(PollingTestCase):
    """
    What the short tests do once.
    """

    def test_fire(self) -> None:
        """
        Eight threads poll eight queues for five minutes.
        """
        began = time.monotonic()
        while time.monotonic() - began < FIRE_SECONDS:
            self.story("fire", 1000, 8, 8)

    def test_changes(self) -> None:
        """
        A thousand queue pairs are destroyed amid polling, and the queue is resized at each of their requests.
        """
        for _ in range(20):
            self.story("changes", 50)

    def test_killed(self) -> None:
        """
        A thousand peers are killed amid polling.
        """
        for _ in range(200):
            self.story("killed", 5)
