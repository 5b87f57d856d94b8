"""
Tests for L{twisted_ib.tools.run.imports} and L{twisted_ib.tools.run.choice}: a loop by what a program
imports.
"""

from __future__ import annotations

import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.tools.run import imports
from twisted_ib.tools.run.choice import AIO, BLOCKING, IB, IB_ASYNCIO, LOOPS, Choice, Unfit, choose, loopOf
from twisted_ib.tools.run.imports import Reading, importsOf, specOf

_SOURCE = """
import a.b, c as d
from . import e
from ..f import g
from .h.i import *
if TYPE_CHECKING:
    import j
else:
    import k
try:
    import l
    def late():
        import m
except (KeyError, ImportError):
    import n
try:
    import o
except KeyError:
    pass
if typing.TYPE_CHECKING:
    from p import q
class R:
    from s import t
try:
    import a
except ImportError:
    pass
"""


class Modules(SynchronousTestCase):
    """
    Base of tests with modules of their own.
    """

    def setUp(self) -> None:
        """
        Have them found.
        """
        self.folder = Path(self.mktemp()).resolve()
        self.folder.mkdir()
        self.patch(sys, "path", [str(self.folder), *sys.path])

    def write(self, name: str, source: str) -> None:
        """
        @param name: a file's.
        """
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)


class ImportsTests(Modules):
    """
    Tests for L{importsOf} and L{Reading}.
    """

    def test_statements(self) -> None:
        """
        All statements count, relative ones and those of functions too; but for annotations, and with a mark
        for those that may fail.
        """
        found = {each.name: each.isNeeded for each in importsOf(_SOURCE, "x.py", "pkg.sub")}
        needed = "a.b c pkg.sub pkg.sub.e pkg.f pkg.f.g pkg.sub.h.i pkg.sub.h.i.* k n o s s.t"
        optional = {"l": False, "m": False, "a": False}
        self.assertEqual(found, {**dict.fromkeys(needed.split(), True), **optional})

    def test_wrong(self) -> None:
        """
        What is not Python, or nested too deep, imports nothing.
        """
        for text in (
            "import",
            "\0",
            "(" * 100000,
            b"\xff\xfe",
            b"# coding: nothing\nimport a",
            "-" * 100000 + "1",
        ):
            self.assertEqual(importsOf(text), [])

    def test_neverRun(self) -> None:
        """
        A module is found and read without being imported, nor its package.
        """
        self.write("raising_/__init__.py", "1/0")
        self.write("raising_/inner.py", "import socket\n1/0")
        spec = specOf("raising_.inner")
        assert spec is not None
        self.assertEqual(spec.origin, str(self.folder / "raising_/inner.py"))
        self.assertIsNone(specOf("raising_.absent"))
        self.assertIsNone(specOf("raising_.inner.absent"))
        rounds = [
            [each.name for each in found] for found in Reading(importsOf("import raising_.inner")).rounds()
        ]
        self.assertEqual(rounds, [["raising_.inner"], ["socket"]])
        self.assertNotIn("raising_", sys.modules)

    def test_circle(self) -> None:
        """
        Each module is read once.
        """
        self.write("round_.py", "import trip_")
        self.write("trip_.py", "import round_")
        reading = Reading(importsOf("import round_"))
        self.assertEqual(len(list(reading.rounds())), 3)
        self.assertEqual(reading.modules, 2)

    def test_bounds(self) -> None:
        """
        So many modules are read, and no module that is too long.
        """
        self.patch(imports, "MODULES_READ", 5)
        for number in range(10):
            self.write(f"chain{number}_.py", f"import chain{number + 1}_")
        reading = Reading(importsOf("import chain0_"))
        self.assertEqual(len(list(reading.rounds())), 6)
        self.assertEqual(reading.modules, 5)
        self.patch(imports, "SOURCE_BYTES", 20)
        self.write("short_.py", "import socket".ljust(20))
        self.write("long_.py", "import socket".ljust(21))
        for name, count in (("short_", 2), ("long_", 1)):
            self.assertEqual(len(list(Reading(importsOf(f"import {name}")).rounds())), count)


