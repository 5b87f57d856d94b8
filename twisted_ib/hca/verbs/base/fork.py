"""
Whether a process may fork while memory is registered: it may, as the child does without.

The child shares no registered memory with its parent and can use none of its parent's
objects; it opens a device of its own.  Source: rdma-core 65, C{pyverbs/fork.pyx}.
"""

from __future__ import annotations

from twisted_ib.hca.verbs.enums.device import ibv_fork_status


def fork_init() -> None:
    """
    Prepare for forks: there is nothing to prepare.
    """


def is_fork_initialized() -> int:
    """
    @return: one of C{ibv_fork_status}: preparing is not needed.
    """
    return ibv_fork_status.IBV_FORK_UNNEEDED
