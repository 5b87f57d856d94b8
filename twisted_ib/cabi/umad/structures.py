"""
Memory of this library that programs are given and give back.
"""

from __future__ import annotations

from typing import Any

from _twisted_ib_umad import ffi

from twisted_ib.cabi.errors import HandleError

#: By its address, until the program releases it.
_held: dict[int, Any] = {}


def _addressOf(pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))


def hold(made: Any, *parts: Any) -> Any:
    """
    Keep memory for a program, until L{release}.

    @param parts: what it points to.
    @return: C{made}.
    """
    _held[_addressOf(made)] = made, parts
    return made


def given(*pointers: Any) -> None:
    """
    @raise HandleError: one of the pointers is null (EINVAL): cffi follows that.
    """
    if not all(pointers):
        raise HandleError("A pointer is null")


def isHeld(pointer: Any) -> bool:
    """
    @return: whether there is memory of this library, which is not released.
    """
    return _addressOf(pointer) in _held


def release(pointer: Any) -> None:
    """
    Free memory; harmless if it is not of this library, or is free.
    """
    _held.pop(_addressOf(pointer), None)


#: Texts that programs keep for ever: one for each value of an enumeration.
_texts: dict[str, Any] = {}


def lasting(text: str) -> Any:
    """
    @param text: one of a fixed set.
    @return: it as a string of C that stays.
    """
    if text not in _texts:
        _texts[text] = ffi.new("char[]", text.encode())
    return _texts[text]


def textOf(pointer: Any) -> str:
    """
    @return: a string of C; no text for a null pointer.
    """
    return ffi.string(pointer).decode("utf-8", "replace") if pointer else ""


__all__ = ["given", "hold", "isHeld", "lasting", "release", "textOf"]
