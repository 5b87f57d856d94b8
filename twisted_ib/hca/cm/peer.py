"""
The state of one source of messages in a connection table, and its connections that queue pairs stand for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from twisted_ib import limits
from twisted_ib.hca.cm.machine import Connection, ConnectionContext
from twisted_ib.hca.cm.states import Event, State
from twisted_ib.hca.cm.timers import TimewaitEntry, asking
from twisted_ib.hca.cm.transitions import HALF_OPEN
from twisted_ib.hca.wire.cm.messages import REP, REQ

# Shared empty dictionaries, never written: most peers have one connection and nothing in TIMEWAIT.
_NO_CONNECTIONS: dict[int, Connection | int] = {}
_NONE_HALF_OPEN: dict[int, Connection] = {}
_NO_KEYS: dict[int, int] = {}
_ESTABLISHED = State.ESTABLISHED
# With at most 15 repeats such a one waits for a DREP no longer than all others (see L{asking}).
_LONGEST = limits.CM_ANSWER_SECONDS / 16


class Peer:
    """
    One source of messages.

    @ivar table: the connection table.
    @ivar source: the medium's name of it: a path or an address.
    @ivar calling: how many of our REQs have no answer yet: the connections without a C{remoteID}.
    @ivar only: its connection, if it has been the only one: two dictionaries of one entry are more than all
        else that a half-open connection costs, and anybody can make many.
    @ivar connections: else: L{key} of CA GUID and remote queue pair number -> connection, or our number of
        one of L{SettledConnections}.
    @ivar halfOpen: the same by remote communication id, of those that are half open.
    @ivar guid: the first CA GUID that it announced, normally the only one.
    @ivar waiting: key as in C{halfOpen} -> entries in TIMEWAIT.
    """

    # Remote ids and GUIDs are looked up per source: they are the peer's claims, and must not match a
    # connection of somebody else.
    __slots__ = ("calling", "connections", "guid", "halfOpen", "only", "source", "table", "waiting")

    def __init__(self, table: ConnectionContext, source: Any) -> None:
        self.table = table
        self.source = source
        self.calling = 0
        self.only: Connection | None = None
        self.connections = _NO_CONNECTIONS
        self.halfOpen = _NONE_HALF_OPEN
        self.waiting = _NO_KEYS
        self.guid = -1

    @property
    def destination(self) -> Any:
        """
        The same as of each L{Connection}.
        """
        return self.source

    def key(self, guid: int, number: int) -> int:
        """
        One integer for a CA GUID and a 32-bit number.
        """
        # The number itself for the usual GUID: no new integer per connection. The offset 1 keeps GUID 0
        # distinct.
        return number if guid == self.guid else guid + 1 << 32 | number

    def halfOpens(self) -> int:
        """
        @return: how many are half open.
        """
        return len(self.halfOpen) if self.only is None else HALF_OPEN[self.only.state]

    def hasShown(self) -> bool:
        """
        @return: whether one of them came up.
        """
        only = self.only
        return len(self.connections) > len(self.halfOpen) if only is None else not HALF_OPEN[only.state]

    def oldest(self) -> Connection:
        """
        @return: the first that is half open; there is one.
        """
        return next(iter(self.halfOpen.values())) if self.only is None else self.only

    def isOnly(self, key: int, number: int) -> Connection | None:
        """
        @return: C{only}, if these are its keys among C{halfOpen} or C{connections}.
        """
        only = self.only
        if only is None:
            return None
        guid = only.remoteCAGUID
        isIt = self.key(guid, only.remoteQPN) == number
        return only if isIt or (HALF_OPEN[only.state] and self.key(guid, only.remoteID) == key) else None

    def know(self, connection: Connection, message: REQ | REP) -> None:
        """
        Enter a connection under the ids that its REQ or REP announced.
        """
        guid, remoteID, number = message.localCAGUID, message.localCommunicationID, message.localQPN
        if self.guid < 0:
            self.guid = guid
        if number == remoteID:
            # So it is between processes: one integer for both.
            number = message.localQPN = remoteID
        connection.remoteID, connection.remoteQPN = remoteID, number
        if guid == self.guid:
            guid = self.guid
        else:
            number = self.key(guid, number)
        connection.remoteCAGUID = guid
        if self.only is not None:
            self._spread(self.only)
        elif not self.connections:
            self.only = connection
            return
        self.connections[number] = connection

    def _spread(self, first: Connection) -> None:
        self.only = None
        self.connections = {self.key(first.remoteCAGUID, first.remoteQPN): first}
        if HALF_OPEN[first.state]:
            self.halfOpen = {self.key(first.remoteCAGUID, first.remoteID): first}

    def known(self) -> list[Connection]:
        """
        @return: all that are objects, but for those without a C{remoteID}.
        """
        every = self.only, *self.connections.values()
        return [each for each in every if isinstance(each, Connection)]

    def isNeeded(self) -> bool:
        """
        @return: whether there is anything to be known of it.
        """
        return bool(self.only or self.connections or self.calling or self.waiting)

    def forget(self, connection: Connection) -> None:
        """
        Remove a connection that has ended.
        """
        number, guid = connection.remoteQPN, connection.remoteCAGUID
        if self.only is connection:
            self.only = None
        elif connection.remoteID:
            del self.connections[number if guid == self.guid else self.key(guid, number)]
        else:
            # No REP came, so it was never known.
            self.calling -= 1

    def startTimewait(self, connection: Connection, now: float) -> TimewaitEntry:
        """
        Reserve the id of a connection's remote end.
        """
        if not self.waiting:
            self.waiting = {}
        # The remote id is 0 if no REP came; harmless, since no REQ has id 0.
        key = self.key(connection.remoteCAGUID, connection.remoteID)
        # A count: a peer that restarts may use an id again while its old use is still in TIMEWAIT.
        self.waiting[key] = self.waiting.get(key, 0) + 1
        return now + connection.timing.ackSeconds, connection.localID, self, key, connection.localQPN

    def endTimewait(self, key: int) -> None:
        """
        Release the id of a remote end.
        """
        left = self.waiting.pop(key) - 1
        if left:
            self.waiting[key] = left


def hasShown(peers: dict[Any, Peer], source: Any) -> bool:
    """
    @param peers: a table's, by source.
    @return: whether a source is no forger: a connection with it came up.
    """
    peer = peers.get(source)
    return peer is not None and peer.hasShown()


class SettledPair(Protocol):
    """
    A queue pair.

    @ivar consumer: its user, a L{SettledUser} of a connection that has settled.
    """

    number: int
    remote: int
    consumer: SettledUser | None


class SettledUser(Protocol):
    """
    The user of a queue pair and of its connection.

    @ivar connection: the L{Connection}, or the L{Peer} that stands for it.
    """

    connection: object

    @property
    def queuePair(self) -> SettledPair:
        """
        Its queue pair.
        """


class SettledConnections:
    """
    Established connections that are no objects any more, between processes: their queue pairs know the two
    numbers, which are the communication ids as well.  Their L{Peer}s have our numbers in the places of the
    objects, so that whatever comes finds them there: it makes the object again, and when the message has been
    dealt with it goes, if nothing came of it.

    @ivar count: how many there are.
    @ivar queuePairs: by their numbers.
    @ivar woken: those that a message has made objects again.
    """

    def __init__(
        self,
        connections: dict[int, Connection],
        peers: dict[Any, Peer],
        report: Callable[[tuple[Event, None, None]], object],
    ) -> None:
        """
        @param connections: the table's, by communication id; C{peers} its peers, by source.
        @param report: puts an event into the table's queue.
        """
        self._connections, self._peers, self._report = connections, peers, report
        self.count = 0
        self.queuePairs: Mapping[int, SettledPair] = {}
        self.woken: list[Connection] = []

    def settle(self, connection: object) -> object:
        """
        Forget a connection's object, if all that is in it can be made again.

        @return: what its user has instead, until it L{finish}es or L{resume}s it.
        """
        if not isinstance(connection, Connection):
            return connection
        number, remote, peer = connection.localID, connection.remoteID, connection.peer
        queuePair, isOnly = self.queuePairs.get(number), peer.only is connection
        if (
            queuePair is None
            or queuePair.consumer is not connection.user
            or queuePair.remote != remote
            or connection.state is not _ESTABLISHED
            or connection.localQPN != number
            or connection.remoteQPN != remote
            or connection.remoteCAGUID != peer.guid
            or connection.output is not None
            or connection.timing.period > _LONGEST
            or not (isOnly or peer.connections.get(remote) is connection)
        ):
            return connection
        if isOnly:
            peer.only, peer.connections = None, {}
        peer.connections[connection.remoteQPN] = number
        del self._connections[number]
        connection.user = None
        self.count += 1
        return peer

    def finish(self, peer: Peer, queuePair: SettledPair) -> None:
        """
        That of a queue pair has ended, and both users know.
        """
        if peer.connections.get(queuePair.remote) == queuePair.number:
            self._forget(peer, queuePair.remote)

    def _forget(self, peer: Peer, remote: int) -> None:
        del peer.connections[remote]
        self.count -= 1
        if not peer.connections and not peer.isNeeded():
            self._peers.pop(peer.source, None)

    def resume(self, peer: Peer, queuePair: SettledPair) -> Connection | None:
        """
        Make an object of that of a queue pair again, which its user has from now on.

        @return: the object; L{None} if it has ended.
        """
        number, remote, user = queuePair.number, queuePair.remote, queuePair.consumer
        if user is None or peer.connections.get(remote) != number:
            return None
        connection = Connection(peer, number, asking(0, 0, 0))
        connection.state, connection.localQPN = _ESTABLISHED, number
        connection.remoteID, connection.remoteQPN, connection.remoteCAGUID = remote, remote, peer.guid
        connection.user, user.connection = user, connection
        self._connections[number] = peer.connections[remote] = connection
        self.count -= 1
        return connection

    def at(self, number: int) -> tuple[Peer, SettledPair] | None:
        """
        @return: peer and queue pair of the one whose communication id a number of ours is.
        """
        queuePair = self.queuePairs.get(number) if self.count else None
        if queuePair is None:
            return None
        # Users of other kinds have none.
        peer: object = getattr(queuePair.consumer, "connection", None)
        if not isinstance(peer, Peer) or peer.connections.get(queuePair.remote) != number:
            return None
        return peer, queuePair

    def found(self, peer: Peer, remote: int) -> Connection | None:
        """
        @param remote: its key among C{connections}.
        @return: the connection that a peer has; a settled one L{wake}s.
        """
        known = peer.connections.get(remote)
        if not isinstance(known, int):
            return known
        return None if self._of(peer, remote, known) is None else self.wake(known)

    def _of(self, peer: Peer, remote: int, number: int) -> tuple[Peer, SettledPair] | None:
        found = self.at(number)
        if found is None or found[0] is not peer or found[1].remote != remote:
            # Its queue pair has gone without it.
            self._forget(peer, remote)
            return None
        return found

    def wake(self, number: int) -> Connection | None:
        """
        A message has come for the one with a number of ours.

        @return: its object, until L{rest}; L{None} if there is none.
        """
        found = self.at(number)
        connection = None if found is None else self.resume(*found)
        if connection is not None:
            self.woken.append(connection)
            self._report((Event.WOKEN, None, None))
        return connection

    def rest(self) -> None:
        """
        The message has been dealt with: what is as it was needs no object.
        """
        for connection in self.woken:
            user: SettledUser | None = connection.user
            if user is not None:
                user.connection = self.settle(connection)
        self.woken.clear()

    def resumeAll(self, peers: Iterable[Peer]) -> None:
        """
        Make objects of all of some peers'.
        """
        for peer in list(peers) if self.count else ():
            for remote, number in list(peer.connections.items()):
                if isinstance(number, int) and (found := self._of(peer, remote, number)) is not None:
                    self.resume(*found)
