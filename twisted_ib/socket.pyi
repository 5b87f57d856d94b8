# isort: skip_file
from typing import Any

from twisted_ib.blocking.socket import AF_IB as AF_IB
from twisted_ib.blocking.socket import socket as socket

def create_connection(
    address: tuple[str | None, int],
    timeout: float | None = ...,
    source_address: tuple[str, int] | None = None,
    *,
    all_errors: bool = False,
) -> socket: ...
def create_server(
    address: tuple[Any, ...],
    *,
    family: int = ...,
    backlog: int | None = None,
    reuse_port: bool = False,
    dualstack_ipv6: bool = False,
) -> socket: ...
def fromfd(fd: int, family: int, type: int, proto: int = 0) -> socket: ...

# All other names: what stands above is not replaced.
from socket import *  # type: ignore[assignment]  # noqa: E402, F403
