"""
Functions that one sees at a glance, and docstrings without riddles.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from attrs import frozen

from tests.gates.falling import mayOnlyFall
from tests.test_layering import TreeTestCase, sources

#: Lines of a function at most.
MOST_LINES = 70
#: Functions that have more, how many, and why: a call for each packet or record would cost most of all.
LONG = {
    "hca/fabric/roce/receive.py: take": 131,
    "hca/fabric/shm/ring.py: _drain": 80,
    "verbs/c/building/sharedobject.py: sharedObject": 76,  # One file, in the order of its octets.
}
#: Where a sentence of a docstring begins: after another, as a paragraph or as a field.
_SENTENCES = re.compile(r"(?:\A|[.?!]\s+|\n\n *|^ *[@-][^:\n]*: )(?:What|Who)\b[^\n]*", re.MULTILINE)


@frozen
class Facts:
    """
    Both of a module.

    @ivar long: the lines of each function that has too many, by its name.
    @ivar riddles: the sentences of docstrings that begin with "What" or "Who".
    """

    long: dict[str, int]
    riddles: list[str]


# Both tests ask for all modules, and copies of the tree differ from it in a module or two.
@cache
def facts(text: str) -> Facts:
    """
    @param text: a module's.
    """
    long: dict[str, int] = {}
    riddles: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if (n := (node.end_lineno or 0) - node.lineno + 1) > MOST_LINES:
                long[node.name] = n
        elif not isinstance(node, ast.Module | ast.ClassDef):
            continue
        riddles += (found.strip() for found in _SENTENCES.findall(ast.get_docstring(node) or ""))
    return Facts(long, riddles)


def modules(root: Path) -> Iterator[tuple[str, Facts]]:
    """
    @return: the modules' names, each with what there is to say of it.
    """
    return ((str(each.relative_to(root / "twisted_ib")), facts(each.read_text())) for each in sources(root))


def longFunctions(root: Path) -> dict[str, int]:
    """
    @return: the lines of each function that has too many.
    """
    return {f"{module}: {name}": n for module, found in modules(root) for name, n in found.long.items()}


def riddles(root: Path) -> list[str]:
    """
    @return: the sentences of docstrings that begin with "What" or "Who".
    """
    return [f"{module}: {each}" for module, found in modules(root) for each in found.riddles]


class FunctionTests(TreeTestCase):
    """
    The tree, and copies of it.
    """

    def test_long(self) -> None:
        """
        A function has few lines, but for those that are listed, which do not grow; one more is found.
        """
        root = self.copied()
        self.add(root, "sdp/port", "async def long():\n" + "    pass\n" * MOST_LINES)
        found = longFunctions(root)
        self.assertEqual(found.pop("sdp/port.py: long"), MOST_LINES + 1)
        mayOnlyFall(self, found, LONG)

    def test_sentences(self) -> None:
        """
        No sentence of a docstring is a riddle; one is found wherever it begins.
        """
        root = self.copied()
        text = "It.  What is.\n\n    Who is\n\n    @param a: What is, too."
        self.add(root, "rds/port", f"class One:\n    '''\n    {text}\n    '''")
        self.add(root, "sdp/port", "def one():\n    '''\n    Who is asked?  What is said.\n    '''")
        expected = ["rds/port.py: .  What is.", "rds/port.py: Who is", "rds/port.py: @param a: What is, too."]
        self.assertEqual(riddles(root), [*expected, "sdp/port.py: Who is asked?  What is said."])
