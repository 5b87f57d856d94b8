"""
C{lo0}: the fabric within one thread.

It joins an HCA to itself and to its neighbours: the other C{lo0} devices of the same thread, unless a
registry is passed in (L{twisted_ib.hca.fabric.base.neighbours}).  A record is a copy in a queue
(L{twisted_ib.hca.fabric.loopback.queues}).  Nothing is shared with other processes, and a pipe to wake a
reactor is all that is asked of the kernel, so it works wherever Python does.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.errors import PathLostError
from twisted_ib.hca.base.interfaces import IFabric, IHostDirectory
from twisted_ib.hca.fabric.base.forked import Forked
from twisted_ib.hca.fabric.base.neighbours import Neighbours, ThreadDirectory
from twisted_ib.hca.fabric.loopback.queues import LoopbackPath


@implementer(IFabric, IHostDirectory)
class LoopbackFabric(ThreadDirectory):
    """
    The loopback fabric of one HCA.
    """

    name = "loopback"
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
        self._pipe = os.pipe()
        for fd in self._pipe:
            os.set_blocking(fd, False)

    def couple(self, path: LoopbackPath, other: LoopbackPath) -> None:
        path.other, other.other = other, path

    # -- progress

    def progress(self, budget: int = limits.RECORDS_PER_TURN) -> int:
        n = 0
        # A copy: an upcall may open or close paths.
        for path in tuple(self._ends):
            if path.other.closed:
                self.lose(path, PathLostError("the peer closed its HCA"))
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
        bells, self.bells = self.bells, []
        for path in bells:
            if path.ring():
                self.rung += 1

    def pending(self) -> bool:
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
        # At most one byte is in the pipe, so that writing never blocks or fails.
        if not self._woken:
            self._woken = True
            os.write(self._pipe[1], b"!")

    def attend(self) -> None:
        if self._woken and not self._closed:
            self._woken = False
            os.read(self._pipe[0], 1)

    def fileno(self) -> int:
        return self._pipe[0]

    # -- the end

    def forked(self) -> None:
        self.withdrawAll()
        for path in self._ends:
            # The other end exists in the child as well, but its consumers are the parent's.
            path.other = Forked()
        self._ends = []

    def close(self) -> None:
        if self._closed:
            return
        self._closed = self._woken = True
        self.withdrawAll()
        gone = PathLostError("the device was closed")
        for path in tuple(self._ends):
            # The peer may be within an upcall on this path, so it ends its own side in its next progress().
            path.closed = True
            path.other.fabric.wakeUp()
            self.lose(path, gone)
        for fd in self._pipe:
            os.close(fd)
