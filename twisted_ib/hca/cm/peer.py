"""
The state of one source of messages in a connection table.
"""

from __future__ import annotations

from typing import Any

from twisted_ib.hca.cm.machine import Connection, ConnectionContext
from twisted_ib.hca.cm.transitions import HALF_OPEN
from twisted_ib.hca.wire.cm.messages import REP, REQ

# Shared empty dictionaries, never written: most peers have one connection and nothing in TIMEWAIT.
_NO_CONNECTIONS: dict[int, Connection] = {}
_NO_KEYS: dict[int, int] = {}


class Peer:
    """
    One source of messages.

    @ivar table: the connection table.
    @ivar source: the medium's name of it: a path or an address.
    @ivar calling: how many of our REQs have no answer yet: the connections without a C{remoteID}.
    @ivar only: its connection, if it has been the only one: two dictionaries of one entry are more than all
        else that a half-open connection costs, and anybody can make many.
    @ivar connections: else: L{key} of CA GUID and remote queue pair number -> connection.
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
        self.halfOpen = _NO_CONNECTIONS
        self.waiting = _NO_KEYS
        self.guid = -1

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

    def startTimewait(self, key: int) -> None:
        """
        Reserve the id of a remote end.
        """
        if not self.waiting:
            self.waiting = {}
        # A count: a peer that restarts may use an id again while its old use is still in TIMEWAIT.
        self.waiting[key] = self.waiting.get(key, 0) + 1

    def endTimewait(self, key: int) -> None:
        """
        Release the id of a remote end.
        """
        left = self.waiting.pop(key) - 1
        if left:
            self.waiting[key] = left
