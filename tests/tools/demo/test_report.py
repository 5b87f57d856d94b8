"""
Tests for the figures of C{ib-demo}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.tools.demo.report import between, faster, fileLines, middle, rounded, tripLines


class RangeTests(SynchronousTestCase):
    """
    Ranges.
    """

    def test_middle(self) -> None:
        """
        A quarter at each end is left out, of few nothing.
        """
        self.assertEqual(middle([5.0, 1.0, 9.0, 2.0, 3.0, 4.0, 8.0, 7.0]), [3.0, 4.0, 5.0, 7.0])
        self.assertEqual(middle([2.0, 1.0, 3.0]), [1.0, 2.0, 3.0])

    def test_rounded(self) -> None:
        """
        Two digits, downwards and upwards; those that have no more stay.
        """
        found = [(rounded(value, False), rounded(value, True)) for value in (5.71, 123.0, 0.0987, 99.5)]
        expected = [(5.7, 5.8), (120, 130), (0.098, 0.099), (99, 100)]
        for pair, wanted in zip(found, expected, strict=True):
            self.assertApproximates(pair[0], wanted[0], 1e-12)
            self.assertApproximates(pair[1], wanted[1], 1e-12)
        for value in (0.1 * 3, 7.0, 10.0, 1200.0, 5.8):
            self.assertApproximates(rounded(value, True), value, 1e-12)
            self.assertApproximates(rounded(value, False), value, 1e-12)

    def test_between(self) -> None:
        """
        A range has two ends, but where they are the same.
        """
        self.assertEqual(between([5.71, 6.09]), "5.7 to 6.1")
        self.assertEqual(between([64.0, 1234.0]), "64 to 1,300")
        self.assertEqual(between([7.0, 7.0]), "7.0")


class WordsTests(SynchronousTestCase):
    """
    The lines.
    """

    def test_faster(self) -> None:
        """
        The faster one comes first; rounds that disagree, or differ by little, make no difference.
        """
        self.assertEqual(
            faster("SDP", [10.0, 21.0], "TCP", [1.0, 2.0]), "SDP is 10 to 11 times as fast as TCP"
        )
        self.assertEqual(
            faster("SDP", [1.0, 2.0], "TCP", [2.0, 5.0]), "TCP is 2.0 to 2.5 times as fast as SDP"
        )
        for mine in ([9.0, 11.0], [11.0, 11.0], [9.0, 20.0]):
            said = faster("SDP", mine, "TCP", [10.0, 10.0])
            self.assertEqual(said, "between SDP and TCP the rounds make no difference")

    def test_trips(self) -> None:
        """
        Round trips are times: less is faster.
        """
        trips = {"SDP": [5e-6, 6e-6], "TCP": [1e-4, 1e-4], "TCP NODELAY": [6e-5, 6e-5]}
        self.assertEqual(
            "\n".join(tripLines(trips, 64, "both on one CPU")),
            """\
Round trips of 64 bytes to Twisted's echo server, both on one CPU:
  SDP          5.0 to 6.0 us
  TCP          100 us
  TCP NODELAY  60 us
SDP is 10 to 12 times as fast as TCP NODELAY.""",
        )

    def test_files(self) -> None:
        """
        Rates of a file are compared with TCP's.
        """
        files = {"TCP": [5e8, 6e8], "SDP": [5e8, 7e8], "SDP, zero copy": [2e9, 1.8e9]}
        self.assertEqual(
            "\n".join(fileLines(files, 32 << 20)),
            """\
A file of 32 MiB, from one process to the other:
  TCP             500 to 600 MB/s
  SDP             500 to 700 MB/s
  SDP, zero copy  1,800 to 2,000 MB/s
Between SDP and TCP the rounds make no difference.
SDP, zero copy is 3.0 to 4.0 times as fast as TCP.""",
        )
