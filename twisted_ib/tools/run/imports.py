"""
The imports of a program, from its source and the sources of what it imports.  Nothing is run or imported.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from typing import NamedTuple

#: Modules that are read of one program.  400 take a second; a program whose loop is not known by then is said
#: to have none.
MODULES_READ = 400
#: Bytes of a module that are read.  The longest of the standard library has 0.3 MB.
SOURCE_BYTES = 1 << 20
#: Modules below which nothing is read: what they mean is known.
_KNOWN = frozenset({"twisted", "twisted_ib", *sys.stdlib_module_names})
_MISSING = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})


class Import(NamedTuple):
    """
    An import statement's module.

    @ivar name: the module's full name, or that of an attribute of it.
    @ivar where: the file that has it.
    @ivar isNeeded: whether the file cannot do without: it does not catch that there is none.
    """

    name: str
    where: str
    isNeeded: bool = True


class _Visitor(ast.NodeVisitor):
    def __init__(self, package: str, where: str) -> None:
        self.found: dict[str, Import] = {}
        self._package = package
        self._where = where
        self._isNeeded = True

    def _add(self, name: str) -> None:
        known = self.found.get(name)
        if known is None or (self._isNeeded and not known.isNeeded):
            self.found[name] = Import(name, self._where, self._isNeeded)

    def visit_Import(self, node: ast.Import) -> None:
        """
        C{import a.b}.
        """
        for alias in node.names:
            self._add(alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """
        C{from a import b}, where C{b} may be a module or not.
        """
        base = node.module or ""
        if node.level:
            parents = self._package.split(".")
            parents = parents[: len(parents) + 1 - node.level]
            base = ".".join([*parents, base]) if base else ".".join(parents)
        if base:
            self._add(base)
            for alias in node.names:
                self._add(f"{base}.{alias.name}")

    def visit_Try(self, node: ast.Try) -> None:
        """
        An import that may fail.
        """
        before = self._isNeeded
        if any(_catches(handler.type) for handler in node.handlers):
            self._isNeeded = False
        for statement in (*node.body, *node.orelse):
            self.visit(statement)
        self._isNeeded = before
        for rest in (*node.handlers, *node.finalbody):
            self.visit(rest)

    def visit_If(self, node: ast.If) -> None:
        """
        C{if TYPE_CHECKING} imports nothing.
        """
        test = node.test
        name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
        for statement in (*(() if name == "TYPE_CHECKING" else node.body), *node.orelse):
            self.visit(statement)


def _catches(kind: ast.expr | None) -> bool:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(each is None or getattr(each, "id", "") in _MISSING for each in kinds)


def importsOf(source: str | bytes, where: str = "<string>", package: str = "") -> list[Import]:
    """
    The imports in a source text, those within functions too.

    @param where: the file's name.
    @param package: the package that the module is in, or is.
    @return: those in one text, each name once; none if the text is not Python.
    """
    try:
        tree = ast.parse(source, where)
    # ValueError: NUL in the text; RecursionError, MemoryError: nested too deep (ast.parse's documentation).
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    visitor = _Visitor(package, where)
    try:
        visitor.visit(tree)
    except RecursionError:
        pass
    return list(visitor.found.values())


def specOf(name: str) -> ModuleSpec | None:
    """
    Find a module on C{sys.path} without importing the packages that it is in.
    """
    top, *rest = name.split(".")
    spec = None
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec = None if find is None else find(top, None)
        if spec is not None:
            break
    for word in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        top = f"{top}.{word}"
        spec = PathFinder.find_spec(top, spec.submodule_search_locations)
    return spec


def sourceOf(path: str) -> bytes:
    """
    The text of a file of Python; empty if it cannot be read or is too long.
    """
    try:
        with open(path, "rb") as file:
            text = file.read(SOURCE_BYTES + 1)
    except OSError:
        return b""
    return text if len(text) <= SOURCE_BYTES else b""


class Reading:
    """
    Reads a program's imports, and theirs, in rounds: first the program's, then those of what it imports.

    @ivar modules: how many modules were read.
    """

    def __init__(self, first: list[Import]) -> None:
        """
        @param first: those of the program itself.
        """
        self.modules = 0
        self._first = first
        self._seen: set[str] = set()

    def rounds(self) -> Iterator[list[Import]]:
        """
        The imports of each round; at most L{MODULES_READ} modules are read for all of them.
        """
        found = self._first
        while found:
            yield found
            following: list[Import] = []
            for each in found:
                # An import that may be missing says little of a program that works without.
                if each.isNeeded:
                    for name in _withPackages(each.name):
                        following += self._read(name)
            found = following

    def _read(self, name: str) -> list[Import]:
        if name in self._seen or name.partition(".")[0] in _KNOWN or self.modules >= MODULES_READ:
            return []
        self._seen.add(name)
        spec = specOf(name)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            return []
        self.modules += 1
        isPackage = spec.submodule_search_locations is not None
        package = name if isPackage else name.rpartition(".")[0]
        return importsOf(sourceOf(spec.origin), spec.origin, package)


def _withPackages(name: str) -> Iterator[str]:
    # A package's __init__ runs before its modules.
    words = name.split(".")
    for count in range(1, len(words) + 1):
        yield ".".join(words[:count])
