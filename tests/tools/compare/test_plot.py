"""
Tests for L{twisted_ib.tools.compare.plot}.
"""

from __future__ import annotations

from xml.etree.ElementTree import Element, fromstring

from twisted.trial.unittest import SynchronousTestCase

from tests.tools.compare.made import RESULTS
from twisted_ib.tools.compare.plot import CHART_WIDTH, LABEL_WIDTH, VALUE_WIDTH, Axis, plot

SVG = "{http://www.w3.org/2000/svg}"


class AxisTests(SynchronousTestCase):
    """
    Axes.
    """

    def test_steps(self) -> None:
        """
        They go from 0 in round steps, at most five, and end at or after the largest value.
        """
        axes = [Axis.of(most) for most in (0.7, 4.9, 5.0, 5.1, 72.0, 100.0, 9001.0)]
        found = [(axis.step, axis.end) for axis in axes]
        expected = [(0.2, 0.8), (1, 5), (1, 5), (2, 6), (20, 80), (20, 100), (2000, 10000)]
        for (step, end), (wantedStep, wantedEnd) in zip(found, expected, strict=True):
            self.assertAlmostEqual(step, wantedStep)
            self.assertAlmostEqual(end, wantedEnd)

    def test_ticks(self) -> None:
        """
        The first tick is 0, the last one the end.
        """
        self.assertEqual(Axis.of(72.0).ticks, [0, 20, 40, 60, 80])


class PlotTests(SynchronousTestCase):
    """
    The picture.
    """

    def setUp(self) -> None:
        """
        Draw it.
        """
        self.text = plot(RESULTS)
        # It raises ParseError for what is no XML.
        self.root = fromstring(self.text)

    def each(self, kind: str, style: str) -> list[Element]:
        """
        @return: the elements of a kind and a class.
        """
        return [element for element in self.root.iter(SVG + kind) if element.get("class") == style]

    def test_bars(self) -> None:
        """
        Bars are as long as the medians on their axis, ours and others told apart.
        """
        width = CHART_WIDTH - LABEL_WIDTH - VALUE_WIDTH
        [ours] = self.each("rect", "ours")
        others = self.each("rect", "other")
        lengths = [float(each.get("width", "")) for each in (ours, *others)]
        for length, part in zip(lengths, (6 / 80, 60 / 80, 1100 / 1500), strict=True):
            self.assertAlmostEqual(length, width * part, places=0)

    def test_spread(self) -> None:
        """
        The line of the rounds ends with the axis.
        """
        ends = [float(each.get("x2", "")) for each in self.each("line", "spread")]
        axes = [float(each.get("x1", "")) for each in self.each("line", "grid")]
        self.assertEqual(max(ends[:2]), max(axes[:5]))

    def test_words(self) -> None:
        """
        Titles, units, values, the machine; a subject without a figure in a chart has its line all the same.
        """
        said = [element.text for element in self.root.iter(SVG + "text")]
        for text in (
            "Each end on a CPU of its own",
            "Both ends on one CPU",
            "Round trip of 64 bytes",
            "us, less is better",
            "MB/s, more is better",
            "6  (10x)",
            "1,100  (1.0x)",
            "shorter messages only",
        ):
            self.assertEqual(said.count(text), 1, text)
        self.assertEqual(said.count("sdp:"), 2)
        self.assertIn("CPython <3> & more, Twisted 26.10.0", " ".join(filter(None, said)))
        self.assertNotIn("<3>", self.text)

    def test_dark(self) -> None:
        """
        Each class of the light style has a colour for dark viewers, and the background is the picture's own.
        """
        [style] = (element.text or "" for element in self.root.iter(SVG + "style"))
        light, _, dark = style.partition("@media (prefers-color-scheme: dark)")
        for name in (".note, .tick", ".paper", ".grid", ".spread", ".ours", ".other", "text"):
            self.assertIn(f"  {name} {{", light)
            self.assertIn(f"    {name} {{", dark)
        [paper] = self.each("rect", "paper")
        self.assertEqual(float(paper.get("width", "")), float(self.root.get("width", "")) - 1)

    def test_inside(self) -> None:
        """
        Nothing is outside of the picture: texts are taken as 7 pixels a character.
        """
        width, height = (float(self.root.get(name, "")) for name in ("width", "height"))
        for element in self.root.iter(SVG + "text"):
            x, y = float(element.get("x", "")), float(element.get("y", ""))
            long = 7 * len(element.text or "")
            shift = {"start": 0.0, "middle": 0.5, "end": 1.0}[element.get("text-anchor", "")]
            isNote = element.get("class") in ("note", "tick")
            self.assertGreaterEqual(x - shift * long * (0.8 if isNote else 1), 0, element.text)
            self.assertLessEqual(x + (1 - shift) * long * (0.8 if isNote else 1), width, element.text)
            self.assertTrue(0 < y < height)
