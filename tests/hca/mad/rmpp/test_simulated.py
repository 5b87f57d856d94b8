"""
Transfers under loss, reordering and repetition.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.mad.rmpp.simulated import Simulation

SEEDS = 20


class SimulationTests(SynchronousTestCase):
    """
    Tables of 0, 1, 2, 200 and 5,000 records.
    """

    seeds = SEEDS

    def test_seeds(self) -> None:
        """
        Each arrives as it was sent, once, whatever the wire does.
        """
        for seed in range(self.seeds):
            simulation = Simulation(seed)
            self.assertTrue(simulation.run() == simulation.table, seed)
