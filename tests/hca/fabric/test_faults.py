"""
Tests of L{tests.hca.fabric.faults}.
"""

from __future__ import annotations

from random import Random
from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.hca.fabric import faults
from tests.hca.fabric.faults import FaultyLink

DATA = bytes(range(100))
TIMES = 2000


class Inner:
    """
    A link that remembers what it sends.
    """

    user: Any = None
    address = "10.0.0.1"
    burst = 16

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []

    def send(self, *arguments: Any) -> bool:
        self.sent.append(arguments)
        return True


class FaultTests(SynchronousTestCase):
    """
    The delivery of datagrams.
    """

    def rate(self, fault: faults.Fault, data: bytes = DATA) -> float:
        """
        The part that something happens to.
        """
        same = [fault(data, 0.0) == [(0.0, data)] for _ in range(TIMES)]
        return same.count(False) / TIMES

    def test_rates(self) -> None:
        """
        As often as it should be, and the same again for the same seed.
        """
        for kind in (
            *(faults.Loss, faults.Duplication, faults.Reordering, faults.Corruption, faults.Truncation),
            faults.AcknowledgementLoss,
        ):
            data = b"\x11" + DATA
            found = self.rate(kind(Random(1), 0.25), data)
            self.assertApproximates(found, 0.25, 0.04, kind.__name__)
            first, second = (kind(Random(2), 0.5) for _ in range(2))
            for _ in range(100):
                self.assertEqual(first(data, 0.0), second(data, 0.0))
            self.assertEqual(self.rate(kind(Random(1), 0.0), data), 0.0)

    def test_acknowledgements(self) -> None:
        """
        Nothing else is lost.
        """
        fault = faults.AcknowledgementLoss(Random(1), 1.0)
        for code in range(256):
            self.assertEqual(fault(bytes((code,)), 0.0) == [], code in (0x11, 0x12))

    def test_damage(self) -> None:
        """
        One bit is another, or the end is missing.
        """
        for _ in range(100):
            ((_, damaged),) = faults.Corruption(Random(_), 1.0)(DATA, 0.0)
            different = int.from_bytes(damaged, "big") ^ int.from_bytes(DATA, "big")
            self.assertEqual(different.bit_count(), 1)
            ((_, short),) = faults.Truncation(Random(_), 1.0)(DATA, 0.0)
            self.assertTrue(short and DATA.startswith(short))

    def test_times(self) -> None:
        """
        Delays are within their bounds.
        """
        for fault, least, most in (
            (faults.Delay(Random(1), 0.5, 0.25), 0.5, 0.75),
            (faults.Reordering(Random(1), 1.0, 0.5), 0.0, 0.5),
        ):
            found = [fault(DATA, 0.0)[0][0] for _ in range(TIMES)]
            self.assertTrue(least <= min(found) <= max(found) <= most)
        twice = faults.Duplication(Random(1), 1.0, 0.5)(DATA, 0.0)
        self.assertEqual([octets for _, octets in twice], [DATA, DATA])

    def test_bursts(self) -> None:
        """
        Losses come in runs.
        """
        fault = faults.Bursts(Random(3), 0.01, 8)
        lost = "".join("01"[not fault(DATA, 0.0)] for _ in range(TIMES)).split("0")
        runs = [len(run) for run in lost if run]
        self.assertGreater(max(runs), 4)
        self.assertGreater(len(runs), 5)

    def test_silence(self) -> None:
        """
        By the clock.
        """
        fault = faults.Outages(2.0, 5.0, 1.0)
        heard = [bool(fault(DATA, float(second))) for second in range(16)]
        self.assertEqual(heard, [True, *[False] * 2, *[True] * 5, *[False] * 2, *[True] * 5, False])
        fault = faults.LinkDown(3.0)
        self.assertEqual([bool(fault(DATA, float(second))) for second in range(5)], [True] * 3 + [False] * 2)

    def test_stale(self) -> None:
        """
        Earlier datagrams come again, a bounded number of them.
        """
        fault = faults.Replay(Random(1), 1.0, 3)
        for n in range(5):
            self.assertEqual(fault(bytes((n,)), 0.0), [(0.0, bytes((n,)))])
        fault.begin()
        seen = set()
        for _ in range(50):
            (_, old), (_, new) = fault(DATA, 0.0)
            self.assertEqual(new, DATA)
            seen.add(old)
        self.assertEqual(seen, {b"\2", b"\3", b"\4"})


class LinkTests(SynchronousTestCase):
    """
    L{FaultyLink}.
    """

    def setUp(self) -> None:
        """
        Without a fault.
        """
        self.clock = Clock()
        self.inner = Inner()
        self.link = FaultyLink(self.inner, [], self.clock.seconds, self.clock.callLater)

    def test_through(self) -> None:
        """
        Without faults all is as the link has it, but each datagram goes by itself.
        """
        self.link.user = self
        self.assertIs(self.inner.user, self)
        self.assertIs(self.link.user, self)
        self.assertEqual((self.link.address, self.link.burst), ("10.0.0.1", 1))
        self.assertTrue(self.link.send("10.0.0.2", 5, [DATA[:30], DATA[30:]], 40, 1, 2))
        self.assertEqual(
            self.inner.sent,
            [("10.0.0.2", 5, [DATA[at : at + 40]], len(DATA[at : at + 40]), 1, 2) for at in (0, 40, 80)],
        )

    def test_chain(self) -> None:
        """
        Each fault has what the one before leaves, and delays add up.
        """
        times: list[float] = []

        def note(datagram: bytes, now: float) -> faults.Deliveries:
            times.append(now)
            return [(1.0, datagram), (0.0, datagram + b"!")]

        self.clock.advance(10)
        self.link.faults += [faults.Delay(Random(1), 2.0), note, note]
        self.link.send("10.0.0.2", 5, [DATA], 100)
        self.assertEqual(times, [12.0, 13.0, 12.0])
        self.assertEqual(self.inner.sent, [])
        self.clock.advance(2)
        self.assertEqual([each[2] for each in self.inner.sent], [[DATA + b"!!"]])
        self.clock.advance(1)
        self.assertEqual([each[2][0][100:] for each in self.inner.sent], [b"!!", b"!", b"!"])
        self.clock.advance(1)
        self.assertEqual(self.inner.sent[3], ("10.0.0.2", 5, [DATA], 100, 0, 64))

    def test_refusal(self) -> None:
        """
        When there is no room nothing is sent.
        """
        self.link.refusal = faults.Refusal(Random(1), 0.5)
        answers = [self.link.send("10.0.0.2", 5, [DATA], 100) for _ in range(TIMES)]
        self.assertApproximates(answers.count(False) / TIMES, 0.5, 0.04)
        self.assertEqual(len(self.inner.sent), answers.count(True))
