"""
Fakes of a device and an address vector for tests of queue pairs.
"""

from __future__ import annotations

from attrs import frozen

from twisted_ib.errors import NoRouteError, QueuePairError
from twisted_ib.hca.base.partition import PartitionTable
from twisted_ib.hca.base.port import Port
from twisted_ib.hca.base.traits import LOCAL, LinkLayer
from twisted_ib.hca.queues.queuepair import QueuePair


@frozen
class Vector:
    """
    An address vector.
    """

    gid: int = 1

    def key(self, linkLayer: LinkLayer) -> int:
        """
        The GID.
        """
        return self.gid

    def check(self, linkLayer: LinkLayer) -> None:
        """
        @raise QueuePairError: it has no GID.
        """
        if not self.gid:
            raise QueuePairError("nobody")


class Paths:
    """
    Knows which GIDs lead somewhere.
    """

    def __init__(self) -> None:
        """
        No lookup is pending.
        """
        self.left: list[QueuePair] = []

    def check(self, gid: int, number: int = 0) -> None:
        """
        @raise NoRouteError: there is no way.
        """
        if gid == 13:
            raise NoRouteError("no way to 13")

    def leave(self, queuePair: QueuePair) -> None:
        """
        A queue pair waits no more.
        """
        self.left.append(queuePair)


class Device:
    """
    Remembers whom it should find.

    @ivar error: what L{resolvePath} raises, if it does.
    """

    name = "roce0"

    def __init__(self) -> None:
        """
        A device without queue pairs.
        """
        self.met: list[QueuePair] = []
        self.partitions = PartitionTable()
        self.traits = LOCAL
        self.port = Port(gids=(), partitions=self.partitions)
        self.counted: list[str] = []
        self.paths = Paths()
        self.error: Exception | None = None

    def communicationEstablished(self, number: int) -> None:
        """
        Nobody connects.
        """

    def resolvePath(self, queuePair: QueuePair) -> None:
        """
        Find the path of a queue pair.
        """
        self.met.append(queuePair)
        if self.error is not None:
            raise self.error

    def count(self, name: str) -> None:
        self.counted.append(name)

    def queuePairClosed(self, queuePair: QueuePair) -> None:
        """
        It is gone.
        """
