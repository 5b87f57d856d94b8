"""
Registered memory of a connection, and windows on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zope.interface import implementer

from twisted_ib.errors import MemoryAccessError, MemoryRegionError
from twisted_ib.hca.memory.access import ZERO_BASED
from twisted_ib.hca.memory.memory import LOCAL_WRITE, MemoryRegion, MemoryWindow, ProtectionDomain
from twisted_ib.hca.queues.requests import SGE
from twisted_ib.interfaces import IRDMARegion, IRDMAWindow
from twisted_ib.internet.addresses import whole


@implementer(IRDMARegion)
class RDMARegion:
    """
    What C{registerMemory} gives.

    @ivar view: The bytes.
    @ivar address: The name of the first, for the peer.
    @ivar length: How many there are.
    @ivar remoteKey: The key for the peer; 0 if the region grants it nothing.
    @ivar localKey: The key for requests of this connection.
    @ivar windows: Those on it; L{None} before the first.
    @ivar uses: Transfers that read or write it; while there are any, its memory stays.
    """

    __slots__ = (
        "_close",
        "_ending",
        "_region",
        "address",
        "length",
        "localKey",
        "remoteKey",
        "uses",
        "view",
        "windows",
    )

    def __init__(self, region: MemoryRegion, close: Callable[[RDMARegion, MemoryRegion], None]) -> None:
        """
        @param close: Takes the rights back.
        """
        self._region: MemoryRegion | None = region
        self._ending: MemoryRegion | None = None
        self._close = close
        self.uses = 0
        self.windows: set[RDMAWindow] | None = None
        self.view = region.view
        self.address = region.address
        self.length = region.length
        self.localKey = region.localKey
        self.remoteKey = region.remoteKey

    @property
    def closed(self) -> bool:
        """
        Whether it was closed, by its user or with the connection.
        """
        return self._region is None

    def close(self) -> None:
        """
        See L{IRDMARegion}; harmless when repeated.

        @raise WrongThreadError: called outside the reactor's thread.
        """
        region = self._region
        if region is not None:
            for window in list(self.windows or ()):
                window.revoke()
            self._region = None
            if self.uses:
                self._ending = region
                return
            try:
                self._close(self, region)
            except BaseException:
                self._region = region
                raise

    def use(self) -> MemoryRegion:
        """
        A transfer begins.

        @return: What is registered.
        @raise MemoryAccessError: It is closed.
        """
        region = self._region
        if region is None:
            raise MemoryAccessError("this memory region is closed")
        self.uses += 1
        return region

    def unuse(self) -> None:
        """
        A transfer is over; if the region was closed meanwhile, it goes now.
        """
        self.uses -= 1
        if not self.uses and self._ending is not None:
            ending, self._ending = self._ending, None
            self._close(self, ending)

    def piece(self, offset: int, length: int | None) -> SGE:
        """
        Name a part of it.

        @param offset: Of the first byte.
        @param length: How many bytes; L{None} for the rest.
        @raise TypeError: C{offset} or C{length} is no integer.
        @raise MemoryAccessError: It has no such bytes, or is closed.
        """
        if self._region is None:
            raise MemoryAccessError("this memory region is closed")
        offset = whole("offset", offset)
        length = self.length - offset if length is None else whole("length", length)
        if offset < 0 or length < 0 or offset + length > self.length:
            raise MemoryAccessError(
                f"a memory region of {self.length} bytes has no {length} bytes at {offset}"
            )
        return SGE(self.address + offset, length, self.localKey)

    def __enter__(self) -> RDMARegion:
        """
        @return: The region.
        """
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        """
        Say what it is; the key is nobody's business.
        """
        state = " closed" if self.closed else ""
        return f"<RDMARegion {self.length} bytes at {self.address:#x}{state}>"


@implementer(IRDMAWindow)
class RDMAWindow:
    """
    What C{grant} gives.

    @ivar address: The name of the first byte, for the peer.
    @ivar length: How many there are.
    @ivar remoteKey: The key for the peer.
    """

    __slots__ = ("_revoke", "_window", "address", "length", "remoteKey")

    def __init__(self, window: MemoryWindow, revoke: Callable[[RDMAWindow, MemoryWindow], None]) -> None:
        """
        @param window: A window that is bound.
        @param revoke: Takes the rights back.
        """
        self._window: MemoryWindow | None = window
        self._revoke = revoke
        self.address = 0 if window.access & ZERO_BASED else window.address
        self.length = window.length
        self.remoteKey = window.key

    @property
    def revoked(self) -> bool:
        """
        Whether it was revoked, by its user, with the region or with the connection.
        """
        return self._window is None

    def revoke(self) -> None:
        """
        See L{IRDMAWindow}; harmless when repeated.

        @raise WrongThreadError: called outside the reactor's thread.
        """
        window = self._window
        if window is not None:
            self._revoke(self, window)
            self._window = None

    def __enter__(self) -> RDMAWindow:
        """
        @return: The window.
        """
        return self

    def __exit__(self, *exception: Any) -> None:
        self.revoke()

    def __repr__(self) -> str:
        """
        Say what it is; the key is nobody's business.
        """
        state = " revoked" if self.revoked else ""
        return f"<RDMAWindow {self.length} bytes at {self.address:#x}{state}>"


class Regions:
    """
    The registered memory of one connection.

    @ivar pd: The protection domain, which is nobody else's.
    """

    __slots__ = ("_check", "_device", "_open", "pd")

    def __init__(self, device: Any, pd: ProtectionDomain, check: Callable[[], None]) -> None:
        """
        There is none.

        @param check: Raises if the caller may not use the connection.
        """
        self._device = device
        self._check = check
        self._open: set[RDMARegion] = set()
        self.pd = pd

    def register(self, sizeOrBuffer: Any, access: int | None) -> RDMARegion:
        """
        Register memory.

        @param sizeOrBuffer: How many bytes of new memory, or a buffer.
        @param access: L{Access<twisted_ib.hca.memory.access.Access>} bits; by default it may be
            written here, if the buffer can be.
        @raise TypeError: It is neither, or C{access} is no integer.
        @raise MemoryRegionError: It cannot be registered so.
        """
        if access is not None:
            access = whole("access", access)
        if isinstance(sizeOrBuffer, int):
            found = self._allocated(sizeOrBuffer, LOCAL_WRITE if access is None else access)
        else:
            try:
                readOnly = memoryview(sizeOrBuffer).readonly
            except TypeError:
                kind = type(sizeOrBuffer).__name__
                raise TypeError(f"memory is a number of bytes or a buffer, not {kind}") from None
            if access is None:
                access = 0 if readOnly else LOCAL_WRITE
            found = self._device.memory.register(sizeOrBuffer, access, self.pd)
        region = RDMARegion(found, self._close)
        self._open.add(region)
        return region

    def _allocated(self, size: int, access: int) -> MemoryRegion:
        """
        Register new memory.

        @raise MemoryRegionError: There is not so much.
        """
        if size < 1:
            raise MemoryRegionError(f"there is no memory of {size} bytes")
        try:
            found: MemoryRegion = self._device.allocateMemory(size, access, self.pd)
        except (OSError, OverflowError, MemoryError) as e:
            raise MemoryRegionError(f"there is no memory of {size} bytes: {e or 'too much'}") from e
        return found

    def _close(self, region: RDMARegion, found: MemoryRegion) -> None:
        self._check()
        self._open.discard(region)
        self._device.deregisterMemory(found)

    def piece(self, region: RDMARegion, offset: int, length: int | None) -> SGE:
        """
        Name a part of a region.

        @raise TypeError: It is no region.
        @raise MemoryAccessError: It is none of this connection, or has no such bytes.
        """
        if not isinstance(region, RDMARegion):
            raise TypeError(f"a region that registerMemory gave is needed, not {type(region).__name__}")
        if not region.closed and region not in self._open:
            raise MemoryAccessError("this memory region belongs to another connection")
        return region.piece(offset, length)

    def close(self) -> None:
        """
        The connection is over: so are all regions.
        """
        for region in list(self._open):
            region.close()
            if region.uses:
                region.uses = 1
                region.unuse()
