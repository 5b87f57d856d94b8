"""
Admission control: limits on half-open connections, per peer and in all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted_ib import limits
from twisted_ib.hca.cm.peer import Peer
from twisted_ib.hca.cm.states import State

if TYPE_CHECKING:
    from twisted_ib.hca.cm.machine import Connection


class HalfOpenLimit:
    """
    The bounds of a connection table.

    @ivar halfOpen: REQs of all peers that are not established yet.
    @ivar strangers: if a new REQ over the limit evicts the oldest: the half-open connections of sources
        without a connection that came up, oldest first, with the time of their REQ.
    @ivar shown: the same of sources with one.
    """

    __slots__ = ("_inAll", "_perSource", "_replaces", "halfOpen", "shown", "strangers")

    def __init__(self, perSource: int, inAll: int, replaces: bool = False) -> None:
        """
        @param perSource: half-open connections that one peer may have.
        @param inAll: the same of all peers.
        @param replaces: whether a REQ over the limit evicts the oldest one.
        """
        self._perSource = perSource
        self._inAll = inAll
        self.halfOpen = 0
        # Eviction is for sources that can be forged: dropping new REQs there would let a flood of forged ones
        # lock everybody out (RFC 4987 section 3.4, recycling the oldest half-open TCB).
        self._replaces = replaces
        # Dictionaries as ordered sets.
        self.strangers: dict[Connection, float] = {}
        self.shown: dict[Connection, float] = {}

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
            if peer.only is None:
                if not peer.halfOpen:
                    peer.halfOpen = {}
                peer.halfOpen[key] = connection
            if self._replaces:
                # The new one is among its peer's connections already.
                (self.shown if peer.hasShown() else self.strangers)[connection] = now
        else:
            self.halfOpen -= 1
            if peer.only is None:
                del peer.halfOpen[key]
            if self._replaces:
                if self.strangers.pop(connection, None) is None:
                    del self.shown[connection]
                elif connection.state is State.ESTABLISHED:
                    self._show(peer)
                follow = connection.table.follow
                if follow is not None and connection.state is State.ESTABLISHED:
                    follow(connection)

    def _show(self, peer: Peer) -> None:
        for other in peer.halfOpen.values():
            since = self.strangers.pop(other, None)
            if since is not None:
                self.shown[other] = since

    def victim(self, peer: Peer | None, now: float) -> Connection | None:
        """
        @param peer: the source of a new REQ, L{None} if nothing is known of it.
        @return: the connection to evict for it; L{None} if there is room, this table does not evict, or none
            may be evicted: then the new one is dropped.
        """
        if not self._replaces:
            return None
        hasShown = peer is not None and peer.hasShown()
        # A peer over its own limit evicts one of its own, so that it cannot displace the connections of
        # others.
        if peer is not None and peer.halfOpens() >= self._perSource:
            first = peer.oldest()
        elif self.halfOpen < self._inAll:
            return None
        else:
            # Strangers and sources that have shown themselves are sure of half the table each, and have all
            # that the others leave: neither kind of flood takes the other's places.
            share = self._inAll // 2
            if len(self.strangers) > share:
                return next(iter(self.strangers))
            if len(self.shown) > share and not hasShown:
                return next(iter(self.shown))
            first = next(iter(self.shown if hasShown else self.strangers))
        # One that has shown itself is probably no forger: its REP is out and is answered within a round trip,
        # and a REQ that is dropped comes again.  But its address may be forged, so not for long.
        since = self.shown.get(first)
        isYoung = since is not None and now - since < limits.CM_HALF_OPEN_SECONDS
        return None if isYoung else first

    def lacks(self, peer: Peer | None, connections: int, events: int) -> str | None:
        """
        @param peer: the source of a new REQ, L{None} if nothing is known of it.
        @param connections: how many the table holds.
        @param events: how many wait for the consumer.
        @return: the name of the counter of the limit that is reached, or L{None}.
        """
        ofPeer = known = 0
        if peer is not None:
            ofPeer, known = len(peer.halfOpen), len(peer.connections)
            if peer.only is not None:
                ofPeer, known = peer.halfOpens(), 1
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
