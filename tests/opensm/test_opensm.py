"""
All tests with OpenSM, where it is installed; else one that is skipped, and says why.
"""

from __future__ import annotations

from unittest import TestSuite

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.opensm.lab import lacking
from tests.support.optional import suiteUnless

#: The modules that have them.
MODULES = (
    *("master", "own", "settings", "attack", "osmtest", "administration"),
    *("diagnostics.commands", "diagnostics.redirection"),
    *("processes.attached", "processes.interfaces", "processes.library"),
)


class NoOpenSMTests(SynchronousTestCase):
    """
    The one test where there is no OpenSM to test with.
    """

    def test_opensm(self) -> None:
        """
        There is no OpenSM.
        """
        raise SkipTest(lacking() or "there is now")


def testSuite() -> TestSuite:
    """
    @return: the suite that trial is to run.
    """
    return suiteUnless(lacking(), NoOpenSMTests, "tests.opensm", MODULES)
