"""
C{lo0}: the fabric within one thread.

It joins an HCA with itself and with its neighbours: the other C{lo0} devices of the same
thread, unless it is told which (L{twisted_ib.hca.fabric.base.neighbours}).
A record is a copy in a queue; nothing is shared with another process, nothing
is asked of the kernel but a pipe to wake a reactor, so it works wherever Python
does (L{twisted_ib.hca.fabric.loopback.queues}).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.errors import NoListenerError, PathLostError, ServiceInUseError
from twisted_ib.hca.base.interfaces import IFabric
from twisted_ib.hca.fabric.base.fabric import Fabric, Found
from twisted_ib.hca.fabric.base.neighbours import Neighbours, ofThisThread
from twisted_ib.hca.fabric.base.path import Forked, PeerIdentity
from twisted_ib.hca.fabric.loopback.queues import LoopbackPath
from twisted_ib.hca.host.addresses import checkLocal, conflict, freePort, normalise, servedBy


@implementer(IFabric)
class LoopbackFabric(Fabric):
    """
    The loopback fabric of one HCA.

    @ivar hot: Empty: while this thread looks again, nothing can arrive.
    """

    name = "lo"
    attributes = {"largestOperation": limits.INLINE_RECORD, "zeroCopy": False}
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
        @param clock: Not needed: there is nothing to wait for.
        @param neighbours: Whom it can reach; by default those of this thread.
        """
        super().__init__(owner, guid)
        self._woken = self._closed = False
        self._ends: list[LoopbackPath] = []
        self._paths: dict[int, LoopbackPath] = {}
        self._neighbours = ofThisThread() if neighbours is None else neighbours
        self._neighbours.fabrics[guid] = self
        self._services = self._neighbours.services
        self._pipe = os.pipe()
        for fd in self._pipe:
            os.set_blocking(fd, False)

    def allocate(self, size: int) -> None:
        """
        Nobody maps memory here.
        """

    # -- services and peers

    def publish(self, serviceID: int, address: str, inode: int = 0) -> None:
        """
        Let others find this HCA for a service at an address.

        @param inode: See L{IFabric}.
        @raise ServiceInUseError: somebody has it.
        @raise NoRouteError: the address is not one of this host.
        """
        checkLocal(address, True)
        address = normalise(address)
        for service, other in self._services:
            if service == serviceID and conflict(address, other):
                raise ServiceInUseError(f"somebody in this thread listens on {other} already")
        self._services[serviceID, address] = self
        if inode:
            self._neighbours.inodes[serviceID, address] = inode

    def publishAny(self, prefix: int, address: str) -> int:
        """
        The same with a port that is free.

        @return: The port.
        """
        checkLocal(address, True)
        port = freePort({service - prefix for service, _ in self._services})
        self._services[prefix + port, normalise(address)] = self
        return port

    def withdraw(self, serviceID: int, address: str) -> None:
        """
        Take back what L{publish} did.
        """
        key = serviceID, normalise(address)
        if self._services.get(key) is self:
            del self._services[key]
            self._neighbours.inodes.pop(key, None)

    def resolve(self, serviceID: int, address: str, user: Any) -> Found:
        """
        Find the path to whoever serves C{serviceID} at C{address}.

        @param user: Gets C{pathReady(path)} before this returns.
        @raise NoRouteError: the address is not one of this host.
        @raise NoListenerError: nobody in this thread serves it.
        """
        checkLocal(address)
        for where in servedBy(normalise(address)):
            fabric = self._services.get((serviceID, where))
            if fabric is not None:
                user.pathReady(self._pathTo(fabric))
                return Found()
        raise NoListenerError(f"nobody in this thread serves {address}")

    def serving(self, serviceID: int, address: str) -> list[int]:
        """
        @return: See L{IFabric}.
        """
        found = [self._services.get((serviceID, where)) for where in servedBy(normalise(address))]
        return [fabric.guid for fabric in found if fabric is not None]

    def reach(self, guid: int, user: Any) -> Found:
        """
        Find the path to the HCA of a GUID.

        @param user: Gets C{pathReady(path)} before this returns.
        @raise NoListenerError: it is not among the neighbours.
        """
        fabric = self._neighbours.fabrics.get(guid)
        if fabric is None:
            raise NoListenerError(f"there is no HCA {guid:016x} in this thread")
        user.pathReady(self._pathTo(fabric))
        return Found()

    def proves(self, path: Any, guid: int) -> bool:
        """
        See L{IFabric}: nobody lies to himself.
        """
        return bool(path.peer.guid == guid)

    def join(self, group: int) -> None:
        """
        Let others find this HCA as a member of a multicast group.
        """
        self._neighbours.join(group, self.guid)

    def leave(self, group: int) -> None:
        """
        Take back what L{join} did.
        """
        self._neighbours.leave(group, self.guid)

    def members(self, group: int) -> tuple[int, ...]:
        """
        @return: See L{IFabric}.
        """
        return self._neighbours.groups.get(group, ())[: limits.MULTICAST_MEMBERS]

    def _pathTo(self, fabric: LoopbackFabric) -> LoopbackPath:
        """
        @return: This end of the path that this HCA has dialled to another, made if need
            be.
        """
        path = self._paths.get(fabric.guid)
        if path is None or not path.alive or path.other.closed:
            path, other = self._end(fabric), fabric._end(self)
            path.other, other.other = other, path
            if fabric is self:
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
        Take what has arrived.

        @param budget: Records per path at most.
        @return: How many records were taken.
        """
        n = 0
        for path in tuple(self._ends):
            if path.other.closed:
                self._lose(path, PathLostError("the peer closed its HCA"))
                n += 1
                continue
            k = path.progress(budget)
            if k:
                n += k
                if not path.bell:
                    path.bell = True
                    self.bells.append(path)
        return n

    def ringBells(self) -> None:
        """
        The batch ends: wake the other ends that sleep and have something to do.
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

        @return: Whether it was made so now.
        """
        if not self.asleep or self._woken:
            return False
        self.signal()
        return True

    def signal(self) -> None:
        """
        Make L{fileno} readable: there is something to do.
        """
        if not self._woken:
            self._woken = True
            os.write(self._pipe[1], b"!")

    def attend(self) -> None:
        """
        Take the byte out of the pipe.
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
        The descriptor is enough.
        """

    def deadline(self) -> None:
        """
        @return: Nothing here waits for a time.
        """

    def tick(self, now: float) -> None:
        """
        Nothing is ever due.
        """

    # -- the end

    def _lose(self, path: LoopbackPath, reason: PathLostError) -> None:
        """
        A path is over: take what its other end had published, then fail the
        rest.
        """
        if path not in self._ends:
            return
        self._ends.remove(path)
        try:
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
        In a forked child: nothing of this may be touched any more.
        """
        self._withdrawAll()
        for path in self._ends:
            path.other = Forked()
        self._ends = []

    def _withdrawAll(self) -> None:
        self._neighbours.forget(self)

    def close(self) -> None:
        """
        Withdraw everything and give everything back.
        """
        if self._closed:
            return
        self._closed = self._woken = True
        self._withdrawAll()
        gone = PathLostError("the device was closed")
        for path in tuple(self._ends):
            path.closed = True
            path.other.fabric.wakeUp()
            self._lose(path, gone)
        for fd in self._pipe:
            os.close(fd)
