"""
Registries of devices within one thread that can reach each other, and the directory that reads them.

There is one for each thread, or one that is passed in.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from twisted_ib import limits
from twisted_ib.errors import NoListenerError, PathLostError, ServiceInUseError
from twisted_ib.hca.fabric.base.fabric import CompletedSearch, Fabric
from twisted_ib.hca.host.addresses import checkLocal, conflict, freePort, normalise, servedBy
from twisted_ib.hca.wire.grh import guidGID, loopbackGID
from twisted_ib.layouts import Shown
from twisted_ib.records import frozen

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import PathUser


# Here and not beside the compiled paths: of a class with slots attrs makes another, and the compiled methods
# would refuse subclasses of that.
@frozen(repr=False)
class PeerIdentity(Shown):
    """
    The peer at the other end of a path.

    @ivar guid: of its HCA.
    @ivar pid: of its process, from the kernel.
    @ivar uid: of its process, from the kernel.
    @ivar program: its name by its own account; for display only.
    """

    guid: int
    pid: int
    uid: int
    program: str

    @property
    def gid(self) -> int:
        """
        The GID of its HCA: the link-local prefix and the GUID (IBTA vol. 1 4.1.1).
        """
        return guidGID(self.guid)


class Neighbours:
    """
    Devices that can reach each other, as those of C{lo0}.

    Not locked: if they belong to several threads, every user of any of them must hold one common lock.

    @ivar services: listening fabrics, by service id and address.
    @ivar inodes: inodes of the TCP sockets that belong to such services.
    @ivar fabrics: all fabrics, by GUID.
    @ivar groups: member GUIDs, by multicast GID.
    """

    def __init__(self) -> None:
        self.services: dict[tuple[int, str], ThreadDirectory] = {}
        self.inodes: dict[tuple[int, str], int] = {}
        # Weak: a device that was dropped without close() must not stay reachable.
        self.fabrics: WeakValueDictionary[int, ThreadDirectory] = WeakValueDictionary()
        self.groups: dict[int, tuple[int, ...]] = {}

    def join(self, group: int, guid: int) -> None:
        """
        Make an HCA a member of a multicast group.
        """
        members = self.groups.get(group, ())
        if guid not in members:
            # A new tuple: IFabric.members promises the same object while nothing has changed, and callers
            # compare by identity.
            self.groups[group] = tuple(sorted((*members, guid)))

    def leave(self, group: int, guid: int) -> None:
        """
        End a membership; harmless if there is none.
        """
        members = tuple(member for member in self.groups.get(group, ()) if member != guid)
        if members:
            self.groups[group] = members
        else:
            self.groups.pop(group, None)

    def forget(self, fabric: ThreadDirectory) -> None:
        """
        Remove an HCA with its services and memberships.
        """
        guid = fabric.guid
        for key in [key for key, other in self.services.items() if other is fabric]:
            del self.services[key]
            self.inodes.pop(key, None)
        for group in [group for group, members in self.groups.items() if guid in members]:
            self.leave(group, guid)
        if self.fabrics.get(guid) is fabric:
            del self.fabrics[guid]


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.neighbours: dict[str, Neighbours] = defaultdict(Neighbours)


_ofThread = _OfThread()


def ofThisThread(name: str = "loopback") -> Neighbours:
    """
    @param name: A fabric's; by default C{lo0}'s.
    @return: The registry of the calling thread.
    """
    return _ofThread.neighbours[name]


class ThreadDirectory(Fabric):
    """
    The directory of a fabric within one thread, and its paths: peers are its L{Neighbours}.  See
    L{IHostDirectory<twisted_ib.hca.base.interfaces.IHostDirectory>}.

    @ivar hot: Always empty: while this thread polls, nothing can arrive.
    """

    hot: tuple[Any, ...] = ()
    pathClass: Any

    def __init__(self, owner: Any, guid: int, neighbours: Neighbours | None = None) -> None:
        """
        @param owner: The device, an L{IFabricOwner<twisted_ib.hca.base.interfaces.IFabricOwner>}.
        @param neighbours: The HCAs within reach; by default those of this thread.
        """
        super().__init__(owner, guid)
        self._neighbours = ofThisThread(self.name) if neighbours is None else neighbours
        self._neighbours.fabrics[guid] = self
        self._services = self._neighbours.services
        self._ends: list[Any] = []
        #: The paths that this side dialled, by GUID.
        self._paths: dict[int, Any] = {}

    # -- services

    def publish(self, serviceID: int, address: str, inode: int = 0, isOwn: bool = False) -> None:
        """
        @param isOwn: Whether the address is of this HCA alone, and so need not be one of the host.
        """
        if not isOwn:
            checkLocal(address)
        address = normalise(address)
        # The service id has the port space in it (IBTA vol. 1 annex A4 for SDP, annex A11 for the RDMA CM),
        # so services of different protocols never conflict.
        for service, other in self._services:
            if service == serviceID and conflict(address, other):
                raise ServiceInUseError(f"somebody in this thread listens on {other} already")
        self._services[serviceID, address] = self
        if inode:
            self._neighbours.inodes[serviceID, address] = inode

    def publishAny(self, prefix: int, address: str, isOwn: bool = False) -> int:
        if not isOwn:
            checkLocal(address)
        port = freePort({service - prefix for service, _ in self._services})
        self._services[prefix + port, normalise(address)] = self
        return port

    def withdraw(self, serviceID: int, address: str) -> None:
        key = serviceID, normalise(address)
        # Only our own: another HCA may have published the service since.
        if self._services.get(key) is self:
            del self._services[key]
            self._neighbours.inodes.pop(key, None)

    def resolve(self, serviceID: int, address: str, user: PathUser) -> CompletedSearch:
        checkLocal(address)
        # The exact address before a wildcard, as the kernel looks up a TCP listener (see servedBy).
        for where in servedBy(normalise(address)):
            fabric = self._services.get((serviceID, where))
            if fabric is not None:
                user.pathReady(self.pathTo(fabric))
                return CompletedSearch()
        # A CM answers a REQ for it with REJ reason 8, invalid service ID (IBTA vol. 1 12.6.7.2; Linux cm.c,
        # cm_req_handler).  Consumers report both as ECONNREFUSED.
        raise NoListenerError(f"nobody in this thread serves {address}")

    def serving(self, serviceID: int, address: str) -> list[int]:
        found = [self._services.get((serviceID, where)) for where in servedBy(normalise(address))]
        return [fabric.guid for fabric in found if fabric is not None]

    def reach(self, guid: int, user: PathUser) -> CompletedSearch:
        fabric = self._neighbours.fabrics.get(guid)
        if fabric is None:
            raise NoListenerError(f"there is no HCA {guid:016x} in this thread")
        user.pathReady(self.pathTo(fabric))
        return CompletedSearch()

    def proves(self, path: Any, guid: int) -> bool:
        # The peer's identity was made by _end in this process, so it is proof enough.
        return bool(path.peer.guid == guid)

    def join(self, group: int) -> None:
        self._neighbours.join(group, self.guid)

    def leave(self, group: int) -> None:
        self._neighbours.leave(group, self.guid)

    def guids(self, gid: int) -> tuple[set[int], set[int]]:
        return {guid for guid in self._neighbours.fabrics if loopbackGID(guid) == gid}, set()

    def members(self, group: int) -> tuple[int, ...]:
        return self._neighbours.groups.get(group, ())[: limits.MULTICAST_MEMBERS]

    # -- paths

    def pathTo(self, fabric: ThreadDirectory) -> Any:
        """
        @param fabric: One of the neighbours.
        @return: The path to its HCA, or to this one.
        """
        path = self._paths.get(fabric.guid)
        if path is None or not path.alive:
            path, other = self._end(fabric), fabric._end(self)
            self.couple(path, other)
            if fabric is self:
                # A queue pair may be connected to itself or to another one of its HCA: see RecordPath.bind.
                path.twin, other.twin = other, path
            self._paths[fabric.guid] = path
            fabric.owner.pathAccepted(other)
        return path

    def couple(self, path: Any, other: Any) -> None:
        """
        Make one path of two new ends.
        """
        raise NotImplementedError

    def _end(self, peer: ThreadDirectory) -> Any:
        program = os.path.basename(sys.argv[0] or "python")
        path = self.pathClass(self, PeerIdentity(peer.guid, os.getpid(), os.geteuid(), program))
        self._ends.append(path)
        return path

    def paths(self) -> list[Any]:
        return list(self._ends)

    def withdrawAll(self) -> None:
        """
        Leave the registry: no more paths lead here.
        """
        self._neighbours.forget(self)
        # A peer notices the end of its path in its next progress(); what it dials before leads elsewhere.
        for fabric in self._neighbours.fabrics.values():
            fabric._paths.pop(self.guid, None)

    def lose(self, path: Any, reason: PathLostError) -> None:
        """
        End a path: deliver what the peer had published, then fail what remains.
        """
        if path not in self._ends:
            return
        self._ends.remove(path)
        try:
            # As TCP delivers data before a FIN.
            path.drain()
        finally:
            path.alive = False
            self.delayed.pop(path, None)
            guid = path.peer.guid
            if self._paths.get(guid) is path:
                del self._paths[guid]
            try:
                self.owner.pathLost(path, reason)
            finally:
                path.lost(reason)
