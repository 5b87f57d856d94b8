"""
What a table of connections knows about one source of messages.
"""

from __future__ import annotations

from typing import Any

from twisted_ib.hca.cm.machine import Connection
from twisted_ib.hca.wire.cm import REP, REQ


class Peer:
    """
    One source.  Everything is looked up here that a peer could claim about
    itself, so that it can claim it about its own connections only.

    @ivar source: what the medium calls it.
    @ivar calling: by local id: our REQs, whose other end has no id yet.
    @ivar connections: by C{CA GUID << 32 | communication id} of the other end.
    @ivar queuePairs: by C{CA GUID << 32 | queue pair number} of the other end.
    @ivar waiting: keys as in C{connections}, of ends in TIMEWAIT, and how many
        entries have them.
    @ivar halfOpen: its REQs that are not connections yet.
    """

    __slots__ = ("calling", "connections", "halfOpen", "queuePairs", "source", "waiting")

    def __init__(self, source: Any) -> None:
        """
        Nothing is known.
        """
        self.source = source
        self.calling: dict[int, Connection] = {}
        self.connections: dict[int, Connection] = {}
        self.queuePairs: dict[int, Connection] = {}
        self.waiting: dict[int, int] = {}
        self.halfOpen = 0

    def isIdle(self) -> bool:
        """
        Whether there is nothing left to remember.
        """
        return not (self.connections or self.calling or self.waiting)

    def know(self, connection: Connection, message: REQ | REP) -> None:
        """
        The other end of a connection has said who it is.
        """
        guid = message.localCAGUID
        connection.remoteID = message.localCommunicationID
        connection.remoteQPN = message.localQPN
        connection.remoteCAGUID = guid
        self.calling.pop(connection.localID, None)
        self.connections[guid << 32 | connection.remoteID] = connection
        self.queuePairs[guid << 32 | connection.remoteQPN] = connection

    def forget(self, connection: Connection) -> None:
        """
        A connection is over.
        """
        self.calling.pop(connection.localID, None)
        if connection.remoteID:
            guid = connection.remoteCAGUID << 32
            del self.connections[guid | connection.remoteID]
            del self.queuePairs[guid | connection.remoteQPN]

    def startTimewait(self, key: int) -> None:
        """
        The id of another end is reserved.
        """
        self.waiting[key] = self.waiting.get(key, 0) + 1

    def endTimewait(self, key: int) -> None:
        """
        The id of another end is free.
        """
        left = self.waiting.pop(key) - 1
        if left:
            self.waiting[key] = left
