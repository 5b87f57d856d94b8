"""
What waits to be sent beside bytes that go as Data.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred

from twisted_ib.hca.core.memory import MemoryRegion
from twisted_ib.hca.endpoints.region import RDMARegion


class Urgent:
    """
    An urgent byte that waits for its turn.

    @ivar byte: It.
    """

    __slots__ = ("byte",)

    def __init__(self, byte: bytes) -> None:
        """
        @param byte: One byte.
        """
        self.byte = byte


class Item:
    """
    Memory that waits to be sent, or is being sent.

    @ivar region: What the application registered, or L{None} for bytes that it wrote.
    @ivar memory: What is registered of it: a region that belongs to this item alone if
        C{region} is L{None}.
    @ivar view: The bytes that it has.
    @ivar start: Where in C{memory} they begin.
    @ivar at: How many of them are sent, or being sent.
    @ivar moving: WRITEs that are not done.
    @ivar offered: Whether it is in an offer.
    @ivar exposed: What the peer may read meanwhile, or L{None}.
    @ivar plain: Whether it goes as Data after all.
    @ivar deferred: Fires when its memory may be used again.
    """

    __slots__ = (
        "at",
        "deferred",
        "exposed",
        "memory",
        "moving",
        "offered",
        "plain",
        "region",
        "start",
        "view",
    )

    def __init__(
        self, region: RDMARegion | None, memory: MemoryRegion | None, start: int, view: memoryview
    ) -> None:
        """
        Nothing of it is sent.
        """
        self.region = region
        self.memory = memory
        self.start = start
        self.view = view
        self.at = self.moving = 0
        self.offered = self.plain = False
        self.exposed: MemoryRegion | None = None
        self.deferred: Deferred[None] | None = None

    @property
    def left(self) -> int:
        """
        Bytes that are not sent.
        """
        return len(self.view) - self.at

    def cancelled(self, deferred: Deferred[None]) -> None:
        """
        Nobody waits for it any more; it goes all the same.
        """
        self.deferred = None
