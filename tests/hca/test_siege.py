"""
Tests with random records; C{tests/soak} has more of them.
"""

from __future__ import annotations

from tests.hca.siege import SiegeTestCase
from twisted_ib.hca.fabric.shm.shm import SharedMemoryFabric
from twisted_ib.hca.queues.completion import WCStatus


class RingSiegeTests(SiegeTestCase):
    """
    Over rings.
    """

    def test_siege(self) -> None:
        """
        See L{SiegeTestCase.siege}; much of what can happen does.
        """
        self.siege(1, 400)
        for status in (WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR, WCStatus.LOC_LEN_ERR):
            self.assertGreater(self.statuses[status], 0, status)


class CarrierSiegeTests(SiegeTestCase):
    """
    Over the pair's socket.
    """

    fabric = staticmethod(lambda owner, guid, clock: SharedMemoryFabric(owner, guid, clock, False))

    def test_siege(self) -> None:
        """
        See L{SiegeTestCase.siege}.
        """
        self.siege(2, 400)
