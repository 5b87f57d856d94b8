"""
Datagrams between processes that share addresses, see L{tests.soak.killed.datagrams}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.soak.killed.datagrams import story
from tests.support.waiting import HANG_SECONDS

PROCESSES, DATAGRAMS, KILLS = 4, 1000, 4


class DatagramTests(SynchronousTestCase):
    """
    L{PROCESSES} on each of two addresses.
    """

    timeout = 10 * HANG_SECONDS

    def test_owners(self) -> None:
        """
        None is lost, and the order is kept, when those are killed that have the connections.
        """
        found, isGood = story(PROCESSES, DATAGRAMS, KILLS)
        self.assertTrue(isGood, found)
