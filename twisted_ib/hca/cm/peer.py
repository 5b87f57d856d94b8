"""
What a table of connections knows about one source of messages.
"""

from __future__ import annotations

from typing import Any

from twisted_ib.hca.cm.machine import Connection
from twisted_ib.hca.wire.cm import REP, REQ

#: What most sources have none of: nothing is ever put here.
_NO_CONNECTIONS: dict[int, Connection] = {}
_NO_KEYS: dict[int, int] = {}


class Peer:
    """
    One source.  Everything is looked up here that a peer could claim about
    itself, so that it can claim it about its own connections only.

    @ivar source: what the medium calls it.
    @ivar calling: by local id: our REQs, whose other end has no id yet.
    @ivar connections: by the L{key} of CA GUID and communication id of the other end.
    @ivar queuePairs: by the L{key} of CA GUID and queue pair number of the other end.
    @ivar guid: the first CA GUID that it said, which should be the only one.
    @ivar waiting: keys as in C{connections}, of ends in TIMEWAIT, and how many
        entries have them.
    @ivar halfOpen: its REQs that are not connections yet.
    """

    __slots__ = ("calling", "connections", "guid", "halfOpen", "queuePairs", "source", "waiting")

    def __init__(self, source: Any) -> None:
        self.source = source
        self.calling = _NO_CONNECTIONS
        self.connections: dict[int, Connection] = {}
        self.queuePairs: dict[int, Connection] = {}
        self.waiting = _NO_KEYS
        self.halfOpen = 0
        self.guid = -1

    def key(self, guid: int, number: int) -> int:
        """
        One integer for a CA GUID and 32 bits.  It is C{number} itself for an honest source, so that
        its many connections need no more integers.
        """
        return number if guid == self.guid else guid + 1 << 32 | number

    def isIdle(self) -> bool:
        """
        Whether there is nothing left to remember.
        """
        return not (self.connections or self.calling or self.waiting)

    def call(self, connection: Connection) -> None:
        """
        A REQ is sent to it.
        """
        if not self.calling:
            self.calling = {}
        self.calling[connection.localID] = connection

    def know(self, connection: Connection, message: REQ | REP) -> None:
        """
        The other end of a connection has said who it is.
        """
        guid, remoteID, number = message.localCAGUID, message.localCommunicationID, message.localQPN
        if self.guid < 0:
            self.guid = guid
        connection.remoteID, connection.remoteQPN = remoteID, number
        if guid == self.guid:
            guid = self.guid
        else:
            remoteID, number = self.key(guid, remoteID), self.key(guid, number)
        connection.remoteCAGUID = guid
        if self.calling:
            self.calling.pop(connection.localID, None)
        self.connections[remoteID] = connection
        self.queuePairs[number] = connection

    def forget(self, connection: Connection) -> None:
        """
        A connection is over.
        """
        if self.calling:
            self.calling.pop(connection.localID, None)
        remoteID, number, guid = connection.remoteID, connection.remoteQPN, connection.remoteCAGUID
        if remoteID:
            if guid != self.guid:
                remoteID, number = self.key(guid, remoteID), self.key(guid, number)
            del self.connections[remoteID]
            del self.queuePairs[number]

    def startTimewait(self, key: int) -> None:
        """
        The id of another end is reserved.
        """
        if not self.waiting:
            self.waiting = {}
        self.waiting[key] = self.waiting.get(key, 0) + 1

    def endTimewait(self, key: int) -> None:
        """
        The id of another end is free.
        """
        left = self.waiting.pop(key) - 1
        if left:
            self.waiting[key] = left
