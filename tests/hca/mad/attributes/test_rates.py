"""
Tests of L{twisted_ib.hca.mad.attributes.port}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.hca.mad.attributes.port import GIGABITS, linkRate

WIDTHS = {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
SPEEDS = {1: 2.5, 2: 5, 4: 10}
EXTENDED = {1: 14, 2: 25, 4: 50, 8: 100}


class RateTests(SynchronousTestCase):
    """
    L{linkRate}.
    """

    def test_links(self) -> None:
        """
        Every width and speed has the code of its rate (Linux C{enum ib_rate}).
        """
        for width, lanes in WIDTHS.items():
            for speed, gigabits in SPEEDS.items():
                self.assertEqual(GIGABITS[linkRate(width, speed, 0)], lanes * gigabits)
            for speed, gigabits in EXTENDED.items():
                self.assertEqual(GIGABITS[linkRate(width, 4, speed)], lanes * gigabits)

    def test_codes(self) -> None:
        """
        Codes as in IBTA vol. 1 15.2.5.16; what has no rate has the slowest.
        """
        for link, code in (((1, 1, 0), 2), ((2, 1, 0), 3), ((2, 4, 0), 7), ((2, 4, 2), 16), ((0, 0, 0), 2)):
            self.assertEqual(linkRate(*link), code)
