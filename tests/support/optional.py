"""
Tests that need more than this package: one test that is skipped, and says why, stands for all where that is
missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from unittest import TestSuite

from twisted.trial.runner import TestLoader
from twisted.trial.unittest import SynchronousTestCase


def suiteOf(package: str, names: Iterable[str]) -> TestSuite:
    """
    @param names: of modules in the package, or of classes or methods in them: C{module.Class.test_method}.
    @return: the suite of exactly these tests.
    """
    return TestLoader().loadByNames([f"{package}.{name}" for name in names])


def suiteUnless(
    lacking: str | None, instead: type[SynchronousTestCase], package: str, names: Iterable[str]
) -> TestSuite:
    """
    @param lacking: the reason why the tests cannot run; L{None} if they can.
    @param instead: a test that skips itself for this reason, also in a process that loads it by its name.
    @param package: the package of the modules with the tests.
    @param names: see L{suiteOf}.
    @return: the suite that trial is to run.
    """
    return suiteOf(package, names) if lacking is None else TestLoader().loadClass(instead)
