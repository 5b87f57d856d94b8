"""
Transfers under loss, reordering and repetition.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.mad.rmpp.simulated import Answer, Simulation
from twisted_ib.hca.mad.rmpp.segments import RMPP_SECONDS

SEEDS = 20
ANSWERS = 20


class SimulationTests(SynchronousTestCase):
    """
    Tables of 0, 1, 2, 200 and 5,000 records.
    """

    seeds = SEEDS
    answers = ANSWERS

    def test_seeds(self) -> None:
        """
        Each arrives as it was sent, once, whatever the wire does.
        """
        for seed in range(self.seeds):
            simulation = Simulation(seed)
            self.assertTrue(simulation.run() == simulation.table, seed)

    def test_answers(self) -> None:
        """
        So does each response over a wire that loses a tenth, to a requester that has yet to prove that it
        exists, and in less time than a transfer may take.
        """
        # With 122 alone of 60 what may be sent before the proof is spent on what gets lost, so that the
        # receiver must ask: it is among the first.
        for seed in range(115, 115 + self.answers):
            simulation = Answer(seed)
            self.assertTrue(simulation.run() == simulation.table, seed)
            self.assertLess(simulation.now, RMPP_SECONDS / 2)
