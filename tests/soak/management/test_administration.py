"""
Subnet administration with the large numbers: the hostile test of C{tests.subnet.sa}, and joins and leaves of
identifiers.
"""

from __future__ import annotations

from tests.subnet.sa import test_mutated
from tests.support.counting import traced
from tests.verbs.pyverbs.cm import test_subnet

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
