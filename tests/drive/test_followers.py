"""
Tests for L{twisted_ib.drive.followers}; L{tests.blocking.test_loop} has those with threads.
"""

from __future__ import annotations

import errno
import os
from threading import RLock

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.drive.followers import GRACE_SECONDS, Followers
from twisted_ib.drive.waiter import LockQueue, Waiter


class Leader:
    """
    In the place of who drives: nobody leads.
    """

    def __init__(self) -> None:
        self.lock = RLock()
        self.lockQueue = LockQueue()
        self.leader = 0

    def own(self) -> None:
        """
        Do nothing.
        """


class Times:
    """
    An alarm that notes for when it is set.
    """

    def __init__(self) -> None:
        self.descriptor = 77
        self.seconds: list[float] = []

    def set(self, seconds: float) -> bool:
        """
        Note it.
        """
        self.seconds.append(seconds)
        return True


class LeftTests(SynchronousTestCase):
    """
    The leader leaves.
    """

    def setUp(self) -> None:
        """
        Two wait.
        """
        self.alarm = Times()
        self.followers = Followers(Leader(), -1, lambda: self.alarm)
        self.waiters = [Waiter(lambda: False, GRACE_SECONDS) for _ in range(2)]
        self.followers.waiters += self.waiters

    def woken(self) -> list[bool]:
        """
        @return: of each, whether it was woken.
        """
        return [not each.lock.locked() for each in self.waiters]

    def test_appointed(self) -> None:
        """
        The last is the deputy, and looks.
        """
        self.followers.left()
        self.assertIs(self.followers.deputy, self.waiters[1])
        self.assertEqual((self.woken(), self.waiters[1].leaves), ([False, True], 1))

    def test_goesOn(self) -> None:
        """
        A leader that goes on to wait is the deputy itself.
        """
        self.followers.left(True)
        self.assertEqual((self.followers.deputy, self.woken()), (None, [False] * 2))

    def test_awake(self) -> None:
        """
        A deputy that looks by itself is not woken, whether the leader goes on or not.
        """
        self.followers.deputy = self.waiters[0]
        for goesOn in (False, True):
            self.followers.left(goesOn)
        self.assertIs(self.followers.deputy, self.waiters[0])
        self.assertEqual((self.woken(), self.alarm.seconds), ([False] * 2, []))

    def test_rests(self) -> None:
        """
        For one that rests an alarm is set, once, and it is not woken.
        """
        (resting, _) = self.waiters
        self.followers.deputy = resting
        resting.alarm = self.followers.setAlarm(0.0)
        for goesOn in (True, False):
            self.followers.left(goesOn)
        self.assertEqual((self.woken(), self.alarm.seconds), ([False] * 2, [0.0, GRACE_SECONDS]))
        self.assertEqual((self.followers.rings, resting.leaves), (True, 1))

    def test_noAlarm(self) -> None:
        """
        Where no alarm can be set any more, one that rests is woken.
        """

        def refuse() -> Times:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        self.followers.openAlarm = refuse
        self.followers.deputy = self.waiters[0]
        self.waiters[0].alarm = self.alarm.descriptor
        self.followers.left()
        self.assertEqual(self.woken(), [True, False])

    def test_nobody(self) -> None:
        """
        Where nobody waits there is no deputy.
        """
        self.followers.waiters.clear()
        self.followers.left()
        self.assertEqual((self.followers.deputy, self.followers.leaves), (None, 1))
