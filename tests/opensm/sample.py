"""
Two tests with OpenSM, for a short run; L{tests.opensm.test_opensm} has all.
"""

from __future__ import annotations

from unittest import TestSuite

from tests.opensm.lab import lacking
from tests.opensm.test_opensm import NoOpenSMTests
from tests.support.optional import suiteUnless

#: OpenSM as master over switches; and what infiniband-diags say of a subnet that it has brought up.
TESTS = (
    "master.MasterTests.test_fatTree",
    "diagnostics.commands.CommandTests.test_commands",
)


def testSuite() -> TestSuite:
    """
    @return: the suite that trial is to run.
    """
    return suiteUnless(lacking(), NoOpenSMTests, "tests.opensm", TESTS)
