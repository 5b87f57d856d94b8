"""
Queue pairs that wait until the path to their peer's HCA is there.

The rule by which two HCAs agree on a path is in L{twisted_ib.hca.paths}; here is the
waiting: for an answer, for a call, or for another attempt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.errors import (
    DeviceError,
    HCAError,
    LayoutError,
    PathLostError,
    PeerIdentityError,
    PeerRefusedError,
)
from twisted_ib.hca.core.states import QPState
from twisted_ib.hca.core.timers import Timer

if TYPE_CHECKING:
    from twisted_ib.hca.core.queuepair import QueuePair
    from twisted_ib.hca.paths import Paths

#: States in which a queue pair has a path, or wants one.
RECEIVING = frozenset((QPState.RTR, QPState.RTS, QPState.SQD, QPState.SQE))
#: What does not get better by trying again.
_FINAL = (DeviceError, LayoutError, PeerIdentityError, PeerRefusedError)


class Meeting:
    """
    The queue pairs that wait for the path to one HCA.

    @ivar guid: of that HCA.
    @ivar waiting: the queue pairs, each with the address vector that it waits for.
    """

    __slots__ = ("_paths", "_pause", "_search", "_timer", "guid", "waiting")

    def __init__(self, paths: Paths, guid: int) -> None:
        """
        Nothing is looked for yet.
        """
        self._paths = paths
        self.guid = guid
        self.waiting: dict[QueuePair, Any] = {}
        self._pause = limits.MEETING_SECONDS
        self._search: Any = None
        self._timer: Timer | None = None

    def look(self) -> None:
        """
        Look for the path, unless that is being done.
        """
        if self._search is not None:
            return
        self._stopTimer()
        self._search = self  # Not again from within.
        try:
            search = self._paths.find(self.guid, self)
        except (HCAError, OSError) as error:
            self.connectFailed(error)
            return
        if self._search is self:
            self._search = search

    def pathReady(self, path: Any) -> None:
        """
        It is found: all go on.  One queue pair's exception keeps no other from that; the
        first is raised at the end.
        """
        self._search = None
        twin = path.twin
        if not path.alive or (twin is None and self.guid == self._paths.guid):
            self.connectFailed(PathLostError("the path was lost when it was found"))
            return
        waiting = self.end()
        failure: Exception | None = None
        for queuePair, vector in waiting.items():
            if not isWaiting(queuePair, vector):
                continue
            try:
                # Only a path from an HCA to itself has a twin.
                queuePair.pathFound(path if twin is None or queuePair.number <= queuePair.remote else twin)
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def connectFailed(self, error: Exception) -> None:
        """
        It is not found now; perhaps later.
        """
        self._search = None
        self.prune()
        if isinstance(error, _FINAL):
            for queuePair, vector in self.end().items():
                if isWaiting(queuePair, vector):
                    queuePair.pathFailed(error)
        elif self.waiting:
            self._stopTimer()
            self._timer = self._paths.timers.start(self._pause, self.look)
            self._pause = min(2 * self._pause, limits.MEETING_SECONDS_MOST)

    def prune(self) -> None:
        """
        Forget queue pairs that wait no more.
        """
        for queuePair, vector in list(self.waiting.items()):
            if not isWaiting(queuePair, vector):
                self._paths.leave(queuePair)

    def end(self) -> dict[QueuePair, Any]:
        """
        Nobody waits any more.

        @return: who waited.
        """
        self._stopTimer()
        search, self._search = self._search, None
        if search is not None and search is not self:
            search.cancel()
        waiting, self.waiting = self.waiting, {}
        self._paths.ended(self, waiting)
        return waiting

    def _stopTimer(self) -> None:
        """
        Stop the timer, if it runs.
        """
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()


class Joining:
    """
    One queue pair that waits for the path to an IP address.
    """

    __slots__ = ("_queuePair", "_vector")

    def __init__(self, queuePair: QueuePair, vector: Any) -> None:
        """
        @param vector: The address vector that it waits for.
        """
        self._queuePair = queuePair
        self._vector = vector

    def pathReady(self, path: Any) -> None:
        """
        It is found.
        """
        if isWaiting(self._queuePair, self._vector):
            self._queuePair.pathFound(path)

    def connectFailed(self, error: Exception) -> None:
        """
        There is none.
        """
        if isWaiting(self._queuePair, self._vector):
            self._queuePair.pathFailed(error)


def isWaiting(queuePair: QueuePair, vector: Any) -> bool:
    """
    @return: Whether a queue pair still wants the path that an address vector names.
    """
    return queuePair.path is None and queuePair.vector is vector and queuePair.state in RECEIVING


__all__ = ["RECEIVING", "Joining", "Meeting", "isWaiting"]
