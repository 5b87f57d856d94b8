"""
Tests for C{docs.deadlinks}.
"""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from docs.deadlinks import deadLinks


class DeadLinksTests(SynchronousTestCase):
    """
    Links of a small site.
    """

    def test_found(self) -> None:
        """
        Files and parts of pages that are not there are found; all others, and links elsewhere, are none.
        """
        site = Path(self.mktemp())
        (site / "api").mkdir(parents=True)
        (site / "index.html").write_text(
            '<p id="top"><a href="#top"></a><a href="#gone"></a><a href="api/"></a><img src="no.png">'
            '<a href="api/index.html#a%20b"></a><a href="api/index.html#write%200"></a>'
            '<a href="https://example.com/#x"></a><a href="mailto:a@example.com"></a><a href="style.css"></a>'
        )
        (site / "api" / "index.html").write_text('<a name="a b" href="../index.html?x#top"></a>')
        (site / "style.css").write_text("")
        self.assertEqual(
            list(deadLinks(site)),
            [f"index.html: {each}" for each in ("#gone", "no.png", "api/index.html#write%200")],
        )
