"""
The C{select} module over sockets of SDP: see L{twisted_ib.blocking.select}.  All other names are the standard
library's.
"""

from __future__ import annotations

import select as _kernel
from typing import Any

from twisted_ib.blocking.select import epoll, poll, select

__all__ = ["epoll", "poll", "select"]


def __getattr__(name: str) -> Any:
    return getattr(_kernel, name)
