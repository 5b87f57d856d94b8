"""
What stands for a device and for an address vector in tests of queue pairs.
"""

from __future__ import annotations

from attrs import frozen

from twisted_ib.errors import NoRouteError, QueuePairError
from twisted_ib.hca.queues.queuepair import QueuePair


@frozen
class Vector:
    """
    An address vector.
    """

    gid: int = 1

    def check(self) -> None:
        """
        @raise QueuePairError: it names nobody.
        """
        if not self.gid:
            raise QueuePairError("nobody")


class Paths:
    """
    Knows which GIDs lead somewhere.
    """

    def __init__(self) -> None:
        """
        Nobody waits.
        """
        self.left: list[QueuePair] = []

    def check(self, gid: int) -> None:
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

    @ivar error: what L{meet} raises, if it does.
    """

    def __init__(self) -> None:
        """
        Nobody.
        """
        self.met: list[QueuePair] = []
        self.counted: list[str] = []
        self.paths = Paths()
        self.error: Exception | None = None

    def meet(self, queuePair: QueuePair) -> None:
        """
        Find the path of a queue pair.
        """
        self.met.append(queuePair)
        if self.error is not None:
            raise self.error

    def count(self, name: str) -> None:
        """
        Count something.
        """
        self.counted.append(name)

    def queuePairClosed(self, queuePair: QueuePair) -> None:
        """
        It is gone.
        """
