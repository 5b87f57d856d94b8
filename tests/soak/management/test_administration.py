"""
Subnet administration with the large numbers: the hostile test of C{tests.hca.sm.sa}, and joins and leaves of
identifiers.
"""

from __future__ import annotations

from tests.hca.sm.sa import test_mutated
from tests.hca.verbs.cm import test_subnet
from tests.support.counting import traced

COUNT = 30_000
#: Bytes that all of it may leave.
MOST = 1 << 24


class MutatedTests(test_mutated.MutatedTests):
    """
    Subnet administration.
    """

    count = COUNT

    def test_mutated(self) -> None:
        """
        Nothing is raised, and little is kept.  Seed 19.
        """
        self.assertLess(traced(super().test_mutated)[0], MOST)


class GroupTests(test_subnet.SubnetGroupTests):
    """
    A thousand groups leave nothing.
    """

    groupsJoined = 1000
