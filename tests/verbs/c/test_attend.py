"""
Tests of the thread that always attends.
"""

from __future__ import annotations

from threading import Thread
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.verbs.c import attend
from twisted_ib.verbs.core.hub import hub


class BeginTests(SynchronousTestCase):
    """
    L{attend.begin}.
    """

    def test_locked(self) -> None:
        """
        The thread is started once, with the hub's lock held: identifiers of other threads, which count as its
        users with this lock, start no second one meanwhile.
        """
        free: list[bool] = []

        def look() -> None:
            free.append(hub.enterIfFree())
            if free[-1]:
                hub.leave()

        def begin() -> None:
            other = Thread(target=look)
            other.start()
            other.join()

        self.patch(attend, "_begun", False)
        with mock.patch.object(attend.attendance, "begin", begin):
            attend.begin()
            attend.begin()
        self.assertEqual(free, [False])
