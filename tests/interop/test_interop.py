"""
All tests with real kernels, where there can be any; else one that is skipped, and says why.
"""

from __future__ import annotations

from unittest import TestSuite

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.interop.lab.lab import hasNeighbour, lacking
from tests.support.optional import suiteUnless

#: The modules that have them.
MODULES = (
    "plain",
    "rping",
    "examples",
    "pingpong",
    "verbs",
    "rds",
    "siw",
    "adapters.rxe",
    "adapters.rping",
    "adapters.rdmacore",
    "adapters.gone",
    "adapters.siw",
    "adapters.wired",
    "adapters.pair",
    "cprograms.rxe",
    "cprograms.siw",
)


class NoKernelTests(SynchronousTestCase):
    """
    The one test where there is no kernel to test with.
    """

    def test_kernels(self) -> None:
        """
        There is no kernel to talk to.
        """
        raise SkipTest(lacking() or "there is now")


def testSuite() -> TestSuite:
    """
    @return: the suite that trial is to run.
    """
    # iWARP has a TCP connection for each queue pair: its processes share no port.
    modules = [each for each in MODULES if not (hasNeighbour() and each.endswith("siw"))]
    return suiteUnless(lacking(), NoKernelTests, "tests.interop", modules)
