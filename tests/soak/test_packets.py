"""
The tests of C{tests.hca.fabric.roce.test_flood} and C{tests.ipoib.protocol} with the large numbers.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.fabric.roce.flood import FloodTestCase
from tests.ipoib.protocol import simulation as ipoib
from tests.simulation.kinds import KINDS
from tests.simulation.run import Run
from twisted_ib import limits
from twisted_ib.ipoib.protocol.interfaces import COUNTERS


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


class IPoIBTests(SynchronousTestCase):
    """
    IPoIB machines.
    """

    def test_runs(self) -> None:
        """
        300 other seeds.
        """
        for seed in range(1000, 1300):
            ipoib.Run(seed).go()

    def test_damaged(self) -> None:
        """
        30,000 damaged frames: nothing is raised, and no table is larger than its bound.
        """
        node = ipoib.damage(2, 30_000)
        machine = node.machine
        self.assertLessEqual(set(node.counters), set(COUNTERS))
        self.assertLessEqual(len(machine.neighbours.entries), limits.IPOIB_NEIGHBOURS)
        self.assertLessEqual(len(machine._peers), limits.IPOIB_NEIGHBOURS)
        self.assertLessEqual(len(machine._connections), limits.IPOIB_CONNECTIONS)
        self.assertLessEqual(len(machine._groups), limits.IPOIB_GROUPS)
