"""
Tests of L{twisted_ib.rds.media.tcpcarrier} without a network; those with one are in
L{tests.rds.media.test_tcp}.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.rds.media.tcpcarrier import TCPCarrier
from twisted_ib.rds.protocol.machine import RDSMessage


class Polled:
    """
    A transport, and the path, of a carrier that is polled.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.reactor = self
        self.network = self
        self.written = self.behind = 0
        self.looks: list[float] = []
        self.done: list[int] = []

    def callLater(self, delay: float, call: Any) -> Any:
        return self.clock.callLater(delay, call)

    def writeSequence(self, pieces: list[bytes]) -> None:
        self.written += sum(map(len, pieces))

    def unacknowledged(self) -> int:
        self.looks.append(self.clock.seconds())
        return self.behind

    def acknowledged(self, carrier: Any, sequence: int) -> None:
        self.done.append(sequence)


class PollingTests(SynchronousTestCase):
    """
    How often a carrier asks what the peer's host has acknowledged.
    """

    def setUp(self) -> None:
        """
        Three messages of 58 bytes have been sent, with their headers, and one without a number.
        """
        self.clock = Clock()
        ends: Any = Polled(self.clock)
        self.ends = ends
        self.carrier = TCPCarrier(ends, None)
        self.carrier.path = self.carrier.transport = ends
        for sequence in (1, 2, 3, 0):
            message = RDSMessage(4000, 5000, b"0123456789")
            message.sequence = sequence
            self.carrier.send(message)
        self.carrier.flush()
        ends.behind = ends.written

    def look(self) -> None:
        """
        Pass the time until the next look.
        """
        (call,) = self.clock.getDelayedCalls()
        self.clock.advance(call.getTime() - self.clock.seconds())

    def test_backoff(self) -> None:
        """
        After 1 ms, then twice as long each time, up to 50 ms; anew when something was acknowledged.
        """
        for _ in range(9):
            self.look()
        for look, expected in zip(self.ends.looks, (1, 3, 7, 15, 31, 63, 113, 163, 213), strict=True):
            self.assertAlmostEqual(look, expected / 1000)
        self.ends.behind = 3 * 58
        self.look()
        self.look()
        self.assertEqual(self.ends.done, [1])
        self.assertAlmostEqual(self.ends.looks[-1] - self.ends.looks[-2], 0.001)

    def test_whole(self) -> None:
        """
        A message is acknowledged with its last byte; with the last message there are no more looks.
        """
        for behind, done in ((175, []), (174, [1]), (117, [1]), (116, [1, 2]), (58, [1, 2, 3])):
            self.ends.behind = behind
            self.look()
            self.assertEqual(self.ends.done, done)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_stopped(self) -> None:
        """
        A carrier that has ended does not look.
        """
        self.carrier._stopLooking()
        self.assertEqual(self.clock.getDelayedCalls(), [])
