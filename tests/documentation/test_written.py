"""
Tests that what is written is so: names, paths, tables, links.
"""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.documentation.pages import PAGES, README, ROOT, SITE
from twisted_ib.ipoib.protocol.interfaces import COUNTERS

DEMO = "python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/ib-demo"
TEST = (
    "python3 -m venv .venv && .venv/bin/pip install '.[test]' && .venv/bin/python -m twisted.trial -j2 tests"
)


def anchors(page: Path) -> set[str]:
    """
    @return: what a link to a part of a page may name.
    """
    text = page.read_text()
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w -]", "", each).strip().lower().replace(" ", "-") for each in headings}
    return slugs | set(re.findall(r"^\((.*)\)=$", text, re.MULTILINE))


def tableOf(page: str) -> list[str]:
    """
    @return: the first words of the rows of a page's tables.
    """
    return re.findall(r"^\| `([^` ]+)", (ROOT / page).read_text(), re.MULTILINE)


class WrittenTests(SynchronousTestCase):
    """
    README, the pages of the site, and what stands beside them.
    """

    def setUp(self) -> None:
        """
        Read the metadata.
        """
        self.metadata = ConfigParser()
        self.metadata.read(ROOT / "setup.cfg")

    def test_commands(self) -> None:
        """
        The README's two commands stand on a line of their own each, once.
        """
        lines = [line.strip() for line in README.read_text().splitlines()]
        self.assertEqual((lines.count(DEMO), lines.count(TEST)), (1, 1))

    def test_firstPage(self) -> None:
        """
        The README is a page, not a book.
        """
        self.assertLess(len(README.read_text().splitlines()), 150)

    def test_pidfile(self) -> None:
        """
        No example of twistd leaves a file in the current directory.
        """
        for path in (*PAGES, *(ROOT / "twisted_ib").rglob("*.py")):
            for line in path.read_text().splitlines():
                if re.search(r"\btwistd\b.* web ", line) and "--listen" in line:
                    self.assertIn("--pidfile=", line, path)

    def test_scripts(self) -> None:
        """
        Each command that is installed is described.
        """
        scripts = self.metadata["options.entry_points"]["console_scripts"].split("\n")
        described = tableOf("docs/tools.md")
        for script in scripts:
            if script:
                self.assertIn(script.split("=")[0].strip(), described)

    def test_extras(self) -> None:
        """
        Each extra is described, and C{all} has all that programs use but Dask.
        """
        extras = self.metadata["options.extras_require"]
        self.assertEqual(sorted(tableOf("docs/install.md")), sorted(extras))
        every = re.findall(r"\w+", extras["all"].partition("[")[2])
        self.assertEqual({*every, "all", "dask", "dev", "docs", "peers", "test"}, set(extras))

    def test_examples(self) -> None:
        """
        The README's table has every program of C{examples/}, and nothing else.
        """
        found = {
            path.name
            for path in (ROOT / "examples").glob("*.py")
            if 'if __name__ == "__main__"' in path.read_text()
        }
        self.assertEqual(sorted(tableOf("README.md")), sorted(found))

    def test_fallbacks(self) -> None:
        """
        Each kind of fallback is explained, and no other.
        """
        folders = "twisted_ib/blocking", "twisted_ib/switch", "twisted_ib/tools/run"
        switch = "".join(path.read_text() for each in folders for path in (ROOT / each).glob("*.py"))
        kinds = set(re.findall(r'(?:Fallback\(|\bkind = )"(\w+)"', switch))
        self.assertIn("no_listener", kinds)
        self.assertIn("timeout", kinds)
        self.assertEqual(sorted(tableOf("docs/why-tcp.md")), sorted(kinds))

    def test_counters(self) -> None:
        """
        Each counter of an IPoIB interface is explained.
        """
        self.assertLessEqual(set(COUNTERS), set(tableOf("docs/ipoib.md")))

    def test_paths(self) -> None:
        """
        The files that pages send their reader to exist.
        """
        ours = "hca|internet|rdma|rds|reactor|sdp|subnet|switch|verbs"
        folders = f"{ours}|benchmarks|docs|examples|newsfragments|tests|twisted|twisted_ib"
        seen = set()
        for page in PAGES:
            text = page.read_text()
            paths = re.findall(r"^- `([^` ]+)`:", text, re.MULTILINE)
            paths += re.findall(rf"`((?:{folders})/[a-z_/.]*)(?<!\.conf)`", text)
            for path in paths:
                self.assertTrue((ROOT / path).exists() or (ROOT / "twisted_ib" / path).exists(), (page, path))
            seen.update(paths)
        self.assertIn("hca/device/registry.py", seen)
        self.assertIn("tests/test_costs.py", seen)

    def test_links(self) -> None:
        """
        No link between pages is dead.
        """
        count = 0
        for page in (*PAGES, ROOT / "benchmarks" / "README.md"):
            for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
                name, _, anchor = target.partition("#")
                there = (page.parent / name).resolve() if name else page
                self.assertTrue(there.is_file(), (page, target))
                if anchor:
                    self.assertIn(anchor, anchors(there), (page, target))
                count += 1
        self.assertGreater(count, 30)

    def test_contents(self) -> None:
        """
        Each page of the site is in its table of contents, and the README leads to all but the news.
        """
        listed = (ROOT / "docs/index.md").read_text().splitlines()
        readme = README.read_text()
        for page in SITE:
            if page.stem != "index":
                self.assertIn(page.stem, listed)
                if page.stem != "news":
                    self.assertIn(f"(docs/{page.name})", readme)

    def test_layers(self) -> None:
        """
        The picture of the tree names folders and modules that exist.
        """
        picture = re.search(r"```text\n(.*?)```", (ROOT / "docs/design.md").read_text(), re.DOTALL)
        assert picture is not None
        named = re.findall(r"^([a-z/]+(?:, [a-z/]+)*),?  ", picture[1], re.MULTILINE)
        paths = [part.strip("/") for each in named for part in each.split(", ")]
        self.assertIn("hca/fabric/roce", paths)
        for path in paths:
            places = [ROOT / "twisted_ib" / path, ROOT / path]
            places += [(ROOT / "twisted_ib" / parent) / path for parent in ("reactor", "rds")]
            self.assertTrue(any(place.exists() for place in places), path)
