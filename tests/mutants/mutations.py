"""
The mutation operators: small changes of a module that its tests should notice.

The names are those of the field (Jia and Harman's survey; MutPy, PIT).  Not changed is what no test should
depend on: texts for people (of errors, logs, C{__repr__} and C{logPrefix}), annotations, unions of types,
decorators, assertions and what only type checkers read.  All else is; what turns out to be equivalent is in
L{tests.mutants.equivalent}.
"""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Iterator, Sequence
from textwrap import shorten

from attrs import frozen

#: Relational operators: a bound off by one, or the opposite.
RELATIONAL: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
}
#: Bitwise operators, which MutPy calls logical, and shifts.
LOGICAL: dict[type[ast.operator], type[ast.operator]] = {
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}

#: The fields of nodes in which nothing is changed.
UNREAD = ("annotation", "returns", "decorator_list")
#: Arguments for people, or that only assert.
UNREAD_ARGUMENTS = ("repr", "strict")
#: Methods that make text for people.
UNREAD_METHODS = ("__repr__", "__str__", "logPrefix")
#: In a union these are types, and nobody reads the union when the program runs.
TYPES = frozenset({"None", "bytearray", "bytes", "float", "int", "memoryview", "str"})

#: So much of an expression is printed.
MOST_SHOWN = 100


@frozen
class Mutation:
    """
    One change of one expression or statement.

    @ivar line: Where it begins, from 1.
    @ivar column: The byte of that line, from 1.
    @ivar operator: The name of the mutation operator.
    @ivar begin: The place in the module, in bytes of its UTF-8.
    @ivar end: The byte behind it.
    @ivar after: What comes there.
    """

    line: int
    column: int
    operator: str
    before: str
    after: str
    begin: int
    end: int

    def __str__(self) -> str:
        before, after = (shorten(each, MOST_SHOWN) for each in (self.before, self.after))
        return f"{self.line}:{self.column}: {self.operator}: {before}  ->  {after}"

    def applied(self, source: str) -> str:
        """
        @return: The module with the change.
        """
        data = source.encode()
        return (data[: self.begin] + self.after.encode() + data[self.end :]).decode()


def _skipped(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return ast.unparse(node.func.value) in ("log", "_log")
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "noisy":
        # Whether Twisted's factories log.
        return True
    if isinstance(node, ast.keyword):
        return node.arg in UNREAD_ARGUMENTS
    if isinstance(node, ast.FunctionDef):
        return node.name in UNREAD_METHODS
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return not TYPES.isdisjoint(ast.unparse(node).split(" | "))
    # Most texts with expressions in them are of errors.
    return isinstance(node, (ast.Assert, ast.JoinedStr))


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for name, value in ast.iter_fields(node):
        if name not in UNREAD:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not _skipped(child):
                    yield from _nodes(child)


def _shiftsByZero(node: ast.BinOp | ast.AugAssign) -> bool:
    # The first of a list of flags: the same to the left and to the right.
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift) and ast.unparse(node.right) == "0"


def _replaced(node: ast.AST) -> Iterator[tuple[str, ast.AST, ast.AST]]:
    """
    @return: Names of operators, what is replaced and by what.
    """
    new: ast.AST
    if isinstance(node, ast.Compare):
        for at, operator in enumerate(node.ops):
            new = copy.deepcopy(node)
            new.ops[at] = RELATIONAL[type(operator)]()
            yield "relational operator replacement", node, new
    elif isinstance(node, ast.BoolOp):
        new = ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        yield "logical connector replacement", node, new
    elif isinstance(node, (ast.BinOp, ast.AugAssign)) and not _shiftsByZero(node):
        for name, table in ("arithmetic", ARITHMETIC), ("logical", LOGICAL):
            if type(node.op) in table:
                new = copy.copy(node)
                new.op = table[type(node.op)]()
                name = "assignment" if isinstance(node, ast.AugAssign) else name
                yield f"{name} operator replacement", node, new
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "conditional operator deletion", node, node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        value = not node.value if isinstance(node.value, bool) else node.value + 1
        yield "constant replacement", node, ast.Constant(value)
    elif isinstance(node, ast.Return) and node.value and not isinstance(node.value, ast.Constant):
        yield "return value replacement", node.value, ast.Constant(None)
    elif isinstance(node, (ast.Break, ast.Continue)):
        new = ast.Continue() if isinstance(node, ast.Break) else ast.Break()
        yield "break continue replacement", node, new
    elif isinstance(node, (ast.If, ast.IfExp, ast.While)):
        # Other conditions are changed by what they consist of.
        if isinstance(node.test, (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.NamedExpr)):
            yield "conditional operator insertion", node.test, ast.UnaryOp(ast.Not(), node.test)


def mutations(source: str) -> list[Mutation]:
    """
    @return: All changes of a module, in the order of its tree.
    """
    data = source.encode()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node in _nodes(ast.parse(source)):
        for name, old, new in _replaced(node):
            assert isinstance(old, (ast.expr, ast.stmt)) and old.end_lineno and old.end_col_offset is not None
            begin = starts[old.lineno - 1] + old.col_offset
            end = starts[old.end_lineno - 1] + old.end_col_offset
            after = ast.unparse(new)
            if not isinstance(new, (ast.stmt, ast.Constant, ast.Name)):
                # The place may have been read by the precedence of its operator.
                after = f"({after})"
            found.append(
                Mutation(old.lineno, old.col_offset + 1, name, data[begin:end].decode(), after, begin, end)
            )
    return found


def sample(every: Sequence[tuple[str, Mutation]], count: int, seed: int) -> list[tuple[str, Mutation]]:
    """
    @param every: Mutations, each with the path of its module.

    @return: So many of them, each as likely as another; the same for the same seed and mutations.
    """
    return random.Random(seed).sample(every, min(count, len(every)))
