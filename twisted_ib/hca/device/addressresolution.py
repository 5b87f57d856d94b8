"""
Which path a queue pair or a datagram takes to the HCA that a GID names.

Connection management finds a path by asking for a service.  A program that exchanges GIDs
and queue pair numbers by itself, as verbs programs do, asks for neither: both ends just
bring their queue pairs to RTR, whichever comes first.  Two HCAs may have dialled each other,
which makes two paths, and the two queue pairs must be on the two ends of one: what one sends
on a path is acknowledged and refused there.  So both keep to a rule:

  - the path is one that the HCA with the lower GUID has dialled;
  - the other waits to be called, and looks at who calls: a GUID is what a process says of
    itself, until the fabric proves it;
  - of a path from an HCA to itself, the queue pair with the lower number takes the end
    that dialled.  One that is connected to itself takes that end too.

Only the GID of the GUID leads to an HCA.  A host's addresses, which the GID table has too,
belong to all HCAs of the host.  Where peers are IP addresses there is no such rule: the fabric
knows the path to each GID, and who has sent a datagram.

A datagram says who sent it, and an answer goes there: what comes from a caller who has not
proven to be who it says is dropped.

Queue pairs that wait until the path to their peer's HCA is there.

The rule by which two HCAs agree on a path is in L{twisted_ib.hca.device.addressresolution}; here is the
waiting: for an answer, for a call, or for another attempt.
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
from twisted_ib.hca.host.addresses import normalise
from twisted_ib.hca.services.address import Departure
from twisted_ib.hca.wire.grh import HEADER_BYTES, destination, guidGID, isMulticast
from twisted_ib.hca.wire.headers import IMMEDIATE

if TYPE_CHECKING:
    from twisted_ib.hca.queues.queuepair import QueuePair

__all__ = ["RECEIVING", "AddressResolution", "MulticastGroup", "PendingJoin", "PendingPaths", "isWaiting"]

#: HCAs that queue pairs of one device wait to meet.
MEETINGS = 4096
#: The first pause of a queue pair that looks for an HCA which is not there, in seconds.
MEETING_SECONDS = 0.02
#: The pauses double up to this.
MEETING_SECONDS_MOST = 0.32

_GUID_MASK = (1 << 64) - 1
_LONGEST = HEADER_BYTES + IMMEDIATE.size + limits.DATAGRAM_BYTES


class MulticastGroup:
    """
    The way to all members of a multicast group, in the place of a path.

    @ivar gid: the group's.
    @ivar alive: whether it is still to be used.
    """

    __slots__ = ("_device", "_members", "_ways", "alive", "gid")

    def __init__(self, device: Any, gid: int) -> None:
        self._device = device
        self.gid = gid
        self.alive = True
        self._members: tuple[int, ...] = ()
        self._ways: dict[int, Departure] = {}

    def post(self, word: int, header: bytes, payload: Any, length: int) -> bool:
        """
        Send a datagram to every member; whoever has no room loses it.

        @return: True.
        """
        device = self._device
        try:
            members = device.fabric.members(self.gid)
        except HCAError:
            members = self._members
            device.count("groups_unread")
        if members is not self._members:
            self._follow(members)
        for way in list(self._ways.values()):
            way.send(word, header, payload, length)
        return True

    def _follow(self, members: tuple[int, ...]) -> None:
        departures, ways = self._device.departures, self._ways
        self._members = members
        for guid in [guid for guid in ways if guid not in members]:
            departures.release(ways.pop(guid))
        for guid in members:
            if guid not in ways:
                ways[guid] = departures.hold(guidGID(guid))

    def wantSpace(self, waiter: Any) -> None:
        """
        Nobody waits for a group.
        """

    def wantNoSpace(self, waiter: Any) -> None:
        """
        Nobody waits for a group.
        """

    def close(self) -> None:
        """
        Use it no more.
        """
        self.alive = False
        self._follow(())


class AddressResolution:
    """
    The paths of one device, by GID, and its multicast groups.

    @ivar guid: the device's GUID.
    @ivar timers: the device's.
    @ivar takesDatagrams: whether the device ever had queue pairs of datagrams: then callers
        are asked for their proof while they live, as one may send a datagram and go.
    """

    def __init__(self, device: Any) -> None:
        self.takesDatagrams = False
        self._device = device
        self.guid: int = device.guid
        self.timers = device.timers
        self._meetings: dict[int, PendingPaths] = {}
        self._met: dict[QueuePair, PendingPaths] = {}
        #: Paths that HCAs with a lower GUID, as they say, have dialled; the latest is last.
        self._callers: dict[int, list[Any]] = {}
        #: Of those, which are proven to be what they say and which not.
        self._proofs: dict[Any, bool] = {}
        self._attached: dict[int, dict[QueuePair, None]] = {}
        self._groups: dict[int, MulticastGroup] = {}

    # -- GIDs

    def check(self, gid: int) -> int:
        """
        Whether a GID leads to one HCA.

        @return: its GUID, 0 where peers are IP addresses.
        @raise SharedGIDError: it is an address of this host, which all HCAs have.
        @raise NoRouteError: it leads nowhere from here.
        """
        if self._device.addressed:
            if isMulticast(gid) or not gid:
                raise NoRouteError(f"no HCA has the GID {IPv6Address(gid)}")
            return 0
        guid = gid & _GUID_MASK
        isGUID = gid == guidGID(guid) and bool(guid)
        if isGUID and (guid == self.guid or guid in self._meetings or guid in self._callers):
            return guid
        text = normalise(str(IPv6Address(gid)))
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
        Find the way for datagrams to a GID.

        @param user: gets C{pathReady(path)}, perhaps before this returns, with a path or a
            L{MulticastGroup}; or C{connectFailed(error)} later.

        @return: something with C{cancel()}, or L{None} if the user has it already.
        @raise HCAError: there is none.
        """
        if self._device.addressed:
            return self._device.fabric.reachGID(gid, user)
        if isMulticast(gid):
            user.pathReady(self._group(gid))
            return None
        return self._device.fabric.reach(self.check(gid), user)

    # -- meeting

    def meet(self, queuePair: QueuePair) -> None:
        """
        Find the path for a queue pair in RTR that has an address vector.

        It is given by C{queuePair.pathFound(path)}, perhaps before this returns.  While the
        peer's HCA is not there it is looked for again and again, until the queue pair leaves
        its state; C{queuePair.pathFailed(error)} says that this is given up.

        @raise SharedGIDError: the GID is an address of this host.
        @raise NoRouteError: it leads nowhere from here.
        @raise ResourceLimitError: L{MEETINGS} HCAs are waited for.
        """
        vector = queuePair.vector
        guid = self.check(vector.gid)
        self.leave(queuePair)
        if self._device.addressed:
            self._device.fabric.reachGID(vector.gid, PendingJoin(queuePair, vector))
            return
        pendingPaths = self._meetings.get(guid)
        if pendingPaths is None:
            self._makeRoom()
            pendingPaths = self._meetings[guid] = PendingPaths(self, guid)
        pendingPaths.waiting[queuePair] = vector
        self._met[queuePair] = pendingPaths
        pendingPaths.look()

    def _makeRoom(self) -> None:
        """
        One HCA more is to be waited for.

        @raise ResourceLimitError: there are enough.
        """
        if len(self._meetings) >= MEETINGS:
            for pendingPaths in list(self._meetings.values()):
                pendingPaths.prune()
            if len(self._meetings) >= MEETINGS:
                raise ResourceLimitError(f"{MEETINGS} HCAs are waited for already")

    def leave(self, queuePair: QueuePair) -> None:
        """
        A queue pair does not wait any more; harmless if it did not.
        """
        pendingPaths = self._met.pop(queuePair, None)
        if pendingPaths is not None:
            del pendingPaths.waiting[queuePair]
            if not pendingPaths.waiting:
                pendingPaths.end()

    def ended(self, pendingPaths: PendingPaths, waiting: dict[QueuePair, Any]) -> None:
        """
        Nobody waits in a meeting any more.
        """
        if self._meetings.get(pendingPaths.guid) is pendingPaths:
            del self._meetings[pendingPaths.guid]
        for queuePair in waiting:
            self._met.pop(queuePair, None)

    def find(self, guid: int, pendingPaths: PendingPaths) -> Any:
        """
        Find the path that this HCA shares with another, or none yet.

        @return: the search, or L{None} if there is nothing to do until somebody calls.
        @raise HCAError: it cannot be found now.
        """
        if guid >= self.guid:
            return self._device.fabric.reach(guid, pendingPaths)
        unknown = False
        for path in reversed(self._callers.get(guid, ())):
            proof = self._proves(path, guid)
            if proof:
                pendingPaths.pathReady(path)
                return None
            unknown = unknown or proof is None
        if unknown:
            raise PathLostError(f"it cannot be found out now who HCA {guid:016x} is")
        return None

    def _proves(self, path: Any, guid: int) -> bool | None:
        """
        Whether a path's caller is who it says; the fabric is asked once.
        """
        proof = self._proofs.get(path)
        if proof is None:
            proof = self._device.fabric.proves(path, guid)
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
        if guid < self.guid:
            self._callers.setdefault(guid, []).append(path)
            pendingPaths = self._meetings.get(guid)
            if pendingPaths is not None:
                pendingPaths.look()
        if self.takesDatagrams:
            self._proves(path, guid)

    def pathLost(self, path: Any) -> None:
        """
        A path is gone.
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
        if not HEADER_BYTES <= stop - start <= _LONGEST:
            device.count("datagrams_malformed")
            return
        # Once, as it may lie in memory that the peer writes: who gets it and what they read
        # must not differ.
        record = bytes(buffer[start:stop])
        gid = destination(record)
        if isMulticast(gid):
            # A program may attach and detach over what it gets.
            targets = [queuePair for queuePair in self._attached.get(gid, ()) if takesDatagrams(queuePair)]
        else:
            target = device.queuePairs.get(number)
            targets = [target] if takesDatagrams(target) else []
        if not targets:
            device.count("datagrams_unclaimed")
        elif not (device.addressed or self._proves(path, path.peer.guid)):
            device.count("datagrams_unproven")
        else:
            for target in targets:
                target.work.responder.received(path, opcode, record, 0, len(record))

    # -- multicast

    def attach(self, queuePair: QueuePair, gid: int) -> None:
        """
        Have a queue pair get what is sent to a multicast group.  Harmless if it does.

        @raise QueuePairError: it is not of datagrams, or that is no group.
        @raise ResourceLimitError: the device has L{limits.MULTICAST_GROUPS}, or the group
            L{limits.MULTICAST_QUEUE_PAIRS} here.
        @raise HCAError: others would not find this HCA.
        """
        if queuePair.type != QPType.UD or not isMulticast(gid):
            raise QueuePairError(f"queue pair {queuePair.number} cannot join group {gid:#x}")
        members = self._attached.get(gid)
        if members is None:
            if len(self._attached) >= limits.MULTICAST_GROUPS:
                raise ResourceLimitError(f"{limits.MULTICAST_GROUPS} multicast groups are joined")
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
        @return: the multicast GIDs that a queue pair is attached to.
        """
        return [gid for gid, members in self._attached.items() if queuePair in members]

    def _group(self, gid: int) -> MulticastGroup:
        """
        The way to a group.  Beyond L{limits.MULTICAST_GROUPS} the oldest is given up; whoever
        uses it asks again.
        """
        group = self._groups.get(gid)
        if group is None:
            if len(self._groups) >= limits.MULTICAST_GROUPS:
                self._groups.pop(next(iter(self._groups))).close()
            group = self._groups[gid] = MulticastGroup(self._device, gid)
        return group

    # -- ends

    def queuePairClosed(self, queuePair: QueuePair) -> None:
        """
        A queue pair is destroyed.
        """
        if self._met:
            self.leave(queuePair)
        if self._attached:
            for gid in self.groupsOf(queuePair):
                self.detach(queuePair, gid)

    def close(self) -> None:
        """
        The device closes: nothing is looked for any more.
        """
        for pendingPaths in list(self._meetings.values()):
            pendingPaths.end()
        for group in self._groups.values():
            group.close()
        self._groups.clear()


def takesDatagrams(queuePair: Any) -> bool:
    """
    @return: Whether a queue pair, or L{None}, gets datagrams now.
    """
    return (
        queuePair is not None
        and queuePair.type == QPType.UD
        and queuePair.work is not None
        and queuePair.state in RECEIVING
    )


#: States in which a queue pair has a path, or wants one.
RECEIVING = frozenset((QPState.RTR, QPState.RTS, QPState.SQD, QPState.SQE))
#: What does not get better by trying again.
_FINAL = (DeviceError, LayoutError, PeerIdentityError, PeerRefusedError)


class PendingPaths:
    """
    The queue pairs that wait for the path to one HCA.

    @ivar guid: of that HCA.
    @ivar waiting: the queue pairs, each with the address vector that it waits for.
    """

    __slots__ = ("_paths", "_pause", "_search", "_timer", "guid", "waiting")

    def __init__(self, paths: AddressResolution, guid: int) -> None:
        self._paths = paths
        self.guid = guid
        self.waiting: dict[QueuePair, Any] = {}
        self._pause = MEETING_SECONDS
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
            self._pause = min(2 * self._pause, MEETING_SECONDS_MOST)

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
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()


class PendingJoin:
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
