"""
All tests with real kernels, where there can be any; else one that is skipped, and says why.
"""

from __future__ import annotations

from unittest import TestSuite

from twisted.trial.runner import TestLoader
from twisted.trial.unittest import SynchronousTestCase

from tests.interop.lab.lab import lacking

#: The modules that have them.
MODULES = ("plain", "rping", "examples", "pingpong", "verbs", "rds")


class NoKernelTests(SynchronousTestCase):
    """
    The one test where there is no kernel to test with.
    """

    def test_kernels(self) -> None:
        """
        There is no kernel to talk to.
        """


def testSuite() -> TestSuite:
    """
    @return: what trial is to run.
    """
    loader = TestLoader()
    reason = lacking()
    if reason is not None:
        NoKernelTests.skip = reason
        return loader.loadClass(NoKernelTests)
    return loader.loadByNames([f"tests.interop.{name}" for name in MODULES])
