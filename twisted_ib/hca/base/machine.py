"""
State machines as tables: (state, input) -> what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

S = TypeVar("S")
I = TypeVar("I")  # noqa: E741
R = TypeVar("R")


class Machine(dict[tuple[S, I], R], Generic[S, I, R]):
    """
    The table of a state machine.

    C{machine[state, given]} is what follows: the next state, or a tuple of it and an action. A pair that is
    listed is found without a call of Python.
    """

    def __init__(self, table: Mapping[tuple[S, I], R], unlisted: Callable[[S, I], R] | None = None) -> None:
        """
        @param unlisted: of a pair that is not in C{table}, gives what follows, or raises an error: see
            L{ignored}.  L{None} where such a pair is never looked up.
        """
        super().__init__(table)
        self._unlisted = unlisted

    def __missing__(self, pair: tuple[S, I]) -> R:
        if self._unlisted is None:
            raise KeyError(pair)
        return self._unlisted(*pair)


def ignored(state: object, given: object) -> None:
    """
    For C{unlisted}: nothing follows.
    """


def listed(rows: Mapping[S, Mapping[I, R]]) -> dict[tuple[S, I], R]:
    """
    @param rows: for each state, what follows by input.
    @return: a table for L{Machine}.
    """
    return {(state, given): follows for state, row in rows.items() for given, follows in row.items()}
