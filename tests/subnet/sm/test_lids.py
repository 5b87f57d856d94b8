"""
Tests of L{twisted_ib.subnet.sm.routing}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.subnet.sm.subnets import adapter, ports
from twisted_ib.subnet.sm.model import Port
from twisted_ib.subnet.sm.routing import LIDs


def having(**lids: int) -> list[Port]:
    """
    @return: ports with the GUIDs C{g1}, C{g2} ..., and the LIDs that they have.
    """
    return ports(adapter(int(name[1:]), lid) for name, lid in lids.items())


class LIDsTests(SynchronousTestCase):
    """
    Which port gets which LID.
    """

    def test_new(self) -> None:
        """
        Ports without LIDs get the lowest in turn.
        """
        self.assertEqual(LIDs().assign(having(g5=0, g3=0, g9=0), 100), {5: 1, 3: 2, 9: 3})

    def test_kept(self) -> None:
        """
        Ports keep the LIDs that they have, whoever gave them, and others get what is between.
        """
        self.assertEqual(LIDs().assign(having(g1=0, g2=1, g3=7, g4=0), 100), {1: 2, 2: 1, 3: 7, 4: 3})

    def test_back(self) -> None:
        """
        A port that was gone gets its LID back, also if it comes without one; nobody else had it meanwhile.
        """
        lids = LIDs()
        lids.assign(having(g1=0, g2=0, g3=0), 100)
        self.assertEqual(lids.assign(having(g1=1, g3=3, g4=0), 100), {1: 1, 3: 3, 4: 4})
        self.assertEqual(lids.assign(having(g1=1, g2=0, g3=3, g4=4), 100), {1: 1, 2: 2, 3: 3, 4: 4})

    def test_duplicate(self) -> None:
        """
        Of two ports with one LID the one that had it before keeps it, else the first.
        """
        lids = LIDs()
        self.assertEqual(lids.assign(having(g1=5, g2=5), 100), {1: 5, 2: 1})
        self.assertEqual(lids.assign(having(g3=5, g1=5, g2=1), 100), {1: 5, 2: 1, 3: 2})

    def test_moved(self) -> None:
        """
        A LID in use takes precedence over one that a port had when it was gone.
        """
        lids = LIDs()
        lids.assign(having(g1=0, g2=0), 100)
        self.assertEqual(lids.assign(having(g1=1, g3=2), 100), {1: 1, 3: 2})
        self.assertEqual(lids.assign(having(g1=1, g2=0, g3=2), 100), {1: 1, 2: 3, 3: 2})

    def test_highest(self) -> None:
        """
        No LID is beyond what all switches can forward; when all were used, those of ports that are gone are
        given away, the oldest first, and then there are none.
        """
        lids = LIDs()
        self.assertEqual(lids.assign(having(g1=0, g2=4, g3=0xFFFF), 3), {1: 1, 2: 2, 3: 3})
        lids.assign(having(g2=2, g3=3), 3)
        lids.assign(having(g3=3), 3)
        self.assertEqual(lids.assign(having(g3=3, g4=0), 3), {3: 3, 4: 1})
        self.assertEqual(lids.assign(having(g3=3, g4=1, g5=0, g6=0), 3), {3: 3, 4: 1, 5: 2})
        self.assertEqual(len(lids), 3)
