"""
The form in which this package runs: interpreted, or with modules that mypyc has compiled, and on which build.
"""

from __future__ import annotations

import sys

_PACKAGE = __name__.partition(".")[0] + "."


def compiledModules() -> list[str]:
    """
    @return: The names of this package's imported modules that are compiled, sorted; none in the pure form.
    """
    # Not those that could be: a .so file of another Python beside a module does not run.
    return sorted(
        name
        for name, module in list(sys.modules.items())
        if name.startswith(_PACKAGE) and (getattr(module, "__file__", None) or "").endswith(".so")
    )


def isFreeThreaded() -> bool:
    """
    @return: Whether the interpreter is of the free-threaded build (PEP 703), as python3.13t.
    """
    return "t" in sys.abiflags
