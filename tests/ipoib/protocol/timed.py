"""
The base of tests of tables with timers.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.hca.base.timers import Timers


class TimedTestCase(SynchronousTestCase):
    """
    A clock and timers of the test's, and the user of a table, which has C{calls}.
    """

    user: Any

    def setUp(self) -> None:
        """
        Time begins.
        """
        super().setUp()
        self.now = 50.0
        self.timers = Timers(self.clock)

    def clock(self) -> float:
        """
        @return: the time.
        """
        return self.now

    def advance(self, seconds: float) -> None:
        """
        Let time pass, timer by timer.
        """
        end = self.now + seconds
        while (deadline := self.timers.deadline()) is not None and deadline <= end:
            self.now = deadline
            self.timers.tick(self.now)
        self.now = end

    def calls(self) -> list[Any]:
        """
        @return: what the user was asked for since the last call.
        """
        calls, self.user.calls = self.user.calls, []
        return calls