class ChoiceTests(Modules):
    """
    Tests for L{choose}.
    """

    def chosen(self, source: str, module: str = "", loop: str = "") -> Choice | Unfit:
        """
        @return: the choice for a program.
        """
        return choose(module, importsOf(source, "program.py"), loop)

    def test_modules(self) -> None:
        """
        What an import asks for.
        """
        for name, loop in (
            ("twisted.internet.reactor", IB),
            ("twisted.web.server", IB),
            ("twisted.internet.asyncioreactor", IB_ASYNCIO),
            ("twisted.python.log", ""),
            ("twisted.logger.Logger", ""),
            ("twisted", ""),
            ("asyncio", AIO),
            ("asyncio.streams", AIO),
            ("asyncioish", ""),
            ("socket", BLOCKING),
            ("http.server", BLOCKING),
            ("http", ""),
            ("urllib.request.urlopen", BLOCKING),
            ("urllib.parse", ""),
            ("django.core", BLOCKING),
            ("json", ""),
        ):
            self.assertEqual(loopOf(name), loop, name)

    def test_programs(self) -> None:
        """
        The nearest import decides, and of one round Twisted's before asyncio's before sockets.
        """
        self.write("library_/__init__.py", "from . import wire")
        self.write("library_/wire.py", "import socket\nimport asyncio")
        self.write(
            "optional_.py", "try:\n    from twisted.internet import defer\nexcept ImportError:\n    pass"
        )
        for source, loop, reason in (
            ("import socket, asyncio, twisted.web", IB, "imports twisted.web"),
            ("import twisted.web, twisted.internet.asyncioreactor", IB_ASYNCIO, "asyncioreactor"),
            ("import socket, asyncio", AIO, "as program.py imports asyncio"),
            ("import library_", AIO, f"as {self.folder}/library_/wire.py imports asyncio"),
            ("import library_, http.client", BLOCKING, "as program.py imports http.client"),
            ("import optional_", "", "nothing that it imports connects"),
            ("import optional_, library_", AIO, "wire.py imports asyncio"),
            ("print()", "", "nothing that it imports connects"),
        ):
            found = self.chosen(source)
            assert isinstance(found, Choice)
            self.assertEqual(found.loop, loop, source)
            self.assertIn(reason, found.reason)
        self.assertEqual(self.chosen("", "http.server"), Choice(BLOCKING, "so named"))

    def test_forced(self) -> None:
        """
        The user's choice counts.
        """
        for loop in LOOPS:
            found = self.chosen("import socket, asyncio", loop=loop)
            assert isinstance(found, Choice)
            self.assertEqual((found.loop, found.reason), (loop, "so says --reactor"))

    def test_unfit(self) -> None:
        """
        A program that needs a loop of another kind is told so, unless the user insists; one that can do
        without C{uvloop} does.
        """
        for source, module, word in (
            ("import trio", "", "trio"),
            ("from gevent import monkey", "", "gevent"),
            ("import uvloop, asyncio", "", "uvloop"),
            ("", "gunicorn.app.wsgiapp", "gunicorn"),
        ):
            found = self.chosen(source, module)
            assert isinstance(found, Unfit)
            self.assertIn(f"no loop fits, as it needs {word}: ", found.reason)
        self.assertIsInstance(self.chosen("import trio", loop=BLOCKING), Choice)
        self.assertIsInstance(self.chosen("import uvloop", loop=AIO), Unfit)
        found = self.chosen("import asyncio\ntry:\n    import uvloop\nexcept ImportError:\n    pass")
        assert isinstance(found, Choice)
        self.assertEqual((found.loop, found.hidden), (AIO, ("uvloop",)))
