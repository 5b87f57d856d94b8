"""
The functions of a library that a binary imports: what the loader looks for when the program starts.
"""

from __future__ import annotations

from attrs import frozen


@frozen(order=True)
class Symbol:
    """
    One function, or variable, of a library.

    @ivar library: the library's name for the loader, as C{libibverbs.so.1}.
    @ivar version: its version, as C{IBVERBS_1.1}.
    @ivar name: its name.
    @ivar isData: whether it is a variable.
    """

    library: str
    version: str
    name: str
    isData: bool = False
