"""
Protection domains, created by L{Memory<twisted_ib.hca.memory.memory.Memory>}.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted_ib.hca.base.refcount import RefCounted

if TYPE_CHECKING:
    from twisted_ib.hca.memory.memory import Memory


class ProtectionDomain(RefCounted):
    """
    A protection domain: objects of one domain cannot use objects of another (IBTA vol. 1 10.2.3).

    @ivar memory: the tables of its device.
    """

    __slots__ = ("__weakref__", "memory")

    kind = "protection domain"

    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self.memory = memory
