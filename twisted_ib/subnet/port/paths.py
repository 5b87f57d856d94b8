"""
Paths between the ports of a subnet.

Records travel over the paths of another fabric, at no cost of the subnet.  A queue pair whose way there and
back is gone, or whose peer is not in its partition, stands in its path's table as L{Unreachable}: its peer is
told that nobody has its number, and repeats until its retries are used up, as it would on a wire.

On a wire each packet has a P_Key.  Here each end tells the other that of a queue pair once, in front of the
first of its records, and again when it changes.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from attrs import frozen

from twisted_ib import limits
from twisted_ib.hca.base.operation import ABSENT, GSI_QPN, RESPONSES, RESUME, SMI_QPN
from twisted_ib.hca.base.partition import matches
from twisted_ib.hca.base.port import KeyViolation
from twisted_ib.hca.connection.request import GID_BYTES, PathRecord
from twisted_ib.hca.fabric.base.neighbours import PeerIdentity
from twisted_ib.hca.fabric.base.path import Refusing
from twisted_ib.hca.queues.streamqueuepair import RecordReceiver
from twisted_ib.hca.wire.headers import MAD_BYTES, QPN_MASK
from twisted_ib.hca.wire.opcodes import UNRELIABLE

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import BoundQueuePair, Buffer
    from twisted_ib.hca.connection import ConnectRequest
    from twisted_ib.hca.fabric.base.path import RecordPath as _Path
    from twisted_ib.hca.queues.streamqueuepair import StreamQueuePair
    from twisted_ib.structs import Packed
    from twisted_ib.subnet.port.fabric import Records, SubnetFabric
else:
    _Path = object

#: A record for queue pair 0, which nothing else resumes: the number of a queue pair of the sender, its P_Key.
_MEMBERSHIP: Final = RESUME << 24 | SMI_QPN
_MEMBER: Final[Packed[tuple[int, int]]] = Struct("<IH2x")

#: The source queue pair in a DETH, from the end of the headers of a MAD.
_SOURCE: Final = slice(-MAD_BYTES - 4, -MAD_BYTES)


class HasPorts(Protocol):
    """
    The other ports of a subnet, as a port knows them.
    """

    def has(self, guid: int) -> bool:
        """
        @return: whether the port with a GUID is that of an HCA.
        """

    def lidOf(self, guid: int) -> int:
        """
        @return: the first LID of the port with a GUID; 0 if it has none.
        """

    def connects(self, guid: int, partition: int) -> bool:
        """
        @return: whether both ports reach each other, in a partition of both.
        """


@frozen
class SubnetPeer(PeerIdentity):
    """
    The device at the other end of a path.

    @ivar port: this end's port.
    """

    port: HasPorts

    @property
    def lid(self) -> int:
        """
        Its first LID, as a subnet manager has set it; 0 if it is no device of the subnet.
        """
        return self.port.lidOf(self.guid)


class Unreachable(RecordReceiver):
    """
    Stands in a path's table for a queue pair that its peer does not reach.
    """

    __slots__ = ("queuePair",)

    def __init__(self, queuePair: StreamQueuePair) -> None:
        self.queuePair = queuePair

    @property
    def number(self) -> int:
        """
        The queue pair's number.
        """
        return self.queuePair.number

    @property
    def remote(self) -> int:
        """
        That of its peer.
        """
        return self.queuePair.remote

    @property
    def path(self) -> SubnetPath:
        """
        The queue pair's path.
        """
        return cast("SubnetPath", self.queuePair.path)

    def delivered(self, opcode: int, buffer: Buffer, start: int, stop: int) -> int:
        # Responses were on their way.
        if opcode in RESPONSES:
            return self.queuePair.delivered(opcode, buffer, start, stop)
        if opcode != RESUME:
            self.path.refused(self.queuePair)
        # IBTA vol. 1 9.8.2: what is unreliable is lost.
        return 0 if opcode == RESUME or opcode & UNRELIABLE else ABSENT


class _Membership:
    """
    The P_Key of a queue pair, while its path has no room for the record.
    """

    def __init__(self, path: SubnetPath, body: bytes) -> None:
        self._path = path
        self._body = body

    def resume(self) -> None:
        if not self._path.postReserved(_MEMBERSHIP, self._body, False):
            self._path.wantSpace(self)


class SubnetPath(_Path):
    """
    A path of records between two ports: to be mixed into the class of such paths.

    @cvar port: this end's port.
    @cvar violated: called with the packets that are dropped for their keys.
    @ivar members: the P_Keys that the peer has told, by its queue pairs' numbers.
    """

    port: HasPorts
    violated: Callable[[KeyViolation], None]

    def __init__(self, fabric: Records, peer: PeerIdentity, *rest: Any) -> None:
        super().__init__(fabric, peer, *rest)
        self.peer = SubnetPeer(peer.guid, peer.pid, peer.uid, peer.program, self.port)
        self.members: dict[int, int] = {}
        #: The P_Keys that the peer was told, and the numbers here, by those of the peer.
        self._told: dict[int, int] = {}
        self._numbers: dict[int, int] = {}

    def bind(self, queuePair: BoundQueuePair, message: Any = None) -> Any:
        bound = super().bind(queuePair, message)
        self._numbers[queuePair.remote] = queuePair.number
        self.modified(queuePair)
        return bound

    def unbind(self, queuePair: BoundQueuePair) -> None:
        super().unbind(queuePair)
        self._told.pop(queuePair.number, None)
        if self._numbers.get(queuePair.remote) == queuePair.number:
            del self._numbers[queuePair.remote]

    def modified(self, queuePair: BoundQueuePair) -> None:
        # Its partition may be another one.
        number, key = queuePair.number, queuePair.partition
        if self._told.get(number) != key:
            self._told[number] = key
            _Membership(self, _MEMBER.pack(number, key)).resume()
        self._follow(number)

    def unknown(self, word: int, buffer: Buffer, start: int, stop: int) -> int:
        # The peer may tell a P_Key.
        if word != _MEMBERSHIP or stop - start != _MEMBER.size:
            return super().unknown(word, buffer, start, stop)
        number, key = _MEMBER.unpack(bytes(buffer[start:stop]))
        members = self.members
        if len(members) >= limits.SUBNET_MEMBERS and number not in members:
            # The oldest: the tables of both ports are compared in any case.
            del members[next(iter(members))]
        members[number] = key
        if number in self._numbers:
            self.look(self._numbers[number])
        return 0

    def look(self, number: int) -> None:
        """
        Find out whether the peer reaches a queue pair now.
        """
        # Records that a peer published before it went are delivered, and then its path ends.
        if self.port.has(self.peer.guid):
            self._follow(number)

    def _follow(self, number: int) -> None:
        entry = self.table.get(number)
        if entry is None or number <= GSI_QPN:
            return
        # A refused requester resumes first, whether it reaches the queue pair again or not.
        isRefusing = entry.__class__ is Refusing
        stands = entry.queuePair if isRefusing else entry
        queuePair = stands.queuePair if stands.__class__ is Unreachable else stands
        mine, theirs = queuePair.partition, self.members.get(queuePair.remote)
        if self.port.connects(self.peer.guid, mine) and (theirs is None or matches(mine, theirs)):
            stands = queuePair
        elif stands is queuePair:
            stands = Unreachable(queuePair)
        if isRefusing:
            entry.queuePair = stands
        else:
            self.table[number] = stands

    def refused(self, queuePair: StreamQueuePair) -> None:
        """
        A request came for a queue pair that its peer does not reach.
        """
        mine, theirs = queuePair.partition, self.members.get(queuePair.remote)
        if theirs is not None and not matches(mine, theirs):
            owner, source = self.fabric.owner, self.peer.lid
            owner.count("packets_bad_pkey")
            ends = queuePair.remote, queuePair.number
            self.violated(KeyViolation(False, theirs, source, owner.port.lid, 0, *ends))

    def queuePairs(self) -> list[StreamQueuePair]:
        return [each.queuePair if isinstance(each, Unreachable) else each for each in super().queuePairs()]

    def prepareRequest(self, request: ConnectRequest) -> None:
        # The LIDs and GIDs of both ports.
        own, peer = self.fabric.owner, self.peer
        request.primaryPath = PathRecord(
            localLID=own.port.lid,
            remoteLID=peer.lid,
            localGID=own.gid.to_bytes(GID_BYTES, "big"),
            remoteGID=(own.port.subnetPrefix << 64 | peer.guid).to_bytes(GID_BYTES, "big"),
            subnetLocal=True,
        )


class Sender:
    """
    The sender of a MAD: a port, whatever is attached to it.

    @ivar lid: its LID.
    @cvar guid: 0: it need not be a device.
    """

    __slots__ = ("lid",)

    guid = 0

    def __init__(self, lid: int) -> None:
        self.lid = lid


class ManagementPath:
    """
    The way of MADs to a LID: through the subnet, as the managers' own, whose programs have no rings.  See
    L{IPeerPath<twisted_ib.hca.base.interfaces.IPeerPath>}.
    """

    __slots__ = ("fabric", "peer")

    alive = True

    def __init__(self, fabric: SubnetFabric, lid: int) -> None:
        self.fabric = fabric
        self.peer = Sender(lid)

    def respond(self, word: int, record: bytes, partition: int) -> bool:
        source = int.from_bytes(record[_SOURCE], "big") & QPN_MASK
        self.fabric.sendMAD(self.peer.lid, source, word & QPN_MASK, record[-MAD_BYTES:])
        return True

    def send(self, word: int, header: bytes, payload: Any, length: int) -> None:
        """
        Send a MAD, or lose it: see L{AddressPath.send<twisted_ib.hca.services.address.AddressPath.send>}.
        """
        pieces = payload if isinstance(payload, list) else [payload]
        self.respond(word, b"".join((header, *pieces)), 0)
