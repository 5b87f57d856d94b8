"""
Protection domains and memory regions: who may touch which bytes.

A program registers a buffer and gets a region with a key.  A peer that was told the key
and the region's address may read or write those bytes without the program's help, if the
region grants it.  L{Memory.check} is the one place where such rights are asked, for peers
and for the program's own scatter/gather lists alike.

Addresses are names, not pointers: unless the program says otherwise a region's address is
random, and only the difference to it counts.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntFlag

from twisted_ib import limits
from twisted_ib.errors import (
    MemoryAccessError,
    MemoryRegionError,
    ResourceBusyError,
    ResourceLimitError,
)
from twisted_ib.hca.core.keys import MemoryKeys


class Access(IntFlag):
    """
    Rights on memory, and on what a queue pair lets its peer do, as
    C{enum ibv_access_flags}.
    """

    LOCAL_WRITE = 1
    REMOTE_WRITE = 2
    REMOTE_READ = 4
    REMOTE_ATOMIC = 8
    MW_BIND = 0x10
    ZERO_BASED = 0x20
    ON_DEMAND = 0x40
    HUGETLB = 0x80
    FLUSH_GLOBAL = 0x100
    FLUSH_PERSISTENT = 0x200
    RELAXED_ORDERING = 0x100000


# Plain integers: an IntFlag operation makes an object and costs ten times as much.
LOCAL_READ = 0
LOCAL_WRITE = int(Access.LOCAL_WRITE)
REMOTE_WRITE = int(Access.REMOTE_WRITE)
REMOTE_READ = int(Access.REMOTE_READ)
REMOTE_ATOMIC = int(Access.REMOTE_ATOMIC)
_REMOTE = REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC
_ZERO_BASED = int(Access.ZERO_BASED)
_KNOWN = int(sum(Access))

_ADDRESS_END = 1 << 64
_PAGE_BITS = 12
_ADDRESS_BITS = 47
_NOTHING = memoryview(b"")


class ProtectionDomain:
    """
    A fence: what belongs to one domain is of no use to what belongs to another.

    @ivar memory: the table of the device that it belongs to.
    @ivar users: how many objects of each kind belong to it, by the kind's name.
    """

    __slots__ = ("memory", "users")

    def __init__(self, memory: Memory) -> None:
        """
        Only L{Memory.allocateDomain} calls this.
        """
        self.memory = memory
        self.users: dict[str, int] = {}

    def hold(self, kind: str) -> None:
        """
        One object of a kind now belongs to this domain.
        """
        self.users[kind] = self.users.get(kind, 0) + 1

    def release(self, kind: str) -> None:
        """
        One object of a kind no longer belongs to this domain.
        """
        count = self.users[kind] - 1
        if count:
            self.users[kind] = count
        else:
            del self.users[kind]


class MemoryRegion:
    """
    A registered buffer.

    @ivar view: its bytes, writable if the region grants any write.
    @ivar address: the name of its first byte.
    @ivar length: its size in bytes.
    @ivar access: the L{Access} bits that it grants.
    @ivar pd: its protection domain.
    @ivar key: the key that opens it, locally and remotely.
    @ivar segment: the shared memory that the bytes lie in, if the fabric allocated them
        so that a peer can map them; else L{None}.  Opaque here.
    """

    __slots__ = ("access", "address", "key", "length", "pd", "segment", "view")

    def __init__(
        self,
        view: memoryview,
        address: int,
        access: int,
        pd: ProtectionDomain,
        segment: object,
    ) -> None:
        """
        Only L{Memory.register} calls this, and gives the key.
        """
        self.view = view
        self.address = address
        self.length = len(view)
        self.access = access
        self.pd = pd
        self.segment = segment
        self.key = 0

    @property
    def localKey(self) -> int:
        """
        The key for the owner's scatter/gather lists.
        """
        return self.key

    @property
    def remoteKey(self) -> int:
        """
        The key for peers; 0 if the region grants them nothing.
        """
        return self.key if self.access & _REMOTE else 0


class Memory:
    """
    The protection domains and memory regions of one device.

    @ivar regions: the regions by key.
    @ivar domains: the protection domains.
    """

    __slots__ = ("_keys", "_randomBits", "domains", "regions")

    def __init__(self, randomBits: Callable[[int], int]) -> None:
        """
        @param randomBits: the source of entropy: C{randomBits(n)} gives an n-bit number.
        """
        self.regions: dict[int, MemoryRegion] = {}
        self.domains: set[ProtectionDomain] = set()
        self._keys = MemoryKeys(randomBits)
        self._randomBits = randomBits

    def allocateDomain(self) -> ProtectionDomain:
        """
        A new protection domain.

        @raise ResourceLimitError: there are too many.
        """
        if len(self.domains) >= limits.PROTECTION_DOMAINS:
            raise ResourceLimitError(f"a device holds at most {limits.PROTECTION_DOMAINS} protection domains")
        domain = ProtectionDomain(self)
        self.domains.add(domain)
        return domain

    def deallocateDomain(self, pd: ProtectionDomain) -> None:
        """
        Give a protection domain back.

        @raise ResourceBusyError: something still belongs to it.
        @raise MemoryRegionError: it is not, or no longer, one of this device.
        """
        if pd.users:
            held = ", ".join(f"{count} {kind}" for kind, count in pd.users.items())
            raise ResourceBusyError(f"the protection domain still holds {held}")
        if pd not in self.domains:
            raise MemoryRegionError("this protection domain was deallocated before")
        self.domains.remove(pd)

    def register(
        self,
        buffer: object,
        access: int,
        pd: ProtectionDomain,
        address: int | None = None,
        segment: object = None,
    ) -> MemoryRegion:
        """
        Register a buffer.

        @param buffer: anything that gives a contiguous buffer; it must be writable if
            the region grants a write.
        @param access: L{Access} bits.
        @param pd: the protection domain.
        @param address: the name of the first byte; random if L{None}, 0 with
            L{Access.ZERO_BASED}.
        @param segment: see L{MemoryRegion.segment}.

        @raise MemoryRegionError: the rights, the buffer or the address are not possible.
        @raise ResourceLimitError: there are too many regions.
        """
        view = self._view(buffer, access)
        if pd not in self.domains:
            raise MemoryRegionError("the protection domain is not one of this device")
        if len(self.regions) >= limits.MEMORY_REGIONS:
            raise ResourceLimitError(f"a device registers at most {limits.MEMORY_REGIONS} memory regions")
        if access & _ZERO_BASED:
            address = 0
        elif address is None:
            address = self._randomAddress()
        if address < 0 or address + len(view) > _ADDRESS_END:
            raise MemoryRegionError(f"{len(view)} bytes at {address:#x} are not within 64-bit addresses")
        region = MemoryRegion(view, address, int(access), pd, segment)
        region.key = self._keys.issue()
        self.regions[region.key] = region
        pd.hold("memory regions")
        return region

    def deregister(self, region: MemoryRegion) -> None:
        """
        Take a region's rights back: its key opens nothing from now on.

        @raise MemoryRegionError: it is not registered here.
        """
        if self.regions.get(region.key) is not region:
            raise MemoryRegionError("this memory region was deregistered before")
        del self.regions[region.key]
        self._keys.withdraw(region.key)
        region.pd.release("memory regions")
        region.segment = None
        region.view = _NOTHING

    def check(
        self, key: int, address: int, length: int, access: int, pd: ProtectionDomain
    ) -> tuple[memoryview, int]:
        """
        Find the bytes that a key, an address and a length name, if they may be used so.

        An access of no bytes is not checked at all and finds none: programs send it with
        a key and an address of garbage, as a sign of life (Linux rxe C{check_rkey}).

        @param key: the key of a region.
        @param address: the name of the first byte.
        @param length: how many bytes.
        @param access: the L{Access} bits that are needed: L{LOCAL_READ} for sending from
            it, L{LOCAL_WRITE} for receiving into it, the remote bits for a peer.
        @param pd: the protection domain of the queue pair that asks.

        @return: the region's view, and the offset of the first byte in it.

        @raise MemoryAccessError: with the first reason that was found.
        """
        if not length:
            return _NOTHING, 0
        region = self.regions.get(key)
        if region is None:
            raise MemoryAccessError(f"no memory region has key {key:#010x}")
        if region.pd is not pd:
            raise MemoryAccessError(f"the memory region of key {key:#010x} is in another protection domain")
        offset = address - region.address
        if offset < 0 or length < 0 or offset + length > region.length:
            raise MemoryAccessError(
                f"{length} bytes at {address:#x} are not within the memory region of key {key:#010x}"
            )
        if access & ~region.access:
            raise MemoryAccessError(
                f"the memory region of key {key:#010x} does not grant {Access(access & ~region.access)!r}"
            )
        return region.view, offset

    def _view(self, buffer: object, access: int) -> memoryview:
        """
        The bytes of a buffer, if it can give what the access bits promise.
        """
        if access & ~_KNOWN:
            raise MemoryRegionError(f"unknown access bits {access & ~_KNOWN:#x}")
        # IBTA vol. 1 10.6.3.1: who may write from afar may write from near.
        if access & (REMOTE_WRITE | REMOTE_ATOMIC) and not access & LOCAL_WRITE:
            raise MemoryRegionError("remote write and remote atomic access demand local write access")
        try:
            view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        except TypeError as error:
            raise MemoryRegionError(f"this can not be registered: {error}") from None
        if access & LOCAL_WRITE and view.readonly:
            raise MemoryRegionError("local write access to a read-only buffer")
        if len(view) > limits.REGION_BYTES:
            raise MemoryRegionError(f"a memory region has at most {limits.REGION_BYTES} bytes")
        return view

    def _randomAddress(self) -> int:
        """
        A page's address in the upper half of what a user process can have.
        """
        top = _ADDRESS_BITS - 1
        return 1 << top | self._randomBits(top - _PAGE_BITS) << _PAGE_BITS
