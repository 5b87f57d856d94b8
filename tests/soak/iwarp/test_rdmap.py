"""
RDMAP with the large numbers.
"""

from __future__ import annotations

from tests.hca.fabric.iwarp.protocol import test_rdmap


class StoryTests(test_rdmap.StoryTests):
    """
    Random sequences of records.
    """

    seeds = range(400)


class MutationTests(test_rdmap.MutationTests):
    """
    Mutated streams.
    """

    count = 30_000
