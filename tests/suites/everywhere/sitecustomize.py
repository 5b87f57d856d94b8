"""
In a folder of C{PYTHONPATH}: C{from twisted.internet import reactor} gives the ib reactor.
"""

from __future__ import annotations

import sys
from types import ModuleType


def install() -> None:
    """
    Install it.
    """
    from twisted_ib.reactor import ibreactor

    ibreactor.install()


_default = ModuleType("twisted.internet.default")
_default.install = install  # type: ignore[attr-defined]
sys.modules[_default.__name__] = _default
