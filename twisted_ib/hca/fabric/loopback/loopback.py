"""
C{lo0}: the fabric within one thread.

It joins an HCA to itself and to its neighbours: the other C{lo0} devices of the same thread, unless a
registry is passed in (L{twisted_ib.hca.fabric.base.neighbours}).  A record is a copy in a queue
(L{twisted_ib.hca.fabric.loopback.queues}).  Nothing is shared with other processes, and a pipe to wake a
reactor is all that is asked of the kernel, so it works wherever Python does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.errors import PathLostError
from twisted_ib.hca.base.interfaces import IFabric, IHostDirectory
from twisted_ib.hca.fabric.base.neighbours import Neighbours, ThreadDirectory
from twisted_ib.hca.fabric.base.path import Forked, PeerIdentity
from twisted_ib.hca.fabric.loopback.queues import LoopbackPath


@implementer(IFabric, IHostDirectory)
class LoopbackFabric(ThreadDirectory):
    """
    The loopback fabric of one HCA.

    @ivar hot: Always empty: while this thread polls, nothing can arrive.
    """

    name = "lo"
    hot: tuple[Any, ...] = ()
    pathClass: Any = LoopbackPath

    def __init__(
        self,
        owner: Any,
        guid: int,
        clock: Callable[[], float],
        neighbours: Neighbours | None = None,
    ) -> None:
        """
        @param owner: The device, an L{IFabricOwner<twisted_ib.hca.base.interfaces.IFabricOwner>}.
        @param clock: Not used: nothing here waits for a time.
        @param neighbours: The HCAs within reach; by default those of this thread.
        """
        super().__init__(owner, guid, neighbours)
        self._woken = self._closed = False
        self._ends: list[LoopbackPath] = []
        self._paths: dict[int, LoopbackPath] = {}
        self._pipe = os.pipe()
        for fd in self._pipe:
            os.set_blocking(fd, False)

    def allocate(self, size: int) -> None:
        """
        Return L{None}: no peer maps memory here.
        """

    # -- peers

    def pathTo(self, fabric: LoopbackFabric) -> LoopbackPath:
        """
        @return: The path to another HCA, or to this one.
        """
        path = self._paths.get(fabric.guid)
        # A closed peer is noticed at the next progress(); a path dialled before that must be a new one.
        if path is None or not path.alive or path.other.closed:
            path, other = self._end(fabric), fabric._end(self)
            path.other, other.other = other, path
            if fabric is self:
                # A queue pair may be connected to itself or to another one of its HCA: see RecordPath.bind.
                path.twin, other.twin = other, path
            self._paths[fabric.guid] = path
            fabric.owner.pathAccepted(other)
        return path

    def _end(self, peer: LoopbackFabric) -> LoopbackPath:
        program = os.path.basename(sys.argv[0] or "python")
        path = self.pathClass(self, PeerIdentity(peer.guid, os.getpid(), os.geteuid(), program))
        self._ends.append(path)
        return path

    def paths(self) -> list[LoopbackPath]:
        """
        @return: The paths to living peers.
        """
        return list(self._ends)

    # -- progress

    def progress(self, budget: int = limits.RECORDS_PER_TURN) -> int:
        """
        Deliver what has arrived.

        @param budget: Records per path at most.
        @return: How many records were consumed.
        """
        n = 0
        # A copy: an upcall may open or close paths.
        for path in tuple(self._ends):
            if path.other.closed:
                self._lose(path, PathLostError("the peer closed its HCA"))
                n += 1
                continue
            k = path.progress(budget)
            if k:
                n += k
                # Consuming frees room, which the other end may be asleep waiting for.
                if not path.bell:
                    path.bell = True
                    self.bells.append(path)
        return n

    def ringBells(self) -> None:
        """
        End the batch: wake sleeping fabrics that have something to consume.
        """
        bells, self.bells = self.bells, []
        for path in bells:
            if path.ring():
                self.rung += 1

    def pending(self) -> bool:
        """
        @return: Whether L{progress} has something to do.
        """
        for path in self._ends:
            if path.pending():
                return True
        return False

    # -- sleeping and waking

    def wakeUp(self) -> bool:
        """
        Make the descriptor readable if the fabric sleeps.

        @return: Whether it has become so by this call.
        """
        if not self.asleep or self._woken:
            return False
        self.signal()
        return True

    def signal(self) -> None:
        """
        Make L{fileno} readable.
        """
        # At most one byte is in the pipe, so that writing never blocks or fails.
        if not self._woken:
            self._woken = True
            os.write(self._pipe[1], b"!")

    def attend(self) -> None:
        """
        Read the byte from the pipe.
        """
        if self._woken and not self._closed:
            self._woken = False
            os.read(self._pipe[0], 1)

    def fileno(self) -> int:
        """
        @return: A descriptor that is readable when there is work.
        """
        return self._pipe[0]

    def registerWith(self, poller: Any) -> None:
        """
        Do nothing: the descriptor is enough.
        """

    def deadline(self) -> None:
        """
        Return L{None}: nothing here waits for a time.
        """

    def tick(self, now: float) -> None:
        """
        Do nothing: there are no timers.
        """

    # -- the end

    def _lose(self, path: LoopbackPath, reason: PathLostError) -> None:
        if path not in self._ends:
            return
        self._ends.remove(path)
        try:
            # Published operations are delivered first, as TCP delivers data before a FIN.
            path.drain()
        finally:
            path.alive = False
            self.delayed.pop(path, None)
            if self._paths.get(path.peer.guid) is path:
                del self._paths[path.peer.guid]
            try:
                self.owner.pathLost(path, reason)
            finally:
                path.lost(reason)

    def forked(self) -> None:
        """
        In a forked child: make every use of a path an error.
        """
        self._neighbours.forget(self)
        for path in self._ends:
            # The other end exists in the child as well, but its consumers are the parent's.
            path.other = Forked()
        self._ends = []

    def close(self) -> None:
        """
        Withdraw all services, end all paths, free everything.
        """
        if self._closed:
            return
        self._closed = self._woken = True
        self._neighbours.forget(self)
        gone = PathLostError("the device was closed")
        for path in tuple(self._ends):
            # The peer may be within an upcall on this path, so it ends its own side in its next progress().
            path.closed = True
            path.other.fabric.wakeUp()
            self._lose(path, gone)
        for fd in self._pipe:
            os.close(fd)
