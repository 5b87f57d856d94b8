"""
The simulation of C{tests.subnet.sm} with the large number of seeds, and the hosts of
C{tests.processes.subnet} that are killed.
"""

from __future__ import annotations

from tests.processes.subnet import test_killed
from tests.subnet.sm import test_simulation


class SimulationTests(test_simulation.SimulationTests):
    """
    200 subnets.
    """

    seeds = 200


class KilledTests(test_killed.KilledTests):
    """
    50 hosts.
    """

    rounds = 50
