"""
All tests with TUN devices, where there can be any; else one that is skipped, and says why.
"""

from __future__ import annotations

from unittest import TestSuite

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.support.optional import suiteUnless
from tests.tun.lab import lacking

#: The modules that have them.
MODULES = ("commands", "ping", "multicast", "streams", "restarts")


class NoTunTests(SynchronousTestCase):
    """
    The one test where there is no TUN to test with.
    """

    def test_tun(self) -> None:
        """
        There are no TUN devices.
        """
        raise SkipTest(lacking() or "there is now")


def testSuite() -> TestSuite:
    """
    @return: the suite that trial is to run.
    """
    return suiteUnless(lacking(), NoTunTests, "tests.tun", MODULES)
