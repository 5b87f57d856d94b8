"""
What an application gives to a transport, looked at before anything is sent: a wrong value that is
found later would be somebody else's trouble.
"""

from __future__ import annotations

from operator import index
from typing import Any

_32_BITS = 1 << 32


def whole(name: str, value: Any) -> int:
    """
    Take an integer.

    @param name: What it is for, for the error's text.
    @raise TypeError: It is none.
    """
    try:
        return index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}") from None


def octets(data: Any) -> bytes:
    """
    Take bytes; what can change is copied.

    @raise TypeError: It is not bytes-like.
    """
    if isinstance(data, bytes):
        return data
    try:
        return bytes(memoryview(data))
    except TypeError:
        raise TypeError(f"data must be bytes-like, not {type(data).__name__}") from None


def immediateData(immediate: Any) -> int:
    """
    Take immediate data.

    @raise TypeError: It is no integer.
    @raise ValueError: It has more than 32 bits.
    """
    number = whole("immediate data", immediate)
    if not 0 <= number < _32_BITS:
        raise ValueError(f"immediate data has 32 bits, not {number:#x}")
    return number
