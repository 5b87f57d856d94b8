"""
Memory of this library that programs are given and give back.
"""

from __future__ import annotations

from _twisted_ib_umad import ffi

from twisted_ib.verbs.c.pointers import CData, addressOf

#: By its address, until the program releases it.
_held: dict[int, object] = {}


def hold(made: CData, *parts: CData) -> CData:
    """
    Keep memory for a program, until L{release}.

    @param parts: what it points to.
    @return: C{made}.
    """
    _held[addressOf(made)] = made, parts
    return made


def isHeld(pointer: CData) -> bool:
    """
    @return: whether there is memory of this library, which is not released.
    """
    return addressOf(pointer) in _held


def release(pointer: CData) -> None:
    """
    Free memory; harmless if it is not of this library, or is free.
    """
    _held.pop(addressOf(pointer), None)


def textOf(pointer: CData) -> str:
    """
    @return: a string of C; no text for a null pointer.
    """
    return ffi.string(pointer).decode("utf-8", "replace") if pointer else ""
