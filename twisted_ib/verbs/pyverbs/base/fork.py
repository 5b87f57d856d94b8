"""
C{ibv_fork_init} (rdma-core 65, C{pyverbs/fork.pyx}): a process may fork while memory is registered.

The child shares no registered memory with its parent and can use none of its objects; it opens a device of
its own.
"""

from __future__ import annotations

from twisted_ib.verbs.pyverbs.enums.device import ibv_fork_status


# man ibv_fork_init(3): on hardware, pinned pages must be kept from the child (MADV_DONTFORK), or
# copy-on-write moves the parent's pages away from the DMA address.  Here no page is pinned.
def fork_init() -> None:
    """
    Do nothing: forks need no preparation here.
    """


def is_fork_initialized() -> int:
    """
    @return: C{IBV_FORK_UNNEEDED}.
    """
    return ibv_fork_status.IBV_FORK_UNNEEDED
