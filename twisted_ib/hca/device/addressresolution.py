"""
Address resolution: the path to the HCA that a GID names, for queue pairs and datagrams.

Connection management resolves a path by service.  Verbs programs that exchange GIDs and queue pair numbers by
themselves have no service: both ends bring their queue pairs to RTR, in any order, and the two HCAs agree on
one path by a rule (L{AddressResolution.find}).

Only the GID made of the GUID leads to one HCA.  A host's addresses, which the GID table has too, belong to
all its HCAs.  Where peers are IP addresses the fabric knows the path to each GID, and the sender of each
datagram.

Queue pairs whose path cannot be found yet wait, for an answer, a call, or the next attempt (L{PendingPaths}).
"""

from __future__ import annotations

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
    QueuePairError,
    ResourceLimitError,
    SharedGIDError,
)
from twisted_ib.hca.base.states import QPState, QPType
from twisted_ib.hca.base.timers import Timer
from twisted_ib.hca.base.traits import Peers, Proof
from twisted_ib.hca.host.addresses import normalise
from twisted_ib.hca.services.address import AddressPath
from twisted_ib.hca.wire.grh import HEADER_BYTES, destination, guidGID, isMulticast
from twisted_ib.hca.wire.headers import IMMEDIATE

if TYPE_CHECKING:
    from twisted_ib.hca.queues.queuepair import QueuePair

__all__ = ["RECEIVING", "AddressResolution", "MulticastGroup", "PendingJoin", "PendingPaths", "isWaiting"]

#: HCAs whose paths are being resolved at a time for one device.
PENDING_PATHS = 4096
#: The first pause before the search for an absent HCA is repeated, in seconds.
PENDING_PATH_SECONDS = 0.02
#: The pauses double up to this, in seconds.
PENDING_PATH_SECONDS_MOST = 0.32

# IBTA vol. 1 4.1.1: the lower half of a GID is the GUID.
_GUID_MASK = (1 << 64) - 1
_LONGEST = HEADER_BYTES + IMMEDIATE.size + limits.DATAGRAM_BYTES


class MulticastGroup:
    """
    The path to all members of a multicast group.
    """

    # IBTA vol. 1 10.5.2: a datagram to a group is copied to each member; without a switch the sender makes
    # the copies.
    __slots__ = ("_device", "_members", "_ways", "alive", "gid")

    def __init__(self, device: Any, gid: int) -> None:
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
        for guid in [guid for guid in ways if guid not in members]:
            addressPaths.release(ways.pop(guid))
        for guid in members:
            if guid not in ways:
                ways[guid] = addressPaths.hold(guidGID(guid))

    def wantSpace(self, waiter: Any) -> None:
        """
        Ignored: groups have no flow control.
        """

    def wantNoSpace(self, waiter: Any) -> None:
        """
        Ignored: groups have no flow control.
        """

    def close(self) -> None:
        """
        Release the paths to the members.
        """
        self.alive = False
        self._follow(())


