"""
Tests of the thread that always attends.
"""

from __future__ import annotations

import sys
from threading import Thread, get_ident
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


class LeaveTests(SynchronousTestCase):
    """
    L{attend.leave}: Python ends, in a program that is Python.
    """

    def ended(self, isInitialized: bool, isFinalized: bool = False, wanted: bool | None = None) -> int:
        """
        @param wanted: mpi4py's option whether it has MPI end.
        @return: how often MPI has ended.
        """
        mpi = mock.Mock()
        mpi.Is_initialized.return_value, mpi.Is_finalized.return_value = isInitialized, isFinalized
        package = mock.Mock(MPI=mpi)
        package.rc.finalize = wanted
        with mock.patch.dict(sys.modules, {"mpi4py": package, "mpi4py.MPI": mpi}):
            attend.leave()
        return mpi.Finalize.call_count

    def test_mpi(self) -> None:
        """
        MPI of mpi4py ends before Python, once, if it has begun and if it is to.
        """
        self.assertEqual(self.ended(True), 1)
        self.assertEqual(self.ended(True, wanted=True), 1)
        self.assertEqual(self.ended(True, wanted=False), 0)
        self.assertEqual(self.ended(True, isFinalized=True), 0)
        self.assertEqual(self.ended(False), 0)

    def test_none(self) -> None:
        """
        A program without it.
        """
        with mock.patch.dict(sys.modules):
            sys.modules.pop("mpi4py.MPI", None)
            attend.leave()


class EndTests(SynchronousTestCase):
    """
    L{attend.isEnding}.
    """

    def test_others(self) -> None:
        """
        The process ends for all threads but the one that ends it.
        """
        self.assertFalse(attend.isEnding())
        self.patch(attend, "_ending", get_ident())
        self.assertFalse(attend.isEnding())
        self.patch(attend, "_ending", get_ident() + 1)
        self.assertTrue(attend.isEnding())
