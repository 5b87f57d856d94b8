"""
Paths to peers' addresses, for connection management.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zope.interface import implementer

from twisted_ib.hca.base.interfaces import IPeerPath
from twisted_ib.hca.fabric.base.streams import ConnectedPeerPath

if TYPE_CHECKING:
    from twisted_ib.hca.fabric.hardware.hardware import HardwareFabric


@implementer(IPeerPath)
class PeerPath(ConnectedPeerPath):
    """
    The path to a peer's address, for connection management.
    """

    __slots__ = ()

    fabric: HardwareFabric

    def bind(self, queuePair: Any, message: Any = None) -> Any:
        """
        @return: the queue pair's own path, the connection that stands for its remote number.
        """
        return self.fabric.bind(self, queuePair)

    def sendManagement(self, attribute: int, body: bytes, transaction: int = 0) -> None:
        """
        No effect: the kernel has queue pair 1.
        """


__all__ = ["PeerPath"]
