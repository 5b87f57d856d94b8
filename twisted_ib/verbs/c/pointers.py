"""
Pointers of C, of any of the libraries.
"""

from __future__ import annotations

from _cffi_backend import FFI
from _cffi_backend import _CDataBase as CData

from twisted_ib.verbs.c.errors import HandleError

#: It knows C's own types, which are the same in all libraries.
_ffi = FFI()


def addressOf(pointer: CData) -> int:
    """
    @return: what a pointer points to, as a number; 0 of a null pointer.
    """
    return int(_ffi.cast("uintptr_t", pointer))


def given(*pointers: CData) -> None:
    """
    @raise HandleError: one of the pointers is null (EINVAL): cffi would follow it.
    """
    if not all(pointers):
        raise HandleError("A pointer is null")


#: Texts that C programs hold for ever: one for each value of an enumeration.
_texts: dict[str, CData] = {}


def lasting(text: str) -> CData:
    """
    @param text: one of a fixed set.
    @return: it as a string of C that stays.
    """
    if text not in _texts:
        _texts[text] = _ffi.new("char[]", text.encode())
    return _texts[text]


__all__ = ["FFI", "CData", "addressOf", "given", "lasting"]
