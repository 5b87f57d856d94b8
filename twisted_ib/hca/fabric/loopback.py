"""
C{lo0}: the fabric within one thread.

It joins an HCA with itself and with its neighbours: the other C{lo0} devices of the same
thread, unless it is told which (L{twisted_ib.hca.fabric.neighbours}).
A record is a copy in a queue; nothing is shared with another process, nothing
is asked of the kernel but a pipe to wake a reactor, so it works wherever Python
does.

Positions count bytes as rings do, with the same bounds, so that whoever runs here
meets the same back-pressure.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.errors import (
    NoListenerError,
    PathLostError,
    ServiceInUseError,
)
from twisted_ib.hca.fabric.addresses import checkLocal, conflict, freePort, normalise, servedBy
from twisted_ib.hca.fabric.neighbours import Neighbours, ofThisThread
from twisted_ib.hca.fabric.path import Forked, Path, PeerIdentity
from twisted_ib.hca.interfaces import IFabric

_ROOM = limits.RING - limits.RING_RESERVE
_MANAGEMENT_ROOM = limits.RING - limits.REFUSAL_RESERVE
#: Waiters go on when no more than this is on the way.
_LOW = limits.RING // 2


class LoopbackPath(Path):
    """
    One end of the way between two HCAs, or between an HCA and itself.

    @ivar other: The other end.
    @ivar closed: Whether the HCA at this end is closed.
    """

    __slots__ = ("_acknowledged", "_head", "_owedEnd", "_queue", "_room", "_tail", "closed", "other")

    other: Any

    def __init__(self, fabric: LoopbackFabric, peer: PeerIdentity) -> None:
        """
        Make one end; C{other} is set when both exist.

        @param fabric: what the path belongs to.
        @param peer: who is at the other end.
        """
        super().__init__(fabric, peer)
        #: What the other end published: word, bytes, the position after it, and
        #: how far the other end had read then.
        self._queue: deque[tuple[int, bytes, int, int]] = deque()
        self._tail = self._head = self._acknowledged = self._owedEnd = 0
        self._room = _ROOM
        self.closed = False

    # -- down

    def post(self, word: int, header: bytes, payload: Any, length: int) -> bool:
        """
        Publish a copy: see L{Path.post}.
        """
        other = self.other
        end = (self._tail + len(header) + length + 71) & -64
        if end - other._head > self._room:
            return False
        pieces = payload if payload.__class__ is list else (payload,)
        other._queue.append((word, b"".join((header, *pieces)), end, self._head))
        self._tail = end
        if not self.bell:
            self.bell = True
            self.fabric.ringLater(self)
        return True

    def postReserved(self, word: int, body: bytes, refusal: bool) -> bool:
        """
        Publish a small record from the reserve: see L{Path.postReserved}.
        """
        room, self._room = self._room, limits.RING if refusal else _MANAGEMENT_ROOM
        try:
            return self.post(word, b"", body, len(body))
        finally:
            self._room = room

    def holdBack(self, held: bool) -> None:
        """
        See L{Path.holdBack}.
        """
        self._room = -1 if held else _ROOM

    def position(self) -> int:
        """
        @return: See L{Path.position}.
        """
        return self._tail

    def _isLow(self) -> bool:
        """
        Whether those who wait for room may go on.
        """
        return self._tail - self.other._head <= _LOW

    # -- up

    def progress(self, budget: int) -> int:
        """
        Take what has arrived, wake who waits for room, complete what the other
        end has taken.

        @param budget: How many records at most.
        @return: How many records were taken, waiters woken and requests
            completed.
        """
        if self.busy:
            return 0
        n = 0
        if self.waiting and self._isLow():
            n = self.resumeWaiting()
        self.busy = True
        try:
            n += self._drain(budget)
            if not self._queue:
                self._acknowledged = self.other._head
            n += self.completeTo(self._acknowledged)
        finally:
            self.busy = False
        return n

    def _drain(self, budget: int) -> int:
        """
        Take up to C{budget} records.
        """
        n = 0
        if self.owed is not None:
            if not self.payOwed():
                return 0
            self._head = self._owedEnd
            n = 1
        queue, get = self._queue, self.taker
        while queue and n < budget:
            word, data, end, acknowledged = queue.popleft()
            n += 1
            # Refusals are in the queue before the end that passes them.
            self._acknowledged = acknowledged
            entry = get(word & 0xFFFFFF)
            try:
                if entry is not None:
                    syndrome = entry.delivered(word >> 24, data, 0, len(data))
                else:
                    syndrome = self.unknown(word, data, 0, len(data))
                if syndrome and not self.refuse(word, syndrome, end):
                    self._owedEnd = end
                    return n
            except BaseException:
                # A consumer failed; its record counts as taken.
                self._head = end
                raise
            self._head = end
        return n

    def pending(self) -> bool:
        """
        @return: Whether L{progress} has something to do.
        """
        if self.other.closed:
            return True
        if self.owed is not None:
            return self._tail + 64 - self.other._head <= limits.RING
        if self._queue or (self.waiting and self._isLow()):
            return True
        waiting = self.unacknowledged
        return bool(waiting) and waiting[0][0] <= self.other._head

    def ring(self) -> bool:
        """
        The batch ends: wake the other end's fabric if it sleeps and has
        something to do.

        @return: Whether it was woken.
        """
        self.bell = False
        return self.other.pending() and self.other.fabric.wakeUp()


class _Found:
    """
    The result of a search, which is never late.
    """

    def cancel(self) -> None:
        """
        There is nothing to cancel.
        """


@implementer(IFabric)
class LoopbackFabric:
    """
    The loopback fabric of one HCA.

    @ivar guid: The HCA's GUID.
    @ivar hot: Empty: while this thread looks again, nothing can arrive.
    @ivar bells: The paths whose other end must hear of something.
    @ivar asleep: Whether a byte in the pipe must tell of work.
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
        @param owner: The device, an L{IFabricOwner<twisted_ib.hca.interfaces.IFabricOwner>}.
        @param clock: Not needed: there is nothing to wait for.
        @param neighbours: Whom it can reach; by default those of this thread.
        """
        self.owner = owner
        self.guid = guid
        self.bells: list[LoopbackPath] = []
        self.asleep = self._woken = self._closed = False
        self.rung = self.sleeps = 0
        self._ends: list[LoopbackPath] = []
        self._paths: dict[int, LoopbackPath] = {}
        self._neighbours = ofThisThread() if neighbours is None else neighbours
        self._neighbours.fabrics[guid] = self
        self._services = self._neighbours.services
        self._pipe = os.pipe()
        for fd in self._pipe:
            os.set_blocking(fd, False)

    def count(self, name: str) -> None:
        """
        Count something on the device.
        """
        self.owner.count(name)

    def allocate(self, size: int) -> None:
        """
        Nobody maps memory here.
        """

    # -- services and peers

    def publish(self, serviceID: int, address: str) -> None:
        """
        Let others find this HCA for a service at an address.

        @raise ServiceInUseError: somebody has it.
        @raise NoRouteError: the address is not one of this host.
        """
        checkLocal(address, True)
        address = normalise(address)
        for service, other in self._services:
            if service == serviceID and conflict(address, other):
                raise ServiceInUseError(f"somebody in this thread listens on {other} already")
        self._services[serviceID, address] = self

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

    def resolve(self, serviceID: int, address: str, user: Any) -> _Found:
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
                return _Found()
        raise NoListenerError(f"nobody in this thread serves {address}")

    def reach(self, guid: int, user: Any) -> _Found:
        """
        Find the path to the HCA of a GUID.

        @param user: Gets C{pathReady(path)} before this returns.
        @raise NoListenerError: it is not among the neighbours.
        """
        fabric = self._neighbours.fabrics.get(guid)
        if fabric is None:
            raise NoListenerError(f"there is no HCA {guid:016x} in this thread")
        user.pathReady(self._pathTo(fabric))
        return _Found()

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
        """
        @return: A new end of a path, here.
        """
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

    def ringLater(self, path: Any) -> None:
        """
        Something was published, perhaps outside of a turn: its batch must end.
        """
        self.bells.append(path)
        wanted = self.owner.wanted
        if wanted is not None:
            wanted()

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

    def arm(self) -> bool:
        """
        Have work wake the reactor from now on.

        @return: False if there is work after all.
        """
        if self.pending():
            return False
        self.asleep = True
        self.sleeps += 1
        return True

    def look(self) -> bool:
        """
        Nobody need wake the reactor any more.

        @return: Whether there is work.
        """
        self.asleep = False
        return self.pending()

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

    def unsent(self) -> bool:
        """
        See L{IFabric}.
        """
        return any(path.unsent() for path in self.paths())

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
        """
        Nobody finds this HCA any more.
        """
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
