"""
The thread that serves peers while the program is busy elsewhere.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.verbs.core import attendant
from twisted_ib.verbs.core.attendant import FEW_DRIVES, LEAST_PAUSE, MOST_PAUSE, ProgressThread


class PauseTests(SynchronousTestCase):
    """
    When it looks again, and when it serves.
    """

    def pauses(self, count: int, isAwaited: bool, driven: float, drives: int = 1) -> tuple[list[float], int]:
        """
        @param drives: of the program in each pause.
        @param isAwaited: whether another thread waits.
        @param driven: when the program has driven last.
        @return: the pauses of the thread, and how often it served.
        """
        hub = mock.MagicMock(isAwaited=isAwaited, driven=driven)
        type(hub).drives = mock.PropertyMock(side_effect=range(0, 1000, drives))
        hub.attend.return_value = False
        found: list[float] = []

        def wait(pause: float) -> bool:
            found.append(pause)
            return len(found) == count

        thread = ProgressThread.__new__(ProgressThread)
        thread._over = SimpleNamespace(wait=wait, is_set=lambda: False)  # type: ignore[assignment]
        self.patch(attendant, "hub", hub)
        thread._run(mock.Mock())
        return found, hub.attend.call_count

    def test_polls(self) -> None:
        """
        While another thread polls or waits it looks ever more seldom.
        """
        for case in ((False, time.perf_counter() + 60), (True, 0.0), (False, 0.0, FEW_DRIVES + 1)):
            found, served = self.pauses(10, *case)
            self.assertEqual(served, 0)
            self.assertEqual(found[:3], [LEAST_PAUSE, 2 * LEAST_PAUSE, 4 * LEAST_PAUSE])
            self.assertEqual(found[-1], MOST_PAUSE)

    def test_calls(self) -> None:
        """
        Behind a thread that calls a verb now and then it serves after the shortest pause each time: such a
        program may look at its memory for what a peer writes there.
        """
        found, served = self.pauses(5, False, 0.0)
        self.assertEqual((found, served), ([LEAST_PAUSE] * 5, 4))
