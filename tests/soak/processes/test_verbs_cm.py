"""
The story of L{tests.processes.verbs.cmtalk} with many connections.
"""

from __future__ import annotations

from tests.processes.verbs.test_cm import StoryTestCase


class StoryTests(StoryTestCase):
    """
    Connection identifiers of verbs in two processes.
    """

    def test_many(self) -> None:
        """
        Many connections of one process to another.
        """
        self.story("many")
