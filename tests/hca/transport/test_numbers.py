"""
Tests for L{twisted_ib.hca.transport.psn} and L{twisted_ib.hca.transport.sendwindow}.
"""

from __future__ import annotations

from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.support.generated import given
from twisted_ib import limits
from twisted_ib.hca.transport import sendwindow
from twisted_ib.hca.transport.psn import HALF, extended, packets
from twisted_ib.hca.transport.sendwindow import SendWindow


class NumberTests(SynchronousTestCase):
    """
    24 bits and more.
    """

    def test_extended(self) -> None:
        """
        The nearest number is meant; of two as near the lower one.
        """
        for psn, near, found in (
            (0, 0, 0),
            (0xFFFFFF, 0, -1),
            (0, 0xFFFFFF, 0x1000000),
            (0xFFFFFF, 0x1000000, 0xFFFFFF),
            (0x7FFFFF, 0, 0x7FFFFF),
            (0x800000, 0, -0x800000),
            (5, 0x3000004, 0x3000005),
        ):
            self.assertEqual(extended(psn, near), found)

    @given(st.integers(0, 0xFFFFFF), st.integers(-(1 << 40), 1 << 40))
    def test_near(self, psn: int, near: int) -> None:
        """
        It has the bits, and is within half of all numbers.
        """
        found = extended(psn, near)
        self.assertEqual(found & 0xFFFFFF, psn)
        self.assertTrue(near - HALF <= found < near + HALF)

    def test_packets(self) -> None:
        """
        Nothing takes a packet, too.
        """
        for length, count in ((0, 1), (1, 1), (256, 1), (257, 2), (1 << 31, 1 << 23)):
            self.assertEqual(packets(length, 256), count)


class PacingTests(SynchronousTestCase):
    """
    Windows and times.
    """

    def test_slowStart(self) -> None:
        """
        At first the window grows by all that is acknowledged, to its bound.
        """
        pacing = SendWindow(None, None)
        self.assertEqual(pacing.window, sendwindow.TRANSPORT_WINDOW_FIRST)
        pacing.progressed(32, 0.0)
        self.assertEqual(pacing.window, 64)
        pacing.progressed(1000, 0.0)
        self.assertEqual(pacing.window, limits.TRANSPORT_WINDOW)

    def test_loss(self) -> None:
        """
        A loss halves it; then it grows by one each time that all of it is acknowledged.
        """
        pacing = SendWindow(None, None)
        pacing.lost(20)
        self.assertEqual(pacing.window, 10)
        for packets_, window in ((9, 10), (1, 11), (10, 11), (1, 12)):
            pacing.progressed(packets_, 0.0)
            self.assertEqual(pacing.window, window)
        for _ in range(10):
            pacing.lost(pacing.window)
        self.assertEqual(pacing.window, 2)

    def test_silence(self) -> None:
        """
        Silence makes it one; then it grows fast up to half of what it was.
        """
        pacing = SendWindow(None, None)
        pacing.silent(32)
        pacing.silent(1)
        self.assertEqual(pacing.window, 1)
        for packets_, window in ((1, 2), (2, 4), (4, 8), (8, 16), (8, 16), (7, 16), (1, 17)):
            pacing.progressed(packets_, 0.0)
            self.assertEqual(pacing.window, window)

    def test_time(self) -> None:
        """
        The first time is guessed, or what the timeout is; then it is RFC 6298's.
        """
        self.assertEqual(SendWindow(None, None).resendSeconds(), sendwindow.TRANSPORT_RESEND_FIRST)
        self.assertEqual(SendWindow(0.1, None).resendSeconds(), 0.1)
        self.assertEqual(SendWindow(1e-6, None).resendSeconds(), limits.TRANSPORT_RESEND_LEAST)
        pacing = SendWindow(None, 0.1)
        self.assertAlmostEqual(pacing.resendSeconds(), 0.1 + 4 * 0.05)
        pacing.measured(0.2)
        self.assertAlmostEqual(pacing.roundTrip(), 0.1125)
        self.assertAlmostEqual(pacing.resendSeconds(), 0.1125 + 4 * 0.0625)

    def test_room(self) -> None:
        """
        However long the round trip is, there is another attempt before the retries are used up.
        """
        for retries, seconds in ((7, 0.16), (3, 0.08), (0, 0.04)):
            self.assertAlmostEqual(SendWindow(0.04, 0.2, retries).resendSeconds(), seconds)

    def test_undone(self) -> None:
        """
        If that was no silence, nor is the window small any more.
        """
        pacing = SendWindow(None, 0.1)
        pacing.silent(32)
        pacing.progressed(1, 0.04)
        self.assertEqual(pacing.window, 33)
        pacing.silent(33)
        pacing.progressed(1, 0.11)
        self.assertEqual(pacing.window, 2)
        pacing.progressed(1, 0.04)
        self.assertEqual(pacing.window, 3)
        pacing = SendWindow(None, None)
        pacing.silent(32)
        pacing.progressed(1, 0.04)
        pacing.measured(1.5)
        self.assertEqual(pacing.window, 32)

    def test_backoff(self) -> None:
        """
        Each silence doubles it.  An acknowledgement of what was sent again ends that, unless it
        comes so soon that it is for the first transmission.
        """
        pacing = SendWindow(None, 0.1)
        first = pacing.resendSeconds()
        pacing.silent(1)
        pacing.silent(1)
        self.assertAlmostEqual(pacing.resendSeconds(), 4 * first)
        pacing.progressed(1, 0.04)
        self.assertAlmostEqual(pacing.resendSeconds(), 4 * first)
        pacing.progressed(1, 0.11)
        self.assertAlmostEqual(pacing.resendSeconds(), first)
        for _ in range(100):
            pacing.silent(1)
        self.assertEqual(pacing.resendSeconds(), sendwindow.TRANSPORT_RESEND_MOST)
