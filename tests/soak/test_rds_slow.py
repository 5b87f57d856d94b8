"""
One gibibyte for a receiver of RDS that reads slowly: see L{tests.test_rds_slow} and L{tests.test_rds_tcp}.
"""

from __future__ import annotations

from tests import test_rds_slow, test_rds_tcp


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


class TCPGibibyteTests(test_rds_tcp.SlowTests):
    """
    RDS over TCP.
    """

    offered = 1 << 30
    timeout = 600
