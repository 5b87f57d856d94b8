"""
Where the names are documented that are Python's, Twisted's or zope.interface's.
"""

from __future__ import annotations

import builtins
import sys
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any

from zope.interface.interface import InterfaceClass

PYTHON = "https://docs.python.org/3/library"
TWISTED = "https://docs.twisted.org/en/stable/api"

#: zope.interface has one page for all.
ZOPE = "https://zopeinterface.readthedocs.io/en/latest/api/index.html"


@lru_cache(maxsize=4096)
def urlOf(name: str) -> str | None:
    """
    @param name: a full name.

    @return: where it is documented; L{None} if it is none of Python's, Twisted's or
        zope.interface's.
    """
    root = name.partition(".")[0]
    if hasattr(builtins, root):
        return _builtin(name) if _member(builtins, name.split(".")) else None
    if root not in sys.stdlib_module_names and root not in ("twisted", "zope"):
        return None
    module, rest = _module(name)
    if module is None or not _member(module, rest):
        return None
    if root == "zope":
        return ZOPE
    if root != "twisted":
        # Not the module's own name: that of os.path is posixpath.
        page = name.removesuffix("".join(f".{each}" for each in rest))
        return f"{PYTHON}/{page}.html" + (f"#{name}" if rest else "")
    # A page for each module and class; what is in them has an anchor.
    path = [module.__name__, *rest]
    if not rest or (len(rest) == 1 and isinstance(getattr(module, rest[0]), (type, InterfaceClass))):
        return f"{TWISTED}/{'.'.join(path)}.html"
    return f"{TWISTED}/{'.'.join(path[:-1])}.html#{path[-1]}"


def _builtin(name: str) -> str:
    """
    @return: where a built-in name is documented.
    """
    value = getattr(builtins, name.partition(".")[0])
    if not isinstance(value, type):
        page = "functions" if callable(value) else "constants"
    else:
        page = "exceptions" if issubclass(value, BaseException) else "stdtypes"
    return f"{PYTHON}/{page}.html#{name}"


def _module(name: str) -> tuple[ModuleType | None, list[str]]:
    """
    @return: the innermost module in a full name, and the parts after it.
    """
    module = None
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        try:
            module = import_module(".".join(parts[:count]))
        except ImportError:
            return module, parts[count - 1 :]
    return module, []


def _member(value: Any, names: list[str]) -> bool:
    """
    @return: whether a module or class has an attribute, which has an attribute, and so on.
    """
    for name in names:
        if isinstance(value, InterfaceClass):
            value = value.get(name)
            if value is None:
                return False
        elif not hasattr(value, name):
            return False
        else:
            value = getattr(value, name)
    return True


def isInterface(name: str) -> bool:
    """
    @param name: a full name.

    @return: whether it is an interface of Twisted.
    """
    if name.partition(".")[0] != "twisted":
        return False
    module, rest = _module(name)
    return len(rest) == 1 and isinstance(getattr(module, rest[0], None), InterfaceClass)
