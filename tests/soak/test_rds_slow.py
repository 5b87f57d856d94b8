"""
One gibibyte for a receiver of RDS that reads slowly: see L{tests.test_rds_slow}.
"""

from __future__ import annotations

from tests import test_rds_slow


class GibibyteTests(test_rds_slow.SlowTests):
    """
    In one process.
    """

    offered = 1 << 30
    timeout = 600


class ShmGibibyteTests(test_rds_slow.ShmSlowTests):
    """
    Over rings.
    """

    offered = 1 << 30
    timeout = 600
