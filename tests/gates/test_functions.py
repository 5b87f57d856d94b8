"""
Functions that one sees at a glance, and docstrings without riddles.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.gates.facts import MOST_LINES, Facts, facts
from tests.gates.falling import mayOnlyFall
from tests.test_layering import TreeTestCase, sources

#: Functions that have more, how many, and why: a call for each packet or record would cost most of all.
LONG = {
    "hca/fabric/roce/receive.py: take": 130,
    "hca/fabric/shm/ring.py: _drain": 80,
    "verbs/c/building/sharedobject.py: sharedObject": 76,  # One file, in the order of its octets.
}


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

    def test_tree(self) -> None:
        """
        A function has few lines, but for those that are listed, which do not grow; one more is found.  No
        sentence of a docstring is a riddle; one is found wherever it begins.  All in one test, as tests that
        run at once would each read the tree.
        """
        root = self.copied()
        self.add(root, "sdp/port", "async def long():\n" + "    pass\n" * MOST_LINES)
        text = "It.  What is.\n\n    Who is\n\n    @param a: What is, too."
        self.add(root, "rds/port", f"class One:\n    '''\n    {text}\n    '''")
        self.add(root, "sdp/port", "def one():\n    '''\n    Who is asked?  What is said.\n    '''")
        found = longFunctions(root)
        self.assertEqual(found.pop("sdp/port.py: long"), MOST_LINES + 1)
        mayOnlyFall(self, found, LONG)
        expected = ["rds/port.py: .  What is.", "rds/port.py: Who is", "rds/port.py: @param a: What is, too."]
        self.assertEqual(riddles(root), [*expected, "sdp/port.py: Who is asked?  What is said."])
