"""
Tests for the HTML reference: its links, and what its search finds.
"""

from __future__ import annotations

import json
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from docs.deadlinks import deadLinks
from docs.links import PYTHON, TWISTED, ZOPE, isInterface, urlOf
from tests.test_layering import ROOT

#: What the search finds of the small package.
_FOUND = {
    "small",
    "small.inside",
    "small.inside.deep.Base",
    "small.seen",
    "small.seen.Seen",
    "small.seen.call",
}


class LinkTests(SynchronousTestCase):
    """
    Names that are documented elsewhere.
    """

    def test_urls(self) -> None:
        """
        A name that exists has a link.
        """
        defer = f"{TWISTED}/twisted.internet.defer"
        for name, url in (
            ("None", f"{PYTHON}/constants.html#None"),
            ("bytes", f"{PYTHON}/stdtypes.html#bytes"),
            ("bytes.join", f"{PYTHON}/stdtypes.html#bytes.join"),
            ("len", f"{PYTHON}/functions.html#len"),
            ("OSError", f"{PYTHON}/exceptions.html#OSError"),
            ("random.SystemRandom.getrandbits", f"{PYTHON}/random.html#random.SystemRandom.getrandbits"),
            ("os.path", f"{PYTHON}/os.path.html"),
            ("os.path.join", f"{PYTHON}/os.path.html#os.path.join"),
            ("twisted.internet.defer", f"{defer}.html"),
            ("twisted.internet.defer.Deferred", f"{defer}.Deferred.html"),
            ("twisted.internet.defer.Deferred.addCallback", f"{defer}.Deferred.html#addCallback"),
            ("twisted.internet.defer.succeed", f"{defer}.html#succeed"),
            (
                "twisted.internet.interfaces.ITransport.write",
                f"{TWISTED}/twisted.internet.interfaces.ITransport.html#write",
            ),
            ("zope.interface.Interface", ZOPE),
        ):
            self.assertEqual(urlOf(name), url, name)

    def test_nothing(self) -> None:
        """
        A name that does not exist has none, nor has one of another project.
        """
        for name in (
            "nosuch",
            "bytes.nosuch",
            "os.nosuch",
            "twisted.nosuch",
            "twisted.internet.defer.Deferred.nosuch",
            "twisted.internet.interfaces.ITransport.nosuch",
            "attrs.frozen",
            "",
        ):
            self.assertIsNone(urlOf(name), name)

    def test_interfaces(self) -> None:
        """
        An interface of Twisted is known as one.
        """
        self.assertTrue(isInterface("twisted.internet.interfaces.ITransport"))
        for name in ("twisted.internet.defer.Deferred", "twisted.internet.interfaces", "bytes", "twisted.no"):
            self.assertFalse(isInterface(name), name)


class ContentTests(SynchronousTestCase):
    """
    A small package, as pydoctor writes it with the options of this project.
    """

    def test_found(self) -> None:
        """
        The indexes of the search have public modules, classes and functions; the pages have the rest.
        """
        try:
            from pydoctor.driver import main

            from docs.deadlinks import octetsOf
        except ImportError:
            raise SkipTest("the extra [docs] is not installed") from None
        folder = Path(self.mktemp())
        package, made = folder / "small", folder / "made"
        (package / "inside").mkdir(parents=True)
        for each in package, package / "inside":
            (each / "__init__.py").write_text('"""A package."""\n')
        (package / "inside" / "deep.py").write_text(
            "'A module.'\nclass Base:\n    'A class.'\nclass Other:\n    'A class.'\n"
        )
        (package / "seen.py").write_text(
            '"""A module."""\n'
            "def call():\n    'A function.'\n"
            "def _hidden():\n    'A helper.'\n"
            "from small.inside.deep import Base\n"
            "class Seen(Base):\n    'A class, not L{small.inside.deep.Other}.'\n"
            "    def method(self):\n        'A method.'\n"
            "class _Unseen:\n    'A class.'\n"
        )
        options = ["system-class=docs.reference.Reference", "html-writer=docs.reference.Writer"]
        configured = (ROOT / "pyproject.toml").read_text().replace(' = "', "=").splitlines()
        for each in options:
            self.assertIn(f'{each}"', configured)
        status = main([*(f"--{each}" for each in options), f"--html-output={made}", "-qq", str(package)])
        self.assertEqual(status, 0)
        page = (made / "small.seen.html").read_text()
        self.assertIn("A function.", page)
        self.assertNotIn("A helper.", page)
        self.assertIn("A method.", (made / "small.seen.Seen.html").read_text())
        self.assertFalse((made / "small.seen._Unseen.html").exists())
        # A base class that is inside a folder has a page, and what else is there has none: a link leads to
        # the folder.
        self.assertTrue((made / "small.inside.deep.Base.html").exists())
        self.assertFalse((made / "small.inside.deep.html").exists())
        self.assertFalse((made / "small.inside.deep.Other.html").exists())
        self.assertIn('href="small.inside.html"', (made / "small.seen.Seen.html").read_text())
        self.assertEqual(list(deadLinks(made)), [])
        self.assertEqual(octetsOf(made), sum(each.stat().st_size for each in made.rglob("*.*")))
        documents = (made / "all-documents.html").read_text()
        self.assertIn("small.seen.call", documents)
        for unseen in "small.seen._hidden", "small.seen._Unseen", "small.seen.Seen.method":
            self.assertNotIn(unseen, documents)
        for name in "searchindex.json", "fullsearchindex.json":
            index = json.loads((made / name).read_text())
            found = {vector.partition("/")[2] for vector, _ in index["fieldVectors"]}
            self.assertEqual(found, _FOUND)
