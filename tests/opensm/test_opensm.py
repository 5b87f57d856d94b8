"""
All tests with OpenSM, where it is installed; else one that is skipped, and says why.
"""

from __future__ import annotations

from unittest import TestSuite

from twisted.trial.runner import TestLoader
from twisted.trial.unittest import SynchronousTestCase

from tests.opensm.lab import lacking

#: The modules that have them.
MODULES = ("master", "settings", "commands", "attack", "redirection")


class NoOpenSMTests(SynchronousTestCase):
    """
    The one test where there is no OpenSM to test with.
    """

    def test_opensm(self) -> None:
        """
        There is no OpenSM.
        """


def testSuite() -> TestSuite:
    """
    @return: what trial is to run.
    """
    loader = TestLoader()
    reason = lacking()
    if reason is not None:
        NoOpenSMTests.skip = reason
        return loader.loadClass(NoOpenSMTests)
    return loader.loadByNames([f"tests.opensm.{name}" for name in MODULES])
