"""
Protection domains and memory regions, created by L{Memory<twisted_ib.hca.memory.memory.Memory>}.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from twisted_ib.hca.base.refcount import RefCounted
from twisted_ib.hca.memory.access import LOCAL_WRITE, REMOTE, REMOTE_ATOMIC, REMOTE_WRITE

if TYPE_CHECKING:
    from twisted_ib.hca.memory.memory import Memory


class Revocable(Protocol):
    """
    A peer's permission to reach a region by itself.
    """

    def revoke(self) -> None:
        """
        Take it back: afterwards the peer does not reach the region any more.
        """


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


_WRITES = LOCAL_WRITE | REMOTE_WRITE | REMOTE_ATOMIC


class MemoryRegion(RefCounted):
    """
    A registered buffer.

    @ivar view: its bytes, writable if the region grants any write.
    @ivar address: of its first byte.
    @ivar length: bytes.
    @ivar access: the L{Access<twisted_ib.hca.memory.access.Access>} bits that it grants.
    @ivar key: local and remote key.
    @ivar segment: the shared memory that the bytes lie in, if the fabric allocated them so that a peer can
        map them; else L{None}.  Opaque here.
    @ivar present: tells whether so many bytes from an offset on are there, writable if that is asked, for
        memory that is not kept by L{view} and may go while it is registered; L{None} for all other.
    @ivar sure: the offset before which all bytes are there for certain: L{length}, or none.
    @ivar grants: the peers' permissions to reach it without L{Memory.check
        <twisted_ib.hca.memory.memory.Memory.check>}.
    @ivar place: where the bytes are in this process, once somebody has asked; else 0.
    """

    __slots__ = (
        "access",
        "address",
        "grants",
        "key",
        "length",
        "pd",
        "place",
        "present",
        "segment",
        "sure",
        "view",
    )

    grants: tuple[Revocable, ...]

    kind = "memory region"

    def __init__(
        self,
        view: memoryview,
        address: int,
        access: int,
        pd: ProtectionDomain,
        segment: object,
        present: Callable[[int, int, bool], bool] | None = None,
    ) -> None:
        super().__init__()
        self.view = view
        self.address = address
        self.length = len(view)
        self.access = access
        self.pd = pd
        self.segment = segment
        self.setPresent(present)
        self.key = self.place = 0
        self.grants = ()

    def setPresent(self, present: Callable[[int, int, bool], bool] | None) -> None:
        """
        Set L{present}, with the length that there is.
        """
        self.present = present
        self.sure = self.length if present is None else -1

    def revoke(self) -> None:
        """
        Take back what peers may do without being asked; before something of it changes.
        """
        for each in self.grants:
            each.revoke()

    def isWithin(self, offset: int, length: int, access: int) -> bool:
        """
        @param access: the bits that are needed.
        @return: whether bytes are the region's, and there for that.
        """
        if offset < 0 or length < 0 or offset + length > self.length:
            return False
        return self.present is None or self.present(offset, length, bool(access & _WRITES))

    @property
    def localKey(self) -> int:
        """
        The L_Key, for the owner's scatter/gather lists.
        """
        # One number serves as both keys, as in Linux rxe_mr.c; the access bits tell local from
        # remote use.
        return self.key

    @property
    def remoteKey(self) -> int:
        """
        The R_Key, for peers; 0 if the region grants them nothing.
        """
        return self.key if self.access & REMOTE else 0
