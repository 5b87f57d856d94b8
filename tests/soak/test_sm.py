"""
The simulation of C{tests.hca.sm} with the large number of seeds.
"""

from __future__ import annotations

from tests.hca.sm import test_simulation


class SimulationTests(test_simulation.SimulationTests):
    """
    200 subnets.
    """

    seeds = 200