class AddressResolution:
    """
    The paths of one device, by GID, and its multicast groups.
    """

    def __init__(self, device: Any) -> None:
        #: Whether the device ever had UD queue pairs: then callers are asked for proof as soon as they call.
        self.takesDatagrams = False
        self._device = device
        #: The device's GUID.
        self.guid: int = device.guid
        self.timers = device.timers
        self._pendingPaths: dict[int, PendingPaths] = {}
        self._met: dict[QueuePair, PendingPaths] = {}
        #: Paths dialled by HCAs with a lower GUID, as they claim; the latest is last.
        self._callers: dict[int, list[Any]] = {}
        #: Whether the fabric has proven the claim of a path's caller.
        self._proofs: dict[Any, bool] = {}
        self._attached: dict[int, dict[QueuePair, None]] = {}
        self._groups: dict[int, MulticastGroup] = {}

    # -- GIDs

    def check(self, gid: int) -> int:
        """
        Check that a GID leads to one HCA.

        @return: its GUID; 0 where peers are IP addresses.
        @raise SharedGIDError: it is an address of this host, which all HCAs share.
        @raise NoRouteError: it is unreachable.
        """
        if self._device.traits.peers is Peers.ADDRESSES:
            # A connected queue pair has one peer: multicast is for UD only (IBTA vol. 1 10.5).
            if isMulticast(gid) or not gid:
                raise NoRouteError(f"no HCA has the GID {IPv6Address(gid)}")
            return 0
        guid = gid & _GUID_MASK
        # Before the host's addresses are asked for, as that costs system calls.
        isGUID = gid == guidGID(guid) and bool(guid)
        if isGUID and (guid == self.guid or guid in self._pendingPaths or guid in self._callers):
            return guid
        text = normalise(str(IPv6Address(gid)))
        # With Linux rxe such a GID works, as a host has one rxe device per interface; here several HCAs share
        # it, and a guess would connect the wrong process.
        if self._device.isLocal(text):
            raise SharedGIDError(
                f"GID {text} is an address of this host, which all its HCAs share: give the"
                " peer's GID with index 0, or connect by the connection manager"
            )
        if not isGUID or isMulticast(gid):
            raise NoRouteError(f"no HCA can be reached by GID {text}")
        return guid

    def reach(self, gid: int, user: Any) -> Any:
        """
        Resolve the path for datagrams to a GID.

        @param user: gets C{pathReady(path)}, perhaps before this returns, with a path or a L{MulticastGroup};
            or C{connectFailed(error)} later.
        @return: an object with C{cancel()}, or L{None} if the user was called already.
        @raise HCAError: there is no path.
        """
        if self._device.traits.peers is Peers.ADDRESSES:
            return self._device.fabric.reachGID(gid, user)
        if isMulticast(gid):
            user.pathReady(self._group(gid))
            return None
        return self._device.fabric.reach(self.check(gid), user)

    # -- queue pairs

    def resolvePath(self, queuePair: QueuePair) -> None:
        """
        Resolve the path of a queue pair in RTR that has an address vector.

        Calls C{queuePair.pathFound(path)}, perhaps before this returns.  While the peer's HCA is absent the
        search is repeated, until the queue pair leaves its state; C{queuePair.pathFailed(error)} ends it.

        @raise SharedGIDError: the GID is an address of this host.
        @raise NoRouteError: it is unreachable.
        @raise ResourceLimitError: L{PENDING_PATHS} HCAs are being resolved.
        """
        vector = queuePair.vector
        guid = self.check(vector.gid)
        # A repeated transition to RTR, after RESET, replaces the vector.
        self.leave(queuePair)
        if self._device.traits.peers is Peers.ADDRESSES:
            self._device.fabric.reachGID(vector.gid, PendingJoin(queuePair, vector))
            return
        pendingPaths = self._pendingPaths.get(guid)
        if pendingPaths is None:
            self._makeRoom()
            pendingPaths = self._pendingPaths[guid] = PendingPaths(self, guid)
        pendingPaths.waiting[queuePair] = vector
        self._met[queuePair] = pendingPaths
        pendingPaths.look()

    def _makeRoom(self) -> None:
        if len(self._pendingPaths) >= PENDING_PATHS:
            # Queue pairs that left RTR without notice do not count.
            for pendingPaths in list(self._pendingPaths.values()):
                pendingPaths.prune()
            if len(self._pendingPaths) >= PENDING_PATHS:
                raise ResourceLimitError(f"{PENDING_PATHS} HCAs are waited for already")

    def leave(self, queuePair: QueuePair) -> None:
        """
        Stop the resolution for a queue pair, if there is one.
        """
        pendingPaths = self._met.pop(queuePair, None)
        if pendingPaths is not None:
            del pendingPaths.waiting[queuePair]
            if not pendingPaths.waiting:
                pendingPaths.end()

    def ended(self, pendingPaths: PendingPaths, waiting: dict[QueuePair, Any]) -> None:
        """
        Forget a resolution that ended.
        """
        if self._pendingPaths.get(pendingPaths.guid) is pendingPaths:
            del self._pendingPaths[pendingPaths.guid]
        for queuePair in waiting:
            self._met.pop(queuePair, None)

    def find(self, guid: int, pendingPaths: PendingPaths) -> Any:
        """
        Find the path that this HCA shares with another.

        @return: the search, or L{None} if there is nothing to do until the peer calls.
        @raise HCAError: it cannot be found now.
        """
        # Two HCAs may have dialled each other, which makes two paths, and both queue pairs must use the same
        # one: a record is acknowledged and refused on the path that it came by.  So the path is one that the
        # HCA with the lower GUID has dialled; the other HCA waits to be called, and verifies the caller, as a
        # GUID is only a claim until the fabric proves it.  Equal GUIDs mean a path to this HCA itself; there
        # the queue pair with the lower number uses the end that dialled, as does one that is connected to
        # itself.
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

    def _proves(self, path: Any, guid: int) -> bool | None:
        proof = self._proofs.get(path)
        if proof is None:
            proof = self._device.fabric.proves(path, guid)
            # Only a definite answer is kept, and only for a living path, whose entry pathLost removes.
            if proof is not None and path.alive:
                self._proofs[path] = proof
            if proof is False:
                self._device.count("callers_unproven")
        return proof

    def pathAccepted(self, path: Any) -> None:
        """
        See L{IFabricOwner<twisted_ib.hca.base.interfaces.IFabricOwner>}.
        """
        guid = path.peer.guid
        # Only a lower GUID dials paths for queue pairs; others dial for connection management, which needs no
        # lookup here.
        if guid < self.guid:
            self._callers.setdefault(guid, []).append(path)
            pendingPaths = self._pendingPaths.get(guid)
            if pendingPaths is not None:
                pendingPaths.look()
        # Now, while the caller lives: it may send one datagram and exit, and a dead process proves nothing.
        if self.takesDatagrams:
            self._proves(path, guid)

    def pathLost(self, path: Any) -> None:
        """
        Forget a path.
        """
        guid = path.peer.guid
        self._proofs.pop(path, None)
        callers = self._callers.get(guid)
        if callers is not None and path in callers:
            callers.remove(path)
            if not callers:
                del self._callers[guid]

    # -- datagrams

    def datagramReceived(
        self, path: Any, opcode: int, number: int, buffer: Any, start: int, stop: int
    ) -> None:
        """
        See L{IFabricOwner<twisted_ib.hca.base.interfaces.IFabricOwner>}.
        """
        device = self._device
        # IBTA vol. 1 9.8.3: GRH and DETH precede the payload, which has at most the path MTU.
        if not HEADER_BYTES <= stop - start <= _LONGEST:
            device.count("datagrams_malformed")
            return
        # Copied once, as the buffer may be memory that the peer still writes: the check of the destination
        # and all readers must see the same bytes.
        record = bytes(buffer[start:stop])
        gid = destination(record)
        if isMulticast(gid):
            # A list: the program may attach and detach while it handles a datagram.
            targets = [queuePair for queuePair in self._attached.get(gid, ()) if takesDatagrams(queuePair)]
        else:
            target = device.queuePairs.get(number)
            targets = [target] if takesDatagrams(target) else []
        # Dropped silently, and counted: UD has no acknowledgements (IBTA vol. 1 9.8.3; Linux rxe_recv.c).
        if not targets:
            device.count("datagrams_unclaimed")
        # A datagram names its sender, and replies go there: without proof of the caller's GUID it is dropped.
        elif device.traits.proof is Proof.DIRECTORY and not self._proves(path, path.peer.guid):
            device.count("datagrams_unproven")
        else:
            for target in targets:
                target.work.responder.received(path, opcode, record, 0, len(record))

    # -- multicast

    def attach(self, queuePair: QueuePair, gid: int) -> None:
        """
        Attach a queue pair to a multicast group.  Idempotent.

        @raise QueuePairError: it is not a UD queue pair, or C{gid} is not a multicast GID.
        @raise ResourceLimitError: the device has L{limits.MULTICAST_GROUPS}, or the group
            L{limits.MULTICAST_QUEUE_PAIRS} here.
        @raise HCAError: the membership cannot be published.
        """
        if queuePair.type != QPType.UD or not isMulticast(gid):
            raise QueuePairError(f"queue pair {queuePair.number} cannot join group {gid:#x}")
        members = self._attached.get(gid)
        if members is None:
            if len(self._attached) >= limits.MULTICAST_GROUPS:
                raise ResourceLimitError(f"{limits.MULTICAST_GROUPS} multicast groups are joined")
            # Published before the queue pair is entered: if that fails there is nothing to undo.
            self._device.fabric.join(gid)
            members = self._attached[gid] = {}
        elif queuePair not in members and len(members) >= limits.MULTICAST_QUEUE_PAIRS:
            raise ResourceLimitError(f"{limits.MULTICAST_QUEUE_PAIRS} queue pairs are in that group")
        members[queuePair] = None

    def detach(self, queuePair: QueuePair, gid: int) -> None:
        """
        Undo L{attach}.

        @raise QueuePairError: it is not attached.
        """
        members = self._attached.get(gid, {})
        if queuePair not in members:
            raise QueuePairError(f"queue pair {queuePair.number} is not in group {gid:#x}")
        del members[queuePair]
        if not members:
            del self._attached[gid]
            self._device.fabric.leave(gid)

    def groupsOf(self, queuePair: QueuePair) -> list[int]:
        """
        The multicast GIDs that a queue pair is attached to.
        """
        return [gid for gid, members in self._attached.items() if queuePair in members]

    def _group(self, gid: int) -> MulticastGroup:
        group = self._groups.get(gid)
        if group is None:
            if len(self._groups) >= limits.MULTICAST_GROUPS:
                # The oldest group is evicted; its users see that it is not alive and ask again.
                self._groups.pop(next(iter(self._groups))).close()
            group = self._groups[gid] = MulticastGroup(self._device, gid)
        return group

    # -- ends

    def queuePairClosed(self, queuePair: QueuePair) -> None:
        """
        Forget a destroyed queue pair.
        """
        # A program should have detached it (ibv_detach_mcast); if not, its number must not stay in the group.
        if self._met:
            self.leave(queuePair)
        if self._attached:
            for gid in self.groupsOf(queuePair):
                self.detach(queuePair, gid)

    def close(self) -> None:
        """
        End all resolutions; the device is closing.
        """
        for pendingPaths in list(self._pendingPaths.values()):
            pendingPaths.end()
        for group in self._groups.values():
            group.close()
        self._groups.clear()


