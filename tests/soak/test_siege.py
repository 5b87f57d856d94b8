"""
The tests of C{tests.hca.test_siege} with many seeds.
"""

from __future__ import annotations

from tests.hca.siege import SiegeTestCase
from twisted_ib.hca.fabric.shm.shm import SharedMemoryFabric

SEEDS, STEPS = range(1000, 1040), 1500


class RingSiegeTests(SiegeTestCase):
    """
    Over rings.
    """

    def test_sieges(self) -> None:
        """
        See L{SiegeTestCase.siege}.
        """
        for seed in SEEDS:
            self.siege(seed, STEPS)
            self.doCleanups()
            self.setUp()


class CarrierSiegeTests(RingSiegeTests):
    """
    Over the pair's socket.
    """

    fabric = staticmethod(lambda owner, guid, clock: SharedMemoryFabric(owner, guid, clock, False))
