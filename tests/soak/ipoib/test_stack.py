"""
The stack in user space gets packets that are almost right.
"""

from __future__ import annotations

from tests.ipoib.userspace import test_userspace
from tests.support.counting import traced

COUNT = 30_000
#: Bytes that all of it may leave: among them the fragments of packets that wait for the rest.
MOST = 1 << 22


class MutatedTests(test_userspace.MutatedTests):
    """
    The same with more of them.
    """

    count = COUNT

    def test_mutated(self) -> None:
        """
        Nothing is raised, and little is kept.  Seed 20.
        """
        self.assertLess(traced(super().test_mutated)[0], MOST)
