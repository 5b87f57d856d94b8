"""
Two tests with a real kernel, for a short run; L{tests.interop.test_interop} has all.
"""

from __future__ import annotations

from unittest import TestSuite

from tests.interop.lab.lab import lacking
from tests.interop.test_interop import NoKernelTests
from tests.support.optional import suiteUnless

#: In RoCE as client, in iWARP as server; both use one guest.
TESTS = (
    "rping.RoundsTests.test_client5000",
    "siw.RoundsTests.test_server5000",
)


def testSuite() -> TestSuite:
    """
    @return: the suite that trial is to run.
    """
    return suiteUnless(lacking(), NoKernelTests, "tests.interop", TESTS)
