"""
The comparison of C{benchmarks} with all that it compares.
"""

from __future__ import annotations

from tests import test_benchmarks


class ComparisonTests(test_benchmarks.ProgramTests):
    """
    The programs, with more subjects.
    """

    subjects = ("tcp", "asyncio", "multiprocessing", "zmq", "iceoryx2")
