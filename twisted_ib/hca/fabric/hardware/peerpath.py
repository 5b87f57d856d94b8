"""
Paths to peers' addresses, for connection management.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import evolve
from zope.interface import implementer

from twisted_ib.hca.base.interfaces import IPeerPath
from twisted_ib.hca.connection.rdmacm import gidOf
from twisted_ib.hca.fabric.base.addressdirectory import PeerAddress
from twisted_ib.hca.wire.grh import HOP_LIMIT

if TYPE_CHECKING:
    from twisted_ib.hca.connection.request import ConnectReply, ConnectRequest
    from twisted_ib.hca.fabric.hardware.hardware import HardwareFabric


@implementer(IPeerPath)
class PeerPath:
    """
    The path to a peer's address, for connection management.
    """

    __slots__ = ("__weakref__", "alive", "fabric", "peer")

    def __init__(self, fabric: HardwareFabric, address: str) -> None:
        """
        @param address: the peer's, as text without a scope.
        """
        self.fabric = fabric
        self.peer = PeerAddress.of(address)
        self.alive = True

    def bind(self, queuePair: Any, message: Any = None) -> Any:
        """
        @return: the queue pair's own path, the connection that stands for its remote number.
        """
        return self.fabric.bind(self, queuePair)

    def unbind(self, queuePair: Any) -> None:
        """
        No effect: nothing is bound to this path.
        """

    def forget(self, number: int) -> None:
        """
        No effect: a connection has one queue pair.
        """

    def prepareRequest(self, request: ConnectRequest) -> None:
        """
        See L{IPeerPath.prepareRequest}.
        """
        request.primaryPath = evolve(
            request.primaryPath,
            localGID=gidOf(self.fabric.address),
            remoteGID=gidOf(self.peer.address),
            hopLimit=HOP_LIMIT,
        )

    def prepareReply(self, reply: ConnectReply, request: ConnectRequest) -> Any:
        """
        See L{IPeerPath.prepareReply}.
        """
        return None

    def post(self, word: int, header: bytes, payload: Any, length: int) -> bool:
        """
        Drop a datagram: there are none here.
        """
        self.fabric.count("datagrams_unsendable")
        return True

    def respond(self, word: int, record: bytes, partition: int) -> bool:
        """
        See L{IPeerPath.respond}.
        """
        return self.post(word, record, b"", 0)

    def sendManagement(self, attribute: int, body: bytes, transaction: int = 0) -> None:
        """
        No effect: the kernel has queue pair 1.
        """

    def unsent(self) -> int:
        """
        @return: 0: messages do not wait here.
        """
        return 0

    def wantSpace(self, waiter: Any) -> None:
        """
        No effect: nothing waits for space.
        """

    def wantNoSpace(self, waiter: Any) -> None:
        """
        No effect.
        """

    def position(self) -> int:
        """
        @return: 0: nothing is posted here.
        """
        return 0


__all__ = ["PeerPath"]
