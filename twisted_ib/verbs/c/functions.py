"""
The exported functions of a library: one row of a table for each.

From the rows come the declarations for cffi, the C functions that are exported, the version script of the
linker and the check that each function has a handler.  A I{handler} is the Python function of that name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import TypeVar

import attrs

Function = TypeVar("Function", bound=Callable[..., object])

_PROTOTYPE = re.compile(r"(?P<result>.*?)(?P<name>\w+)\((?P<parameters>.*)\)", re.DOTALL)
_LINE = re.compile(r"([\w.-]+):\n|(\w[^()]*\([^)]*\))([^;]*);")
_MARKS = ("again", "destroys", "nested")


#: The result of a handler that is to be called again; no function has it.
AGAIN = -(1 << 30)


class Failure(Enum):
    """
    The result of a function that fails; C{errno} is set in each case.
    """

    ERRNO = "errno"
    NEGATIVE_ERRNO = "-errno"
    MINUS_ONE = "-1"
    ZERO = "0"
    NULL = "NULL"
    NOTHING = ""


@attrs.frozen
class Row:
    """
    One function.

    @ivar name: its name, which is also the handler's.
    @ivar version: its symbol version, such as C{IBVERBS_1.1}; empty for a function that is not exported but
        called through a pointer, such as C{struct ibv_context_ops} has.
    @ivar prototype: its declaration in C, with the names of parameters, without a semicolon.
    @ivar failure: the result of a call that fails, as the function's man page says.  By default NULL if it
        returns a pointer, nothing if it returns nothing, and else the errno.
    @ivar before: statements in C that run before the handler, without Python: they wait, and may return; or
        none.  The thread can be cancelled there, and not in a handler.
    @ivar after: an expression in C, the result where the handler's is 0; or none.  Such a function only
        looks: others may bring completions, for which threads that poll in C look again at once.
    @ivar attends: whether its handler takes what was posted in C: those who post meanwhile leave that to it.
        Before the others, but nested ones, C has that taken.
    @ivar again: whether the handler does not wait but returns L{AGAIN}: it is called again after a sleep in
        C, as C{waiting} says.  Signals come in that sleep only, and there the thread can be cancelled.
    @ivar destroys: whether it ends when the program has acknowledged the events of what it has destroyed, for
        which it is called C{again}.
    @ivar nested: whether a handler calls it, too: it does not fail within another call of its thread.
    @ivar masked: whether what is C{before} has blocked signals, whose set C{program} is.
    @ivar vain: what makes such a call, in C: one that has failed with EAGAIN fails so again, without Python,
        while nothing has come and nobody has called; or none.  Of one that is called C{again} the statements
        before it see that.
    @ivar over: an expression in C, its result once Python ends in a program that is Python; or none, if it
        fails then.
    """

    name: str
    version: str
    prototype: str
    failure: Failure = attrs.field()
    before: str | None = None
    after: str | None = None
    attends: bool = False
    again: bool = False
    destroys: bool = False
    nested: bool = False
    masked: bool = False
    vain: str | None = None
    over: str | None = None

    @failure.default
    def _failure(self) -> Failure:
        if self.result.endswith("*"):
            return Failure.NULL
        return Failure.NOTHING if self.result == "void" else Failure.ERRNO

    @property
    def result(self) -> str:
        """
        The type of its result.
        """
        return self._parsed()["result"].strip()

    @property
    def answer(self) -> str:
        """
        The type of its handler's result.
        """
        return "int" if self.again and self.result == "void" else self.result

    @property
    def parameters(self) -> str:
        """
        Its parameters, as C has them.
        """
        return self._parsed()["parameters"]

    @property
    def arguments(self) -> str:
        """
        The names of its parameters, with commas between.
        """
        if self.parameters.strip() == "void":
            return ""
        # The last word of each: no parameter here is an array or a function.
        return ", ".join(each.split()[-1].lstrip("*") for each in self.parameters.split(","))

    def _parsed(self) -> re.Match[str]:
        parsed = _PROTOTYPE.fullmatch(self.prototype)
        assert parsed is not None and parsed["name"] == self.name, self.prototype
        return parsed


def rows(text: str, integer: Failure = Failure.ERRNO, **before: str) -> Iterator[Row]:
    """
    Read a table.  Below a symbol version with a colon, or C{-:} for functions that are not exported, stand
    prototypes, each with a semicolon.  Between the two come the result of a call that fails, unless it is the
    usual one of its type, and C{again}, C{destroys} or C{nested}.

    @param integer: the usual result of functions that return an integer.
    @param before: the statements before the handlers, by the functions' names.
    """
    version = ""
    lines: list[tuple[str, str, str]] = _LINE.findall(text)
    for heading, prototype, words in lines:
        if heading:
            version = heading.strip("-")
            continue
        name = prototype.partition("(")[0].split()[-1].lstrip("*")
        marks = set(words.split())
        again, destroys, nested = (each in marks for each in _MARKS)
        prototype = " ".join(prototype.split())
        row = Row(name, version, prototype, before=before.get(name), again=again, nested=nested)
        usual = integer if row.failure is Failure.ERRNO else row.failure
        failures = [Failure(word) for word in marks.difference(_MARKS)]
        yield attrs.evolve(row, failure=failures[0] if failures else usual, destroys=destroys)


def noEvent(pointer: str, field: str) -> str:
    """
    @param pointer: the parameter whose field is the descriptor of events.
    @return: what C{Row.over} is of a function that waits for them: a program that does not wait has no event.
    """
    isLeft = f"{pointer} && fcntl({pointer}->{field}, F_GETFL) & O_NONBLOCK"
    return f"(errno = {isLeft} ? EAGAIN : ENODEV, -1)"


#: The handlers of each library that is loaded, by its name and theirs.
_handlers: dict[str, dict[str, Callable[..., object]]] = {}


def handler(function: Function, library: str | None = None) -> Function:
    """
    Decorate a handler: it is the function of a library's table with the same name.

    A library is a folder of this package; the handler belongs to that of its module.  It gets the arguments
    as cffi has them, and may raise: L{failing<twisted_ib.verbs.c.errors.failing>} turns errors into results.

    @param library: the folder's name, if the module is elsewhere.
    """
    library = library or function.__module__.split(".")[-2]
    own = _handlers.setdefault(library, {})
    assert function.__name__ not in own, function.__name__
    own[function.__name__] = function
    return function


def handlers(*names: str) -> Callable[[Callable[[str], Callable[..., object]]], object]:
    """
    Decorate a function that makes handlers of one form: it is called with the name of each.
    """

    def make(maker: Callable[[str], Callable[..., object]]) -> None:
        for name in names:
            function = maker(name)
            function.__name__ = name
            handler(function)

    return make


def handlersOf(library: str, table: Iterable[Row]) -> list[tuple[Row, Callable[..., object]]]:
    """
    @param library: the folder's name.
    @return: each row with its handler.
    """
    own = _handlers[library]
    rows = list(table)
    assert sorted(own) == sorted(row.name for row in rows), set(own) ^ {row.name for row in rows}
    return [(row, own[row.name]) for row in rows]
