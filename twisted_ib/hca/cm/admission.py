"""
Admission control: limits on half-open connections, per peer and in all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted_ib import limits
from twisted_ib.hca.cm.peer import Peer

if TYPE_CHECKING:
    from twisted_ib.hca.cm.machine import Connection

#: Connections that one REQ looks at to find one that may be evicted.
EVICTION_CHECKS = 8


class HalfOpenLimit:
    """
    The bounds of a connection table.

    @ivar halfOpen: REQs of all peers that are not established yet.
    @ivar oldest: those connections, oldest first, with the time of their REQ, if a new REQ over the limit
        evicts the oldest; L{None} if it is dropped.
    """

    __slots__ = ("_inAll", "_perSource", "halfOpen", "oldest")

    def __init__(self, perSource: int, inAll: int, replaces: bool = False) -> None:
        """
        @param perSource: half-open connections that one peer may have.
        @param inAll: the same of all peers.
        @param replaces: whether a REQ over the limit evicts the oldest one.
        """
        self._perSource = perSource
        self._inAll = inAll
        self.halfOpen = 0
        # A dictionary as an ordered set. Eviction is for sources that can be forged: dropping new REQs there
        # would let a flood of forged ones lock everybody out (RFC 4987 section 3.4, recycling the oldest
        # half-open TCB).
        self.oldest: dict[Connection, float] | None = {} if replaces else None

    def changed(self, connection: Connection, isHalfOpen: bool, now: float) -> None:
        """
        A connection has become half open, or is no longer.
        """
        peer: Peer = connection.peer
        guid, key = connection.remoteCAGUID, connection.remoteID
        if guid != peer.guid:
            key = peer.key(guid, key)
        if isHalfOpen:
            self.halfOpen += 1
            if not peer.halfOpen:
                peer.halfOpen = {}
            peer.halfOpen[key] = connection
            if self.oldest is not None:
                self.oldest[connection] = now
        else:
            self.halfOpen -= 1
            del peer.halfOpen[key]
            if self.oldest is not None:
                del self.oldest[connection]

    def victim(self, peer: Peer | None, now: float) -> Connection | None:
        """
        @param peer: the source of a new REQ, L{None} if nothing is known of it.
        @return: the connection to evict for it; L{None} if there is room, this table does not evict, or it
            has found none that may be: then the new one is dropped.
        """
        if self.oldest is None:
            return None
        # A peer over its own limit evicts one of its own, so that it cannot displace the connections of
        # others; and of any age, so that nobody who forges its address can lock it out.
        if peer is not None and len(peer.halfOpen) >= self._perSource:
            return next(iter(peer.halfOpen.values()))
        if self.halfOpen < self._inAll:
            return None
        for _ in range(EVICTION_CHECKS):
            first = next(iter(self.oldest))
            if self._mayGo(first, now):
                return first
            # The next REQ looks at others.
            self.oldest[first] = self.oldest.pop(first)
        return None

    def _mayGo(self, connection: Connection, now: float) -> bool:
        # An address with a connection that came up is no forgery: its REP is answered within a round trip,
        # and a REQ that is dropped comes again.
        peer: Peer = connection.peer
        if len(peer.connections) <= len(peer.halfOpen):
            return True
        assert self.oldest is not None
        return now - self.oldest[connection] >= limits.CM_HALF_OPEN_SECONDS

    def lacks(self, peer: Peer | None, connections: int, events: int) -> str | None:
        """
        @param peer: the source of a new REQ, L{None} if nothing is known of it.
        @param connections: how many the table holds.
        @param events: how many wait for the consumer.
        @return: the name of the counter of the limit that is reached, or L{None}.
        """
        ofPeer = 0 if peer is None else len(peer.halfOpen)
        known = 0 if peer is None else len(peer.connections)
        # A REQ over a limit is dropped without a REJ: the peer retransmits (IBTA vol. 1 12.6.5, Max CM
        # Retries), by when there may be room.
        if ofPeer >= self._perSource or self.halfOpen >= self._inAll:
            return "halfOpenExceeded"
        if known >= limits.CM_CONNECTIONS_PER_PATH:
            return "connectionsExceeded"
        if connections >= limits.CM_CONNECTIONS:
            return "tableFull"
        if events >= limits.CM_EVENTS:
            return "eventsFull"
        return None
