"""
Three programs of Debian on the libraries for C programs, for a short run; L{tests.cprograms} has more.
"""

from __future__ import annotations

from unittest import TestSuite

from tests.support.optional import suiteOf

#: One of libibverbs, one of librdmacm, one of perftest.  Where they cannot run they skip themselves.
TESTS = (
    "test_cprograms.ProgramTests.test_rc_roce0",
    "test_cprograms.ProgramTests.test_rping_shm0",
    "test_cprograms.ProgramTests.test_ib_write_bw_roce0",
)


def testSuite() -> TestSuite:
    """
    @return: the suite that trial is to run.
    """
    return suiteOf("tests.cprograms", TESTS)
