"""
The C{selectors} module over sockets of SDP: see L{twisted_ib.blocking.select}. All other names are the
standard library's.
"""

from __future__ import annotations

import selectors as _kernel
from typing import Any

from twisted_ib.blocking.select import DefaultSelector, EpollSelector, PollSelector, SelectSelector

__all__ = ["DefaultSelector", "EpollSelector", "PollSelector", "SelectSelector"]


def __getattr__(name: str) -> Any:
    return getattr(_kernel, name)
