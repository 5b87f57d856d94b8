"""
The queue pairs that are connected over packets, and when each wants to be called.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted_ib.hca.cm.timers import Deadlines
from twisted_ib.hca.fabric.roce.qppath import QueuePairPath

#: Queue pairs of streams that are gone and still send what they had, and how long, in seconds.
PACKET_LINGERING = 1024
PACKET_LINGER_SECONDS = 10.0


class ConnectedPaths:
    """
    The paths of connected queue pairs.

    @ivar byNumber: By the number of the queue pair.
    @ivar lingering: Those whose queue pair is gone, and that go on.
    """

    __slots__ = ("_clock", "_deadlines", "byNumber", "lingering")

    def __init__(self, clock: Callable[[], float]) -> None:
        """
        There are none.

        @param clock: Gives the time, seconds.
        """
        self._clock = clock
        self._deadlines: Deadlines[QueuePairPath] = Deadlines()
        self.byNumber: dict[int, QueuePairPath] = {}
        self.lingering: dict[QueuePairPath, None] = {}

    def enter(self, path: QueuePairPath) -> None:
        """
        A queue pair is connected; perhaps one with its number still goes on.
        """
        before = self.byNumber.get(path.localID)
        if before is not None:
            self.drop(before)
        self.byNumber[path.localID] = path

    def parted(self, path: QueuePairPath, lingers: bool) -> None:
        """
        A queue pair is gone.

        @param lingers: Whether its path goes on until the peer has everything; else it says what it
            owes the peer, and no more.
        """
        if lingers:
            path.until = self._clock() + PACKET_LINGER_SECONDS
            self.lingering[path] = None
            if len(self.lingering) > PACKET_LINGERING:
                self.drop(next(iter(self.lingering)))
        else:
            self.lingering.pop(path, None)
            path.until = 0.0

    def drop(self, path: QueuePairPath) -> None:
        """
        Forget the path of a queue pair that is gone.
        """
        self.lingering.pop(path, None)
        if path.deadline is not None:
            self._deadlines.clear(path)
        if self.byNumber.get(path.localID) is path:
            del self.byNumber[path.localID]
        path.alive = False

    def schedule(self, path: QueuePairPath) -> None:
        """
        Something has happened to a connection, which may want to be called at another time.  One that is
        later than before, or never, is found out when somebody asks for the soonest.
        """
        wanted = path.connection.deadline() if not path.until else self._wanted(path)
        if wanted is not None and (path.deadline is None or wanted < path.deadline):
            self._deadlines.set(path, wanted)

    def _wanted(self, path: QueuePairPath) -> float | None:
        wanted: float | None = path.connection.deadline()
        if path.until and (wanted is None or path.until < wanted):
            return path.until
        return wanted

    def deadline(self) -> float | None:
        """
        @return: When L{tick} should be called.
        """
        while (path := self._deadlines.first()) is not None:
            wanted = self._wanted(path)
            if wanted == path.deadline:
                return wanted
            if wanted is None:
                self._deadlines.clear(path)
            else:
                self._deadlines.set(path, wanted)
        return None

    def tick(self, now: float) -> None:
        """
        Call those that want to be, and forget those that have gone on long enough.
        """
        for path in self._deadlines.takeDue(now):
            if path.until and now >= path.until:
                self.drop(path)
            else:
                path.connection.tick(now)
                path.mark()


__all__ = ["ConnectedPaths"]
