"""
All that is public is documented: a method or property where its class has it first, in an interface or in a
base; and a handler of a C library's function by that function's manual page.

A class implements a protocol of typing by its methods alone.  It names the protocol in its docstring, as
C{see L{ILink}}, or several as C{see L{ILink} and L{IFabric}}.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from attrs import frozen
from zope.interface.interface import InterfaceClass

from tests.test_layering import ROOT, TreeTestCase, nameOf, sources

#: Interfaces in a class's docstring, and one of them.
_SEEN = re.compile(r"\b[Ss]ee\s+((?:L\{[^{}]*\}(?:,\s+|\s+and\s+)?)+)")
_NAMED = re.compile(r"L\{(?:[^{}<]*<)?([\w.]+)>?\}")


#: The folders with the handlers of a library each.
_LIBRARIES = [f"twisted_ib/verbs/c/{library}" for library in ("cm", "umad", "verbs")]


@frozen
class Documented:
    """
    A class.

    @ivar has: its public methods, and an interface's attributes, each with whether it has a docstring.
    @ivar above: the full names of its bases and of the interfaces that it implements, or names in its
        docstring.
    """

    has: dict[str, bool]
    above: list[str]


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Subscript):
        return _dotted(node.value)
    return (
        f"{_dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    )


def _above(node: ast.ClassDef) -> Iterator[str]:
    yield from map(_dotted, node.bases)
    for each in node.decorator_list:
        if isinstance(each, ast.Call) and _dotted(each.func) == "implementer":
            yield from map(_dotted, each.args)
    yield from _NAMED.findall(" ".join(_SEEN.findall(ast.get_docstring(node) or "")))


@cache
def _classesOf(module: str, text: str) -> dict[str, Documented]:
    tree = ast.parse(text)
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names.update((each.asname or each.name, f"{node.module}.{each.name}") for each in node.names)
        elif isinstance(node, ast.Import):
            names.update((each.asname or each.name, each.name) for each in node.names)
    found = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            has: dict[str, bool] = {}
            for each in node.body:
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and not each.name.startswith("_"):
                    # A property's setter is documented with it.
                    has[each.name] = ast.get_docstring(each) is not None or has.get(each.name, False)
                elif isinstance(each, ast.AnnAssign) and isinstance(each.value, ast.Call):
                    # Of an interface: a class may have a property there.
                    if _dotted(each.value.func) == "Attribute":
                        has[_dotted(each.target)] = True
            above = []
            for each in _above(node):
                first, dot, rest = each.partition(".")
                isFull = first in ("twisted", "twisted_ib") or (dot and first in sys.stdlib_module_names)
                own = first if isFull else f"{module}.{first}"
                above.append(names.get(first, own) + dot + rest)
            found[f"{module}.{node.name}"] = Documented(has, above)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            # What is said of a compiled class, which has no decorators.
            if _dotted(node.value.func) == "classImplements":
                name, *above = map(_dotted, node.value.args)
                found[f"{module}.{name}"].above.extend(names.get(each, f"{module}.{each}") for each in above)
    return found


def classes(root: Path) -> dict[str, Documented]:
    """
    @return: the classes of the package, by their full names.
    """
    found: dict[str, Documented] = {}
    for path in sources(root):
        found.update(_classesOf(nameOf(root, path), path.read_text()))
    return found


@cache
def _ofOthers(name: str, method: str) -> bool:
    # Whether a class of Python's or Twisted's documents a method.
    module, _, last = name.rpartition(".")
    try:
        value: Any = getattr(import_module(module), last)
    except (ImportError, AttributeError, ValueError):
        return False
    if isinstance(value, InterfaceClass):
        return bool(method in value and value[method].__doc__)
    return not isinstance(value, ModuleType) and bool(getattr(getattr(value, method, None), "__doc__", None))


def inherits(known: dict[str, Documented], ends: dict[str, list[str]], name: str, method: str) -> bool:
    """
    @param ends: the full names of each last one.
    @return: whether a base of a class, or an interface of it, documents a method.
    """
    for above in known[name].above:
        if above not in known:
            # Some are exported by their folders.
            package, _, last = above.rpartition(".")
            inside = [each for each in ends.get(last, ()) if each.startswith(f"{package}.")]
            above = inside[0] if len(inside) == 1 else above
        if above in known:
            if known[above].has.get(method) or inherits(known, ends, above, method):
                return True
        elif not above.startswith("twisted_ib.") and _ofOthers(above, method):
            return True
    return False


def undocumented(root: Path) -> list[str]:
    """
    @return: the public methods of public classes that nothing documents.
    """
    known, ends = classes(root), defaultdict(list)
    for name in known:
        ends[name.rpartition(".")[2]].append(name)
    return [
        f"{name}.{method}"
        for name, each in known.items()
        if not name.rpartition(".")[2].startswith("_")
        for method, isDocumented in each.has.items()
        if not isDocumented and not inherits(known, ends, name, method)
    ]


def undocumentedFunctions(root: Path) -> list[str]:
    """
    @return: the public functions among the handlers that are none, and that have no docstring.
    """
    found: dict[str, bool] = {}
    for folder in _LIBRARIES:
        for path in sorted((root / folder).glob("*.py")):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                    name = f"{nameOf(root, path)}.{node.name}"
                    isHandler = "handler" in map(_dotted, node.decorator_list)
                    # Of several forms one has it.
                    found[name] = found.get(name, isHandler) or ast.get_docstring(node) is not None
    return [name for name, isDocumented in found.items() if not isDocumented]


class DocstringTests(TreeTestCase):
    """
    The tree, and copies of it.
    """

    def test_methods(self) -> None:
        """
        A method has a docstring, or one that it overrides has; one without is found.
        """
        self.assertEqual(undocumented(ROOT), [])
        root = self.copied()
        (root / "twisted_ib/sdp/more.py").write_text(
            "from twisted.internet.interfaces import ITransport\n"
            "from zope.interface import implementer\n"
            "from twisted_ib.sdp.other import Other\n\n\n"
            "@implementer(ITransport)\nclass More(Other[int]):\n"
            "    def write(self, data): ...\n    def said(self): ...\n    def more(self): ...\n"
            "class Shape:\n    'See L{ITransport} and\\n    L{Other<twisted_ib.sdp.other.Other>}.'\n"
            "    def said(self): ...\n"
        )
        (root / "twisted_ib/sdp/other.py").write_text(
            "class Other:\n    def said(self):\n        'Said.'\n    def more(self): ...\n"
            "class IOther(Interface):\n    isMore: bool = Attribute('Whether there is more.')\n\n\n"
            "@implementer(IOther)\nclass Another:\n    @property\n    def isMore(self): ...\n"
            "class Compiled:\n    @property\n    def isMore(self): ...\n"
            "classImplements(Compiled, IOther)\n"
        )
        expected = ["twisted_ib.sdp.more.More.more", "twisted_ib.sdp.other.Other.more"]
        self.assertEqual(undocumented(root), expected)

    def test_handlers(self) -> None:
        """
        A function beside the handlers of a C library has a docstring; one without is found.
        """
        self.assertEqual(undocumentedFunctions(ROOT), [])
        root = self.copied()
        (root / "twisted_ib/verbs/c/umad/more.py").write_text(
            "@handler\ndef umad_more(): ...\ndef _own(): ...\ndef more(): ...\n"
        )
        self.assertEqual(undocumentedFunctions(root), ["twisted_ib.verbs.c.umad.more.more"])
