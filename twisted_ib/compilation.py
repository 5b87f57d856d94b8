"""
Marks for mypyc on classes that may be compiled; without it they say nothing.

C{mypy_extensions} is needed where mypyc is, and not at run time.

If an object's class is interpreted, compiled code looks up its methods as Python does.  So the compiled bases
of such classes call methods that nobody overrides through the class, C{Base.method(self)}: a call of C.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:

    def mypyc_attr(**attributes):
        """
        Return a decorator that returns its class.
        """
        return lambda marked: marked


__all__ = ["mypyc_attr"]
