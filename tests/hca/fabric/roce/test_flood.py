"""
Tests of an HCA among strangers.  The full numbers are in C{tests/soak/test_packets.py}.
"""

from __future__ import annotations

from tests.hca.fabric.roce.flood import FloodTestCase
from twisted_ib import limits


class FloodTests(FloodTestCase):
    """
    Forged requests and damaged packets.
    """

    def test_small(self) -> None:
        """
        Some more than may be half open.
        """
        self.flood(6000, 1500)
        statistics = self.device.statistics()
        self.assertGreater(statistics["cm_half_open_replaced"], 1000)
        self.assertLessEqual(self.device.cm._halfOpenLimit.halfOpen, limits.CM_HALF_OPEN_ADDRESSES)
        # None of the strangers was given a queue pair or a protocol.
        self.assertEqual(self.accepted, self.honest + 3)
        for name in ("packets_malformed", "packets_bad_icrc", "packets_unknown_qp"):
            self.assertGreater(statistics[name], 0, name)
        # Requests that no listener answers wait for it; all others are given up in time.
        self.streams.world.run(lambda: not self.device.reservedNumbers, 400.0)
        self.assertEqual(self.device.reservedNumbers, {})
        self.assertTrue(
            all(
                connection.listener.__class__.__name__ == "_Deaf"
                for connection in self.device.cm._halfOpenLimit.oldest
            )
        )

    def test_oneSource(self) -> None:
        """
        One source takes its own places only.
        """
        self.stranger = lambda: "10.1.2.3"  # type: ignore[method-assign]
        self.honest = 0
        self.arrive(200, self.forged)
        self.assertEqual(self.device.cm._halfOpenLimit.halfOpen, limits.CM_HALF_OPEN_PER_ADDRESS)
