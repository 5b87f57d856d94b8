"""
Admission control: limits on half-open connections, per peer and in all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted_ib import limits
from twisted_ib.hca.cm.parked import Parked, ParkedConnections
from twisted_ib.hca.cm.peer import Peer
from twisted_ib.hca.cm.states import State

if TYPE_CHECKING:
    from twisted_ib.hca.cm.machine import Connection


class HalfOpenLimit:
    """
    The bounds of a connection table.

    @ivar halfOpen: REQs of all peers that are not established yet.
    @ivar strangers: if a new REQ over the limit evicts the oldest: the half-open connections of sources
        without a connection that came up, by our communication ids, oldest first.
    @ivar shown: the same of sources with one.
    """

    def __init__(self, perSource: int, inAll: int, parked: ParkedConnections | None = None) -> None:
        """
        @param perSource: half-open connections that one peer may have.
        @param inAll: the same of all peers.
        @param parked: those that are kept as octets, if a REQ over the limit evicts the oldest one.
        """
        self._perSource = perSource
        self._inAll = inAll
        self._least = min(perSource, inAll)
        self.halfOpen = 0
        # Eviction is for sources that can be forged: dropping new REQs there would let a flood of forged ones
        # lock everybody out (RFC 4987 section 3.4, recycling the oldest half-open TCB).
        self._parked = parked
        if parked is not None:
            parked.limit = self
        self.strangers: dict[int, Connection | Parked] = {}
        self.shown: dict[int, Connection | Parked] = {}

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
            if self._parked is not None:
                connection.since = now
                # The new one is among its peer's connections already.
                (self.shown if peer.hasShown() else self.strangers)[connection.localID] = connection
        else:
            self.halfOpen -= 1
            if peer.only is None:
                del peer.halfOpen[key]
            if self._parked is not None:
                if self.strangers.pop(connection.localID, None) is None:
                    del self.shown[connection.localID]
                elif connection.state is State.ESTABLISHED:
                    others: list[Connection | Parked] = [*peer.halfOpen.values()]
                    others += self._parked.of(self._parked.nameOf(peer.source))
                    for other in others:
                        if self.strangers.pop(other.localID, None) is not None:
                            self.shown[other.localID] = other
                if peer.table.follow is not None and connection.state is State.ESTABLISHED:
                    peer.table.follow(connection, None)

    def replace(self, connection: Connection, by: Connection | Parked) -> None:
        """
        A half-open connection is kept in another form, in its old place.
        """
        where = self.strangers if connection.localID in self.strangers else self.shown
        where[connection.localID] = by

    def at(self, localID: int) -> Connection | Parked | None:
        """
        @return: the half-open connection with an id of ours.
        """
        return self.strangers.get(localID) or self.shown.get(localID)

    def parked(self) -> list[Parked]:
        """
        @return: all that are parked.
        """
        every = (*self.strangers.values(), *self.shown.values())
        return [each for each in every if isinstance(each, Parked)]

    def victim(self, source: object, peer: Peer | None, now: float) -> Connection | Parked | None:
        """
        @param source: that of a new REQ.
        @param peer: what is known of it, if anything is.
        @return: the connection to evict for it; L{None} if there is room, this table does not evict, or none
            may be evicted: then the new one is dropped.
        """
        if self._parked is None:
            return None
        hasShown = peer is not None and peer.hasShown()
        first: Connection | Parked | None
        # A peer over its own limit evicts one of its own, so that it cannot displace the connections of
        # others.
        ofPeer = self._parked.halfOpens(source) + (0 if peer is None else peer.halfOpens())
        if ofPeer >= self._perSource:
            first = self._parked.oldest(source)
            if first is None:
                assert peer is not None
                first = peer.oldest()
        elif self.halfOpen < self._inAll:
            return None
        else:
            # Strangers and sources that have shown themselves are sure of half the table each, and have all
            # that the others leave: neither kind of flood takes the other's places.
            share = self._inAll // 2
            if len(self.strangers) > share:
                return self.strangers[next(iter(self.strangers))]
            if len(self.shown) > share and not hasShown:
                return self.shown[next(iter(self.shown))]
            kind = self.shown if hasShown else self.strangers
            first = kind[next(iter(kind))]
        # One that has shown itself is probably no forger: its REP is out and is answered within a round trip,
        # and a REQ that is dropped comes again.  But its address may be forged, so not for long.
        isYoung = first.localID in self.shown and now - first.since < limits.CM_HALF_OPEN_SECONDS
        return None if isYoung else first

    def lacks(self, source: object, peer: Peer | None, connections: int, events: int) -> str | None:
        """
        @param source: that of a new REQ.
        @param peer: what is known of it, if anything is.
        @param connections: how many the table holds.
        @param events: how many wait for the consumer.
        @return: the name of the counter of the limit that is reached, or L{None}.
        """
        # Far from each bound, as nearly always: a peer has no more than there are in all.
        if (
            connections < limits.CM_CONNECTIONS_PER_PATH
            and connections < limits.CM_CONNECTIONS
            and self.halfOpen < self._least
            and events < limits.CM_EVENTS
            and self._parked is None
        ):
            return None
        ofPeer = known = 0
        if peer is not None:
            ofPeer, known = len(peer.halfOpen), len(peer.connections)
            if peer.only is not None:
                ofPeer, known = peer.halfOpens(), 1
        if self._parked is not None:
            parked = self._parked.halfOpens(source)
            ofPeer, known = ofPeer + parked, known + parked
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
