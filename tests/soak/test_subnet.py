"""
The host of a subnet is killed, as in C{tests.processes.subnet}, many times.
"""

from __future__ import annotations

from tests.processes.subnet import test_killed


class KilledTests(test_killed.KilledTests):
    """
    50 hosts.
    """

    rounds = 50
