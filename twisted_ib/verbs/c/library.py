"""
The start of a library in its process: each function gets its handler.
"""

from __future__ import annotations

from collections.abc import Iterable

from twisted_ib.verbs.c.errors import failing
from twisted_ib.verbs.c.functions import Row, handlersOf
from twisted_ib.verbs.c.pointers import FFI


def connect(ffi: FFI, library: str, table: Iterable[Row]) -> None:
    """
    Give each function its handler.

    @param ffi: the library's.
    @param library: its folder, whose modules with handlers are imported.
    """
    for row, function in handlersOf(library, table):
        # No function around each handler, which would be one more for each call.
        ffi.def_extern(name=f"python_{row.name}", onerror=failing(row, ffi))(function)
