"""
What the rules of the tree ask about a module, read once for all of them, also in copies of the tree, which
differ from it in a module or two.  The syntax trees themselves would burden the collector of garbage.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache

from attrs import frozen

#: Lines of a function at most.
MOST_LINES = 70
#: Stands for the module that is asked about, where a name is its own.
HERE = ""
#: Where a sentence of a docstring begins: after another, as a paragraph or as a field.
_SENTENCES = re.compile(r"(?:\A|[.?!]\s+|\n\n *|^ *[@-][^:\n]*: )(?:What|Who)\b[^\n]*", re.MULTILINE)


@frozen
class Facts:
    """
    All that there is to ask.

    @ivar docstring: whether it begins with one.
    @ivar riddles: the sentences of docstrings that begin with "What" or "Who".
    @ivar long: the lines of each function that has too many, by its name.
    @ivar imported: its imports, those in functions and for annotations included.
    @ivar importing: its functions that import.
    @ivar attributes: the attributes that it names, each with the last name of what it is asked of.
    @ivar forks: lines that ask for a trait.
    @ivar names: what its names stand for: the module that has it, and its name there.
    @ivar used: the names whose values it uses.
    @ivar bases: its classes, each with a base.
    """

    docstring: bool
    riddles: list[str]
    long: dict[str, int]
    imported: tuple[str, ...]
    importing: tuple[str, ...]
    attributes: tuple[tuple[str, str], ...]
    forks: int
    names: dict[str, tuple[str, str]]
    used: set[str]
    bases: list[tuple[str, str]]


@cache
def facts(text: str) -> Facts:
    """
    @param text: a module's.
    """
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    lines = ((node.name, (node.end_lineno or 0) - node.lineno + 1) for node in functions)
    return Facts(
        docstring=ast.get_docstring(tree) is not None,
        riddles=[
            found.strip()
            for node in (tree, *classes, *functions)
            for found in _SENTENCES.findall(ast.get_docstring(node) or "")
        ],
        long={name: n for name, n in lines if n > MOST_LINES},
        imported=_imported(nodes),
        importing=tuple(_importing(tree)),
        attributes=_attributes(nodes),
        forks=len(
            {
                node.lineno
                for node in nodes
                if isinstance(node, ast.Attribute) and _lastName(node.value).strip("_") == "traits"
            }
        ),
        names=_names(nodes),
        used=_used(tree),
        bases=[(node.name, _lastName(base)) for node in classes for base in node.bases],
    )


def _imported(nodes: Sequence[ast.AST]) -> tuple[str, ...]:
    names: list[str] = []
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            names.extend(f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Import):
            names.extend(each.name for each in node.names)
    return tuple(names)


def _importing(tree: ast.AST, name: str = "", isFunction: bool = False) -> Iterator[str]:
    for each in ast.iter_child_nodes(tree):
        if isinstance(each, ast.Import | ast.ImportFrom) and isFunction:
            yield name
        elif isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            inner = f"{name}.{each.name}" if name else each.name
            yield from _importing(each, inner, isFunction or not isinstance(each, ast.ClassDef))
        elif isinstance(each, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _importing(each, name, isFunction)


def _attributes(nodes: Sequence[ast.AST]) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    for node in nodes:
        if isinstance(node, ast.Attribute):
            value = node.value
            owner = value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")
            if owner != "path" or ast.unparse(value) != "os.path":
                found.append((owner, node.attr))
    return tuple(found)


def _lastName(node: ast.AST) -> str:
    # That of an expression of names and dots; subscripts are left out.
    if isinstance(node, ast.Subscript):
        return _lastName(node.value)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _names(nodes: Sequence[ast.AST]) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            found.update((each.asname or each.name, (node.module, each.name)) for each in node.names)
        elif isinstance(node, ast.ClassDef):
            found.setdefault(node.name, (HERE, node.name))
    return found


def _used(tree: ast.Module) -> set[str]:
    # Not for annotations, not as bases of classes, and not to call a function of the base, as
    # Base.__init__(self).
    names: set[str] = set()
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            continue
        names.update({node.id} if isinstance(node, ast.Name) else ())
        for field, value in ast.iter_fields(node):
            if field not in ("annotation", "returns", "bases"):
                inside = value if isinstance(value, list) else [value]
                left += [each for each in inside if isinstance(each, ast.AST)]
    return names
