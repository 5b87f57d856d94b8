"""
How a thread sleeps.
"""

from __future__ import annotations

import os
import select
import socket
from math import inf
from time import monotonic
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.support.waiting import HANG_SECONDS
from twisted_ib.drive.sleeper import (
    MOST_SECONDS,
    Sleep,
    Sleeper,
    awaitReady,
    bounded,
    milliseconds,
    unwatch,
    watch,
)
from twisted_ib.drive.waiter import Waiter

#: Seconds of a wait in vain.
SOON = 0.02
#: Two that are no descriptors.
MORE, OTHER = 1_000_007, 1_000_008
#: More than would fit in a pipe, at its least.
MANY = 4097


class Poller:
    """
    In the place of C{select.poll()}: nobody sleeps.

    @ivar found: What it returns.
    @ivar registered: Descriptors and their events.
    @ivar waited: The milliseconds of each sleep.
    """

    def __init__(self, *found: tuple[int, int]) -> None:
        """
        See the class.
        """
        self.found = list(found)
        self.registered: dict[int, int] = {}
        self.waited: list[int] = []

    def register(self, fd: int, events: int) -> None:
        """
        Take it.
        """
        self.registered[fd] = events

    def poll(self, time: int) -> list[tuple[int, int]]:
        """
        Note the time.
        """
        self.waited.append(time)
        return self.found


class AllowedTests(SynchronousTestCase):
    """
    What a sleep can last.
    """

    def test_bounded(self) -> None:
        """
        Any time and more than a sleep has are the most; what is over is none; milliseconds are rounded up.
        """
        for seconds, expected, time in (
            *((None, MOST_SECONDS, 1_048_576_000), (inf, MOST_SECONDS, 1_048_576_000)),
            *((2.5, 2.5, 2500), (0.0005, 0.0005, 1), (0.0, 0.0, 0), (-7.0, 0.0, 0)),
        ):
            self.assertEqual((bounded(seconds), milliseconds(seconds)), (expected, time))


class SleepTests(SynchronousTestCase):
    """
    L{Sleep} and L{Sleeper}.
    """

    def setUp(self) -> None:
        """
        Make a sleeper.
        """
        self.sleeper = Sleeper()
        self.addCleanup(self.sleeper.close)

    def test_bells(self) -> None:
        """
        Many wakes keep nobody, and all of them together end one sleep.
        """
        for _ in range(MANY):
            self.sleeper.wake()
        self.assertEqual(Sleep(HANG_SECONDS, self.sleeper, []).sleep(), {self.sleeper.fd})
        self.assertEqual(awaitReady(self.sleeper.fd, 0), 0)

    def test_readMeanwhile(self) -> None:
        """
        One that a forked child has read first ends the sleep as well.
        """
        self.sleeper.wake()
        poller = Poller((self.sleeper.fd, select.POLLIN))
        self.patch(select, "poll", lambda: poller)
        for _ in range(2):
            self.assertEqual(Sleep(HANG_SECONDS, self.sleeper, []).sleep(), {self.sleeper.fd})

    def test_ends(self) -> None:
        """
        It lasts as long as it may, or until an earlier time, and ends with any of its descriptors, or with
        the events of another one.
        """
        poller = Poller((OTHER, select.POLLOUT))
        self.patch(select, "poll", lambda: poller)
        sleep = Sleep(3.0, self.sleeper, [MORE])
        now = monotonic()
        found = [sleep.sleep(end, [(OTHER, select.POLLOUT)]) for end in (None, now - 1.0, now + 1e6)]
        self.assertEqual((found, poller.waited), ([{OTHER}] * 3, [3000, 0, 3000]))
        self.assertEqual(
            poller.registered, {self.sleeper.fd: select.POLLIN, MORE: select.POLLIN, OTHER: select.POLLOUT}
        )


