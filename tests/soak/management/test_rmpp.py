"""
The simulation of C{tests.hca.mad.rmpp} with the large number of seeds.
"""

from __future__ import annotations

from tests.hca.mad.rmpp import test_simulated


class SimulationTests(test_simulated.SimulationTests):
    """
    400 tables, and 1,000 responses to who has yet to prove that it exists.
    """

    seeds = 400
    answers = 1000
