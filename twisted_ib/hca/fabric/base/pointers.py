"""
The address of a buffer, which is read-only or not.
"""

from __future__ import annotations

from ctypes import Structure, byref, c_char_p, c_int, c_ssize_t, c_void_p, py_object, pythonapi
from typing import Any

_SIMPLE = 0


class _Buffer(Structure):
    # Py_buffer: ctypes' own from_buffer() takes writable memory only.
    _fields_ = [
        ("buf", c_void_p),
        ("obj", c_void_p),
        ("len", c_ssize_t),
        ("itemsize", c_ssize_t),
        ("readonly", c_int),
        ("ndim", c_int),
        ("format", c_char_p),
        ("shape", c_void_p),
        ("strides", c_void_p),
        ("suboffsets", c_void_p),
        ("internal", c_void_p),
    ]


def addressOf(view: Any) -> int:
    """
    @param view: a buffer, which stays where it is while somebody has a view of it.
    @return: the address of its first byte.
    """
    found = _Buffer()
    pythonapi.PyObject_GetBuffer(py_object(view), byref(found), _SIMPLE)
    address: int = found.buf
    pythonapi.PyBuffer_Release(byref(found))
    return address
