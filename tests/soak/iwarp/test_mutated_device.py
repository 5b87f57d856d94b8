"""
iWARP devices and streams that no peer should send, in large numbers.
"""

from __future__ import annotations

from tests.hca.fabric.iwarp import test_mutated_streams


class MutatedStreamTests(test_mutated_streams.MutatedStreamTests):
    """
    30,000 connections.
    """

    count = 30_000
