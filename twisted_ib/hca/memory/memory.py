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

from twisted_ib import limits
from twisted_ib.errors import MemoryAccessError, MemoryRegionError, ResourceLimitError
from twisted_ib.hca.base.keys import MemoryKeys
from twisted_ib.hca.memory.access import (
    LOCAL_READ,
    LOCAL_WRITE,
    REMOTE_ATOMIC,
    REMOTE_READ,
    REMOTE_WRITE,
    ZERO_BASED,
    Access,
    checkKnown,
)
from twisted_ib.hca.memory.regions import MemoryRegion, ProtectionDomain
from twisted_ib.hca.memory.windows import MemoryWindow, Windows, WindowType

__all__ = [
    "LOCAL_READ",
    "LOCAL_WRITE",
    "REMOTE_ATOMIC",
    "REMOTE_READ",
    "REMOTE_WRITE",
    "Access",
    "Memory",
    "MemoryRegion",
    "MemoryWindow",
    "ProtectionDomain",
    "WindowType",
]

_ADDRESS_END = 1 << 64
_PAGE_BITS = 12
_ADDRESS_BITS = 47
_NOTHING = memoryview(b"")


class Memory:
    """
    The protection domains, memory regions and memory windows of one device.

    @ivar regions: the regions by key.
    @ivar domains: the protection domains.
    @ivar windows: the windows by key.
    """

    __slots__ = ("_keys", "_randomBits", "_windows", "domains", "regions", "windows")

    def __init__(self, randomBits: Callable[[int], int]) -> None:
        """
        @param randomBits: the source of entropy: C{randomBits(n)} gives an n-bit number.
        """
        self.regions: dict[int, MemoryRegion] = {}
        self.domains: set[ProtectionDomain] = set()
        self._keys = MemoryKeys(randomBits)
        self._windows = Windows(self._keys)
        self.windows = self._windows.byKey
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
        self._checkDomain(pd)
        if len(self.regions) >= limits.MEMORY_REGIONS:
            raise ResourceLimitError(f"a device registers at most {limits.MEMORY_REGIONS} memory regions")
        view = _view(buffer)
        access = _checkAccess(view, access)
        region = MemoryRegion(view, self._address(address, len(view), access), access, pd, segment)
        region.key = self._keys.issue()
        self.regions[region.key] = region
        pd.hold("memory regions")
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
    ) -> None:
        """
        Change what a region is, and its key (IBTA vol. 1 10.6.3.3).  If it cannot be,
        the region stays as it was.

        @param region: a region of this device.
        @param buffer: see L{register}; the same as before if L{None}.
        @param access: L{Access} bits; the same as before if L{None}.
        @param pd: a protection domain; the same as before if L{None}.
        @param address: the name of the first byte; if L{None} it stays with the buffer,
            and a new buffer gets one as L{register} gives it.
        @param segment: see L{MemoryRegion.segment}; if it is not given it stays with the
            buffer, and a new buffer has none.
        @param keepKey: leave the key as it is, as Linux rxe does.  A new buffer has a new
            key in any case: who knows the old one was not promised these bytes.

        @raise MemoryRegionError: as L{register}, or the region is not registered here.
        @raise ResourceBusyError: memory windows are bound to it.
        """
        self._checkRegistered(region)
        if pd is not None:
            self._checkDomain(pd)
        region.checkFree()
        old = region.access
        view = region.view if buffer is None else _view(buffer)
        access = _checkAccess(view, old if access is None else access)
        if address is None and buffer is None and access & ZERO_BASED == old & ZERO_BASED:
            address = region.address
        address = self._address(address, len(view), access)
        if segment is ...:
            segment = region.segment if buffer is None else None
        region.view, region.length, region.address = view, len(view), address
        region.access, region.segment = access, segment
        if pd is not None:
            region.pd.release("memory regions")
            region.pd = pd
            pd.hold("memory regions")
        if buffer is not None or not keepKey:
            self._forgetKey(region)
            region.key = self._keys.issue()
            self.regions[region.key] = region

    def deregister(self, region: MemoryRegion) -> None:
        """
        Take a region's rights back: its key opens nothing from now on.

        @raise MemoryRegionError: it is not registered here.
        @raise ResourceBusyError: memory windows are bound to it.
        """
        self._checkRegistered(region)
        region.checkFree()
        self._forgetKey(region)
        region.pd.release("memory regions")
        region.segment = None
        region.view = _NOTHING

    # -- windows

    def allocateWindow(self, pd: ProtectionDomain, type: int) -> MemoryWindow:
        """
        A new memory window, not bound.

        @param pd: its protection domain.
        @param type: a L{WindowType}.

        @raise MemoryRegionError: there is no such type, or the domain is not one of this
            device.
        @raise ResourceLimitError: there are too many.
        """
        self._checkDomain(pd)
        return self._windows.allocate(pd, type)

    def deallocateWindow(self, window: MemoryWindow) -> None:
        """
        Give a memory window back; if it is bound it opens nothing any more.

        @raise MemoryRegionError: it is not, or no longer, one of this device.
        """
        self._windows.deallocate(window)

    def bind(
        self,
        window: MemoryWindow,
        region: MemoryRegion | None,
        address: int,
        length: int,
        access: int,
        key: int | None = None,
        queuePair: object = None,
        pd: ProtectionDomain | None = None,
    ) -> None:
        """
        Open a part of a region to peers through a window.  If it cannot be, the window
        stays as it was.

        @param window: a window of type 1, bound or not, or a free one of type 2.
        @param region: what to bind it to; it must be in the window's protection domain
            and grant C{MW_BIND}.  Not asked for if C{length} is 0.
        @param address: the name of the window's first byte in the region.
        @param length: its size in bytes.  0 unbinds a window of type 1 and is an error
            for one of type 2.
        @param access: L{Access} bits: of these the remote ones are granted, and with
            C{ZERO_BASED}, for type 2 only, peers count the window's bytes from 0.
        @param key: for type 2, the new key: the upper 24 bits are those of the window's
            key.  For type 1, what L{promiseKey} gave, or L{None}: a random one.
        @param queuePair: for type 2, the only queue pair that it will serve.
        @param pd: the protection domain of the queue pair that the bind was posted to;
            L{None} if there is none to compare.

        @raise MemoryAccessError: one of these is not so (IBTA vol. 1 10.6.7.2).
        """
        self._windows.bind(window, region, address, length, access, key, queuePair, pd)

    def invalidate(self, key: int, queuePair: object) -> None:
        """
        Free a window of type 2, at the wish of its owner (LOCAL_INV) or of the peer
        (SEND with invalidate).

        @param key: the key that opens it.
        @param queuePair: the queue pair where the wish was posted or arrived.

        @raise MemoryAccessError: no window of type 2 with this key is bound to this
            queue pair.
        """
        self._windows.invalidate(key, queuePair)

    def promiseKey(self, window: MemoryWindow) -> int:
        """
        A key that the next L{bind} of a window of type 1 may be given, so that it is
        known when the bind is posted (C{ibv_bind_mw}).  It opens nothing until then.

        @raise MemoryAccessError: the window is not of type 1, or deallocated.
        @raise ResourceLimitError: too many promises to this window were neither kept nor
            broken.
        """
        return self._windows.promise(window)

    def breakPromise(self, window: MemoryWindow, key: int) -> None:
        """
        The bind that a promised key was for does not happen; harmless if it did.
        """
        self._windows.breakPromise(window, key)

    def freeWindows(self, queuePair: object) -> None:
        """
        A queue pair is gone: the windows that served it are free.
        """
        self._windows.forget(queuePair)

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
        Find the bytes that a key, an address and a length name, if they may be used so.

        An access of no bytes is not checked at all and finds none: programs send it with
        a key and an address of garbage, as a sign of life (Linux rxe C{check_rkey}).

        @param key: the key of a region; if only remote bits are needed, of a region or
            of a window.
        @param address: the name of the first byte.
        @param length: how many bytes.
        @param access: the L{Access} bits that are needed: L{LOCAL_READ} for sending from
            it, L{LOCAL_WRITE} for receiving into it, the remote bits for a peer.
        @param pd: the protection domain of the queue pair that asks.
        @param queuePair: the queue pair whose peer asks; without it no window of type 2
            opens.

        @return: the region's view, and the offset of the first byte in it.

        @raise MemoryAccessError: with the first reason that was found.
        """
        if not length:
            return _NOTHING, 0
        region = self.regions.get(key)
        if region is None:
            return self._windows.check(key, address, length, access, pd, queuePair)
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

    def _checkDomain(self, pd: ProtectionDomain) -> None:
        """
        @raise MemoryRegionError: the domain is not one of this device.
        """
        if pd not in self.domains:
            raise MemoryRegionError("the protection domain is not one of this device")

    def _checkRegistered(self, region: MemoryRegion) -> None:
        """
        @raise MemoryRegionError: the region is not one of this device.
        """
        if self.regions.get(region.key) is not region:
            raise MemoryRegionError("this memory region was deregistered before")

    def _forgetKey(self, region: MemoryRegion) -> None:
        del self.regions[region.key]
        self._keys.withdraw(region.key)

    def _address(self, address: int | None, length: int, access: int) -> int:
        """
        The name of a region's first byte: 0, as asked for, or a page's random one in the
        upper half of what a user process can have.
        """
        if access & ZERO_BASED:
            return 0
        if address is None:
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
    """
    The access bits as a plain integer, if the bytes can be used so.
    """
    try:
        access = checkKnown(access)
    except ValueError as error:
        raise MemoryRegionError(str(error)) from None
    # IBTA vol. 1 10.6.3.1: who may write from afar may write from near.
    if access & (REMOTE_WRITE | REMOTE_ATOMIC) and not access & LOCAL_WRITE:
        raise MemoryRegionError("remote write and remote atomic access demand local write access")
    if access & LOCAL_WRITE and view.readonly:
        raise MemoryRegionError("local write access to a read-only buffer")
    return access
