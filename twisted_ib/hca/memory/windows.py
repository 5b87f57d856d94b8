"""
Memory windows: grant peers access to a part of a memory region for a while.

On hardware, binding a window is faster than registering memory; here a window is useful because access can
be revoked.  Its key is valid for peers only, never in the owner's scatter/gather lists, and stops being
valid when the window is bound anew, invalidated or deallocated, while the region stays.

A window of type 1 serves every queue pair of its protection domain and gets another key with each bind.
One of type 2 serves the queue pair that it was bound by (type 2B of IBTA vol. 1 10.6.7.2) and keeps the
upper 24 bits of its key, while the program chooses the lower 8; it must be unbound before a bind, which
the owner (LOCAL_INV) or the peer (SEND with invalidate) does by invalidating it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from twisted_ib import limits
from twisted_ib.errors import MemoryAccessError, MemoryRegionError, ResourceLimitError
from twisted_ib.hca.memory.access import (
    LOCAL_WRITE,
    MW_BIND,
    REMOTE,
    REMOTE_ATOMIC,
    REMOTE_WRITE,
    ZERO_BASED,
    Access,
    checkKnown,
)
from twisted_ib.hca.memory.keys import KEY_BITS, MemoryKeys

if TYPE_CHECKING:
    from twisted_ib.hca.memory.domains import ProtectionDomain
    from twisted_ib.hca.memory.memory import MemoryRegion

#: Keys reserved for binds of one type 1 window that are posted and not done.
WINDOW_RESERVED_KEYS = limits.WORK_QUEUE_DEPTH

_KIND = "memory windows"


class WindowType(IntEnum):
    """
    The type of a memory window (C{enum ibv_mw_type}).
    """

    TYPE_1 = 1
    TYPE_2 = 2


class MemoryWindow:
    """
    A memory window, bound or not.

    @ivar key: its R_Key; valid only while the window is bound.
    @ivar region: the memory region that it is bound to, or L{None}.
    @ivar address: of its first byte in the region.
    @ivar length: bytes.
    @ivar access: the remote L{Access} bits that it grants, and C{ZERO_BASED} if peers count its bytes from
        0.
    @ivar queuePair: the queue pair that a window of type 2 serves, or L{None}.
    @ivar reservedKeys: keys reserved for later binds.
    """

    __slots__ = ("access", "address", "key", "length", "pd", "queuePair", "region", "reservedKeys", "type")

    def __init__(self, pd: ProtectionDomain, type: WindowType, key: int) -> None:
        self.pd = pd
        self.type = type
        self.key = key
        self.region: MemoryRegion | None = None
        self.address = 0
        self.length = 0
        self.access = 0
        self.queuePair: object = None
        self.reservedKeys: set[int] = set()


class Windows:
    """
    The memory windows of one device.

    @ivar byKey: the windows by key, bound or not.

    See L{Memory<twisted_ib.hca.memory.memory.Memory>}.
    """

    def __init__(self, keys: MemoryKeys) -> None:
        self._keys = keys
        self.byKey: dict[int, MemoryWindow] = {}
        self._served: dict[object, set[MemoryWindow]] = {}

    def allocate(self, pd: ProtectionDomain, type: int) -> MemoryWindow:
        """
        Allocate a window, unbound.

        @raise MemoryRegionError: there is no such type.
        @raise ResourceLimitError: there are too many.
        """
        try:
            kind = WindowType(type)
        except ValueError:
            raise MemoryRegionError(f"there is no memory window of type {type}") from None
        if len(self.byKey) >= limits.MEMORY_WINDOWS:
            raise ResourceLimitError(f"a device holds at most {limits.MEMORY_WINDOWS} memory windows")
        # From the same numbers as regions' keys: a key must not name a region and a window.
        window = MemoryWindow(pd, kind, self._keys.issue())
        self.byKey[window.key] = window
        pd.hold(_KIND)
        return window

    def deallocate(self, window: MemoryWindow) -> None:
        """
        Deallocate a window, bound or not.

        @raise MemoryRegionError: it is not, or no longer, one of this device.
        """
        if self.byKey.get(window.key) is not window:
            raise MemoryRegionError("this memory window was deallocated before")
        self._unbind(window)
        del self.byKey[window.key]
        for key in (window.key, *window.reservedKeys):
            self._keys.withdraw(key)
        window.reservedKeys.clear()
        window.pd.release(_KIND)

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
        Grant peers access to a part of a region through a window.  On error the window stays as it was.

        @param window: a window of type 1, bound or not, or an unbound one of type 2.
        @param region: the region to bind it to: in the window's protection domain, and with C{MW_BIND}.
            Ignored if C{length} is 0.
        @param address: of the window's first byte in the region.
        @param length: bytes.  0 unbinds a window of type 1 and is an error for type 2.
        @param access: L{Access} bits: the remote ones are granted; with C{ZERO_BASED}, for type 2 only,
            peers count the window's bytes from 0.
        @param key: for type 2 the new key, whose upper 24 bits are those of the window's key.  For type 1
            a key from L{reserve}, or L{None}: a random one.
        @param queuePair: for type 2, the only queue pair that may use it.
        @param pd: the protection domain of the queue pair that the bind was posted to; L{None} if there is
            none.

        @raise MemoryAccessError: one of these does not hold (IBTA vol. 1 10.6.7.2).
        """
        self._checkAllocated(window)
        if pd is not None and window.pd is not pd:
            raise MemoryAccessError("the memory window is in another protection domain than the queue pair")
        try:
            access = checkKnown(access)
        except ValueError as error:
            raise MemoryAccessError(f"a memory window cannot be bound: {error}") from None
        if window.type is WindowType.TYPE_2:
            self._checkType2(window, length, key, queuePair)
        # IBTA vol. 1 10.6.7.2, o10-36.2.2, as in Linux rxe_mw.c rxe_check_bind_mw().
        elif access & ZERO_BASED:
            raise MemoryAccessError("a memory window of type 1 is not zero-based")
        elif key is not None and key not in window.reservedKeys:
            raise MemoryAccessError(f"key {key:#010x} was not reserved for the memory window")
        if length:
            if region is None:
                raise MemoryAccessError("a memory window is bound to a memory region")
            _checkRegion(window, region, address, length, access)
        # All checks are done: from here on the old key is not valid and the new one is.
        self._unbind(window)
        self._rekey(window, key)
        if region is not None and length:
            region.hold(_KIND)
            window.region = region
            window.address = address
            window.length = length
            # Local bits are dropped: a window never serves the owner's own lists.
            window.access = access & (REMOTE | ZERO_BASED)
            if window.type is WindowType.TYPE_2:
                window.queuePair = queuePair
                self._served.setdefault(queuePair, set()).add(window)

    def invalidate(self, key: int, queuePair: object) -> None:
        """
        Unbind a window of type 2, for its owner (LOCAL_INV) or for the peer (SEND with invalidate).

        @param queuePair: the queue pair where the request was posted or arrived.

        @raise MemoryAccessError: no window of type 2 with this key is bound to this queue pair.
        """
        window = self.byKey.get(key)
        if window is None or window.region is None:
            raise MemoryAccessError(f"no memory window that is bound has key {key:#010x}")
        if window.type is not WindowType.TYPE_2:
            # IBTA vol. 1 10.6.7.2, o10-37.2.26, as Linux rxe_mw.c rxe_check_invalidate_mw().
            raise MemoryAccessError(
                f"the memory window of key {key:#010x} is of type 1: only a bind changes it"
            )
        # The key of a SEND with invalidate is the peer's choice: it must not unbind what serves
        # another peer.
        if window.queuePair is not queuePair:
            raise MemoryAccessError(f"the memory window of key {key:#010x} is bound to another queue pair")
        self._unbind(window)

    def reserve(self, window: MemoryWindow) -> int:
        """
        Reserve a key for the next L{bind} of a window of type 1, so that it is known when the bind is
        posted (C{ibv_bind_mw}).  It is not valid before the bind.

        @raise MemoryAccessError: the window is not of type 1, or deallocated.
        @raise ResourceLimitError: too many keys are reserved for this window.
        """
        self._checkAllocated(window)
        if window.type is not WindowType.TYPE_1:
            raise MemoryAccessError("the program chooses the keys of a memory window of type 2")
        if len(window.reservedKeys) >= WINDOW_RESERVED_KEYS:
            raise ResourceLimitError(f"a memory window has at most {WINDOW_RESERVED_KEYS} reserved keys")
        key = self._keys.issue()
        window.reservedKeys.add(key)
        return key

    def releaseKey(self, window: MemoryWindow, key: int) -> None:
        """
        Release a reserved key whose bind will not happen; harmless if it did.
        """
        if key in window.reservedKeys:
            window.reservedKeys.remove(key)
            self._keys.withdraw(key)

    def forget(self, queuePair: object) -> None:
        """
        Unbind the windows of a queue pair that is destroyed.
        """
        for window in list(self._served.get(queuePair, ())):
            self._unbind(window)

    def check(
        self, key: int, address: int, length: int, access: int, pd: ProtectionDomain, queuePair: object
    ) -> tuple[memoryview, int]:
        window = self.byKey.get(key)
        # Remote bits only: a local access with a window's key gets the same error as one with an
        # unknown key.
        if window is None or not access & REMOTE or access & ~REMOTE:
            raise MemoryAccessError(f"no memory region has key {key:#010x}")
        region = window.region
        if region is None:
            raise MemoryAccessError(f"the memory window of key {key:#010x} is not bound")
        # The conditions of Linux rxe_mw.c rxe_lookup_mw().
        if window.pd is not pd:
            raise MemoryAccessError(f"the memory window of key {key:#010x} is in another protection domain")
        if window.queuePair is not None and window.queuePair is not queuePair:
            raise MemoryAccessError(f"the memory window of key {key:#010x} is bound to another queue pair")
        # The bounds are the window's: within the region more bytes may follow that are not
        # granted.
        offset = address if window.access & ZERO_BASED else address - window.address
        if offset < 0 or length < 0 or offset + length > window.length:
            raise MemoryAccessError(
                f"{length} bytes at {address:#x} are not within the memory window of key {key:#010x}"
            )
        missing = access & ~window.access
        if missing:
            raise MemoryAccessError(
                f"the memory window of key {key:#010x} does not grant {Access(missing)!r}"
            )
        offset += window.address - region.address
        if not region.isWithin(offset, length, access):
            raise MemoryAccessError(f"the memory of the window of key {key:#010x} is gone")
        return region.view, offset

    def _checkType2(self, window: MemoryWindow, length: int, key: int | None, queuePair: object) -> None:
        # IBTA vol. 1 10.6.7.2, o10-37.2.30: a bind must not revoke a key that is in use.
        if window.region is not None:
            raise MemoryAccessError("the memory window is bound: it has to be invalidated first")
        if queuePair is None:
            raise MemoryAccessError("a memory window of type 2 is bound to a queue pair")
        # o10-37.2.40: only type 1 is unbound by a bind of no bytes.
        if not length:
            raise MemoryAccessError("a memory window of type 2 cannot be bound to nothing")
        # The upper 24 bits are the window's index.  Linux rxe_mw.c rxe_do_bind_mw() ignores those
        # of the request instead of checking them.
        if key is None or key >> KEY_BITS != window.key >> KEY_BITS:
            raise MemoryAccessError("a memory window of type 2 keeps the upper 24 bits of its key")

    def _checkAllocated(self, window: MemoryWindow) -> None:
        if self.byKey.get(window.key) is not window:
            raise MemoryAccessError("the memory window was deallocated")

    def _rekey(self, window: MemoryWindow, key: int | None) -> None:
        if window.type is WindowType.TYPE_1:
            # Type 1: a new key per bind revokes the old one; type 2 keeps its index.
            self._keys.withdraw(window.key)
            if key is None:
                key = self._keys.issue()
            window.reservedKeys.discard(key)
        assert key is not None
        del self.byKey[window.key]
        window.key = key
        self.byKey[key] = window

    def _unbind(self, window: MemoryWindow) -> None:
        region, window.region = window.region, None
        if region is not None:
            region.release(_KIND)
        window.address = window.length = window.access = 0
        queuePair, window.queuePair = window.queuePair, None
        if queuePair is not None:
            served = self._served[queuePair]
            served.remove(window)
            if not served:
                del self._served[queuePair]


def _checkRegion(window: MemoryWindow, region: MemoryRegion, address: int, length: int, access: int) -> None:
    # IBTA vol. 1 C10-72 to C10-75, in the order of Linux rxe_mw.c.
    if region.pd is not window.pd:
        raise MemoryAccessError("the memory region is in another protection domain than the memory window")
    if region.pd.memory.regions.get(region.key) is not region:
        raise MemoryAccessError("the memory region was deregistered")
    if not region.access & MW_BIND:
        raise MemoryAccessError("the memory region does not grant MW_BIND: no window can be bound to it")
    # C10-74: a window must not grant what the region itself could not grant to a peer.
    if access & (REMOTE_WRITE | REMOTE_ATOMIC) and not region.access & LOCAL_WRITE:
        raise MemoryAccessError("a memory window for writes or atomics demands local write access")
    offset = address - region.address
    if offset < 0 or length < 0 or offset + length > region.length:
        raise MemoryAccessError(f"{length} bytes at {address:#x} are not within the memory region")
