"""
Base classes of verbs objects, unsigned integers of C's widths, and printing.

Source: rdma-core 65, C{pyverbs/base.pyx}; the widths are those of C{libibverbs/verbs.h}.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum, IntFlag
from operator import attrgetter, index
from typing import Any, SupportsIndex, TypeVar

Self = TypeVar("Self", bound="PyverbsCM")
Value = TypeVar("Value")


class PyverbsObject:
    """
    Base of every verbs class.
    """


class PyverbsCM(PyverbsObject):
    """
    Base of the classes with a C{close}, which also runs at the end of a C{with} block.
    """

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """
        Release what the object holds; a plain value holds nothing.
        """


def _fit(value: SupportsIndex, bits: int) -> int:
    # Cython refuses what does not fit the C field: TypeError for what is no integer, OverflowError for one
    # that is too wide.  ctypes would cut it off silently.
    number = index(value)
    if number < 0 or number >> bits:
        raise OverflowError(f"{number} is not an unsigned integer of {bits} bits")
    return number


def u8(value: SupportsIndex) -> int:
    """
    Check a field of 8 bits.

    @raise TypeError: the value is no integer; so too in L{u16}, L{u32} and L{u64}.
    @raise OverflowError: it is negative or too wide.
    """
    return _fit(value, 8)


def u16(value: SupportsIndex) -> int:
    """
    Check a field of 16 bits.
    """
    return _fit(value, 16)


def u32(value: SupportsIndex) -> int:
    """
    Check a field of 32 bits.
    """
    return _fit(value, 32)


def u64(value: SupportsIndex) -> int:
    """
    Check a field of 64 bits.
    """
    return _fit(value, 64)


def unsigned(name: str, bits: int) -> Any:
    """
    Make the property of a field of work requests or completions; the value is in the attribute of that name
    with an underscore.

    @return: the property; its setter checks the width as L{u8} does.
    """
    # Not a field with a converter of attrs, which is called for each field of each object: here a constructor
    # checks all of its parameters by one test.  The getter is a C function.
    inner = f"_{name}"

    def put(self: Any, value: SupportsIndex) -> None:
        setattr(self, inner, _fit(value, bits))

    return property(attrgetter(inner), put, doc=f"An unsigned integer of {bits} bits.")


def checked(value: Value, kind: type[Value]) -> Value:
    """
    @return: C{value}.
    @raise TypeError: it is not an instance of C{kind}.
    """
    # Cython checks typed arguments so; without it a wrong object would fail later, inside a verb.
    if not isinstance(value, kind):
        raise TypeError(f"Expected {kind.__name__}, got {type(value).__name__}")
    return value


def inc_rkey(rkey: int) -> int:
    """
    @return: the rkey for the next bind of a type 2 memory window.
    """
    # libibverbs/verbs.h ibv_inc_rkey.  IBTA vol. 1 10.6.7.2: the consumer owns the low 8 bits only, so that
    # an old rkey stops matching; the other 24 are the device's index.
    return (rkey & ~0xFF) | ((rkey + 1) & 0xFF)


def table(rows: Iterable[tuple[str, object]], width: int = 22, indent: int = 0) -> str:
    """
    Print fields, one a line.

    @param width: of the names, in characters.
    @param indent: of the lines, in characters.
    """
    # pyverbs' print_format, '{:22}: {:<20}'.
    return "".join(f"{'':{indent}}{name:{width}}: {value!s:<20}\n" for name, value in rows)


def named(enumeration: type[IntEnum], value: int, prefix: str) -> str:
    """
    @param prefix: the common beginning of the enumeration's names.
    @return: the name of a value without the prefix, or C{Unknown} and the number.
    """
    try:
        return enumeration(value).name.removeprefix(prefix)
    except ValueError:
        return f"Unknown ({value})"


def flagged(enumeration: type[IntFlag], value: int, prefix: str) -> str:
    """
    @param prefix: the common beginning of the enumeration's names.
    @return: the names of the bits that are set, without the prefix; unknown bits are left out.
    """
    members = enumeration.__members__.items()
    return " ".join(name.removeprefix(prefix) for name, member in members if value & member)
