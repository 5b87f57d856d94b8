"""
Fifty thousand datagrams for each fault of L{tests.rds.test_simulation}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.rds.test_simulation import simulate
from tests.support.waiting import HANG_SECONDS

DATAGRAMS = 50_000


class LongSimulationTests(SynchronousTestCase):
    """
    0 lost, 0 twice, order kept.
    """

    timeout = 20 * HANG_SECONDS

    def test_none(self) -> None:
        """
        Without faults, but with reconnects.
        """
        simulate(self, DATAGRAMS, (0, 0, 0), 0, 100)
        simulate(self, DATAGRAMS, (0, 0, 0), 20, 101)

    def test_loss(self) -> None:
        """
        1 and 10 percent are lost.
        """
        simulate(self, DATAGRAMS, (10, 0, 0), 20, 102)
        simulate(self, DATAGRAMS, (100, 0, 0), 20, 103)

    def test_duplication(self) -> None:
        """
        1 and 10 percent are repeated.
        """
        simulate(self, DATAGRAMS, (0, 10, 0), 20, 104)
        simulate(self, DATAGRAMS, (0, 100, 0), 20, 105)

    def test_corruption(self) -> None:
        """
        1 and 10 percent have a wrong bit.
        """
        simulate(self, DATAGRAMS, (0, 0, 10), 20, 106)
        simulate(self, DATAGRAMS, (0, 0, 100), 20, 107)

    def test_all(self) -> None:
        """
        1 percent, and 10, of each; either side connects.
        """
        simulate(self, DATAGRAMS, (10, 10, 10), 20, 108, onlySmaller=False)
        simulate(self, DATAGRAMS, (100, 100, 100), 20, 109, onlySmaller=False)