def takesDatagrams(queuePair: Any) -> bool:
    """
    Whether a queue pair, or L{None}, receives datagrams now.
    """
    return (
        queuePair is not None
        and queuePair.type == QPType.UD
        and queuePair.work is not None
        and queuePair.state in RECEIVING
    )


#: States in which a queue pair has a path, or wants one (IBTA vol. 1 10.3.1).
RECEIVING = frozenset((QPState.RTR, QPState.RTS, QPState.SQD, QPState.SQE))
#: Errors that another attempt would only repeat.
_FINAL = (DeviceError, LayoutError, PeerIdentityError, PeerRefusedError)


class PendingPaths:
    """
    The queue pairs that wait for the path to one HCA.
    """

    __slots__ = ("_paths", "_pause", "_search", "_timer", "guid", "waiting")

    def __init__(self, paths: AddressResolution, guid: int) -> None:
        self._paths = paths
        self.guid = guid
        #: Queue pair -> the address vector that it waits for.
        self.waiting: dict[QueuePair, Any] = {}
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
            search = self._paths.find(self.guid, self)
        except (HCAError, OSError) as error:
            self.connectFailed(error)
            return
        if self._search is self:
            self._search = search

    def pathReady(self, path: Any) -> None:
        """
        Give the path to all waiting queue pairs.  An exception from one does not keep it from the others; the
        first is raised at the end.
        """
        self._search = None
        twin = path.twin
        # A path to this HCA itself without its other end is being torn down.
        if not path.alive or (twin is None and self.guid == self._paths.guid):
            self.connectFailed(PathLostError("the path was lost when it was found"))
            return
        waiting = self.end()
        failure: Exception | None = None
        for queuePair, vector in waiting.items():
            # The program may have moved it to RESET or ERR, or to another vector, from within an earlier
            # callback.
            if not isWaiting(queuePair, vector):
                continue
            try:
                # Only a path from an HCA to itself has a twin, its other end.
                queuePair.pathFound(path if twin is None or queuePair.number <= queuePair.remote else twin)
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def connectFailed(self, error: Exception) -> None:
        """
        Retry later, or give up if the error is final.
        """
        self._search = None
        self.prune()
        if isinstance(error, _FINAL):
            for queuePair, vector in self.end().items():
                if isWaiting(queuePair, vector):
                    queuePair.pathFailed(error)
        elif self.waiting:
            self._stopTimer()
            # Exponential backoff: an absent HCA may come in a moment, or never.  IBTA vol. 1 has no timeout
            # for RTR.
            self._timer = self._paths.timers.start(self._pause, self.look)
            self._pause = min(2 * self._pause, PENDING_PATH_SECONDS_MOST)

    def prune(self) -> None:
        """
        Forget queue pairs that no longer wait.
        """
        for queuePair, vector in list(self.waiting.items()):
            if not isWaiting(queuePair, vector):
                self._paths.leave(queuePair)

    def end(self) -> dict[QueuePair, Any]:
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


class PendingJoin:
    """
    One queue pair that waits for the path to an IP address.
    """

    __slots__ = ("_queuePair", "_vector")

    def __init__(self, queuePair: QueuePair, vector: Any) -> None:
        self._queuePair = queuePair
        self._vector = vector

    def pathReady(self, path: Any) -> None:
        """
        Give the path to the queue pair.
        """
        if isWaiting(self._queuePair, self._vector):
            self._queuePair.pathFound(path)

    def connectFailed(self, error: Exception) -> None:
        """
        Report the failure to the queue pair.
        """
        if isWaiting(self._queuePair, self._vector):
            self._queuePair.pathFailed(error)


def isWaiting(queuePair: QueuePair, vector: Any) -> bool:
    """
    Whether a queue pair still wants the path of an address vector.
    """
    # Compared by identity: an equal vector of a later transition has a search of its own.
    return queuePair.path is None and queuePair.vector is vector and queuePair.state in RECEIVING
