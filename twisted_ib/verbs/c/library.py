"""
The start of a library in its process: each function gets its handler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from twisted_ib.verbs.c.errors import failing
from twisted_ib.verbs.c.functions import Row, handlersOf
from twisted_ib.verbs.c.pointers import FFI


def connect(
    ffi: FFI,
    library: str,
    table: Iterable[Row],
    destroying: Callable[[Callable[..., object]], Callable[..., object]] | None = None,
) -> None:
    """
    Give each function its handler.

    @param ffi: the library's.
    @param library: its folder, whose modules with handlers are imported.
    @param destroying: makes a handler that waits of one that destroys; L{None} where none does.
    """
    for row, function in handlersOf(library, table):
        # No function around each other handler, which would be one more for each call.
        if row.destroys and destroying is not None:
            function = destroying(function)
        ffi.def_extern(name=f"python_{row.name}", onerror=failing(row, ffi))(function)
