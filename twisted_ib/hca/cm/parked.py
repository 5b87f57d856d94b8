"""
Half-open connections as octets.

Anybody can put any source address on a REQ.  Until somebody shows with our communication id that the REP has
come to that address, octets stand for a connection and for all that its user knows of it: a few hundred,
where the objects take three times as many.  They are made again when there is news: an RTU, an MRA, a REJ, a
DREQ, data, the end of the wait.  Repeated REQs are answered without them.

As Linux keeps a request socket and no connection for a SYN (RFC 4987 section 3.5, "SYN cache").  A SYN cookie
(section 3.6) has no counterpart: our id, queue pair number and starting PSN have 68 bits to choose, and what
the REQ says and nothing repeats are the peer's number, its PSN and up to 92 octets of private data.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import inf
from struct import Struct
from typing import TYPE_CHECKING, Final

from twisted_ib.hca.cm.machine import Connection
from twisted_ib.hca.cm.peer import Peer
from twisted_ib.hca.cm.states import Input, State
from twisted_ib.hca.cm.timers import answering
from twisted_ib.hca.wire.cm.messages import REP, REQ, timeoutSeconds

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import IPeerPath
    from twisted_ib.hca.cm.admission import HalfOpenLimit
    from twisted_ib.hca.cm.table import ConnectionTable
    from twisted_ib.hca.connection.interfaces import IConnection, ParkedUser
    from twisted_ib.hca.wire.cm.messages import DREP, DREQ, LAP, MRA, REJ, RTU
    from twisted_ib.structs import Packed

#: Half-open connections of one source that are looked through; more have a dictionary.
CM_PARKED_LISTED = 16
#: Seconds for each that is parked, between two looks at all of them: it bounds the time that looking takes,
#: as their deadlines have no queue.
CM_PARKED_LOOK_SECONDS = 1e-5

#: CA GUID, communication id and queue pair number of the peer, retries and those that are left, codes of the
#: period and of the path's timeout, octets of the REP; the deadline.
_FIELDS: Final[Packed[tuple[int, int, int, int, int, int, int, int, float]]] = Struct(">QII5Bd")
_LENGTH: Final = 7
_DEADLINE: Final = 8
#: Of a REP: our communication id and queue pair number.
_NUMBERS: Final[Packed[tuple[int, int]]] = Struct(">I8xI")
#: In keys by the peer's queue pair numbers, whose other keys are its communication ids.
_MARK: Final = 1 << 32
_CODES: Final = {timeoutSeconds(code): code for code in range(32)}


class Parked:
    """
    A connection whose REP was sent, as octets.

    @ivar name: the name of its source.
    @ivar listener: what makes its user again.
    @ivar record: the rest.
    """

    __slots__ = ("listener", "name", "record")

    def __init__(self, name: int, listener: ParkedUser, record: bytes) -> None:
        self.name, self.listener, self.record = name, listener, record

    @property
    def localID(self) -> int:
        """
        Our communication id.
        """
        return self.numbers[0]

    @property
    def remoteID(self) -> int:
        """
        The peer's communication id.
        """
        return _FIELDS.unpack_from(self.record)[1]

    @property
    def deadline(self) -> float:
        """
        When the wait for the RTU ends, or the REP is repeated.
        """
        return _FIELDS.unpack_from(self.record)[_DEADLINE]

    @property
    def since(self) -> float:
        """
        When the REP was sent; long ago, if it was repeated.
        """
        fields = _FIELDS.unpack_from(self.record)
        return fields[_DEADLINE] - timeoutSeconds(fields[5]) if fields[4] else -inf

    @property
    def reply(self) -> bytes:
        """
        The REP, without zeros at its end.
        """
        size = _FIELDS.size
        return self.record[size : size + _FIELDS.unpack_from(self.record)[_LENGTH]]

    @property
    def kept(self) -> bytes:
        """
        That of its user, as it was given.
        """
        return self.record[_FIELDS.size + _FIELDS.unpack_from(self.record)[_LENGTH] :]

    @property
    def numbers(self) -> tuple[int, int]:
        """
        Our communication id and queue pair number.
        """
        localID, word = _NUMBERS.unpack(self.reply[: _NUMBERS.size].ljust(_NUMBERS.size, b"\0"))
        return localID, word >> 8


class ParkedConnections:
    """
    Those of one table whose sources can be forged, and have names: see
    L{Parking<twisted_ib.hca.connection.interfaces.Parking>}.

    @ivar count: how many there are.
    @ivar ofListener: the same by listener.
    @ivar look: when L{tick} should be called next, or L{None}: no deadline is before it.
    @ivar proposal: makes what C{IPeerPath.prepareReply} has returned of its octets.
    """

    def __init__(
        self, table: ConnectionTable, connections: dict[int, Connection], peers: dict[object, Peer]
    ) -> None:
        """
        @param connections: the table's, by our communication ids.
        @param peers: the table's, by sources.
        """
        self._table, self._connections, self._peers = table, connections, peers
        self.count = 0
        self.limit: HalfOpenLimit | None = None
        self.nameOf: Callable[[object], int] = id
        self.sourceOf: Callable[[int], IPeerPath] | None = None
        self.proposal: Callable[[bytes], bytes] = bytes
        self.ofListener: dict[ParkedUser, int] = {}
        # By the names of sources: the only one, a few, or many by ids and by marked queue pair numbers.
        self._sources: dict[int, Parked | list[Parked] | dict[int, Parked]] = {}
        self.look: float | None = None

    def begin(
        self,
        nameOf: Callable[[object], int],
        sourceOf: Callable[[int], IPeerPath],
        proposal: Callable[[bytes], bytes],
    ) -> None:
        self.nameOf, self.sourceOf, self.proposal = nameOf, sourceOf, proposal

    def _held(self, source: object) -> Parked | list[Parked] | dict[int, Parked] | None:
        return self._sources.get(self.nameOf(source)) if self.count else None

    def of(self, name: int) -> Collection[Parked]:
        """
        @return: all of one source, the oldest first.
        """
        held = self._sources.get(name)
        if held is None:
            return ()
        if isinstance(held, Parked):
            return (held,)
        return held if isinstance(held, list) else dict.fromkeys(held.values())

    def halfOpens(self, source: object) -> int:
        """
        @return: how many there are of a source.
        """
        held = self._held(source)
        if held is None or isinstance(held, Parked):
            return held is not None
        return len(held) if isinstance(held, list) else len(held) // 2

    def oldest(self, source: object) -> Parked | None:
        """
        @return: the first of a source.
        """
        held = self._held(source)
        if held is None or isinstance(held, Parked):
            return held
        return held[0] if isinstance(held, list) else next(iter(held.values()))

    def find(self, source: object, remoteID: int, number: int = -1) -> Parked | None:
        """
        @param remoteID: the communication id of a REQ.
        @param number: its queue pair number.
        @return: the connection of such a REQ of a source, or one with that number.
        """
        held = self._held(source)
        if isinstance(held, dict):
            return held.get(remoteID) or held.get(_MARK | number)
        found = None
        for parked in () if held is None else (held,) if isinstance(held, Parked) else held:
            fields = _FIELDS.unpack_from(parked.record)
            if fields[1] == remoteID:
                return parked
            if fields[2] == number:
                found = parked
        return found

    def park(self, connection: IConnection, kept: bytes) -> None:
        if not isinstance(connection, Connection):
            return
        limit, output, when = self.limit, connection.output, connection.deadline
        isAwaiting = connection.state is State.REP_SENT and output is not None and when is not None
        if limit is None or self.sourceOf is None or not isAwaiting:
            return
        assert output is not None and when is not None
        period, ackSeconds, retries = connection.timing
        record = _FIELDS.pack(
            *(connection.remoteCAGUID, connection.remoteID, connection.remoteQPN, retries),
            *(connection.retriesLeft, _CODES[period], _CODES[ackSeconds], len(output)),
            when,
        )
        name, listener = self.nameOf(connection.destination), connection.listener
        parked = Parked(name, listener, record + output + kept)
        self._table.disarm(connection)
        del self._connections[connection.localID]
        self._table.accepted[connection.localQPN] = parked
        limit.replace(connection, parked)
        peer: Peer = connection.peer
        if peer.only is None:
            del peer.halfOpen[peer.key(connection.remoteCAGUID, connection.remoteID)]
        peer.forget(connection)
        if not peer.isNeeded():
            self._peers.pop(connection.destination, None)
        # Each refers to the other.
        connection.user = None
        held = self._sources.get(name)
        if held is None:
            self._sources[name] = parked
        elif isinstance(held, Parked):
            self._sources[name] = [held, parked]
        elif isinstance(held, list) and len(held) < CM_PARKED_LISTED:
            held.append(parked)
        else:
            if isinstance(held, list):
                former, held = held, {}
                self._sources[name] = held
                for each in former:
                    _, remoteID, number, *_ = _FIELDS.unpack_from(each.record)
                    held[remoteID] = held[_MARK | number] = each
            held[connection.remoteID] = held[_MARK | connection.remoteQPN] = parked
        self.look = when if self.look is None else min(self.look, when)
        self.count += 1
        self.ofListener[listener] = self.ofListener.get(listener, 0) + 1

    def _remove(self, parked: Parked) -> None:
        name = parked.name
        held = self._sources[name]
        if isinstance(held, list):
            held.remove(parked)
        elif isinstance(held, dict):
            _, remoteID, number, *_ = _FIELDS.unpack_from(parked.record)
            del held[remoteID], held[_MARK | number]
        if isinstance(held, Parked) or not held:
            del self._sources[name]
        self.count -= 1
        if not self.count:
            self.look = None
        left = self.ofListener.pop(parked.listener) - 1
        if left:
            self.ofListener[parked.listener] = left

    def resume(self, found: Connection | Parked) -> Connection:
        """
        @return: the connection, which awaits the RTU if it was parked.
        """
        if not isinstance(found, Parked):
            return found
        table, sourceOf, limit = self._table, self.sourceOf, self.limit
        assert sourceOf is not None and limit is not None
        self._remove(found)
        guid, remoteID, number, most, left, period, ack, _, when = _FIELDS.unpack_from(found.record)
        localID, localQPN = found.numbers
        source = sourceOf(found.name)
        peer = self._peers.get(source)
        if peer is None:
            peer = self._peers[source] = Peer(table, source)
        connection = Connection(peer, localID, answering(ack, period, most))
        connection.retriesLeft = left
        connection.localQPN, connection.output, connection.state = localQPN, found.reply, State.REP_SENT
        connection.since, connection.listener = found.since, found.listener
        peer.know(connection, REQ(localCommunicationID=remoteID, localCAGUID=guid, localQPN=number))
        if peer.only is None:
            if not peer.halfOpen:
                peer.halfOpen = {}
            peer.halfOpen[peer.key(guid, remoteID)] = connection
        self._connections[localID] = table.accepted[localQPN] = connection
        limit.replace(connection, connection)
        table.arm(connection, when)
        found.listener.resumed(connection, localQPN, found.kept)
        return connection

    def resumeAll(self, listener: ParkedUser | None = None, name: int | None = None) -> None:
        if self.count and self.limit is not None:
            for parked in self.limit.parked() if name is None else tuple(self.of(name)):
                if listener is None or parked.listener is listener:
                    self.resume(parked)

    def isOld(self, source: object, message: REQ, now: float) -> bool:
        """
        A REQ came: one with its id answers it again, and one with its queue pair number, or with its id of
        another HCA, gives way to it.

        @return: whether it was answered.
        """
        parked = self.find(source, message.localCommunicationID, message.localQPN)
        if parked is None:
            return False
        guid, remoteID, *_ = _FIELDS.unpack_from(parked.record)
        if (guid, remoteID) == (message.localCAGUID, message.localCommunicationID):
            self._table.counters["repeatedREQ"] += 1
            self._repeat(parked)
            return True
        # The old attempt was never confirmed, so a third party may have forged it.
        self._table.counters["stale"] += 1
        self.resume(parked).feed(Input.EXHAUSTED, None, now)
        return self.isOld(source, message, now)

    def giveWay(self, source: object, number: int, now: float) -> None:
        """
        A connection of ours to a source has got a queue pair number there: none that is parked keeps it.
        """
        while (parked := self.find(source, 0, number)) is not None:
            self._table.counters["stale"] += 1
            self.resume(parked).feed(Input.EXHAUSTED, None, now)

    def claimed(
        self, source: object, message: REP | REJ | MRA | RTU | DREQ | DREP | LAP
    ) -> Connection | None:
        """
        @return: the connection of a message of a source that has both ids.
        """
        limit = self.limit
        parked = limit.at(message.remoteCommunicationID) if self.count and limit is not None else None
        if not isinstance(parked, Parked) or parked.remoteID != message.localCommunicationID:
            return None
        return self.resume(parked) if parked.name == self.nameOf(source) else None

    def givenUp(self, source: object, guid: int, remoteID: int) -> Connection | None:
        """
        @return: the connection of a source that has no other id for it.
        """
        parked = self.find(source, remoteID)
        if parked is None or _FIELDS.unpack_from(parked.record)[:2] != (guid, remoteID):
            return None
        return self.resume(parked)

    def awaited(self, number: int, isFrom: Callable[[IPeerPath], bool] | None = None) -> Connection | None:
        """
        @param number: our queue pair number.
        @param isFrom: told a source, returns whether it is the one that is meant.
        @return: the connection that awaits an RTU.
        """
        found = self._table.accepted.get(number)
        if found is None:
            return None
        if isinstance(found, Parked):
            assert self.sourceOf is not None
            source = self.sourceOf(found.name)
        else:
            source = found.destination
        if isFrom is not None and not isFrom(source):
            return None
        return self.resume(found)

    def _repeat(self, parked: Parked) -> None:
        table, sourceOf = self._table, self.sourceOf
        assert sourceOf is not None
        table.send((sourceOf(parked.name), REP.attribute, parked.reply.ljust(table.padded, b"\0")))

    def tick(self, now: float) -> None:
        """
        Repeat and give up what is due.
        """
        if self.look is None or now < self.look:
            return
        soonest, counters, limit = inf, self._table.counters, self.limit
        assert limit is not None
        for parked in limit.parked():
            fields = _FIELDS.unpack_from(parked.record)
            when = fields[_DEADLINE]
            if when <= now and fields[4]:
                # One repeat, then as long as all would take: see _retryReply.
                counters["retransmitted"] += 1
                when = now + timeoutSeconds(fields[5]) * fields[4]
                record = _FIELDS.pack(*fields[:4], 0, *fields[5:_DEADLINE], when)
                parked.record = record + parked.record[_FIELDS.size :]
                self._repeat(parked)
            elif when <= now:
                counters["unreachable"] += 1
                self.resume(parked).feed(Input.EXHAUSTED, None, now)
                continue
            soonest = min(soonest, when)
        if self.count:
            self.look = max(soonest, now + self.count * CM_PARKED_LOOK_SECONDS)
