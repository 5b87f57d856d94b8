"""
The C{socket} module with streams over SDP: see L{twisted_ib.blocking.socket}. All other names are the
standard library's.
"""

from __future__ import annotations

import socket as _kernel
from typing import Any

from twisted_ib.blocking.socket import create_connection, create_server, fromfd, socket

__all__ = ["create_connection", "create_server", "fromfd", "socket"]


def __getattr__(name: str) -> Any:
    return getattr(_kernel, name)
