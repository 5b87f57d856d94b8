"""
The paths of connected queue pairs, and their timers.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted_ib.hca.base.operation import QPN_SHIFT
from twisted_ib.hca.cm.timers import Deadlines
from twisted_ib.hca.fabric.roce.qppath import QueuePairPath

#: Destroyed queue pairs of streams whose data is still being sent, and for how long, in seconds. Like TCP's
#: orphaned sockets (tcp(7), tcp_max_orphans): an application may close before its last data is acknowledged.
PACKET_LINGERING = 1024
PACKET_LINGER_SECONDS = 10.0


class ConnectedPaths:
    """
    The paths of connected queue pairs.

    @ivar byNumber: queue pair number -> path.
    @ivar lingering: paths that outlive their queue pair.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """
        @param clock: returns the time in seconds.
        """
        self._clock = clock
        self.byNumber: dict[int, QueuePairPath] = {}
        self._deadlines: Deadlines[QueuePairPath] = Deadlines(self.byNumber)
        self.lingering: dict[QueuePairPath, None] = {}

    def enter(self, path: QueuePairPath) -> None:
        """
        A queue pair is connected; a lingering path of its number is dropped.
        """
        before = self.byNumber.get(path.localID)
        if before is not None:
            self.drop(before)
        self.byNumber[path.localID] = path

    def parted(self, path: QueuePairPath, lingers: bool) -> None:
        """
        A queue pair is gone.

        @param lingers: whether its path remains until the peer has acknowledged everything; otherwise only
            what it owes the peer is sent.
        """
        if lingers:
            path.until = self._clock() + PACKET_LINGER_SECONDS
            self.lingering[path] = None
            if len(self.lingering) > PACKET_LINGERING:
                # The oldest: it had the most time, and its peer is the least likely to answer still.
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
        Update the timer of a connection to which something has happened.
        """
        wanted = path.connection.deadline() if not path.until else self._wanted(path)
        # Only earlier deadlines are set at once. One that moved later, as after every ACK, or away is found
        # when it comes up: that saves a heap operation per packet.
        if wanted is not None and (path.deadline is None or wanted < path.deadline):
            self._deadlines.set(path, wanted)

    def _wanted(self, path: QueuePairPath) -> float | None:
        wanted: float | None = path.connection.deadline()
        if path.until and (wanted is None or path.until < wanted):
            return path.until
        return wanted

    def deadline(self) -> float | None:
        """
        @return: when L{tick} should be called next, or L{None}.
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
        Run the timers that are due, and drop paths that have lingered long enough.
        """
        for path in self._deadlines.takeDue(now):
            if path.until and now >= path.until:
                self.drop(path)
            else:
                path.connection.tick(now, _isGone(path))
                path.mark()


def _isGone(path: QueuePairPath) -> bool:
    # Whether the peer was a process of this address that has ended, and its last words have been read.  One
    # that is killed tells nobody, and queue pairs that were connected without the communication manager
    # (MPI's) have no other that would.
    fabric, slot = path.fabric, path.remote >> QPN_SHIFT
    if fabric.group is None or path.peer.address != fabric.address:
        return False
    # In this order: after its end nothing more comes.
    return slot > 0 and not fabric.group.isTaken(slot) and not fabric.link.pending()
