"""
The memory of one device: protection domains, regions and windows, and the check of rights.

A program registers a buffer and gets a region with a key.  A peer that knows the key and the region's
address may read or write those bytes without the program's help, if the region grants it.  L{Memory.check}
is the one place that checks rights, for peers and for the program's own scatter/gather lists.

Addresses are names, not pointers: unless the program chooses one, a region's address is random, and only
offsets from it matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final, Protocol

from twisted_ib import limits
from twisted_ib.errors import (
    MemoryAccessError,
    MemoryRegionError,
    ResourceLimitError,
    UnsupportedRegionError,
)
from twisted_ib.hca.base.refcount import RefCounted
from twisted_ib.hca.memory.access import (
    LOCAL_WRITE,
    REMOTE,
    REMOTE_ATOMIC,
    REMOTE_READ,
    REMOTE_WRITE,
    ZERO_BASED,
    Access,
    checkKnown,
)
from twisted_ib.hca.memory.domains import ProtectionDomain
from twisted_ib.hca.memory.keys import MemoryKeys
from twisted_ib.hca.memory.windows import MemoryWindow, Windows

_ADDRESS_END: Final = 1 << 64
_PAGE_BITS: Final = 12
_ADDRESS_BITS: Final = 47
#: Bytes on each side that are checked with those of a message, for the next ones.
_NEAR: Final = 4096
_NOTHING: Final = memoryview(b"")
#: In the key of memory that an adapter does not know.
_APART: Final = 1 << 32
#: The rights that every adapter knows, and what it need not use (verbs.h, C{IBV_ACCESS_OPTIONAL_RANGE}).
_OF_ADAPTERS: Final = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC | int(Access.RELAXED_ORDERING)


_WRITES: Final = LOCAL_WRITE | REMOTE_WRITE | REMOTE_ATOMIC


class Registered(Protocol):
    """
    Memory as an adapter knows it.
    """

    def close(self) -> object:
        """
        Deregister it.
        """


class Revocable(Protocol):
    """
    A peer's permission to reach a region by itself.
    """

    def revoke(self) -> None:
        """
        Take it back: afterwards the peer does not reach the region any more.
        """


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
    @ivar present: tells whether so many bytes from an offset on are the region's, and there, writable if that
        is asked, for memory that is not kept by L{view} and may go while it is registered; L{None} for all
        other.
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

    kind: ClassVar[str] = "memory region"

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
        if offset >= 0 and length >= 0 and offset + length <= self.sure:
            return True
        return self.present is not None and self.present(offset, length, access & _WRITES != 0)

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


class Memory:
    """
    The protection domains, memory regions and memory windows of one device.

    @ivar regions: the regions by key.
    @ivar windows: the memory windows.
    @ivar empty: a protection domain without memory, none of C{domains}: of connections that have registered
        nothing.
    @ivar registrar: registers memory with an adapter, which chooses key and address: see
        L{IAdapterFabric.register<twisted_ib.hca.fabric.base.streams.IAdapterFabric.register>}; L{None} where
        there is none.
    """

    def __init__(self, randomBits: Callable[[int], int]) -> None:
        """
        @param randomBits: the source of entropy: C{randomBits(n)} gives an n-bit number.
        """
        self.regions: dict[int, MemoryRegion] = {}
        self.domains: set[ProtectionDomain] = set()
        self.empty = ProtectionDomain(self)
        self._keys = MemoryKeys(randomBits)
        self.windows = Windows(self._keys)
        self._randomBits = randomBits
        self.registrar: Callable[[memoryview, int, ProtectionDomain], tuple[int, int, Registered]] | None = (
            None
        )
        # What ends a registration with the adapter, by key.
        self._registered: dict[int, Registered] = {}

    def allocateDomain(self) -> ProtectionDomain:
        """
        Allocate a protection domain.

        @raise ResourceLimitError: there are too many.
        """
        if len(self.domains) >= limits.PROTECTION_DOMAINS:
            raise ResourceLimitError(f"a device holds at most {limits.PROTECTION_DOMAINS} protection domains")
        domain = ProtectionDomain(self)
        self.domains.add(domain)
        return domain

    def deallocateDomain(self, pd: ProtectionDomain) -> None:
        """
        Deallocate a protection domain.

        @raise ResourceBusyError: something still belongs to it.
        @raise MemoryRegionError: it is not, or no longer, one of this device.
        """
        pd.checkFree()
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
        present: Callable[[int, int, bool], bool] | None = None,
        isPassing: bool = False,
    ) -> MemoryRegion:
        """
        Register a buffer.

        @param buffer: any object with a contiguous buffer; writable if the region grants local write.
        @param access: L{Access} bits.
        @param address: of the first byte; random if L{None}, 0 with L{Access.ZERO_BASED}.
        @param segment: see L{MemoryRegion.segment}.
        @param present: see L{MemoryRegion.present}.
        @param isPassing: whether it is for one transfer of this side's, without remote rights: then an
            adapter need not know it.

        @raise MemoryRegionError: the rights, the buffer or the address are not possible.
        @raise ResourceLimitError: there are too many regions.
        """
        self._checkDomain(pd)
        if len(self.regions) >= limits.MEMORY_REGIONS:
            raise ResourceLimitError(f"a device registers at most {limits.MEMORY_REGIONS} memory regions")
        view = _view(buffer)
        access = _checkAccess(view, access)
        if self.registrar is not None and not isPassing:
            region = self._registerThere(view, access, pd, address, segment, present)
        else:
            place = self._address(address, len(view), access)
            region = MemoryRegion(view, place, access, pd, segment, present)
            # Issued when nothing can fail any more, so that no key is used up by a refused
            # registration.
            region.key = self._keys.issue()
            if self.registrar is not None:
                # The adapter's keys are of the same 32 bits, and this one is told nobody.
                region.key |= _APART
        self.regions[region.key] = region
        pd.hold("memory regions")
        return region

    def _registerThere(
        self,
        view: memoryview,
        access: int,
        pd: ProtectionDomain,
        address: int | None,
        segment: object,
        present: object,
    ) -> MemoryRegion:
        # Peers read and write it without this package: key and address are the adapter's.
        if address is not None or present is not None or access & ~_OF_ADAPTERS:
            raise UnsupportedRegionError("an adapter's memory has addresses and rights of its own")
        assert self.registrar is not None
        key, place, registered = self.registrar(view, access, pd)
        if key in self._registered:
            # Of an adapter whose keys for peers and for itself are not of one number space.
            registered.close()
            raise MemoryRegionError(f"the adapter has given the key {key:#010x} twice")
        self._registered[key] = registered
        region = MemoryRegion(view, place, access, pd, segment)
        region.key = key
        return region

    def reregister(
        self,
        region: MemoryRegion,
        buffer: object = None,
        access: int | None = None,
        pd: ProtectionDomain | None = None,
        address: int | None = None,
        segment: object = ...,
        keepKey: bool = False,
        present: Callable[[int, int, bool], bool] | None = None,
    ) -> None:
        """
        Change a region and its key (IBTA vol. 1 11.2.8).  On error the region stays as it was.

        @param region: a region of this device.
        @param buffer: see L{register}; unchanged if L{None}.
        @param access: L{Access} bits; unchanged if L{None}.
        @param pd: a protection domain; unchanged if L{None}.
        @param address: of the first byte; if L{None} it stays with the buffer, and a new buffer gets one
            as in L{register}.
        @param segment: see L{MemoryRegion.segment}; if not given it stays with the buffer, and a new
            buffer has none.
        @param present: of a new buffer, see L{MemoryRegion.present}.
        @param keepKey: keep the key, as Linux rxe does; a new buffer has a new key in any case.

        @raise MemoryRegionError: as L{register}, or the region is not registered here.
        @raise ResourceBusyError: memory windows are bound to it.
        """
        self._checkRegistered(region)
        if self.registrar is not None:
            raise UnsupportedRegionError("an adapter's memory is not registered anew: deregister it")
        if pd is not None:
            self._checkDomain(pd)
        # A window would go on opening bytes of the old buffer (IBTA vol. 1 10.6.7.2).
        region.checkFree()
        # Everything that can fail comes before the first assignment.
        old = region.access
        view = region.view if buffer is None else _view(buffer)
        access = _checkAccess(view, old if access is None else access)
        if address is None and buffer is None and access & ZERO_BASED == old & ZERO_BASED:
            address = region.address
        address = self._address(address, len(view), access)
        if segment is ...:
            segment = region.segment if buffer is None else None
        region.revoke()
        region.place = 0
        region.view, region.length, region.address = view, len(view), address
        region.access, region.segment = access, segment
        if buffer is not None:
            region.setPresent(present)
        if pd is not None:
            region.pd.release("memory regions")
            region.pd = pd
            pd.hold("memory regions")
        # A peer that knows the old key was never given the new buffer's bytes.  Linux rxe_verbs.c
        # rxe_rereg_user_mr() changes access and domain only, and keeps the key.
        if buffer is not None or not keepKey:
            self._forgetKey(region)
            region.key = self._keys.issue()
            self.regions[region.key] = region

    def deregister(self, region: MemoryRegion) -> None:
        """
        Deregister a region: its key is not valid any more.

        @raise MemoryRegionError: it is not registered here.
        @raise ResourceBusyError: memory windows are bound to it.
        """
        self._checkRegistered(region)
        # Linux rxe_mr.c rxe_dereg_mr() refuses, too, while windows are bound.
        region.checkFree()
        region.revoke()
        self._forgetKey(region)
        region.pd.release("memory regions")
        # So that the program's buffer is released although the program may keep the region object.
        region.segment = None
        region.view = _NOTHING

    # -- windows

    def allocateWindow(self, pd: ProtectionDomain, type: int) -> MemoryWindow:
        """
        Allocate a memory window, unbound.

        @param type: a L{WindowType<twisted_ib.hca.memory.windows.WindowType>}.

        @raise MemoryRegionError: there is no such type, or the domain is not one of this device.
        @raise ResourceLimitError: there are too many.
        """
        self._checkDomain(pd)
        return self.windows.allocate(pd, type)

    # -- rights

    def check(
        self,
        key: int,
        address: int,
        length: int,
        access: int,
        pd: ProtectionDomain,
        queuePair: object = None,
    ) -> tuple[memoryview, int]:
        """
        Find the bytes of a key, an address and a length, if the access is permitted.

        @param key: the key of a region; if only remote bits are needed, of a region or a window.
        @param address: of the first byte.
        @param length: bytes.
        @param access: the L{Access} bits that are needed: C{LOCAL_READ} to send, L{LOCAL_WRITE} to
            receive, the remote bits for a peer.
        @param pd: the protection domain of the queue pair.
        @param queuePair: the queue pair whose peer asks; without it windows of type 2 are not valid.

        @return: the region's view, and the offset of the first byte in it.

        @raise MemoryAccessError: with the first check that failed.
        """
        # IBTA vol. 1 9.7.4.1, C9-88: READs and WRITEs of no bytes need no valid key.  Programs use one
        # with garbage for key and address as a keep-alive; Linux rxe_resp.c check_rkey() accepts
        # it, too.
        if not length:
            return _NOTHING, 0
        region = self.regions.get(key)
        if region is None:
            return self.windows.check(key, address, length, access, pd, queuePair)
        # Domain, bounds, rights: Linux rxe_mr.c lookup_mr() and mr_check_range() check the same.
        # The order matters to the error text only, as a peer gets NAK 0x62 for each of them.
        if region.pd is not pd:
            raise MemoryAccessError(f"the memory region of key {key:#010x} is in another protection domain")
        # Python's integers do not wrap: address + length beyond 2^64 is out of bounds, not a small
        # number.
        offset = address - region.address
        # isWithin(), without a call.
        if (offset < 0 or length < 0 or offset + length > region.sure) and (
            region.present is None or not region.present(offset, length, access & _WRITES != 0)
        ):
            raise MemoryAccessError(
                f"{length} bytes at {address:#x} are not within the memory region of key {key:#010x}, or gone"
            )
        if access & ~region.access:
            raise MemoryAccessError(
                f"the memory region of key {key:#010x} does not grant {Access(access & ~region.access)!r}"
            )
        return region.view, offset

    def near(
        self, key: int, address: int, length: int, access: int, pd: ProtectionDomain
    ) -> tuple[memoryview, int, int, int]:
        """
        As L{check}, for the bytes around as well, in one region: for several messages that are processed
        without a pause.

        @return: the region's view, its address, and of what is permitted the first address and the one behind
            the last.
        @raise MemoryAccessError: as L{check}; or something around is not permitted.
        """
        region = self.regions.get(key)
        if region is None:
            raise MemoryAccessError(f"there is no memory region of key {key:#010x}")
        first = max(address - _NEAR, region.address)
        last = min(address + length + _NEAR, region.address + region.length)
        if not first <= address < address + length <= last:
            raise MemoryAccessError(f"{length} bytes at {address:#x} are not within the region")
        view, offset = self.check(key, first, last - first, access, pd)
        return view, first - offset, first, last

    def _checkDomain(self, pd: ProtectionDomain) -> None:
        if pd not in self.domains:
            raise MemoryRegionError("the protection domain is not one of this device")

    def _checkRegistered(self, region: MemoryRegion) -> None:
        if self.regions.get(region.key) is not region:
            raise MemoryRegionError("this memory region was deregistered before")

    def _forgetKey(self, region: MemoryRegion) -> None:
        del self.regions[region.key]
        registered = self._registered.pop(region.key, None)
        if registered is None:
            self._keys.withdraw(region.key & ~_APART)
        else:
            registered.close()

    def _address(self, address: int | None, length: int, access: int) -> int:
        if access & ZERO_BASED:
            return 0
        if address is None:
            # A random page in the upper half of a process's 47-bit addresses, so that a peer
            # cannot guess it.
            top = _ADDRESS_BITS - 1
            return 1 << top | self._randomBits(top - _PAGE_BITS) << _PAGE_BITS
        if address < 0 or address + length > _ADDRESS_END:
            raise MemoryRegionError(f"{length} bytes at {address:#x} are not within 64-bit addresses")
        return address


def _view(buffer: object) -> memoryview:
    try:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
    except TypeError as error:
        raise MemoryRegionError(f"this cannot be registered: {error}") from None
    if len(view) > limits.REGION_BYTES:
        raise MemoryRegionError(f"a memory region has at most {limits.REGION_BYTES} bytes")
    return view


def _checkAccess(view: memoryview, access: int) -> int:
    try:
        access = checkKnown(access)
    except ValueError as error:
        raise MemoryRegionError(str(error)) from None
    # IBTA vol. 1 10.6.3: remote write and atomic include local write (Linux ib_verbs.h,
    # ib_check_mr_access()).
    if access & (REMOTE_WRITE | REMOTE_ATOMIC) and not access & LOCAL_WRITE:
        raise MemoryRegionError("remote write and remote atomic access demand local write access")
    if access & LOCAL_WRITE and view.readonly:
        raise MemoryRegionError("local write access to a read-only buffer")
    return access
