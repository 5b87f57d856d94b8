"""
All tests of C{ib-perf}.
"""

from __future__ import annotations

from tests.tools.perf import test_processes
from twisted_ib.tools.perf.perf import TESTS


class AllTests(test_processes.ProcessTests):
    """
    As there.
    """

    names = [test.name for test in TESTS if test.name != test_processes.ALONE]
