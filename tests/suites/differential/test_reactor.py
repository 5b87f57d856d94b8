"""
Twisted's reactors over TCP and over SDP, compared.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.suites.differential.known import KNOWN
from tests.suites.differential.reactors import scenarios
from tests.support.waiting import HANG_SECONDS


class ReactorTests(SynchronousTestCase):
    """
    A test for each scenario.
    """

    timeout = 4 * HANG_SECONDS

    def tearDown(self) -> None:
        # They are compared, too.
        self.flushLoggedErrors()


scenarios.addTests(ReactorTests)


class KnownTests(SynchronousTestCase):
    """
    The list.
    """

    def test_named(self) -> None:
        """
        What is known names scenarios.
        """
        self.assertEqual([each for each in KNOWN["reactor"] if each.split("/")[0] not in scenarios.named], [])
