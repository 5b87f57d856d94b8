"""
Tests for L{twisted_ib.tools.compare.results}.
"""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from tests.tools.compare.made import RESULTS
from twisted_ib.tools.compare.results import AGREEING, TIE, Figure, compared, isBetter, number, times


class RankTests(SynchronousTestCase):
    """
    Ranks, ties and ratios.
    """

    def places(self, isTime: bool = True, **measured: list[float]) -> dict[str, str]:
        """
        @return: the places of subjects with some figures.
        """
        figures = compared(measured, next(iter(measured)), isTime)
        self.assertEqual(list(figures), list(measured))
        return {name: figure.place for name, figure in figures.items()}

    def test_order(self) -> None:
        """
        Less time and more throughput are better, whatever the order of the subjects.
        """
        figures: dict[str, list[float]] = {"tcp": [100.0], "sdp": [10.0], "ib": [20.0]}
        self.assertEqual(self.places(**figures), {"tcp": "3", "sdp": "1", "ib": "2"})
        self.assertEqual(self.places(False, **figures), {"tcp": "1", "sdp": "3", "ib": "2"})

    def test_close(self) -> None:
        """
        Medians that are close are a tie, also if every round agrees; the next place counts all.
        """
        near = 10.0 * TIE
        found = self.places(a=[10.0] * 5, b=[near - 0.1] * 5, c=[near + 0.1] * 5)
        self.assertEqual(found, {"a": "1=", "b": "1=", "c": "3"})

    def test_disagreeing(self) -> None:
        """
        So are those about which too many rounds disagree.
        """
        for worse, place in ((1, "2"), (2, "1=")):
            other = [5.0] * worse + [30.0] * (5 - worse)
            self.assertEqual((5 - worse) / 5 >= AGREEING, place == "2")
            self.assertEqual(self.places(a=[10.0] * 5, b=other)["b"], place)

    def test_chain(self) -> None:
        """
        In a chain of neighbours the last one is not tied with the first.
        """
        found = self.places(a=[10.0], b=[11.0], c=[12.0], d=[13.0])
        self.assertEqual(found, {"a": "1=", "b": "1=", "c": "3=", "d": "3="})

    def test_better(self) -> None:
        """
        Nobody is better than himself, and of two at most one is.
        """
        self.assertFalse(isBetter([1.0, 2.0], [1.0, 2.0], True))
        self.assertTrue(isBetter([1.0, 2.0], [2.0, 4.0], True))
        self.assertFalse(isBetter([1.0, 2.0], [2.0, 4.0], False))

    def test_ratio(self) -> None:
        """
        A ratio is the median of the rounds' ratios, and above 1 it is better.
        """
        measured = {"tcp": [100.0, 200.0, 50.0], "sdp": [5.0, 25.0, 5.0]}
        self.assertEqual(compared(measured, "tcp", True)["sdp"].ratio, 10.0)
        self.assertEqual(compared(measured, "tcp", True)["tcp"].ratio, 1.0)
        self.assertEqual(compared(measured, "tcp", False)["sdp"].ratio, 0.1)

    def test_median(self) -> None:
        """
        One bad round is not seen in the median.
        """
        self.assertEqual(Figure((10.0, 9.0, 5000.0), 1.0, 1, False).median, 10.0)


class WordsTests(SynchronousTestCase):
    """
    Numbers.
    """

    def test_numbers(self) -> None:
        """
        Three digits, and thousands.
        """
        said = [number(value) for value in (5.789, 37.04, 99.4, 99.6, 12345.6, 0.0123)]
        self.assertEqual(said, ["5.79", "37", "99.4", "100", "12,346", "0.0123"])

    def test_times(self) -> None:
        """
        Two digits.
        """
        said = [times(value) for value in (12.6, 9.96, 9.94, 1.0, 0.26, 0.0834)]
        self.assertEqual(said, ["13x", "10x", "9.9x", "1.0x", "0.3x", "0.08x"])

    def test_JSON(self) -> None:
        """
        Programs get all rounds.
        """
        found = json.loads(json.dumps(RESULTS.json()))
        self.assertEqual((found["rounds"], found["baseline"]), (5, "tcp-nodelay"))
        self.assertEqual(found["machine"]["Python"], "CPython <3> & more")
        row = found["results"][0]
        self.assertEqual((row["placement"], row["measure"], row["bytes"]), ("split", "latency", 64))
        self.assertEqual(
            row["subjects"]["sdp"],
            {
                "median": 6.0,
                "lowest": 5.0,
                "highest": 900.0,
                "ratio": 10.0,
                "rank": 1,
                "tied": False,
                "rounds": [6.0, 5.0, 900.0, 6.0, 6.0],
            },
        )
