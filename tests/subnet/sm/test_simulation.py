"""
Tests of a subnet manager in random subnets.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.subnet.sm.simulation import Simulation


class SimulationTests(SynchronousTestCase):
    """
    Subnets whose links come and go while SMPs are lost.

    @cvar seeds: how many; C{tests/soak} has more.
    """

    seeds = 3

    def test_settled(self) -> None:
        """
        In the end all is Active, there is a way between all CAs, and no node has another LID than ever.
        """
        for seed in range(self.seeds):
            self.assertEqual(Simulation(seed).run(), [], seed)
