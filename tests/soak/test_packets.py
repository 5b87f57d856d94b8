"""
The tests of C{tests.hca.fabric.roce.test_flood} with the large numbers.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.fabric.roce.flood import FloodTestCase
from tests.simulation.kinds import KINDS
from tests.simulation.run import Run


class FloodTests(FloodTestCase):
    """
    Forged requests and damaged packets.
    """

    def test_large(self) -> None:
        """
        100,000 forged requests and 30,000 damaged packets.
        """
        self.flood(100_000, 30_000)


class SimulationTests(SynchronousTestCase):
    """
    Other seeds than in every run of the tests.
    """

    def test_runs(self) -> None:
        """
        250 runs of each kind.
        """
        for kind in KINDS:
            for seed in range(10_000, 10_250):
                Run(seed, kind).go()
