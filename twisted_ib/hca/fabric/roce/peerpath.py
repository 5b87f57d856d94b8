"""
Paths to peers' addresses, for connection management and datagrams.

A L{PeerPath} keeps nothing of the peer but its address, and lives as long as it is referenced, so datagrams
with forged sources consume no memory. A connected queue pair has a path of its own:
L{QueuePairPath<twisted_ib.hca.fabric.roce.qppath.QueuePairPath>}.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted_ib.hca.fabric.base import streams as base
from twisted_ib.hca.fabric.roce import connparams
from twisted_ib.hca.fabric.roce.qppath import QueuePairPath

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import BoundQueuePair
    from twisted_ib.hca.connection.request import ConnectReply, ConnectRequest
    from twisted_ib.hca.fabric.roce.packet import PacketFabric


class PeerPath(base.PeerPath):
    """
    The path to a peer's address, or to a multicast group.
    """

    __slots__ = ()

    fabric: PacketFabric

    def bind(self, queuePair: BoundQueuePair, message: Any = None) -> QueuePairPath:
        path = QueuePairPath(self, queuePair, message)
        self.fabric.sessions.enter(path)
        return path

    def prepareRequest(self, request: ConnectRequest) -> None:
        connparams.propose(self.fabric, self.peer.gid, request)

    def prepareReply(self, reply: ConnectReply, request: ConnectRequest) -> Any:
        return connparams.answer(self.fabric, self.peer.address, reply, request)

    def readReply(self, reply: ConnectReply, number: int) -> None:
        connparams.answered(self.fabric, reply, number)

    def post(self, word: int, header: bytes, payload: Any, length: int) -> bool:
        # A datagram, which may be lost: GRH, DETH and immediate are in the header, or its beginning is.
        pieces = payload if payload.__class__ is list else (payload,)
        self.fabric.sendDatagram(self, word, b"".join((header, *pieces)))
        return True

    def respond(self, word: int, record: bytes, partition: int) -> bool:
        # IBTA vol. 1 13.5.4: a response is in the partition of its request; ours may be the full membership
        # of it and theirs a limited one.
        fabric = self.fabric
        fabric.sendDatagram(self, word, record, fabric.owner.partitions.partner(partition))
        return True

    def sendManagement(self, attribute: int, body: bytes, transaction: int = 0) -> None:
        self.fabric.sendManagement(self.peer.address, attribute, body, transaction)
