"""
Memory that is registered at an adapter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twisted_ib.hca.fabric.hardware.hardware import HardwareFabric


class Registered:
    """
    A registration of memory.

    @ivar entry: its first address, that of its end, and its key.
    @ivar region: the adapter's.
    """

    __slots__ = ("_fabric", "entry", "region")

    def __init__(self, fabric: HardwareFabric, entry: tuple[int, int, int], region: Any) -> None:
        self._fabric: HardwareFabric | None = fabric
        self.entry, self.region = entry, region

    def forked(self) -> None:
        """
        In a forked child: it is the parent's to end.
        """
        self._fabric = None

    def close(self) -> None:
        """
        End it; harmless if repeated, as the fabric ends those that are left.
        """
        fabric, self._fabric = self._fabric, None
        if fabric is not None:
            fabric.deregistered(self)
            self.region.close()
