"""
The thread that serves peers while the program is busy elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.drive.sleeper import Sleeper
from twisted_ib.verbs.core import attendant
from twisted_ib.verbs.core.attendant import FEW_DRIVES, LEAST_PAUSE, MOST_PAUSE, ProgressThread
from twisted_ib.verbs.core.hub import Hub


class PauseTests(SynchronousTestCase):
    """
    When it looks again, and when it serves.
    """

    def pauses(
        self,
        count: int,
        isAwaited: bool,
        driven: float,
        drives: int = 1,
        isWatched: bool = False,
        served: int | None = None,
        unwatch: Callable[[], object] | None = None,
        isPolled: bool = False,
    ) -> tuple[list[float], int]:
        """
        @param drives: of the program in each pause.
        @param isWatched: whether pauses are in C; C{served}: what each of them serves.
        @param unwatch: called before each pause in Python.
        @param isPolled: whether a thread polls without driving.
        @param isAwaited: whether another thread waits.
        @param driven: when the program has driven last.
        @return: the pauses of the thread, and how often it served.
        """
        hub = mock.MagicMock(isAwaited=isAwaited, driven=driven, watch=None, unwatch=unwatch)
        hub.isPolled = isPolled
        type(hub).drives = mock.PropertyMock(side_effect=range(0, 1000, drives))
        hub.attend.return_value = False
        found: list[float] = []

        def wait(pause: float) -> int | None:
            found.append(pause)
            return served

        if isWatched:
            hub.watch = wait
        thread = ProgressThread.__new__(ProgressThread)
        thread._over = SimpleNamespace(  # type: ignore[assignment]
            wait=self.fail if isWatched and not isAwaited else wait,
            is_set=lambda: len(found) == count,
        )
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

    def test_polledInC(self) -> None:
        """
        So it does behind a thread whose polls are in vain, and drive nothing.
        """
        found, served = self.pauses(3, False, 0.0, 1, True, None, None, True)
        self.assertEqual((found, served), ([LEAST_PAUSE, 2 * LEAST_PAUSE, 4 * LEAST_PAUSE], 0))

    def test_calls(self) -> None:
        """
        Behind a thread that calls a verb now and then it serves after the shortest pause each time: such a
        program may look at its memory for what a peer writes there.
        """
        found, served = self.pauses(5, False, 0.0)
        self.assertEqual((found, served), ([LEAST_PAUSE] * 5, 4))

    def test_wanted(self) -> None:
        """
        Records that no thread takes end a pause in C, and are served although a thread has polled a moment
        ago; what has come and was no work is looked at once more, and what was served is followed by another
        such pause.  But not beside a thread that waits, which is woken for them.
        """
        recent = time.perf_counter() + 60
        for n, times in ((0, 4), (2, 0)):
            self.assertEqual(self.pauses(5, False, recent, 1, True, n), ([LEAST_PAUSE] * 5, times))
        for case in ((False, recent, 1, True, None), (True, 0.0, 1, True, 2)):
            found, served = self.pauses(5, *case)
            self.assertEqual((found[1], served), (2 * LEAST_PAUSE, 0))

    def test_unwatched(self) -> None:
        """
        Before a pause in Python nothing is kept for those in C, nor before a sleep.
        """
        for isAwaited, times in ((True, 5), (False, 0)):
            unwatch = mock.Mock()
            self.pauses(5, isAwaited, 0.0, 1, True, 0, unwatch)
            self.assertEqual(unwatch.call_count, times)
        sleeper, hub = Sleeper(), Hub()
        self.addCleanup(sleeper.close)
        hub.unwatch = unwatch = mock.Mock()
        # The sleep ends at once.
        sleeper.wake()
        hub.attend(sleeper)
        self.assertEqual(unwatch.call_count, 1)
