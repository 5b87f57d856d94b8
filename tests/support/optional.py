"""
Tests that need more than this package: one test that is skipped, and says why, stands for all where that is
missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from unittest import TestSuite

from twisted.trial.runner import TestLoader
from twisted.trial.unittest import SynchronousTestCase


def suiteUnless(
    lacking: str | None, instead: type[SynchronousTestCase], package: str, modules: Iterable[str]
) -> TestSuite:
    """
    @param lacking: the reason why the tests cannot run; L{None} if they can.
    @param instead: the test that is skipped for this reason.
    @param package: the package of the modules with the tests.
    @return: the suite that trial is to run.
    """
    loader = TestLoader()
    if lacking is not None:
        instead.skip = lacking
        return loader.loadClass(instead)
    return loader.loadByNames([f"{package}.{name}" for name in modules])
