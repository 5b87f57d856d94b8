"""
Threads that wait while another one, their leader, drives the devices.

Each waits for its own wake-up, which the leader gives when its condition holds.  When the leader leaves, one
of them is the deputy: it leads if nobody else has led for L{GRACE_SECONDS}.  So a thread that receives and
sends in turns keeps leading, and is not woken by another one for each message.  While others go on to lead,
the deputy looks more and more seldom, up to L{GRACE_SECONDS_MOST}; while one of them sleeps it rests on an
alarm, which is set as that one leaves.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from typing import Final, Protocol

from twisted_ib.drive.process import monotonic
from twisted_ib.drive.waiter import DrivingLock, LockQueue, Waiter, handlers

#: Seconds without a leader after which the deputy leads, which looks that often: longer than a thread takes
#: between a receive and the next, shorter than a person notices.
GRACE_SECONDS: Final = 1e-3
GRACE_SECONDS_MOST: Final = 8e-3


class Alarm(Protocol):
    """
    A descriptor that becomes readable at a time.
    """

    descriptor: int

    def set(self, seconds: float) -> bool:
        """
        Choose the time anew; until then it is not readable.

        @param seconds: From now; 0 for never.
        @return: False if the descriptor is no alarm any more.
        """


class Leading(Protocol):
    """
    A reactor of several threads, one of which leads.
    """

    lock: DrivingLock
    lockQueue: LockQueue
    leader: int

    def own(self) -> None:
        """
        The calling thread has the lock: the devices belong to it.
        """


class Followers:
    """
    Those of one reactor.  All is called with its lock.

    @ivar waiters: Those that wait, the last that came last.
    @ivar deputy: One of them, or L{None}.
    @ivar leaves: How often leaders have left.
    @ivar openAlarm: Makes an alarm, or raises an error where there are none.
    @ivar alarm: Ends the sleep of the deputy once nobody has led for long enough; while the leader sleeps it
        is not set.
    @ivar rings: Whether it is set.
    """

    def __init__(self, driving: Leading, descriptor: int, openAlarm: Callable[[], Alarm]) -> None:
        """
        @param descriptor: Is readable when the devices have something to do.
        @param openAlarm: See the class.
        """
        self._driving = driving
        self._descriptor = descriptor
        self.openAlarm = openAlarm
        self.waiters: list[Waiter] = []
        self.deputy: Waiter | None = None
        self.leaves = 0
        self.alarm: Alarm | None = None
        self.rings = False

    def left(self, goesOn: bool = False) -> None:
        """
        The leader has left.

        @param goesOn: Whether it goes on to wait: then it is the deputy itself, unless there is one.
        """
        self.leaves += 1
        if self.waiters:
            deputy = self.deputy
            if deputy is None:
                if not goesOn:
                    self._appoint(self.waiters[-1])
            # An alarm that is set stays: to set one for each message takes nearly as long as a message.
            elif deputy.alarm >= 0 and not self.rings:
                self._appoint(deputy)

    def _appoint(self, waiter: Waiter) -> None:
        # The last: a thread that waits within a signal handler does not look at its earlier wait.
        self.deputy = waiter
        waiter.leaves = self.leaves
        if waiter.alarm < 0 or self.setAlarm(waiter.grace) < 0:
            waiter.wake()

    def wait(self, waiter: Waiter, deadline: float | None, kernel: select.poll | None) -> bool | None:
        """
        Wait while another thread leads.

        @param waiter: Of the calling thread.
        @param deadline: C{time.monotonic()} at which the wait ends; L{None} for never.
        @param kernel: A C{select.poll} object whose descriptors end it, too, or L{None}.
        @return: Whether the condition holds, or one of them is ready; False if the time was over first;
            L{None} if this thread is to lead.
        """
        self.waiters.append(waiter)
        deputy = self.deputy
        if deputy is None:
            isNext = not self._driving.leader
        else:
            # It led, and woke another thread, which has more to do with what comes next.
            isNext = deputy.thread == waiter.thread
        if isNext:
            self.deputy = waiter
            waiter.leaves = self.leaves
        try:
            if kernel is not None:
                waiter.bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
                kernel.register(waiter.bell, select.POLLIN)
            return self._sleepOn(waiter, deadline, kernel)
        finally:
            self.waiters.remove(waiter)
            waiter.done = False
            if waiter.bell >= 0 and kernel is not None:
                kernel.unregister(waiter.bell)
                os.close(waiter.bell)
                waiter.bell = -1
            if self.deputy is waiter:
                self.deputy = None
                if not self._driving.leader and self.waiters:
                    self._appoint(self.waiters[-1])

    def _sleepOn(self, waiter: Waiter, deadline: float | None, kernel: select.poll | None) -> bool | None:
        driving = self._driving
        while True:
            seconds = None if deadline is None else max(0.0, deadline - monotonic())
            isDeputy = self.deputy is waiter
            if isDeputy and waiter.alarm < 0 and (seconds is None or seconds > waiter.grace):
                seconds = waiter.grace
            try:
                woken = handlers.aside(driving, isDeputy, waiter.sleep, seconds, kernel)
            finally:
                driving.own()
            # A sleep that nothing has ended has asked the kernel, too.
            if waiter.ready() or (woken and kernel and isReady(kernel, self._descriptor, waiter.bell)):
                return True
            waiter.done = False
            if deadline is not None and monotonic() >= deadline:
                return False
            if woken or not isDeputy:
                continue
            if self.leaves == waiter.leaves:
                if not driving.leader:
                    waiter.grace = GRACE_SECONDS
                    return None
                # A leader that stays needs no deputy, until it leaves: that is not to wake a thread.
                waiter.alarm = -1 if kernel is None else self.setAlarm(0.0)
                self.deputy = waiter if waiter.alarm >= 0 else None
            elif waiter.grace < GRACE_SECONDS_MOST:
                # A thread that led meanwhile leads again when it waits again.
                waiter.grace *= 2
            waiter.leaves = self.leaves

    def setAlarm(self, seconds: float) -> int:
        """
        @param seconds: From now; 0 for never.
        @return: The descriptor of L{alarm}; -1 if there is none.
        """
        try:
            alarm = self.alarm = self.alarm or self.openAlarm()
        except (OSError, AttributeError):
            # As where the C library has no such call.
            return -1
        if alarm.set(seconds):
            self.rings = seconds > 0
            return alarm.descriptor
        # Another file's, of a program that closes what it does not know.
        self.alarm = None
        self.rings = False
        return -1

    def close(self) -> None:
        """
        Close the alarm.
        """
        # Not another file's.
        if self.alarm is not None and self.alarm.set(0.0):
            os.close(self.alarm.descriptor)


def isReady(kernel: select.poll, *own: int) -> bool:
    """
    @param own: Descriptors in it that do not count.
    @return: Whether another one is ready.
    """
    return any(each not in own for each, _ in kernel.poll(0))
