"""
Address resolution where peers are processes of this host, each an HCA with a GUID: the path to the HCA that a
GID names, for queue pairs and datagrams.

Connection management resolves a path by service.  Verbs programs that exchange GIDs and queue pair numbers by
themselves have no service: both ends bring their queue pairs to RTR, in any order, and the two HCAs agree on
one path by a rule (L{ProcessResolution.find}).

The GID made of the GUID leads to one HCA, and so does a loopback address made of it, for programs that look
for a GID of IPv4.  A host's addresses, which the GID table has too, belong to all its HCAs.

Queue pairs whose path cannot be found yet wait, for an answer, a call, or the next attempt (L{PendingPaths}).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from ipaddress import IPv6Address
from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.errors import (
    DeviceError,
    HCAError,
    LayoutError,
    NoRouteError,
    PathLostError,
    PeerIdentityError,
    PeerRefusedError,
    ResourceLimitError,
    SharedGIDError,
)
from twisted_ib.hca.base.events import notifyAll
from twisted_ib.hca.base.timers import Timer
from twisted_ib.hca.connection.rdmacm import gidText
from twisted_ib.hca.device.addressing.resolution import Resolution, isWaiting
from twisted_ib.hca.host.addresses import isPeersAddress, localAddresses, normalise, sourceHere
from twisted_ib.hca.services.address import AddressPath
from twisted_ib.hca.wire.grh import guidGID, isLoopback, isMulticast, loopbackGID

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import DatagramPath, IPeerPath, ITwinPath, PathUser, Search, Waiter
    from twisted_ib.hca.device.addressing.resolution import IResolvingDevice
    from twisted_ib.hca.queues.queuepair import QueuePair
    from twisted_ib.hca.queues.streamqueuepair import StreamQueuePair

#: HCAs whose paths are being resolved at a time for one device.
PENDING_PATHS = 4096
#: The first pause before the search for an absent HCA is repeated, in seconds.
PENDING_PATH_SECONDS = 0.02
#: The pauses double up to this, in seconds.
PENDING_PATH_SECONDS_MOST = 0.32

# IBTA vol. 1 4.1.1: the lower half of a GID is the GUID.
_GUID_MASK = (1 << 64) - 1


class MulticastGroup:
    """
    The path to all members of a multicast group.
    """

    # IBTA vol. 1 10.5.2: a datagram to a group is copied to each member; without a switch the sender makes
    # the copies.
    __slots__ = ("_device", "_members", "_ways", "alive", "gid")

    def __init__(self, device: IResolvingDevice, gid: int) -> None:
        self._device = device
        #: The group's MGID.
        self.gid = gid
        #: Whether it may still be used.
        self.alive = True
        self._members: tuple[int, ...] = ()
        self._ways: dict[int, AddressPath] = {}

    def post(self, word: int, header: bytes, payload: Any, length: int) -> bool:
        """
        Send a datagram to every member; a member without space loses it.

        @return: True.
        """
        device = self._device
        try:
            members = device.fabric.members(self.gid)
        except HCAError:
            # The membership is published in files that may be unreadable for a moment: the last known members
            # are better than none.
            members = self._members
            device.count("groups_unread")
        # The fabric returns the same object while nothing has changed, so this is one comparison per
        # datagram.
        if members is not self._members:
            self._follow(members)
        # A copy: a send may lose a path, and with it a member.
        for way in list(self._ways.values()):
            way.send(word, header, payload, length)
        return True

    def _follow(self, members: tuple[int, ...]) -> None:
        addressPaths, ways = self._device.addressPaths, self._ways
        self._members = members
        for guid in ways.keys() - set(members):
            addressPaths.release(ways.pop(guid))
        for guid in members:
            if guid not in ways:
                ways[guid] = addressPaths.hold(guidGID(guid))

    def wantSpace(self, waiter: Waiter) -> None:
        """
        Ignored: groups have no flow control.
        """

    def wantNoSpace(self, waiter: Waiter) -> None:
        """
        Ignored: groups have no flow control.
        """

    def close(self) -> None:
        """
        Release the paths to the members.
        """
        self.alive = False
        self._follow(())


class ProcessResolution(Resolution):
    """
    The paths of one device to HCAs of this host, and its multicast groups.
    """

    sharesAddresses = True

    def __init__(self, device: IResolvingDevice) -> None:
        super().__init__(device)
        #: The device's GUID.
        self.guid: int = device.guid
        self.timers = device.timers
        self._pendingPaths: dict[int, PendingPaths] = {}
        self._met: dict[StreamQueuePair, PendingPaths] = {}
        #: Paths dialled by HCAs with a lower GUID, as they claim; the latest is last.
        self._callers: dict[int, list[Any]] = {}
        #: Whether the fabric has proven the claim of a path's caller.
        self._proofs: dict[DatagramPath, bool] = {}
        self._groups: dict[int, MulticastGroup] = {}

    # -- addresses

    def gids(self) -> list[str]:
        # IBTA vol. 1 annex A17: one entry per IP address of the host.  Read when asked for, as they come and
        # go.  Programs name slot 3 as well as 1: see traits.py.
        own = [*super().gids(), normalise(gidText(loopbackGID(self.guid)))]
        return [*own, *own, *localAddresses()]

    def sourceFor(self, address: str) -> str:
        # As over TCP: programs tell their peers apart by it.
        return sourceHere(address, int(self._device.clock()))

    def isLocal(self, address: str) -> bool:
        device = self._device
        if device.resolver is not None and device.resolver.isOwn(address):
            return True
        # The host's address list is read at most once a second: that costs a socket, and each connection
        # makes a claim.
        return isPeersAddress(address, int(device.clock()))

    def isPeers(self, path: IPeerPath, address: str) -> bool:
        resolver = self._device.resolver
        if resolver is not None and resolver.sourceFor(address):
            return bool(resolver.gidOf(address) == self.gidOf(path))
        # All processes of a host have all its addresses; the claim cannot be narrowed further.
        return self.isLocal(address)

    # -- GIDs

    def isOfGUID(self, address: str) -> bool:
        # IBTA vol. 1 4.1.1: a link-local GID is made of the GUID.  RFC 4007 section 11: with a zone it is the
        # address of an interface of this host.
        return address.startswith("fe80:") and "%" not in address

    def check(self, key: int, number: int = 0) -> int:
        # The key is a GID.
        gid = key
        guid = gid & _GUID_MASK
        # Before the host's addresses are asked for, as that costs system calls.
        isGUID = gid == guidGID(guid) and bool(guid)
        if isGUID and (guid == self.guid or guid in self._pendingPaths or guid in self._callers):
            return guid
        text = normalise(str(IPv6Address(gid)))
        if isLoopback(gid):
            made = self._ofLoopback(gid)
            if len(made) == 1:
                return made.pop()
            # Not by a queue pair of this HCA: it would take what is another's.
            if not made and text not in localAddresses():
                raise NoRouteError(f"no HCA of this host has the loopback address {text} now")
            number = 0
        # With Linux rxe such a GID works, as a host has one rxe device per interface; here several HCAs share
        # it, and a guess would connect the wrong process.  A queue pair of this HCA is reached by it, though:
        # every GID of a port's table leads to that port.
        if self.isLocal(text):
            if number in self._device.queuePairs:
                return self.guid
            raise SharedGIDError(
                f"GID {text} is an address of this host, which all its HCAs share: give the"
                " peer's GID with index 0, or connect by the connection manager"
            )
        if not isGUID or isMulticast(gid):
            raise NoRouteError(f"no HCA can be reached by GID {text}")
        return guid

    def _ofLoopback(self, gid: int) -> set[int]:
        # The GUIDs of which a loopback address may have been made.
        if loopbackGID(self.guid) == gid:
            return {self.guid}
        ours, others = self._device.fabric.guids(gid)
        # The address has 23 bits of the GUID, so an allowed user can choose another GUID that makes it.  That
        # neither leads to him nor hides an HCA that this user runs, or that this process has named.  To call
        # is no merit, as he can do that too; callers only count among the others, so that an HCA whose entry
        # has gone does not leave its address to him.
        named = {guid for guid in self._pendingPaths if loopbackGID(guid) == gid}
        others.update(guid for guid in self._callers if loopbackGID(guid) == gid)
        return ours or named or others

    def reach(self, key: int, user: PathUser) -> Search | None:
        # The key is a GID.
        if isMulticast(key):
            user.pathReady(self._group(key))
            return None
        return self._device.fabric.reach(self.check(key), user)

    def reachHCA(self, gid: int, user: PathUser) -> Search | None:
        return self._device.fabric.reach(self.check(gid), user)

    # -- queue pairs

    def resolvePath(self, queuePair: QueuePair) -> None:
        # While the peer's HCA is absent the search is repeated, until the queue pair leaves its state.
        key = self.keyOf(queuePair)
        # A repeated transition to RTR, after RESET, replaces the vector.
        self.leave(queuePair)
        pendingPaths = self._pendingPaths.get(key)
        if pendingPaths is None:
            self._makeRoom()
            pendingPaths = self._pendingPaths[key] = PendingPaths(self, key)
        pendingPaths.waiting[queuePair] = queuePair.vector
        self._met[queuePair] = pendingPaths
        pendingPaths.look()

    def keyOf(self, queuePair: StreamQueuePair) -> int:
        """
        @return: the GUID by which L{find} finds the path of a queue pair.
        @raise SharedGIDError: the GID of its vector is an address of this host.
        @raise NoRouteError: that is unreachable.
        """
        return self.check(queuePair.vector.gid, queuePair.remote)

    def pendingOf(self, guid: int) -> list[PendingPaths]:
        """
        @return: the resolutions that wait for the HCA with a GUID.
        """
        pendingPaths = self._pendingPaths.get(guid)
        return [] if pendingPaths is None else [pendingPaths]

    def _makeRoom(self) -> None:
        if len(self._pendingPaths) >= PENDING_PATHS:
            # Queue pairs that left RTR without notice do not count.
            for pendingPaths in list(self._pendingPaths.values()):
                pendingPaths.prune()
            if len(self._pendingPaths) >= PENDING_PATHS:
                raise ResourceLimitError(f"{PENDING_PATHS} HCAs are waited for already")

    def leave(self, queuePair: StreamQueuePair) -> None:
        pendingPaths = self._met.pop(queuePair, None)
        if pendingPaths is not None:
            del pendingPaths.waiting[queuePair]
            if not pendingPaths.waiting:
                pendingPaths.end()

    def ended(self, pendingPaths: PendingPaths, waiting: dict[Any, object]) -> None:
        """
        Forget a resolution that ended.
        """
        if self._pendingPaths.get(pendingPaths.key) is pendingPaths:
            del self._pendingPaths[pendingPaths.key]
        for queuePair in waiting:
            self._met.pop(queuePair, None)

    def find(self, key: int, pendingPaths: PendingPaths) -> Search | None:
        """
        Find the path that this HCA shares with another.

        @param key: see L{keyOf}.
        @return: the search, or L{None} if there is nothing to do until the peer calls.
        @raise HCAError: it cannot be found now.
        """
        # Two HCAs may have dialled each other, which makes two paths, and both queue pairs must use the same
        # one: a record is acknowledged and refused on the path that it came by.  So the path is one that the
        # HCA with the lower GUID has dialled; the other HCA waits to be called, and verifies the caller, as a
        # GUID is only a claim until the fabric proves it.  Equal GUIDs mean a path to this HCA itself; there
        # the queue pair with the lower number uses the end that dialled, as does one that is connected to
        # itself.
        guid = key
        if guid >= self.guid:
            return self._device.fabric.reach(guid, pendingPaths)
        unknown = False
        # The latest path first: an earlier one may be of a process that has died without being noticed yet.
        for path in reversed(self._callers.get(guid, ())):
            proof = self._proves(path, guid)
            if proof:
                pendingPaths.pathReady(path)
                return None
            unknown = unknown or proof is None
        if unknown:
            # An error, so that the search is repeated: the proof may be had later.
            raise PathLostError(f"it cannot be found out now who HCA {guid:016x} is")
        return None

    def isProven(self, path: DatagramPath) -> bool:
        return bool(self._proves(path, path.peer.guid))

    def _proves(self, path: DatagramPath, guid: int) -> bool | None:
        proof = self._proofs.get(path)
        if proof is None:
            proof = self._device.fabric.proves(path, guid)
            # Only a definite answer is kept, and only for a living path, whose entry pathLost removes.
            if proof is not None and path.alive:
                self._proofs[path] = proof
            if proof is False:
                self._device.count("callers_unproven")
        return proof

    def pathAccepted(self, path: IPeerPath) -> None:
        guid = path.peer.guid
        # Only a lower GUID dials paths for queue pairs; others dial for connection management, which needs no
        # lookup here.
        if guid < self.guid:
            self._callers.setdefault(guid, []).append(path)
            for pendingPaths in self.pendingOf(guid):
                pendingPaths.look()
        # Now, while the caller lives: it may send one datagram and exit, and a dead process proves nothing.
        if self.takesDatagrams:
            self._proves(path, guid)

    def pathLost(self, path: IPeerPath) -> None:
        guid = path.peer.guid
        self._proofs.pop(path, None)
        callers = self._callers.get(guid)
        if callers is not None and path in callers:
            callers.remove(path)
            if not callers:
                del self._callers[guid]

    def _group(self, gid: int) -> MulticastGroup:
        group = self._groups.get(gid)
        if group is None:
            if len(self._groups) >= limits.MULTICAST_GROUPS:
                # The oldest group is evicted; its users see that it is not alive and ask again.
                self._groups.pop(next(iter(self._groups))).close()
            group = self._groups[gid] = MulticastGroup(self._device, gid)
        return group

    # -- ends

    def queuePairClosed(self, queuePair: StreamQueuePair) -> None:
        if self._met:
            self.leave(queuePair)
        if self._attached:
            super().queuePairClosed(queuePair)

    def close(self) -> None:
        for pendingPaths in list(self._pendingPaths.values()):
            pendingPaths.end()
        for group in self._groups.values():
            group.close()
        self._groups.clear()


#: Errors that another attempt would only repeat.
_FINAL = (DeviceError, LayoutError, PeerIdentityError, PeerRefusedError)


class PendingPaths:
    """
    The queue pairs that wait for the path to one HCA: see
    L{PathUser<twisted_ib.hca.base.interfaces.roles.PathUser>}.
    """

    __slots__ = ("_paths", "_pause", "_search", "_timer", "key", "waiting")

    def __init__(self, paths: ProcessResolution, key: int) -> None:
        self._paths = paths
        #: See L{ProcessResolution.keyOf}.
        self.key = key
        #: Queue pair -> the address vector that it waits for.
        self.waiting: dict[Any, object] = {}
        self._pause = PENDING_PATH_SECONDS
        self._search: Any = None
        self._timer: Timer | None = None

    def look(self) -> None:
        """
        Search for the path, unless a search is running.
        """
        if self._search is not None:
            return
        self._stopTimer()
        # Marks the search as running: find may call back before it returns.
        self._search = self
        try:
            search = self._paths.find(self.key, self)
        except (HCAError, OSError) as error:
            self.connectFailed(error)
            return
        if self._search is self:
            self._search = search

    def pathReady(self, path: ITwinPath) -> None:
        self._search = None
        twin = path.twin
        # A path to this HCA itself without its other end is being torn down.
        if not path.alive or (twin is None and path.peer.guid == self._paths.guid):
            self.connectFailed(PathLostError("the path was lost when it was found"))
            return

        def give(queuePair: QueuePair) -> None:
            # Only a path from an HCA to itself has a twin, its other end.
            queuePair.pathFound(path if twin is None or queuePair.number <= queuePair.remote else twin)

        self._tell(give)

    def connectFailed(self, error: Exception) -> None:
        self._search = None
        self.prune()
        if isinstance(error, _FINAL):
            self._tell(lambda queuePair: queuePair.pathFailed(error))
        elif self.waiting:
            self._stopTimer()
            # Exponential backoff: an absent HCA may come in a moment, or never.  IBTA vol. 1 has no timeout
            # for RTR.
            self._timer = self._paths.timers.start(self._pause, self.look)
            self._pause = min(2 * self._pause, PENDING_PATH_SECONDS_MOST)

    def _tell(self, call: Callable[[QueuePair], None]) -> None:
        # The resolution has ended.  An earlier callback may have moved one to RESET or ERR, or to another
        # vector.
        notifyAll(
            partial(call, queuePair)
            for queuePair, vector in self.end().items()
            if isWaiting(queuePair, vector)
        )

    def prune(self) -> None:
        """
        Forget queue pairs that no longer wait.
        """
        for queuePair, vector in list(self.waiting.items()):
            if not isWaiting(queuePair, vector):
                self._paths.leave(queuePair)

    def end(self) -> dict[Any, object]:
        """
        End the resolution.

        @return: the queue pairs that waited.
        """
        self._stopTimer()
        search, self._search = self._search, None
        if search is not None and search is not self:
            search.cancel()
        waiting, self.waiting = self.waiting, {}
        self._paths.ended(self, waiting)
        return waiting

    def _stopTimer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
