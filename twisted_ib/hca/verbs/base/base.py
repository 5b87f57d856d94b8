"""
What the classes of verbs have in common: bases, integers as wide as C's, printing.

Source: rdma-core 65, C{pyverbs/base.pyx}; the widths are those of C{libibverbs/verbs.h}.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum, IntFlag
from operator import index
from typing import SupportsIndex, TypeVar

Self = TypeVar("Self", bound="PyverbsCM")
Value = TypeVar("Value")


class PyverbsObject:
    """
    Base of every class of verbs.
    """


class PyverbsCM(PyverbsObject):
    """
    Base of those that are closed, by L{close} or at the end of a C{with}.
    """

    def __enter__(self: Self) -> Self:
        """
        @return: the object itself.
        """
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """
        Give back what the object holds: nothing, if it is a value.
        """


def _fit(value: SupportsIndex, bits: int) -> int:
    """
    @param value: an integer, of an enumeration or plain.
    @param bits: the width of its field.

    @return: the plain integer.

    @raise TypeError: if it is none.
    @raise OverflowError: if the field is too narrow for it.
    """
    number = index(value)
    if number < 0 or number >> bits:
        raise OverflowError(f"{number} is not an unsigned integer of {bits} bits")
    return number


def u8(value: SupportsIndex) -> int:
    """
    @return: the value of a field of 8 bits; raises as L{_fit}.
    """
    return _fit(value, 8)


def u16(value: SupportsIndex) -> int:
    """
    @return: the value of a field of 16 bits; raises as L{_fit}.
    """
    return _fit(value, 16)


def u32(value: SupportsIndex) -> int:
    """
    @return: the value of a field of 32 bits; raises as L{_fit}.
    """
    return _fit(value, 32)


def u64(value: SupportsIndex) -> int:
    """
    @return: the value of a field of 64 bits; raises as L{_fit}.
    """
    return _fit(value, 64)


def checked(value: Value, kind: type[Value]) -> Value:
    """
    @param value: what was given.
    @param kind: the class that it should be of.

    @return: what was given.

    @raise TypeError: if it is of another.
    """
    if not isinstance(value, kind):
        raise TypeError(f"Expected {kind.__name__}, got {type(value).__name__}")
    return value


def inc_rkey(rkey: int) -> int:
    """
    The next rkey of a type 2 memory window: the low 8 bits count up and wrap around.

    @param rkey: an rkey.

    @return: the rkey that the next bind is to give.
    """
    return (rkey & ~0xFF) | ((rkey + 1) & 0xFF)


def table(rows: Iterable[tuple[str, object]], width: int = 22, indent: int = 0) -> str:
    """
    Print fields as pyverbs does.

    @param rows: names and values.
    @param width: of the names, in characters.
    @param indent: of the lines, in characters.

    @return: a line for each.
    """
    return "".join(f"{'':{indent}}{name:{width}}: {value!s:<20}\n" for name, value in rows)


def named(enumeration: type[IntEnum], value: int, prefix: str) -> str:
    """
    @param enumeration: an enumeration of L{twisted_ib.hca.verbs.enums}.
    @param value: perhaps one of its values.
    @param prefix: what the names of its members begin with.

    @return: the rest of the member's name, or that it is unknown.
    """
    try:
        return enumeration(value).name.removeprefix(prefix)
    except ValueError:
        return f"Unknown ({value})"


def flagged(enumeration: type[IntFlag], value: int, prefix: str) -> str:
    """
    @param enumeration: flags of L{twisted_ib.hca.verbs.enums}.
    @param value: some of them together.
    @param prefix: what the names of its members begin with.

    @return: the rest of the names of those set, with spaces between; unknown bits are left out.
    """
    members = enumeration.__members__.items()
    return " ".join(name.removeprefix(prefix) for name, member in members if value & member)
