"""
Order under fire of C programs that poll, with large numbers.
"""

from __future__ import annotations

from tests.verbs.c.polling.test_polling import DESTROYED, RING, PollingTestCase

FIRE_SECONDS = 300
#: Of a queue under fire, more than it has time for.
MESSAGES = 2_000_000
#: Of a ring, more than it takes in a second.
COMPLETIONS = 50_000_000
#: RDMA WRITEs of so many octets each, and how many of them.
WRITES = ((1, 10_000), (65, 100_000), (1024, 100_000), (4096, 10_000), (1 << 16, 1000), (1 << 20, 100))


class FireTests(PollingTestCase):
    """
    What the short tests do once.
    """

    def test_fire(self) -> None:
        """
        Eight threads poll eight queues for five minutes, in one process.
        """
        self.story("fire", MESSAGES, 8, 8, FIRE_SECONDS, seconds=2 * FIRE_SECONDS)

    def test_ring(self) -> None:
        """
        Four threads take from one ring for a second.
        """
        self.story(COMPLETIONS, 4, 1, source=RING)

    def test_changes(self) -> None:
        """
        A thousand queue pairs are destroyed amid polling, and the queue is resized at each of their requests.
        """
        for _ in range(20):
            self.story("changes", 50)

    def test_destroyed(self) -> None:
        """
        A thousand connections are destroyed amid their traffic.
        """
        for _ in range(20):
            self.story(50, source=DESTROYED)

    def test_killed(self) -> None:
        """
        A thousand peers are killed amid polling.
        """
        for _ in range(200):
            self.story("killed", 5)

    def test_memory(self) -> None:
        """
        A program that looks at the last octet of an RDMA WRITE of any size finds all before it.
        """
        for octets, count in WRITES:
            self.story("memory", count, octets, seconds=4 * FIRE_SECONDS)
