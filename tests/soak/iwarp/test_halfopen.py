"""
As many half-open iWARP connections as a device takes.
"""

from __future__ import annotations

import resource

from tests.hca.fabric.iwarp import test_hostile_servers
from twisted_ib.hca.fabric.iwarp.iwarp import IWARP_HALF_OPEN


class HalfOpenTests(test_hostile_servers.HalfOpenTests):
    """
    The real bound.
    """

    bound = IWARP_HALF_OPEN

    def setUp(self) -> None:
        """
        Both ends of each connection need a descriptor.
        """
        super().setUp()
        limits = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        needed = 2 * self.bound + 200
        if soft < needed:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, max(needed, hard)))
            self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
