"""
Two tests with TUN devices, for a short run; L{tests.tun.test_tun} has all.
"""

from __future__ import annotations

from unittest import TestSuite

from tests.support.optional import suiteUnless
from tests.tun.lab import lacking
from tests.tun.test_tun import NoTunTests

#: Pings in both modes, on a subnet; and a path MTU that ping and iperf3 learn.
TESTS = (
    "ping.SubnetPingTests.test_flood",
    "ping.PathTests.test_mixed",
)


def testSuite() -> TestSuite:
    """
    @return: the suite that trial is to run.
    """
    return suiteUnless(lacking(), NoTunTests, "tests.tun", TESTS)
