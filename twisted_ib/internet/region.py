"""
The memory regions and memory windows of one connection.
"""

from __future__ import annotations

from collections.abc import Callable
from random import SystemRandom
from typing import TYPE_CHECKING, Any, Protocol

from zope.interface import implementer

from twisted_ib.errors import MemoryAccessError, MemoryRegionError
from twisted_ib.hca.memory.access import LOCAL_WRITE, ZERO_BASED
from twisted_ib.hca.memory.domains import ProtectionDomain
from twisted_ib.hca.memory.memory import Memory, MemoryRegion
from twisted_ib.hca.memory.windows import MemoryWindow, WindowType
from twisted_ib.hca.queues.receives import SGE
from twisted_ib.interfaces import IRDMARegion, IRDMAWindow
from twisted_ib.internet.addressing.addresses import checkInteger

if TYPE_CHECKING:
    from twisted_ib.hca.queues.queuepair import QueuePair


@implementer(IRDMARegion)
class RDMARegion:
    """
    The registered memory that C{registerMemory} returns.

    @ivar view: The bytes.
    @ivar address: The virtual address of the first byte, for the peer.
    @ivar length: Bytes.
    @ivar remoteKey: The R_Key; 0 if the region grants the peer nothing.
    @ivar localKey: The L_Key, for requests of this connection.
    @ivar windows: Windows bound to it; L{None} before the first.
    @ivar uses: Transfers in progress that read or write it.
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
        return self._region is None

    def close(self) -> None:
        region = self._region
        if region is not None:
            # ibv_dereg_mr(3) fails while a window is bound to the region, so the windows are revoked first.
            for window in list(self.windows or ()):
                window.revoke()
            self._region = None
            # A request that is executed after deregistration ends with a local protection error (IBTA vol. 1
            # 11.6.2).  So the region stays registered until its last transfer is over; users need not wait.
            if self.uses:
                self._ending = region
                return
            try:
                self._close(self, region)
            except BaseException:
                # Refused, as by the thread check: the region is still open.
                self._region = region
                raise

    def use(self) -> MemoryRegion:
        """
        Begin a transfer and return the memory region.

        @raise MemoryAccessError: it is closed.
        """
        region = self._region
        if region is None:
            raise MemoryAccessError("this memory region is closed")
        self.uses += 1
        return region

    def unuse(self) -> None:
        """
        End a transfer; a region closed meanwhile is deregistered now.
        """
        self.uses -= 1
        if not self.uses and self._ending is not None:
            ending, self._ending = self._ending, None
            self._close(self, ending)

    def piece(self, offset: int, length: int | None) -> SGE:
        """
        Return a scatter/gather element for a part of the region.

        @param offset: Bytes.
        @param length: Bytes; L{None} for the rest.
        @raise TypeError: C{offset} or C{length} is no integer.
        @raise MemoryAccessError: the part is out of bounds, or the region is closed.
        """
        if self._region is None:
            raise MemoryAccessError("this memory region is closed")
        offset = checkInteger("offset", offset)
        length = self.length - offset if length is None else checkInteger("length", length)
        # Checked when posted: a request that fails later ends the connection (IBTA vol. 1 11.6.2, local
        # protection error), and not only the call that was wrong.
        if offset < 0 or length < 0 or offset + length > self.length:
            raise MemoryAccessError(
                f"a memory region of {self.length} bytes has no {length} bytes at {offset}"
            )
        return SGE(self.address + offset, length, self.localKey)

    def __enter__(self) -> RDMARegion:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        # No key: a log line that holds an R_Key is a right to access the memory.
        state = " closed" if self.closed else ""
        return f"<RDMARegion {self.length} bytes at {self.address:#x}{state}>"


@implementer(IRDMAWindow)
class RDMAWindow:
    """
    The memory window that C{grant} returns.

    @ivar address: The address of the first byte, for the peer.
    @ivar length: Bytes.
    @ivar remoteKey: The R_Key.
    """

    __slots__ = ("_revoke", "_window", "address", "length", "remoteKey")

    def __init__(self, window: MemoryWindow, revoke: Callable[[RDMAWindow, MemoryWindow], None]) -> None:
        self._window: MemoryWindow | None = window
        self._revoke = revoke
        # libibverbs/verbs.h, IBV_ACCESS_ZERO_BASED: the peer counts from the start of the window, and learns
        # no virtual address of this process.
        self.address = 0 if window.access & ZERO_BASED else window.address
        self.length = window.length
        self.remoteKey = window.key

    @property
    def revoked(self) -> bool:
        return self._window is None

    def revoke(self) -> None:
        window = self._window
        if window is not None:
            self._revoke(self, window)
            self._window = None

    def __enter__(self) -> RDMAWindow:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.revoke()

    def __repr__(self) -> str:
        state = " revoked" if self.revoked else ""
        return f"<RDMAWindow {self.length} bytes at {self.address:#x}{state}>"


class Owner(Protocol):
    """
    The connection.
    """

    def checkCaller(self) -> None:
        """
        Refuse a call from another thread.
        """


class Home(Protocol):
    """
    Has the memory: a device, or L{PlainHome}.
    """

    @property
    def memory(self) -> Memory:
        """
        The registered memory.
        """

    def allocateMemory(self, size: int, access: int, pd: ProtectionDomain) -> MemoryRegion:
        """
        Allocate and register memory.
        """

    def deregisterMemory(self, region: MemoryRegion) -> object:
        """
        Deregister memory, and free what was allocated.
        """


class PlainHome:
    """
    The memory of a connection without a device, which no peer reaches: see L{Home}.

    @ivar memory: The registered memory.
    """

    def __init__(self) -> None:
        self.memory = Memory(SystemRandom().getrandbits)

    def allocateMemory(self, size: int, access: int, pd: ProtectionDomain) -> MemoryRegion:
        return self.memory.register(bytearray(size), access, pd)

    def deregisterMemory(self, region: MemoryRegion) -> None:
        self.memory.deregister(region)


class Regions:
    """
    The registered memory of one connection.

    @ivar pd: Its protection domain.
    """

    __slots__ = ("_device", "_open", "_owner", "pd")

    def __init__(self, device: Home, pd: ProtectionDomain, owner: Owner) -> None:
        self._device = device
        self._owner = owner
        # Made with the first one: most connections have none.
        self._open: set[RDMARegion] | None = None
        # IBTA vol. 1 10.2.3: a key is valid only for queue pairs of its protection domain.  One domain per
        # connection keeps a peer from using a key that was given to another peer.
        self.pd = pd

    def register(self, sizeOrBuffer: Any, access: int | None) -> RDMARegion:
        """
        Register memory.

        @param sizeOrBuffer: Bytes of new memory, or a buffer.
        @param access: L{Access<twisted_ib.hca.memory.access.Access>} bits; the default is local write for a
            writable buffer, and no remote right.
        @raise TypeError: it is neither, or C{access} is no integer.
        @raise MemoryRegionError: it cannot be registered with this access.
        """
        if access is not None:
            access = checkInteger("access", access)
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
        if self._open is None:
            self._open = set()
        self._open.add(region)
        return region

    def _allocated(self, size: int, access: int) -> MemoryRegion:
        if size < 1:
            raise MemoryRegionError(f"there is no memory of {size} bytes")
        try:
            found: MemoryRegion = self._device.allocateMemory(size, access, self.pd)
        except (OSError, OverflowError, MemoryError) as e:
            raise MemoryRegionError(f"there is no memory of {size} bytes: {e or 'too much'}") from e
        return found

    def _close(self, region: RDMARegion, found: MemoryRegion) -> None:
        self._owner.checkCaller()
        if self._open is not None:
            self._open.discard(region)
        self._device.deregisterMemory(found)

    def open(self, region: RDMARegion, access: int, piece: SGE, queuePair: QueuePair) -> RDMAWindow:
        """
        Bind a memory window to a part of a region: see L{twisted_ib.interfaces.IRDMATransport.grant}.

        @param piece: That part.
        @param queuePair: The connection's.
        """
        memory = self._device.memory
        # IBTA vol. 1 10.6.7.2: a type 2 window belongs to one queue pair, so its R_Key is of no use to other
        # peers, and it can be revoked without deregistering the region.
        window = memory.allocateWindow(self.pd, WindowType.TYPE_2)
        try:
            bound = memory.regions.get(piece.key)
            memory.windows.bind(window, bound, piece.address, piece.length, access, window.key, queuePair)
        except MemoryAccessError:
            memory.windows.deallocate(window)
            raise

        def revoke(handle: RDMAWindow, window: MemoryWindow) -> None:
            self._owner.checkCaller()
            assert region.windows is not None
            region.windows.discard(handle)
            memory.windows.deallocate(window)

        found = RDMAWindow(window, revoke)
        if region.windows is None:
            region.windows = set()
        region.windows.add(found)
        return found

    def piece(self, region: RDMARegion, offset: int, length: int | None) -> SGE:
        """
        Return a scatter/gather element for a part of a region.

        @raise TypeError: it is not a region.
        @raise MemoryAccessError: it belongs to another connection, is closed, or the part is out of bounds.
        """
        if not isinstance(region, RDMARegion):
            raise TypeError(f"a region that registerMemory gave is needed, not {type(region).__name__}")
        if not region.closed and region not in (self._open or ()):
            raise MemoryAccessError("this memory region belongs to another connection")
        return region.piece(offset, length)

    def close(self) -> None:
        """
        Close all regions with the connection.
        """
        for region in list(self._open or ()):
            region.close()
            if region.uses:
                # The queue pair is gone, and with it every transfer: none will call unuse().
                region.uses = 1
                region.unuse()
