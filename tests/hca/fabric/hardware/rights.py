"""
The rights that an adapter checks.
"""

from __future__ import annotations

from typing import Any

#: What a send request asks for, by its opcode (C{enum ibv_wr_opcode}): a bit of C{enum ibv_access_flags}.
RIGHTS = {0: 2, 1: 2, 4: 4, 5: 8, 6: 8}


def check(peer: Any, request: Any, length: int) -> bool:
    """
    @return: whether a peer's queue pair and memory grant a request.
    """
    region = peer.domain.host.regions.get(request.rkey)
    right = RIGHTS[request.opcode]
    return (
        region is not None
        and region.domain is peer.domain
        and bool(peer.rights & region.access & right)
        and region.addr <= request.remote_addr <= region.addr + region.length - length
    )
