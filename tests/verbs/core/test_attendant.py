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
from twisted_ib.hca.base.polling import RARE
from twisted_ib.verbs.core import attendant
from twisted_ib.verbs.core.attendant import FEW_DRIVES, LEAST_PAUSE, MOST_PAUSE, ProgressThread
from twisted_ib.verbs.core.hub import DOZE_SECONDS, Hub


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
        isWanted: bool | None = None,
        unwatch: Callable[[], object] | None = None,
    ) -> tuple[list[float], int]:
        """
        @param drives: of the program in each pause.
        @param isWanted: what a pause in C finds; L{None} if it is in Python.
        @param unwatch: called before each pause in Python.
        @param isAwaited: whether another thread waits.
        @param driven: when the program has driven last.
        @return: the pauses of the thread, and how often it served.
        """
        hub = mock.MagicMock(isAwaited=isAwaited, driven=driven, watch=None, unwatch=unwatch)
        type(hub).drives = mock.PropertyMock(side_effect=range(0, 1000, drives))
        hub.attend.return_value = False
        found: list[float] = []

        def wait(pause: float) -> bool | None:
            found.append(pause)
            return isWanted

        if isWanted is not None:
            hub.watch = wait
        thread = ProgressThread.__new__(ProgressThread)
        thread._over = SimpleNamespace(  # type: ignore[assignment]
            wait=self.fail if isWanted is not None and not isAwaited else wait,
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
        ago.  But not beside a thread that waits, which is woken for them.
        """
        recent = time.perf_counter() + 60
        self.assertEqual(self.pauses(5, False, recent, isWanted=True), ([LEAST_PAUSE] * 5, 4))
        for case in ((False, recent, 1, False), (True, 0.0, 1, True)):
            found, served = self.pauses(5, *case)
            self.assertEqual((found[1], served), (2 * LEAST_PAUSE, 0))

    def test_unwatched(self) -> None:
        """
        Before a pause in Python nothing is kept for those in C, nor before a sleep.
        """
        for isAwaited, times in ((True, 5), (False, 0)):
            unwatch = mock.Mock()
            self.pauses(5, isAwaited, 0.0, 1, True, unwatch)
            self.assertEqual(unwatch.call_count, times)
        sleeper, hub = Sleeper(), Hub()
        self.addCleanup(sleeper.close)
        hub.unwatch = unwatch = mock.Mock()
        # The sleep ends at once.
        sleeper.wake()
        hub.attend(sleeper)
        self.assertEqual(unwatch.call_count, 1)


class DozeTests(SynchronousTestCase):
    """
    Between what it has served and its sleep.
    """

    def setUp(self) -> None:
        """
        A hub that always has something to serve.
        """
        self.hub = Hub()
        self.dozes: list[float] = []
        self.finds = False
        self.others = 0
        self.patch(self.hub, "drive", lambda: 1)
        self.hub.watch = self.watch

    def watch(self, seconds: float) -> bool:
        """
        Look for so long; other threads drive meanwhile.
        """
        self.dozes.append(seconds)
        self.hub.drives += self.others
        return self.finds

    def attended(self, count: int) -> list[bool]:
        """
        @return: what it says of each of so many times that it has served.
        """
        del self.dozes[:]
        return [self.hub.attend(mock.Mock()) for _ in range(count)]

    def test_pays(self) -> None:
        """
        While something comes soon, or another thread drives, which would have had to wake it, it dozes each
        time; and it does not sleep on the doorbells.
        """
        for self.finds, self.others in ((True, 0), (False, 1)):
            self.assertEqual(self.attended(100), [not self.others] * 100)
            self.assertEqual(self.dozes, [DOZE_SECONDS] * 100)
        self.assertFalse(self.hub._armed)

    def test_vain(self) -> None:
        """
        Where nothing does it looks for a moment, and dozes one time in 64; once something does it dozes again
        soon.
        """
        self.attended(10)
        self.attended(10 * RARE)
        self.assertEqual((self.dozes.count(DOZE_SECONDS), self.dozes.count(0.0)), (10, 10 * (RARE - 1)))
        self.finds = True
        self.attended(2 * RARE)
        self.attended(100)
        self.assertEqual(self.dozes, [DOZE_SECONDS] * 100)
