"""
Twisted's reactors over TCP and over SDP, compared.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.suites.differential.known import KNOWN
from tests.suites.differential.reactors import scenarios
from tests.support.waiting import HANG_SECONDS


class ReactorTests(SynchronousTestCase):
    """
    A test for each scenario.
    """

    timeout = 4 * HANG_SECONDS


def _test(name: str) -> Any:
    def test(self: SynchronousTestCase) -> None:
        found = scenarios.faults(name, scenarios.compared(name))
        # They are compared, too.
        self.flushLoggedErrors()
        self.assertEqual([], found)

    test.__doc__ = f"{name}: what a program sees is the same, but for what is known."
    return test


for _name in scenarios.named:
    setattr(ReactorTests, "test_" + _name.replace("-", "_").replace(".", "_").replace(" ", "_"), _test(_name))


class KnownTests(SynchronousTestCase):
    """
    The list.
    """

    def test_named(self) -> None:
        """
        What is known names scenarios.
        """
        self.assertEqual([each for each in KNOWN["reactor"] if each.split("/")[0] not in scenarios.named], [])
