"""
The ways of a fabric of packets to peers' addresses.

A L{PeerPath} is what is found by an address.  It keeps nothing of the peer but that, and lives as long
as somebody has it: who writes any source address on datagrams makes nothing grow.  Connection
management and datagrams go by it.  A queue pair that is connected has a path of its own:
L{QueuePairPath<twisted_ib.hca.fabric.roce.qppath.QueuePairPath>}.
"""

from __future__ import annotations

from typing import Any

from attrs import frozen

from twisted_ib.errors import PathLostError
from twisted_ib.hca.fabric.base.path import Path
from twisted_ib.hca.fabric.roce import connparams
from twisted_ib.hca.fabric.roce.qppath import QueuePairPath
from twisted_ib.hca.wire.cm.rdmacm import gidNumber


@frozen
class PeerAddress:
    """
    Who is at the other end of a path, as far as is known.

    @ivar address: The IP address, as text without a scope.
    @ivar gid: The same as a GID.
    @ivar guid: Not known.
    @ivar pid: Not known.
    @ivar uid: Not known.
    @ivar program: Not known.
    """

    address: str
    gid: int
    guid: int = 0
    pid: int = 0
    uid: int = -1
    program: str = ""

    @classmethod
    def of(cls, address: str) -> PeerAddress:
        """
        @param address: An IP address.
        """
        return cls(address, gidNumber(address))


class PeerPath(Path):
    """
    The way to a peer's address, or to a multicast group.
    """

    __slots__ = ("__weakref__",)

    #: Nobody waits here, and nothing is refused.
    absent: dict[int, None] = {}
    table: dict[int, Any] = {}
    turns = twin = None

    def __init__(self, fabric: Any, address: str) -> None:
        """
        @param fabric: What the path belongs to.
        @param address: The peer's, as text without a scope.
        """
        self.fabric = fabric
        self.peer = PeerAddress.of(address)
        self.alive = True
        self.bell = self.busy = False

    def bind(self, queuePair: Any, message: Any = None) -> Path:
        """
        See L{Path.bind}.

        @return: The queue pair's own path.
        """
        path = QueuePairPath(self, queuePair, message)
        self.fabric.sessions.enter(path)
        return path

    def unbind(self, queuePair: Any) -> None:
        """
        Nobody is bound to this one.
        """

    def prepareREQ(self, request: Any) -> None:
        """
        See L{Path.prepareREQ}.
        """
        connparams.propose(self.fabric, self.peer.gid, request)

    def prepareREP(self, reply: Any, request: Any) -> Any:
        """
        See L{Path.prepareREP}.
        """
        return connparams.answer(self.fabric, reply, request)

    def post(self, word: int, header: bytes, payload: Any, length: int) -> bool:
        """
        Send a datagram, or lose it.

        @param header: GRH, DETH and immediate, or the beginning of those; the rest is in C{payload}.
        @return: True.
        """
        pieces = payload if payload.__class__ is list else (payload,)
        self.fabric.sendDatagram(self, word, b"".join((header, *pieces)))
        return True

    def sendManagement(self, attribute: int, body: bytes) -> None:
        """
        Send a connection management message.
        """
        self.fabric.sendManagement(self.peer.address, attribute, body)

    def wantSpace(self, waiter: Any) -> None:
        """
        Nobody waits here.
        """

    def wantNoSpace(self, waiter: Any) -> None:
        """
        Nobody waits here.
        """

    def queuePairs(self) -> list[Any]:
        """
        @return: None: each has a path of its own.
        """
        return []

    def position(self) -> int:
        """
        @return: Nobody hears of what becomes of a datagram.
        """
        return 0

    def progress(self, budget: int) -> int:
        """
        @return: Nothing arrives here.
        """
        return 0

    def pending(self) -> bool:
        """
        @return: Nothing arrives here.
        """
        return False

    def unsent(self) -> bool:
        """
        @return: Nothing waits here.
        """
        return False

    def lost(self, reason: PathLostError) -> None:
        """
        The device is closed.
        """
        self.alive = False


__all__ = ["PeerAddress", "PeerPath"]