class WaiterTests(SynchronousTestCase):
    """
    L{Waiter}.
    """

    def setUp(self) -> None:
        """
        Make one.
        """
        self.waiter = Waiter(lambda: False, 0.0)

    def test_lock(self) -> None:
        """
        A wake ends its sleep, or the next one, once, however often it is woken; else its time does.
        """
        self.assertFalse(self.waiter.done)
        for _ in range(2):
            self.waiter.wake()
        self.assertEqual([self.waiter.sleep(seconds, None) for seconds in (0.0, 0.0)], [True, False])
        began = monotonic()
        self.assertEqual(self.waiter.sleep(SOON, None), False)
        self.assertGreaterEqual(monotonic() - began, SOON)

    def test_kernel(self) -> None:
        """
        With descriptors its own one is rung, and silent when it has ended a sleep; another one may end it.
        """
        self.waiter.bell = bell = os.eventfd(0, os.EFD_NONBLOCK)
        self.addCleanup(os.close, bell)
        other: Any = Poller((bell + 1, select.POLLIN))
        self.assertEqual((self.waiter.sleep(2.0, other), other.waited), (True, [2000]))
        self.waiter.wake()
        rung: Any = Poller((bell + 1, select.POLLIN), (bell, select.POLLIN))
        self.assertIs(self.waiter.sleep(2.0, rung), True)
        self.assertRaises(BlockingIOError, os.eventfd_read, bell)
        silent: Any = Poller()
        self.assertIs(self.waiter.sleep(0.0, silent), False)

    def test_first(self) -> None:
        """
        Its descriptor may be 0, in a program without standard input.
        """
        rung: list[int] = []
        self.patch(os, "eventfd_write", lambda fd, _: rung.append(fd))
        self.waiter.bell = 0
        self.waiter.wake()
        self.assertEqual(rung, [0])


class AwaitReadyTests(SynchronousTestCase):
    """
    L{awaitReady}.
    """

    def test_readable(self) -> None:
        """
        It waits for octets, and for no longer than it is told; 0 only looks, as a time that is over.
        """
        reader, writer = os.pipe()
        for fd in reader, writer:
            self.addCleanup(os.close, fd)
        self.assertEqual([awaitReady(reader, seconds) for seconds in (0, -1.0)], [0, 0])
        began = monotonic()
        self.assertEqual(awaitReady(reader, SOON), 0)
        self.assertGreaterEqual(monotonic() - began, SOON)
        os.write(writer, b"!")
        for seconds in (0, HANG_SECONDS, 1e11, None):
            self.assertEqual(awaitReady(reader, seconds), select.POLLIN)

    def test_events(self) -> None:
        """
        Other events of a socket may be asked for, and its end is told in any case.
        """
        one, two = socket.socketpair()
        with one:
            with two:
                self.assertEqual(awaitReady(one, 0, select.POLLIN | select.POLLOUT), select.POLLOUT)
                self.assertEqual(awaitReady(one, 0, select.POLLRDHUP), 0)
            self.assertEqual(
                awaitReady(one, HANG_SECONDS, select.POLLRDHUP) & select.POLLRDHUP, select.POLLRDHUP
            )
            self.assertEqual(awaitReady(one, HANG_SECONDS, 0), select.POLLHUP)


class WatchTests(SynchronousTestCase):
    """
    L{watch} and L{unwatch}.
    """

    def test_gone(self) -> None:
        """
        A descriptor that is closed, or a file that cannot be watched, is no error; one that is watched
        already is.
        """
        poller, (reader, writer) = select.epoll(), os.pipe()
        file = os.open(os.devnull, os.O_RDONLY)
        self.addCleanup(os.close, file)
        watch(poller, file, select.EPOLLIN)
        os.close(writer)
        watch(poller, writer, select.EPOLLIN)
        watch(poller, reader, select.EPOLLIN)
        self.assertEqual([fd for fd, _ in poller.poll(0)], [reader])
        self.assertRaises(FileExistsError, watch, poller, reader, select.EPOLLIN)
        for fd in reader, writer, file:
            unwatch(poller, fd)
        self.assertEqual(poller.poll(0), [])
        os.close(reader)
        poller.close()
        unwatch(poller, reader)
