"""
One gibibyte for a receiver of RDS that reads slowly: see L{tests.rds.test_slow} and
L{tests.rds.media.test_tcp}.
"""

from __future__ import annotations

from tests.rds import test_slow
from tests.rds.media import test_tcp
from tests.support.waiting import HANG_SECONDS


class GibibyteTests(test_slow.SlowTests):
    """
    In one process.
    """

    offered = 1 << 30
    timeout = 10 * HANG_SECONDS


class ShmGibibyteTests(test_slow.ShmSlowTests):
    """
    Over rings.
    """

    offered = 1 << 30
    timeout = 10 * HANG_SECONDS


class TCPGibibyteTests(test_tcp.SlowTests):
    """
    RDS over TCP.
    """

    offered = 1 << 30
    timeout = 10 * HANG_SECONDS
