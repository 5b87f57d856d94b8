"""
The C{socket} module with streams over SDP: see L{twisted_ib.blocking.socket}, and for C{AF_IB}
L{twisted_ib.blocking.families.gids}. All other names are the standard library's.
"""

from __future__ import annotations

import socket as _kernel
from typing import Any

from twisted_ib.blocking.families import gids
from twisted_ib.blocking.socket import AF_IB, create_connection, create_server, fromfd, socket

__all__ = ["AF_IB", "create_connection", "create_server", "fromfd", "socket"]

# It enters its family.
del gids


def __getattr__(name: str) -> Any:
    return getattr(_kernel, name)
