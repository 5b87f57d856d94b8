"""
Registered memory of a connection, and windows on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zope.interface import implementer

from twisted_ib.errors import MemoryAccessError
from twisted_ib.hca.core.access import ZERO_BASED
from twisted_ib.hca.core.memory import MemoryRegion, MemoryWindow
from twisted_ib.hca.core.requests import SGE
from twisted_ib.interfaces import IRDMARegion, IRDMAWindow


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
    """

    __slots__ = ("_close", "_region", "address", "length", "localKey", "remoteKey", "view", "windows")

    def __init__(self, region: MemoryRegion, close: Callable[[RDMARegion, MemoryRegion], None]) -> None:
        """
        @param close: Takes the rights back.
        """
        self._region: MemoryRegion | None = region
        self._close = close
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
            self._close(self, region)
            self._region = None

    def piece(self, offset: int, length: int | None) -> SGE:
        """
        Name a part of it.

        @param offset: Of the first byte.
        @param length: How many bytes; L{None} for the rest.
        @raise MemoryAccessError: It has no such bytes, or is closed.
        """
        if self._region is None:
            raise MemoryAccessError("this memory region is closed")
        if length is None:
            length = self.length - offset
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
        """
        Close it.
        """
        self.close()

    def __len__(self) -> int:
        """
        How many bytes it has.
        """
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
        """
        Revoke it.
        """
        self.revoke()

    def __repr__(self) -> str:
        """
        Say what it is; the key is nobody's business.
        """
        state = " revoked" if self.revoked else ""
        return f"<RDMAWindow {self.length} bytes at {self.address:#x}{state}>"
