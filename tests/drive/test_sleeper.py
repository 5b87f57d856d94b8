"""
How a thread sleeps.
"""

from __future__ import annotations

import os
import select
import socket
from time import monotonic

from twisted.trial.unittest import SynchronousTestCase

from tests.support.waiting import HANG_SECONDS
from twisted_ib.drive.sleeper import awaitReady

#: Seconds of a wait in vain.
SOON = 0.02


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
