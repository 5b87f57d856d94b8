"""
Tests that L{twisted_ib.settings} is the one table of all settings, and C{docs/settings.md} its page.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from docs import settings as made
from tests.documentation.pages import PAGES, ROOT
from twisted_ib.configuration import parser
from twisted_ib.settings import PREFIX, STATEMENTS, VARIABLES, unknown

_TABLE = ROOT / "twisted_ib" / "settings.py"
_NAME = re.compile(rf"\b(?:{PREFIX}[A-Z_]*[A-Z]|SIMPLE_LIBSDP|ALWAYS_USE_SDP)\b")
#: A macro, and what it stands for, is no variable.
_NO_VARIABLES = {"TWISTED_IB_SONAME", "TWISTED_IB_LOCAL"}


def spelt(path: Path) -> Iterator[str]:
    """
    @return: the names of variables in the texts of a module, docstrings left out.
    """
    text = path.read_text()
    # Most have none, also not in docstrings.
    tree = ast.parse(text if _NAME.search(text) else "")
    for node in ast.walk(tree):
        # A docstring is an expression by itself.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = None
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _NAME.findall(node.value)


class SettingsTests(SynchronousTestCase):
    """
    The table, the sources, and the pages.
    """

    def test_page(self) -> None:
        """
        The page is what C{python -m docs.settings} makes now.
        """
        self.assertEqual(made.PAGE.read_text(), made.page(), "python -m docs.settings makes it")

    def test_oneTable(self) -> None:
        """
        No other module of the package spells a variable.
        """
        self.assertEqual(set(spelt(_TABLE)) - {PREFIX}, set(VARIABLES))
        for path in (ROOT / "twisted_ib").rglob("*.py"):
            if path != _TABLE:
                self.assertEqual(set(spelt(path)) - _NO_VARIABLES, set(), path)

    def test_known(self) -> None:
        """
        Variables that pages, tests, sources in C and the build name are in the table.
        """
        others = [*(ROOT / "tests").rglob("*.py"), *(ROOT / ".ci").iterdir(), ROOT / "setup.py"]
        known = {*VARIABLES, *_NO_VARIABLES, *re.findall(r"TWISTED_IB_RUNDIR", Path(__file__).read_text())}
        for path in [*PAGES, *others, *(ROOT / "twisted_ib").rglob("*.c")]:
            if path.is_file():
                self.assertEqual(set(_NAME.findall(path.read_text())) - known, set(), path)

    def test_unknown(self) -> None:
        """
        A variable that only looks like one of these is found.
        """
        self.assertEqual(list(unknown(["PATH", "TWISTED_IB_RUNDIR", *VARIABLES])), ["TWISTED_IB_RUNDIR"])

    def test_statements(self) -> None:
        """
        The table has the statements that the parser takes.
        """
        self.assertEqual({each.name.split()[0] for each in STATEMENTS}, set(parser._STATEMENTS))
